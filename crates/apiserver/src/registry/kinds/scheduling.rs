//! Classes that a new pod refers to: priorities, and runtimes of containers.

use super::{BASE, Kind};
use crate::registry::columns;
use crate::registry::rules::scheduling;
use crate::registry::{Generation, pods};

pub(super) static KINDS: &[Kind] = &[
    Kind {
        group: "node.k8s.io",
        kind: "RuntimeClass",
        plural: "runtimeclasses",
        singular: "runtimeclass",
        storage: "node.k8s.io/runtimeclasses",
        namespaced: false,
        create_on_update: true,
        unconditional_update: false,
        columns: columns::RUNTIME_CLASS,
        validate: scheduling::validate_runtime_class,
        validate_update: scheduling::validate_runtime_class_update,
        ..BASE
    },
    Kind {
        group: "scheduling.k8s.io",
        kind: "PriorityClass",
        plural: "priorityclasses",
        singular: "priorityclass",
        short: &["pc"],
        storage: "scheduling.k8s.io/priorityclasses",
        namespaced: false,
        generation: Generation::First,
        columns: columns::PRIORITY_CLASS,
        default: scheduling::default_priority_class,
        admit: Some(pods::admit_priority_class),
        validate: scheduling::validate_priority_class,
        validate_update: scheduling::validate_priority_class_update,
        check_update: pods::check_priority_class,
        check_delete: pods::check_priority_class_deletion,
        ..BASE
    },
];
