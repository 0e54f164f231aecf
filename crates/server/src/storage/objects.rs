//! Pods, with only the fields that matter for their claims.

use std::collections::BTreeMap;

use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::core::v1::Toleration;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::Deserialize;
use serde::de::IgnoredAny;
use tenure_kinds::lean::or_default;
use tenure_kinds::lean_kinds;
use tenure_kinds::meta::metadata;
use tenure_kinds::node::NodeSelector;
use tenure_kinds::volume::Phase;

lean_kinds! {
    Pod: "Pod" "pods" "" "v1" NamespaceResourceScope;
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Pod {
    #[serde(deserialize_with = "metadata")]
    pub(super) metadata: ObjectMeta,
    pub(super) spec: Option<PodSpec>,
    #[serde(deserialize_with = "or_default")]
    pub(super) status: Phase,
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

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn null_members_count_as_absent() {
        let volume = json!({ "name": null, "ephemeral": null, "persistentVolumeClaim": {} });
        let spec = json!({ "schedulingGates": null, "volumes": [volume], "affinity": null });
        let pod: Pod = serde_json::from_value(json!({ "spec": spec, "status": null })).unwrap();
        let volumes = pod.spec.unwrap().volumes.unwrap();
        assert!(volumes[0].ephemeral.is_none());
    }

    /// Parses the same bytes as the generated types, with the same result.
    #[test]
    fn partial_pod_equals_the_generated_type() {
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
        assert_eq!(Some(lean.status.phase), full.status.unwrap().phase);
    }
}
