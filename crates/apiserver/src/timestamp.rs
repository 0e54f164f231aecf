//! The two time formats of the API: seconds (`Time`) and microseconds (`MicroTime`), RFC 3339 in UTC.
//!
//! Parsing is as strict as in the real server. A `Time` may have a fraction, which is dropped. A `MicroTime` must have
//! a fraction of exactly six digits. The error texts are those of Go's `time.Parse`.

use jiff::{Timestamp, civil, tz::Offset};

/// Go's zero time, the start of year 1 in UTC. A time equal to it counts as unset.
const GO_ZERO: i64 = -62_135_596_800;

/// Formats a time like `creationTimestamp`.
pub(crate) fn rfc3339(moment: Timestamp) -> String {
    let whole = Timestamp::from_second(moment.as_second()).unwrap_or(moment);
    whole.to_string()
}

/// Formats whole seconds. Returns `None` for a time that JSON cannot represent.
pub fn format_seconds(seconds: i64) -> Option<String> {
    let time = Offset::UTC.to_datetime(Timestamp::from_second(seconds).ok()?);
    Some(format!("{}Z", clock(time)))
}

/// Formats seconds and nanoseconds with six digits. Returns `None` for a time that JSON cannot represent.
pub fn format_micros(seconds: i64, nanos: i32) -> Option<String> {
    let micros = nanos / 1000;
    let time = Offset::UTC.to_datetime(Timestamp::new(seconds, micros * 1000).ok()?);
    Some(format!(
        "{}.{:06}Z",
        clock(time),
        time.subsec_nanosecond() / 1000
    ))
}

fn clock(t: civil::DateTime) -> String {
    let (year, month, day) = (t.year(), t.month(), t.day());
    let (hour, minute, second) = (t.hour(), t.minute(), t.second());
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}")
}

/// Normalises a `Time` to UTC seconds; `None` stands for the unset time.
///
/// # Errors
/// Returns an error if the text is not an RFC 3339 time.
pub fn normalise_seconds(text: &str) -> Result<Option<String>, String> {
    normalise(
        text,
        &Layout {
            text: "2006-01-02T15:04:05Z07:00",
            micros: false,
        },
    )
}

/// Normalises a `MicroTime` to UTC with six digits; `None` stands for the unset time.
///
/// # Errors
/// Returns an error if the text is not an RFC 3339 time with exactly six fractional digits.
pub fn normalise_micros(text: &str) -> Result<Option<String>, String> {
    normalise(
        text,
        &Layout {
            text: "2006-01-02T15:04:05.000000Z07:00",
            micros: true,
        },
    )
}

struct Layout {
    text: &'static str,
    micros: bool,
}

fn normalise(text: &str, layout: &Layout) -> Result<Option<String>, String> {
    let parts = scan(text, layout.micros).map_err(|problem| match problem {
        Problem::Mismatch { rest, element } => format!(
            "parsing time {text:?} as {:?}: cannot parse {rest:?} as {element:?}",
            layout.text
        ),
        Problem::Extra(rest) => format!("parsing time {text:?}: extra text: {rest:?}"),
        Problem::Range(what) => format!("parsing time {text:?}: {what} out of range"),
    })?;
    let out_of_range = |_| format!("parsing time {text:?}: day out of range");
    let [year, month, day] = parts.date;
    let [hour, minute, second] = parts.clock;
    let local = civil::DateTime::new(
        year,
        narrow(month),
        narrow(day),
        narrow(hour),
        narrow(minute),
        narrow(second),
        0,
    );
    let utc = Offset::UTC
        .to_timestamp(local.map_err(out_of_range)?)
        .map_err(out_of_range)?;
    let canonical_length = if layout.micros { 27 } else { 20 };
    if text.len() == canonical_length && text.ends_with('Z') && !text.contains(',') && year > 1 {
        return Ok(Some(text.to_owned()));
    }
    let seconds = utc.as_second() - i64::from(parts.offset_minutes) * 60;
    if seconds == GO_ZERO && parts.nanos / 1000 == 0 {
        return Ok(None);
    }
    let formatted = if layout.micros {
        format_micros(seconds, parts.nanos)
    } else {
        format_seconds(seconds)
    };
    formatted
        .map(Some)
        .ok_or_else(|| format!("parsing time {text:?}: year out of range"))
}

