//! Strategic merge patch: a merge patch whose lists merge by key, with directives.
//!
//! | directive | effect |
//! |---|---|
//! | `$patch: replace` | the map, or the list that contains it, is replaced by the rest |
//! | `$patch: delete` | the map is emptied; in a list, the element with this key is removed |
//! | `$deleteFromPrimitiveList/f` | these scalars are removed from list `f` |
//! | `$setElementOrder/f` | the order of list `f` after the merge |
//! | `$retainKeys` | all other keys of the map are removed |
//!
//! Clients depend on the order. Elements of the patch keep the order of the patch, and the other elements keep the
//! order of the object.

use serde_json::{Map, Value};

use super::Error;
use super::list::{self, Merge};
use crate::schema::{Field, Message, Type};

const PATCH: &str = "$patch";
const RETAIN_KEYS: &str = "$retainKeys";
const DELETE_FROM: &str = "$deleteFromPrimitiveList";
const SET_ORDER: &str = "$setElementOrder";

/// Applies a strategic merge patch to an object of this message.
///
/// # Errors
/// Returns an error if the patch is not an object or has a malformed directive (400), or does not fit the object (422).
pub fn strategic(message: &'static Message, target: Value, patch: Value) -> Result<Value, Error> {
    let (Value::Object(target), Value::Object(patch)) = (target, patch) else {
        return Err(Error::Malformed("invalid JSON document".to_owned()));
    };
    merge_map(Shape::Message(message), target, patch).map(Value::Object)
}

