//! Differences between two values as sets of paths, and all paths of one value.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use super::set::{Set, member};
use super::shape::{Shape, ValueParts};

/// The difference from one value to another.
#[derive(Clone, Debug, Default)]
pub(crate) struct Comparison {
    pub(crate) added: Set,
    pub(crate) modified: Set,
    pub(crate) removed: Set,
}

impl Comparison {
    /// Returns added and modified paths.
    pub(crate) fn changed(&self) -> Set {
        self.modified.clone().union(&self.added)
    }

    /// Removes the paths that a writer cannot change.
    pub(crate) fn without(self, reset: &Set) -> Self {
        Self {
            added: self.added.without(reset),
            modified: self.modified.without(reset),
            removed: self.removed.without(reset),
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.added.is_empty() && self.modified.is_empty() && self.removed.is_empty()
    }
}

/// Compares two objects of one shape.
pub(crate) fn compare(shape: Shape, old: &Value, new: &Value) -> Comparison {
    let mut walk = Walk::default();
    walk.values(shape, Some(old), Some(new));
    walk.out
}

#[derive(Default)]
struct Walk {
    path: Vec<String>,
    out: Comparison,
}

impl Walk {
    fn values(&mut self, shape: Shape, old: Option<&Value>, new: Option<&Value>) {
        if old == new {
            return;
        }
        let Some(sample) = new.or(old) else {
            return;
        };
        let mut parts = shape.parts(sample);
        if let (Some(old), Some(new)) = (old, new)
            && shape.parts(old) != shape.parts(new)
        {
            parts = ValueParts::One;
        }
        // Two empty values are a leaf, so that an empty map or list differs from an absent one.
        if is_empty(old) && is_empty(new) {
            parts = ValueParts::One;
        }
        match parts {
            ValueParts::One => {
                let set = match (old, new) {
                    (None, _) => &mut self.out.added,
                    (_, None) => &mut self.out.removed,
                    _ => &mut self.out.modified,
                };
                set.insert(&self.path);
                return;
            }
            ValueParts::Members => self.members(shape, old, new),
            ValueParts::Elements => self.elements(shape, old, new),
        }
        match (old, new) {
            (None, _) => self.out.added.insert(&self.path),
            (_, None) => self.out.removed.insert(&self.path),
            _ => {}
        }
    }

    fn members(&mut self, shape: Shape, old: Option<&Value>, new: Option<&Value>) {
        let empty = Map::new();
        let old = old.and_then(Value::as_object).unwrap_or(&empty);
        let new = new.and_then(Value::as_object).unwrap_or(&empty);
        for (name, value) in old {
            self.member(shape, name, Some(value), new.get(name));
        }
        for (name, value) in new.iter().filter(|(name, _)| !old.contains_key(*name)) {
            self.member(shape, name, None, Some(value));
        }
    }

    fn member(&mut self, shape: Shape, name: &str, old: Option<&Value>, new: Option<&Value>) {
        if old == new {
            return;
        }
        self.path.push(member(name));
        self.values(shape.member(name), old, new);
        self.path.pop();
    }

    fn elements(&mut self, shape: Shape, old: Option<&Value>, new: Option<&Value>) {
        let (old, new) = (index(shape, old), index(shape, new));
        let known = old
            .keys()
            .chain(new.keys().filter(|key| !old.contains_key(*key)));
        for key in known {
            let none = Vec::new();
            let (was, is) = (old.get(key).unwrap_or(&none), new.get(key).unwrap_or(&none));
            self.path.push(key.clone());
            match (was.len(), is.len()) {
                (0 | 1, 0 | 1) => {
                    self.values(shape.item(), was.first().copied(), is.first().copied());
                }
                (2.., 2..) if was != is => self.out.modified.insert(&self.path),
                (2.., 2..) => {}
                (2.., _) => {
                    self.values(shape.item(), None, is.first().copied());
                    self.out.removed.insert(&self.path);
                }
                (_, 2..) => {
                    self.values(shape.item(), was.first().copied(), None);
                    self.out.added.insert(&self.path);
                }
            }
            self.path.pop();
        }
    }
}

/// Indexes elements by identity. An invalid list has several elements with one identity.
fn index<'a>(shape: Shape, list: Option<&'a Value>) -> BTreeMap<String, Vec<&'a Value>> {
    let mut out: BTreeMap<String, Vec<&Value>> = BTreeMap::new();
    for item in list.and_then(Value::as_array).into_iter().flatten() {
        if let Ok(element) = shape.element(item) {
            out.entry(element).or_default().push(item);
        }
    }
    out
}

