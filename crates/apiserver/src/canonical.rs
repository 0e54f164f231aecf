//! The canonical form in which an object of a built-in kind is stored and returned.
//!
//! The real server decodes a body into a Go struct and encodes that struct again. Clients see the effects on the JSON:
//!
//! - Unknown fields and nulls are removed.
//! - Empty values are removed or replaced by zeros, depending on the field.
//! - Times and quantities are rewritten.
//! - A value of the wrong type is rejected.
//!
//! [`canonicalise`] does the same, using the schema table.
//!
//! Invariant: the result is a fixed point, so that patches and updates that change nothing compare equal.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Number, Value};

use crate::schema::{Field, Message, Type, message_by_name};
use crate::{quantity, timestamp};

/// A value that the decoder of the real server rejects. The response is 400 with this text in its message.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The JSON type does not match the field.
    #[error("json: cannot unmarshal {got} into Go {place} of type {want}")]
    Type {
        /// The JSON type, with the text of the number where that matters.
        got: String,
        /// `struct field LeaseSpec.spec.holderIdentity`, or `value` at the top level.
        place: String,
        /// The Go type.
        want: String,
    },
    /// Bytes that are not base64.
    #[error("illegal base64 data in field {field:?}")]
    Base64 {
        /// Path of the field.
        field: String,
    },
    /// A text that cannot be parsed as the type of its field, such as a time or a quantity.
    #[error("{0}")]
    Text(String),
}

/// Converts an object to its canonical form.
///
/// # Errors
/// Returns an error if a field has a value of the wrong type, or a text that cannot be parsed as its type.
pub fn canonicalise(message: &'static Message, value: Value) -> Result<Value, Error> {
    let mut walk = Walk {
        path: Vec::new(),
        owner: message,
    };
    match value {
        Value::Object(map) => walk.message(message, map).map(Value::Object),
        Value::Null => walk.message(message, Map::new()).map(Value::Object),
        other => Err(walk.mismatch(&other, format!("v1.{}", message.go_name()))),
    }
}

/// The current position, for error texts. Go reports the innermost struct and all field names.
struct Walk {
    path: Vec<&'static str>,
    owner: &'static Message,
}

impl Walk {
    fn message(
        &mut self,
        message: &'static Message,
        mut map: Map<String, Value>,
    ) -> Result<Map<String, Value>, Error> {
        let outer = std::mem::replace(&mut self.owner, message);
        // Only the outermost object has a kind. The protobuf encoding of nested objects has no field for it.
        let nested = !self.path.is_empty();
        let mut failure = None;
        map.retain(|name, value| {
            let field = message
                .field(name)
                .filter(|field| field.number != 0 || !nested);
            let Some(field) = field.filter(|_| failure.is_none()) else {
                return false;
            };
            self.path.push(field.json);
            let shown = self.field(field, value.take());
            self.path.pop();
            match shown {
                Ok(Some(shown)) => *value = shown,
                Ok(None) => return false,
                Err(error) => failure = Some(error),
            }
            true
        });
        if let Some(error) = failure {
            return Err(error);
        }
        for field in message.always_shown() {
            if !map.contains_key(field.json) {
                self.path.push(field.json);
                let zero = self.zero(field)?;
                self.path.pop();
                map.insert(field.json.to_owned(), zero);
            }
        }
        self.owner = outer;
        Ok(map)
    }

    /// Returns the value of a field in the output, or `None` to omit it. A null counts as absent.
    fn field(&mut self, field: &Field, given: Value) -> Result<Option<Value>, Error> {
        if given.is_null() {
            return if field.shown_when_absent() {
                self.zero(field).map(Some)
            } else {
                Ok(None)
            };
        }
        let value = self.value(&field.ty, given)?;
        let shown = if field.pointer {
            !value.is_null()
        } else {
            !(field.omitempty && is_empty(&field.ty, &value) || field.omitzero && is_zero(&value))
        };
        match (shown, &value) {
            (false, _) if field.omitempty || field.omitzero => Ok(None),
            // The protobuf encoding in the store does not distinguish empty lists and maps from absent ones.
            (true, Value::Array(list)) if list.is_empty() => Ok(Some(Value::Null)),
            (true, Value::Object(map)) if map.is_empty() && matches!(field.ty, Type::Map(_)) => {
                Ok(Some(Value::Null))
            }
            _ => Ok(Some(value)),
        }
    }

