//! Evidence of an administrator: the taint `node.kubernetes.io/out-of-service` on the holder's node.
//!
//! Invariant: the taint counts only while the node is not ready. Kubernetes uses it in the same way: it detaches the
//! volumes of such a node.

use std::sync::Arc;

use kube::Client;
use serde_json::Value;
use tenure_core::death::Evidence;
use tenure_core::{Incarnation, Place};
use tenure_lock::BoxFuture;

use super::watcher::{Target, Watcher};
use super::{AccessRule, DeathProof, variable};

/// The taint by which an administrator states that a node is shut down.
const OUT_OF_SERVICE: &str = "node.kubernetes.io/out-of-service";

/// Reason why a process does not know the node that it runs on.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("cannot name the node of this process: NODE_NAME is not set")]
pub struct UnknownNode;

/// Evidence of an administrator about nodes. Cheap to clone; elections that use clones share one watch per node.
///
/// The taint must be set only after the node is shut down, and must be removed before the node starts again. A holder
/// on a running node with this taint loses its lock when the node becomes not ready.
///
/// Every candidate needs the permissions in [`rules`](Self::rules), which only a ClusterRole can grant.
///
/// ```no_run
/// # fn example(client: kube::Client) -> Result<(), Box<dyn std::error::Error>> {
/// let elector = tenure::Elector::lease(client.clone(), "shop", "my-lease")
///     .confirm_death(tenure::PodProof::from_environment(client.clone())?)
///     .confirm_death(tenure::NodeProof::from_environment(client)?)
///     .build()?;
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct NodeProof {
    node: String,
    nodes: Arc<Watcher>,
}

impl NodeProof {
    /// Describes this process by the name of its node.
    pub fn new(client: Client, node: impl Into<String>) -> Self {
        Self {
            node: node.into(),
            nodes: Watcher::new(client, evidence),
        }
    }

    /// Describes this process by the variable `NODE_NAME`, which is `spec.nodeName` of the downward API.
    ///
    /// # Errors
    ///
    /// Fails if the variable is not set.
    pub fn from_environment(client: Client) -> Result<Self, UnknownNode> {
        let node = variable("NODE_NAME").ok_or(UnknownNode)?;
        Ok(Self::new(client, node))
    }

    /// Returns the permissions that every candidate needs in the cluster.
    pub const fn rules() -> &'static [AccessRule] {
        &[AccessRule {
            group: "",
            resource: "nodes",
            verbs: &["list", "watch"],
            cluster: true,
        }]
    }
}

impl DeathProof for NodeProof {
    fn describe(&self, place: &mut Place) {
        place.node = Some(self.node.clone());
    }

    fn watch(&self, holder: &Arc<Incarnation>) -> Option<BoxFuture<'static, Vec<Evidence>>> {
        let name = holder.place.node.clone()?;
        let path = "/api/v1/nodes".to_owned();
        let target = Target { path, name };
        Some(Box::pin(self.nodes.clone().wait(
            target,
            None,
            holder.clone(),
        )))
    }
}

/// Returns the evidence in a node.
fn evidence(node: &Value) -> Vec<Evidence> {
    let items = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let taints = items(&node["spec"]["taints"]);
    let tainted = taints.iter().any(|taint| taint["key"] == OUT_OF_SERVICE);
    let conditions = items(&node["status"]["conditions"]);
    let mut ready = conditions.iter().filter(|one| one["type"] == "Ready");
    let is_ready = ready.any(|condition| condition["status"] == "True");
    match node["metadata"]["name"].as_str() {
        Some(name) if tainted && !is_ready => vec![Evidence::NodeOutOfService {
            node: name.to_owned(),
        }],
        _ => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn node(taint: &str, ready: &str) -> Value {
        json!({
            "metadata": { "name": "n1", "uid": "u" },
            "spec": { "taints": [
                { "key": "node.kubernetes.io/unreachable", "effect": "NoExecute" },
                { "key": taint, "value": "nodeshutdown", "effect": "NoExecute" },
            ] },
            "status": { "conditions": [
                { "type": "MemoryPressure", "status": "Unknown" },
                { "type": "Ready", "status": ready },
            ] },
        })
    }

    #[test]
    fn taint_counts_while_the_node_is_not_ready() {
        let down = vec![Evidence::NodeOutOfService {
            node: "n1".to_owned(),
        }];
        for ready in ["Unknown", "False"] {
            assert_eq!(evidence(&node(OUT_OF_SERVICE, ready)), down, "{ready}");
            let other = node("node.kubernetes.io/unschedulable", ready);
            assert_eq!(evidence(&other), [], "{ready}");
        }
        assert_eq!(evidence(&node(OUT_OF_SERVICE, "True")), []);
        assert_eq!(evidence(&json!({})), []);
    }
}
