//! String formats of schemas.

use base64::Engine as _;

use crate::quantity::Quantity;

/// Checks the formats that the real server checks (kube-openapi, `strfmt`). Other formats are accepted.
pub(super) fn has_format(format: &str, text: &str) -> bool {
    match format {
        "date-time" | "datetime" => text.parse::<jiff::Timestamp>().is_ok(),
        "date" => text.parse::<jiff::civil::Date>().is_ok(),
        "ipv4" => text.parse::<std::net::Ipv4Addr>().is_ok(),
        "ipv6" => text.parse::<std::net::Ipv6Addr>().is_ok(),
        "uuid" | "uuid3" | "uuid4" | "uuid5" => uuid::Uuid::parse_str(text).is_ok_and(|uuid| {
            let version = format.trim_start_matches("uuid").parse::<usize>();
            version.is_err() || version == Ok(uuid.get_version_num())
        }),
        "mac" => is_mac(text),
        "byte" => is_base64(text),
        "hostname" => is_hostname(text),
        "email" => is_email(text),
        "uri" => is_uri(text),
        "duration" => is_duration(text),
        "hexcolor" => text.strip_prefix('#').is_some_and(|digits| {
            matches!(digits.len(), 3 | 6) && digits.bytes().all(|digit| digit.is_ascii_hexdigit())
        }),
        "cidr" => text.split_once('/').is_some_and(|(address, bits)| {
            let most = match address.parse::<std::net::IpAddr>() {
                Ok(std::net::IpAddr::V4(_)) => 32,
                Ok(std::net::IpAddr::V6(_)) => 128,
                Err(_) => return false,
            };
            bits.parse::<u8>().is_ok_and(|bits| bits <= most)
        }),
        "quantity" => text.parse::<Quantity>().is_ok(),
        _ => true,
    }
}

/// Accepts 6, 8 or 20 bytes, separated by colons or hyphens, or in groups of two separated by dots.
fn is_mac(text: &str) -> bool {
    let parts = |separator: char, digits: usize, counts: [usize; 3]| {
        let parts: Vec<&str> = text.split(separator).collect();
        let hex = |part: &&str| part.len() == digits && part.bytes().all(|b| b.is_ascii_hexdigit());
        counts.contains(&parts.len()) && parts.iter().all(hex)
    };
    parts(':', 2, [6, 8, 20]) || parts('-', 2, [6, 8, 20]) || parts('.', 4, [3, 4, 10])
}

fn is_base64(text: &str) -> bool {
    !text.is_empty()
        && base64::engine::general_purpose::STANDARD
            .decode(text)
            .is_ok()
}

fn is_hostname(text: &str) -> bool {
    let name = text.strip_suffix('.').unwrap_or(text);
    let label = |label: &str| {
        let inner = |b: u8| b.is_ascii_alphanumeric() || b == b'-' || b == b'_';
        !label.is_empty()
            && label.len() <= 63
            && label.bytes().all(inner)
            && !label.starts_with('-')
            && !label.ends_with('-')
    };
    name.len() <= 255 && name.is_ascii() && name.split('.').all(label)
}

fn is_email(text: &str) -> bool {
    // A display name before an address in angle brackets is accepted, as in a mail header.
    let address = text
        .strip_suffix('>')
        .and_then(|text| text.rsplit_once('<'));
    let address = address.map_or(text, |(_, address)| address);
    let odd = |c: char| c.is_whitespace() || c.is_control() || "<>(),;:\\\"[]@".contains(c);
    address.rsplit_once('@').is_some_and(|(user, host)| {
        !user.is_empty()
            && !user.split('.').any(str::is_empty)
            && !user.contains(odd)
            && !host.is_empty()
            && !host.split('.').any(str::is_empty)
            && !host.contains(odd)
    })
}

/// Accepts absolute URIs and paths from the root.
fn is_uri(text: &str) -> bool {
    let scheme = text.split_once(':').map(|(scheme, _)| scheme);
    let scheme = scheme.is_some_and(|scheme| {
        scheme.starts_with(|c: char| c.is_ascii_alphabetic())
            && scheme
                .chars()
                .all(|c| c.is_ascii_alphanumeric() || "+-.".contains(c))
    });
    (scheme || text.starts_with('/')) && !text.contains(|c: char| c.is_ascii_control() || c == ' ')
}

/// Accepts durations in Go's format, or numbers with units up to weeks.
fn is_duration(text: &str) -> bool {
    const UNITS: &[&str] = &[
        "ns",
        "us",
        "µs",
        "μs",
        "ms",
        "s",
        "m",
        "h",
        "d",
        "w",
        "nano",
        "nanos",
        "nanosecond",
        "nanoseconds",
        "micro",
        "micros",
        "microsecond",
        "microseconds",
        "milli",
        "millis",
        "millisecond",
        "milliseconds",
        "sec",
        "secs",
        "second",
        "seconds",
        "min",
        "mins",
        "minute",
        "minutes",
        "hr",
        "hrs",
        "hour",
        "hours",
        "day",
        "days",
        "wk",
        "wks",
        "week",
        "weeks",
    ];
    let mut rest = text.trim().trim_start_matches(['-', '+']);
    if rest == "0" {
        return true;
    }
    let mut any = false;
    while !rest.is_empty() {
        let unit = rest.trim_start_matches(|c: char| c.is_ascii_digit() || c == '.');
        let number = &rest[..rest.len() - unit.len()];
        let unit = unit.trim_start();
        let end = unit
            .find(|c: char| !c.is_alphabetic())
            .unwrap_or(unit.len());
        if number.parse::<f64>().is_err() || !UNITS.contains(&unit[..end].to_lowercase().as_str()) {
            return false;
        }
        any = true;
        rest = unit[end..].trim_start();
    }
    any
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_that_do_not_match_their_format_are_rejected() {
        let good = [
            ("uuid4", "f47ac10b-58cc-4372-a567-0e02b2c3d479"),
            ("mac", "01:23:45:67:89:ab"),
            ("mac", "0123.4567.89ab"),
            ("byte", "aGk="),
            ("hostname", "a-b.example."),
            ("email", "a.b@example.com"),
            ("email", "A B <a@b>"),
            ("uri", "https://example.com/a?b=c"),
            ("uri", "/a"),
            ("duration", "1h30m"),
            ("duration", "3 days"),
            ("hexcolor", "#a0B"),
            ("made-up", "anything"),
        ];
        for (format, text) in good {
            assert!(has_format(format, text), "{format}: {text}");
        }
        let bad = [
            ("uuid5", "f47ac10b-58cc-4372-a567-0e02b2c3d479"),
            ("uuid", "f47ac10b"),
            ("mac", "01:23:45:67:89"),
            ("mac", "01-23:45:67:89:ab"),
            ("byte", "a"),
            ("hostname", "-a.example"),
            ("hostname", "a..b"),
            ("email", "a.example.com"),
            ("email", "a b@c"),
            ("uri", "example.com"),
            ("uri", "http://a b"),
            ("duration", "5"),
            ("duration", "h"),
            ("hexcolor", "a0b"),
        ];
        for (format, text) in bad {
            assert!(!has_format(format, text), "{format}: {text}");
        }
    }
}
