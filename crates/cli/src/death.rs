//! `--confirm-death`: the sources of evidence that the leader has ended.

use std::sync::Arc;

use anyhow::{Context, Result};
use clap::ValueEnum;
use kube::Client;
use tenure::{AccessRule, Builder, DeathProof as _, HostProof, NodeProof, PodProof};
use tenure_core::Place;

use crate::rbac::{Needs, Rule};

/// A source of evidence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum DeathSource {
    /// The kernel of this machine
    Host,
    /// The kubelet, in the status of the leader's pod
    Pod,
    /// An administrator, by the taint out-of-service on the leader's node
    Node,
}

/// The processes whose end is the end of the work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Work {
    /// The work ends with this process.
    OfThisProcess,
    /// The work is a tree of processes, which can outlive this process.
    OfTree,
}

/// The sources of one candidate, ready to be used.
#[derive(Debug, Default)]
pub(crate) struct Proofs {
    host: Option<HostProof>,
    pod: Option<PodProof>,
    node: Option<NodeProof>,
}

impl Proofs {
    /// Opens the sources that the user has named.
    pub(crate) fn open(sources: &[DeathSource], client: &Client, work: Work) -> Result<Self> {
        let mut proofs = Self::default();
        for source in sources {
            match source {
                DeathSource::Host => {
                    let host = match work {
                        Work::OfThisProcess => HostProof::of_process(),
                        Work::OfTree => HostProof::of_pid_namespace(),
                    };
                    proofs.host = Some(host.context("--confirm-death=host")?);
                }
                DeathSource::Pod => {
                    let pod = PodProof::from_environment(client.clone());
                    proofs.pod = Some(pod.context("--confirm-death=pod")?);
                }
                DeathSource::Node => {
                    let node = NodeProof::from_environment(client.clone());
                    proofs.node = Some(node.context("--confirm-death=node")?);
                }
            }
        }
        Ok(proofs)
    }

    /// Returns the place of this process, with which its writes describe the holder.
    pub(crate) fn place(&self) -> Option<Arc<Place>> {
        let mut place = Place::default();
        if let Some(host) = &self.host {
            host.describe(&mut place);
        }
        if let Some(pod) = &self.pod {
            pod.describe(&mut place);
        }
        if let Some(node) = &self.node {
            node.describe(&mut place);
        }
        (place != Place::default()).then(|| Arc::new(place))
    }

    /// Makes a candidate use the sources.
    pub(crate) fn confirm(self, mut builder: Builder) -> Builder {
        if let Some(host) = self.host {
            builder = builder.confirm_death(host);
        }
        if let Some(pod) = self.pod {
            builder = builder.confirm_death(pod);
        }
        if let Some(node) = self.node {
            builder = builder.confirm_death(node);
        }
        builder
    }
}

/// Returns the permissions that the sources need. Pods are looked up in this namespace.
pub(crate) fn needs(sources: &[DeathSource], namespace: &str) -> Needs {
    let rules = |source: &DeathSource| match source {
        DeathSource::Host => &[][..],
        DeathSource::Pod => PodProof::rules(),
        DeathSource::Node => NodeProof::rules(),
    };
    let need = |rule: &AccessRule| {
        let place = if rule.cluster { "" } else { namespace };
        let rule = Rule::any(rule.group, rule.resource, rule.verbs.to_vec());
        (place.to_owned(), vec![rule])
    };
    sources.iter().flat_map(rules).map(need).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rbac;

    #[test]
    fn pods_need_a_role_and_nodes_a_cluster_role() {
        let all = [DeathSource::Host, DeathSource::Pod, DeathSource::Node];
        let roles = rbac::roles("web", &needs(&all, "shop"));
        let (role, cluster_role) = roles.split_once("---\n").unwrap();
        assert!(role.contains("kind: Role\n") && role.contains("namespace: shop"));
        assert!(
            role.contains("resources: [pods]\n  verbs: [list, watch]"),
            "{role}"
        );
        assert!(
            cluster_role.contains("kind: ClusterRole\n"),
            "{cluster_role}"
        );
        assert!(!cluster_role.contains("namespace:") && cluster_role.contains("[nodes]"));
        assert!(needs(&[DeathSource::Host], "shop").is_empty());
    }
}
