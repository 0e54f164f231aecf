//! Errors of API servers in one readable line.

use kube::core::Status;

/// The reason that kube gives to an error whose body is not a Status.
const NOT_A_STATUS: &str = "Failed to parse error data";

/// Describes an error in one line. kube would print the whole Status for a response of an API server.
pub fn plain(error: &kube::Error) -> String {
    match error {
        kube::Error::Api(status) => of_status(status),
        error => error.to_string(),
    }
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
    use super::*;

    #[test]
    fn answers_are_one_line() {
        let said = |message, reason| {
            let status = Status::failure(message, reason).with_code(404);
            plain(&kube::Error::Api(Box::new(status)))
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
}
