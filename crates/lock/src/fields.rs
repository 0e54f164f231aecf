//! The fields of a record, parsed with tolerance.
//!
//! Parsing any object gives a record, or a reason why there is none. An invalid time counts as no time, and a number
//! out of range is moved into the range. Only a value of a wrong type makes a record unreadable.

use serde_json::Value;
use tenure_core::Record;

use crate::time;

/// The fields, with names that are independent of the lock kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Field {
    Holder,
    Duration,
    AcquireTime,
    RenewTime,
    Transitions,
    Strategy,
    PreferredHolder,
}

impl Field {
    /// Copies the value into the record. As in Go, null leaves the field unchanged.
    pub(crate) fn read(self, value: &Value, record: &mut Record) -> Result<(), String> {
        if value.is_null() {
            return Ok(());
        }
        let text = || {
            let text = value.as_str().map(str::to_owned);
            text.ok_or_else(|| format!("expected a string, found {}", shown(value)))
        };
        let number = || {
            let number = whole_number(value);
            number.ok_or_else(|| format!("expected a number, found {}", shown(value)))
        };
        match self {
            Self::Holder => record.holder = text()?,
            Self::Duration => record.lease_duration_seconds = number()?,
            Self::AcquireTime => record.acquire_time = time::parse(value),
            Self::RenewTime => record.renew_time = time::parse(value),
            Self::Transitions => record.transitions = countable(number()?),
            Self::Strategy => record.strategy = text()?,
            Self::PreferredHolder => record.preferred_holder = text()?,
        }
        Ok(())
    }
}

/// Converts a number to the type of the API: a signed 32-bit integer.
pub(crate) fn int32(number: u32) -> i32 {
    i32::try_from(number).unwrap_or(i32::MAX)
}

/// Converts a number. A negative number becomes zero, and a fraction is rounded up, so that a lease is never shortened.
fn whole_number(value: &Value) -> Option<u32> {
    if let Some(number) = value.as_u64() {
        return Some(u32::try_from(number).unwrap_or(u32::MAX));
    }
    // The cast saturates, and converts every negative number to zero.
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
    value.as_f64().map(|number| number.ceil() as u32)
}

/// Resets a count of transitions that cannot be incremented any more. Otherwise the API server would reject every
/// further write.
pub(crate) fn countable(transitions: u32) -> u32 {
    if int32(transitions) == i32::MAX {
        0
    } else {
        transitions
    }
}

fn shown(value: &Value) -> String {
    let text = value.to_string();
    match text.char_indices().nth(40) {
        None => text,
        Some((at, _)) => format!("{}...", &text[..at]),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn numbers_out_of_range_are_moved_into_it() {
        let read = |value: Value| {
            let mut record = Record::default();
            Field::Duration
                .read(&value, &mut record)
                .map(|()| record.lease_duration_seconds)
        };
        assert_eq!(read(json!(15)), Ok(15));
        assert_eq!(read(json!(-15)), Ok(0));
        assert_eq!(read(json!(14.2)), Ok(15));
        assert_eq!(read(json!(1e300)), Ok(u32::MAX));
        assert_eq!(read(json!(u64::MAX)), Ok(u32::MAX));
        assert_eq!(read(json!(null)), Ok(0));
        assert_eq!(
            read(json!("15")),
            Err("expected a number, found \"15\"".to_owned())
        );
    }

    #[test]
    fn transitions_restart_at_the_maximum() {
        let read = |value: Value| {
            let mut record = Record::default();
            Field::Transitions
                .read(&value, &mut record)
                .map(|()| record.transitions)
        };
        assert_eq!(read(json!(i32::MAX - 1)), Ok(2_147_483_646));
        assert_eq!(read(json!(i32::MAX)), Ok(0));
        assert_eq!(read(json!(1e18)), Ok(0));
        assert_eq!(read(json!(-3)), Ok(0));
    }
}