pub(super) fn is_empty(value: Option<&Value>) -> bool {
    match value {
        None | Some(Value::Null) => true,
        Some(Value::Array(list)) => list.is_empty(),
        Some(Value::Object(map)) => map.is_empty(),
        Some(_) => false,
    }
}

/// Returns all paths that a writer of this object owns.
pub(crate) fn fields(shape: Shape, object: &Value) -> Set {
    claim(shape, object).1
}

/// Returns whether the value itself is owned, and the owned paths below it.
fn claim(shape: Shape, value: &Value) -> (bool, Set) {
    let mut below = Set::default();
    match shape.parts(value) {
        ValueParts::One => return (true, below),
        ValueParts::Members => {
            for (name, value) in value.as_object().into_iter().flatten() {
                let (whole, inner) = claim(shape.member(name), value);
                let empty = value.is_null() || value.as_object().is_some_and(Map::is_empty);
                below.add(member(name), whole || empty || !shape.names(name), inner);
            }
        }
        ValueParts::Elements => {
            for item in value.as_array().into_iter().flatten() {
                if let Ok(element) = shape.element(item) {
                    let (_, inner) = claim(shape.item(), item);
                    below.add(element, true, inner);
                }
            }
        }
    }
    (false, below)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::schema::message_by_name;

    fn pod() -> Shape<'static> {
        Shape::Struct(message_by_name("core/v1.Pod").expect("there"))
    }

    #[test]
    fn added_path_includes_its_parents() {
        let shape = Shape::Struct(message_by_name("core/v1.ConfigMap").expect("there"));
        let old = json!({"metadata": {}});
        let new = json!({"metadata": {"labels": {"l": "1"}}, "data": {"a": "1"}});
        let out = compare(shape, &old, &new);
        assert_eq!(
            out.added.clone().into_fields(),
            json!({"f:data": {".": {}, "f:a": {}}, "f:metadata": {"f:labels": {".": {}, "f:l": {}}}})
        );
        assert!(out.modified.is_empty() && out.removed.is_empty());
        let back = compare(shape, &new, &old);
        assert_eq!(back.removed, out.added);
        assert_eq!(
            fields(shape, &new).into_fields(),
            json!({"f:data": {"f:a": {}}, "f:metadata": {"f:labels": {"f:l": {}}}})
        );
    }

    #[test]
    fn lists_merge_by_identity_or_are_atomic() {
        let of = |image: &str, command: &[&str], port: u16| {
            json!({"spec": {"containers": [{"name": "c", "image": image, "command": command,
                "ports": [{"containerPort": port}]}]}})
        };
        let out = compare(pod(), &of("a", &["x"], 80), &of("b", &["x", "y"], 81));
        let key = "k:{\"name\":\"c\"}";
        let port = |number: u16| format!("k:{{\"containerPort\":{number},\"protocol\":\"TCP\"}}");
        assert_eq!(
            out.modified.into_fields(),
            json!({"f:spec": {"f:containers": {key: {"f:image": {}, "f:command": {}}}}})
        );
        assert_eq!(
            out.added.into_fields(),
            json!({"f:spec": {"f:containers": {key: {"f:ports":
                {port(81): {".": {}, "f:containerPort": {}}}}}}})
        );
        assert_eq!(
            out.removed.into_fields(),
            json!({"f:spec": {"f:containers": {key: {"f:ports":
                {port(80): {".": {}, "f:containerPort": {}}}}}}})
        );
    }

    #[test]
    fn set_elements_and_duplicate_elements_are_compared() {
        let of = |list: &[&str]| json!({"metadata": {"finalizers": list}});
        let out = compare(pod(), &of(&["a", "b"]), &of(&["b", "c"]));
        assert_eq!(
            out.added.into_fields(),
            json!({"f:metadata": {"f:finalizers": {"v:\"c\"": {}}}})
        );
        assert_eq!(
            out.removed.into_fields(),
            json!({"f:metadata": {"f:finalizers": {"v:\"a\"": {}}}})
        );
        let twice = compare(pod(), &of(&["a"]), &of(&["a", "a"]));
        assert_eq!(
            twice.added.into_fields(),
            json!({"f:metadata": {"f:finalizers": {"v:\"a\"": {}}}})
        );
    }

    #[test]
    fn equal_objects_have_no_difference() {
        let one = json!({"spec": {"nodeSelector": {"a": "b"}, "containers": []}});
        assert!(compare(pod(), &one, &one).is_empty());
        let other = json!({"spec": {"nodeSelector": {"a": "c"}, "containers": []}});
        let out = compare(pod(), &one, &other);
        assert_eq!(
            out.modified.into_fields(),
            json!({"f:spec": {"f:nodeSelector": {}}})
        );
    }
}
