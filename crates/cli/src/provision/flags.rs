//! The flags of `tenure provision`, named like those of csi-provisioner.

use std::time::Duration;

use clap::{ArgAction, Args};

use super::old::Old;
use crate::klog::Klog;
use crate::values::{duration, switch};

/// Make volumes for claims with a CSI driver (drop-in for csi-provisioner)
#[derive(Args, Clone, Debug)]
#[command(args_override_self = true)]
pub(crate) struct Provision {
    /// URL of the API server: with a kubeconfig it replaces the server and keeps the credentials, without one
    /// no credentials are sent
    #[arg(long, value_name = "URL")]
    pub(super) master: Option<String>,
    /// The unix socket of the CSI driver
    #[arg(long, default_value = "/run/csi/socket")]
    pub(super) csi_address: String,
    /// How long a call to the driver may take
    #[arg(long, default_value = "10s", value_parser = duration)]
    pub(super) timeout: Duration,
    /// First part of the names of volumes
    #[arg(long, default_value = "pvc")]
    pub(super) volume_name_prefix: String,
    /// How many characters of the claim's uid the names of volumes end in; -1 means all, with dashes
    #[arg(long, default_value_t = -1, allow_negative_numbers = true, value_parser = clap::value_parser!(i64).range(-1..=32))]
    pub(super) volume_name_uuid_length: i64,
    /// First pause before a failed claim or volume is tried again; doubles each time
    #[arg(long, default_value = "1s", value_parser = duration)]
    pub(super) retry_interval_start: Duration,
    /// Longest pause between two tries
    #[arg(long, default_value = "5m", value_parser = duration)]
    pub(super) retry_interval_max: Duration,
    /// How many claims, and how many volumes, are worked on at a time
    #[arg(long, default_value_t = 100)]
    pub(super) worker_threads: u32,
    /// How many deleted sources of clones are worked on at a time
    #[arg(long, default_value_t = 1)]
    pub(super) cloning_protection_threads: u32,
    /// How often finalizers that were left on snapshots are looked for; 0 means never
    #[arg(long, default_value = "5m", value_parser = duration)]
    pub(super) snapshot_orphan_sweep_interval: Duration,
    /// Late binding: ask for the topology of the selected node only
    #[arg(long, num_args = 0..=1, require_equals = true, default_value_t = false, default_missing_value = "true", action = ArgAction::Set, value_parser = switch)]
    pub(super) strict_topology: bool,
    /// Immediate binding: ask for the topology of the whole cluster
    #[arg(long, num_args = 0..=1, require_equals = true, default_value_t = true, default_missing_value = "true", action = ArgAction::Set, value_parser = switch)]
    pub(super) immediate_topology: bool,
    /// Tell the driver the names of claim and volume
    #[arg(long, num_args = 0..=1, require_equals = true, default_value_t = false, default_missing_value = "true", action = ArgAction::Set, value_parser = switch)]
    pub(super) extra_create_metadata: bool,
    /// File system of volumes whose class names none
    #[arg(long, default_value = "")]
    pub(super) default_fstype: String,
    /// Mark volumes that can only be read as read-only
    #[arg(long, num_args = 0..=1, require_equals = true, default_value_t = false, default_missing_value = "true", action = ArgAction::Set, value_parser = switch)]
    pub(super) controller_publish_readonly: bool,
    /// A snapshot may not be restored in another volume mode without permission
    #[arg(long, num_args = 0..=1, require_equals = true, default_value_t = true, default_missing_value = "true", action = ArgAction::Set, value_parser = switch)]
    pub(super) prevent_volume_mode_conversion: bool,
    /// Switches, `Name=true,Other=false`: Topology, VolumeAttributesClass, ReleaseLeaderElectionOnExit,
    /// CrossNamespaceVolumeDataSource
    #[arg(long, default_value = "")]
    pub(super) feature_gates: String,
    /// Requests to the API server per second; events are counted apart
    #[arg(long, default_value_t = 5.0)]
    pub(super) kube_api_qps: f64,
    /// Requests to the API server at once
    #[arg(long, default_value_t = 10)]
    pub(super) kube_api_burst: u32,
    /// Only the leader of all replicas provisions
    #[arg(long, num_args = 0..=1, require_equals = true, default_value_t = false, default_missing_value = "true", action = ArgAction::Set, value_parser = switch)]
    pub(super) leader_election: bool,
    /// Namespace of the lock; by default that of the pod
    #[arg(long, default_value = "")]
    pub(super) leader_election_namespace: String,
    /// Others wait this long after the last renewal they saw
    #[arg(long, default_value = "15s", value_parser = duration)]
    pub(super) leader_election_lease_duration: Duration,
    /// A leader that could not renew gives up after this time
    #[arg(long, default_value = "10s", value_parser = duration)]
    pub(super) leader_election_renew_deadline: Duration,
    /// A leader renews this often
    #[arg(long, default_value = "2s", value_parser = duration)]
    pub(super) leader_election_retry_period: Duration,
    /// Labels of the lock, `key:value,key:value`
    #[arg(long, default_value = "")]
    pub(super) leader_election_labels: String,
    /// Where to serve metrics and health, `:8080`
    #[arg(long, default_value = "")]
    pub(super) http_endpoint: String,
    /// Path of the metrics
    #[arg(long, default_value = "/metrics")]
    pub(super) metrics_path: String,
    /// Keep claims until nothing can be lost even if this process dies
    #[arg(long, num_args = 0..=1, require_equals = true, default_value_t = false, default_missing_value = "true", action = ArgAction::Set, value_parser = switch)]
    pub(super) provision_journal: bool,
    /// Put the fencing token of the term on volumes, as annotation tenure.dev/fencing-token
    #[arg(long, num_args = 0..=1, require_equals = true, default_value_t = false, default_missing_value = "true", action = ArgAction::Set, value_parser = switch)]
    pub(super) fencing_token_annotation: bool,
    /// Watch while others lead, to be quick when it is our turn
    #[arg(long, num_args = 0..=1, require_equals = true, default_value_t = false, default_missing_value = "true", action = ArgAction::Set, value_parser = switch)]
    pub(super) warm_standby: bool,
    /// Publish how much room there is, for the scheduler
    #[arg(long, num_args = 0..=1, require_equals = true, default_value_t = false, default_missing_value = "true", action = ArgAction::Set, value_parser = switch)]
    pub(super) enable_capacity: bool,
    #[command(flatten)]
    pub(super) capacity: CapacityFlags,
    /// Run on every node, for that node only
    #[arg(long, num_args = 0..=1, require_equals = true, default_value_t = false, default_missing_value = "true", action = ArgAction::Set, value_parser = switch)]
    pub(super) node_deployment: bool,
    #[command(flatten)]
    pub(super) nodes: NodeFlags,
    /// How much is logged: 4 shows decisions, 5 every call to the driver
    #[arg(long = "v", default_value_t = 0, allow_negative_numbers = true)]
    pub(super) verbosity: i32,
    /// text or json
    #[arg(long, default_value = "text", value_parser = ["text", "json"])]
    pub(super) logging_format: String,
    #[command(flatten)]
    pub(super) old: Old,
    #[command(flatten)]
    pub(super) klog: Klog,
}