/// Converts a number of at most two decimal digits, which always fits into `i8`.
fn narrow(number: i16) -> i8 {
    i8::try_from(number).unwrap_or(i8::MAX)
}

struct TimeFields {
    date: [i16; 3],
    clock: [i16; 3],
    nanos: i32,
    offset_minutes: i32,
}

enum Problem<'a> {
    Mismatch {
        rest: &'a str,
        element: &'static str,
    },
    Extra(&'a str),
    Range(&'static str),
}

fn scan(text: &str, micros: bool) -> Result<TimeFields, Problem<'_>> {
    let mut rest = text;
    let year = digits(&mut rest, 4, "2006")?;
    literal(&mut rest, "-")?;
    let month = digits(&mut rest, 2, "01")?;
    check(month, 1, 12, "month")?;
    literal(&mut rest, "-")?;
    let day = digits(&mut rest, 2, "02")?;
    literal(&mut rest, "T")?;
    // The hour may have one digit, as in Go.
    let one_digit = rest.as_bytes().get(1).is_some_and(|b| !b.is_ascii_digit());
    let hour = digits(&mut rest, if one_digit { 1 } else { 2 }, "15")?;
    check(hour, 0, 23, "hour")?;
    literal(&mut rest, ":")?;
    let minute = digits(&mut rest, 2, "04")?;
    check(minute, 0, 59, "minute")?;
    literal(&mut rest, ":")?;
    let second = digits(&mut rest, 2, "05")?;
    check(second, 0, 59, "second")?;
    let nanos = if micros {
        six_digits(&mut rest)?
    } else {
        skip_fraction(&mut rest)
    };
    let offset_minutes = offset(&mut rest)?;
    if !rest.is_empty() {
        return Err(Problem::Extra(rest));
    }
    check(day, 1, 31, "day")?;
    Ok(TimeFields {
        date: [year, month, day],
        clock: [hour, minute, second],
        nanos,
        offset_minutes,
    })
}

fn digits<'a>(rest: &mut &'a str, count: usize, element: &'static str) -> Result<i16, Problem<'a>> {
    let number = rest
        .get(..count)
        .filter(|t| t.bytes().all(|b| b.is_ascii_digit()));
    let number = number.and_then(|text| text.parse().ok());
    let number = number.ok_or(Problem::Mismatch { rest, element })?;
    *rest = &rest[count..];
    Ok(number)
}

fn literal<'a>(rest: &mut &'a str, element: &'static str) -> Result<(), Problem<'a>> {
    *rest = rest
        .strip_prefix(element)
        .ok_or(Problem::Mismatch { rest, element })?;
    Ok(())
}

fn check(number: i16, low: i16, high: i16, what: &'static str) -> Result<(), Problem<'static>> {
    if (low..=high).contains(&number) {
        Ok(())
    } else {
        Err(Problem::Range(what))
    }
}

fn six_digits<'a>(rest: &mut &'a str) -> Result<i32, Problem<'a>> {
    let whole = *rest;
    let mismatch = || Problem::Mismatch {
        rest: whole,
        element: ".000000",
    };
    let fraction = whole
        .get(..7)
        .and_then(|text| text.strip_prefix(['.', ',']));
    let fraction = fraction.filter(|text| text.bytes().all(|b| b.is_ascii_digit()));
    let micros: i32 = fraction
        .and_then(|text| text.parse().ok())
        .ok_or_else(mismatch)?;
    *rest = &whole[7..];
    Ok(micros * 1000)
}