    /// Returns the output for an absent field. Go encodes a nil pointer, list or map as null.
    fn zero(&mut self, field: &Field) -> Result<Value, Error> {
        match field.ty {
            _ if field.pointer => Ok(Value::Null),
            Type::List(_) | Type::WrappedList(_) | Type::Map(_) | Type::Bytes => Ok(Value::Null),
            _ => self.value(&field.ty, Value::Null),
        }
    }

    /// Returns the canonical form of a value; null stands for the zero value of the type.
    fn value(&mut self, ty: &Type, value: Value) -> Result<Value, Error> {
        match (ty, value) {
            (Type::Message(message), Value::Object(map)) => {
                self.message(message, map).map(Value::Object)
            }
            (Type::Message(message), Value::Null) => {
                self.message(message, Map::new()).map(Value::Object)
            }
            (Type::List(of) | Type::WrappedList(of), Value::Array(list)) => list
                .into_iter()
                .map(|v| self.value(of, v))
                .collect::<Result<_, _>>()
                .map(Value::Array),
            (Type::List(_), Value::Null) => Ok(Value::Null),
            // In protobuf this list is a message, and an empty message is an empty list.
            (Type::WrappedList(_), Value::Null) => Ok(Value::Array(Vec::new())),
            (Type::Map(of), Value::Object(mut map)) => {
                for value in map.values_mut() {
                    *value = self.value(of, value.take())?;
                }
                Ok(Value::Object(map))
            }
            (Type::Map(_), Value::Null) => Ok(Value::Null),
            (Type::Raw | Type::FieldsV1 | Type::Json, value) => Ok(value),
            (Type::SchemaOrBool, value @ Value::Bool(_)) => Ok(value),
            (
                Type::SchemaOrBool | Type::SchemaOrArray | Type::SchemaOrStrings,
                Value::Object(map),
            ) => self.schema(map),
            (Type::SchemaOrArray, Value::Array(list)) => {
                let schemas = list.into_iter().map(|v| match v {
                    Value::Object(map) => self.schema(map),
                    Value::Null => self.schema(Map::new()),
                    other => Err(self.mismatch(&other, "v1.JSONSchemaProps".to_owned())),
                });
                schemas.collect::<Result<_, _>>().map(Value::Array)
            }
            (Type::SchemaOrStrings, value @ Value::Array(_)) => {
                self.value(&Type::List(Box::new(Type::String)), value)
            }
            (Type::SchemaOrBool, _) => {
                Err(Error::Text("boolean or JSON schema expected".to_owned()))
            }
            (Type::SchemaOrArray | Type::SchemaOrStrings, _) => Ok(Value::Null),
            (ty, value) => self.scalar(ty, value),
        }
    }

    fn schema(&mut self, map: Map<String, Value>) -> Result<Value, Error> {
        let message = message_by_name("apiextensions/v1.JSONSchemaProps")
            .expect("the table has JSON schemas");
        self.message(message, map).map(Value::Object)
    }

    fn scalar(&self, ty: &Type, value: Value) -> Result<Value, Error> {
        match (ty, value) {
            (Type::String | Type::Bytes, Value::Null) => Ok(Value::String(String::new())),
            (Type::String, value @ Value::String(_)) | (Type::Bool, value @ Value::Bool(_)) => {
                Ok(value)
            }
            (Type::Bool, Value::Null) => Ok(Value::Bool(false)),
            (Type::Int32 | Type::Int64 | Type::Float64 | Type::IntOrString, Value::Null) => {
                Ok(Value::from(0))
            }
            (Type::Int32 | Type::IntOrString, Value::Number(n)) if fits_i32(&n) => {
                Ok(Value::Number(n))
            }
            (Type::Int64, Value::Number(n)) if n.is_i64() => Ok(Value::Number(n)),
            (Type::Float64, Value::Number(n)) => Ok(Value::Number(shortest(n))),
            (Type::IntOrString, value @ Value::String(_)) => Ok(value),
            (Type::Time | Type::MicroTime, Value::Null) => Ok(Value::Null),
            (Type::Time, Value::String(text)) => time(timestamp::normalise_seconds(&text)),
            (Type::MicroTime, Value::String(text)) => time(timestamp::normalise_micros(&text)),
            (Type::Quantity, Value::Null) => Ok(Value::from("0")),
            (Type::Quantity, Value::String(text)) => amount(&text),
            (Type::Quantity, Value::Number(n)) => amount(&n.to_string()),
            (Type::Bytes, Value::String(text)) => self.bytes(text),
            (ty, value) => Err(self.mismatch(&value, go_type(ty))),
        }
    }

