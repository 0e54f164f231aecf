//! Merges an applied configuration into a live object, and removes paths from an object.

use std::collections::{HashMap, HashSet};

use serde_json::{Map, Value};

use super::compare::is_empty;
use super::set::{Set, member};
use super::shape::{Shape, ValueParts};

/// Merges the applied value into the live one. Applied elements keep the applied order.
pub(super) fn merge(shape: Shape, live: Option<&Value>, applied: Option<&Value>) -> Option<Value> {
    let sample = applied.or(live)?;
    let mut parts = shape.parts(sample);
    if let (Some(live), Some(applied)) = (live, applied)
        && shape.parts(live) != shape.parts(applied)
    {
        parts = ValueParts::One;
    }
    if is_empty(live) && is_empty(applied) {
        parts = ValueParts::One;
    }
    match parts {
        ValueParts::One => Some(sample.clone()),
        ValueParts::Members => {
            let empty = Map::new();
            let live = live.and_then(Value::as_object).unwrap_or(&empty);
            let applied = applied.and_then(Value::as_object).unwrap_or(&empty);
            let names = live
                .keys()
                .chain(applied.keys().filter(|name| !live.contains_key(*name)));
            let merged = names.filter_map(|name| {
                let value = merge(shape.member(name), live.get(name), applied.get(name))?;
                Some((name.clone(), value))
            });
            Some(Value::Object(merged.collect()))
        }
        ValueParts::Elements => Some(Value::Array(elements(shape, list(live), list(applied)))),
    }
}

fn list(value: Option<&Value>) -> &[Value] {
    value
        .and_then(Value::as_array)
        .map(Vec::as_slice)
        .unwrap_or_default()
}

/// Merges two lists by identity. Shared elements are in the applied order; the others keep their position between
/// them.
fn elements(shape: Shape, live: &[Value], applied: &[Value]) -> Vec<Value> {
    let names = |list: &[Value]| -> Vec<String> {
        let known = list.iter().enumerate();
        known
            .map(|(at, item)| shape.element(item).unwrap_or_else(|_| format!("i:{at}")))
            .collect()
    };
    let (live_names, applied_names) = (names(live), names(applied));
    let index = |names: &[String], list: &[Value]| -> HashMap<String, Value> {
        names.iter().cloned().zip(list.iter().cloned()).collect()
    };
    let (in_live, in_applied) = (index(&live_names, live), index(&applied_names, applied));
    let mut shared = applied_names
        .iter()
        .filter(|name| in_live.contains_key(*name));
    let mut next = shared.next();
    let mut merged: HashSet<&str> = HashSet::new();
    let mut out = Vec::with_capacity(live.len().max(applied.len()));
    let item = |name: &str| merge(shape.item(), in_live.get(name), in_applied.get(name));
    let (mut l, mut r) = (0, 0);
    while l < live.len() || r < applied.len() {
        if l < live.len() && r < applied.len() {
            let name = live_names[l].as_str();
            if name == applied_names[r] {
                merged.insert(name);
                out.extend(item(name));
                l += 1;
                r += 1;
                next = shared.next();
                continue;
            }
            if in_applied.contains_key(name) && next.is_some_and(|next| next != name) {
                // A shared element that the applied order places later.
                l += 1;
                continue;
            }
        }
        if l < live.len() {
            let name = live_names[l].as_str();
            if !in_applied.contains_key(name) {
                out.push(live[l].clone());
                l += 1;
                continue;
            }
            if merged.contains(name) {
                l += 1;
            }
        }
        if r < applied.len() {
            let name = applied_names[r].as_str();
            merged.insert(name);
            out.extend(item(name));
            r += 1;
            if next.is_some_and(|next| next == name) {
                next = shared.next();
            }
        }
    }
    out
}

/// Removes these paths from a value. Returns `None` if nothing is left.
pub(super) fn remove(shape: Shape, value: &Value, paths: &Set) -> Option<Value> {
    match shape.parts(value) {
        ValueParts::One if value.is_array() || value.is_object() => None,
        ValueParts::One => Some(value.clone()),
        ValueParts::Members => {
            let mut out = Map::new();
            for (name, value) in value.as_object().into_iter().flatten() {
                let element = member(name);
                if paths.has(&element) {
                    continue;
                }
                let kept = match paths.below(&element) {
                    Some(below) => remove(shape.member(name), value, below),
                    None => Some(value.clone()),
                };
                out.extend(kept.map(|kept| (name.clone(), kept)));
            }
            (!out.is_empty()).then_some(Value::Object(out))
        }
        ValueParts::Elements => {
            let mut out = Vec::new();
            for item in value.as_array().into_iter().flatten() {
                let element = shape.element(item).unwrap_or_default();
                if paths.has(&element) {
                    continue;
                }
                out.extend(match paths.below(&element) {
                    Some(below) => remove(shape.item(), item, below),
                    None => Some(item.clone()),
                });
            }
            (!out.is_empty()).then_some(Value::Array(out))
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::schema::message_by_name;

    fn shape() -> Shape<'static> {
        Shape::Struct(message_by_name("meta/v1.ObjectMeta").expect("there"))
    }

    fn finalizers(live: &[&str], applied: &[&str]) -> Value {
        let (live, applied) = (json!({"finalizers": live}), json!({"finalizers": applied}));
        let mut merged = merge(shape(), Some(&live), Some(&applied)).expect("something");
        merged["finalizers"].take()
    }

    #[test]
    fn shared_elements_take_the_applied_order() {
        assert_eq!(
            finalizers(&["a", "b", "c"], &["c", "a"]),
            json!(["b", "c", "a"])
        );
        assert_eq!(finalizers(&["a"], &["b", "a"]), json!(["b", "a"]));
        assert_eq!(finalizers(&["a", "b"], &["x"]), json!(["a", "b", "x"]));
        assert_eq!(finalizers(&[], &["x"]), json!(["x"]));
        assert_eq!(finalizers(&["x"], &[]), json!(["x"]));
    }

    #[test]
    fn removal_takes_whole_elements_and_members() {
        let value = json!({"finalizers": ["a", "b"], "labels": {"x": "1", "y": "2"}});
        let paths =
            Set::from_fields(&json!({"f:finalizers": {"v:\"a\"": {}}, "f:labels": {"f:x": {}}}));
        assert_eq!(
            remove(shape(), &value, &paths),
            Some(json!({"finalizers": ["b"], "labels": {"y": "2"}}))
        );
        let all =
            Set::from_fields(&json!({"f:finalizers": {}, "f:labels": {"f:x": {}, "f:y": {}}}));
        assert_eq!(remove(shape(), &value, &all), None);
    }
}
