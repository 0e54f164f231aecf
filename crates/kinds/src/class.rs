//! StorageClasses.
#![expect(missing_docs, reason = "the fields are those of the Kubernetes API")]

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::Deserialize;

use crate::lean::or_default;
use crate::meta::metadata;

/// A StorageClass.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct StorageClass {
    #[serde(deserialize_with = "metadata")]
    pub metadata: ObjectMeta,
    #[serde(deserialize_with = "or_default")]
    pub provisioner: String,
    #[serde(deserialize_with = "or_default")]
    pub parameters: BTreeMap<String, String>,
    pub reclaim_policy: Option<String>,
    #[serde(deserialize_with = "or_default")]
    pub mount_options: Vec<String>,
    #[serde(deserialize_with = "or_default")]
    pub volume_binding_mode: String,
    #[serde(deserialize_with = "or_default")]
    pub allowed_topologies: Vec<AllowedTerm>,
}

/// A TopologySelectorTerm. All expressions of a term must hold.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct AllowedTerm {
    #[serde(deserialize_with = "or_default")]
    pub match_label_expressions: Vec<AllowedExpression>,
}

/// A TopologySelectorLabelRequirement: the key has one of the values.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct AllowedExpression {
    pub key: String,
    pub values: Vec<String>,
}

impl StorageClass {
    /// Returns whether the first pod decides where volumes of the class are.
    pub fn waits_for_consumer(&self) -> bool {
        self.volume_binding_mode == "WaitForFirstConsumer"
    }
}
