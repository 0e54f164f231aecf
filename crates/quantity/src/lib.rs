//! Resource quantities such as `500m`, `1536Mi` and `1e3`: parsing, comparison, canonical text.
//!
//! The canonical text is the one that the real server stores: it has the largest suffix that leaves a whole number, in
//! the same family of suffixes. Numbers that already look canonical keep their text, even if the rules would shorten
//! them (`1.500` is kept).
#![forbid(unsafe_code)]

use std::cmp::Ordering;
use std::fmt;
use std::str::FromStr;

/// An invalid quantity. The text is that of the real server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The text is not a number with a suffix.
    #[error(
        "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'"
    )]
    Format,
    /// The digits are not a number, or the number is too long.
    #[error("unable to parse numeric part of quantity")]
    Numeric,
    /// The suffix does not exist.
    #[error("unable to parse quantity's suffix")]
    Suffix,
}

/// A quantity: `mantissa * 10^scale`, exact to one nano.
#[derive(Debug, Clone)]
pub struct Quantity {
    mantissa: i128,
    scale: i32,
    format: Format,
    text: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Format {
    DecimalSi,
    DecimalExponent,
    BinarySi,
}

const NANO: i32 = -9;
const DECIMAL: [(&str, i32); 10] = [
    ("n", -9),
    ("u", -6),
    ("m", -3),
    ("", 0),
    ("k", 3),
    ("M", 6),
    ("G", 9),
    ("T", 12),
    ("P", 15),
    ("E", 18),
];
const BINARY: [(&str, u32); 6] = [
    ("Ki", 10),
    ("Mi", 20),
    ("Gi", 30),
    ("Ti", 40),
    ("Pi", 50),
    ("Ei", 60),
];

impl Quantity {
    /// Returns the quantity of a number of bytes. Its text has a binary suffix if that leaves a whole number, and
    /// otherwise a decimal suffix. The API server stores both forms unchanged.
    #[must_use]
    pub fn from_bytes(bytes: i64) -> Self {
        let is_binary = bytes.unsigned_abs() >= 1024 && bytes % 1024 == 0;
        Self {
            mantissa: bytes.into(),
            scale: 0,
            format: if is_binary {
                Format::BinarySi
            } else {
                Format::DecimalSi
            },
            text: None,
        }
    }

    /// Returns the value as a whole number, rounded away from zero and limited to 64 bits.
    #[must_use]
    pub fn value(&self) -> i64 {
        let (nanos, one) = (self.nanos(), 1_000_000_000);
        let value = nanos / one + (nanos % one).signum();
        let limit = if value < 0 { i64::MIN } else { i64::MAX };
        i64::try_from(value).unwrap_or(limit)
    }

    /// Returns the quantity rounded away from zero to a thousandth, or `None` if that changes nothing.
    #[must_use]
    pub fn rounded_up_to_milli(&self) -> Option<Self> {
        const MILLI: i128 = 1_000_000;
        let (whole, rest) = (self.nanos() / MILLI, self.nanos() % MILLI);
        (rest != 0).then(|| Self {
            mantissa: whole + rest.signum(),
            scale: -3,
            format: self.format,
            text: None,
        })
    }

    /// Returns the sign: -1, 0 or 1.
    pub fn signum(&self) -> i32 {
        match self.mantissa.cmp(&0) {
            Ordering::Less => -1,
            Ordering::Equal => 0,
            Ordering::Greater => 1,
        }
    }

    /// Returns the sum. Its text has the suffixes of this quantity, or those of the other one if this one is zero.
    #[must_use]
    pub fn plus(&self, other: &Self) -> Self {
        self.with_nanos(self.nanos().saturating_add(other.nanos()), other)
    }

    /// Returns the difference. Its text has the suffixes of this quantity, or those of the other one if this one is zero.
    #[must_use]
    pub fn minus(&self, other: &Self) -> Self {
        self.with_nanos(self.nanos().saturating_sub(other.nanos()), other)
    }

    /// Whether the value is a whole number.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        self.nanos() % 1_000_000_000 == 0
    }

    /// Returns the value as a floating-point number.
    #[must_use]
    pub fn as_f64(&self) -> f64 {
        self.nanos() as f64 / 1e9
    }

