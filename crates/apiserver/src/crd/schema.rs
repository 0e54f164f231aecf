//! Structural schemas. They are compiled once and used for pruning, defaulting and the merge rules of apply.

use std::collections::{BTreeMap, HashSet};

use regex::Regex;
use serde_json::{Map, Value};

use super::{pattern, structural};
use crate::limits::MAX_STORED_BYTES;
use crate::status::{MOST_FOUND, shortened};

/// The schema of a value and of its members.
#[derive(Debug, Default)]
pub(crate) struct Structural {
    pub(crate) kind: Kind,
    pub(crate) properties: BTreeMap<String, Structural>,
    /// The schema of members that are not in the properties.
    pub(crate) additional: Option<Box<Structural>>,
    pub(crate) items: Option<Box<Structural>>,
    pub(crate) nullable: bool,
    pub(crate) default: Option<Value>,
    /// Bytes of the default as JSON.
    default_bytes: usize,
    /// Whether the schema has a default anywhere. Only the root knows it.
    pub(crate) has_defaults: bool,
    /// Whether members without a schema are kept.
    pub(crate) preserve: bool,
    /// Whether the value is an object with its own kind and metadata, like the root.
    pub(crate) resource: bool,
    pub(crate) list: ListKind,
    pub(crate) atomic: bool,
    pub(crate) rules: Rules,
}

/// The type of a value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Kind {
    #[default]
    Any,
    Object,
    Array,
    String,
    Integer,
    Number,
    Boolean,
    IntOrString,
}

/// How the elements of a list are identified.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) enum ListKind {
    #[default]
    Atomic,
    Set,
    Map(Vec<String>),
}

/// Restrictions of a value beyond its type.
#[derive(Debug, Default)]
pub(crate) struct Rules {
    pub(crate) required: Vec<String>,
    pub(crate) allowed: Option<Allowed>,
    pub(crate) minimum: Option<(f64, bool)>,
    pub(crate) maximum: Option<(f64, bool)>,
    pub(crate) multiple_of: Option<f64>,
    pub(crate) min_length: Option<u64>,
    pub(crate) max_length: Option<u64>,
    pub(crate) pattern: Option<Regex>,
    pub(crate) format: Option<String>,
    pub(crate) min_items: Option<u64>,
    pub(crate) max_items: Option<u64>,
    pub(crate) min_properties: Option<u64>,
    pub(crate) max_properties: Option<u64>,
    pub(crate) all_of: Vec<Structural>,
    pub(crate) any_of: Vec<Structural>,
    pub(crate) one_of: Vec<Structural>,
    pub(crate) not: Option<Box<Structural>>,
}

/// The values of an enum.
#[derive(Debug)]
pub(crate) struct Allowed {
    pub(crate) values: Vec<Value>,
    /// The values as JSON, for fast lookups. A list in an object can be as long as the enum, so a search of `values`
    /// would take quadratic time.
    texts: HashSet<String>,
}

impl Allowed {
    fn of(values: Vec<Value>) -> Self {
        let texts = values.iter().map(Value::to_string).collect();
        Self { values, texts }
    }

    /// Whether the enum contains the value.
    pub(crate) fn contains(&self, value: &Value) -> bool {
        self.texts.contains(&value.to_string())
    }
}

/// Result of filling in defaults.
pub(crate) struct Filled {
    /// Whether the object has all its defaults.
    pub(crate) complete: bool,
    /// Number of bytes of the defaults that were set.
    pub(crate) bytes: usize,
}

impl Structural {
    /// Compiles the schema of a version; the root is a resource.
    pub(crate) fn root(schema: &Value) -> Self {
        Self {
            resource: true,
            has_defaults: structural::has_default(schema),
            ..Self::of(schema)
        }
    }

