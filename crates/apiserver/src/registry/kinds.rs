//! The table of kinds.

mod autoscaling;
mod custom;
mod devices;
mod kind;
mod networking;
mod scheduling;
mod storage;
mod workloads;

use std::sync::LazyLock;

use super::pods;
use super::rules::{self, events};
use super::{Conversion, Field, Generation, NameRule, Review, Subresource, columns, node_ports};
use crate::crd::definition;
pub(super) use custom::compile;
pub(crate) use custom::{CustomVersion, Scale};
pub(crate) use kind::{Kind, KindRef, Version};

const V1: Version = Version {
    name: "v1",
    deprecated: None,
    conversion: None,
    custom: None,
};

/// Defaults of most kinds: namespaced, stored, PUT without resourceVersion allowed.
pub(super) const BASE: Kind = Kind {
    group: "",
    versions: &[V1],
    kind: "",
    plural: "",
    singular: "",
    short: &[],
    categories: &[],
    namespaced: true,
    is_namespace: false,
    storage: "",
    review: None,
    subresources: &[],
    create_on_update: false,
    unconditional_update: true,
    returns_deleted: false,
    orphans: false,
    grants: false,
    graceful: false,
    status_with_metadata: false,
    metered: false,
    generation: Generation::None,
    fields: &[],
    columns: columns::AGE,
    names: NameRule::Subdomain,
    default: rules::nothing_to_default,
    default_intended: None,
    admit: None,
    assign: rules::nothing_to_assign,
    prepare: rules::nothing_to_default,
    validate: rules::nothing_to_check,
    validate_new: rules::nothing_to_check,
    preserve: rules::no_change_to_make,
    validate_update: rules::no_change_to_check,
    check_update: rules::no_change_to_refuse,
    check_delete: rules::no_deletion_to_refuse,
    change_status: rules::no_change_to_make,
    validate_status: rules::nothing_to_check,
    warn: None,
    is_expired: None,
    custom: None,
};

const COORDINATION: &str = "coordination.k8s.io";
const RBAC: &str = "rbac.authorization.k8s.io";
const AUTHORIZATION: &str = "authorization.k8s.io";
const AUTHENTICATION: &str = "authentication.k8s.io";

/// All built-in kinds, in the order of discovery.
pub(super) static KINDS: LazyLock<Vec<&'static Kind>> = LazyLock::new(|| {
    let families = [
        GENERAL,
        storage::KINDS,
        workloads::KINDS,
        devices::KINDS,
        networking::KINDS,
        scheduling::KINDS,
        autoscaling::KINDS,
    ];
    families.into_iter().flatten().collect()
});

