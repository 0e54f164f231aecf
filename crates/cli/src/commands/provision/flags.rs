//! The flags of `tenure provision`, named like those of csi-provisioner.

use std::time::Duration;

use clap::{ArgAction, Args};

use super::old::Old;
use crate::klog::Klog;
use crate::values::{duration, switch};

/// Create volumes with a CSI driver (replaces csi-provisioner)
#[derive(Args, Clone, Debug)]
#[command(args_override_self = true)]
pub(crate) struct Provision {
    /// URL of the API server [default: of the kubeconfig]
    ///
    /// With a kubeconfig it replaces the server and keeps the credentials. Otherwise no credentials are sent.
    #[arg(long, value_name = "URL")]
    pub(super) master: Option<String>,
    /// Unix socket of the CSI driver
    #[arg(long, value_name = "PATH", default_value = "/run/csi/socket")]
    pub(super) csi_address: String,
    /// Timeout of a call to the driver
    #[arg(long, value_name = "D", default_value = "10s", value_parser = duration)]
    pub(super) timeout: Duration,
    /// Prefix of volume names
    #[arg(long, value_name = "TEXT", default_value = "pvc")]
    pub(super) volume_name_prefix: String,
    /// Number of characters of the claim's uid in volume names; -1 uses all
    #[arg(long, value_name = "N", default_value_t = -1, allow_negative_numbers = true, value_parser = clap::value_parser!(i64).range(-1..=32))]
    pub(super) volume_name_uuid_length: i64,
    /// First delay before a retry; doubles each time
    #[arg(long, value_name = "D", default_value = "1s", value_parser = duration)]
    pub(super) retry_interval_start: Duration,
    /// Maximum delay before a retry
    #[arg(long, value_name = "D", default_value = "5m", value_parser = duration)]
    pub(super) retry_interval_max: Duration,
    /// Number of claims, and of volumes, that are processed concurrently
    #[arg(long, value_name = "N", default_value_t = 100)]
    pub(super) worker_threads: u32,
    /// Number of deleted clone sources that are processed concurrently
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(super) cloning_protection_threads: u32,
    /// Interval at which leftover finalizers on snapshots are searched; 0 disables it
    #[arg(long, value_name = "D", default_value = "5m", value_parser = duration)]
    pub(super) snapshot_orphan_sweep_interval: Duration,
    /// Late binding: request only the topology of the selected node
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_value_t = false, default_missing_value = "true", action = ArgAction::Set, value_parser = switch)]
    pub(super) strict_topology: bool,
    /// Immediate binding: request the topology of the whole cluster
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_value_t = true, default_missing_value = "true", action = ArgAction::Set, value_parser = switch)]
    pub(super) immediate_topology: bool,
    /// Send the names of claim and volume to the driver
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_value_t = false, default_missing_value = "true", action = ArgAction::Set, value_parser = switch)]
    pub(super) extra_create_metadata: bool,
    /// File system of volumes whose class does not name one
    #[arg(long, value_name = "FS", default_value = "")]
    pub(super) default_fstype: String,
    /// Publish volumes of claims with read-only access modes as read-only
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_value_t = false, default_missing_value = "true", action = ArgAction::Set, value_parser = switch)]
    pub(super) controller_publish_readonly: bool,
    /// Require permission to restore a snapshot in another volume mode
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_value_t = true, default_missing_value = "true", action = ArgAction::Set, value_parser = switch)]
    pub(super) prevent_volume_mode_conversion: bool,
    /// Feature gates: `Name=true,Other=false`
    ///
    /// Known gates: Topology, VolumeAttributesClass, ReleaseLeaderElectionOnExit and CrossNamespaceVolumeDataSource.
    #[arg(long, value_name = "GATES", default_value = "")]
    pub(super) feature_gates: String,
    /// Requests per second to the API server; Events are counted separately
    #[arg(long, value_name = "N", default_value_t = 5.0)]
    pub(super) kube_api_qps: f64,
    /// Burst of requests to the API server
    #[arg(long, value_name = "N", default_value_t = 10)]
    pub(super) kube_api_burst: u32,
    /// Elect one replica
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_value_t = false, default_missing_value = "true", action = ArgAction::Set, value_parser = switch)]
    pub(super) leader_election: bool,
    /// Namespace [default: of the pod]
    #[arg(long, value_name = "NS", default_value = "")]
    pub(super) leader_election_namespace: String,
    /// Lease duration: time before another replica may take over
    #[arg(long, value_name = "D", default_value = "15s", value_parser = duration)]
    pub(super) leader_election_lease_duration: Duration,
    /// Renew deadline: time after which a leader stops without a renewal
    #[arg(long, value_name = "D", default_value = "10s", value_parser = duration)]
    pub(super) leader_election_renew_deadline: Duration,
    /// Retry period: time between two renewals
    #[arg(long, value_name = "D", default_value = "2s", value_parser = duration)]
    pub(super) leader_election_retry_period: Duration,
    /// Labels of the lock, `key:value,key:value`
    #[arg(long, value_name = "LABELS", default_value = "")]
    pub(super) leader_election_labels: String,
    /// Address of metrics and health, for example `:8080`
    #[arg(long, value_name = "ADDR", default_value = "")]
    pub(super) http_endpoint: String,
    /// Path of the metrics
    #[arg(long, value_name = "PATH", default_value = "/metrics")]
    pub(super) metrics_path: String,
    /// Keep a claim until its volume object exists, so that a crash leaks no storage
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_value_t = false, default_missing_value = "true", action = ArgAction::Set, value_parser = switch)]
    pub(super) provision_journal: bool,
    /// Annotate volumes with the fencing token of the term
    ///
    /// The annotation is tenure.dev/fencing-token.
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_value_t = false, default_missing_value = "true", action = ArgAction::Set, value_parser = switch)]
    pub(super) fencing_token_annotation: bool,
    /// Watch while another replica leads, for a faster take-over
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_value_t = false, default_missing_value = "true", action = ArgAction::Set, value_parser = switch)]
    pub(super) warm_standby: bool,
    /// Publish the capacity
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_value_t = false, default_missing_value = "true", action = ArgAction::Set, value_parser = switch)]
    pub(super) enable_capacity: bool,
    #[command(flatten)]
    pub(super) capacity: CapacityFlags,
    /// Run on every node, for that node only
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_value_t = false, default_missing_value = "true", action = ArgAction::Set, value_parser = switch)]
    pub(super) node_deployment: bool,
    #[command(flatten)]
    pub(super) nodes: NodeFlags,
    /// Log level: 4 decisions, 5 calls to the driver
    #[arg(
        long = "v",
        value_name = "N",
        default_value_t = 0,
        allow_negative_numbers = true
    )]
    pub(super) verbosity: i32,
    /// Log format: text or json
    #[arg(long, value_name = "FORMAT", default_value = "text", value_parser = ["text", "json"])]
    pub(super) logging_format: String,
    #[command(flatten)]
    pub(super) old: Old,
    #[command(flatten)]
    pub(super) klog: Klog,
}

