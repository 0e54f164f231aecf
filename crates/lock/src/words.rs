//! Errors and panics in one readable line: the only place that turns an error of the client into text for people.
//!
//! The errors of kube and hyper describe their own layers (`ServiceError: client error (Connect): tcp connect error`) or
//! print a whole `Status`. People need the cause.

use std::any::Any;
use std::error::Error;

use kube::core::Status;

/// The reason that kube gives to an error whose body is not a Status.
const NOT_A_STATUS: &str = "Failed to parse error data";

/// Texts of layers that add nothing to their cause.
const LAYERS: [&str; 4] = [
    "client error (Connect)",
    "client error (SendRequest)",
    "tcp connect error",
    "connection error",
];

/// Describes an error and its causes in one line.
pub fn in_words(error: &(dyn Error + 'static)) -> String {
    let mut text = String::new();
    let mut next = Some(error);
    while let Some(error) = next {
        next = error.source();
        let words = match error.downcast_ref::<kube::Error>() {
            Some(kube::Error::Api(status)) => {
                next = None;
                of_status(status)
            }
            Some(kube::Error::Service(_) | kube::Error::HyperError(_)) if next.is_some() => {
                continue;
            }
            _ => error.to_string(),
        };
        if next.is_some() && LAYERS.contains(&words.as_str()) {
            continue;
        }
        let words = without_number(&words);
        // Many errors already contain their cause.
        if text.is_empty() {
            text = words;
        } else if !text.contains(&words) {
            text = format!("{text}: {words}");
        }
    }
    text
}

/// Returns the text of a panic.
pub fn panic_text(payload: &dyn Any) -> &str {
    let text = payload.downcast_ref::<&str>().copied();
    text.or_else(|| payload.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("no message")
}

/// Removes the number of an error of the operating system: `Connection refused (os error 111)`.
fn without_number(text: &str) -> String {
    let Some((before, number)) = text.rsplit_once(" (os error ") else {
        return text.to_owned();
    };
    let digits = number.strip_suffix(')');
    if !digits.is_some_and(|digits| digits.bytes().all(|byte| byte.is_ascii_digit())) {
        return text.to_owned();
    }
    let start = before.rfind(": ").map_or(0, |colon| colon + 2);
    let (context, cause) = before.split_at(start);
    let mut letters = cause.chars();
    let first = letters.next().map(|first| first.to_ascii_lowercase());
    context.chars().chain(first).chain(letters).collect()
}

fn of_status(status: &Status) -> String {
    if status.reason == NOT_A_STATUS {
        let text: String = status.message.trim().chars().take(200).collect();
        let code = status.code;
        return format!(
            "the server answered {code} ({text:?}), which is not how an API server answers; check its address"
        );
    }
    match (status.message.is_empty(), status.reason.is_empty()) {
        (false, _) => status.message.clone(),
        (true, false) => status.reason.clone(),
        (true, true) => format!("HTTP {}", status.code),
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    #[test]
    fn answer_is_one_line() {
        let said = |message, reason| {
            let status = Status::failure(message, reason).with_code(404);
            in_words(&kube::Error::Api(Box::new(status)))
        };
        assert_eq!(
            said("leases \"x\" not found", "NotFound"),
            "leases \"x\" not found"
        );
        assert_eq!(said("", "NotFound"), "NotFound");
        assert_eq!(said("", ""), "HTTP 404");
        assert_eq!(
            said("404 page not found\n", NOT_A_STATUS),
            "the server answered 404 (\"404 page not found\"), which is not how an API server answers; \
             check its address"
        );
    }

    #[test]
    fn layer_of_the_client_is_omitted_and_the_cause_stays() {
        #[derive(Debug, thiserror::Error)]
        #[error("{0}")]
        struct Layer(&'static str, #[source] Box<dyn Error + Send + Sync>);
        let refused = io::Error::from_raw_os_error(111);
        let tcp = Layer("tcp connect error", refused.into());
        let client = Layer("client error (Connect)", tcp.into());
        let error = kube::Error::Service(client.into());
        assert_eq!(in_words(&error), "connection refused");
        let other = Layer("reading the list", io::Error::other("cut off").into());
        assert_eq!(in_words(&other), "reading the list: cut off");
    }

    #[test]
    fn text_of_a_panic_is_that_of_its_message() {
        assert_eq!(panic_text(&"constant"), "constant");
        assert_eq!(panic_text(&String::from("formatted")), "formatted");
        assert_eq!(panic_text(&7), "no message");
    }

    #[test]
    fn number_of_the_system_is_removed_with_its_capital_letter() {
        assert_eq!(
            without_number("proxy a:1: Connection refused (os error 111)"),
            "proxy a:1: connection refused"
        );
        assert_eq!(without_number("No (os error x)"), "No (os error x)");
        assert_eq!(without_number("Plain"), "Plain");
    }
}
