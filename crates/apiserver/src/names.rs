//! Syntax checks of names, label keys, label values and data keys, with the error texts of the real server.
//!
//! Every check returns a list of errors, which is empty for a valid value. An error is the text that follows `Invalid
//! value: "...": ` in a response. Lengths are counted in bytes.

const LABEL: &str = "[a-z0-9]([-a-z0-9]*[a-z0-9])?";
const SUBDOMAIN: &str = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*";
const LABEL_1035: &str = "[a-z]([-a-z0-9]*[a-z0-9])?";
const KEY: &str = "([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]";
const VALUE: &str = "(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?";

/// A check of this module; the table of kinds refers to it.
pub type Check = fn(&str) -> Vec<String>;

/// Checks an RFC 1123 subdomain of at most 253 bytes: the name of most kinds.
pub fn dns1123_subdomain(value: &str) -> Vec<String> {
    let mut complaints = too_long(value, 253, "characters");
    if !value.split('.').all(is_dns1123_label) {
        complaints.push(subdomain_pattern());
    }
    complaints
}

/// Checks an RFC 1123 label of at most 63 bytes: the name of a namespace.
pub fn dns1123_label(value: &str) -> Vec<String> {
    let mut complaints = too_long(value, 63, "characters");
    if !is_dns1123_label(value) {
        if value.split('.').all(is_dns1123_label) {
            complaints.push("must not contain dots".to_owned());
        } else {
            let what = "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end with an alphanumeric character";
            complaints.push(pattern(what, LABEL, &["my-name", "123-abc"]));
        }
    }
    complaints
}

/// Checks a DNS-1035 label of at most 63 bytes, starting with a letter: the name of a service.
pub fn dns1035_label(value: &str) -> Vec<String> {
    let mut complaints = too_long(value, 63, "characters");
    if !is_dns1123_label(value) || !value.starts_with(|c: char| c.is_ascii_lowercase()) {
        let what = "a DNS-1035 label must consist of lower case alphanumeric characters or '-', start with an alphabetic character, and end with an alphanumeric character";
        complaints.push(pattern(what, LABEL_1035, &["my-name", "abc-123"]));
    }
    complaints
}

/// Checks a DNS subdomain whose first label is `*`: a host of an ingress.
pub fn wildcard_subdomain(value: &str) -> Vec<String> {
    let mut complaints = too_long(value, 253, "characters");
    let rest = value.strip_prefix("*.");
    if !rest.is_some_and(|rest| rest.split('.').all(is_dns1123_label)) {
        let what = "a wildcard DNS-1123 subdomain must start with '*.', followed by a valid DNS subdomain, which must consist of lower case alphanumeric characters, '-' or '.' and end with an alphanumeric character";
        complaints.push(pattern(
            what,
            &format!(r"\*\.{SUBDOMAIN}"),
            &["*.example.com"],
        ));
    }
    complaints
}

/// Checks the name of a port.
pub fn port_name(value: &str) -> Vec<String> {
    let inner = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
    let mut complaints = too_long(value, 15, "characters");
    let broken = [
        (
            value.is_empty() || !value.bytes().all(inner),
            "must contain only alpha-numeric characters (a-z, 0-9), and hyphens (-)",
        ),
        (
            !value.bytes().any(|b| b.is_ascii_lowercase()),
            "must contain at least one letter (a-z)",
        ),
        (value.contains("--"), "must not contain consecutive hyphens"),
        (
            value.starts_with('-') || value.ends_with('-'),
            "must not begin or end with a hyphen",
        ),
    ];
    let broken = broken.into_iter().filter(|(is, _)| *is);
    complaints.extend(broken.map(|(_, why)| why.to_owned()));
    complaints
}

/// Checks a path below a domain: the name of a controller.
pub fn http_path(value: &str) -> Vec<String> {
    let allowed = |b: u8| b.is_ascii_alphanumeric() || b"/-._~%!$&'()*+,;=:".contains(&b);
    if !value.is_empty() && value.bytes().all(allowed) {
        return Vec::new();
    }
    let regex = r"[A-Za-z0-9/\-._~%!$&'()*+,;=:]+";
    vec![format!(
        "Invalid path (regex used for validation is '{regex}')"
    )]
}

