//! `--node-deployment`: one provisioner per node, each for its own node. For a claim without a selected node, each
//! provisioner waits for a random delay. The first one that writes its node name to the claim provisions it.

use std::collections::{BTreeMap, HashMap};
use std::sync::Mutex;
use std::time::Duration;

use tenure_csi::ControllerCapability;
use tenure_csi::v1::{GetCapacityRequest, Topology};
use tokio::time::Instant;

use crate::controller::{Controller, lock};
use crate::names::SELECTED_NODE;
use crate::objects::{Claim, Class, NodeSelectorTerm, Volume};
use crate::options::NodeDeployment;
use crate::plan;
use crate::topology::{self, Input, Memory, Term, flatten};

/// The node of this process.
#[derive(Debug)]
pub(crate) struct Local {
    pub(crate) options: NodeDeployment,
    /// Topology of the node, as the driver reports it.
    pub(crate) segments: BTreeMap<String, String>,
    /// Instants from which this node may take unassigned claims, by the uid of the claim.
    pub(crate) turns: Mutex<HashMap<String, Instant>>,
}

impl Local {
    pub(crate) fn new(options: NodeDeployment, segments: BTreeMap<String, String>) -> Self {
        Self {
            options,
            segments,
            turns: Mutex::default(),
        }
    }

    pub(crate) fn term(&self) -> Term {
        let segments = self.segments.iter();
        segments
            .map(|(key, value)| (key.clone(), value.clone()))
            .collect()
    }

    pub(crate) fn forget(&self, uid: &str) {
        lock(&self.turns).remove(uid);
    }

    /// Returns whether the storage of a volume is on this node.
    pub(crate) fn has(&self, volume: &Volume) -> bool {
        let affinity = volume.spec.node_affinity.as_ref();
        let Some(required) = affinity.and_then(|affinity| affinity.required.as_ref()) else {
            return true;
        };
        let fits = |term: &NodeSelectorTerm| {
            let mut expressions = term.match_expressions.iter();
            expressions.all(|expression| expression.fits(&self.segments))
        };
        required.node_selector_terms.iter().any(fits)
    }

    /// Returns a random delay below the base delay, so that the nodes do not all write at the same time.
    fn delay(&self) -> Duration {
        let random = uuid::Uuid::new_v4().as_u64_pair().0 as f64 / u64::MAX as f64;
        let most = self.options.base_delay.min(self.options.max_delay);
        most.mul_f64(random)
    }
}

impl Controller {
    /// Returns whether this node must provision a claim now. An unassigned claim may be taken; it is queued again when
    /// the watch reports it with our node name.
    pub(crate) async fn is_here(&self, local: &Local, claim: &Claim, class: &Class) -> bool {
        let uid = claim.uid();
        // The provisioner that takes the claim reports the error.
        let translated = self.translated(class);
        let class = translated.as_deref().unwrap_or(class);
        if let Some(node) = claim.selected_node_or_alpha() {
            local.forget(uid);
            return node == local.options.node;
        }
        let allowed = flatten(&class.allowed_topologies);
        let here = local.term();
        let fits =
            allowed.is_empty() || allowed.iter().any(|term| topology::is_subset(term, &here));
        if class.waits_for_consumer() || !local.options.immediate_binding || !fits {
            return false;
        }
        let now = Instant::now();
        let turn = lock(&local.turns).get(uid).copied();
        match turn {
            None => {
                let delay = local.delay();
                lock(&local.turns).insert(uid.to_owned(), now + delay);
                self.queues.claims.add_after(uid.to_owned(), delay);
            }
            Some(turn) if turn > now => {}
            Some(_) => {
                local.forget(uid);
                if self.has_capacity(local, claim, class).await {
                    self.take(local, claim).await;
                }
            }
        }
        false
    }

    /// Returns whether the driver reports enough capacity for a claim. Changes nothing.
    async fn has_capacity(&self, local: &Local, claim: &Claim, class: &Class) -> bool {
        if !self.facts.controller(ControllerCapability::GetCapacity) {
            return true;
        }
        // The provisioner that takes the claim reports its errors.
        let draft = plan::draft(&self.facts, &self.options, self.attributes, claim, class);
        let Ok(draft) = draft else { return true };
        let mut segments = vec![Topology {
            segments: local.segments.clone(),
        }];
        if self.topology() {
            let input = Input {
                claim: claim.name(),
                driver: &self.facts.name,
                allowed: &class.allowed_topologies,
                selected: Some(&local.options.node),
                strict: self.options.strict_topology,
                immediate: self.options.immediate_topology,
            };
            match topology::requirement(&input, self, &mut Memory::default()) {
                Ok(Some(requirement)) => segments = requirement.requisite,
                Ok(None) => {}
                Err(_) => return true,
            }
        }
        let range = draft.request.capacity_range.unwrap_or_default();
        for segment in segments {
            let request = GetCapacityRequest {
                parameters: draft.request.parameters.clone(),
                volume_capabilities: draft.request.volume_capabilities.clone(),
                accessible_topology: Some(segment),
            };
            match self.driver.get_capacity(request).await {
                Ok(answer) => {
                    let largest = answer.maximum_volume_size.unwrap_or(i64::MAX);
                    if answer.available_capacity.min(largest) >= range.required_bytes {
                        return true;
                    }
                }
                Err(error) => {
                    tracing::info!(%error, "the driver does not report its capacity");
                    return true;
                }
            }
        }
        tracing::info!(claim = claim.key(), "not enough capacity on this node");
        false
    }

    /// Writes our node name to a claim, unless another node was faster.
    async fn take(&self, local: &Local, claim: &Claim) {
        let node = &local.options.node;
        let taken = self
            .cluster
            .update::<Claim>(claim.namespace(), claim.name(), |object| {
                let annotations = object.metadata.annotations.get_or_insert_default();
                let free = annotations.get(SELECTED_NODE).is_none_or(String::is_empty);
                if object.metadata.uid != claim.metadata.uid || !free {
                    return false;
                }
                annotations.insert(SELECTED_NODE.to_owned(), node.clone());
                true
            })
            .await;
        if let Err(error) = taken {
            tracing::info!(claim = claim.key(), %error, "cannot assign the claim to this node");
            self.queues.claims.add_rate_limited(claim.uid().to_owned());
        }
    }
}
