//! Lists in a strategic merge patch: elements are matched by key or, for scalars, by value.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};

use serde_json::{Map, Value};

use super::Error;
use super::strategic::{Shape, cleaned, merge_map};
use crate::schema::{Field, Type};

/// How the elements of one list field are matched.
pub(super) struct Merge {
    key: Option<&'static str>,
    merges: bool,
    element: Shape,
}

impl Merge {
    pub(super) fn of(field: &'static Field) -> Self {
        let element = match &field.ty {
            Type::List(of) | Type::WrappedList(of) => Shape::of(of),
            _ => Shape::Free,
        };
        Self {
            key: field.merge_key,
            merges: field.patch.merge,
            element,
        }
    }

    /// Merges a list of the patch into the list of the object.
    pub(super) fn merge(&self, old: Vec<Value>, patch: Vec<Value>) -> Result<Vec<Value>, Error> {
        if !self.merges {
            return Ok(patch.into_iter().filter_map(cleaned).collect());
        }
        if !of_maps(old.iter().chain(&patch))? {
            let server_order = old.clone();
            let mut merged = old;
            merged.extend(patch.iter().cloned());
            return self.ordered(unique(merged), &patch, &server_order);
        }
        let (old, patch) = self.special_elements(old, patch)?;
        let server_order = old.clone();
        let merged = self.merge_elements(old, patch.clone())?;
        self.ordered(merged, &patch, &server_order)
    }

    /// Like [`merge`](Self::merge), with a `$setElementOrder` list, which determines the order of the elements it
    /// names.
    pub(super) fn merge_ordered(
        &self,
        old: Option<Vec<Value>>,
        patch: Option<Vec<Value>>,
        order: &[Value],
    ) -> Result<Vec<Value>, Error> {
        self.check_order(patch.as_deref().unwrap_or_default(), order)?;
        let server_order = self.live_order(old.as_deref(), patch.as_deref());
        let merged = match (old, patch) {
            (Some(old), Some(patch)) => self.merge(old, patch)?,
            (None, Some(patch)) => patch.into_iter().filter_map(cleaned).collect(),
            (old, None) => old.unwrap_or_default(),
        };
        self.ordered(merged, order, &server_order)
    }

    /// Returns the order of the object's elements. The real server takes it from an array in which the first added
    /// elements have replaced the deleted ones, and clients can observe the difference.
    fn live_order(&self, old: Option<&[Value]>, patch: Option<&[Value]>) -> Vec<Value> {
        let (old, patch) = (old.unwrap_or_default(), patch.unwrap_or_default());
        let is_delete = |element: &&Value| element.get("$patch").is_some_and(|how| how == "delete");
        let doomed = patch
            .iter()
            .filter(is_delete)
            .filter_map(|element| self.id(element));
        let doomed: HashSet<&Value> = doomed.collect();
        let is_doomed = |id: &Value| doomed.contains(id);
        let stays = |element: &&Value| self.id(element).is_none_or(|id| !is_doomed(id));
        let mut order: Vec<Value> = old.iter().filter(stays).cloned().collect();
        let freed = old.len() - order.len();
        let known = self.places(old);
        let is_new = |id: &Value| !known.contains_key(id) || is_doomed(id);
        let plain = patch
            .iter()
            .filter(|element| element.get("$patch").is_none());
        let added = plain.filter(|element| self.id(element).is_some_and(is_new));
        order.extend(added.take(freed).cloned());
        order
    }

    /// Applies the elements with a `$patch` directive. Returns the rest of both lists.
    fn special_elements(
        &self,
        mut old: Vec<Value>,
        patch: Vec<Value>,
    ) -> Result<(Vec<Value>, Vec<Value>), Error> {
        let mut plain = Vec::with_capacity(patch.len());
        let mut doomed = HashSet::new();
        let mut replace = false;
        for element in patch {
            match element.get("$patch") {
                None => plain.push(element),
                Some(how) if how == "delete" => {
                    doomed.insert(self.key_of(&element)?.clone());
                }
                Some(how) if how == "replace" => replace = true,
                Some(how) if how == "merge" => {
                    return Err(Error::Rejected(
                        "merging lists cannot yet be specified in the patch".to_owned(),
                    ));
                }
                Some(how) => return Err(Error::Rejected(format!("unknown patch type: {how}"))),
            }
        }
        if replace {
            let replacement = plain.into_iter().filter_map(cleaned).collect();
            return Ok((replacement, Vec::new()));
        }
        old.retain(|element| self.id(element).is_none_or(|key| !doomed.contains(key)));
        Ok((old, plain))
    }

    fn merge_elements(&self, mut old: Vec<Value>, patch: Vec<Value>) -> Result<Vec<Value>, Error> {
        let mut places: HashMap<Value, usize> = self
            .places(&old)
            .into_iter()
            .map(|(key, at)| (key.clone(), at))
            .collect();
        for element in patch {
            let key = self.key_of(&element)?.clone();
            let Value::Object(element) = element else {
                continue;
            };
            match places.entry(key) {
                Entry::Occupied(place) => {
                    let slot = &mut old[*place.get()];
                    let before = match slot.take() {
                        Value::Object(map) => map,
                        _ => Map::new(),
                    };
                    *slot = Value::Object(merge_map(self.element, before, element)?);
                }
                Entry::Vacant(place) => {
                    place.insert(old.len());
                    old.push(Value::Object(merge_map(self.element, Map::new(), element)?));
                }
            }
        }
        Ok(old)
    }

