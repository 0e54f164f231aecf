//! Names of container images, as far as the pull policy depends on them.

/// Longest name of an image without tag and digest.
const MAX_NAME: usize = 255;

/// Returns the tag of an image: the one that its name contains, else `latest` if the name has no digest.
///
/// Returns `None` for a name with only a digest, and for a name that is not the name of an image.
pub(super) fn tag(image: &str) -> Option<&str> {
    let (rest, digest) = match image.split_once('@') {
        Some((rest, digest)) => (rest, Some(digest)),
        None => (image, None),
    };
    let last = rest.rfind('/').map_or(0, |at| at + 1);
    let (name, tag) = match rest[last..].split_once(':') {
        Some((part, tag)) => (&rest[..last + part.len()], Some(tag)),
        None => (rest, None),
    };
    // 64 hexadecimal digits are the identifier of an image, which is not a name.
    let is_identifier = image.len() == 64 && image.bytes().all(is_lower_hex);
    let is_valid = !is_identifier
        && name.len() <= MAX_NAME
        && is_name(name)
        && tag.is_none_or(is_tag)
        && digest.is_none_or(is_digest);
    match (is_valid, tag, digest) {
        (false, ..) | (_, None, Some(_)) => None,
        (_, Some(tag), _) => Some(tag),
        (_, None, None) => Some("latest"),
    }
}

/// Whether a name is a path, optionally after the host and port of a registry.
fn is_name(name: &str) -> bool {
    let path = match name.split_once('/') {
        Some((host, path)) if is_host_like(host) => {
            if !is_host(host) {
                return false;
            }
            path
        }
        _ => name,
    };
    path.split('/').all(is_component)
}

/// Whether the first part of a name is the host of a registry.
fn is_host_like(part: &str) -> bool {
    let upper = part.bytes().any(|b| b.is_ascii_uppercase());
    part.contains(['.', ':']) || part == "localhost" || upper
}

fn is_host(host: &str) -> bool {
    let (name, port) = match host.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((address, port)) => {
            let address = address.bytes().all(|b| b.is_ascii_hexdigit() || b == b':');
            return address && (port.is_empty() || port.strip_prefix(':').is_some_and(is_number));
        }
        None => match host.split_once(':') {
            Some((name, port)) => (name, Some(port)),
            None => (host, None),
        },
    };
    let is_label = |label: &str| {
        !label.is_empty()
            && !label.starts_with('-')
            && !label.ends_with('-')
            && label
                .bytes()
                .all(|b| b.is_ascii_alphanumeric() || b == b'-')
    };
    name.split('.').all(is_label) && port.is_none_or(is_number)
}

fn is_number(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit())
}

/// Whether a part of a path has lower-case letters and digits, separated by `.`, `_`, `__` or any number of `-`.
fn is_component(part: &str) -> bool {
    let is_inner = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    let ends = [part.bytes().next(), part.bytes().next_back()];
    if !ends.into_iter().all(|end| end.is_some_and(is_inner)) {
        return false;
    }
    let mut runs = part.as_bytes().split(|byte| is_inner(*byte));
    runs.all(|run| matches!(run, b"" | b"." | b"_" | b"__") || run.iter().all(|b| *b == b'-'))
}

fn is_tag(tag: &str) -> bool {
    let is_word = |b: u8| b.is_ascii_alphanumeric() || b == b'_';
    tag.len() <= 128
        && tag.bytes().next().is_some_and(is_word)
        && tag.bytes().all(|b| is_word(b) || b == b'.' || b == b'-')
}

fn is_digest(digest: &str) -> bool {
    let length = match digest.split_once(':') {
        Some(("sha256", _)) => 64,
        Some(("sha384", _)) => 96,
        Some(("sha512", _)) => 128,
        _ => return false,
    };
    let hex = &digest["sha256:".len()..];
    hex.len() == length && hex.bytes().all(is_lower_hex)
}

fn is_lower_hex(byte: u8) -> bool {
    byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tag_of_an_image_is_found_or_latest() {
        let digest = format!("sha256:{}", "a".repeat(64));
        for (image, expected) in [
            ("i", Some("latest")),
            ("i:latest", Some("latest")),
            ("i:1", Some("1")),
            ("registry.example.com:5000/a/b", Some("latest")),
            ("registry.example.com:5000/a/b:v1.2", Some("v1.2")),
            ("[::1]:5000/a", Some("latest")),
            ("localhost/a__b/c--d", Some("latest")),
            ("Host/a", Some("latest")),
            (&format!("i@{digest}"), None),
            (&format!("i:latest@{digest}"), Some("latest")),
            // Names that are not valid have no tag.
            ("", None),
            ("Upper", None),
            ("a/Upper", None),
            ("a b", None),
            ("a//b", None),
            ("a___b", None),
            ("i:", None),
            ("i:-x", None),
            ("i@sha256:12", None),
            ("host:port/a", None),
            (&"a".repeat(64), None),
            (&"x".repeat(256), None),
        ] {
            assert_eq!(tag(image), expected, "{image}");
        }
    }
}
