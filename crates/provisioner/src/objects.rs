//! Partial object types with only the fields that are used, because a provisioner keeps all claims and volumes of a
//! cluster.

use std::collections::BTreeMap;

use k8s_openapi::api::storage::v1::CSIStorageCapacity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference, Time};
use k8s_openapi::{ClusterResourceScope, NamespaceResourceScope};
use serde::de::IgnoredAny;
use serde::{Deserialize, Deserializer, Serialize};
use tenure_manager::lean::or_default;
use tenure_manager::lean_kind;
use tenure_quantity::Quantity;

use crate::names::{
    ALPHA_SELECTED_NODE, BETA_STORAGE_CLASS, BETA_STORAGE_PROVISIONER, LAST_APPLIED, SELECTED_NODE,
    STORAGE_PROVISIONER,
};

lean_kind!(
    Claim,
    "PersistentVolumeClaim",
    "persistentvolumeclaims",
    "",
    "v1",
    NamespaceResourceScope
);
lean_kind!(
    Volume,
    "PersistentVolume",
    "persistentvolumes",
    "",
    "v1",
    ClusterResourceScope
);
lean_kind!(
    Class,
    "StorageClass",
    "storageclasses",
    "storage.k8s.io",
    "v1",
    ClusterResourceScope
);
lean_kind!(Node, "Node", "nodes", "", "v1", ClusterResourceScope);
lean_kind!(
    CsiNode,
    "CSINode",
    "csinodes",
    "storage.k8s.io",
    "v1",
    ClusterResourceScope
);
lean_kind!(
    Attachment,
    "VolumeAttachment",
    "volumeattachments",
    "storage.k8s.io",
    "v1",
    ClusterResourceScope
);
lean_kind!(
    AttributesClass,
    "VolumeAttributesClass",
    "volumeattributesclasses",
    "storage.k8s.io",
    "v1",
    ClusterResourceScope
);
lean_kind!(
    Snapshot,
    "VolumeSnapshot",
    "volumesnapshots",
    "snapshot.storage.k8s.io",
    "v1",
    NamespaceResourceScope
);
lean_kind!(
    SnapshotContent,
    "VolumeSnapshotContent",
    "volumesnapshotcontents",
    "snapshot.storage.k8s.io",
    "v1",
    ClusterResourceScope
);

lean_kind!(
    StorageCapacity,
    "CSIStorageCapacity",
    "csistoragecapacities",
    "storage.k8s.io",
    "v1",
    NamespaceResourceScope
);
lean_kind!(
    Grant,
    "ReferenceGrant",
    "referencegrants",
    "gateway.networking.k8s.io",
    "v1beta1",
    NamespaceResourceScope
);

/// A PersistentVolumeClaim.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(default)]
pub(crate) struct Claim {
    #[serde(deserialize_with = "bare")]
    pub(crate) metadata: ObjectMeta,
    pub(crate) spec: ClaimSpec,
    pub(crate) status: Phase,
}

#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct ClaimSpec {
    pub(crate) access_modes: Vec<String>,
    pub(crate) resources: Requests,
    #[serde(deserialize_with = "or_default")]
    pub(crate) volume_name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) storage_class_name: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) volume_mode: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) selector: Option<Something>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) data_source: Option<DataSource>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) data_source_ref: Option<DataSource>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) volume_attributes_class_name: Option<String>,
}

/// A field whose content does not matter.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(from = "IgnoredAny", into = "bool")]
pub(crate) struct Something;

impl From<IgnoredAny> for Something {
    fn from(_: IgnoredAny) -> Self {
        Self
    }
}

impl From<Something> for bool {
    fn from(_: Something) -> Self {
        true
    }
}

#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(default)]
pub(crate) struct Requests {
    pub(crate) requests: BTreeMap<String, String>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct DataSource {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) api_group: Option<String>,
    pub(crate) kind: String,
    pub(crate) name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) namespace: Option<String>,
}

