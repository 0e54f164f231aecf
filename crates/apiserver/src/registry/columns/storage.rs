//! Columns of volumes, claims and the group `storage.k8s.io`.

use jiff::Timestamp;
use serde_json::{Value, json};

use super::{AGE_COLUMN, Column, list, or_unset, scalar, size, string, text, wide};

const fn typed(
    name: &'static str,
    kind: &'static str,
    cell: fn(&Value, Timestamp) -> Value,
) -> Column {
    Column {
        kind,
        ..text(name, cell)
    }
}

pub(in crate::registry) const VOLUME: &[Column] = &[
    text("Capacity", |o, _| string(o, "/spec/capacity/storage"))
        .field("core/v1.PersistentVolumeSpec", "capacity"),
    text("Access Modes", |o, _| access_modes(o, "/spec/accessModes"))
        .field("core/v1.PersistentVolumeSpec", "accessModes"),
    text("Reclaim Policy", |o, _| {
        string(o, "/spec/persistentVolumeReclaimPolicy")
    })
    .field(
        "core/v1.PersistentVolumeSpec",
        "persistentVolumeReclaimPolicy",
    ),
    text("Status", phase).field("core/v1.PersistentVolumeStatus", "phase"),
    text("Claim", |o, _| match o.pointer("/spec/claimRef") {
        Some(claim) => json!(format!(
            "{}/{}",
            scalar(claim.get("namespace")),
            scalar(claim.get("name"))
        )),
        None => json!(""),
    })
    .field("core/v1.PersistentVolumeSpec", "claimRef"),
    text("StorageClass", |o, _| storage_class(o)).described("StorageClass of the pv"),
    text("VolumeAttributesClass", |o, _| {
        unset(o, "/spec/volumeAttributesClassName")
    })
    .described("VolumeAttributesClass of the pv"),
    text("Reason", |o, _| string(o, "/status/reason"))
        .field("core/v1.PersistentVolumeStatus", "reason"),
    AGE_COLUMN,
    wide("VolumeMode", |o, _| unset(o, "/spec/volumeMode"))
        .field("core/v1.PersistentVolumeSpec", "volumeMode"),
];

pub(in crate::registry) const CLAIM: &[Column] = &[
    text("Status", phase).field("core/v1.PersistentVolumeClaimStatus", "phase"),
    text("Volume", |o, _| string(o, "/spec/volumeName"))
        .field("core/v1.PersistentVolumeClaimSpec", "volumeName"),
    text("Capacity", |o, _| {
        if is_placed(o) {
            string(o, "/status/capacity/storage")
        } else {
            json!("")
        }
    })
    .field("core/v1.PersistentVolumeClaimStatus", "capacity"),
    text("Access Modes", |o, _| {
        if is_placed(o) {
            access_modes(o, "/status/accessModes")
        } else {
            json!("")
        }
    })
    .field("core/v1.PersistentVolumeClaimStatus", "accessModes"),
    text("StorageClass", |o, _| storage_class(o)).described("StorageClass of the pvc"),
    text("VolumeAttributesClass", |o, _| {
        unset(o, "/spec/volumeAttributesClassName")
    })
    .described("VolumeAttributesClass of the pvc"),
    AGE_COLUMN,
    wide("VolumeMode", |o, _| unset(o, "/spec/volumeMode"))
        .field("core/v1.PersistentVolumeClaimSpec", "volumeMode"),
];

pub(in crate::registry) const CLASS: &[Column] = &[
    text("Name", |o, _| {
        let name = scalar(o.pointer("/metadata/name"));
        let mark = if is_default(o) { " (default)" } else { "" };
        json!(name + mark)
    })
    .field("meta/v1.ObjectMeta", "name"),
    text("Provisioner", |o, _| string(o, "/provisioner"))
        .field("storage/v1.StorageClass", "provisioner"),
    text("ReclaimPolicy", |o, _| string(o, "/reclaimPolicy"))
        .field("storage/v1.StorageClass", "reclaimPolicy"),
    text("VolumeBindingMode", |o, _| string(o, "/volumeBindingMode"))
        .field("storage/v1.StorageClass", "volumeBindingMode"),
    text("AllowVolumeExpansion", |o, _| {
        flag(o, "/allowVolumeExpansion")
    })
    .field("storage/v1.StorageClass", "allowVolumeExpansion"),
    AGE_COLUMN,
];

pub(in crate::registry) const ATTRIBUTES_CLASS: &[Column] = &[
    text("DriverName", |o, _| string(o, "/driverName"))
        .field("storage/v1.VolumeAttributesClass", "driverName"),
    AGE_COLUMN,
];

