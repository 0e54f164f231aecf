//! Options of a provisioner, with the defaults of csi-provisioner.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use kube::Client;
use tenure::LockKind;

use crate::names;

/// Options of a provisioner. Each field corresponds to a flag of `tenure provision`.
#[derive(Clone, Debug)]
pub struct Options {
    /// `--csi-address`: address of the driver's socket.
    pub csi_address: String,
    /// `--timeout`: timeout of each call to the driver.
    pub timeout: Duration,
    /// `--volume-name-prefix`
    pub volume_name_prefix: String,
    /// `--volume-name-uuid-length`: number of characters of the uid, without dashes; the whole uid by default.
    pub volume_name_uuid_length: Option<usize>,
    /// `--retry-interval-start`
    pub retry_interval_start: Duration,
    /// `--retry-interval-max`
    pub retry_interval_max: Duration,
    /// `--worker-threads`: number of claims, and of volumes, that are processed concurrently.
    pub worker_threads: usize,
    /// `--cloning-protection-threads`
    pub cloning_protection_threads: usize,
    /// `--snapshot-orphan-sweep-interval`; zero disables the sweep.
    pub snapshot_orphan_sweep_interval: Duration,
    /// `--strict-topology`
    pub strict_topology: bool,
    /// `--immediate-topology`
    pub immediate_topology: bool,
    /// `--extra-create-metadata`
    pub extra_create_metadata: bool,
    /// `--default-fstype`
    pub default_fstype: String,
    /// `--controller-publish-readonly`
    pub controller_publish_readonly: bool,
    /// `--prevent-volume-mode-conversion`
    pub prevent_volume_mode_conversion: bool,
    /// `--kube-api-qps`
    pub kube_api_qps: f64,
    /// `--kube-api-burst`
    pub kube_api_burst: u32,
    /// Feature gate `Topology`.
    pub topology: bool,
    /// Feature gate `VolumeAttributesClass`; by default enabled if the API server serves the kind.
    pub volume_attributes_class: Option<bool>,
    /// Feature gate `CrossNamespaceVolumeDataSource`.
    pub cross_namespace: bool,
    /// `--provision-journal`: a finalizer keeps a claim while its volume may exist without a volume object.
    pub provision_journal: bool,
    /// `--fencing-token-annotation`: annotates volumes with the token of the term that created them.
    pub fencing_token_annotation: bool,
    /// `--warm-standby`: keeps caches filled while another replica leads, for a faster take-over.
    pub warm_standby: bool,
    /// `--enable-capacity`
    pub capacity: Option<Capacity>,
    /// `--node-deployment`
    pub node_deployment: Option<NodeDeployment>,
    /// `--leader-election`
    pub election: Option<Election>,
    /// `--http-endpoint`
    pub http: Option<Http>,
}

/// Options for CSIStorageCapacity objects.
#[derive(Clone, Debug)]
pub struct Capacity {
    /// `NAMESPACE`: namespace of the objects.
    pub namespace: String,
    /// `POD_NAME`: the pod from which the owner is searched.
    pub pod: String,
    /// `--capacity-ownerref-level`: number of controllers between the pod and the owner; without it, no owner.
    pub owner_level: Option<u32>,
    /// `--capacity-threads`
    pub threads: usize,
    /// `--capacity-poll-interval`
    pub poll_interval: Duration,
    /// `--capacity-for-immediate-binding`
    pub immediate: bool,
    /// `--kube-api-capacity-qps`
    pub kube_api_qps: f64,
    /// `--kube-api-capacity-burst`
    pub kube_api_burst: u32,
}

/// Options for one provisioner per node.
#[derive(Clone, Debug)]
pub struct NodeDeployment {
    /// `NODE_NAME`
    pub node: String,
    /// `--node-deployment-immediate-binding`
    pub immediate_binding: bool,
    /// `--node-deployment-base-delay`
    pub base_delay: Duration,
    /// `--node-deployment-max-delay`
    pub max_delay: Duration,
}

/// Options of the election among the replicas.
#[derive(Clone, Debug)]
pub struct Election {
    /// `--leader-election-type`
    pub kind: LockKind,
    /// `--leader-election-namespace`
    pub namespace: String,
    /// `--leader-election-lease-duration`
    pub lease_duration: Duration,
    /// `--leader-election-renew-deadline`
    pub renew_deadline: Duration,
    /// `--leader-election-retry-period`
    pub retry_period: Duration,
    /// `--leader-election-labels`
    pub labels: BTreeMap<String, String>,
    /// Feature gate `ReleaseLeaderElectionOnExit`
    pub release_on_exit: bool,
    /// Called before this candidate joins the election.
    pub at_start: Option<AtStart>,
}

/// A function that is called before the election, with a client and the name of the lock, which is known only
/// when the driver has answered.
#[derive(Clone)]
pub struct AtStart(Arc<Call>);

type Call = dyn Fn(Client, &str) + Send + Sync;

impl AtStart {
    /// The election waits for the function, so it should return immediately.
    pub fn new(call: impl Fn(Client, &str) + Send + Sync + 'static) -> Self {
        Self(Arc::new(call))
    }

    pub(crate) fn call(&self, client: Client, lock: &str) {
        (self.0)(client, lock);
    }
}

impl fmt::Debug for AtStart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("AtStart")
    }
}

/// Options of the HTTP server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Http {
    /// `host:port`
    pub address: String,
    /// `--metrics-path`
    pub metrics_path: String,
    /// Whether `/healthz/leader-election` is served.
    pub leader_health: bool,
    /// `--enable-pprof`: whether `/debug/pprof` explains how to get a profile.
    pub pprof: bool,
}

impl Options {
    /// Returns the name of a claim's volume.
    pub(crate) fn volume_name(&self, uid: &str) -> Result<String, String> {
        names::volume_name(&self.volume_name_prefix, self.volume_name_uuid_length, uid)
    }
}

impl Default for Options {
    fn default() -> Self {
        Self {
            csi_address: "/run/csi/socket".to_owned(),
            timeout: Duration::from_secs(10),
            volume_name_prefix: "pvc".to_owned(),
            volume_name_uuid_length: None,
            retry_interval_start: Duration::from_secs(1),
            retry_interval_max: Duration::from_secs(300),
            worker_threads: 100,
            cloning_protection_threads: 1,
            snapshot_orphan_sweep_interval: Duration::from_secs(300),
            strict_topology: false,
            immediate_topology: true,
            extra_create_metadata: false,
            default_fstype: String::new(),
            controller_publish_readonly: false,
            prevent_volume_mode_conversion: true,
            kube_api_qps: 5.0,
            kube_api_burst: 10,
            topology: true,
            volume_attributes_class: None,
            cross_namespace: false,
            provision_journal: false,
            fencing_token_annotation: false,
            warm_standby: false,
            capacity: None,
            node_deployment: None,
            election: None,
            http: None,
        }
    }
}
