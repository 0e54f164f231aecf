//! Looks up members of JSON objects, and writes them in a defined order.

use std::fmt::Write as _;

use serde_json::Value;

/// Returns the text of a value with its members in a defined order: `top` for the value itself, and `inner` for the
/// values below it. Other members follow in alphabetical order.
pub(crate) fn ordered(value: &Value, top: &[&str], inner: &[&str]) -> String {
    let mut out = String::new();
    write_ordered(value, top, inner, &mut out);
    out
}

fn write_ordered(value: &Value, order: &[&str], inner: &[&str], out: &mut String) {
    match value {
        Value::Object(map) => {
            let place = |name: &str| order.iter().position(|known| *known == name);
            let mut members: Vec<(&String, &Value)> = map.iter().collect();
            members.sort_by_key(|(name, _)| place(name).unwrap_or(order.len()));
            for (index, (name, value)) in members.into_iter().enumerate() {
                out.push(if index == 0 { '{' } else { ',' });
                // Writing to a text does not fail.
                _ = write!(out, "{}:", Value::from(name.as_str()));
                write_ordered(value, inner, inner, out);
            }
            out.push_str(if map.is_empty() { "{}" } else { "}" });
        }
        Value::Array(list) => {
            out.push('[');
            for (index, value) in list.iter().enumerate() {
                if index > 0 {
                    out.push(',');
                }
                write_ordered(value, inner, inner, out);
            }
            out.push(']');
        }
        scalar => _ = write!(out, "{scalar}"),
    }
}

/// Returns the value at a JSON pointer. The pointer must not contain escapes or indices, which this crate does not use.
/// `Value::pointer` supports them but copies every segment, and each write looks up dozens of pointers.
pub(crate) fn at<'a>(object: &'a Value, pointer: &str) -> Option<&'a Value> {
    let mut members = pointer.split('/');
    members.next();
    members.try_fold(object, |value, member| value.as_object()?.get(member))
}

/// Returns the text at a JSON pointer, or an empty text if it is absent.
pub(crate) fn text<'a>(object: &'a Value, pointer: &str) -> &'a str {
    at(object, pointer)
        .and_then(Value::as_str)
        .unwrap_or_default()
}

/// Returns the list at a JSON pointer, or an empty list if it is absent.
pub(crate) fn items<'a>(object: &'a Value, pointer: &str) -> &'a [Value] {
    at(object, pointer)
        .and_then(Value::as_array)
        .map(Vec::as_slice)
        .unwrap_or_default()
}

/// Returns the entries of the map at a JSON pointer.
pub(crate) fn entries<'a>(
    object: &'a Value,
    pointer: &str,
) -> impl Iterator<Item = (&'a String, &'a Value)> + use<'a> {
    at(object, pointer)
        .and_then(Value::as_object)
        .into_iter()
        .flatten()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn members_are_written_in_their_order() {
        let value =
            json!({"a": [{"kind": "K", "name": "n"}, []], "code": 1, "kind": "\"S", "z": {}});
        let text = ordered(&value, &["kind", "z"], &["name", "kind"]);
        let expected = r#"{"kind":"\"S","z":{},"a":[{"name":"n","kind":"K"},[]],"code":1}"#;
        assert_eq!(text, expected);
        assert_eq!(serde_json::from_str::<Value>(&text).unwrap(), value);
    }
}
