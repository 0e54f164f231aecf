//! Columns of volumes, claims and the group `storage.k8s.io`.

use jiff::Timestamp;
use serde_json::{Value, json};

use super::{
    AGE_COLUMN, Column, NAME_DESCRIPTION, list, or_unset, scalar, size, string, text, wide,
};

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
    text("Capacity", |o, _| string(o, "/spec/capacity/storage")),
    text("Access Modes", |o, _| access_modes(o, "/spec/accessModes")),
    text("Reclaim Policy", |o, _| {
        string(o, "/spec/persistentVolumeReclaimPolicy")
    }),
    text("Status", phase),
    text("Claim", |o, _| match o.pointer("/spec/claimRef") {
        Some(claim) => json!(format!(
            "{}/{}",
            scalar(claim.get("namespace")),
            scalar(claim.get("name"))
        )),
        None => json!(""),
    }),
    text("StorageClass", |o, _| storage_class(o)),
    text("VolumeAttributesClass", |o, _| {
        unset(o, "/spec/volumeAttributesClassName")
    }),
    text("Reason", |o, _| string(o, "/status/reason")),
    AGE_COLUMN,
    wide("VolumeMode", |o, _| unset(o, "/spec/volumeMode")),
];

pub(in crate::registry) const CLAIM: &[Column] = &[
    text("Status", phase),
    text("Volume", |o, _| string(o, "/spec/volumeName")),
    text("Capacity", |o, _| {
        if is_placed(o) {
            string(o, "/status/capacity/storage")
        } else {
            json!("")
        }
    }),
    text("Access Modes", |o, _| {
        if is_placed(o) {
            access_modes(o, "/status/accessModes")
        } else {
            json!("")
        }
    }),
    text("StorageClass", |o, _| storage_class(o)),
    text("VolumeAttributesClass", |o, _| {
        unset(o, "/spec/volumeAttributesClassName")
    }),
    AGE_COLUMN,
    wide("VolumeMode", |o, _| unset(o, "/spec/volumeMode")),
];

pub(in crate::registry) const CLASS: &[Column] = &[
    Column {
        description: NAME_DESCRIPTION,
        ..text("Name", |o, _| {
            let name = scalar(o.pointer("/metadata/name"));
            let mark = if is_default(o) { " (default)" } else { "" };
            json!(name + mark)
        })
    },
    text("Provisioner", |o, _| string(o, "/provisioner")),
    text("ReclaimPolicy", |o, _| string(o, "/reclaimPolicy")),
    text("VolumeBindingMode", |o, _| string(o, "/volumeBindingMode")),
    text("AllowVolumeExpansion", |o, _| {
        flag(o, "/allowVolumeExpansion")
    }),
    AGE_COLUMN,
];

pub(in crate::registry) const ATTRIBUTES_CLASS: &[Column] = &[
    text("DriverName", |o, _| string(o, "/driverName")),
    AGE_COLUMN,
];

pub(in crate::registry) const DRIVER: &[Column] = &[
    typed("AttachRequired", "boolean", |o, _| {
        flag(o, "/spec/attachRequired")
    }),
    typed("PodInfoOnMount", "boolean", |o, _| {
        flag(o, "/spec/podInfoOnMount")
    }),
    typed("StorageCapacity", "boolean", |o, _| {
        flag(o, "/spec/storageCapacity")
    }),
    text("TokenRequests", |o, _| {
        or_unset(list(o, "/spec/tokenRequests", |r| {
            scalar(r.get("audience"))
        }))
    }),
    typed("RequiresRepublish", "boolean", |o, _| {
        flag(o, "/spec/requiresRepublish")
    }),
    text("Modes", |o, _| {
        let modes = list(o, "/spec/volumeLifecycleModes", |m| scalar(Some(m)));
        json!(if modes.is_empty() {
            "<none>".to_owned()
        } else {
            modes
        })
    }),
    AGE_COLUMN,
];

pub(in crate::registry) const NODE: &[Column] = &[
    typed("Drivers", "integer", |o, _| json!(size(o, "/spec/drivers"))),
    AGE_COLUMN,
];

pub(in crate::registry) const CAPACITY: &[Column] = &[
    text("StorageClassName", |o, _| string(o, "/storageClassName")),
    text("Capacity", |o, _| unset(o, "/capacity")),
];

pub(in crate::registry) const ATTACHMENT: &[Column] = &[
    text("Attacher", |o, _| string(o, "/spec/attacher")),
    text("PV", |o, _| string(o, "/spec/source/persistentVolumeName")),
    text("Node", |o, _| string(o, "/spec/nodeName")),
    typed("Attached", "boolean", |o, _| flag(o, "/status/attached")),
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
