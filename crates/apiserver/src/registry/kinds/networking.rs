//! The group `networking.k8s.io`. This server stores these kinds; controllers and network plugins act on them.

use super::{BASE, Kind};
use crate::registry::columns::networking as columns;
use crate::registry::rules::networking;
use crate::registry::{Generation, Subresource};

/// Settings that the kinds of the group share.
const NETWORKING: Kind = Kind {
    group: "networking.k8s.io",
    generation: Generation::Content,
    ..BASE
};

pub(super) static KINDS: &[Kind] = &[
    Kind {
        kind: "IngressClass",
        plural: "ingressclasses",
        singular: "ingressclass",
        storage: "networking.k8s.io/ingressclasses",
        namespaced: false,
        columns: columns::INGRESS_CLASS,
        default: networking::default_class,
        validate: networking::validate_class,
        validate_update: networking::validate_class_update,
        ..NETWORKING
    },
    Kind {
        kind: "Ingress",
        plural: "ingresses",
        singular: "ingress",
        short: &["ing"],
        storage: "networking.k8s.io/ingresses",
        subresources: &[Subresource::Status],
        columns: columns::INGRESS,
        admit: Some(crate::registry::ingresses::admit),
        prepare: networking::prepare_ingress,
        validate: networking::validate_ingress,
        validate_new: networking::validate_new_ingress,
        validate_status: networking::validate_ingress_status,
        ..NETWORKING
    },
    Kind {
        kind: "NetworkPolicy",
        plural: "networkpolicies",
        singular: "networkpolicy",
        short: &["netpol"],
        storage: "networking.k8s.io/networkpolicies",
        columns: columns::POLICY,
        default: networking::default_policy,
        validate: networking::validate_policy,
        ..NETWORKING
    },
];
