//! PersistentVolumeClaims.
#![expect(missing_docs, reason = "the fields are those of the Kubernetes API")]

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, ObjectMeta};
use serde::{Deserialize, Serialize};

use crate::lean::or_default;
use crate::meta::{annotation, metadata};
use crate::names::{
    ALPHA_SELECTED_NODE, BETA_STORAGE_CLASS, BETA_STORAGE_PROVISIONER, SELECTED_NODE,
    STORAGE_PROVISIONER,
};

/// A PersistentVolumeClaim.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(default)]
pub struct PersistentVolumeClaim {
    #[serde(deserialize_with = "metadata")]
    pub metadata: ObjectMeta,
    #[serde(deserialize_with = "or_default")]
    pub spec: ClaimSpec,
    #[serde(deserialize_with = "or_default")]
    pub status: ClaimStatus,
}

#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ClaimSpec {
    #[serde(deserialize_with = "or_default")]
    pub access_modes: Vec<String>,
    #[serde(deserialize_with = "or_default")]
    pub resources: Requests,
    /// The name of the volume; empty for none.
    #[serde(deserialize_with = "or_default")]
    pub volume_name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub storage_class_name: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub volume_mode: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub selector: Option<LabelSelector>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub data_source: Option<DataSource>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub data_source_ref: Option<DataSource>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub volume_attributes_class_name: Option<String>,
}

#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(default)]
pub struct Requests {
    #[serde(deserialize_with = "or_default")]
    pub requests: BTreeMap<String, String>,
}

/// The object whose content the volume of a claim gets.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, rename_all = "camelCase")]
pub struct DataSource {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub api_group: Option<String>,
    pub kind: String,
    pub name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
}

#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ClaimStatus {
    /// Empty if the claim has no phase yet.
    #[serde(deserialize_with = "or_default")]
    pub phase: String,
    #[serde(deserialize_with = "or_default", skip_serializing)]
    pub access_modes: Vec<String>,
}

impl PersistentVolumeClaim {
    pub fn uid(&self) -> &str {
        self.metadata.uid.as_deref().unwrap_or_default()
    }

    pub fn name(&self) -> &str {
        self.metadata.name.as_deref().unwrap_or_default()
    }

    pub fn namespace(&self) -> &str {
        self.metadata.namespace.as_deref().unwrap_or_default()
    }

    pub fn annotation(&self, key: &str) -> Option<&str> {
        annotation(&self.metadata, key)
    }

    /// Returns the provisioner that the volume binder chose.
    pub fn provisioner(&self) -> Option<&str> {
        let newer = self.annotation(STORAGE_PROVISIONER);
        newer.or_else(|| self.annotation(BETA_STORAGE_PROVISIONER))
    }

    /// Returns the name of the class, or an empty text. As everywhere in Kubernetes, the old annotation wins.
    pub fn class(&self) -> &str {
        let old = self.annotation(BETA_STORAGE_CLASS);
        old.or(self.spec.storage_class_name.as_deref())
            .unwrap_or_default()
    }

    /// Returns the node that was selected for the claim.
    pub fn selected_node(&self) -> Option<&str> {
        let node = self.annotation(SELECTED_NODE);
        node.filter(|node| !node.is_empty())
    }

    /// Like [`selected_node`](Self::selected_node), but also reads the annotation of older schedulers. Provisioners
    /// read both.
    pub fn selected_node_or_alpha(&self) -> Option<&str> {
        let older = self.annotation(ALPHA_SELECTED_NODE);
        self.selected_node()
            .or(older.filter(|node| !node.is_empty()))
    }

    /// Returns the requested size as a quantity.
    pub fn requested(&self) -> Option<&str> {
        self.spec
            .resources
            .requests
            .get("storage")
            .map(String::as_str)
    }

    pub fn is_block(&self) -> bool {
        self.spec.volume_mode.as_deref() == Some("Block")
    }

    /// Returns the data source and its namespace.
    pub fn source(&self) -> Option<(&DataSource, &str)> {
        if let Some(source) = &self.spec.data_source {
            return Some((source, self.namespace()));
        }
        let source = self.spec.data_source_ref.as_ref()?;
        let named = source.namespace.as_deref().filter(|name| !name.is_empty());
        Some((source, named.unwrap_or_else(|| self.namespace())))
    }

    /// Returns `namespace/name`.
    pub fn key(&self) -> String {
        format!("{}/{}", self.namespace(), self.name())
    }
}
