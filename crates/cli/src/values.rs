//! Values of flags that more than one command reads.

use std::time::Duration;

use rustix::process::Signal;

/// A Go duration: `15s`, `1m30s`, `500ms`.
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    tenure::lock::duration::parse(text)
}

/// Something that must not be empty, such as a variable that was not set in a manifest.
pub(crate) fn name(text: &str) -> Result<String, String> {
    if text.trim().is_empty() {
        return Err("it must not be empty".to_owned());
    }
    Ok(text.to_owned())
}

/// A signal by name (`TERM`, `SIGTERM`) or number.
pub(crate) fn signal(text: &str) -> Result<Signal, String> {
    const NAMES: [(&str, Signal); 10] = [
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
    let upper = text.to_ascii_uppercase();
    let name = upper.strip_prefix("SIG").unwrap_or(&upper);
    let number = text.parse().ok();
    NAMES
        .into_iter()
        .find(|(known, signal)| *known == name || Some(signal.as_raw()) == number)
        .map(|(_, signal)| signal)
        .ok_or_else(|| format!("{text:?} is not a signal that can be sent; try TERM, INT or KILL"))
}
