//! Durations in the format of Go: `1h30m`, `1.5s`, `300ms`.

use std::time::Duration;

const UNITS: [(&str, f64); 8] = [
    ("h", 3600.0),
    ("ms", 1e-3),
    ("m", 60.0),
    ("us", 1e-6),
    ("µs", 1e-6),
    ("μs", 1e-6),
    ("ns", 1e-9),
    ("s", 1.0),
];

/// Parses a duration. Negative durations are rejected.
pub fn parse(text: &str) -> Result<Duration, String> {
    let bad = || format!("{text:?} is not a duration such as \"10m\" or \"1h30m\"");
    let mut rest = text.strip_prefix('+').unwrap_or(text);
    if rest == "0" {
        return Ok(Duration::ZERO);
    }
    if rest.is_empty() {
        return Err(bad());
    }
    let mut total = Duration::ZERO;
    while !rest.is_empty() {
        let end = rest
            .find(|c: char| !c.is_ascii_digit() && c != '.')
            .ok_or_else(bad)?;
        let number: f64 = rest[..end].parse().map_err(|_| bad())?;
        rest = &rest[end..];
        let unit = UNITS.iter().find(|(unit, _)| rest.starts_with(unit));
        let (unit, seconds) = unit.ok_or_else(bad)?;
        rest = &rest[unit.len()..];
        let part = Duration::try_from_secs_f64(number * seconds).map_err(|_| bad())?;
        total = total.checked_add(part).ok_or_else(bad)?;
    }
    Ok(total)
}

/// Formats a duration in seconds, or in milliseconds if it has a fraction of a second.
pub fn format(duration: Duration) -> String {
    let seconds = duration.as_secs();
    let (hours, minutes, rest) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    let rest = match duration.subsec_millis() {
        0 => format!("{rest}s"),
        millis => format!("{rest}.{millis:03}s"),
    };
    match (hours, minutes) {
        (0, 0) => rest,
        (0, minutes) => format!("{minutes}m{rest}"),
        (hours, minutes) => format!("{hours}h{minutes}m{rest}"),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn durations_in_the_format_of_go_are_parsed() {
        for (text, millis) in [
            ("10m", 600_000),
            ("1h30m", 5_400_000),
            ("1.5s", 1500),
            ("300ms", 300),
            ("0", 0),
            ("+2s", 2000),
            ("1h2m3.5s", 3_723_500),
        ] {
            assert_eq!(parse(text), Ok(Duration::from_millis(millis)), "{text}");
        }
        for text in [
            "",
            "+",
            "10",
            "-1s",
            "1d",
            "s",
            ".s",
            "1..2s",
            "99999999999999999999h",
            "1m x",
        ] {
            assert!(parse(text).is_err(), "{text:?}");
        }
    }

    proptest! {
        #[test]
        fn formatted_durations_are_parsed_back(millis in 0..1_000_000_000_u64) {
            let duration = Duration::from_millis(millis);
            let read = parse(&format(duration)).unwrap();
            prop_assert!(read.abs_diff(duration) < Duration::from_micros(1));
        }

        #[test]
        fn any_text_is_read_without_panic(text: String) {
            let _ = parse(&text);
        }
    }
}