/// Details of `--enable-capacity`.
#[derive(Args, Clone, Debug)]
pub(super) struct CapacityFlags {
    /// Number of segments and classes that are queried concurrently
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(super) capacity_threads: u32,
    /// Interval at which the driver is queried for its capacity
    #[arg(long, value_name = "D", default_value = "1m", value_parser = duration)]
    pub(super) capacity_poll_interval: Duration,
    /// Also publish capacity for classes with immediate binding
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_value_t = false, default_missing_value = "true", action = ArgAction::Set, value_parser = switch)]
    pub(super) capacity_for_immediate_binding: bool,
    /// Owner of the objects: -1 none, 0 the pod, 1 its owner, 2 the owner of that
    ///
    /// Level 1 is a StatefulSet or DaemonSet, level 2 a Deployment.
    #[arg(long, value_name = "N", default_value_t = 1, allow_negative_numbers = true, value_parser = clap::value_parser!(i64).range(-1..=8))]
    pub(super) capacity_ownerref_level: i64,
    /// Requests per second to the API server about capacity
    #[arg(long, value_name = "N", default_value_t = 1.0)]
    pub(super) kube_api_capacity_qps: f64,
    /// Burst of requests to the API server about capacity
    #[arg(long, value_name = "N", default_value_t = 5)]
    pub(super) kube_api_capacity_burst: u32,
}

/// Details of `--node-deployment`.
#[derive(Args, Clone, Debug)]
pub(super) struct NodeFlags {
    /// Distribute the claims that no scheduler assigns to a node
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_value_t = true, default_missing_value = "true", action = ArgAction::Set, value_parser = switch)]
    pub(super) node_deployment_immediate_binding: bool,
    /// Maximum random delay before a node takes such a claim
    #[arg(long, value_name = "D", default_value = "20s", value_parser = duration)]
    pub(super) node_deployment_base_delay: Duration,
    /// Upper limit of that delay
    #[arg(long, value_name = "D", default_value = "60s", value_parser = duration)]
    pub(super) node_deployment_max_delay: Duration,
}
