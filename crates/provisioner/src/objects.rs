//! Partial kinds that only the provisioner uses, and short names of those that it shares with the storage controllers.

use std::collections::BTreeMap;

use k8s_openapi::api::storage::v1::CSIStorageCapacity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use k8s_openapi::{ClusterResourceScope, NamespaceResourceScope};
use serde::Deserialize;
use tenure_kinds::lean::or_default;
use tenure_kinds::lean_kinds;
use tenure_kinds::meta::metadata;
use tenure_kinds::volume::ClaimRef;
use tenure_quantity::Quantity;

pub(crate) use tenure_kinds::claim::DataSource;
pub(crate) use tenure_kinds::class::{AllowedExpression, AllowedTerm};
pub(crate) use tenure_kinds::meta::{annotation, has_finalizer};
pub(crate) use tenure_kinds::node::NodeSelectorTerm;
pub(crate) use tenure_kinds::{
    CSINode as CsiNode, Node, PersistentVolume as Volume, PersistentVolumeClaim as Claim,
    StorageClass as Class,
};

lean_kinds! {
    Attachment: "VolumeAttachment" "volumeattachments" "storage.k8s.io" "v1" ClusterResourceScope;
    AttributesClass: "VolumeAttributesClass" "volumeattributesclasses" "storage.k8s.io" "v1" ClusterResourceScope;
    Snapshot: "VolumeSnapshot" "volumesnapshots" "snapshot.storage.k8s.io" "v1" NamespaceResourceScope;
    SnapshotContent: "VolumeSnapshotContent" "volumesnapshotcontents" "snapshot.storage.k8s.io" "v1" ClusterResourceScope;
    StorageCapacity: "CSIStorageCapacity" "csistoragecapacities" "storage.k8s.io" "v1" NamespaceResourceScope;
    Grant: "ReferenceGrant" "referencegrants" "gateway.networking.k8s.io" "v1beta1" NamespaceResourceScope;
}

/// A VolumeAttachment.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Attachment {
    #[serde(deserialize_with = "metadata")]
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
    #[serde(deserialize_with = "metadata")]
    pub(crate) metadata: ObjectMeta,
    pub(crate) driver_name: String,
    #[serde(deserialize_with = "or_default")]
    pub(crate) parameters: BTreeMap<String, String>,
}

/// A VolumeSnapshot.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Snapshot {
    #[serde(deserialize_with = "metadata")]
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
    #[serde(deserialize_with = "metadata")]
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
    #[serde(deserialize_with = "metadata")]
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
    #[serde(deserialize_with = "metadata")]
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

/// Returns the requested size of a claim in bytes, or 0 if there is none.
pub(crate) fn requested(claim: &Claim) -> Result<i64, String> {
    claim.requested().map_or(Ok(0), bytes)
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

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::json;

    use tenure_kinds::names::{LAST_APPLIED, SELECTED_NODE};

    use super::*;
    use crate::cache::{Form, Packed};

    #[test]
    fn packed_object_is_unpacked_without_loss() {
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
        let mut claim: Claim = serde_json::from_value(claim).unwrap();
        let packed: Packed = Form::<Claim>::keep(claim.clone());
        assert!(Form::<Claim>::may_say(&packed, "source"));
        assert!(!Form::<Claim>::may_say(&packed, "managedFields"));
        let opened: Arc<Claim> = packed.open();
        claim.metadata.labels = None;
        assert_eq!(format!("{opened:?}"), format!("{claim:?}"));
        assert!(opened.spec.selector.is_some() && opened.metadata.labels.is_none());
        assert_eq!(opened.annotation(LAST_APPLIED), None);

        let volume = json!({
            "metadata": { "name": "v", "uid": "u", "finalizers": ["f"] },
            "spec": {
                "accessModes": ["ReadWriteOnce"],
                "capacity": { "storage": "1Gi" },
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
            let mut volume: Volume = serde_json::from_value(volume).unwrap();
            let packed: Packed = Form::<Volume>::keep(volume.clone());
            let opened: Arc<Volume> = packed.open();
            // The provisioner does not use them.
            (volume.spec.access_modes, volume.spec.capacity) = Default::default();
            assert_eq!(format!("{opened:?}"), format!("{volume:?}"));
        }
    }
}
