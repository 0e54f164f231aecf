//! Parses and formats Kubernetes quantities.

const BINARY: [&str; 6] = ["Ki", "Mi", "Gi", "Ti", "Pi", "Ei"];
const DECIMAL: [&str; 6] = ["k", "M", "G", "T", "P", "E"];

/// Parses a quantity such as `1.5Gi`, `1500M` or `1e9` into bytes, rounded up. Saturates at the largest `i64`.
pub(crate) fn parse(text: &str) -> Result<i64, String> {
    let bad = || format!("{text:?} is not a quantity");
    let digits = text
        .find(|c: char| !c.is_ascii_digit() && !matches!(c, '.' | '+' | '-'))
        .unwrap_or(text.len());
    let (number, suffix) = text.split_at(digits);
    let (negative, number) = match number.as_bytes().first() {
        Some(b'-') => (true, &number[1..]),
        Some(b'+') => (false, &number[1..]),
        _ => (false, number),
    };
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if whole.is_empty() && fraction.is_empty() {
        return Err(bad());
    }
    let all_digits = |part: &str| part.bytes().all(|b| b.is_ascii_digit());
    if !all_digits(whole) || !all_digits(fraction) {
        return Err(bad());
    }
    // Kubernetes has a resolution of one billionth; a smaller remainder rounds up.
    let (fine, rest) = fraction.split_at(fraction.len().min(9));
    let rest = rest.bytes().any(|b| b != b'0');
    let mut nanos: i128 = format!("{whole}{fine:0<9}").parse().map_err(|_| bad())?;
    if rest {
        nanos = nanos.saturating_add(1);
    }
    let scaled = match scale(suffix).ok_or_else(bad)? {
        Scale::Times(factor) => nanos.saturating_mul(factor),
        Scale::Over(divisor) => (nanos + divisor - 1) / divisor,
    };
    let one = 1_000_000_000;
    let bytes = if negative {
        -(scaled / one)
    } else {
        (scaled + one - 1).max(scaled) / one
    };
    Ok(i64::try_from(bytes).unwrap_or(if negative { i64::MIN } else { i64::MAX }))
}

/// Formats bytes as the API server does: with the largest exact binary unit, else the largest exact decimal unit.
pub(crate) fn format(bytes: i64) -> String {
    if bytes >= 1024 && bytes % 1024 == 0 {
        return in_units(bytes, 1024, &BINARY);
    }
    in_units(bytes, 1000, &DECIMAL)
}

fn in_units(mut bytes: i64, step: i64, units: &[&str]) -> String {
    let mut unit = "";
    for next in units {
        if bytes == 0 || bytes % step != 0 {
            break;
        }
        bytes /= step;
        unit = next;
    }
    format!("{bytes}{unit}")
}

enum Scale {
    Times(i128),
    Over(i128),
}

fn scale(suffix: &str) -> Option<Scale> {
    let power = |base: i128, exponent: usize| {
        base.checked_pow(u32::try_from(exponent).ok()?)
            .map(Scale::Times)
    };
    if let Some(at) = BINARY.iter().position(|unit| *unit == suffix) {
        return power(1024, at + 1);
    }
    if let Some(at) = DECIMAL.iter().position(|unit| *unit == suffix) {
        return power(1000, at + 1);
    }
    match suffix {
        "" => Some(Scale::Times(1)),
        "m" => Some(Scale::Over(1_000)),
        "u" => Some(Scale::Over(1_000_000)),
        "n" => Some(Scale::Over(1_000_000_000)),
        _ => {
            let exponent: i32 = suffix.strip_prefix(['e', 'E'])?.parse().ok()?;
            let size = usize::try_from(exponent.unsigned_abs()).ok()?;
            // Beyond this every quantity is too large, or rounds up to one byte.
            let ten = 10i128.pow(u32::try_from(size.min(20)).ok()?);
            Some(if exponent < 0 {
                Scale::Over(ten)
            } else {
                Scale::Times(ten)
            })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantities_are_bytes_rounded_up() {
        for (text, bytes) in [
            ("1Gi", 1 << 30),
            ("1500M", 1_500_000_000),
            ("1.5Gi", 3 << 29),
            ("0.5", 1),
            ("100m", 1),
            ("1001m", 2),
            ("1e3", 1_000),
            ("1E3", 1_000),
            ("1E", 1_000_000_000_000_000_000),
            ("12e-1", 2),
            ("0", 0),
            ("+5", 5),
            ("16Ei", i64::MAX),
            ("99999999999999999999", i64::MAX),
            ("0.0000000001", 1),
            (".5k", 500),
        ] {
            assert_eq!(parse(text), Ok(bytes), "{text}");
        }
        for text in [
            "", "Gi", "1GiB", "1.2.3", "1 Gi", "abc", "1e", "--1", "1Ki5",
        ] {
            assert!(parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn bytes_are_written_as_the_api_server_does() {
        for (bytes, text) in [
            (1 << 30, "1Gi"),
            (3 << 30, "3Gi"),
            (1_500_000_000, "1500M"),
            (1_536, "1536"),
            (1 << 20, "1Mi"),
            (5, "5"),
            (0, "0"),
            (1_000, "1k"),
            (1_073_741_825, "1073741825"),
        ] {
            assert_eq!(format(bytes), text);
        }
    }
}
