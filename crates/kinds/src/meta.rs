//! The used part of an object's metadata.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference, Time};
use serde::{Deserialize, Deserializer};

use crate::lean::or_default;
use crate::names::LAST_APPLIED;

/// Returns the value of an annotation.
pub fn annotation<'a>(meta: &'a ObjectMeta, key: &str) -> Option<&'a str> {
    meta.annotations.as_ref()?.get(key).map(String::as_str)
}

/// Returns whether an object has a finalizer.
pub fn has_finalizer(meta: &ObjectMeta, name: &str) -> bool {
    let mut finalizers = meta.finalizers.iter().flatten();
    finalizers.any(|finalizer| finalizer == name)
}

/// The metadata that is kept. Managed fields are dropped, because they can be larger than the rest.
#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Slim {
    name: Option<String>,
    namespace: Option<String>,
    uid: Option<String>,
    resource_version: Option<String>,
    deletion_timestamp: Option<Time>,
    deletion_grace_period_seconds: Option<i64>,
    finalizers: Option<Vec<String>>,
    labels: Option<BTreeMap<String, String>>,
    annotations: Option<BTreeMap<String, String>>,
    owner_references: Option<Vec<OwnerReference>>,
}

/// For `#[serde(deserialize_with)]`: reads metadata without managed fields, and without kubectl's last-applied annotation,
/// which repeats the object.
///
/// # Errors
/// Returns an error if the value is not the metadata of an object.
pub fn metadata<'de, D: Deserializer<'de>>(deserializer: D) -> Result<ObjectMeta, D::Error> {
    let mut slim: Slim = or_default(deserializer)?;
    if let Some(annotations) = &mut slim.annotations {
        annotations.remove(LAST_APPLIED);
    }
    Ok(ObjectMeta {
        name: slim.name,
        namespace: slim.namespace,
        uid: slim.uid,
        resource_version: slim.resource_version,
        deletion_timestamp: slim.deletion_timestamp,
        deletion_grace_period_seconds: slim.deletion_grace_period_seconds,
        finalizers: slim.finalizers,
        labels: slim.labels,
        annotations: slim.annotations,
        owner_references: slim.owner_references,
        ..ObjectMeta::default()
    })
}