/// More about `--enable-capacity`.
#[derive(Args, Clone, Debug)]
pub(super) struct CapacityFlags {
    /// How many segments and classes are asked about at a time
    #[arg(long, default_value_t = 1)]
    pub(super) capacity_threads: u32,
    /// How often the driver is asked how much room there is
    #[arg(long, default_value = "1m", value_parser = duration)]
    pub(super) capacity_poll_interval: Duration,
    /// Also for classes with immediate binding
    #[arg(long, num_args = 0..=1, require_equals = true, default_value_t = false, default_missing_value = "true", action = ArgAction::Set, value_parser = switch)]
    pub(super) capacity_for_immediate_binding: bool,
    /// Who owns the objects: -1 nobody, 0 the pod, 1 its StatefulSet or DaemonSet, 2 its Deployment
    #[arg(long, default_value_t = 1, allow_negative_numbers = true, value_parser = clap::value_parser!(i64).range(-1..=8))]
    pub(super) capacity_ownerref_level: i64,
    /// Requests per second to the API server about capacity
    #[arg(long, default_value_t = 1.0)]
    pub(super) kube_api_capacity_qps: f64,
    /// Requests at once to the API server about capacity
    #[arg(long, default_value_t = 5)]
    pub(super) kube_api_capacity_burst: u32,
}

/// More about `--node-deployment`.
#[derive(Args, Clone, Debug)]
pub(super) struct NodeFlags {
    /// Share out the claims that no scheduler gives to a node
    #[arg(long, num_args = 0..=1, require_equals = true, default_value_t = true, default_missing_value = "true", action = ArgAction::Set, value_parser = switch)]
    pub(super) node_deployment_immediate_binding: bool,
    /// Each node waits for a random part of this before it takes such a claim
    #[arg(long, default_value = "20s", value_parser = duration)]
    pub(super) node_deployment_base_delay: Duration,
    /// And never longer than this
    #[arg(long, default_value = "60s", value_parser = duration)]
    pub(super) node_deployment_max_delay: Duration,
}
