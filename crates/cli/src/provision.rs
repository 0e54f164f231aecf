//! `tenure provision`, also when called as `csi-provisioner`: the flags of the CSI external-provisioner.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::{ArgAction, Args};
use tenure::LockKind;
use tenure_provisioner::{Capacity, Election, Http, NodeDeployment, Options};
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;

use crate::connect::Connect;
use crate::signals::Signals;
use crate::values::{duration, switch};

const NAMESPACE_FILE: &str = "/var/run/secrets/kubernetes.io/serviceaccount/namespace";

/// Make volumes for claims with a CSI driver (drop-in for csi-provisioner)
#[derive(Args, Clone, Debug)]
#[command(args_override_self = true)]
pub(crate) struct Provision {
    /// URL of the API server, instead of the one in the kubeconfig
    #[arg(long, value_name = "URL")]
    master: Option<String>,
    /// The unix socket of the CSI driver
    #[arg(long, default_value = "/run/csi/socket")]
    csi_address: String,
    /// How long a call to the driver may take
    #[arg(long, default_value = "10s", value_parser = duration)]
    timeout: Duration,
    /// First part of the names of volumes
    #[arg(long, default_value = "pvc")]
    volume_name_prefix: String,
    /// How many characters of the claim's uid the names of volumes end in; -1 means all, with dashes
    #[arg(long, default_value_t = -1, allow_negative_numbers = true, value_parser = clap::value_parser!(i64).range(-1..=32))]
    volume_name_uuid_length: i64,
    /// First pause before a failed claim or volume is tried again; doubles each time
    #[arg(long, default_value = "1s", value_parser = duration)]
    retry_interval_start: Duration,
    /// Longest pause between two tries
    #[arg(long, default_value = "5m", value_parser = duration)]
    retry_interval_max: Duration,
    /// How many claims, and how many volumes, are worked on at a time
    #[arg(long, default_value_t = 100)]
    worker_threads: u32,
    /// How many deleted sources of clones are worked on at a time
    #[arg(long, default_value_t = 1)]
    cloning_protection_threads: u32,
    /// How often finalizers that were left on snapshots are looked for; 0 means never
    #[arg(long, default_value = "5m", value_parser = duration)]
    snapshot_orphan_sweep_interval: Duration,
    /// Late binding: ask for the topology of the selected node only
    #[arg(long, num_args = 0..=1, require_equals = true, default_value_t = false, default_missing_value = "true", action = ArgAction::Set, value_parser = switch)]
    strict_topology: bool,
    /// Immediate binding: ask for the topology of the whole cluster
    #[arg(long, num_args = 0..=1, require_equals = true, default_value_t = true, default_missing_value = "true", action = ArgAction::Set, value_parser = switch)]
    immediate_topology: bool,
    /// Tell the driver the names of claim and volume
    #[arg(long, num_args = 0..=1, require_equals = true, default_value_t = false, default_missing_value = "true", action = ArgAction::Set, value_parser = switch)]
    extra_create_metadata: bool,
    /// File system of volumes whose class names none
    #[arg(long, default_value = "")]
    default_fstype: String,
    /// Mark volumes that can only be read as read-only
    #[arg(long, num_args = 0..=1, require_equals = true, default_value_t = false, default_missing_value = "true", action = ArgAction::Set, value_parser = switch)]
    controller_publish_readonly: bool,
    /// A snapshot may not be restored in another volume mode without permission
    #[arg(long, num_args = 0..=1, require_equals = true, default_value_t = true, default_missing_value = "true", action = ArgAction::Set, value_parser = switch)]
    prevent_volume_mode_conversion: bool,
    /// Switches, `Name=true,Other=false`: Topology, VolumeAttributesClass, ReleaseLeaderElectionOnExit,
    /// CrossNamespaceVolumeDataSource
    #[arg(long, default_value = "")]
    feature_gates: String,
    /// Requests to the API server per second; events are counted apart
    #[arg(long, default_value_t = 5.0)]
    kube_api_qps: f64,
    /// Requests to the API server at once
    #[arg(long, default_value_t = 10)]
    kube_api_burst: u32,
    /// Only the leader of all replicas provisions
    #[arg(long, num_args = 0..=1, require_equals = true, default_value_t = false, default_missing_value = "true", action = ArgAction::Set, value_parser = switch)]
    leader_election: bool,
    /// Namespace of the lock; by default that of the pod
    #[arg(long, default_value = "")]
    leader_election_namespace: String,
    /// Others wait this long after the last renewal they saw
    #[arg(long, default_value = "15s", value_parser = duration)]
    leader_election_lease_duration: Duration,
    /// A leader that could not renew gives up after this time
    #[arg(long, default_value = "10s", value_parser = duration)]
    leader_election_renew_deadline: Duration,
    /// A leader renews this often
    #[arg(long, default_value = "2s", value_parser = duration)]
    leader_election_retry_period: Duration,
    /// Labels of the lock, `key:value,key:value`
    #[arg(long, default_value = "")]
    leader_election_labels: String,
    /// Where to serve metrics and health, `:8080`
    #[arg(long, default_value = "")]
    http_endpoint: String,
    /// Path of the metrics
    #[arg(long, default_value = "/metrics")]
    metrics_path: String,
    /// Keep claims until nothing can be lost even if this process dies
    #[arg(long, num_args = 0..=1, require_equals = true, default_value_t = false, default_missing_value = "true", action = ArgAction::Set, value_parser = switch)]
    provision_journal: bool,
    /// Put the fencing token of the term on volumes, as annotation tenure.dev/fencing-token
    #[arg(long, num_args = 0..=1, require_equals = true, default_value_t = false, default_missing_value = "true", action = ArgAction::Set, value_parser = switch)]
    fencing_token_annotation: bool,
    /// Watch while others lead, to be quick when it is our turn
    #[arg(long, num_args = 0..=1, require_equals = true, default_value_t = false, default_missing_value = "true", action = ArgAction::Set, value_parser = switch)]
    warm_standby: bool,
    /// Publish how much room there is, for the scheduler
    #[arg(long, num_args = 0..=1, require_equals = true, default_value_t = false, default_missing_value = "true", action = ArgAction::Set, value_parser = switch)]
    enable_capacity: bool,
    #[command(flatten)]
    capacity: CapacityFlags,
    /// Run on every node, for that node only
    #[arg(long, num_args = 0..=1, require_equals = true, default_value_t = false, default_missing_value = "true", action = ArgAction::Set, value_parser = switch)]
    node_deployment: bool,
    #[command(flatten)]
    nodes: NodeFlags,
    /// How much is logged: 4 shows decisions, 5 every call to the driver
    #[arg(long = "v", default_value_t = 0, allow_negative_numbers = true)]
    verbosity: i32,
    /// text or json
    #[arg(long, default_value = "text", value_parser = ["text", "json"])]
    logging_format: String,
    #[command(flatten)]
    old: Old,
}