#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(default)]
pub(crate) struct Phase {
    #[serde(deserialize_with = "or_default")]
    pub(crate) phase: String,
}

impl Claim {
    pub(crate) fn uid(&self) -> &str {
        self.metadata.uid.as_deref().unwrap_or_default()
    }

    pub(crate) fn name(&self) -> &str {
        self.metadata.name.as_deref().unwrap_or_default()
    }

    pub(crate) fn namespace(&self) -> &str {
        self.metadata.namespace.as_deref().unwrap_or_default()
    }

    pub(crate) fn annotation(&self, key: &str) -> Option<&str> {
        annotation(&self.metadata, key)
    }

    /// Returns the provisioner that the volume binder chose.
    pub(crate) fn provisioner(&self) -> Option<&str> {
        let newer = self.annotation(STORAGE_PROVISIONER);
        newer.or_else(|| self.annotation(BETA_STORAGE_PROVISIONER))
    }

    /// Returns the name of the class. As everywhere in Kubernetes, the old annotation wins.
    pub(crate) fn class(&self) -> &str {
        let old = self.annotation(BETA_STORAGE_CLASS);
        old.or(self.spec.storage_class_name.as_deref())
            .unwrap_or_default()
    }

    pub(crate) fn selected_node(&self) -> Option<&str> {
        let newer = self
            .annotation(SELECTED_NODE)
            .filter(|node| !node.is_empty());
        newer.or_else(|| {
            self.annotation(ALPHA_SELECTED_NODE)
                .filter(|node| !node.is_empty())
        })
    }

    /// Returns the requested size in bytes, or 0 if there is none.
    pub(crate) fn requested(&self) -> Result<i64, String> {
        let quantity = self.spec.resources.requests.get("storage");
        quantity.map_or(Ok(0), |quantity| bytes(quantity))
    }

    pub(crate) fn is_block(&self) -> bool {
        self.spec.volume_mode.as_deref() == Some("Block")
    }

    /// Returns the data source and its namespace.
    pub(crate) fn source(&self) -> Option<(&DataSource, &str)> {
        if let Some(source) = &self.spec.data_source {
            return Some((source, self.namespace()));
        }
        let source = self.spec.data_source_ref.as_ref()?;
        let named = source.namespace.as_deref().filter(|name| !name.is_empty());
        Some((source, named.unwrap_or_else(|| self.namespace())))
    }

    /// Returns `namespace/name`.
    pub(crate) fn key(&self) -> String {
        format!("{}/{}", self.namespace(), self.name())
    }
}

/// A PersistentVolume.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(default)]
pub(crate) struct Volume {
    #[serde(deserialize_with = "bare")]
    pub(crate) metadata: ObjectMeta,
    pub(crate) spec: VolumeSpec,
    pub(crate) status: Phase,
}

#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct VolumeSpec {
    pub(crate) csi: Option<CsiSource>,
    pub(crate) claim_ref: Option<ClaimRef>,
    #[serde(deserialize_with = "or_default")]
    pub(crate) persistent_volume_reclaim_policy: String,
    #[serde(deserialize_with = "or_default")]
    pub(crate) storage_class_name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) node_affinity: Option<Box<NodeAffinity>>,
}

#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct CsiSource {
    pub(crate) driver: String,
    pub(crate) volume_handle: String,
}

#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(default)]
pub(crate) struct ClaimRef {
    pub(crate) namespace: String,
    pub(crate) name: String,
    #[serde(deserialize_with = "or_default")]
    pub(crate) uid: String,
}

#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(default)]
pub(crate) struct NodeAffinity {
    pub(crate) required: Option<NodeSelector>,
}

#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct NodeSelector {
    pub(crate) node_selector_terms: Vec<NodeSelectorTerm>,
}

#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct NodeSelectorTerm {
    pub(crate) match_expressions: Vec<NodeExpression>,
}