    fn with_nanos(&self, nanos: i128, other: &Self) -> Self {
        let format = if self.mantissa == 0 {
            other.format
        } else {
            self.format
        };
        Self {
            mantissa: nanos,
            scale: NANO,
            format,
            text: None,
        }
    }

    /// Returns the value in nanos. Every quantity has one, because parsing rounds up to nanos and limits the size.
    fn nanos(&self) -> i128 {
        let factor = 10i128.checked_pow(self.scale.saturating_sub(NANO).unsigned_abs());
        factor
            .and_then(|f| self.mantissa.checked_mul(f))
            .unwrap_or(if self.mantissa < 0 {
                i128::MIN
            } else {
                i128::MAX
            })
    }
}

impl PartialEq for Quantity {
    fn eq(&self, other: &Self) -> bool {
        self.nanos() == other.nanos()
    }
}

impl Eq for Quantity {}

impl PartialOrd for Quantity {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Quantity {
    fn cmp(&self, other: &Self) -> Ordering {
        self.nanos().cmp(&other.nanos())
    }
}

impl FromStr for Quantity {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        if text.is_empty() {
            return Err(Error::Format);
        }
        let unsigned = text.strip_prefix(['+', '-']).unwrap_or(text);
        let digits_end = unsigned
            .find(|c: char| !c.is_ascii_digit())
            .unwrap_or(unsigned.len());
        let (whole, mut rest) = unsigned.split_at(digits_end);
        let mut fraction = "";
        if let Some(after) = rest.strip_prefix('.') {
            let end = after
                .find(|c: char| !c.is_ascii_digit())
                .unwrap_or(after.len());
            (fraction, rest) = after.split_at(end);
        }
        let (format, exponent) = suffix(rest)?;
        let whole = whole.trim_start_matches('0');
        let number = if whole.is_empty() { "0" } else { whole };
        let shifted = format!("{number}{fraction}");
        let value: i128 = match shifted.parse() {
            Ok(value) if shifted.len() <= 30 => value,
            _ => return Err(Error::Numeric),
        };
        let (mantissa, scale) = match format {
            Format::BinarySi => {
                let mantissa = value.checked_mul(1 << exponent).ok_or(Error::Numeric)?;
                (mantissa, -length(fraction))
            }
            Format::DecimalSi | Format::DecimalExponent => {
                (value, exponent.saturating_sub(length(fraction)))
            }
        };
        let kept = keeps_text(format, exponent, number, fraction, value);
        let mantissa = if text.starts_with('-') {
            -mantissa
        } else {
            mantissa
        };
        bounded(mantissa, scale, format, kept.then(|| text.to_owned()))
    }
}

impl fmt::Display for Quantity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.mantissa == 0 {
            return f.write_str("0");
        }
        if let Some(text) = &self.text {
            return f.write_str(text);
        }
        let whole = (self.nanos() % 1_000_000_000 == 0).then(|| self.nanos() / 1_000_000_000);
        match (self.format, whole) {
            (Format::BinarySi, Some(whole)) if whole.unsigned_abs() >= 1024 => binary(f, whole),
            (Format::DecimalExponent, _) => decimal(f, self, true),
            _ => decimal(f, self, false),
        }
    }
}

/// Returns the canonical text of a quantity.
///
/// # Errors
/// Returns an error if the text is not a quantity.
pub fn canonical(text: &str) -> Result<String, Error> {
    text.trim()
        .parse::<Quantity>()
        .map(|quantity| quantity.to_string())
}

fn length(text: &str) -> i32 {
    i32::try_from(text.len()).unwrap_or(i32::MAX)
}

fn suffix(text: &str) -> Result<(Format, i32), Error> {
    if let Some((_, exponent)) = DECIMAL.iter().find(|(name, _)| *name == text) {
        return Ok((Format::DecimalSi, *exponent));
    }
    if let Some((_, exponent)) = BINARY.iter().find(|(name, _)| *name == text) {
        return Ok((Format::BinarySi, exponent.cast_signed()));
    }
    let letters = |c: char| "eEinumkKMGTP".contains(c);
    let number = text.trim_start_matches(letters);
    let digits = number.strip_prefix(['+', '-']).unwrap_or(number);
    if !digits.bytes().all(|b| b.is_ascii_digit()) {
        return Err(Error::Format);
    }
    match text
        .strip_prefix(['e', 'E'])
        .and_then(|exponent| exponent.parse::<i32>().ok())
    {
        Some(exponent) => Ok((Format::DecimalExponent, exponent)),
        None => Err(Error::Suffix),
    }
}

