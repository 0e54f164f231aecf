//! A new ingress without a class gets the default class.

use serde_json::Value;

use super::claims;
use super::engine::{Registry, Target};
use super::find;
use super::rules::networking;
use crate::status::Failure;
use crate::store::Given;

const GROUP: &str = "networking.k8s.io";

/// Sets the default class on an ingress that names no class.
pub(super) fn admit(
    registry: &Registry,
    _: &Target<'_>,
    ingress: &mut Value,
) -> Result<Vec<Given>, Failure> {
    let mut used = Vec::new();
    let annotations = ingress.pointer("/metadata/annotations");
    let annotated = annotations.is_some_and(|a| a.get(networking::CLASS_ANNOTATION).is_some());
    let is_default = super::columns::networking::is_default;
    if ingress.pointer("/spec/ingressClassName").is_none()
        && !annotated
        && let Some(class) =
            claims::default_class(registry, find(GROUP, "ingressclasses"), is_default)
        && let Some(spec) = ingress.get_mut("spec").and_then(Value::as_object_mut)
    {
        spec.insert(
            "ingressClassName".into(),
            Value::String(class.key.name.clone()),
        );
        used.push(class);
    }
    Ok(used)
}
