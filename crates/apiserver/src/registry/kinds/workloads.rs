//! Workloads and disruption budgets: the groups `apps`, `batch` and `policy`, replication controllers and pod templates. This server
//! creates no pods from them; schedulers and controllers read these kinds.

use super::{BASE, Kind};
use crate::registry::columns::workloads as columns;
use crate::registry::rules::{apps, batch, policy, templates, warnings};
use crate::registry::{Field, Generation, NameRule, Subresource};

/// Settings that these kinds share.
const WORKLOAD: Kind = Kind {
    categories: &["all"],
    generation: Generation::Content,
    subresources: &[Subresource::Status],
    prepare: apps::clear_status,
    warn: Some(warnings::of_workload),
    ..BASE
};

const SCALED: &[Subresource] = &[Subresource::Scale, Subresource::Status];

const REPLICAS: &[Field] = &[Field {
    absent: "0",
    ..Field::new("status.replicas", &["/status/replicas"])
}];

pub(super) static KINDS: &[Kind] = &[
    Kind {
        kind: "ReplicationController",
        plural: "replicationcontrollers",
        singular: "replicationcontroller",
        short: &["rc"],
        storage: "/replicationcontrollers",
        subresources: SCALED,
        orphans: true,
        fields: REPLICAS,
        columns: columns::REPLICATION_CONTROLLER,
        default: apps::default_replication_controller,
        prepare: apps::prepare_replicas,
        validate: apps::validate_replication_controller,
        ..WORKLOAD
    },
    Kind {
        kind: "PodTemplate",
        plural: "podtemplates",
        singular: "podtemplate",
        storage: "/podtemplates",
        returns_deleted: true,
        generation: Generation::Content,
        columns: columns::POD_TEMPLATE,
        default: templates::default_template,
        validate: templates::validate_template,
        ..BASE
    },
    Kind {
        group: "apps",
        kind: "ControllerRevision",
        plural: "controllerrevisions",
        singular: "controllerrevision",
        storage: "apps/controllerrevisions",
        columns: columns::CONTROLLER_REVISION,
        validate: templates::validate_revision,
        validate_new: templates::validate_new_revision,
        validate_update: templates::validate_revision_update,
        ..BASE
    },
    Kind {
        group: "apps",
        kind: "DaemonSet",
        plural: "daemonsets",
        singular: "daemonset",
        short: &["ds"],
        storage: "apps/daemonsets",
        columns: columns::DAEMON_SET,
        default: apps::default_daemon_set,
        prepare: apps::prepare_daemon_set,
        validate: apps::validate_daemon_set,
        validate_update: apps::validate_selector_update,
        ..WORKLOAD
    },
    Kind {
        group: "apps",
        kind: "Deployment",
        plural: "deployments",
        singular: "deployment",
        short: &["deploy"],
        storage: "apps/deployments",
        generation: Generation::Annotations,
        subresources: SCALED,
        columns: columns::DEPLOYMENT,
        default: apps::default_deployment,
        validate: apps::validate_deployment,
        validate_update: apps::validate_selector_update,
        ..WORKLOAD
    },
    Kind {
        group: "apps",
        kind: "ReplicaSet",
        plural: "replicasets",
        singular: "replicaset",
        short: &["rs"],
        storage: "apps/replicasets",
        subresources: SCALED,
        fields: REPLICAS,
        columns: columns::REPLICA_SET,
        default: apps::default_replica_set,
        prepare: apps::prepare_replicas,
        validate: apps::validate_replica_set,
        validate_update: apps::validate_selector_update,
        ..WORKLOAD
    },
    Kind {
        group: "apps",
        kind: "StatefulSet",
        plural: "statefulsets",
        singular: "statefulset",
        short: &["sts"],
        storage: "apps/statefulsets",
        subresources: SCALED,
        columns: columns::STATEFUL_SET,
        names: NameRule::Label,
        default: apps::default_stateful_set,
        prepare: apps::prepare_stateful_set,
        validate: apps::validate_stateful_set,
        validate_new: apps::validate_new_stateful_set,
        validate_update: apps::validate_stateful_set_update,
        ..WORKLOAD
    },
    Kind {
        group: "batch",
        kind: "CronJob",
        plural: "cronjobs",
        singular: "cronjob",
        short: &["cj"],
        storage: "batch/cronjobs",
        columns: columns::CRON_JOB,
        default: batch::default_cron_job,
        warn: Some(warnings::of_cron_job),
        validate: batch::validate_cron_job,
        ..WORKLOAD
    },
    Kind {
        group: "batch",
        kind: "Job",
        plural: "jobs",
        singular: "job",
        storage: "batch/jobs",
        orphans: true,
        fields: &[Field {
            absent: "0",
            ..Field::new("status.successful", &["/status/succeeded"])
        }],
        columns: columns::JOB,
        default: batch::default_job,
        prepare: batch::prepare_job,
        validate: batch::validate_job,
        validate_update: batch::validate_job_update,
        ..WORKLOAD
    },
    Kind {
        group: "policy",
        kind: "PodDisruptionBudget",
        plural: "poddisruptionbudgets",
        singular: "poddisruptionbudget",
        short: &["pdb"],
        categories: &[],
        storage: "policy/poddisruptionbudgets",
        names: NameRule::General,
        unconditional_update: false,
        columns: columns::BUDGET,
        prepare: policy::prepare_budget,
        warn: None,
        validate: policy::validate_budget,
        ..WORKLOAD
    },
];
