//! Checks an applied configuration against the schema. Unknown fields are rejected, because they cannot be owned.

use std::collections::HashSet;

use serde_json::Value;

use super::set::{member, push_element};
use super::shape::{Shape, ValueParts};
use crate::schema::Type;

/// Returns the first mismatch in the words of the real server.
pub(super) fn check(shape: Shape, value: &Value) -> Result<(), String> {
    Walk {
        path: String::new(),
    }
    .value(shape, value)
}

struct Walk {
    path: String,
}

impl Walk {
    fn value(&mut self, shape: Shape, value: &Value) -> Result<(), String> {
        if let Shape::Leaf(Some(ty)) = shape {
            return self.leaf(ty, value);
        }
        match (shape, shape.parts(value)) {
            (_, ValueParts::Members) => {
                for (name, value) in value.as_object().into_iter().flatten() {
                    if !shape.admits(name) {
                        return self.below(&member(name), |walk| {
                            Err(walk.problem("field not declared in schema"))
                        });
                    }
                    self.below(&member(name), |walk| walk.value(shape.member(name), value))?;
                }
                Ok(())
            }
            (_, ValueParts::Elements) => self.elements(shape, value),
            (Shape::Free, ValueParts::One) => Ok(()),
            (Shape::Custom(schema), ValueParts::One) => match schema.wants(value) {
                Some(wanted) => Err(self.expected(wanted, value)),
                None => Ok(()),
            },
            (Shape::List(..), ValueParts::One) => Err(self.expected("list", value)),
            (_, ValueParts::One) => Err(self.expected("map", value)),
        }
    }

    fn elements(&mut self, shape: Shape, value: &Value) -> Result<(), String> {
        let mut seen = HashSet::new();
        for (at, item) in value.as_array().into_iter().flatten().enumerate() {
            let element = shape
                .element(item)
                .map_err(|why| self.problem(&format!("element {at}: {why}")))?;
            if !seen.insert(element.clone()) {
                let mut key = String::new();
                push_element(&mut key, &element);
                return Err(self.problem(&format!("duplicate entries for key {key}")));
            }
            self.below(&element, |walk| walk.value(shape.item(), item))?;
        }
        Ok(())
    }

    /// Checks an atomic value down to its scalars.
    fn leaf(&mut self, ty: &'static Type, value: &Value) -> Result<(), String> {
        if value.is_null() {
            return Ok(());
        }
        match (ty, value) {
            (Type::Message(message), _) => {
                let shape = Shape::Struct(message);
                self.value(shape, value)
            }
            (Type::Map(of), Value::Object(map)) => {
                for (name, value) in map {
                    self.below(&member(name), |walk| walk.leaf(of, value))?;
                }
                Ok(())
            }
            (Type::List(of) | Type::WrappedList(of), Value::Array(list)) => {
                for (at, item) in list.iter().enumerate() {
                    self.below(&format!("i:{at}"), |walk| walk.leaf(of, item))?;
                }
                Ok(())
            }
            (Type::Map(_), _) => Err(self.expected("map", value)),
            (Type::List(_) | Type::WrappedList(_), _) => Err(self.expected("list", value)),
            (Type::Bool, Value::Bool(_))
            | (Type::Int32 | Type::Int64 | Type::Float64, Value::Number(_))
            | (Type::String | Type::Bytes | Type::Time | Type::MicroTime, Value::String(_))
            | (Type::Quantity | Type::IntOrString, Value::String(_) | Value::Number(_)) => Ok(()),
            (Type::Bool, _) => Err(self.expected("boolean", value)),
            (Type::Int32 | Type::Int64 | Type::Float64, _) => {
                Err(self.expected("numeric (int or float)", value))
            }
            (Type::String | Type::Bytes | Type::Time | Type::MicroTime, _) => {
                Err(self.expected("string", value))
            }
            _ => Ok(()),
        }
    }

