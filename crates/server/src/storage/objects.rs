//! The watched kinds with only the fields that matter for decisions: the whole cluster is cached, and each parsed field
//! costs code. Writes are patches, so fields that are missing here are not lost.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{
    NodeSelector, ObjectReference, Taint, Toleration, TopologySelectorTerm,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, ObjectMeta};
use k8s_openapi::{ClusterResourceScope, NamespaceResourceScope};
use serde::de::IgnoredAny;
use serde::{Deserialize, Deserializer};
use tenure_manager::lean::or_default;
use tenure_manager::lean_kind;

lean_kind!(
    PersistentVolumeClaim,
    "PersistentVolumeClaim",
    "persistentvolumeclaims",
    "",
    "v1",
    NamespaceResourceScope
);
lean_kind!(
    PersistentVolume,
    "PersistentVolume",
    "persistentvolumes",
    "",
    "v1",
    ClusterResourceScope
);
lean_kind!(Pod, "Pod", "pods", "", "v1", NamespaceResourceScope);
lean_kind!(Node, "Node", "nodes", "", "v1", ClusterResourceScope);
lean_kind!(
    StorageClass,
    "StorageClass",
    "storageclasses",
    "storage.k8s.io",
    "v1",
    ClusterResourceScope
);
lean_kind!(
    CSINode,
    "CSINode",
    "csinodes",
    "storage.k8s.io",
    "v1",
    ClusterResourceScope
);

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct PersistentVolumeClaim {
    #[serde(deserialize_with = "bare")]
    pub(super) metadata: ObjectMeta,
    pub(super) spec: Option<ClaimSpec>,
    pub(super) status: Option<ClaimStatus>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct ClaimSpec {
    pub(super) access_modes: Option<Vec<String>>,
    pub(super) resources: Option<Resources>,
    pub(super) selector: Option<LabelSelector>,
    pub(super) storage_class_name: Option<String>,
    pub(super) volume_attributes_class_name: Option<String>,
    pub(super) volume_mode: Option<String>,
    pub(super) volume_name: Option<String>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Resources {
    pub(super) requests: Option<BTreeMap<String, Quantity>>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct ClaimStatus {
    pub(super) access_modes: Option<Vec<String>>,
    pub(super) phase: Option<String>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct PersistentVolume {
    #[serde(deserialize_with = "bare")]
    pub(super) metadata: ObjectMeta,
    pub(super) spec: Option<VolumeSpec>,
    pub(super) status: Option<Phase>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct VolumeSpec {
    pub(super) access_modes: Option<Vec<String>>,
    pub(super) capacity: Option<BTreeMap<String, Quantity>>,
    pub(super) claim_ref: Option<ObjectReference>,
    /// Present if the volume belongs to a CSI driver.
    pub(super) csi: Option<IgnoredAny>,
    pub(super) node_affinity: Option<VolumeNodeAffinity>,
    pub(super) persistent_volume_reclaim_policy: Option<String>,
    pub(super) storage_class_name: Option<String>,
    pub(super) volume_attributes_class_name: Option<String>,
    pub(super) volume_mode: Option<String>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct VolumeNodeAffinity {
    pub(super) required: Option<NodeSelector>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Phase {
    pub(super) phase: Option<String>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Pod {
    #[serde(deserialize_with = "bare")]
    pub(super) metadata: ObjectMeta,
    pub(super) spec: Option<PodSpec>,
    pub(super) status: Option<Phase>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct PodSpec {
    pub(super) affinity: Option<Affinity>,
    pub(super) node_name: Option<String>,
    pub(super) node_selector: Option<BTreeMap<String, String>>,
    pub(super) scheduler_name: Option<String>,
    pub(super) scheduling_gates: Option<Vec<IgnoredAny>>,
    pub(super) tolerations: Option<Vec<Toleration>>,
    pub(super) volumes: Option<Vec<Volume>>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct Affinity {
    pub(super) node_affinity: Option<NodeAffinity>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct NodeAffinity {
    pub(super) required_during_scheduling_ignored_during_execution: Option<NodeSelector>,
}

/// A volume of a pod.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct Volume {
    #[serde(deserialize_with = "or_default")]
    pub(super) name: String,
    pub(super) persistent_volume_claim: Option<NamedClaim>,
    /// Present if a claim is created for it.
    pub(super) ephemeral: Option<IgnoredAny>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct NamedClaim {
    #[serde(deserialize_with = "or_default")]
    pub(super) claim_name: String,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Node {
    #[serde(deserialize_with = "bare")]
    pub(super) metadata: ObjectMeta,
    pub(super) spec: Option<NodeSpec>,
}

#[derive(Clone, Debug, Default, Deserialize, PartialEq)]
#[serde(default)]
pub(super) struct NodeSpec {
    pub(super) taints: Option<Vec<Taint>>,
    pub(super) unschedulable: Option<bool>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct StorageClass {
    #[serde(deserialize_with = "bare")]
    pub(super) metadata: ObjectMeta,
    pub(super) allowed_topologies: Option<Vec<TopologySelectorTerm>>,
    #[serde(deserialize_with = "or_default")]
    pub(super) provisioner: String,
    pub(super) volume_binding_mode: Option<String>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct CSINode {
    #[serde(deserialize_with = "bare")]
    pub(super) metadata: ObjectMeta,
    #[serde(deserialize_with = "or_default")]
    pub(super) spec: Drivers,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Drivers {
    #[serde(deserialize_with = "or_default")]
    pub(super) drivers: Vec<Driver>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Driver {
    #[serde(deserialize_with = "or_default")]
    pub(super) name: String,
}

/// Drops the managed fields, which are the largest part of an object and do not matter for decisions.
fn bare<'de, D: Deserializer<'de>>(deserializer: D) -> Result<ObjectMeta, D::Error> {
    let mut meta: ObjectMeta = or_default(deserializer)?;
    meta.managed_fields = None;
    Ok(meta)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn null_is_as_good_as_nothing() {
        let node: CSINode = serde_json::from_value(json!({ "spec": { "drivers": null } })).unwrap();
        assert!(node.spec.drivers.is_empty());
        let node: CSINode = serde_json::from_value(json!({ "spec": null })).unwrap();
        assert!(node.spec.drivers.is_empty());
        let volume = json!({ "name": null, "ephemeral": null, "persistentVolumeClaim": {} });
        let spec = json!({ "schedulingGates": null, "volumes": [volume], "affinity": null });
        let pod: Pod = serde_json::from_value(json!({ "spec": spec, "status": null })).unwrap();
        let volumes = pod.spec.unwrap().volumes.unwrap();
        assert!(volumes[0].ephemeral.is_none());
    }

    /// Parses the same bytes as the generated types, with the same result.
    #[test]
    fn fields_are_called_as_in_the_generated_types() {
        use k8s_openapi::api::core::v1 as full;
        use kube::Resource as _;

        let names = json!({ "nodeSelectorTerms": [] });
        let name = "requiredDuringSchedulingIgnoredDuringExecution";
        let spec = json!({
            "containers": [],
            "nodeName": "n",
            "nodeSelector": { "a": "b" },
            "schedulerName": "s",
            "schedulingGates": [{ "name": "g" }],
            "tolerations": [{ "key": "k" }],
            "volumes": [
                { "name": "v", "persistentVolumeClaim": { "claimName": "c" } },
                { "name": "w", "ephemeral": {} },
            ],
            "affinity": { "nodeAffinity": { name: names } },
        });
        let pod =
            json!({ "metadata": { "name": "p" }, "spec": spec, "status": { "phase": "Running" } });
        let lean: Pod = serde_json::from_value(pod.clone()).unwrap();
        let full: full::Pod = serde_json::from_value(pod).unwrap();
        assert_eq!(Pod::api_version(&()), full::Pod::api_version(&()));
        assert_eq!(Pod::plural(&()), full::Pod::plural(&()));
        let (lean_spec, spec) = (lean.spec.unwrap(), full.spec.unwrap());
        assert_eq!(lean_spec.node_name, spec.node_name);
        assert_eq!(lean_spec.node_selector, spec.node_selector);
        assert_eq!(lean_spec.scheduler_name, spec.scheduler_name);
        assert_eq!(lean_spec.scheduling_gates.unwrap().len(), 1);
        assert_eq!(lean_spec.tolerations, spec.tolerations);
        let required = lean_spec.affinity.unwrap().node_affinity.unwrap();
        assert!(
            required
                .required_during_scheduling_ignored_during_execution
                .is_some()
        );
        let volumes = lean_spec.volumes.unwrap();
        assert_eq!(
            volumes[0]
                .persistent_volume_claim
                .as_ref()
                .unwrap()
                .claim_name,
            "c"
        );
        assert!(volumes[1].ephemeral.is_some());
        assert_eq!(lean.status.unwrap().phase, full.status.unwrap().phase);
    }
}
