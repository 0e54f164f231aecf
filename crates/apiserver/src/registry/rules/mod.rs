//! Defaults and validation, one file per family of kinds.
//!
//! All functions work on the canonical stored form: types are checked and unknown fields are removed. Defaults are
//! idempotent, because they also run after patches.

mod address;
pub(crate) mod apps;
pub(crate) mod autoscaling;
pub(crate) mod batch;
pub(crate) mod config;
mod defaults;
pub(crate) mod endpoints;
pub(crate) mod events;
mod handler;
mod image;
pub(crate) mod lease;
pub(crate) mod limits;
pub(crate) mod namespace;
pub(crate) mod networking;
pub(crate) mod node;
pub(crate) mod pod;
pub(crate) mod policy;
pub(crate) mod quota;
pub(crate) mod rbac;
pub(crate) mod resource;
pub(crate) mod scheduling;
pub(crate) mod service;
pub(crate) mod storage;
pub(crate) mod templates;
pub(crate) mod volume;
pub(crate) mod warnings;

use serde_json::{Map, Value, json};

use super::{Registry, Target};
pub(crate) use crate::json::{at, entries, items, text};
use crate::status::{Cause, Failure};

pub(super) fn nothing_to_default(_: &mut Value) {}

pub(super) fn nothing_to_check(_: &Value, _: &mut Vec<Cause>) {}

pub(super) fn no_change_to_make(_: &Value, _: &mut Value) {}

pub(super) fn no_deletion_to_refuse(_: &Target<'_>) -> Result<(), Failure> {
    Ok(())
}

pub(super) fn nothing_to_assign(
    _: &Registry,
    _: &Target<'_>,
    _: &mut Value,
) -> Result<(), Failure> {
    Ok(())
}

pub(super) fn no_change_to_refuse(
    _: &Registry,
    _: &Target<'_>,
    _: &Value,
    _: &Value,
) -> Result<(), Failure> {
    Ok(())
}

pub(super) fn no_change_to_check(_: &Value, _: &Value, _: &mut Vec<Cause>) {}

/// Sets a member if it is absent or null.
fn set_default(map: &mut Map<String, Value>, key: &str, value: impl Into<Value>) {
    let slot = map.entry(key).or_insert(Value::Null);
    if slot.is_null() {
        *slot = value.into();
    }
}

/// Sets a text member if it is absent or empty.
fn set_default_text(map: &mut Map<String, Value>, key: &str, value: &str) {
    let slot = map.entry(key).or_insert(Value::Null);
    if slot.is_null() || slot.as_str() == Some("") {
        *slot = json!(value);
    }
}

/// Returns the map at a key, creating it if absent.
fn child<'a>(object: &'a mut Value, key: &str) -> Option<&'a mut Map<String, Value>> {
    let slot = object.as_object_mut()?.entry(key).or_insert(Value::Null);
    if slot.is_null() {
        *slot = json!({});
    }
    slot.as_object_mut()
}

/// Reports a change of an immutable text. The real server makes no difference between an empty text and an absent one.
fn immutable_text(old: &Value, new: &Value, pointer: &str, field: &str, causes: &mut Vec<Cause>) {
    let (was, is) = (text(old, pointer), text(new, pointer));
    if was != is {
        causes.push(Cause::invalid(field, &json!(is), "field is immutable"));
    }
}

/// Reports a change of an immutable value.
fn immutable(old: &Value, new: &Value, pointer: &str, field: &str, causes: &mut Vec<Cause>) {
    let (was, is) = (old.pointer(pointer), new.pointer(pointer));
    if was.unwrap_or(&Value::Null) != is.unwrap_or(&Value::Null) {
        causes.push(Cause::invalid(
            field,
            is.unwrap_or(&Value::Null),
            "field is immutable",
        ));
    }
}