/// Skips a fraction that the layout does not contain, as Go does.
fn skip_fraction(rest: &mut &str) -> i32 {
    if let Some(after) = rest.strip_prefix(['.', ',']) {
        let end = after.trim_start_matches(|c: char| c.is_ascii_digit());
        if end.len() < after.len() {
            *rest = end;
        }
    }
    0
}

fn offset<'a>(rest: &mut &'a str) -> Result<i32, Problem<'a>> {
    let whole = *rest;
    let element = "Z07:00";
    if let Some(after) = whole.strip_prefix('Z') {
        *rest = after;
        return Ok(0);
    }
    let mismatch = Problem::Mismatch {
        rest: whole,
        element,
    };
    let (sign, after) = match whole.as_bytes().first() {
        Some(b'+') => (1, &whole[1..]),
        Some(b'-') => (-1, &whole[1..]),
        _ => return Err(mismatch),
    };
    let mut inner = after;
    let parsed = (|| {
        let hours = digits(&mut inner, 2, element).ok()?;
        literal(&mut inner, ":").ok()?;
        let minutes = digits(&mut inner, 2, element).ok()?;
        Some((hours, minutes))
    })();
    let (hours, minutes) = parsed.ok_or(mismatch)?;
    check(hours, 0, 24, "time zone offset hour")?;
    check(minutes, 0, 60, "time zone offset minute")?;
    *rest = inner;
    Ok(sign * (i32::from(hours) * 60 + i32::from(minutes)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn micro_times_give_the_recorded_results() {
        assert_eq!(
            normalise_micros("2026-01-02T03:04:05Z").unwrap_err(),
            r#"parsing time "2026-01-02T03:04:05Z" as "2006-01-02T15:04:05.000000Z07:00": cannot parse "Z" as ".000000""#
        );
        assert_eq!(
            normalise_micros("2026-01-02T03:04:05.123Z").unwrap_err(),
            r#"parsing time "2026-01-02T03:04:05.123Z" as "2006-01-02T15:04:05.000000Z07:00": cannot parse ".123Z" as ".000000""#
        );
    }

    #[test]
    fn times_are_formatted_in_utc() {
        let micro = |text| normalise_micros(text).unwrap().unwrap();
        assert_eq!(
            micro("2026-01-02T03:04:05.000006Z"),
            "2026-01-02T03:04:05.000006Z"
        );
        assert_eq!(
            micro("2026-01-02T03:04:05.123456+01:30"),
            "2026-01-02T01:34:05.123456Z"
        );
        let time = |text| normalise_seconds(text).unwrap().unwrap();
        assert_eq!(time("2026-01-02T03:04:05Z"), "2026-01-02T03:04:05Z");
        assert_eq!(time("2026-01-02T03:04:05.987Z"), "2026-01-02T03:04:05Z");
        assert_eq!(time("2026-01-01T00:00:00-00:30"), "2026-01-01T00:30:00Z");
        assert_eq!(normalise_seconds("0001-01-01T00:00:00Z"), Ok(None));
        assert_eq!(
            format_micros(0, -1),
            Some("1970-01-01T00:00:00.000000Z".to_owned())
        );
    }

    #[test]
    fn nonsense_is_refused() {
        for text in [
            "",
            "x",
            "2026-13-01T00:00:00Z",
            "2026-02-30T00:00:00Z",
            "2026-01-01T24:00:00Z",
            "2026-01-01T00:00:60Z",
            "2026-01-01 00:00:00Z",
            "2026-01-01T00:00:00",
            "2026-01-01T00:00:00Zx",
            "2026-01-01T00:00:00+1:00",
            "2026-01-01T00:00:00.Z",
            "9999-12-31T23:59:59-23:59",
            "ä026-01-01T00:00:00Z",
        ] {
            assert!(normalise_seconds(text).is_err(), "{text}");
            assert!(normalise_micros(text).is_err(), "{text}");
        }
        assert!(normalise_micros("2026-01-02T03:04:05.1234567Z").is_err());
        assert!(format_seconds(i64::MAX).is_none());
    }
}