/// What old deployments still pass, and what means nothing here.
#[derive(Args, Clone, Debug)]
struct Old {
    #[arg(long, hide = true, num_args = 0..=1, require_equals = true, default_value_t = false, default_missing_value = "true", action = ArgAction::Set, value_parser = switch)]
    enable_leader_election: bool,
    #[arg(long, hide = true)]
    leader_election_type: Option<String>,
    #[arg(long, hide = true, default_value = "")]
    metrics_address: String,
    #[arg(long, hide = true)]
    log_flush_frequency: Option<String>,
    #[arg(long, hide = true)]
    vmodule: Option<String>,
    #[arg(long, hide = true, num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    log_text_split_stream: Option<String>,
    #[arg(long, hide = true)]
    log_text_info_buffer_size: Option<String>,
    #[arg(long, hide = true, num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    log_json_split_stream: Option<String>,
    #[arg(long, hide = true)]
    log_json_info_buffer_size: Option<String>,
    #[arg(long, hide = true, num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    automaxprocs: Option<String>,
    #[arg(long, hide = true, num_args = 0..=1, require_equals = true, default_value_t = false, default_missing_value = "true", action = ArgAction::Set, value_parser = switch)]
    enable_pprof: bool,
    #[arg(long, hide = true)]
    provisioner: Option<String>,
    #[arg(long, hide = true)]
    connection_timeout: Option<String>,
    #[arg(long, hide = true)]
    provisioning_retry_count: Option<String>,
    #[arg(long, hide = true)]
    deletion_retry_count: Option<String>,
}

