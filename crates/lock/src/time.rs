//! Times as text: MicroTime for Leases, RFC 3339 seconds for annotations.
//!
//! The real API server accepts a MicroTime only with exactly six fractional digits.

use jiff::Timestamp;
use jiff::fmt::temporal::DateTimePrinter;
use serde_json::Value;
use tenure_core::WallTime;

/// Formats a time as `2026-01-02T03:04:05.000006Z`; null for no time and for a time outside the format.
pub(crate) fn micro(time: Option<WallTime>) -> Value {
    const PRINTER: DateTimePrinter = DateTimePrinter::new().precision(Some(6));
    format(time, &PRINTER)
}

/// Formats a time as `2026-01-02T03:04:05Z`, without the fraction; null as for [`micro`].
pub(crate) fn seconds(time: Option<WallTime>) -> Value {
    const PRINTER: DateTimePrinter = DateTimePrinter::new().precision(Some(0));
    format(time, &PRINTER)
}

/// Parses a time in either form, with any fraction and offset. Any other value counts as no time. Elections depend only
/// on changes of a record, so an invalid time must not invalidate its holder.
pub(crate) fn parse(value: &Value) -> Option<WallTime> {
    parse_text(value.as_str()?)
}

/// Same as [`parse`], for text.
pub(crate) fn parse_text(text: &str) -> Option<WallTime> {
    let time: Timestamp = text.trim().parse().ok()?;
    let time = WallTime::from_micros(time.as_microsecond());
    // Older writers store Go's zero time instead of null.
    (time.as_micros() != GO_ZERO_MICROS).then_some(time)
}

/// 0001-01-01T00:00:00Z.
const GO_ZERO_MICROS: i64 = -62_135_596_800_000_000;

/// The last microsecond of the year 9999; the format has four digits for the year.
const LAST_MICROS: i64 = 253_402_300_799_999_999;

fn format(time: Option<WallTime>, printer: &DateTimePrinter) -> Value {
    let micros = time.map(WallTime::as_micros);
    micros
        .filter(|micros| (GO_ZERO_MICROS + 1..=LAST_MICROS).contains(micros))
        .and_then(|micros| Timestamp::from_microsecond(micros).ok())
        .map_or(Value::Null, |time| {
            printer.timestamp_to_string(&time).into()
        })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    #[test]
    fn micro_time_always_has_six_digits() {
        let at = |micros| micro(Some(WallTime::from_micros(micros)));
        assert_eq!(at(0), "1970-01-01T00:00:00.000000Z");
        assert_eq!(at(1_767_323_045_000_006), "2026-01-02T03:04:05.000006Z");
        assert_eq!(at(1_767_323_045_120_000), "2026-01-02T03:04:05.120000Z");
        assert_eq!(
            seconds(Some(WallTime::from_micros(1_767_323_045_999_999))),
            "2026-01-02T03:04:05Z"
        );
    }

    #[test]
    fn no_time_and_impossible_times_are_null() {
        assert_eq!(micro(None), Value::Null);
        assert_eq!(micro(Some(WallTime::from_micros(i64::MAX))), Value::Null);
        assert_eq!(seconds(Some(WallTime::from_micros(i64::MIN))), Value::Null);
    }

    #[test]
    fn zero_time_of_go_is_null_and_the_next_microsecond_is_not() {
        let at = |micros| micro(Some(WallTime::from_micros(micros)));
        assert_eq!(at(GO_ZERO_MICROS), Value::Null);
        assert_eq!(at(GO_ZERO_MICROS + 1), "0001-01-01T00:00:00.000001Z");
    }

    #[test]
    fn offsets_and_fractions_are_parsed() {
        let noon = parse(&json!("2026-01-02T03:04:05Z"));
        assert_eq!(noon, Some(WallTime::from_micros(1_767_323_045_000_000)));
        for text in [
            "2026-01-02T03:04:05+00:00",
            "2026-01-02T05:34:05+02:30",
            "2026-01-02T03:04:05.000Z",
        ] {
            assert_eq!(parse(&json!(text)), noon, "{text}");
        }
        let nanos = parse(&json!("2017-02-23T05:38:11.486157803Z")).unwrap();
        assert_eq!(nanos.as_micros() % 1_000_000, 486_157);
    }

    #[test]
    fn invalid_value_counts_as_no_time() {
        for value in [
            json!(null),
            json!(7),
            json!(""),
            json!("soon"),
            json!("0001-01-01T00:00:00Z"),
        ] {
            assert_eq!(parse(&value), None, "{value}");
        }
    }

    proptest! {
        #[test]
        fn times_round_trip(micros in -62_135_596_799_999_999..=253_402_300_799_999_999_i64) {
            let time = WallTime::from_micros(micros);
            prop_assert_eq!(parse(&micro(Some(time))), Some(time));
            let cut = time.whole_seconds();
            prop_assert_eq!(parse(&seconds(Some(time))), (cut.as_micros() != GO_ZERO_MICROS).then_some(cut));
        }

        #[test]
        fn any_text_is_read_without_panic(text: String) {
            parse(&Value::from(text));
        }
    }
}
