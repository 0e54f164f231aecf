//! The three patch formats that clients send to built-in kinds.
//!
//! A patch is applied to the JSON of the stored object. The caller then canonicalises and validates the result like any
//! other body. Merge and JSON patches are independent of the kind; a strategic merge patch takes merge keys and
//! strategies from the schema table.

mod json;
mod list;
mod strategic;

use serde_json::{Map, Value};

pub(crate) use json::is_heavy;
pub use json::{MAX_OPERATIONS, json};
pub use strategic::strategic;

/// A patch that cannot be applied.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The patch is not a document of its format: 400.
    #[error("{0}")]
    Malformed(String),
    /// The patch is too large: 413.
    #[error("{0}")]
    TooLarge(String),
    /// The patch does not fit the object: 422.
    #[error("{0}")]
    Rejected(String),
}

impl Error {
    /// Returns the HTTP code of the response.
    pub fn code(&self) -> u16 {
        match self {
            Self::Malformed(_) => 400,
            Self::TooLarge(_) => 413,
            Self::Rejected(_) => 422,
        }
    }
}

/// Applies a JSON merge patch (RFC 7396).
///
/// # Errors
/// Returns an error if the patch is not a JSON object.
pub fn merge(target: Value, patch: Value) -> Result<Value, Error> {
    match patch {
        Value::Object(_) => Ok(merge_value(target, patch)),
        Value::Array(_) => Err(Error::Rejected(
            "a merge patch of an object must be an object".to_owned(),
        )),
        _ => Err(Error::Malformed("invalid JSON Patch".to_owned())),
    }
}

fn merge_value(target: Value, patch: Value) -> Value {
    let Value::Object(patch) = patch else {
        return patch;
    };
    let mut merged = match target {
        Value::Object(map) => map,
        _ => Map::new(),
    };
    for (name, value) in patch {
        if value.is_null() {
            merged.remove(&name);
        } else {
            let old = merged.get_mut(&name).map_or(Value::Null, Value::take);
            merged.insert(name, merge_value(old, value));
        }
    }
    Value::Object(merged)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// The examples of RFC 7396, Appendix A, in which the patch is an object.
    #[test]
    fn merge_patch_examples_of_the_rfc_are_applied() {
        for (target, patch, expected) in [
            (json!({"a": "b"}), json!({"a": "c"}), json!({"a": "c"})),
            (
                json!({"a": "b"}),
                json!({"b": "c"}),
                json!({"a": "b", "b": "c"}),
            ),
            (json!({"a": "b"}), json!({"a": null}), json!({})),
            (
                json!({"a": "b", "b": "c"}),
                json!({"a": null}),
                json!({"b": "c"}),
            ),
            (json!({"a": ["b"]}), json!({"a": "c"}), json!({"a": "c"})),
            (json!({"a": "c"}), json!({"a": ["b"]}), json!({"a": ["b"]})),
            (
                json!({"a": {"b": "c"}}),
                json!({"a": {"b": "d", "c": null}}),
                json!({"a": {"b": "d"}}),
            ),
            (
                json!({"a": [{"b": "c"}]}),
                json!({"a": [1]}),
                json!({"a": [1]}),
            ),
            (
                json!({"e": null}),
                json!({"a": 1}),
                json!({"e": null, "a": 1}),
            ),
            (
                json!([1, 2]),
                json!({"a": "b", "c": null}),
                json!({"a": "b"}),
            ),
            (
                json!({}),
                json!({"a": {"bb": {"ccc": null}}}),
                json!({"a": {"bb": {}}}),
            ),
        ] {
            assert_eq!(
                merge(target.clone(), patch.clone()),
                Ok(expected),
                "{target} {patch}"
            );
        }
    }

    #[test]
    fn a_merge_patch_must_be_an_object() {
        assert_eq!(merge(json!({}), json!("x")).unwrap_err().code(), 400);
        assert_eq!(merge(json!({}), json!([])).unwrap_err().code(), 422);
    }
}