/// Checks that a name is valid as one path segment: RBAC kinds.
pub fn path_segment(value: &str) -> Vec<String> {
    match value {
        "." | ".." => vec![format!("may not be '{value}'")],
        _ => path_segment_prefix(value),
    }
}

/// Checks that a prefix of a name is valid as one path segment.
pub fn path_segment_prefix(value: &str) -> Vec<String> {
    let bad = ["/", "%"].into_iter().filter(|bad| value.contains(bad));
    bad.map(|bad| format!("may not contain '{bad}'")).collect()
}

/// Checks a qualified name, optionally with a DNS prefix: label and annotation keys, finalizers.
pub fn qualified_name(value: &str) -> Vec<String> {
    let what = "must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character";
    let what = pattern(what, KEY, &["MyName", "my.name", "123-abc"]);
    let mut complaints = Vec::new();
    let name = match value.split_once('/') {
        None => value,
        Some((_, rest)) if rest.contains('/') => {
            return vec![format!(
                "a valid label key {what} with an optional DNS subdomain prefix and '/' (e.g. 'example.com/MyName')"
            )];
        }
        Some(("", name)) => {
            complaints.push("prefix part must be non-empty".to_owned());
            name
        }
        Some((prefix, name)) => {
            let mut bad = too_long(prefix, 253, "bytes");
            if !prefix.split('.').all(is_dns1123_label) {
                bad.push(subdomain_pattern());
            }
            complaints.extend(bad.into_iter().map(|text| format!("prefix part {text}")));
            name
        }
    };
    if name.is_empty() {
        complaints.push("name part must be non-empty".to_owned());
    }
    complaints.extend(
        too_long(name, 63, "bytes")
            .into_iter()
            .map(|t| format!("name part {t}")),
    );
    if !is_key(name) {
        complaints.push(format!("name part {what}"));
    }
    complaints
}

/// Checks the value of a label: empty, or like the name part of a key.
pub fn label_value(value: &str) -> Vec<String> {
    let mut complaints = too_long(value, 63, "bytes");
    if !value.is_empty() && !is_key(value) {
        let what = "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character";
        complaints.push(pattern(what, VALUE, &["MyValue", "my_value", "12345"]));
    }
    complaints
}

/// Checks the name of an HTTP header.
pub fn http_header(value: &str) -> Vec<String> {
    let inner = |b: u8| b.is_ascii_alphanumeric() || b == b'-';
    if !value.is_empty() && value.bytes().all(inner) {
        return Vec::new();
    }
    let what = "a valid HTTP header must consist of alphanumeric characters or '-'";
    vec![pattern(what, "[-A-Za-z0-9]+", &["X-Header-Name"])]
}

/// Checks a key of a config map or secret, which must be a valid file name.
pub fn config_map_key(value: &str) -> Vec<String> {
    let mut complaints = too_long(value, 253, "characters");
    if value.is_empty() || !value.bytes().all(is_key_byte) {
        let what = "a valid config key must consist of alphanumeric characters, '-', '_' or '.'";
        let examples = ["key.name", "KEY_NAME", "key-name"];
        complaints.push(pattern(what, "[-._a-zA-Z0-9]+", &examples));
    }
    if value == "." || value == ".." {
        complaints.push(format!("must not be '{value}'"));
    } else if value.starts_with("..") {
        complaints.push("must not start with '..'".to_owned());
    }
    complaints
}

/// Applies a name check to the prefix of a generated name, which may end with a dash. Like the real server, it replaces
/// the last two characters by a letter.
pub fn generated(check: Check, prefix: &str) -> Vec<String> {
    let Some(rest) = prefix.strip_suffix('-').filter(|rest| !rest.is_empty()) else {
        return check(prefix);
    };
    let end = rest.len() - usize::from(rest.ends_with(|c: char| c.is_ascii()));
    check(&format!("{}a", &rest[..end]))
}

fn is_dns1123_label(value: &str) -> bool {
    let inner = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    let bytes = value.as_bytes();
    bytes.first().copied().is_some_and(inner)
        && bytes.last().copied().is_some_and(inner)
        && bytes.iter().all(|&b| inner(b) || b == b'-')
}

