//! Sets of field paths in the format of `managedFields`.
//!
//! A path element is stored in its serialised form: `f:name` for a member, `k:{"key":1}` for an element of a list of
//! type map, `v:1` for an element of a list of type set. A set is a tree of path elements. A node may be a member of
//! the set, have members below it, or both.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fmt::Write as _;

use serde_json::{Map, Value};

use crate::status::shortened;

/// Key that marks a node as a member that also has members below it.
const SELF: &str = ".";

/// A set of field paths.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Set {
    nodes: BTreeMap<String, Node>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Node {
    member: bool,
    below: Set,
}

/// Returns the path element of a member.
pub(crate) fn member(name: &str) -> String {
    let mut out = String::with_capacity(name.len() + 2);
    out.push_str("f:");
    out.push_str(name);
    out
}

impl Set {
    /// Creates a set from paths of plain members, such as `["metadata", "name"]`.
    pub(crate) fn of(paths: &[&[&str]]) -> Self {
        let mut out = Self::default();
        for path in paths {
            let path: Vec<String> = path.iter().map(|name| member(name)).collect();
            out.insert(&path);
        }
        out
    }

    /// Parses the serialised form. Ignores malformed parts.
    pub(crate) fn from_fields(fields: &Value) -> Self {
        let mut out = Self::default();
        for (element, below) in fields.as_object().into_iter().flatten() {
            if element == SELF {
                continue;
            }
            let node = Node {
                member: is_member(below),
                below: Self::from_fields(below),
            };
            out.nodes.insert(element.clone(), node);
        }
        out
    }

    /// Returns the serialised form.
    pub(crate) fn into_fields(self) -> Value {
        let nodes = self.nodes.into_iter().map(|(element, node)| {
            let mut below = node.below.into_fields();
            if let Some(map) = below.as_object_mut()
                && node.member
                && !map.is_empty()
            {
                map.insert(SELF.to_owned(), Value::Object(Map::new()));
            }
            (element, below)
        });
        Value::Object(nodes.collect())
    }

    /// Returns whether a serialised set, or the set `or`, contains every member.
    pub(super) fn is_written_in(&self, fields: Option<&Value>, or: Option<&Self>) -> bool {
        self.nodes.iter().all(|(element, node)| {
            let written = fields.and_then(|fields| fields.get(element));
            let other = or.and_then(|or| or.nodes.get(element));
            let known = written.is_some_and(is_member) || other.is_some_and(|other| other.member);
            (known || !node.member)
                && node
                    .below
                    .is_written_in(written, other.map(|other| &other.below))
        })
    }

    /// Returns whether the set equals a serialised set.
    pub(super) fn is_written_as(&self, fields: &Value) -> bool {
        let Some(map) = fields.as_object() else {
            return false;
        };
        let written = map.keys().filter(|element| *element != SELF).count();
        written == self.nodes.len()
            && self.nodes.iter().all(|(element, node)| {
                map.get(element).is_some_and(|below| {
                    is_member(below) == node.member && node.below.is_written_as(below)
                })
            })
    }

    /// Returns whether another set contains every member.
    pub(super) fn is_subset(&self, other: &Self) -> bool {
        self.nodes.iter().all(|(element, node)| {
            other.nodes.get(element).is_some_and(|theirs| {
                (theirs.member || !node.member) && node.below.is_subset(&theirs.below)
            })
        })
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }

    /// Adds a path. Ignores the empty path.
    pub(crate) fn insert(&mut self, path: &[String]) {
        let Some((first, rest)) = path.split_first() else {
            return;
        };
        if !self.nodes.contains_key(first) {
            self.nodes.insert(first.clone(), Node::default());
        }
        let node = self.nodes.get_mut(first).expect("just inserted");
        if rest.is_empty() {
            node.member = true;
        } else {
            node.below.insert(rest);
        }
    }

    /// Adds an element with the set below it. `member` says whether the element itself is a member. Adds nothing if the
    /// result is empty.
    pub(super) fn add(&mut self, element: String, member: bool, below: Self) {
        if !member && below.is_empty() {
            return;
        }
        match self.nodes.entry(element) {
            Entry::Vacant(place) => _ = place.insert(Node { member, below }),
            Entry::Occupied(mut there) => {
                let node = there.get_mut();
                node.member |= member;
                node.below = std::mem::take(&mut node.below).union(&below);
            }
        }
    }

    /// Returns whether this element itself is a member.
    pub(crate) fn has(&self, element: &str) -> bool {
        self.nodes.get(element).is_some_and(|node| node.member)
    }

    /// Returns the set below an element.
    pub(crate) fn below(&self, element: &str) -> Option<&Self> {
        self.nodes
            .get(element)
            .map(|node| &node.below)
            .filter(|below| !below.is_empty())
    }

    pub(crate) fn union(mut self, other: &Self) -> Self {
        for (element, theirs) in &other.nodes {
            let node = self.nodes.entry(element.clone()).or_default();
            node.member |= theirs.member;
            node.below = std::mem::take(&mut node.below).union(&theirs.below);
        }
        self
    }

    /// Removes the members of another set, and keeps the members below them.
    pub(crate) fn difference(mut self, other: &Self) -> Self {
        self.nodes.retain(|element, node| {
            if let Some(theirs) = other.nodes.get(element) {
                node.member &= !theirs.member;
                node.below = std::mem::take(&mut node.below).difference(&theirs.below);
            }
            node.member || !node.below.is_empty()
        });
        self
    }