/// The shape of a map according to the schema table.
#[derive(Clone, Copy)]
pub(super) enum Shape {
    Message(&'static Message),
    /// A map whose values have this type.
    Values(&'static Type),
    /// Not in the table: merged by name, lists replaced.
    Free,
}

impl Shape {
    pub(super) fn of(ty: &'static Type) -> Self {
        match ty {
            Type::Message(message) => Self::Message(message),
            Type::Map(of) => Self::Values(of),
            _ => Self::Free,
        }
    }

    fn field(self, name: &str) -> Option<&'static Field> {
        match self {
            Self::Message(message) => message.field(name),
            _ => None,
        }
    }

    fn member(self, name: &str) -> Self {
        match self {
            Self::Message(message) => message.field(name).map_or(Self::Free, |f| Self::of(&f.ty)),
            Self::Values(of) => Self::of(of),
            Self::Free => Self::Free,
        }
    }
}

/// Merges one map into another.
pub(super) fn merge_map(
    shape: Shape,
    mut target: Map<String, Value>,
    mut patch: Map<String, Value>,
) -> Result<Map<String, Value>, Error> {
    match patch.remove(PATCH) {
        None => {}
        Some(Value::String(how)) if how == "replace" => return Ok(without_directives(patch)),
        Some(Value::String(how)) if how == "delete" => return Ok(Map::new()),
        Some(how) => return Err(Error::Rejected(format!("unknown patch type: {how}"))),
    }
    retain_keys(&mut target, &mut patch)?;
    set_order(shape, &mut target, &mut patch)?;
    for (name, value) in patch {
        let (name, delete) =
            match directive(&name, DELETE_FROM, "invalid patch format of primitive list")? {
                Some(list) => (list.to_owned(), true),
                None => (name, false),
            };
        if value.is_null() {
            target.remove(&name);
            continue;
        }
        let old = target.get_mut(&name).map(Value::take);
        let merged = match (old, value) {
            (None, _) if delete => continue,
            (Some(Value::Array(old)), Value::Array(patch)) => {
                Value::Array(merge_list(shape, &name, old, patch, delete)?)
            }
            (Some(old), _) if delete => old,
            (Some(Value::Object(old)), Value::Object(patch)) => {
                if shape.field(&name).is_some_and(|field| field.patch.replace) {
                    Value::Object(without_directives(patch))
                } else {
                    Value::Object(merge_map(shape.member(&name), old, patch)?)
                }
            }
            (_, value) => match cleaned(value) {
                Some(value) => value,
                None => {
                    target.remove(&name);
                    continue;
                }
            },
        };
        target.insert(name, merged);
    }
    Ok(target)
}

fn merge_list(
    shape: Shape,
    name: &str,
    old: Vec<Value>,
    patch: Vec<Value>,
    delete: bool,
) -> Result<Vec<Value>, Error> {
    let field = shape.field(name);
    if delete {
        return list::delete(old, &patch);
    }
    match field {
        Some(field) if field.patch.merge => Merge::of(field).merge(old, patch),
        _ => Ok(patch.into_iter().filter_map(cleaned).collect()),
    }
}

/// Applies `$retainKeys`, which lists every key that remains. The patch itself must not set other keys.
fn retain_keys(
    target: &mut Map<String, Value>,
    patch: &mut Map<String, Value>,
) -> Result<(), Error> {
    let Some(keys) = patch.remove(RETAIN_KEYS) else {
        return Ok(());
    };
    let malformed = || Error::Malformed("invalid patch format of retainKeys".to_owned());
    let keys = keys.as_array().ok_or_else(malformed)?;
    let retained = |name: &str| keys.iter().any(|key| key.as_str() == Some(name));
    let directive = |name: &str| name.starts_with(DELETE_FROM) || name.starts_with(SET_ORDER);
    if patch
        .iter()
        .any(|(name, value)| !value.is_null() && !directive(name) && !retained(name))
    {
        return Err(malformed());
    }
    target.retain(|name, _| retained(name));
    Ok(())
}

/// Merges the lists that have an order directive, and removes them from the patch.
fn set_order(
    shape: Shape,
    target: &mut Map<String, Value>,
    patch: &mut Map<String, Value>,
) -> Result<(), Error> {
    const MALFORMED: &str = "invalid patch format of setElementOrder list";
    let ordered: Vec<String> = patch
        .keys()
        .filter(|name| name.starts_with(SET_ORDER))
        .cloned()
        .collect();
    for key in ordered {
        let order = patch.remove(&key);
        let Some(name) = directive(&key, SET_ORDER, MALFORMED)? else {
            continue;
        };
        let Some(Value::Array(order)) = order else {
            return Err(Error::Malformed(MALFORMED.to_owned()));
        };
        let Some(field) = shape.field(name) else {
            return Err(Error::Rejected(format!(
                "unable to find api field {name:?}"
            )));
        };
        let old = list_at(target, name)?;
        let new = list_at(patch, name)?;
        if old.is_none() && new.is_none() {
            continue;
        }
        let merged = Merge::of(field).merge_ordered(old, new, &order)?;
        target.insert(name.to_owned(), Value::Array(merged));
    }
    Ok(())
}

/// Removes a list from a map and returns it.
fn list_at(map: &mut Map<String, Value>, name: &str) -> Result<Option<Vec<Value>>, Error> {
    match map.remove(name) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::Array(list)) => Ok(Some(list)),
        Some(_) => Err(Error::Rejected(format!(
            "expected a list in field {name:?}"
        ))),
    }
}

/// Returns the field that a directive such as `$setElementOrder/ports` refers to.
fn directive<'a>(key: &'a str, prefix: &str, malformed: &str) -> Result<Option<&'a str>, Error> {
    match key.strip_prefix(prefix) {
        None => Ok(None),
        Some(rest) => match rest.strip_prefix('/') {
            Some(name) => Ok(Some(name)),
            None => Err(Error::Malformed(malformed.to_owned())),
        },
    }
}

/// Cleans a value of the patch that has no counterpart in the object: removes its directives and nulls, which would
/// have no effect. Returns `None` if the value itself is a directive.
pub(super) fn cleaned(value: Value) -> Option<Value> {
    Some(match value {
        Value::Object(map) if map.contains_key(PATCH) => return None,
        Value::Object(map) => Value::Object(without_directives(map)),
        Value::Array(list) => Value::Array(list.into_iter().filter_map(cleaned).collect()),
        other => other,
    })
}

fn without_directives(map: Map<String, Value>) -> Map<String, Value> {
    let is_directive = |name: &str| {
        name == PATCH
            || name == RETAIN_KEYS
            || name.starts_with(DELETE_FROM)
            || name.starts_with(SET_ORDER)
    };
    let kept = map
        .into_iter()
        .filter(|(name, value)| !value.is_null() && !is_directive(name));
    kept.filter_map(|(name, value)| cleaned(value).map(|value| (name, value)))
        .collect()
}

#[cfg(test)]
mod tests;