/// More about `--enable-capacity`.
#[derive(Args, Clone, Debug)]
struct CapacityFlags {
    /// How many segments and classes are asked about at a time
    #[arg(long, default_value_t = 1)]
    capacity_threads: u32,
    /// How often the driver is asked how much room there is
    #[arg(long, default_value = "1m", value_parser = duration)]
    capacity_poll_interval: Duration,
    /// Also for classes with immediate binding
    #[arg(long, num_args = 0..=1, require_equals = true, default_value_t = false, default_missing_value = "true", action = ArgAction::Set, value_parser = switch)]
    capacity_for_immediate_binding: bool,
    /// Who owns the objects: -1 nobody, 0 the pod, 1 its StatefulSet or DaemonSet, 2 its Deployment
    #[arg(long, default_value_t = 1, allow_negative_numbers = true, value_parser = clap::value_parser!(i64).range(-1..=8))]
    capacity_ownerref_level: i64,
    /// Requests per second to the API server about capacity
    #[arg(long, default_value_t = 1.0)]
    kube_api_capacity_qps: f64,
    /// Requests at once to the API server about capacity
    #[arg(long, default_value_t = 5)]
    kube_api_capacity_burst: u32,
}

/// More about `--node-deployment`.
#[derive(Args, Clone, Debug)]
struct NodeFlags {
    /// Share out the claims that no scheduler gives to a node
    #[arg(long, num_args = 0..=1, require_equals = true, default_value_t = true, default_missing_value = "true", action = ArgAction::Set, value_parser = switch)]
    node_deployment_immediate_binding: bool,
    /// Each node waits for a random part of this before it takes such a claim
    #[arg(long, default_value = "20s", value_parser = duration)]
    node_deployment_base_delay: Duration,
    /// And never longer than this
    #[arg(long, default_value = "60s", value_parser = duration)]
    node_deployment_max_delay: Duration,
}

impl CapacityFlags {
    fn options(&self) -> Result<Capacity> {
        let given = |name: &str| std::env::var(name).unwrap_or_default();
        let (namespace, pod) = (given("NAMESPACE"), given("POD_NAME"));
        if namespace.is_empty() {
            bail!("--enable-capacity needs the environment variable NAMESPACE");
        }
        let owner_level = u32::try_from(self.capacity_ownerref_level).ok();
        if owner_level.is_some() && pod.is_empty() {
            bail!(
                "--enable-capacity needs the environment variable POD_NAME, or --capacity-ownerref-level=-1"
            );
        }
        Ok(Capacity {
            namespace,
            pod,
            owner_level,
            threads: usize::try_from(self.capacity_threads)?.max(1),
            poll_interval: self.capacity_poll_interval,
            immediate: self.capacity_for_immediate_binding,
            kube_api_qps: self.kube_api_capacity_qps,
            kube_api_burst: self.kube_api_capacity_burst,
        })
    }
}

impl NodeFlags {
    fn options(&self) -> Result<NodeDeployment> {
        let node = std::env::var("NODE_NAME").unwrap_or_default();
        if node.is_empty() {
            bail!("--node-deployment needs the environment variable NODE_NAME");
        }
        Ok(NodeDeployment {
            node,
            immediate_binding: self.node_deployment_immediate_binding,
            base_delay: self.node_deployment_base_delay,
            max_delay: self.node_deployment_max_delay,
        })
    }
}

/// The command line of csi-provisioner as one of ours.
pub(crate) fn with_command(mut args: Vec<OsString>) -> Vec<OsString> {
    args.insert(args.len().min(1), "provision".into());
    args
}

/// `-v=5`, `-v5` and `-v 5` mean `--v=5` here, as in every program of Kubernetes; elsewhere `-v` is a
/// switch.
pub(crate) fn spell(args: Vec<OsString>) -> Vec<OsString> {
    if args.get(1).is_none_or(|command| command != "provision") {
        return args;
    }
    let spelled = args.into_iter().map(|arg| match arg.to_str() {
        Some("-v") => "--v".into(),
        Some(text) if text.starts_with("-v") => {
            let level = text[2..].trim_start_matches('=');
            format!("--v={level}").into()
        }
        _ => arg,
    });
    spelled.collect()
}

impl Provision {
    /// Logs as the flags say, on stderr; `TENURE_LOG` says more exactly.
    pub(crate) fn log(&self) {
        let level = match self.verbosity {
            ..=3 => "info,kube_client=off,kube_runtime=off",
            4 => "debug,hyper=info,hyper_util=info,h2=info,tower=info,kube_client=info",
            _ => "debug,tenure_csi=trace,hyper=info,hyper_util=info,h2=info,tower=info",
        };
        let filter = crate::log::filter_or(level);
        let log = tracing_subscriber::fmt()
            .with_max_level(LevelFilter::TRACE)
            .with_writer(std::io::stderr);
        if self.logging_format == "json" {
            log.json().finish().with(filter).init();
        } else {
            let log = log.with_ansi(false).with_target(false);
            log.finish().with(filter).init();
        }
    }

