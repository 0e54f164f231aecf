//! Parses JSON and reports unknown and duplicate fields.
//!
//! `fieldValidation=Strict` rejects such a body with [`strict_error`], `Warn` adds one `Warning` header per
//! [`Problem`], and `Ignore` drops the list. Duplicates are visible only in the text, so parsing and checking are one
//! pass.

use std::collections::HashSet;
use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};

use crate::limits::MAX_VALUES;
use crate::schema::{Message, Type};
use crate::status::shortened;

/// Maximum number of reported problems, as in the real server.
const MAX_PROBLEMS: usize = 100;

/// A parsed body and its problems.
#[derive(Debug, Clone, PartialEq)]
pub struct Decoded {
    /// The JSON without unknown fields. A duplicate field has its last value.
    pub value: Value,
    /// Unknown and duplicate fields, in the order of the text.
    pub problems: Vec<Problem>,
}

/// A field that strict validation rejects.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Problem {
    /// The kind does not have the field.
    Unknown(String),
    /// The field occurs more than once.
    Duplicate(String),
    /// The key of a YAML mapping occurs more than once.
    Repeated {
        /// Line of the repetition, from 1.
        line: u64,
        /// The key, or empty if it is not a scalar.
        key: String,
    },
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unknown(path) => write!(f, "unknown field {path:?}"),
            Self::Duplicate(path) => write!(f, "duplicate field {path:?}"),
            Self::Repeated { line, key } => {
                write!(f, "line {line}: key {key:?} already set in map")
            }
        }
    }
}