pub(in crate::registry) const DRIVER: &[Column] = &[
    typed("AttachRequired", "boolean", |o, _| {
        flag(o, "/spec/attachRequired")
    })
    .field("storage/v1.CSIDriverSpec", "attachRequired"),
    typed("PodInfoOnMount", "boolean", |o, _| {
        flag(o, "/spec/podInfoOnMount")
    })
    .field("storage/v1.CSIDriverSpec", "podInfoOnMount"),
    typed("StorageCapacity", "boolean", |o, _| {
        flag(o, "/spec/storageCapacity")
    })
    .field("storage/v1.CSIDriverSpec", "storageCapacity"),
    text("TokenRequests", |o, _| {
        or_unset(list(o, "/spec/tokenRequests", |r| {
            scalar(r.get("audience"))
        }))
    })
    .field("storage/v1.CSIDriverSpec", "tokenRequests"),
    typed("RequiresRepublish", "boolean", |o, _| {
        flag(o, "/spec/requiresRepublish")
    })
    .field("storage/v1.CSIDriverSpec", "requiresRepublish"),
    text("Modes", |o, _| {
        let modes = list(o, "/spec/volumeLifecycleModes", |m| scalar(Some(m)));
        json!(if modes.is_empty() {
            "<none>".to_owned()
        } else {
            modes
        })
    })
    .field("storage/v1.CSIDriverSpec", "volumeLifecycleModes"),
    AGE_COLUMN,
];

pub(in crate::registry) const NODE: &[Column] = &[
    typed("Drivers", "integer", |o, _| json!(size(o, "/spec/drivers")))
        .described("Drivers indicates the number of CSI drivers registered on the node"),
    AGE_COLUMN,
];

pub(in crate::registry) const CAPACITY: &[Column] = &[
    text("StorageClassName", |o, _| string(o, "/storageClassName"))
        .field("storage/v1.CSIStorageCapacity", "storageClassName"),
    text("Capacity", |o, _| unset(o, "/capacity"))
        .field("storage/v1.CSIStorageCapacity", "capacity"),
];

pub(in crate::registry) const ATTACHMENT: &[Column] = &[
    text("Attacher", |o, _| string(o, "/spec/attacher"))
        .field("storage/v1.VolumeAttachmentSpec", "attacher"),
    text("PV", |o, _| string(o, "/spec/source/persistentVolumeName"))
        .field("storage/v1.VolumeAttachmentSource", "persistentVolumeName"),
    text("Node", |o, _| string(o, "/spec/nodeName"))
        .field("storage/v1.VolumeAttachmentSpec", "nodeName"),
    typed("Attached", "boolean", |o, _| flag(o, "/status/attached"))
        .field("storage/v1.VolumeAttachmentStatus", "attached"),
    AGE_COLUMN,
];

/// Whether this is the default class, which claims without a class get.
pub(in crate::registry) fn is_default(class: &Value) -> bool {
    let annotations = class.pointer("/metadata/annotations");
    [
        "storageclass.kubernetes.io/is-default-class",
        "storageclass.beta.kubernetes.io/is-default-class",
    ]
    .iter()
    .any(|key| {
        annotations
            .and_then(|a| a.get(*key))
            .is_some_and(|v| v == "true")
    })
}

fn is_placed(claim: &Value) -> bool {
    !scalar(claim.pointer("/spec/volumeName")).is_empty()
}

fn phase(object: &Value, _: Timestamp) -> Value {
    if crate::registry::meta::is_deleting(object) {
        json!("Terminating")
    } else {
        string(object, "/status/phase")
    }
}

fn storage_class(object: &Value) -> Value {
    let annotation = object
        .pointer("/metadata/annotations")
        .and_then(|a| a.get(crate::registry::rules::volume::BETA_CLASS));
    match annotation {
        Some(class) => json!(scalar(Some(class))),
        None => string(object, "/spec/storageClassName"),
    }
}

fn unset(object: &Value, pointer: &str) -> Value {
    match object.pointer(pointer) {
        Some(value) => json!(scalar(Some(value))),
        None => json!("<unset>"),
    }
}

fn flag(object: &Value, pointer: &str) -> Value {
    json!(object.pointer(pointer) == Some(&json!(true)))
}

fn access_modes(object: &Value, pointer: &str) -> Value {
    let modes = object.pointer(pointer).and_then(Value::as_array);
    let there = |mode: &str| modes.is_some_and(|modes| modes.iter().any(|m| m == mode));
    let short = [
        ("ReadWriteOnce", "RWO"),
        ("ReadOnlyMany", "ROX"),
        ("ReadWriteMany", "RWX"),
        ("ReadWriteOncePod", "RWOP"),
    ];
    let texts: Vec<&str> = short
        .iter()
        .filter(|(mode, _)| there(mode))
        .map(|(_, s)| *s)
        .collect();
    json!(texts.join(","))
}