    pub(crate) async fn run(self, connect: &Connect) -> Result<u8> {
        let options = self.options()?;
        let mut connect = connect.clone();
        // As in csi-provisioner, the environment wins.
        if std::env::var_os("KUBECONFIG").is_some_and(|value| !value.is_empty()) {
            connect.kubeconfig = None;
        }
        let mut config = connect.config().await?;
        if let Some(master) = &self.master {
            config.cluster_url = master
                .parse()
                .with_context(|| format!("--master {master}"))?;
        }
        let mut signals = Signals::listen().context("signals")?;
        let shutdown = async move {
            let signal = signals.end().await;
            tracing::info!(?signal, "asked to stop");
        };
        tenure_provisioner::run(options, config, shutdown).await?;
        Ok(0)
    }

    fn options(&self) -> Result<Options> {
        self.old.check()?;
        let gates = gates(&self.feature_gates)?;
        let http = self.http()?;
        let elects = self.leader_election || self.old.enable_leader_election;
        Ok(Options {
            csi_address: self.csi_address.clone(),
            timeout: self.timeout,
            volume_name_prefix: self.volume_name_prefix.clone(),
            volume_name_uuid_length: usize::try_from(self.volume_name_uuid_length).ok(),
            retry_interval_start: self.retry_interval_start,
            retry_interval_max: self.retry_interval_max,
            worker_threads: usize::try_from(self.worker_threads)?,
            cloning_protection_threads: usize::try_from(self.cloning_protection_threads)?,
            snapshot_orphan_sweep_interval: self.snapshot_orphan_sweep_interval,
            strict_topology: self.strict_topology,
            immediate_topology: self.immediate_topology,
            extra_create_metadata: self.extra_create_metadata,
            default_fstype: self.default_fstype.clone(),
            controller_publish_readonly: self.controller_publish_readonly,
            prevent_volume_mode_conversion: self.prevent_volume_mode_conversion,
            kube_api_qps: self.kube_api_qps,
            kube_api_burst: self.kube_api_burst,
            topology: gates.get("Topology").copied().unwrap_or(true),
            volume_attributes_class: gates.get("VolumeAttributesClass").copied(),
            cross_namespace: gate(&gates, "CrossNamespaceVolumeDataSource", "AllAlpha"),
            provision_journal: self.provision_journal,
            fencing_token_annotation: self.fencing_token_annotation,
            warm_standby: self.warm_standby,
            capacity: match self.enable_capacity {
                true => Some(self.capacity.options()?),
                false => None,
            },
            node_deployment: match self.node_deployment {
                true => Some(self.nodes.options()?),
                false => None,
            },
            election: elects.then(|| self.election(&gates)).transpose()?,
            http,
        })
    }

    fn election(&self, gates: &BTreeMap<String, bool>) -> Result<Election> {
        Ok(Election {
            kind: self.old.lock_kind()?,
            namespace: namespace(&self.leader_election_namespace),
            lease_duration: self.leader_election_lease_duration,
            renew_deadline: self.leader_election_renew_deadline,
            retry_period: self.leader_election_retry_period,
            labels: labels(&self.leader_election_labels)?,
            release_on_exit: gates
                .get("ReleaseLeaderElectionOnExit")
                .copied()
                .unwrap_or(true),
        })
    }

    fn http(&self) -> Result<Option<Http>> {
        let old = &self.old.metrics_address;
        if !old.is_empty() && !self.http_endpoint.is_empty() {
            bail!("only one of --metrics-address and --http-endpoint can be set");
        }
        let address = if old.is_empty() {
            &self.http_endpoint
        } else {
            old
        };
        Ok((!address.is_empty()).then(|| Http {
            address: address.clone(),
            metrics_path: self.metrics_path.clone(),
            leader_health: old.is_empty(),
            pprof: self.old.enable_pprof,
        }))
    }
}