/// A body that is not JSON.
#[derive(Debug, thiserror::Error)]
#[error("json parse error: {0}")]
pub struct SyntaxError(#[from] serde_json::Error);

/// Parses a body and finds unknown and duplicate fields; without a message, only duplicates.
///
/// Values of the wrong type are kept; [`canonicalise`](crate::canonical::canonicalise) rejects them.
///
/// # Errors
/// Returns an error if the body is not JSON, is nested too deeply, or has too many values.
pub fn decode(message: Option<&'static Message>, body: &[u8]) -> Result<Decoded, SyntaxError> {
    let mut findings = Findings::default();
    let shape = message.map_or(Shape::Free, Shape::Message);
    // The parser skips the values of unknown fields, so their encoding is checked here.
    let text =
        std::str::from_utf8(body).map_err(<serde_json::Error as serde::de::Error>::custom)?;
    let mut reader = serde_json::Deserializer::from_str(text);
    let value = Seed {
        shape,
        findings: &mut findings,
    }
    .deserialize(&mut reader)?;
    reader.end()?;
    Ok(Decoded {
        value,
        problems: findings.problems,
    })
}

/// Returns the unknown fields of a value that does not come from one JSON text: YAML, or a patched object.
pub fn unknown_fields(message: &'static Message, value: &Value) -> Vec<Problem> {
    let mut findings = Findings::default();
    walk(Shape::Message(message), value, &mut findings);
    findings.problems
}

/// Returns the text of the 400 response under strict validation.
pub fn strict_error(problems: &[Problem]) -> String {
    let text = |problem: &Problem| match problem {
        Problem::Repeated { .. } => format!("yaml: unmarshal errors:\n  {problem}"),
        problem => problem.to_string(),
    };
    let texts: Vec<_> = problems.iter().map(text).collect();
    format!("strict decoding error: {}", texts.join(", "))
}

#[derive(Default)]
struct Findings {
    problems: Vec<Problem>,
    seen: HashSet<Problem>,
    path: String,
    values: usize,
}

impl Findings {
    fn add(&mut self, name: &str, problem: fn(String) -> Problem) {
        if self.problems.len() == MAX_PROBLEMS {
            return;
        }
        let problem = problem(self.child(name));
        if self.seen.insert(problem.clone()) {
            self.problems.push(problem);
        }
    }

    fn child(&self, name: &str) -> String {
        let dot = if self.path.is_empty() { "" } else { "." };
        format!("{}{dot}{}", self.path, shortened(name))
    }

    /// Appends a field to the path. Returns the length to truncate the path to afterwards.
    fn enter(&mut self, name: &str) -> usize {
        let length = self.path.len();
        if length > 0 {
            self.path.push('.');
        }
        self.path.push_str(shortened(name));
        length
    }

    fn enter_index(&mut self, at: usize) -> usize {
        let length = self.path.len();
        self.path.push_str(&format!("[{at}]"));
        length
    }
}

/// The shape of the current value according to the table.
#[derive(Clone, Copy)]
enum Shape {
    Message(&'static Message),
    /// A list or map whose elements have this type.
    Elements(&'static Type),
    /// Untyped: duplicates are reported, unknown names are not.
    Free,
    /// Kept unchanged, without any check.
    Opaque,
}

impl Shape {
    fn of(ty: &'static Type) -> Self {
        match ty {
            Type::Message(message) => Self::Message(message),
            Type::List(of) | Type::WrappedList(of) | Type::Map(of) => Self::Elements(of),
            _ => Self::Opaque,
        }
    }

    /// Returns the shape of a member, or `None` if the field does not exist.
    fn member(self, name: &str) -> Option<Self> {
        match self {
            Self::Message(message) => message.field(name).map(|field| Self::of(&field.ty)),
            Self::Elements(of) => Some(Self::of(of)),
            Self::Free | Self::Opaque => Some(self),
        }
    }

    fn element(self) -> Self {
        match self {
            Self::Elements(of) => Self::of(of),
            Self::Message(_) => Self::Opaque,
            Self::Free | Self::Opaque => self,
        }
    }
}

fn walk(shape: Shape, value: &Value, findings: &mut Findings) {
    match value {
        Value::Object(map) => {
            for (name, value) in map {
                match shape.member(name) {
                    None => findings.add(name, Problem::Unknown),
                    Some(Shape::Opaque) => {}
                    Some(member) => {
                        let back = findings.enter(name);
                        walk(member, value, findings);
                        findings.path.truncate(back);
                    }
                }
            }
        }
        Value::Array(list) => {
            for (at, value) in list.iter().enumerate() {
                let back = findings.enter_index(at);
                walk(shape.element(), value, findings);
                findings.path.truncate(back);
            }
        }
        _ => {}
    }
}

struct Seed<'f> {
    shape: Shape,
    findings: &'f mut Findings,
}

impl<'de> DeserializeSeed<'de> for Seed<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        self.findings.values += 1;
        if self.findings.values > MAX_VALUES {
            return Err(serde::de::Error::custom("too many values in one object"));
        }
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Seed<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any JSON value")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(Value::from(value))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(Value::from(value))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(Value::from(value))
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(Value::from(value))
    }

    fn visit_string<E>(self, value: String) -> Result<Value, E> {
        Ok(Value::String(value))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut access: A) -> Result<Value, A::Error> {
        let Self { shape, findings } = self;
        let mut list = Vec::new();
        loop {
            let back = findings.enter_index(list.len());
            let next = access.next_element_seed(Seed {
                shape: shape.element(),
                findings,
            })?;
            findings.path.truncate(back);
            match next {
                Some(value) => list.push(value),
                None => return Ok(Value::Array(list)),
            }
        }
    }

    fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<Value, A::Error> {
        let Self { shape, findings } = self;
        let mut map = Map::new();
        while let Some(name) = access.next_key::<String>()? {
            let Some(member) = shape.member(&name) else {
                findings.add(&name, Problem::Unknown);
                access.next_value::<IgnoredAny>()?;
                continue;
            };
            if map.contains_key(&name) && !matches!(shape, Shape::Opaque) {
                findings.add(&name, Problem::Duplicate);
            }
            let back = findings.enter(&name);
            let value = access.next_value_seed(Seed {
                shape: member,
                findings,
            })?;
            findings.path.truncate(back);
            map.insert(name, value);
        }
        Ok(Value::Object(map))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::schema;

    fn problems(message: Option<&'static Message>, body: &str) -> String {
        strict_error(&decode(message, body.as_bytes()).unwrap().problems)
    }

    fn lease() -> Option<&'static Message> {
        schema::message("coordination.k8s.io", "v1", "Lease")
    }

    #[test]
    fn unknown_fields_give_the_recorded_errors() {
        let body = r#"{"metadata":{"name":"l"},"spec":{"holderIdentity":"a","bogus":1}}"#;
        let decoded = decode(lease(), body.as_bytes()).unwrap();
        assert_eq!(
            strict_error(&decoded.problems),
            "strict decoding error: unknown field \"spec.bogus\""
        );
        assert_eq!(
            decoded.value,
            json!({"metadata": {"name": "l"}, "spec": {"holderIdentity": "a"}})
        );
    }

    #[test]
    fn paths_go_through_lists_and_maps() {
        let pod = schema::message("", "v1", "Pod");
        let body = r#"{"x":1,"spec":{"containers":[{"name":"a"},{"name":"b","nope":{"deep":1},"ports":[{"y":1}]}],
            "nodeSelector":{"any":"thing","any":"twice"}},"metadata":{"labels":{"a":"b"},"name":"p","name":"q"}}"#;
        assert_eq!(
            problems(pod, body),
            "strict decoding error: unknown field \"x\", unknown field \"spec.containers[1].nope\", \
             unknown field \"spec.containers[1].ports[0].y\", duplicate field \"spec.nodeSelector.any\", \
             duplicate field \"metadata.name\""
        );
        assert_eq!(
            decode(pod, body.as_bytes()).unwrap().value["metadata"]["name"],
            "q"
        );
    }

    #[test]
    fn field_names_are_case_sensitive_and_managed_fields_are_unchecked() {
        assert_eq!(
            problems(
                lease(),
                r#"{"Spec":{},"metadata":{"managedFields":[{"fieldsV1":{"f:x":{},"f:x":{}}}]}}"#
            ),
            "strict decoding error: unknown field \"Spec\""
        );
    }

    #[test]
    fn untyped_bodies_are_checked_for_duplicates_only() {
        assert_eq!(
            problems(
                None,
                r#"{"spec":{"a":1,"a":2},"list":[{"b":1,"b":1,"b":1}]}"#
            ),
            "strict decoding error: duplicate field \"spec.a\", duplicate field \"list[0].b\""
        );
    }

    #[test]
    fn values_are_checked_like_texts() {
        let found = unknown_fields(
            lease().unwrap(),
            &json!({"spec": {"bogus": 1}, "kind": "Lease", "z": []}),
        );
        assert_eq!(
            found,
            [
                Problem::Unknown("spec.bogus".into()),
                Problem::Unknown("z".into())
            ]
        );
    }

    #[test]
    fn invalid_and_oversized_texts_are_rejected() {
        for body in ["", "{", "{not json", "[1,]", "{} x", "{\"a\":01}", "\u{0}"] {
            assert!(decode(None, body.as_bytes()).is_err(), "{body}");
        }
        assert!(decode(None, b"\"\xff\"").is_err());
        assert!(decode(None, "[".repeat(100_000).as_bytes()).is_err());
        let many = format!("[{}0]", "0,".repeat(MAX_VALUES));
        assert!(decode(None, many.as_bytes()).is_err());
        assert_eq!(
            decode(None, b"[1, -1, 1.5, true, null, \"x\"]")
                .unwrap()
                .value,
            json!([1, -1, 1.5, true, null, "x"])
        );
    }
}
