//! Devices that pods claim: the group `resource.k8s.io`. A scheduler allocates them, not this server.

use super::{BASE, Kind};
use crate::registry::columns::workloads as columns;
use crate::registry::rules::{apps, resource};
use crate::registry::{Field, Generation, Subresource};

/// Settings that the kinds of the group share.
const DEVICE: Kind = Kind {
    group: "resource.k8s.io",
    returns_deleted: true,
    ..BASE
};

pub(super) static KINDS: &[Kind] = &[
    Kind {
        kind: "DeviceClass",
        plural: "deviceclasses",
        singular: "deviceclass",
        storage: "resource.k8s.io/deviceclasses",
        namespaced: false,
        generation: Generation::Content,
        validate: resource::validate_class,
        ..DEVICE
    },
    Kind {
        kind: "ResourceClaim",
        plural: "resourceclaims",
        singular: "resourceclaim",
        storage: "resource.k8s.io/resourceclaims",
        subresources: &[Subresource::Status],
        columns: columns::RESOURCE_CLAIM,
        default: resource::default_claim,
        prepare: apps::clear_status,
        validate: resource::validate_claim,
        validate_update: resource::validate_spec_update,
        ..DEVICE
    },
    Kind {
        kind: "ResourceClaimTemplate",
        plural: "resourceclaimtemplates",
        singular: "resourceclaimtemplate",
        storage: "resource.k8s.io/resourceclaimtemplates",
        default: resource::default_claim_template,
        validate: resource::validate_claim_template,
        validate_update: resource::validate_template_update,
        ..DEVICE
    },
    Kind {
        kind: "ResourceSlice",
        plural: "resourceslices",
        singular: "resourceslice",
        storage: "resource.k8s.io/resourceslices",
        namespaced: false,
        generation: Generation::Content,
        fields: &[
            Field::new("spec.driver", &["/spec/driver"]),
            Field::new("spec.nodeName", &["/spec/nodeName"]),
        ],
        columns: columns::RESOURCE_SLICE,
        validate: resource::validate_slice,
        validate_update: resource::validate_slice_update,
        ..DEVICE
    },
];
