//! Expands templates in the names of secrets, such as `${pvc.namespace}-key`, as Go's `os.Expand` does.

/// Replaces every `${token}` and `$token` with the result of `lookup`. Returns the first unknown token as an error.
pub(crate) fn expand(
    text: &str,
    mut lookup: impl FnMut(&str) -> Option<String>,
) -> Result<String, &str> {
    let mut out = String::new();
    let mut rest = text;
    while let Some(at) = rest.find('$') {
        let after = &rest[at + 1..];
        out.push_str(&rest[..at]);
        if after.is_empty() {
            out.push('$');
            return Ok(out);
        }
        let (name, taken) = shell_name(after);
        if !name.is_empty() {
            out.push_str(&lookup(name).ok_or(name)?);
        } else if taken == 0 {
            out.push('$');
        }
        rest = &after[taken..];
    }
    out.push_str(rest);
    Ok(out)
}

/// Returns the name after a dollar sign and its length in bytes. Bad syntax has an empty name and a length; it is
/// skipped, as in Go.
fn shell_name(text: &str) -> (&str, usize) {
    let bytes = text.as_bytes();
    match bytes.first() {
        Some(b'{') => {
            if bytes.len() > 2 && is_special(bytes[1]) && bytes[2] == b'}' {
                return (&text[1..2], 3);
            }
            match text.find('}') {
                Some(1) => ("", 2),
                Some(end) => (&text[1..end], end + 1),
                None => ("", 1),
            }
        }
        Some(byte) if is_special(*byte) => (&text[..1], 1),
        _ => {
            let plain = |b: &u8| *b == b'_' || b.is_ascii_alphanumeric();
            let end = bytes.iter().take_while(|b| plain(b)).count();
            (&text[..end], end)
        }
    }
}

fn is_special(byte: u8) -> bool {
    matches!(
        byte,
        b'*' | b'#' | b'$' | b'@' | b'!' | b'?' | b'-' | b'0'..=b'9'
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn templates_expand_as_in_go() {
        let lookup = |token: &str| match token {
            "pv.name" => Some("PV".to_owned()),
            "pvc" => Some("C".to_owned()),
            _ => None,
        };
        for (text, expanded) in [
            ("plain", Ok("plain")),
            ("${pv.name}-x", Ok("PV-x")),
            ("a${pv.name}${pv.name}", Ok("aPVPV")),
            ("$pvc.name", Ok("C.name")),
            ("a${}b", Ok("ab")),
            ("a${b", Ok("ab")),
            ("cost$", Ok("cost$")),
            ("a$.b", Ok("a$.b")),
            ("${unknown}", Err("unknown")),
            ("$$", Err("$")),
            ("${-}", Err("-")),
        ] {
            let expanded = expanded.map(str::to_owned);
            assert_eq!(expand(text, lookup), expanded, "{text}");
        }
    }
}