    fn of(schema: &Value) -> Self {
        let flag = |name: &str| schema.get(name) == Some(&Value::Bool(true));
        let text = |name: &str| schema.get(name).and_then(Value::as_str).unwrap_or_default();
        let kind = match text("type") {
            _ if flag("x-kubernetes-int-or-string") => Kind::IntOrString,
            "object" => Kind::Object,
            "array" => Kind::Array,
            "string" => Kind::String,
            "integer" => Kind::Integer,
            "number" => Kind::Number,
            "boolean" => Kind::Boolean,
            _ => Kind::Any,
        };
        let texts = |name: &str| -> Vec<String> {
            let list = schema
                .get(name)
                .and_then(Value::as_array)
                .into_iter()
                .flatten();
            list.filter_map(Value::as_str).map(str::to_owned).collect()
        };
        let additional = match schema.get("additionalProperties") {
            Some(Value::Object(inner)) => Some(Box::new(Self::of(&Value::Object(inner.clone())))),
            // Any scalar is kept. The members of objects have no schema, so that they are removed.
            Some(Value::Bool(true)) => Some(Box::default()),
            _ => None,
        };
        let properties = schema.get("properties").and_then(Value::as_object);
        Self {
            kind,
            properties: properties
                .into_iter()
                .flatten()
                .map(|(name, inner)| (name.clone(), Self::of(inner)))
                .collect(),
            additional,
            items: schema.get("items").map(|inner| Box::new(Self::of(inner))),
            nullable: flag("nullable"),
            default: schema.get("default").cloned(),
            default_bytes: schema
                .get("default")
                .map_or(0, |default| default.to_string().len()),
            has_defaults: false,
            preserve: flag("x-kubernetes-preserve-unknown-fields"),
            resource: flag("x-kubernetes-embedded-resource"),
            list: match text("x-kubernetes-list-type") {
                "set" => ListKind::Set,
                "map" => ListKind::Map(texts("x-kubernetes-list-map-keys")),
                _ => ListKind::Atomic,
            },
            atomic: text("x-kubernetes-map-type") == "atomic",
            rules: Rules::of(schema),
        }
    }

    /// Returns the expected type if the value has another type. The name of the type is that of apply errors.
    pub(crate) fn wants(&self, value: &Value) -> Option<&'static str> {
        let (fits, wanted) = match self.kind {
            _ if value.is_null() => return None,
            Kind::Any => return None,
            Kind::Object => (value.is_object(), "map"),
            Kind::Array => (value.is_array(), "list"),
            Kind::String => (value.is_string(), "string"),
            Kind::Integer | Kind::Number => (value.is_number(), "numeric (int or float)"),
            Kind::Boolean => (value.is_boolean(), "boolean"),
            Kind::IntOrString => (value.is_string() || value.is_number(), "string"),
        };
        (!fits).then_some(wanted)
    }

    /// Returns the schema of a member.
    pub(crate) fn member(&self, name: &str) -> Option<&Self> {
        self.properties.get(name).or(self.additional.as_deref())
    }

    /// Removes the members without a schema. Adds their paths to `unknown`.
    pub(crate) fn prune(&self, value: &mut Value, path: &str, unknown: &mut Vec<String>) {
        match value {
            Value::Object(map) => {
                map.retain(|name, value| {
                    if self.resource && matches!(name.as_str(), "apiVersion" | "kind" | "metadata")
                    {
                        return true;
                    }
                    let at = if path.is_empty() {
                        shortened(name).to_owned()
                    } else {
                        format!("{path}.{}", shortened(name))
                    };
                    match self.member(name) {
                        Some(inner) => inner.prune(value, &at, unknown),
                        None if self.preserve => {}
                        None => {
                            if unknown.len() < MOST_FOUND {
                                unknown.push(at);
                            }
                            return false;
                        }
                    }
                    true
                });
            }
            Value::Array(list) => {
                let any = Self::default();
                let items = match &self.items {
                    Some(items) => items,
                    None if self.preserve => return,
                    None => &any,
                };
                for (at, item) in list.iter_mut().enumerate() {
                    items.prune(item, &format!("{path}[{at}]"), unknown);
                }
            }
            _ => {}
        }
    }

    /// Sets the defaults of absent members. A null counts as absent unless the schema is nullable.
    ///
    /// Stops if the object becomes larger than a stored object may be. Otherwise a short list of empty objects could grow
    /// by a long default of each element.
    #[must_use]
    pub(crate) fn fill(&self, value: &mut Value) -> Filled {
        let mut room = MAX_STORED_BYTES;
        let complete = self.fill_within(value, &mut room);
        Filled {
            complete,
            bytes: MAX_STORED_BYTES - room,
        }
    }

    fn fill_within(&self, value: &mut Value, room: &mut usize) -> bool {
        match value {
            Value::Object(map) => {
                for (name, inner) in &self.properties {
                    let absent = match map.get(name) {
                        None => true,
                        Some(value) => value.is_null() && !inner.nullable,
                    };
                    match &inner.default {
                        Some(default) if absent => {
                            // The name has two quotes and a colon.
                            let bytes = name.len() + 3 + inner.default_bytes;
                            let Some(rest) = room.checked_sub(bytes) else {
                                return false;
                            };
                            *room = rest;
                            map.insert(name.clone(), default.clone());
                        }
                        None if absent => {
                            map.remove(name);
                        }
                        _ => {}
                    }
                }
                map.iter_mut().all(|(name, value)| match self.member(name) {
                    Some(inner) => inner.fill_within(value, room),
                    None => true,
                })
            }
            Value::Array(list) => match &self.items {
                Some(items) => list.iter_mut().all(|item| items.fill_within(item, room)),
                None => true,
            },
            _ => true,
        }
    }
}