/// Returns whether the real server keeps the text, because its fast path treats such a number as canonical.
fn keeps_text(format: Format, exponent: i32, whole: &str, fraction: &str, value: i128) -> bool {
    let scale = exponent.saturating_sub(length(fraction));
    match format {
        Format::BinarySi => {
            let precision = 15 - length(whole) - exponent * 3 / 10 - 1;
            fraction.is_empty() && precision >= 0 && value & 7 != 0
        }
        Format::DecimalSi | Format::DecimalExponent => {
            let precision = 18 - length(whole) - length(fraction);
            precision >= 0
                && scale >= NANO
                && scale % 3 == 0
                && !format!("{whole}{fraction}").ends_with("000")
                && !whole.starts_with('0')
        }
    }
}

/// Rounds away from zero to nanos, and limits binary quantities to the largest 64-bit number.
fn bounded(
    mut mantissa: i128,
    mut scale: i32,
    mut format: Format,
    text: Option<String>,
) -> Result<Quantity, Error> {
    while scale < NANO && mantissa != 0 {
        let up = i128::from(mantissa % 10 != 0) * mantissa.signum();
        let next = mantissa / 10 + up;
        scale = if next == mantissa { NANO } else { scale + 1 };
        mantissa = next;
    }
    if mantissa == 0 {
        return Ok(Quantity {
            mantissa: 0,
            scale: 0,
            format,
            text: None,
        });
    }
    let mut quantity = Quantity {
        mantissa,
        scale,
        format,
        text,
    };
    if format == Format::BinarySi {
        // The absolute value of the lowest number does not fit into `i128`.
        let cap = u128::from(i64::MAX.unsigned_abs()) * 1_000_000_000;
        if quantity.nanos().unsigned_abs() > cap {
            (quantity.mantissa, quantity.scale) = (i128::from(i64::MAX) * mantissa.signum(), 0);
            quantity.text = None;
        }
        if quantity.nanos().unsigned_abs() < 1_000_000_000 {
            format = Format::DecimalSi;
        }
        quantity.format = format;
    } else if quantity.nanos() == i128::MAX || quantity.nanos() == i128::MIN {
        return Err(Error::Numeric);
    }
    Ok(quantity)
}

fn binary(f: &mut fmt::Formatter<'_>, mut whole: i128) -> fmt::Result {
    let mut steps = 0;
    while whole % 1024 == 0 && steps < BINARY.len() {
        whole /= 1024;
        steps += 1;
    }
    let suffix = if steps == 0 { "" } else { BINARY[steps - 1].0 };
    write!(f, "{whole}{suffix}")
}