    /// Removes the members of another set and everything below them.
    pub(crate) fn without(mut self, other: &Self) -> Self {
        self.nodes
            .retain(|element, node| match other.nodes.get(element) {
                Some(theirs) if theirs.member => false,
                Some(theirs) => {
                    node.below = std::mem::take(&mut node.below).without(&theirs.below);
                    node.member || !node.below.is_empty()
                }
                None => true,
            });
        self
    }

    pub(crate) fn intersection(&self, other: &Self) -> Self {
        let mut out = Self::default();
        for (element, mine) in &self.nodes {
            let Some(theirs) = other.nodes.get(element) else {
                continue;
            };
            let node = Node {
                member: mine.member && theirs.member,
                below: mine.below.intersection(&theirs.below),
            };
            if node.member || !node.below.is_empty() {
                out.nodes.insert(element.clone(), node);
            }
        }
        out
    }

    /// Adds every node that is a member of a struct in the schema.
    pub(super) fn with_named(&self, shape: super::shape::Shape) -> Self {
        let nodes = self.nodes.iter().map(|(element, node)| {
            let name = element.strip_prefix("f:");
            let named = name.is_some_and(|name| shape.names(name));
            let inner = match name {
                Some(name) => shape.member(name),
                None => shape.item(),
            };
            let node = Node {
                member: node.member || (named && !node.below.is_empty()),
                below: node.below.with_named(inner),
            };
            (element.clone(), node)
        });
        Self {
            nodes: nodes.collect(),
        }
    }

    /// Returns all paths in readable form, level by level: `.spec.ports[port=80].name`.
    pub(crate) fn paths(&self) -> Vec<String> {
        let mut out = Vec::new();
        self.write_paths("", &mut out);
        out
    }

    fn write_paths(&self, prefix: &str, out: &mut Vec<String>) {
        let path = |element: &str| {
            let mut path = prefix.to_owned();
            push_element(&mut path, element);
            path
        };
        let members = self.nodes.iter().filter(|(_, node)| node.member);
        out.extend(members.map(|(element, _)| path(element)));
        for (element, node) in &self.nodes {
            node.below.write_paths(&path(element), out);
        }
    }
}

/// Returns whether the serialised content of an element makes the element itself a member.
fn is_member(below: &Value) -> bool {
    below.as_object().is_none_or(Map::is_empty) || below.get(SELF).is_some()
}

/// Appends an element in readable form.
pub(super) fn push_element(out: &mut String, element: &str) {
    match element.split_once(':') {
        Some(("f", name)) => {
            out.push('.');
            out.push_str(shortened(name));
        }
        Some(("k", keys)) => {
            let keys: Map<String, Value> = serde_json::from_str(keys).unwrap_or_default();
            let keys: Vec<String> = keys.iter().map(|(k, v)| format!("{k}={v}")).collect();
            _ = write!(out, "[{}]", shortened(&keys.join(",")));
        }
        Some(("v", value)) => _ = write!(out, "[={}]", shortened(value)),
        Some((_, index)) => _ = write!(out, "[{index}]"),
        None => out.push_str(element),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn set(fields: &Value) -> Set {
        Set::from_fields(fields)
    }

    #[test]
    fn serialised_set_round_trips() {
        let fields = json!({"f:data": {".": {}, "f:a": {}},
            "f:spec": {"f:ports": {"k:{\"port\":80,\"protocol\":\"TCP\"}": {".": {}, "f:name": {}}},
            "f:finalizers": {"v:\"x\"": {}}}});
        let set = set(&fields);
        assert_eq!(set.clone().into_fields(), fields);
        assert_eq!(
            set.paths(),
            [
                ".data",
                ".data.a",
                ".spec.finalizers[=\"x\"]",
                ".spec.ports[port=80,protocol=\"TCP\"]",
                ".spec.ports[port=80,protocol=\"TCP\"].name",
            ]
        );
    }

    #[test]
    fn set_difference_keeps_or_removes_nested_members() {
        let all = set(&json!({"f:data": {".": {}, "f:a": {}, "f:b": {}}}));
        let part = set(&json!({"f:data": {}}));
        let rest = json!({"f:data": {"f:a": {}, "f:b": {}}});
        assert_eq!(all.clone().difference(&part).into_fields(), rest);
        assert_eq!(all.clone().without(&part).into_fields(), json!({}));
        let one = set(&json!({"f:data": {"f:a": {}}}));
        assert_eq!(all.intersection(&one), one);
        assert_eq!(
            set(&rest).union(&part),
            set(&json!({"f:data": {".": {}, "f:a": {}, "f:b": {}}}))
        );
        assert!(all.clone().difference(&all).is_empty());
    }

    #[test]
    fn serialised_set_contains_its_parts_and_no_other_members() {
        let all = json!({"f:data": {".": {}, "f:a": {}}, "f:spec": {"f:b": {"f:c": {}}}});
        let parts = [
            json!({}),
            json!({"f:data": {}}),
            json!({"f:data": {"f:a": {}}}),
            json!({"f:spec": {"f:b": {"f:c": {}}}}),
        ];
        let others = [
            json!({"f:spec": {}}),
            json!({"f:spec": {"f:b": {}}}),
            json!({"f:data": {"f:a": {"f:x": {}}}}),
            json!({"f:data": {"f:x": {}}}),
        ];
        for part in &parts {
            assert!(set(part).is_subset(&set(&all)));
            assert!(set(part).is_written_in(Some(&all), None));
            assert!(set(part).is_written_in(None, Some(&set(&all))));
            assert!(set(part).is_written_as(part) && !set(part).is_written_as(&all));
            assert!(!set(&all).is_written_as(part));
        }
        for other in &others {
            assert!(!set(other).is_subset(&set(&all)), "{other}");
            assert!(!set(other).is_written_in(Some(&all), None), "{other}");
        }
    }
}