    /// Validates base64. Text that is already canonical, the common case, is kept. Line breaks are accepted, as in Go.
    fn bytes(&self, text: String) -> Result<Value, Error> {
        if STANDARD.decode(&text).is_ok() {
            return Ok(Value::String(text));
        }
        let joined: String = text.chars().filter(|c| !matches!(c, '\r' | '\n')).collect();
        match STANDARD.decode(&joined) {
            Ok(_) => Ok(Value::String(joined)),
            Err(_) => Err(Error::Base64 {
                field: self.path.join("."),
            }),
        }
    }

    fn mismatch(&self, value: &Value, want: String) -> Error {
        let got = match value {
            Value::Null => "null".to_owned(),
            Value::Bool(_) => "bool".to_owned(),
            Value::Number(n) if want.starts_with("int") => format!("number {n}"),
            Value::Number(_) => "number".to_owned(),
            Value::String(_) => "string".to_owned(),
            Value::Array(_) => "array".to_owned(),
            Value::Object(_) => "object".to_owned(),
        };
        let place = if self.path.is_empty() {
            "value".to_owned()
        } else {
            format!(
                "struct field {}.{}",
                self.owner.go_name(),
                self.path.join(".")
            )
        };
        Error::Type { got, place, want }
    }
}

/// Whether Go's omitempty omits the value: zero scalars, and empty lists and maps.
fn is_empty(ty: &Type, value: &Value) -> bool {
    match (ty, value) {
        (ty, _) if ty.is_struct() => false,
        (_, Value::Null | Value::Bool(false)) => true,
        (_, Value::String(text)) => text.is_empty(),
        (_, Value::Number(n)) => n.as_f64() == Some(0.0),
        (_, Value::Array(list)) => list.is_empty(),
        (_, Value::Object(map)) => map.is_empty(),
        (_, Value::Bool(true)) => false,
    }
}

fn is_zero(value: &Value) -> bool {
    value.is_null() || value.as_object().is_some_and(Map::is_empty)
}

fn fits_i32(n: &Number) -> bool {
    n.as_i64().is_some_and(|n| i32::try_from(n).is_ok())
}

/// Converts a float without a fraction to a whole number, as Go encodes it.
fn shortest(n: Number) -> Number {
    const EXACT: f64 = 9_007_199_254_740_992.0;
    match n.as_f64() {
        #[expect(
            clippy::cast_possible_truncation,
            reason = "the guard keeps the number exact"
        )]
        Some(float) if n.is_f64() && float.fract() == 0.0 && float.abs() < EXACT => {
            Number::from(float as i64)
        }
        _ => n,
    }
}

fn time(normalised: Result<Option<String>, String>) -> Result<Value, Error> {
    normalised
        .map(|text| text.map_or(Value::Null, Value::String))
        .map_err(Error::Text)
}

fn amount(text: &str) -> Result<Value, Error> {
    let canonical = quantity::canonical(text).map_err(|error| Error::Text(error.to_string()))?;
    Ok(Value::String(canonical))
}

