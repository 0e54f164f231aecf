//! A panic inside a run is a finding of that run, with its seed and its trace, and not the end of the
//! simulator: the core's own assertions see some broken promises before the invariants do.

use std::panic::{AssertUnwindSafe, catch_unwind};

/// Does something; the message if it panicked.
pub(crate) fn caught<T>(act: impl FnOnce() -> T) -> Result<T, String> {
    // Whatever was half changed is only reported afterwards, never run on.
    catch_unwind(AssertUnwindSafe(act)).map_err(|panic| {
        let text = panic.downcast_ref::<&str>().map(ToString::to_string);
        text.or_else(|| panic.downcast_ref::<String>().cloned())
            .unwrap_or_else(|| "a panic without a message".to_owned())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_kept() {
        assert_eq!(caught(|| 7), Ok(7));
        assert_eq!(caught(|| panic!("plain")), Err::<(), _>("plain".into()));
        let number = 3;
        let text = "S5: 3".to_owned();
        assert_eq!(caught(|| panic!("S5: {number}")), Err::<(), _>(text));
    }
}