impl Rules {
    fn of(schema: &Value) -> Self {
        let number = |name: &str| schema.get(name).and_then(Value::as_f64);
        let count = |name: &str| schema.get(name).and_then(Value::as_u64);
        let flag = |name: &str| schema.get(name) == Some(&Value::Bool(true));
        let list = |name: &str| schema.get(name).and_then(Value::as_array).cloned();
        let schemas = |name: &str| -> Vec<Structural> {
            let list = list(name).unwrap_or_default();
            list.iter().map(Structural::of).collect()
        };
        let text = |name: &str| schema.get(name).and_then(Value::as_str);
        let required = list("required").unwrap_or_default();
        Self {
            required: required
                .iter()
                .filter_map(Value::as_str)
                .map(str::to_owned)
                .collect(),
            allowed: list("enum").map(Allowed::of),
            minimum: number("minimum").map(|n| (n, flag("exclusiveMinimum"))),
            maximum: number("maximum").map(|n| (n, flag("exclusiveMaximum"))),
            multiple_of: number("multipleOf"),
            min_length: count("minLength"),
            max_length: count("maxLength"),
            pattern: text("pattern").and_then(|text| pattern::compile(text).ok()),
            format: text("format").map(str::to_owned),
            min_items: count("minItems"),
            max_items: count("maxItems"),
            min_properties: count("minProperties"),
            max_properties: count("maxProperties"),
            all_of: schemas("allOf"),
            any_of: schemas("anyOf"),
            one_of: schemas("oneOf"),
            not: schema
                .get("not")
                .map(|inner| Box::new(Structural::of(inner))),
        }
    }
}

/// Returns the map at a member if it is not empty.
pub(super) fn members<'a>(schema: &'a Value, name: &str) -> Option<&'a Map<String, Value>> {
    schema
        .get(name)
        .and_then(Value::as_object)
        .filter(|map| !map.is_empty())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn unknown_members_are_pruned_and_defaults_are_set() {
        let schema = Structural::root(&json!({"type": "object", "properties": {"spec": {
            "type": "object", "default": {}, "properties": {
                "color": {"type": "string", "default": "red"},
                "maybe": {"type": "string", "nullable": true},
                "list": {"type": "array", "items": {"type": "object", "properties": {
                    "n": {"type": "integer", "default": 1}}}},
                "free": {"type": "object", "x-kubernetes-preserve-unknown-fields": true},
                "map": {"type": "object", "additionalProperties": {"type": "string"}}}}}}));
        let mut value = json!({"metadata": {"name": "n"}, "spec": {"color": null, "maybe": null,
            "x": 1, "list": [{"y": 1}], "free": {"a": {"b": 1}}, "map": {"k": "v"}}});
        let mut unknown = Vec::new();
        schema.prune(&mut value, "", &mut unknown);
        assert_eq!(unknown, ["spec.list[0].y", "spec.x"]);
        assert!(schema.fill(&mut value).complete);
        assert_eq!(
            value,
            json!({"metadata": {"name": "n"}, "spec": {"color": "red", "maybe": null,
                "list": [{"n": 1}], "free": {"a": {"b": 1}}, "map": {"k": "v"}}})
        );
        let mut bare = json!({});
        assert!(schema.fill(&mut bare).complete);
        assert_eq!(bare, json!({"spec": {"color": "red"}}));
    }

    #[test]
    fn defaults_of_many_elements_end_at_the_limit_of_an_object() {
        let text = "x".repeat(10_000);
        let schema = Structural::root(&json!({"type": "object", "properties": {"list": {
            "type": "array", "items": {"type": "object", "properties": {
                "text": {"type": "string", "default": text}}}}}}));
        let mut some = json!({ "list": vec![json!({}); 100] });
        assert!(schema.fill(&mut some).complete);
        assert_eq!(some["list"][99]["text"], text);
        let mut many = json!({ "list": vec![json!({}); 100_000] });
        assert!(!schema.fill(&mut many).complete);
        let bytes = many.to_string().len();
        assert!(bytes < MAX_STORED_BYTES + 400_000, "{bytes}");
    }
}