fn go_type(ty: &Type) -> String {
    match ty {
        Type::Bool => "bool".to_owned(),
        Type::Int32 | Type::IntOrString => "int32".to_owned(),
        Type::Int64 => "int64".to_owned(),
        Type::Float64 => "float64".to_owned(),
        Type::Bytes => "[]uint8".to_owned(),
        Type::Message(message) => format!("v1.{}", message.go_name()),
        Type::List(of) | Type::WrappedList(of) => format!("[]{}", go_type(of)),
        Type::Map(of) => format!("map[string]{}", go_type(of)),
        Type::Quantity => "resource.Quantity".to_owned(),
        _ => "string".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn check(name: &str, given: Value, expected: &Value) {
        let message = message_by_name(name).unwrap();
        let once = canonicalise(message, given).unwrap();
        assert_eq!(&once, expected);
        assert_eq!(
            canonicalise(message, once.clone()).unwrap(),
            once,
            "not a fixed point"
        );
    }

    fn error(name: &str, given: Value) -> String {
        canonicalise(message_by_name(name).unwrap(), given)
            .unwrap_err()
            .to_string()
    }

    const LEASE: &str = "coordination/v1.Lease";

    #[test]
    fn a_bare_lease_gets_its_empty_structs() {
        check(
            LEASE,
            json!({"metadata": {"name": "bare"}}),
            &json!({"metadata": {"name": "bare"}, "spec": {}}),
        );
        check(LEASE, json!({}), &json!({"metadata": {}, "spec": {}}));
    }

    #[test]
    fn null_unknown_and_empty_fields_are_removed_and_pointers_keep_zeros() {
        check(
            LEASE,
            json!({
                "apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "bogus": {"a": 1},
                "metadata": {"name": "l", "creationTimestamp": null, "labels": {}, "finalizers": [], "generation": 0, "annotations": {"a": null}},
                "spec": {"holderIdentity": "", "leaseTransitions": 0, "renewTime": null, "bogus": 1,
                         "acquireTime": "2026-01-02T03:04:05.000006+01:00"},
            }),
            &json!({
                "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
                "metadata": {"name": "l", "annotations": {"a": ""}},
                "spec": {"holderIdentity": "", "leaseTransitions": 0, "acquireTime": "2026-01-02T02:04:05.000006Z"},
            }),
        );
    }

    #[test]
    fn fields_without_omitempty_show_their_zeros() {
        check(
            "events/v1.Event",
            json!({"metadata": {"name": "n"}, "regarding": {"kind": "Lease"}}),
            &json!({"metadata": {"name": "n"}, "regarding": {"kind": "Lease"}, "eventTime": null,
                   "deprecatedSource": {}, "deprecatedFirstTimestamp": null, "deprecatedLastTimestamp": null}),
        );
        check(
            "rbac/v1.Role",
            json!({"rules": []}),
            &json!({"metadata": {}, "rules": null}),
        );
        check(
            "core/v1.ResourceFieldSelector",
            json!({"resource": "cpu"}),
            &json!({"resource": "cpu", "divisor": "0"}),
        );
    }

    #[test]
    fn quantities_numbers_and_empty_pointers_are_canonical() {
        check(
            "core/v1.Volume",
            json!({"name": "v", "emptyDir": {}}),
            &json!({"name": "v", "emptyDir": {}}),
        );
        check(
            "core/v1.VolumeResourceRequirements",
            json!({"requests": {"storage": "1.5Gi", "x": 2}}),
            &json!({"requests": {"storage": "1536Mi", "x": "2"}}),
        );
        check(
            "apiextensions/v1.JSONSchemaProps",
            json!({"maximum": 10.0, "minimum": 1.5, "default": {"a": null}, "enum": [null, 1], "additionalProperties": {"type": "string", "x": 1},
                   "items": {"type": "object", "properties": {"p": {}}}, "x-kubernetes-int-or-string": false}),
            &json!({"maximum": 10, "minimum": 1.5, "default": {"a": null}, "enum": [null, 1], "additionalProperties": {"type": "string"},
                   "items": {"type": "object", "properties": {"p": {}}}}),
        );
    }

    #[test]
    fn wrong_types_give_the_recorded_errors() {
        assert_eq!(
            error(LEASE, json!({"spec": {"leaseDurationSeconds": "15"}})),
            "json: cannot unmarshal string into Go struct field LeaseSpec.spec.leaseDurationSeconds of type int32"
        );
        assert_eq!(
            error(LEASE, json!({"spec": {"holderIdentity": 5}})),
            "json: cannot unmarshal number into Go struct field LeaseSpec.spec.holderIdentity of type string"
        );
        assert_eq!(
            error(
                LEASE,
                json!({"spec": {"leaseTransitions": 3_000_000_000_i64}})
            ),
            "json: cannot unmarshal number 3000000000 into Go struct field LeaseSpec.spec.leaseTransitions of type int32"
        );
        assert!(
            error(
                "core/v1.ConfigMap",
                json!({"binaryData": {"k": "not base64!"}})
            )
            .contains("base64")
        );
        assert!(
            error("core/v1.ConfigMap", json!({"data": {"k": 5}}))
                .contains("ConfigMap.data of type string")
        );
        assert!(error(LEASE, json!([])).contains("Go value of type v1.Lease"));
        assert!(error(LEASE, json!({"metadata": {"labels": []}})).contains("map[string]string"));
        assert!(
            error(
                LEASE,
                json!({"spec": {"renewTime": "2026-01-02T03:04:05Z"}})
            )
            .contains(".000000")
        );
        assert!(
            error(
                "core/v1.VolumeResourceRequirements",
                json!({"limits": {"a": "x"}})
            )
            .contains("regular expression")
        );
    }
}
