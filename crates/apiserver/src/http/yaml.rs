//! YAML bodies.

use serde_json::Value;
use serde_saphyr::options::DuplicateKeyPolicy;

use crate::strict::Problem;

/// Parses a document. If a mapping has a key twice, the last value counts, and the first such key is returned as a
/// problem.
///
/// # Errors
/// Returns the reason if the text is not YAML.
pub(super) fn parse(bytes: &[u8]) -> Result<(Value, Option<Problem>), String> {
    let text = std::str::from_utf8(bytes).map_err(|error| error.to_string())?;
    let error = match serde_saphyr::from_str(text) {
        Ok(value) => return Ok((value, None)),
        Err(error) => error,
    };
    let serde_saphyr::Error::DuplicateMappingKey { key, location } = error.without_snippet() else {
        return Err(error.to_string());
    };
    let problem = Problem::Repeated {
        line: location.line(),
        key: key.clone().unwrap_or_default(),
    };
    let options = serde_saphyr::options! { duplicate_keys: DuplicateKeyPolicy::LastWins };
    let value = serde_saphyr::from_str_with_options(text, options);
    let value = value.map_err(|error: serde_saphyr::Error| error.to_string())?;
    Ok((value, Some(problem)))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn repeated_key_has_its_last_value_and_its_line() {
        let (value, problem) = parse(b"a: 1\nb:\n  c: 1\n  c: 2\n").unwrap();
        assert_eq!(value, json!({"a": 1, "b": {"c": 2}}));
        let problem = problem.unwrap().to_string();
        assert_eq!(problem, "line 4: key \"c\" already set in map");
        assert_eq!(parse(b"a: 1").unwrap(), (json!({"a": 1}), None));
        assert!(parse(b"a: [").is_err());
        assert!(parse(b"\xff").is_err());
    }
}