impl Old {
    fn check(&self) -> Result<()> {
        let gone = [
            (
                &self.provisioner,
                "--provisioner",
                "the driver says its name itself",
            ),
            (
                &self.connection_timeout,
                "--connection-timeout",
                "connecting may take 30 s; --timeout bounds calls",
            ),
            (
                &self.provisioning_retry_count,
                "--provisioning-retry-count",
                "see --retry-interval-max",
            ),
            (
                &self.deletion_retry_count,
                "--deletion-retry-count",
                "see --retry-interval-max",
            ),
        ];
        for (given, flag, hint) in gone {
            if given.is_some() {
                bail!("{flag} was removed: {hint}");
            }
        }
        if self.enable_leader_election {
            tracing::warn!("--enable-leader-election is deprecated: use --leader-election");
        }
        if !self.metrics_address.is_empty() {
            tracing::warn!("--metrics-address is deprecated: use --http-endpoint");
        }
        let ours = [
            ("--log-flush-frequency", &self.log_flush_frequency),
            ("--log-text-split-stream", &self.log_text_split_stream),
            (
                "--log-text-info-buffer-size",
                &self.log_text_info_buffer_size,
            ),
            ("--log-json-split-stream", &self.log_json_split_stream),
            (
                "--log-json-info-buffer-size",
                &self.log_json_info_buffer_size,
            ),
            ("--vmodule", &self.vmodule),
            ("--automaxprocs", &self.automaxprocs),
        ];
        for (flag, _) in ours.into_iter().filter(|(_, given)| given.is_some()) {
            tracing::warn!("{flag} means nothing to this program");
        }
        if self.enable_pprof {
            tracing::warn!(
                "--enable-pprof: Go's profiles are not to be had; /debug/pprof says what to use instead"
            );
        }
        self.lock_kind().map(drop)
    }

    fn lock_kind(&self) -> Result<LockKind> {
        match self.leader_election_type.as_deref() {
            None => Ok(LockKind::Leases),
            Some("leases") => {
                tracing::warn!("--leader-election-type is deprecated: leases are the default");
                Ok(LockKind::Leases)
            }
            Some("endpoints") => {
                tracing::warn!("--leader-election-type=endpoints is deprecated: use leases");
                Ok(LockKind::Endpoints)
            }
            Some(other) => {
                bail!("--leader-election-type {other:?}: only leases and endpoints are supported")
            }
        }
    }
}

fn gates(text: &str) -> Result<BTreeMap<String, bool>> {
    let known = [
        "Topology",
        "VolumeAttributesClass",
        "ReleaseLeaderElectionOnExit",
        "CrossNamespaceVolumeDataSource",
        "AllAlpha",
        "AllBeta",
    ];
    let mut gates = BTreeMap::new();
    for pair in text
        .split(',')
        .map(str::trim)
        .filter(|pair| !pair.is_empty())
    {
        let Some((name, value)) = pair.split_once('=') else {
            bail!("--feature-gates {pair:?}: expected Name=true or Name=false");
        };
        if !known.contains(&name) {
            bail!(
                "--feature-gates: unrecognized feature gate {name}; known are {}",
                known.join(", ")
            );
        }
        let value =
            switch(value).map_err(|error| anyhow::anyhow!("--feature-gates {pair:?}: {error}"))?;
        gates.insert(name.to_owned(), value);
    }
    Ok(gates)
}

/// An alpha gate: off, unless it or all of its stage are on.
fn gate(gates: &BTreeMap<String, bool>, name: &str, stage: &str) -> bool {
    let given = gates.get(name).or_else(|| gates.get(stage));
    given.copied().unwrap_or(false)
}

fn labels(text: &str) -> Result<BTreeMap<String, String>> {
    let pairs = text.split(',').filter(|pair| !pair.is_empty());
    let pair = |pair: &str| match pair.split(':').collect::<Vec<_>>()[..] {
        [key, value] => Ok((key.trim().to_owned(), value.trim().to_owned())),
        _ => bail!("--leader-election-labels {pair:?}: expected key:value"),
    };
    pairs.map(pair).collect()
}

