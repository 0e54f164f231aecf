//! PersistentVolumes.
#![expect(missing_docs, reason = "the fields are those of the Kubernetes API")]

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::{Deserialize, Serialize};

use crate::lean::or_default;
use crate::meta::{annotation, has_finalizer, metadata};
use crate::names::BETA_STORAGE_CLASS;
use crate::node::{NodeSelector, NodeSelectorTerm};

/// A PersistentVolume.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(default)]
pub struct PersistentVolume {
    #[serde(deserialize_with = "metadata")]
    pub metadata: ObjectMeta,
    #[serde(deserialize_with = "or_default")]
    pub spec: VolumeSpec,
    #[serde(deserialize_with = "or_default")]
    pub status: Phase,
}

#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(default, rename_all = "camelCase")]
pub struct VolumeSpec {
    #[serde(deserialize_with = "or_default", skip_serializing)]
    pub access_modes: Vec<String>,
    #[serde(deserialize_with = "or_default", skip_serializing)]
    pub capacity: BTreeMap<String, String>,
    /// Present if the volume belongs to a CSI driver.
    pub csi: Option<CsiSource>,
    pub claim_ref: Option<ClaimRef>,
    #[serde(deserialize_with = "or_default")]
    pub persistent_volume_reclaim_policy: String,
    #[serde(deserialize_with = "or_default")]
    pub storage_class_name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node_affinity: Option<Box<VolumeNodeAffinity>>,
    #[serde(skip_serializing)]
    pub volume_attributes_class_name: Option<String>,
    #[serde(skip_serializing)]
    pub volume_mode: Option<String>,
}

#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(default, rename_all = "camelCase")]
pub struct CsiSource {
    pub driver: String,
    pub volume_handle: String,
}

/// A reference to an object. Unset members are empty.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(default)]
pub struct ClaimRef {
    #[serde(deserialize_with = "or_default")]
    pub namespace: String,
    #[serde(deserialize_with = "or_default")]
    pub name: String,
    #[serde(deserialize_with = "or_default")]
    pub uid: String,
}

#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(default)]
pub struct VolumeNodeAffinity {
    pub required: Option<NodeSelector>,
}

/// The phase of an object; empty for none.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(default)]
pub struct Phase {
    #[serde(deserialize_with = "or_default")]
    pub phase: String,
}

impl PersistentVolume {
    pub fn name(&self) -> &str {
        self.metadata.name.as_deref().unwrap_or_default()
    }

    pub fn annotation(&self, key: &str) -> Option<&str> {
        annotation(&self.metadata, key)
    }

    pub fn has_finalizer(&self, name: &str) -> bool {
        has_finalizer(&self.metadata, name)
    }

    /// Returns the name of the class, or an empty text. As everywhere in Kubernetes, the old annotation wins.
    pub fn class(&self) -> &str {
        let old = self.annotation(BETA_STORAGE_CLASS);
        old.unwrap_or(&self.spec.storage_class_name)
    }

    /// Returns the nodes from which the volume is accessible; `None` for all.
    pub fn required_nodes(&self) -> Option<&NodeSelector> {
        self.spec.node_affinity.as_ref()?.required.as_ref()
    }

    /// Returns the topology terms from which the volume is accessible.
    pub fn places(&self) -> Vec<Vec<(String, Vec<String>)>> {
        let term = |term: &NodeSelectorTerm| {
            let expressions = term.match_expressions.iter();
            expressions
                .map(|e| (e.key.clone(), e.values.clone()))
                .collect()
        };
        let required = self.required_nodes();
        let terms = required.map_or(&[][..], |required| &required.node_selector_terms);
        terms.iter().map(term).collect()
    }
}