fn is_key_byte(b: u8) -> bool {
    b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.')
}

fn is_key(value: &str) -> bool {
    let bytes = value.as_bytes();
    bytes.first().is_some_and(u8::is_ascii_alphanumeric)
        && bytes.last().is_some_and(u8::is_ascii_alphanumeric)
        && bytes.iter().all(|&b| is_key_byte(b))
}

/// Returns the error about the length. Names state the limit in "characters", keys and values in "bytes"; both mean
/// bytes.
fn too_long(value: &str, limit: usize, unit: &str) -> Vec<String> {
    if value.len() > limit {
        vec![format!("must be no more than {limit} {unit}")]
    } else {
        Vec::new()
    }
}

fn subdomain_pattern() -> String {
    let what = "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and end with an alphanumeric character";
    pattern(what, SUBDOMAIN, &["example.com"])
}

fn pattern(what: &str, regex: &str, examples: &[&str]) -> String {
    let examples: Vec<_> = examples
        .iter()
        .map(|example| format!("'{example}', "))
        .collect();
    format!(
        "{what} (e.g. {}regex used for validation is '{regex}')",
        examples.join(" or ")
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    const RECORDED_SUBDOMAIN: &str = r"a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')";

    #[test]
    fn names_give_the_recorded_errors() {
        assert_eq!(dns1123_subdomain("Upper"), [RECORDED_SUBDOMAIN]);
        assert_eq!(
            dns1123_subdomain(&"x".repeat(254)),
            ["must be no more than 253 characters"]
        );
        assert_eq!(
            config_map_key("bad key"),
            [
                "a valid config key must consist of alphanumeric characters, '-', '_' or '.' (e.g. 'key.name',  or 'KEY_NAME',  or 'key-name', regex used for validation is '[-._a-zA-Z0-9]+')"
            ]
        );
        assert_eq!(
            qualified_name("bad name/x y"),
            [
                format!("prefix part {RECORDED_SUBDOMAIN}"),
                "name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')".to_owned()
            ]
        );
    }

    #[test]
    fn valid_values_are_accepted() {
        for name in ["a", "a.b", "a-b.c-1", "0"] {
            assert!(dns1123_subdomain(name).is_empty(), "{name}");
        }
        for key in ["nope", "a.b/c", "kubernetes.io/x_Y.z", "A"] {
            assert!(qualified_name(key).is_empty(), "{key}");
        }
        assert!(label_value("").is_empty() && label_value("a_B.c-1").is_empty());
        assert!(path_segment("system:node:a b").is_empty());
        assert!(config_map_key("tls.crt").is_empty() && config_map_key(".a").is_empty());
        assert!(dns1035_label("a1").is_empty());
    }

    #[test]
    fn invalid_values_are_rejected() {
        for name in ["", ".", "a..b", "-a", "a-", "a.", "ä", "a b"] {
            assert_eq!(dns1123_subdomain(name).len(), 1, "{name:?}");
        }
        for key in ["", "/", "a/", "/a", "a/b/c", "a/-", "A/b"] {
            assert!(!qualified_name(key).is_empty(), "{key:?}");
        }
        assert_eq!(dns1123_label("a.b"), ["must not contain dots"]);
        assert_eq!(path_segment(".."), ["may not be '..'"]);
        assert_eq!(
            path_segment("a/%"),
            ["may not contain '/'", "may not contain '%'"]
        );
        assert_eq!(config_map_key("..a"), ["must not start with '..'"]);
        assert!(!dns1035_label("1a").is_empty());
        assert!(!label_value("-").is_empty());
        assert_eq!(
            label_value(&"a".repeat(64)),
            ["must be no more than 63 bytes"]
        );
    }

    #[test]
    fn generated_names_may_end_in_a_dash() {
        assert!(generated(dns1123_subdomain, "gen-").is_empty());
        assert!(!generated(dns1123_subdomain, "-").is_empty());
        assert!(!generated(dns1123_subdomain, "Gen-").is_empty());
    }
}