fn namespace(flag: &str) -> String {
    let given = |text: String| Some(text.trim().to_owned()).filter(|text| !text.is_empty());
    given(flag.to_owned())
        .or_else(|| std::env::var("POD_NAMESPACE").ok().and_then(given))
        .or_else(|| std::fs::read_to_string(NAMESPACE_FILE).ok().and_then(given))
        .unwrap_or_else(|| "default".to_owned())
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser, Debug)]
    struct Line {
        #[command(flatten)]
        provision: Provision,
    }

    fn options(line: &str) -> Result<Options> {
        let args = std::iter::once("csi-provisioner").chain(line.split_whitespace());
        let args = spell(with_command(args.map(OsString::from).collect()));
        let args = args.into_iter().filter(|arg| arg != "provision");
        Line::try_parse_from(args)?.provision.options()
    }

    #[test]
    fn flags_are_read_as_pflag_does() {
        let defaults = options("").unwrap();
        assert_eq!(defaults.worker_threads, 100);
        assert_eq!(defaults.volume_name_uuid_length, None);
        assert!(defaults.immediate_topology && !defaults.strict_topology);
        assert!(defaults.election.is_none() && defaults.http.is_none());
        let line = "-v=5 -v 3 --v=2 --strict-topology --immediate-topology=false --timeout=1m30s \
            --worker-threads 3 --volume-name-uuid-length=10 --leader-election --timeout 2s \
            --leader-election-labels=a:b,c:d --leader-election-namespace=x --http-endpoint=:1 \
            --feature-gates=Topology=false,VolumeAttributesClass=true";
        let given = options(line).unwrap();
        assert!(given.strict_topology && !given.immediate_topology && !given.topology);
        assert_eq!(given.timeout, Duration::from_secs(2), "the last one counts");
        assert_eq!(given.volume_name_uuid_length, Some(10));
        let election = given.election.unwrap();
        assert_eq!(election.namespace, "x");
        assert_eq!(election.labels.len(), 2);
        assert_eq!(election.retry_period, Duration::from_secs(2));
        let http = given.http.unwrap();
        assert!(http.leader_health && !http.pprof);
        let profiled = options("--http-endpoint=:1 --enable-pprof").unwrap();
        assert!(profiled.http.unwrap().pprof);
        assert_eq!(given.volume_attributes_class, Some(true));
    }

    #[test]
    fn switches_are_set_as_go_sets_them() {
        let given =
            options("--strict-topology=1 --immediate-topology=F --feature-gates=Topology=0");
        let given = given.unwrap();
        assert!(given.strict_topology && !given.immediate_topology && !given.topology);
        let error = options("--strict-topology=yes").unwrap_err().to_string();
        assert!(error.contains("--strict-topology"), "{error}");
        // They say how Go's logs are buffered.
        options(
            "--log-text-split-stream --log-text-info-buffer-size=1Mi --log-json-split-stream=true \
             --log-json-info-buffer-size 0 --log-flush-frequency=5s --vmodule=x=1 --automaxprocs",
        )
        .unwrap();
    }

    #[test]
    fn what_is_not_given_is_as_in_csi_provisioner() {
        let defaults = options("").unwrap();
        // Its README says 15 s, and its code this.
        assert_eq!(defaults.timeout, Duration::from_secs(10));
        let pause = (defaults.retry_interval_start, defaults.retry_interval_max);
        assert_eq!(pause, (Duration::from_secs(1), Duration::from_mins(5)));
        assert_eq!((defaults.kube_api_qps, defaults.kube_api_burst), (5.0, 10));
        assert_eq!(
            defaults.snapshot_orphan_sweep_interval,
            Duration::from_mins(5)
        );
        assert!(defaults.prevent_volume_mode_conversion && defaults.topology);
        assert_eq!(defaults.volume_name_prefix, "pvc");
        assert_eq!(defaults.csi_address, "/run/csi/socket");
    }

    #[test]
    fn old_flags_work_and_removed_ones_say_what_to_do() {
        let old = options(
            "--enable-leader-election --leader-election-type=endpoints --metrics-address=:1",
        );
        let old = old.unwrap();
        assert_eq!(old.election.unwrap().kind, LockKind::Endpoints);
        assert!(!old.http.unwrap().leader_health);
        for (line, text) in [
            (
                "--leader-election-type=configmaps",
                "only leases and endpoints",
            ),
            ("--provisioner=x", "was removed"),
            ("--connection-timeout=1s", "was removed"),
            ("--metrics-address=:1 --http-endpoint=:2", "only one of"),
            (
                "--feature-gates=Bogus=true",
                "unrecognized feature gate Bogus",
            ),
            ("--feature-gates=Topology=maybe", "Topology=maybe"),
            ("--enable-capacity", "NAMESPACE"),
            ("--node-deployment", "NODE_NAME"),
            ("--capacity-ownerref-level=-2", "-2"),
            (
                "--leader-election --leader-election-labels=a",
                "expected key:value",
            ),
            ("--volume-name-uuid-length=33", "33"),
            ("--bogus", "--bogus"),
            ("--timeout=soon", "soon"),
        ] {
            let error = format!("{:#}", options(line).unwrap_err());
            assert!(error.contains(text), "{line}: {error}");
        }
    }
}