/// A condition on a label of a node.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(default)]
pub(crate) struct NodeExpression {
    pub(crate) key: String,
    pub(crate) operator: String,
    #[serde(deserialize_with = "or_default")]
    pub(crate) values: Vec<String>,
}

impl NodeExpression {
    pub(crate) fn fits(&self, labels: &BTreeMap<String, String>) -> bool {
        let value = labels.get(&self.key);
        let listed = value.is_some_and(|value| self.values.contains(value));
        match self.operator.as_str() {
            "In" => listed,
            "NotIn" => !listed,
            "Exists" => value.is_some(),
            "DoesNotExist" => value.is_none(),
            _ => false,
        }
    }
}

impl Volume {
    pub(crate) fn name(&self) -> &str {
        self.metadata.name.as_deref().unwrap_or_default()
    }

    pub(crate) fn annotation(&self, key: &str) -> Option<&str> {
        annotation(&self.metadata, key)
    }

    pub(crate) fn has_finalizer(&self, name: &str) -> bool {
        has_finalizer(&self.metadata, name)
    }

    /// Returns the topology terms from which the volume is accessible.
    pub(crate) fn places(&self) -> Vec<Vec<(String, Vec<String>)>> {
        let affinity = self.spec.node_affinity.as_ref();
        let required = affinity.and_then(|affinity| affinity.required.as_ref());
        let terms = required.map_or(&[][..], |required| &required.node_selector_terms);
        let term = |term: &NodeSelectorTerm| {
            let expressions = term.match_expressions.iter();
            expressions
                .map(|e| (e.key.clone(), e.values.clone()))
                .collect()
        };
        terms.iter().map(term).collect()
    }
}

/// A StorageClass.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct Class {
    #[serde(deserialize_with = "slim")]
    pub(crate) metadata: ObjectMeta,
    pub(crate) provisioner: String,
    #[serde(deserialize_with = "or_default")]
    pub(crate) parameters: BTreeMap<String, String>,
    pub(crate) reclaim_policy: Option<String>,
    #[serde(deserialize_with = "or_default")]
    pub(crate) mount_options: Vec<String>,
    #[serde(deserialize_with = "or_default")]
    pub(crate) volume_binding_mode: String,
    #[serde(deserialize_with = "or_default")]
    pub(crate) allowed_topologies: Vec<AllowedTerm>,
}

/// All expressions of a term must hold.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct AllowedTerm {
    pub(crate) match_label_expressions: Vec<AllowedExpression>,
}

/// The key has one of the values.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct AllowedExpression {
    pub(crate) key: String,
    pub(crate) values: Vec<String>,
}

impl Class {
    pub(crate) fn waits_for_consumer(&self) -> bool {
        self.volume_binding_mode == "WaitForFirstConsumer"
    }
}

/// A Node; only its labels are used.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Node {
    #[serde(deserialize_with = "slim")]
    pub(crate) metadata: ObjectMeta,
}

