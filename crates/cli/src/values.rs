//! Parsers of flag values that several commands use.

use std::time::Duration;

use rustix::process::Signal;

/// Parses a Go duration: `15s`, `1m30s`, `500ms`.
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    tenure_lock::duration::parse(text)
}

/// Parses a boolean in all forms of Go's flags.
#[cfg(feature = "provision")]
pub(crate) fn switch(text: &str) -> Result<bool, String> {
    match text {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Ok(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Ok(false),
        _ => Err("expected true or false".to_owned()),
    }
}

/// Parses a text that must not be empty; an empty one is often an unset variable in a manifest.
pub(crate) fn name(text: &str) -> Result<String, String> {
    if text.trim().is_empty() {
        return Err("it must not be empty".to_owned());
    }
    Ok(text.to_owned())
}

/// Permissions of a file in octal: `600`, `0660`.
pub(crate) fn mode(text: &str) -> Result<u32, String> {
    let mode = u32::from_str_radix(text, 8).ok();
    mode.filter(|mode| *mode <= 0o777)
        .ok_or_else(|| "expected an octal number such as 600 or 660".to_owned())
}

/// Most bytes of a value from the cluster in an environment variable. The kernel rejects a variable of 128 KiB.
const MAX_VARIABLE: usize = 4 << 10;

/// Converts a value from the cluster to the value of an environment variable, which must not contain NUL and has a
/// maximum length. Without the conversion, the record of another candidate could keep a command from starting.
pub(crate) fn variable(value: &str) -> String {
    let end = value.floor_char_boundary(MAX_VARIABLE);
    value[..end].replace('\0', "\u{fffd}")
}

/// Signals that can be named on the command line.
const SIGNALS: [(&str, Signal); 10] = [
    ("HUP", Signal::HUP),
    ("INT", Signal::INT),
    ("QUIT", Signal::QUIT),
    ("KILL", Signal::KILL),
    ("USR1", Signal::USR1),
    ("USR2", Signal::USR2),
    ("TERM", Signal::TERM),
    ("CONT", Signal::CONT),
    ("ALRM", Signal::ALARM),
    ("WINCH", Signal::WINCH),
];

/// Returns the name of a signal: `SIGTERM`.
pub(crate) fn signal_name(signal: Signal) -> String {
    let known = SIGNALS.into_iter().find(|(_, known)| *known == signal);
    match known {
        Some((name, _)) => format!("SIG{name}"),
        None => format!("signal {}", signal.as_raw()),
    }
}

/// Parses a signal: its name (`TERM`, `SIGTERM`) or its number.
pub(crate) fn signal(text: &str) -> Result<Signal, String> {
    let upper = text.to_ascii_uppercase();
    let name = upper.strip_prefix("SIG").unwrap_or(&upper);
    let number = text.parse().ok();
    SIGNALS
        .into_iter()
        .find(|(known, signal)| *known == name || Some(signal.as_raw()) == number)
        .map(|(_, signal)| signal)
        .ok_or_else(|| format!("{text:?} is not a signal that can be sent; try TERM, INT or KILL"))
}

/// Parses a signal that can be used as an order to tenure.
pub(crate) fn order_signal(text: &str) -> Result<Signal, String> {
    match signal(text)? {
        order @ (Signal::USR1 | Signal::USR2) => Ok(order),
        _ => Err(format!("{text} already has a meaning; choose USR1 or USR2")),
    }
}

/// Signals that are forwarded to a command instead of ending it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PassedOn(pub(crate) Vec<Signal>);

/// Parses `HUP`, `QUIT`, `HUP,QUIT` or `none`.
pub(crate) fn passed_on(text: &str) -> Result<PassedOn, String> {
    if text.eq_ignore_ascii_case("none") {
        return Ok(PassedOn(Vec::new()));
    }
    let each = text.split(',').map(|name| match signal(name.trim())? {
        passed @ (Signal::HUP | Signal::QUIT) => Ok(passed),
        _ => Err(format!(
            "{name} is not HUP or QUIT: TERM and INT always end, USR1, USR2, WINCH and CONT are \
             always passed on"
        )),
    });
    each.collect::<Result<_, String>>().map(PassedOn)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variable_from_the_cluster_has_no_nul_and_a_limit() {
        assert_eq!(variable("a\0b"), "a\u{fffd}b");
        assert_eq!(variable("plain"), "plain");
        let long = variable(&"ä".repeat(100_000));
        assert!(long.len() <= MAX_VARIABLE && long.chars().all(|c| c == 'ä'));
        let hostile = variable(&"\0".repeat(200_000));
        let mut command = std::process::Command::new("true");
        let status = command.env("TENURE_PREVIOUS_LEADER", hostile).status();
        assert!(status.unwrap().success());
    }

    #[test]
    fn only_hup_and_quit_can_be_forwarded() {
        assert_eq!(passed_on("none"), Ok(PassedOn(Vec::new())));
        let both = PassedOn(vec![Signal::HUP, Signal::QUIT]);
        assert_eq!(passed_on("sighup, quit"), Ok(both));
        assert!(passed_on("HUP,TERM").unwrap_err().contains("TERM"));
        assert!(passed_on("").is_err());
    }
}