static GENERAL: &[Kind] = &[
    Kind {
        kind: "ConfigMap",
        plural: "configmaps",
        singular: "configmap",
        short: &["cm"],
        storage: "/configmaps",
        columns: columns::CONFIG_MAP,
        validate: rules::config::validate_config_map,
        validate_update: rules::config::validate_config_map_update,
        ..BASE
    },
    Kind {
        kind: "Endpoints",
        plural: "endpoints",
        singular: "endpoints",
        short: &["ep"],
        storage: "/endpoints",
        versions: &[Version {
            deprecated: Some(
                "v1 Endpoints is deprecated in v1.33+; use discovery.k8s.io/v1 EndpointSlice",
            ),
            ..V1
        }],
        create_on_update: true,
        columns: columns::ENDPOINTS,
        default: rules::endpoints::default_endpoints,
        validate: rules::endpoints::validate_endpoints,
        ..BASE
    },
    Kind {
        kind: "Event",
        plural: "events",
        singular: "event",
        short: &["ev"],
        storage: "/events",
        create_on_update: true,
        fields: events::CORE_FIELDS,
        columns: columns::EVENT,
        names: NameRule::General,
        default: events::default_event,
        validate: events::validate_core,
        is_expired: Some(super::expiry::is_old),
        ..BASE
    },
    Kind {
        kind: "LimitRange",
        plural: "limitranges",
        singular: "limitrange",
        short: &["limits"],
        storage: "/limitranges",
        create_on_update: true,
        columns: columns::CREATED_AT,
        default: rules::limits::default_range,
        admit: Some(pods::admit_bounded),
        validate: rules::limits::validate_range,
        ..BASE
    },
    Kind {
        kind: "Namespace",
        plural: "namespaces",
        singular: "namespace",
        short: &["ns"],
        storage: "/namespaces",
        namespaced: false,
        is_namespace: true,
        returns_deleted: true,
        subresources: &[Subresource::Finalize, Subresource::Status],
        fields: &[Field::new("status.phase", &["/status/phase"])],
        columns: columns::NAMESPACE,
        names: NameRule::Label,
        default: rules::namespace::default_namespace,
        prepare: rules::namespace::prepare_namespace,
        validate_new: rules::namespace::validate_new_namespace,
        preserve: rules::namespace::preserve_finalizers,
        check_delete: super::namespaces::check_deletion,
        ..BASE
    },
    Kind {
        kind: "Node",
        plural: "nodes",
        singular: "node",
        short: &["no"],
        storage: "/nodes",
        namespaced: false,
        subresources: &[Subresource::Status],
        fields: &[Field::flag("spec.unschedulable", &["/spec/unschedulable"])],
        columns: columns::NODE,
        default: rules::node::default_node,
        prepare: rules::node::prepare_node,
        validate: rules::node::validate_node,
        status_with_metadata: true,
        ..BASE
    },
    Kind {
        kind: "Pod",
        plural: "pods",
        singular: "pod",
        short: &["po"],
        categories: &["all"],
        storage: "/pods",
        returns_deleted: true,
        graceful: true,
        metered: true,
        generation: Generation::Content,
        subresources: &[
            Subresource::Binding,
            Subresource::EphemeralContainers,
            Subresource::Eviction,
            Subresource::Status,
        ],
        fields: rules::pod::FIELDS,
        columns: columns::POD,
        default: rules::pod::default_pod,
        default_intended: Some(rules::pod::default_intended),
        admit: Some(pods::admit),
        warn: Some(rules::warnings::of_pod),
        prepare: rules::pod::prepare_pod,
        validate: rules::pod::validate_pod,
        validate_new: rules::pod::validate_new_pod,
        preserve: pods::preserve_priority,
        validate_update: rules::pod::validate_pod_update,
        ..BASE
    },
    Kind {
        kind: "ResourceQuota",
        plural: "resourcequotas",
        singular: "resourcequota",
        short: &["quota"],
        storage: "/resourcequotas",
        returns_deleted: true,
        subresources: &[Subresource::Status],
        columns: columns::RESOURCE_QUOTA,
        admit: Some(pods::admit_bounded),
        prepare: rules::apps::clear_status,
        validate: rules::quota::validate_quota,
        validate_update: rules::quota::validate_quota_update,
        ..BASE
    },
    Kind {
        kind: "Secret",
        plural: "secrets",
        singular: "secret",
        storage: "/secrets",
        fields: &[Field::new("type", &["/type"])],
        columns: columns::SECRET,
        default: rules::config::default_secret,
        validate: rules::config::validate_secret,
        validate_update: rules::config::validate_secret_update,
        ..BASE
    },
    Kind {
        kind: "ServiceAccount",
        plural: "serviceaccounts",
        singular: "serviceaccount",
        short: &["sa"],
        storage: "/serviceaccounts",
        returns_deleted: true,
        subresources: &[Subresource::Token],
        default: rules::config::default_service_account,
        ..BASE
    },
    Kind {
        kind: "Service",
        plural: "services",
        singular: "service",
        short: &["svc"],
        categories: &["all"],
        storage: "/services",
        metered: true,
        create_on_update: true,
        returns_deleted: true,
        subresources: &[Subresource::Status],
        fields: &[
            Field::new("spec.clusterIP", &["/spec/clusterIP"]),
            Field::new("spec.type", &["/spec/type"]),
        ],
        columns: columns::SERVICE,
        names: NameRule::Label,
        default: rules::service::default_service,
        assign: node_ports::assign,
        default_intended: Some(rules::service::default_meant),
        prepare: rules::service::prepare_service,
        validate: rules::service::validate_service,
        preserve: rules::service::preserve_assigned,
        validate_update: rules::service::validate_service_update,
        ..BASE
    },
    Kind {
        group: crate::crd::GROUP,
        kind: "CustomResourceDefinition",
        plural: crate::crd::PLURAL,
        singular: "customresourcedefinition",
        short: &["crd", "crds"],
        categories: &["api-extensions"],
        storage: "apiextensions.k8s.io/customresourcedefinitions",
        namespaced: false,
        unconditional_update: false,
        returns_deleted: true,
        generation: Generation::Content,
        subresources: &[Subresource::Status],
        columns: columns::DEFINITION,
        default: definition::default_definition,
        prepare: definition::prepare_definition,
        validate: definition::validate_definition,
        preserve: |_, new| definition::note_storage(new),
        validate_update: definition::validate_definition_update,
        ..BASE
    },
    Kind {
        group: COORDINATION,
        kind: "Lease",
        plural: "leases",
        singular: "lease",
        storage: "coordination.k8s.io/leases",
        create_on_update: true,
        unconditional_update: false,
        columns: columns::LEASE,
        validate: rules::lease::validate_lease,
        ..BASE
    },
    Kind {
        group: COORDINATION,
        versions: &[
            Version {
                name: "v1beta1",
                deprecated: Some(
                    "coordination.k8s.io/v1beta1 LeaseCandidate is deprecated in v1.36+, \
                     unavailable in v1.39+",
                ),
                ..V1
            },
            Version {
                name: "v1alpha2",
                deprecated: Some(
                    "coordination.k8s.io/v1alpha2 LeaseCandidate is deprecated; use \
                     coordination.k8s.io/v1beta1 LeaseCandidate",
                ),
                ..V1
            },
        ],
        kind: "LeaseCandidate",
        plural: "leasecandidates",
        singular: "leasecandidate",
        storage: "coordination.k8s.io/leasecandidates",
        create_on_update: true,
        unconditional_update: false,
        columns: columns::LEASE_CANDIDATE,
        names: NameRule::ConfigKey,
        validate: rules::lease::validate_candidate,
        validate_update: rules::lease::validate_candidate_update,
        ..BASE
    },
    Kind {
        group: "discovery.k8s.io",
        kind: "EndpointSlice",
        plural: "endpointslices",
        singular: "endpointslice",
        storage: "discovery.k8s.io/endpointslices",
        generation: Generation::Labels,
        columns: columns::ENDPOINT_SLICE,
        default: rules::endpoints::default_slice,
        validate: rules::endpoints::validate_slice,
        validate_update: rules::endpoints::validate_slice_update,
        ..BASE
    },
    Kind {
        group: "events.k8s.io",
        versions: &[Version {
            conversion: Some(Conversion {
                to_stored: events::to_core,
                from_stored: events::from_core,
            }),
            ..V1
        }],
        kind: "Event",
        plural: "events",
        singular: "event",
        short: &["ev"],
        storage: "/events",
        create_on_update: true,
        fields: events::NEW_FIELDS,
        columns: columns::EVENT,
        default: events::default_event,
        validate: events::validate_either,
        validate_new: events::validate_new,
        validate_update: events::validate_new_update,
        ..BASE
    },
    Kind {
        group: RBAC,
        kind: "ClusterRoleBinding",
        plural: "clusterrolebindings",
        singular: "clusterrolebinding",
        storage: "rbac.authorization.k8s.io/clusterrolebindings",
        namespaced: false,
        create_on_update: true,
        columns: columns::CLUSTER_ROLE_BINDING,
        grants: true,
        names: NameRule::PathSegment,
        default: rules::rbac::default_binding,
        validate: rules::rbac::validate_cluster_binding,
        validate_update: rules::rbac::validate_binding_update,
        ..BASE
    },
    Kind {
        group: RBAC,
        kind: "ClusterRole",
        plural: "clusterroles",
        singular: "clusterrole",
        storage: "rbac.authorization.k8s.io/clusterroles",
        namespaced: false,
        create_on_update: true,
        columns: columns::ROLE,
        grants: true,
        names: NameRule::PathSegment,
        validate: rules::rbac::validate_cluster_role,
        ..BASE
    },
    Kind {
        group: RBAC,
        kind: "RoleBinding",
        plural: "rolebindings",
        singular: "rolebinding",
        storage: "rbac.authorization.k8s.io/rolebindings",
        create_on_update: true,
        columns: columns::ROLE_BINDING,
        grants: true,
        names: NameRule::PathSegment,
        default: rules::rbac::default_binding,
        validate: rules::rbac::validate_binding,
        validate_update: rules::rbac::validate_binding_update,
        ..BASE
    },
    Kind {
        group: RBAC,
        kind: "Role",
        plural: "roles",
        singular: "role",
        storage: "rbac.authorization.k8s.io/roles",
        create_on_update: true,
        columns: columns::ROLE,
        grants: true,
        names: NameRule::PathSegment,
        validate: rules::rbac::validate_role,
        ..BASE
    },
    review(
        AUTHENTICATION,
        "SelfSubjectReview",
        "selfsubjectreviews",
        "selfsubjectreview",
        false,
        Review::SelfSubject,
    ),
    review(
        AUTHENTICATION,
        "TokenReview",
        "tokenreviews",
        "tokenreview",
        false,
        Review::Token,
    ),
    review(
        AUTHORIZATION,
        "LocalSubjectAccessReview",
        "localsubjectaccessreviews",
        "localsubjectaccessreview",
        true,
        Review::Access,
    ),
    review(
        AUTHORIZATION,
        "SelfSubjectAccessReview",
        "selfsubjectaccessreviews",
        "selfsubjectaccessreview",
        false,
        Review::SelfAccess,
    ),
    review(
        AUTHORIZATION,
        "SelfSubjectRulesReview",
        "selfsubjectrulesreviews",
        "selfsubjectrulesreview",
        false,
        Review::SelfRules,
    ),
    review(
        AUTHORIZATION,
        "SubjectAccessReview",
        "subjectaccessreviews",
        "subjectaccessreview",
        false,
        Review::Access,
    ),
];

/// Declares a review: a kind that is answered and not stored.
const fn review(
    group: &'static str,
    kind: &'static str,
    plural: &'static str,
    singular: &'static str,
    namespaced: bool,
    question: Review,
) -> Kind {
    Kind {
        group,
        kind,
        plural,
        singular,
        namespaced,
        review: Some(question),
        storage: "review/none",
        ..BASE
    }
}