/// A CSINode.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct CsiNode {
    #[serde(deserialize_with = "slim")]
    pub(crate) metadata: ObjectMeta,
    pub(crate) spec: CsiNodeSpec,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct CsiNodeSpec {
    #[serde(deserialize_with = "or_default")]
    pub(crate) drivers: Vec<CsiNodeDriver>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct CsiNodeDriver {
    pub(crate) name: String,
    #[serde(deserialize_with = "or_default")]
    pub(crate) topology_keys: Vec<String>,
}

/// A VolumeAttachment.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Attachment {
    #[serde(deserialize_with = "slim")]
    pub(crate) metadata: ObjectMeta,
    pub(crate) spec: AttachmentSpec,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct AttachmentSpec {
    pub(crate) node_name: String,
    pub(crate) source: AttachmentSource,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct AttachmentSource {
    pub(crate) persistent_volume_name: Option<String>,
}

/// A VolumeAttributesClass.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct AttributesClass {
    #[serde(deserialize_with = "slim")]
    pub(crate) metadata: ObjectMeta,
    pub(crate) driver_name: String,
    #[serde(deserialize_with = "or_default")]
    pub(crate) parameters: BTreeMap<String, String>,
}

/// A VolumeSnapshot.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Snapshot {
    #[serde(deserialize_with = "slim")]
    pub(crate) metadata: ObjectMeta,
    pub(crate) status: SnapshotStatus,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct SnapshotStatus {
    pub(crate) bound_volume_snapshot_content_name: Option<String>,
    pub(crate) ready_to_use: Option<bool>,
    pub(crate) restore_size: Option<String>,
}

/// A VolumeSnapshotContent.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct SnapshotContent {
    #[serde(deserialize_with = "slim")]
    pub(crate) metadata: ObjectMeta,
    pub(crate) spec: SnapshotContentSpec,
    pub(crate) status: SnapshotContentStatus,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct SnapshotContentSpec {
    pub(crate) driver: String,
    pub(crate) volume_snapshot_ref: ClaimRef,
    pub(crate) source_volume_mode: Option<String>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct SnapshotContentStatus {
    pub(crate) snapshot_handle: Option<String>,
}

/// A CSIStorageCapacity.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct StorageCapacity {
    #[serde(deserialize_with = "slim")]
    pub(crate) metadata: ObjectMeta,
    #[serde(deserialize_with = "or_default")]
    pub(crate) node_topology: RoomPlace,
    pub(crate) storage_class_name: String,
    pub(crate) capacity: Option<String>,
    pub(crate) maximum_volume_size: Option<String>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct RoomPlace {
    #[serde(deserialize_with = "or_default")]
    pub(crate) match_labels: BTreeMap<String, String>,
}

impl StorageCapacity {
    /// Returns the segment and the class.
    pub(crate) fn item(&self) -> (Vec<(String, String)>, String) {
        let labels = self.node_topology.match_labels.clone();
        (
            labels.into_iter().collect(),
            self.storage_class_name.clone(),
        )
    }
}

impl From<CSIStorageCapacity> for StorageCapacity {
    fn from(object: CSIStorageCapacity) -> Self {
        let place = object.node_topology.unwrap_or_default();
        Self {
            metadata: object.metadata,
            node_topology: RoomPlace {
                match_labels: place.match_labels.unwrap_or_default(),
            },
            storage_class_name: object.storage_class_name,
            capacity: object.capacity.map(|quantity| quantity.0),
            maximum_volume_size: object.maximum_volume_size.map(|quantity| quantity.0),
        }
    }
}

/// A ReferenceGrant: allows objects of other namespaces to reference objects of its namespace.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Grant {
    #[serde(deserialize_with = "slim")]
    pub(crate) metadata: ObjectMeta,
    pub(crate) spec: GrantSpec,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct GrantSpec {
    #[serde(deserialize_with = "or_default")]
    pub(crate) from: Vec<GrantFrom>,
    #[serde(deserialize_with = "or_default")]
    pub(crate) to: Vec<GrantTo>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct GrantFrom {
    #[serde(deserialize_with = "or_default")]
    pub(crate) group: String,
    pub(crate) kind: String,
    pub(crate) namespace: String,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct GrantTo {
    #[serde(deserialize_with = "or_default")]
    pub(crate) group: String,
    pub(crate) kind: String,
    #[serde(deserialize_with = "or_default")]
    pub(crate) name: String,
}

pub(crate) fn annotation<'a>(meta: &'a ObjectMeta, key: &str) -> Option<&'a str> {
    meta.annotations.as_ref()?.get(key).map(String::as_str)
}

pub(crate) fn has_finalizer(meta: &ObjectMeta, name: &str) -> bool {
    meta.finalizers
        .iter()
        .flatten()
        .any(|finalizer| finalizer == name)
}

/// Returns the bytes of a quantity, rounded up.
pub(crate) fn bytes(text: &str) -> Result<i64, String> {
    let quantity = text.parse::<Quantity>();
    let quantity = quantity.map_err(|error| format!("{text:?} is not a quantity: {error}"))?;
    Ok(quantity.value())
}

/// Returns bytes as a quantity.
pub(crate) fn quantity(bytes: i64) -> String {
    Quantity::from_bytes(bytes).to_string()
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
    finalizers: Option<Vec<String>>,
    labels: Option<BTreeMap<String, String>>,
    annotations: Option<BTreeMap<String, String>>,
    owner_references: Option<Vec<OwnerReference>>,
}

fn slim<'de, D: Deserializer<'de>>(deserializer: D) -> Result<ObjectMeta, D::Error> {
    let slim = Slim::deserialize(deserializer)?;
    Ok(ObjectMeta {
        name: slim.name,
        namespace: slim.namespace,
        uid: slim.uid,
        resource_version: slim.resource_version,
        deletion_timestamp: slim.deletion_timestamp,
        finalizers: slim.finalizers,
        labels: slim.labels,
        annotations: slim.annotations,
        owner_references: slim.owner_references,
        ..ObjectMeta::default()
    })
}

/// Decodes the metadata of claims and volumes without labels, which are not used, and without kubectl's
/// last-applied annotation, which repeats the object.
fn bare<'de, D: Deserializer<'de>>(deserializer: D) -> Result<ObjectMeta, D::Error> {
    let mut meta = slim(deserializer)?;
    meta.labels = None;
    if let Some(annotations) = &mut meta.annotations {
        annotations.remove(LAST_APPLIED);
    }
    Ok(meta)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::json;

    use super::*;
    use crate::cache::{Form, Packed};

    #[test]
    fn what_is_packed_comes_out_again() {
        let claim = json!({
            "metadata": {
                "name": "c", "namespace": "n", "uid": "u", "resourceVersion": "7",
                "deletionTimestamp": "2026-01-02T03:04:05Z",
                "labels": { "a": "b" },
                "annotations": { LAST_APPLIED: "{}", SELECTED_NODE: "node" },
                "finalizers": ["f"],
                "managedFields": [{ "manager": "m" }],
            },
            "spec": {
                "accessModes": ["ReadWriteOnce"],
                "resources": { "requests": { "storage": "1Gi" } },
                "selector": { "matchLabels": {} },
                "dataSource": { "kind": "PersistentVolumeClaim", "name": "source" },
            },
            "status": { "phase": "Pending" },
        });
        let claim: Claim = serde_json::from_value(claim).unwrap();
        let packed: Packed = Form::<Claim>::keep(claim.clone());
        assert!(Form::<Claim>::may_say(&packed, "source"));
        assert!(!Form::<Claim>::may_say(&packed, "managedFields"));
        let opened: Arc<Claim> = packed.open();
        assert_eq!(format!("{opened:?}"), format!("{claim:?}"));
        assert!(opened.spec.selector.is_some() && opened.metadata.labels.is_none());
        assert_eq!(opened.annotation(LAST_APPLIED), None);

        let volume = json!({
            "metadata": { "name": "v", "uid": "u", "finalizers": ["f"] },
            "spec": {
                "csi": { "driver": "d", "volumeHandle": "h", "fsType": "ext4" },
                "claimRef": { "namespace": "n", "name": "c", "uid": "u" },
                "persistentVolumeReclaimPolicy": "Delete",
                "storageClassName": "fast",
                "nodeAffinity": { "required": { "nodeSelectorTerms": [
                    { "matchExpressions": [{ "key": "k", "operator": "In", "values": ["v"] }] },
                ] } },
            },
            "status": { "phase": "Released" },
        });
        for volume in [volume, json!({ "metadata": {}, "spec": {} })] {
            let volume: Volume = serde_json::from_value(volume).unwrap();
            let packed: Packed = Form::<Volume>::keep(volume.clone());
            let opened: Arc<Volume> = packed.open();
            assert_eq!(format!("{opened:?}"), format!("{volume:?}"));
        }
    }
}