    /// Sorts the elements named by `order` and inserts the others between them. Each other element is placed before the
    /// first named element that followed it in the object.
    fn ordered(
        &self,
        merged: Vec<Value>,
        order: &[Value],
        server_order: &[Value],
    ) -> Result<Vec<Value>, Error> {
        if of_maps(merged.iter())? {
            for element in merged.iter().chain(order).chain(server_order) {
                self.key_of(element)?;
            }
        }
        let (order, server_order) = (self.places(order), self.places(server_order));
        let place = |list: &HashMap<&Value, usize>, element: &Value| {
            self.id(element).and_then(|id| list.get(id).copied())
        };
        let (mut named, mut others): (Vec<_>, Vec<_>) = merged
            .into_iter()
            .partition(|element| place(&order, element).is_some());
        named.sort_by_key(|element| place(&order, element));
        others.sort_by_key(|element| place(&server_order, element).unwrap_or(usize::MAX));
        let mut woven = Vec::with_capacity(named.len() + others.len());
        let mut named = named.into_iter().peekable();
        let mut others = others.into_iter().peekable();
        while let (Some(next_named), Some(other)) = (named.peek(), others.peek()) {
            let places = place(&server_order, other).zip(place(&server_order, next_named));
            let other_first = places.is_some_and(|(other, named)| other < named);
            woven.extend(if other_first {
                others.next()
            } else {
                named.next()
            });
        }
        woven.extend(named);
        woven.extend(others);
        Ok(woven)
    }

    /// Checks that the patch's elements follow the order list in the patch.
    fn check_order(&self, patch: &[Value], order: &[Value]) -> Result<(), Error> {
        if order.is_empty() || patch.is_empty() {
            return Ok(());
        }
        let is_delete = |element: &&Value| element.get("$patch").is_some_and(|how| how == "delete");
        let mut wanted = patch
            .iter()
            .filter(|element| !is_delete(element))
            .peekable();
        for at in order {
            while wanted
                .next_if(|element| element.get("$patch").is_some())
                .is_some()
            {}
            let Some(element) = wanted.peek() else { break };
            if self.key.is_some() {
                self.key_of(element)?;
                self.key_of(at)?;
            }
            if self.same(element, at) {
                wanted.next();
            }
        }
        match wanted.peek() {
            None => Ok(()),
            Some(_) => Err(Error::Rejected(
                "the order in the patch list doesn't match the $setElementOrder list".to_owned(),
            )),
        }
    }

    fn same(&self, one: &Value, other: &Value) -> bool {
        self.id(one).is_some() && self.id(one) == self.id(other)
    }

    /// Returns the identity of an element: the value of its key, or the scalar itself.
    fn id<'v>(&self, element: &'v Value) -> Option<&'v Value> {
        match self.key {
            Some(key) => element.get(key),
            None => Some(element),
        }
    }

    /// Returns the first index of each element. Hashing prevents quadratic time for long lists.
    fn places<'v>(&self, list: &'v [Value]) -> HashMap<&'v Value, usize> {
        let mut places = HashMap::with_capacity(list.len());
        for (at, element) in list.iter().enumerate() {
            if let Some(id) = self.id(element) {
                places.entry(id).or_insert(at);
            }
        }
        places
    }

    fn key_of<'v>(&self, element: &'v Value) -> Result<&'v Value, Error> {
        let Some(key) = self.key else {
            return Err(Error::Rejected(
                "cannot merge lists without merge key".to_owned(),
            ));
        };
        element.get(key).ok_or_else(|| {
            Error::Rejected(format!(
                "map: {element} does not contain declared merge key: {key}"
            ))
        })
    }
}

/// Removes the scalars that a `$deleteFromPrimitiveList` directive lists.
pub(super) fn delete(mut old: Vec<Value>, doomed: &[Value]) -> Result<Vec<Value>, Error> {
    if of_maps(old.iter().chain(doomed))? {
        return Err(Error::Malformed(
            "invalid patch format of primitive list".to_owned(),
        ));
    }
    let doomed: HashSet<&Value> = doomed.iter().collect();
    old.retain(|element| !doomed.contains(element));
    Ok(old)
}

/// Whether the elements are maps. They must be all maps or all scalars of one type.
fn of_maps<'v>(elements: impl Iterator<Item = &'v Value>) -> Result<bool, Error> {
    let mut first: Option<&Value> = None;
    for element in elements {
        if element.is_array() {
            return Err(Error::Rejected(
                "lists of lists are not supported".to_owned(),
            ));
        }
        let first = *first.get_or_insert(element);
        if std::mem::discriminant(first) != std::mem::discriminant(element) {
            return Err(Error::Rejected(
                "list element types are not identical".to_owned(),
            ));
        }
    }
    Ok(first.is_some_and(Value::is_object))
}

fn unique(list: Vec<Value>) -> Vec<Value> {
    let mut seen = HashSet::with_capacity(list.len());
    list.into_iter()
        .filter(|value| seen.insert(value.clone()))
        .collect()
}
