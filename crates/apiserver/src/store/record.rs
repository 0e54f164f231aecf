//! Serialises a JSON value to a stored version, before the write is ordered.
//!
//! One thread decides the order, and only then is the revision known. The caller therefore serialises the object with
//! a gap for the revision, and the ordering thread only copies bytes.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::sync::Arc;

use bytes::Bytes;
use serde_json::{Map, Value};

use super::{Key, Object, WriteError};

/// The new state of an object, without its revision.
#[derive(Debug)]
pub(super) struct Draft {
    json: Vec<u8>,
    /// Position of the digits of the revision.
    gap: usize,
    labels: BTreeMap<String, String>,
}

impl Draft {
    /// Serialises `value` as compact JSON with a gap for `metadata.resourceVersion`.
    pub(super) fn new(key: &Key, value: &Value) -> Result<Self, WriteError> {
        let Value::Object(top) = value else {
            return Err(WriteError::Invalid(format!("{key} is not a JSON object")));
        };
        let empty = Map::new();
        let metadata = match top.get("metadata") {
            None => &empty,
            Some(Value::Object(metadata)) => metadata,
            Some(_) => {
                return Err(WriteError::Invalid(format!(
                    "metadata of {key} is not a JSON object"
                )));
            }
        };
        let mut json = Vec::with_capacity(512);
        json.extend_from_slice(b"{\"metadata\":{\"resourceVersion\":\"");
        let gap = json.len();
        json.push(b'"');
        for (name, value) in metadata
            .iter()
            .filter(|(name, _)| *name != "resourceVersion")
        {
            json.push(b',');
            member(&mut json, name, value);
        }
        json.push(b'}');
        for (name, value) in top.iter().filter(|(name, _)| *name != "metadata") {
            json.push(b',');
            member(&mut json, name, value);
        }
        json.push(b'}');
        Ok(Self {
            json,
            gap,
            labels: labels(metadata),
        })
    }

    /// Returns the last state of an object for its removal.
    pub(super) fn of(object: &Object) -> Result<Self, WriteError> {
        let value = serde_json::from_slice(&object.json)
            .map_err(|error| WriteError::Failed(format!("{} is not JSON: {error}", object.key)))?;
        Self::new(&object.key, &value)
    }

    /// Returns the JSON with a gap for the revision.
    #[cfg(feature = "etcd")]
    pub(super) fn json(&self) -> &[u8] {
        &self.json
    }

    /// Returns the approximate length of the JSON.
    pub(super) fn len(&self) -> usize {
        self.json.len()
    }

    /// Inserts the revision.
    pub(super) fn finish(&self, key: Key, revision: u64) -> Arc<Object> {
        let digits = revision.to_string();
        let mut json = Vec::with_capacity(self.json.len() + digits.len());
        json.extend_from_slice(&self.json[..self.gap]);
        json.extend_from_slice(digits.as_bytes());
        json.extend_from_slice(&self.json[self.gap..]);
        Arc::new(Object {
            key,
            revision,
            labels: self.labels.clone(),
            json: Bytes::from(json),
        })
    }
}

/// Returns `metadata.labels`. Ignores values that are not strings.
pub(super) fn labels(metadata: &Map<String, Value>) -> BTreeMap<String, String> {
    let Some(Value::Object(labels)) = metadata.get("labels") else {
        return BTreeMap::new();
    };
    labels
        .iter()
        .filter_map(|(name, value)| Some((name.clone(), value.as_str()?.to_owned())))
        .collect()
}

fn member(json: &mut Vec<u8>, name: &str, value: &Value) {
    string(json, name);
    json.push(b':');
    serde_json::to_writer(&mut *json, value).expect("a JSON value serialises into memory");
}

fn string(json: &mut Vec<u8>, text: &str) {
    // Fast path: most field names need no escaping.
    if text.bytes().all(|b| b.is_ascii_alphanumeric()) {
        write!(json, "\"{text}\"").expect("writing into memory does not fail");
    } else {
        serde_json::to_writer(json, text).expect("a string serialises into memory");
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::store::testing::key;

    #[test]
    fn revision_is_written_into_the_metadata_and_replaces_an_old_one() {
        let value = json!({
            "spec": {"a b": [1, null, "\"x\""]},
            "metadata": {"name": "x", "resourceVersion": "7", "labels": {"app": "y", "n": 3}},
            "odd \" name": true,
        });
        let object = Draft::new(&key("ns", "x"), &value)
            .unwrap()
            .finish(key("ns", "x"), 1234);
        let mut expected = value;
        expected["metadata"]["resourceVersion"] = json!("1234");
        assert_eq!(
            serde_json::from_slice::<Value>(&object.json).unwrap(),
            expected
        );
        assert_eq!(
            object.labels,
            BTreeMap::from([("app".to_owned(), "y".to_owned())])
        );

        let again = Draft::of(&object).unwrap().finish(key("ns", "x"), 99999);
        expected["metadata"]["resourceVersion"] = json!("99999");
        assert_eq!(
            serde_json::from_slice::<Value>(&again.json).unwrap(),
            expected
        );
    }

    #[test]
    fn object_without_metadata_gets_metadata_and_other_values_are_rejected() {
        let object = Draft::new(&key("", "x"), &json!({}))
            .unwrap()
            .finish(key("", "x"), 1);
        assert_eq!(&object.json[..], br#"{"metadata":{"resourceVersion":"1"}}"#);
        for bad in [json!([]), json!("x"), json!({"metadata": 3})] {
            assert!(matches!(
                Draft::new(&key("", "x"), &bad),
                Err(WriteError::Invalid(_))
            ));
        }
    }
}