fn decimal(f: &mut fmt::Formatter<'_>, quantity: &Quantity, exponent_form: bool) -> fmt::Result {
    let (mut mantissa, mut scale) = (quantity.nanos(), NANO);
    while mantissa % 1000 == 0 && (exponent_form || scale < 18) {
        mantissa /= 1000;
        scale += 3;
    }
    if exponent_form && scale != 0 {
        return write!(f, "{mantissa}e{scale}");
    }
    let suffix = DECIMAL.iter().find(|(_, exponent)| *exponent == scale);
    write!(f, "{mantissa}{}", suffix.map_or("", |(name, _)| name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_keep_the_suffixes_of_the_first_quantity() {
        let quantity = |text: &str| text.parse::<Quantity>().expect("a quantity");
        for (one, other, sum) in [
            ("1", "500m", "1500m"),
            ("1Gi", "512Mi", "1536Mi"),
            ("0", "1Gi", "1Gi"),
            ("500m", "500m", "1"),
            ("1Gi", "1", "1073741825"),
        ] {
            let total = quantity(one).plus(&quantity(other));
            assert_eq!(total.to_string(), sum, "{one} + {other}");
            assert_eq!(
                total.minus(&quantity(other)),
                quantity(one),
                "{one} + {other} - {other}"
            );
        }
        assert!(quantity("1").is_whole() && !quantity("1500m").is_whole());
        assert!((quantity("1500m").as_f64() - 1.5).abs() < 1e-9);
    }

    #[test]
    fn canonical_text_equals_that_of_the_real_server() {
        for (text, expected) in [
            ("0", "0"),
            ("0Gi", "0"),
            ("1", "1"),
            ("0.5", "500m"),
            ("1.5Gi", "1536Mi"),
            ("1536Mi", "1536Mi"),
            ("1024Mi", "1Gi"),
            ("1000m", "1"),
            ("1000", "1k"),
            ("1500", "1500"),
            ("1.500", "1.500"),
            ("100Ki", "100Ki"),
            ("1023", "1023"),
            ("0.5Ki", "512"),
            ("0.1Ki", "102400m"),
            ("1e3", "1e3"),
            ("10e2", "1e3"),
            ("1E", "1E"),
            ("-1.5Gi", "-1536Mi"),
            ("+2Gi", "+2Gi"),
            (".5", "500m"),
            ("5.", "5."),
            ("1n", "1n"),
            ("0.1n", "1n"),
            ("100Ei", "9223372036854775807"),
            ("-100Ei", "-9223372036854775807"),
            ("999999999999Ei", "9223372036854775807"),
            ("-999999999999Ei", "-9223372036854775807"),
            (" 1Gi ", "1Gi"),
        ] {
            assert_eq!(canonical(text).as_deref(), Ok(expected), "{text}");
        }
    }

    #[test]
    fn canonical_is_idempotent() {
        for text in [
            "1.5Gi",
            "0.1Ki",
            "12345678901",
            "3e-4",
            "999999999999999999",
            "7P",
            "-3m",
        ] {
            let once = canonical(text).unwrap();
            assert_eq!(canonical(&once).unwrap(), once, "{text}");
            assert_eq!(once.parse::<Quantity>(), text.parse::<Quantity>(), "{text}");
        }
    }

    #[test]
    fn quantities_are_compared_by_value() {
        let q = |text: &str| text.parse::<Quantity>().unwrap();
        assert!(q("1Gi") > q("1G") && q("500m") < q("1") && q("1k") == q("1000"));
        assert_eq!(
            (q("-1").signum(), q("0").signum(), q("1n").signum()),
            (-1, 0, 1)
        );
    }

    #[test]
    fn values_are_whole_numbers_rounded_up() {
        for (text, value) in [
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
            ("-1500m", -2),
            ("16Ei", i64::MAX),
            ("99999999999999999999", i64::MAX),
            ("-99999999999999999999", i64::MIN),
            ("0.0000000001", 1),
            (".5k", 500),
        ] {
            let quantity: Quantity = text.parse().unwrap();
            assert_eq!(quantity.value(), value, "{text}");
        }
    }

    #[test]
    fn precise_quantities_are_rounded_up_to_milli() {
        for (text, expected) in [
            ("100u", Some("1m")),
            ("1n", Some("1m")),
            ("1.000100", Some("1001m")),
            ("-1.5m", Some("-2m")),
            ("1m", None),
            ("1.500", None),
            ("1Gi", None),
            ("0", None),
        ] {
            let quantity: Quantity = text.parse().unwrap();
            let rounded = quantity.rounded_up_to_milli().map(|it| it.to_string());
            assert_eq!(rounded.as_deref(), expected, "{text}");
        }
    }

    #[test]
    fn bytes_are_written_as_the_api_server_does() {
        for (bytes, text) in [
            (1 << 30, "1Gi"),
            (3 << 30, "3Gi"),
            (1_024_000, "1000Ki"),
            (1_500_000_000, "1500M"),
            (1_536, "1536"),
            (1 << 20, "1Mi"),
            (5, "5"),
            (0, "0"),
            (1_000, "1k"),
            (1_073_741_825, "1073741825"),
            (i64::MAX, "9223372036854775807"),
        ] {
            let quantity = Quantity::from_bytes(bytes);
            assert_eq!(
                (quantity.to_string().as_str(), quantity.value()),
                (text, bytes)
            );
            assert_eq!(canonical(text).as_deref(), Ok(text));
        }
    }

    #[test]
    fn nonsense_is_refused() {
        for text in [
            "",
            "x",
            "1x",
            "1.2.3",
            "Gii",
            "1ki",
            "1KI",
            "--1",
            "1 Gi",
            "1e",
            "1e99999999999",
            "1e40",
            "99999999999999999999999999999999999999999",
            "1ee3",
            "1Gi3",
            "999999999999999999999999999999Ei",
        ] {
            assert!(canonical(text).is_err(), "{text}");
        }
    }
}
