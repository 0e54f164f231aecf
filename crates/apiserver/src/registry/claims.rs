//! Claims depend on storage classes: a new claim gets the default class, and only some classes let a claim grow.

use std::cmp::Reverse;

use serde_json::Value;

use super::engine::{Registry, Target, parsed};
use super::rules::{text, volume};
use super::{Kind, find, pods};
use crate::status::Failure;
use crate::store::{Given, Range};

/// Sets the default storage class on a claim that names no class.
pub(super) fn admit(
    registry: &Registry,
    target: &Target<'_>,
    claim: &mut Value,
) -> Result<Vec<Given>, Failure> {
    let mut used = Vec::new();
    let is_default = super::columns::storage::is_default;
    if claim.pointer("/spec/storageClassName").is_none()
        && !volume::has_beta_class(claim)
        && let Some(class) = default_class(
            registry,
            find("storage.k8s.io", "storageclasses"),
            is_default,
        )
        && let Some(spec) = claim.get_mut("spec").and_then(Value::as_object_mut)
    {
        spec.insert(
            "storageClassName".into(),
            Value::String(class.key.name.clone()),
        );
        used.push(class);
    }
    pods::check_claim(registry, target, claim, &mut used)?;
    Ok(used)
}

/// Returns the default class of a kind. If there are several, the newest one is used.
pub(super) fn default_class(
    registry: &Registry,
    kind: Option<&'static Kind>,
    is_default: fn(&Value) -> bool,
) -> Option<Given> {
    let range = Range {
        resource: kind?.storage_key(),
        namespace: None,
        name: None,
    };
    let listing = registry.store.list(&range, None).ok()?;
    let defaults = listing.objects.into_iter().filter_map(|stored| {
        let class = parsed(&stored).ok().filter(is_default)?;
        let since = text(&class, "/metadata/creationTimestamp").to_owned();
        Some(((since, Reverse(stored.key.name.clone())), stored))
    });
    let newest = defaults.max_by(|one, other| one.0.cmp(&other.0));
    newest.map(|(_, stored)| pods::given(&stored))
}

/// Rejects a claim outside the limit ranges, and its growth unless its class allows volume expansion.
pub(super) fn check_resize(
    registry: &Registry,
    target: &Target<'_>,
    old: &Value,
    new: &Value,
) -> Result<(), Failure> {
    pods::check_claim(registry, target, new, &mut Vec::new())?;
    if !volume::grows(old, new) {
        return Ok(());
    }
    let classes = find("storage.k8s.io", "storageclasses");
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