    fn below(
        &mut self,
        element: &str,
        check: impl FnOnce(&mut Self) -> Result<(), String>,
    ) -> Result<(), String> {
        let length = self.path.len();
        push_element(&mut self.path, element);
        let out = check(self);
        self.path.truncate(length);
        out
    }

    fn problem(&self, why: &str) -> String {
        format!("{}: {why}", self.path)
    }

    fn expected(&self, what: &str, value: &Value) -> String {
        // The real server shows the value with a different verb of Go's `fmt` for each expected type.
        let found = match what {
            "string" => format!("&value.valueUnstructured{{Value:{value}}}"),
            "numeric (int or float)" | "numeric" => type_in_go(value).to_owned(),
            _ => {
                let mut text = String::from("&{");
                push_text_in_go(&mut text, value);
                text + "}"
            }
        };
        self.problem(&format!("expected {what}, got {found}"))
    }
}

/// Returns the Go type of a value that is not a number.
fn type_in_go(value: &Value) -> &'static str {
    match value {
        Value::Bool(_) => "bool",
        Value::Array(_) => "[]interface {}",
        Value::Object(_) => "map[string]interface {}",
        _ => "string",
    }
}

/// Appends the text of a value in the form of the verb `%v`.
fn push_text_in_go(out: &mut String, value: &Value) {
    match value {
        Value::Null => out.push_str("<nil>"),
        Value::String(text) => out.push_str(text),
        Value::Bool(_) | Value::Number(_) => out.push_str(&value.to_string()),
        Value::Array(list) => {
            out.push('[');
            for (at, item) in list.iter().enumerate() {
                out.push_str(if at > 0 { " " } else { "" });
                push_text_in_go(out, item);
            }
            out.push(']');
        }
        Value::Object(map) => {
            let mut members: Vec<(&String, &Value)> = map.iter().collect();
            members.sort_unstable_by_key(|(name, _)| *name);
            out.push_str("map[");
            for (at, (name, value)) in members.into_iter().enumerate() {
                out.push_str(if at > 0 { " " } else { "" });
                out.push_str(name);
                out.push(':');
                push_text_in_go(out, value);
            }
            out.push(']');
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::schema::message_by_name;

    #[test]
    fn error_texts_equal_those_of_the_real_server() {
        let pod = Shape::Struct(message_by_name("core/v1.Pod").expect("there"));
        let problem = |value: Value| check(pod, &value).expect_err("a problem");
        assert_eq!(
            problem(json!({"foo": 1})),
            ".foo: field not declared in schema"
        );
        assert_eq!(
            problem(json!({"metadata": {"labels": {"a": 1}}})),
            ".metadata.labels.a: expected string, got &value.valueUnstructured{Value:1}"
        );
        assert_eq!(
            problem(json!({"spec": {"containers": [{"name": "a",
                "ports": [{"containerPort": 80}, {"containerPort": 80}]}]}})),
            ".spec.containers[name=\"a\"].ports: duplicate entries for key \
             [containerPort=80,protocol=\"TCP\"]"
        );
        assert_eq!(
            problem(json!({"spec": {"priority": "high"}})),
            ".spec.priority: expected numeric (int or float), got string"
        );
        assert_eq!(
            problem(json!({"spec": {"containers": {"b": [1, null], "a": "x"}}})),
            ".spec.containers: expected list, got &{map[a:x b:[1 <nil>]]}"
        );
        assert_eq!(
            problem(json!({"spec": {"hostNetwork": "yes"}})),
            ".spec.hostNetwork: expected boolean, got &{yes}"
        );
        assert!(problem(json!({"spec": []})).contains("expected map"));
        assert!(problem(json!({"spec": {"tolerations": [{"x": 1}]}})).contains("not declared"));
        let fine = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"creationTimestamp": null},
            "spec": {"containers": [{"image": "i"}], "nodeSelector": {"a": "b"}}});
        assert_eq!(check(pod, &fine), Ok(()));
    }
}
