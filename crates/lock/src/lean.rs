//! Objects without their managed fields.
//!
//! `metadata.managedFields` is often more than half of an object, and this crate does not use it. It is skipped while
//! the object is parsed. Nothing is lost, because the API server keeps its own copy if an update has none.

use std::fmt;

use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, Visitor};
use serde_json::{Map, Value};

/// An object as the API server sent it, without its managed fields.
#[derive(Clone, Debug)]
pub struct Lean(pub Value);

impl<'de> Deserialize<'de> for Lean {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let object = deserializer.deserialize_map(Entries(Level::Object))?;
        Ok(Self(Value::Object(object)))
    }
}

#[derive(Clone, Copy)]
enum Level {
    Object,
    Metadata,
}

struct Entries(Level);

impl<'de> Visitor<'de> for Entries {
    type Value = Map<String, Value>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Self::Value, A::Error> {
        let mut map = Map::new();
        while let Some(key) = entries.next_key::<String>()? {
            let value = match (self.0, key.as_str()) {
                (Level::Metadata, "managedFields") => {
                    entries.next_value::<IgnoredAny>()?;
                    continue;
                }
                (Level::Object, "metadata") => entries.next_value_seed(Metadata)?,
                _ => entries.next_value()?,
            };
            map.insert(key, value);
        }
        Ok(map)
    }
}

struct Metadata;

impl<'de> DeserializeSeed<'de> for Metadata {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        let metadata = deserializer.deserialize_map(Entries(Level::Metadata))?;
        Ok(Value::Object(metadata))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn only_the_managed_fields_of_the_object_are_omitted() {
        let text = json!({
            "kind": "Lease", "managedFields": 1, "spec": { "managedFields": [2] },
            "metadata": { "name": "a", "managedFields": [{ "fieldsV1": {} }], "labels": { "managedFields": "3" } },
        });
        let Lean(lean) = serde_json::from_value(text.clone()).unwrap();
        let mut expected = text;
        expected["metadata"]
            .as_object_mut()
            .unwrap()
            .remove("managedFields");
        assert_eq!(lean, expected);
    }

    #[test]
    fn value_that_is_not_an_object_is_an_error() {
        for text in [
            "[]",
            "1",
            "null",
            r#"{"metadata":[]}"#,
            r#"{"metadata":{"managedFields":"#,
        ] {
            assert!(serde_json::from_str::<Lean>(text).is_err(), "{text}");
        }
    }
}
