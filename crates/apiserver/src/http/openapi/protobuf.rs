//! The v2 document in protobuf, which older clients request. The field numbers are those of gnostic's OpenAPIv2.proto.

use serde_json::{Map, Value};

use super::schemas::GVK;
use super::{PARAMETERS, served};
use crate::registry::Kind;

/// Encodes the document: `swagger`, one PATCH per kind with its parameters, and the definitions.
pub(super) fn document(kinds: &[&Kind], definitions: &Map<String, Value>) -> Vec<u8> {
    let mut paths = Vec::new();
    for (path, group, version, kind) in served(kinds) {
        let mut operation = Vec::new();
        for name in PARAMETERS {
            let mut query = Vec::new();
            field(&mut query, 2, b"query");
            field(&mut query, 4, name.as_bytes());
            field(&mut operation, 8, &nested(&[1, 2, 3], query));
        }
        let gvk = format!("group: {group:?}\nversion: {version}\nkind: {kind}\n");
        field(&mut operation, 13, &extension(GVK, gvk));
        field(&mut paths, 2, &named(&path, &nested(&[8], operation)));
    }
    let mut all = Vec::new();
    for (name, definition) in definitions {
        field(&mut all, 1, &named(name, &schema(definition)));
    }
    let mut document = Vec::new();
    field(&mut document, 1, b"2.0");
    field(&mut document, 8, &paths);
    field(&mut document, 9, &all);
    document
}

/// Encodes the message `Schema`.
fn schema(value: &Value) -> Vec<u8> {
    let mut out = Vec::new();
    let Some(members) = value.as_object() else {
        return out;
    };
    for (name, value) in members {
        match (&**name, value) {
            ("$ref", Value::String(text)) => field(&mut out, 1, text.as_bytes()),
            ("format", Value::String(text)) => field(&mut out, 2, text.as_bytes()),
            ("description", Value::String(text)) => field(&mut out, 4, text.as_bytes()),
            ("required", Value::Array(names)) => {
                for name in names.iter().filter_map(Value::as_str) {
                    field(&mut out, 19, name.as_bytes());
                }
            }
            ("enum", Value::Array(values)) => {
                for value in values {
                    field(&mut out, 20, &nested(&[2], value.to_string().into_bytes()));
                }
            }
            ("additionalProperties", inner) => {
                field(&mut out, 21, &nested(&[1], schema(inner)));
            }
            ("type", Value::String(text)) => {
                field(&mut out, 22, &nested(&[1], text.clone().into_bytes()));
            }
            ("items", inner) => field(&mut out, 23, &nested(&[1], schema(inner))),
            ("properties", Value::Object(properties)) => {
                let mut all = Vec::new();
                for (name, inner) in properties {
                    field(&mut all, 1, &named(name, &schema(inner)));
                }
                field(&mut out, 25, &all);
            }
            (extended, value) if extended.starts_with("x-") => {
                // The value must be YAML, and every JSON text is valid YAML.
                field(&mut out, 31, &extension(extended, value.to_string()));
            }
            _ => {}
        }
    }
    out
}

/// Encodes the messages `NamedSchema` and `NamedPathItem`, which have the same fields.
fn named(name: &str, value: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    field(&mut out, 1, name.as_bytes());
    field(&mut out, 2, value);
    out
}

/// Encodes the message `NamedAny` with YAML as its value.
fn extension(name: &str, yaml: String) -> Vec<u8> {
    named(name, &nested(&[2], yaml.into_bytes()))
}

/// Wraps bytes into messages, the outermost field first.
fn nested(numbers: &[u8], bytes: Vec<u8>) -> Vec<u8> {
    numbers.iter().rev().fold(bytes, |inner, number| {
        let mut outer = Vec::with_capacity(inner.len() + 4);
        field(&mut outer, *number, &inner);
        outer
    })
}

/// Appends a length-delimited field.
fn field(out: &mut Vec<u8>, number: u8, bytes: &[u8]) {
    varint(out, usize::from(number) << 3 | 2);
    varint(out, bytes.len());
    out.extend_from_slice(bytes);
}

fn varint(out: &mut Vec<u8>, mut value: usize) {
    while value >= 0x80 {
        out.push(u8::try_from(value & 0x7f).unwrap_or(0) | 0x80);
        value >>= 7;
    }
    out.push(u8::try_from(value).unwrap_or(0));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_lengths_are_varints() {
        let mut out = Vec::new();
        field(&mut out, 1, &[7; 300]);
        assert_eq!(out[..3], [0x0a, 0xac, 0x02]);
        assert_eq!(out.len(), 303);
        let mut out = Vec::new();
        field(&mut out, 31, b"x");
        assert_eq!(out, [0xfa, 0x01, 1, b'x']);
        let document = document(crate::registry::all(), &Map::new());
        assert!(document.starts_with(b"\x0a\x032.0\x42"));
    }
}
