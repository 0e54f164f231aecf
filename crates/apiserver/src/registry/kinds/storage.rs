//! Volumes, claims, and the group `storage.k8s.io`.

use super::{BASE, Kind};
use crate::registry::claims;
use crate::registry::columns::storage as columns;
use crate::registry::rules::{storage, volume, warnings};
use crate::registry::{Generation, Subresource};

const GROUP: &str = "storage.k8s.io";

/// Settings that the kinds of the group share.
const CLUSTER: Kind = Kind {
    group: GROUP,
    namespaced: false,
    returns_deleted: true,
    ..BASE
};

pub(super) static KINDS: &[Kind] = &[
    Kind {
        kind: "PersistentVolume",
        plural: "persistentvolumes",
        singular: "persistentvolume",
        short: &["pv"],
        storage: "/persistentvolumes",
        namespaced: false,
        returns_deleted: true,
        subresources: &[Subresource::Status],
        columns: columns::VOLUME,
        default: volume::default_volume,
        warn: Some(warnings::of_volume),
        prepare: volume::prepare_volume,
        change_status: volume::change_volume_status,
        validate: volume::validate_volume,
        validate_update: volume::validate_volume_update,
        ..BASE
    },
    Kind {
        kind: "PersistentVolumeClaim",
        plural: "persistentvolumeclaims",
        singular: "persistentvolumeclaim",
        short: &["pvc"],
        storage: "/persistentvolumeclaims",
        metered: true,
        returns_deleted: true,
        subresources: &[Subresource::Status],
        columns: columns::CLAIM,
        default: volume::default_claim,
        default_intended: Some(volume::default_meant),
        admit: Some(claims::admit),
        prepare: volume::prepare_claim,
        validate: volume::validate_claim,
        validate_update: volume::validate_claim_update,
        check_update: claims::check_resize,
        validate_status: volume::validate_claim_status,
        ..BASE
    },
    Kind {
        kind: "CSIDriver",
        plural: "csidrivers",
        singular: "csidriver",
        storage: "storage.k8s.io/csidrivers",
        unconditional_update: false,
        generation: Generation::Changes,
        columns: columns::DRIVER,
        default: storage::default_driver,
        validate: storage::validate_driver,
        validate_update: storage::validate_driver_update,
        ..CLUSTER
    },
    Kind {
        kind: "CSINode",
        plural: "csinodes",
        singular: "csinode",
        storage: "storage.k8s.io/csinodes",
        unconditional_update: false,
        columns: columns::NODE,
        validate: storage::validate_node,
        validate_update: storage::validate_node_update,
        ..CLUSTER
    },
    Kind {
        kind: "CSIStorageCapacity",
        plural: "csistoragecapacities",
        singular: "csistoragecapacity",
        storage: "storage.k8s.io/csistoragecapacities",
        namespaced: true,
        returns_deleted: false,
        unconditional_update: false,
        columns: columns::CAPACITY,
        validate: storage::validate_capacity,
        validate_update: storage::validate_capacity_update,
        ..CLUSTER
    },
    Kind {
        kind: "StorageClass",
        plural: "storageclasses",
        singular: "storageclass",
        short: &["sc"],
        storage: "storage.k8s.io/storageclasses",
        columns: columns::CLASS,
        default: storage::default_class,
        validate: storage::validate_class,
        validate_update: storage::validate_class_update,
        ..CLUSTER
    },
    Kind {
        kind: "VolumeAttachment",
        plural: "volumeattachments",
        singular: "volumeattachment",
        storage: "storage.k8s.io/volumeattachments",
        unconditional_update: false,
        subresources: &[Subresource::Status],
        columns: columns::ATTACHMENT,
        prepare: storage::prepare_attachment,
        validate: storage::validate_attachment,
        validate_update: storage::validate_attachment_update,
        validate_status: storage::validate_attachment_status,
        ..CLUSTER
    },
    Kind {
        kind: "VolumeAttributesClass",
        plural: "volumeattributesclasses",
        singular: "volumeattributesclass",
        short: &["vac"],
        storage: "storage.k8s.io/volumeattributesclasses",
        columns: columns::ATTRIBUTES_CLASS,
        validate: storage::validate_attributes_class,
        validate_update: storage::validate_attributes_class_update,
        ..CLUSTER
    },
];
