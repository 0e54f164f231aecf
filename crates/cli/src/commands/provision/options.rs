//! Converts the flags of `tenure provision` to options of the provisioner.

use std::collections::BTreeMap;

use anyhow::{Result, bail};
use tenure_provisioner::{AtStart, Capacity, Election, Http, NodeDeployment, Options};

use super::flags::{CapacityFlags, NodeFlags, Provision};
use crate::commands::elect::elsewhere;
use crate::values::switch;

const NAMESPACE_FILE: &str = "/var/run/secrets/kubernetes.io/serviceaccount/namespace";

impl Provision {
    /// Returns the options from the flags and the environment.
    pub(super) fn options(&self) -> Result<Options> {
        self.old.check()?;
        self.klog.warn();
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
        let kind = self.old.lock_kind()?;
        let namespace = namespace(&self.leader_election_namespace);
        let place = namespace.clone();
        let look_elsewhere = move |client, lock: &str| {
            let lock = lock.to_owned();
            tokio::spawn(elsewhere::warn(
                client,
                &elsewhere::PROVISIONER,
                kind,
                place.clone(),
                lock,
            ));
        };
        Ok(Election {
            kind,
            namespace,
            at_start: Some(AtStart::new(look_elsewhere)),
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

/// Returns an alpha gate: false, unless it or its whole stage is enabled.
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
    use std::ffi::OsString;
    use std::time::Duration;

    use clap::Parser;
    use tenure::LockKind;

    use super::super::{spell, with_command};
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
        // These flags configure how Go buffers logs.
        options(
            "--log-text-split-stream --log-text-info-buffer-size=1Mi --log-json-split-stream=true \
             --log-json-info-buffer-size 0 --log-flush-frequency=5s --vmodule=x=1 --automaxprocs",
        )
        .unwrap();
    }

    #[test]
    fn klog_flags_are_accepted_in_every_spelling() {
        let line = "-logtostderr -alsologtostderr=false --stderrthreshold=ERROR --skip_headers \
            --skip-log-headers=true -log_dir /tmp --log_file=x --log_file_max_size 10 \
            --add_dir_header --one_output --log_backtrace_at=a.go:1 --v=2 -v=3";
        options(line).unwrap();
        assert!(options("--logtostdout").is_err());
    }

    #[test]
    fn omitted_flags_have_the_defaults_of_csi_provisioner() {
        let defaults = options("").unwrap();
        // The README of csi-provisioner says 15 s, but its code uses this value.
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
    fn old_flags_work_and_removed_flags_are_rejected_with_advice() {
        let old = options(
            "--enable-leader-election --leader-election-type=endpoints --metrics-address=:1",
        );
        let old = old.unwrap();
        assert_eq!(old.election.unwrap().kind, LockKind::Endpoints);
        let both = options("--leader-election --leader-election-type=endpointsleases").unwrap();
        assert_eq!(both.election.unwrap().kind, LockKind::EndpointsLeases);
        assert!(!old.http.unwrap().leader_health);
        for (line, text) in [
            (
                "--leader-election-type=configmaps",
                "only leases, endpoints and endpointsleases",
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
