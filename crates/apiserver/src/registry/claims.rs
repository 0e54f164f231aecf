//! Claims depend on storage classes: a new claim gets the default class, and only some classes let a claim grow.

use serde_json::Value;

use super::engine::{Registry, Target, parsed};
use super::rules::{text, volume};
use crate::status::Failure;
use crate::store::Range;

/// Sets the default storage class on a claim that names no class.
pub(super) fn admit(registry: &Registry, _: &Target<'_>, claim: &mut Value) -> Result<(), Failure> {
    let is_default = super::columns::storage::is_default;
    if claim.pointer("/spec/storageClassName").is_none()
        && !volume::has_beta_class(claim)
        && let Some(class) = default_class(registry, "storage.k8s.io", "storageclasses", is_default)
        && let Some(spec) = claim.get_mut("spec").and_then(Value::as_object_mut)
    {
        spec.insert("storageClassName".into(), Value::String(class));
    }
    Ok(())
}

/// Returns the name of the default class of a kind. If there are several, the newest one is used.
pub(super) fn default_class(
    registry: &Registry,
    group: &str,
    plural: &str,
    is_default: fn(&Value) -> bool,
) -> Option<String> {
    let kind = super::find(group, plural)?;
    let range = Range {
        resource: kind.storage_key(),
        namespace: None,
        name: None,
    };
    let listing = registry.store.list(&range, None).ok()?;
    let classes = listing
        .objects
        .iter()
        .filter_map(|class| parsed(class).ok());
    classes
        .filter(is_default)
        .map(|class| {
            let since = text(&class, "/metadata/creationTimestamp").to_owned();
            (
                since,
                std::cmp::Reverse(text(&class, "/metadata/name").to_owned()),
            )
        })
        .max()
        .map(|(_, name)| name.0)
}

/// Rejects the growth of a claim unless its class allows volume expansion.
pub(super) fn check_resize(
    registry: &Registry,
    target: &Target<'_>,
    old: &Value,
    new: &Value,
) -> Result<(), Failure> {
    if !volume::grows(old, new) {
        return Ok(());
    }
    let classes = super::find("storage.k8s.io", "storageclasses");
    let class = classes.and_then(|kind| {
        let class = Target {
            kind,
            version: &kind.versions()[0],
            namespace: "",
            name: text(new, "/spec/storageClassName"),
        };
        registry.store.get(&class.key())
    });
    let class = class
        .and_then(|class| parsed(&class).ok())
        .unwrap_or_default();
    if class["allowVolumeExpansion"] == true {
        return Ok(());
    }
    let name = target.name;
    let message = format!(
        "persistentvolumeclaims {name:?} is forbidden: only dynamically provisioned pvc can be \
         resized and the storageclass that provisions the pvc must support resize"
    );
    Err(Failure::about(
        403,
        "Forbidden",
        target.kind.resource(),
        name,
        message,
    ))
}
