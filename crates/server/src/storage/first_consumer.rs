//! Claims whose first pod decides where their volume is. A node is selected for the pod. Each of its claims then gets a
//! volume on that node, or the name of the node for the provisioner.
//!
//! A claim that a provisioner returns without a volume waits for its next node, longer each time (`choices`).
//!
//! Nodes are selected for storage only. No pod is assigned to a node, and free resources of nodes are ignored.

use std::sync::Arc;
use std::time::Duration;

use kube::ResourceExt as _;
use serde_json::json;
use tenure_kinds::names::{IN_TREE, SELECTED_NODE};
use tenure_kinds::{CSINode, Node, PersistentVolume, PersistentVolumeClaim, StorageClass};
use tokio::time::Instant;

use super::matching::best;
use super::names::migrated;
use super::nodes;
use super::objects::Pod;
use super::world::{IndexKey, Indexes, Name, claims_of};
use super::{Key, Storage};

/// Next action for a pod.
enum Plan {
    /// The steps for the claims of the pod on a node.
    Take(String, Vec<Step>),
    /// A node was selected for one of the claims a short time ago.
    Wait(Duration),
}

/// The step for a claim on the selected node.
enum Step {
    /// Use this existing volume.
    Reserve(Arc<PersistentVolume>, Arc<PersistentVolumeClaim>),
    /// Create a new volume.
    Provision(Arc<PersistentVolumeClaim>),
}

/// A claim of a pod, with the properties that matter for the node.
enum PodClaim {
    /// The claim has a volume.
    Bound(Arc<PersistentVolume>),
    /// A node was selected for the claim before.
    Chosen(String),
    /// The claim needs a volume.
    Open(Arc<PersistentVolumeClaim>, Arc<StorageClass>),
}

/// Returns whether a pod has no node and may be assigned one.
pub(super) fn waits_for_a_node(pod: &Pod) -> bool {
    let Some(spec) = &pod.spec else { return false };
    let scheduler = spec.scheduler_name.as_deref().unwrap_or_default();
    spec.node_name.as_deref().unwrap_or_default().is_empty()
        && pod.metadata.deletion_timestamp.is_none()
        && matches!(pod.status.phase.as_str(), "" | "Pending")
        && matches!(scheduler, "" | "default-scheduler")
        && spec.scheduling_gates.as_ref().is_none_or(Vec::is_empty)
}

impl Storage {
    pub(super) async fn pod(&self, name: &Name) -> Result<(), kube::Error> {
        let plan = plan(&mut self.world.lock(), name, Instant::now());
        let (node, steps) = match plan {
            Some(Plan::Take(node, steps)) => (node, steps),
            Some(Plan::Wait(delay)) => {
                self.queue.add_after(Key::Pod(name.clone()), delay);
                return Ok(());
            }
            None => return Ok(()),
        };
        for step in steps {
            match step {
                Step::Reserve(volume, claim) => _ = self.reserve(&volume, &claim).await?,
                Step::Provision(claim) => {
                    let annotations = json!({ SELECTED_NODE: node });
                    let patch = json!({ "metadata": { "annotations": annotations } });
                    self.write.claim(&claim, patch).await?;
                    let mut indexes = self.world.lock();
                    // The claim may have been deleted before the response arrived.
                    if indexes.is_open(&claim) {
                        indexes.choices.made(&claim, Instant::now());
                    }
                }
            }
        }
        Ok(())
    }
}

/// Returns the node and the steps for its claims; `None` if nothing is due now.
fn plan(indexes: &mut Indexes, name: &Name, now: Instant) -> Option<Plan> {
    let pod = indexes.pods.get(name).filter(|pod| waits_for_a_node(pod))?;
    let claims: Option<Vec<PodClaim>> = claims_of(&pod)
        .iter()
        .map(|c| pod_claim(indexes, c))
        .collect();
    let claims = claims?;
    if !claims
        .iter()
        .any(|claim| matches!(claim, PodClaim::Open(..)))
    {
        return None;
    }
    // The most recently selected node comes last. This spreads claims, and a claim that failed on one node gets
    // another.
    let mut nodes: Vec<&Arc<Node>> = indexes.nodes.all().collect();
    nodes.sort_by_key(|node| {
        let name = node.name_any();
        (indexes.chosen.get(&name).copied().unwrap_or_default(), name)
    });
    let found = nodes.into_iter().find_map(|node| {
        let steps = nodes::fits(&pod, node).then(|| steps(indexes, &claims, node))??;
        Some((node.name_any(), steps))
    });
    let (node, steps) = found?;
    let waits = steps.iter().filter_map(|step| match step {
        Step::Provision(claim) => Some(indexes.choices.wait(claim, now)),
        // No provisioner can reject the node of an existing volume, so there is no delay.
        Step::Reserve(..) => None,
    });
    if let Some(wait) = waits.max().filter(|wait| !wait.is_zero()) {
        return Some(Plan::Wait(wait));
    }
    let last = indexes.chosen.values().max().copied().unwrap_or_default();
    indexes.chosen.insert(node.clone(), last + 1);
    Some(Plan::Take(node, steps))
}

/// Returns `None` if the pod has to wait for this claim.
fn pod_claim(indexes: &Indexes, name: &Name) -> Option<PodClaim> {
    let claim = indexes.claims.get(name)?;
    if claim.metadata.deletion_timestamp.is_some() {
        return None;
    }
    if !claim.spec.volume_name.is_empty() {
        let volume = indexes.volumes.named(&claim.spec.volume_name);
        return volume.map(PodClaim::Bound);
    }
    let mut naming = indexes.volumes.find(&IndexKey::Claim(name.clone()));
    if let Some(volume) = naming.find(|volume| super::matching::names(volume, &claim)) {
        return Some(PodClaim::Bound(volume.clone()));
    }
    let class = indexes.classes.named(claim.class())?;
    if !class.waits_for_consumer() {
        return None;
    }
    // A node that no longer exists does not count as selected.
    let chosen = claim
        .selected_node()
        .filter(|node| indexes.nodes.named(node).is_some());
    Some(match chosen {
        Some(node) => PodClaim::Chosen(node.to_owned()),
        None => PodClaim::Open(claim, class),
    })
}

/// Returns the steps for the open claims on a node; nothing if one of the claims does not allow the node.
fn steps(indexes: &Indexes, claims: &[PodClaim], node: &Node) -> Option<Vec<Step>> {
    let mut steps = Vec::new();
    let mut taken: Vec<String> = Vec::new();
    for claim in claims {
        match claim {
            PodClaim::Bound(volume) if nodes::reaches(volume, node) => {}
            PodClaim::Chosen(chosen) if *chosen == node.name_any() => {}
            PodClaim::Bound(_) | PodClaim::Chosen(_) => return None,
            PodClaim::Open(claim, class) => {
                let free = IndexKey::Free(claim.class().to_owned());
                let free = indexes.volumes.find(&free);
                let free = free.filter(|volume| !taken.contains(&volume.name_any()));
                let volume = best(claim, std::iter::empty(), free, Some(node));
                if let Some(volume) = volume {
                    taken.push(volume.name_any());
                    steps.push(Step::Reserve(volume, claim.clone()));
                } else if can_provision(indexes, class, node) {
                    steps.push(Step::Provision(claim.clone()));
                } else {
                    return None;
                }
            }
        }
    }
    Some(steps)
}

/// Returns whether volumes of a class can be created for a node. If the driver is known to run on some nodes, it has to
/// run on this one.
fn can_provision(indexes: &Indexes, class: &StorageClass, node: &Node) -> bool {
    let driver = migrated(&class.provisioner).unwrap_or(&class.provisioner);
    let runs = |on: &CSINode| on.spec.drivers.iter().any(|known| known.name == driver);
    let here = indexes.drivers.named(&node.name_any());
    !driver.starts_with(IN_TREE)
        && nodes::allowed(&class.allowed_topologies, node)
        && (here.is_some_and(|on| runs(&on)) || !indexes.drivers.all().any(|on| runs(on)))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    const DRIVER: &str = "mock.csi.example";

    fn get<K: serde::de::DeserializeOwned>(object: Value) -> Arc<K> {
        Arc::new(serde_json::from_value(object).unwrap())
    }

    /// Returns nodes `a` and `b`, a claim, and a pod that uses it.
    fn indexes(class: &Value) -> Indexes {
        let mut indexes = Indexes::default();
        for node in ["a", "b"] {
            let meta = json!({ "name": node, "labels": { "zone": node } });
            indexes.nodes.put(get(json!({ "metadata": meta })));
        }
        let mut all = json!({
            "metadata": { "name": "late" },
            "provisioner": DRIVER,
            "volumeBindingMode": "WaitForFirstConsumer",
        });
        for (key, value) in class.as_object().unwrap() {
            all[key] = value.clone();
        }
        indexes.classes.put(get(all));
        indexes.claims.put(get(json!({
            "metadata": { "namespace": "ns", "name": "c" },
            "spec": { "storageClassName": "late" },
        })));
        let volume = json!({ "name": "v", "persistentVolumeClaim": { "claimName": "c" } });
        indexes.pods.put(get(json!({
            "metadata": { "namespace": "ns", "name": "p" },
            "spec": { "containers": [], "volumes": [volume] },
        })));
        indexes
    }

    fn chosen(indexes: &mut Indexes) -> Option<String> {
        match plan(indexes, &Name::new("ns", "p"), Instant::now())? {
            Plan::Take(node, _) => Some(node),
            Plan::Wait(_) => None,
        }
    }

    fn runs_on(indexes: &mut Indexes, node: &str, driver: &str) {
        let driver = json!({ "name": driver, "nodeID": node });
        let on = json!({ "metadata": { "name": node }, "spec": { "drivers": [driver] } });
        indexes.drivers.put(get(on));
    }

    #[test]
    fn nodes_take_turns() {
        let mut indexes = indexes(&json!({}));
        let turns: Vec<_> = (0..3).filter_map(|_| chosen(&mut indexes)).collect();
        assert_eq!(turns, ["a", "b", "a"]);
    }

    #[test]
    fn claim_returned_by_the_provisioner_waits_for_its_next_node() {
        let (mut indexes, pod) = (indexes(&json!({})), Name::new("ns", "p"));
        let mut now = Instant::now();
        for (turn, seconds) in [("a", 1), ("b", 2), ("a", 4)] {
            let Some(Plan::Take(node, steps)) = plan(&mut indexes, &pod, now) else {
                panic!("it has waited");
            };
            assert_eq!(node, turn);
            let [Step::Provision(claim)] = steps.as_slice() else {
                panic!("one claim");
            };
            indexes.choices.made(claim, now);
            let Some(Plan::Wait(wait)) = plan(&mut indexes, &pod, now) else {
                panic!("no choice without a pause");
            };
            assert_eq!(wait, Duration::from_secs(seconds));
            now += wait;
        }
        indexes.choices.forget(&Name::new("ns", "c"));
        assert!(matches!(
            plan(&mut indexes, &pod, now),
            Some(Plan::Take(..))
        ));
    }

    /// No server listens at the address, so a write would be an error.
    #[tokio::test]
    async fn waiting_claim_causes_no_write_and_no_examination() {
        let nowhere = kube::Config::new("http://127.0.0.1:1".parse().unwrap());
        let client = kube::Client::try_from(nowhere).unwrap();
        let which = super::super::Which {
            binder: true,
            claim_protection: true,
            volume_protection: true,
            first_consumer: true,
        };
        let storage = Storage::new(client, which);
        *storage.world.lock() = indexes(&json!({}));
        let pod = Name::new("ns", "p");
        assert!(storage.pod(&pod).await.is_err(), "it is given a node");
        let claim = {
            let mut indexes = storage.world.lock();
            let claim = indexes.claims.get(&Name::new("ns", "c")).unwrap();
            // Enough selections for a delay of a minute.
            (0..10).for_each(|_| indexes.choices.made(&claim, Instant::now()));
            claim
        };
        storage.pod(&pod).await.unwrap();
        assert!(storage.queue.is_empty(), "later, not now");

        let mut bound = (*claim).clone();
        bound.spec.volume_name = "v".to_owned();
        storage.changed(&Arc::new(bound));
        let wait = storage.world.lock().choices.wait(&claim, Instant::now());
        assert!(wait.is_zero(), "bound claims are forgotten");
    }

    #[test]
    fn node_is_selected_where_the_driver_is_known_to_run() {
        let mut indexes = indexes(&json!({}));
        runs_on(&mut indexes, "a", "other.example");
        assert_eq!(
            chosen(&mut indexes).as_deref(),
            Some("a"),
            "nobody knows of it"
        );
        runs_on(&mut indexes, "b", DRIVER);
        for _ in 0..2 {
            assert_eq!(chosen(&mut indexes).as_deref(), Some("b"));
        }
    }

    #[test]
    fn node_selection_follows_topology_provisioner_and_binding_mode_of_the_class() {
        let expressions = json!([{ "key": "zone", "values": ["b"] }]);
        let terms = json!([{ "matchLabelExpressions": expressions }]);
        let mut only_b = indexes(&json!({ "allowedTopologies": terms }));
        assert_eq!(chosen(&mut only_b).as_deref(), Some("b"));
        let nothing = json!({ "provisioner": "kubernetes.io/no-provisioner" });
        assert_eq!(chosen(&mut indexes(&nothing)), None);
        let immediate = json!({ "volumeBindingMode": "Immediate" });
        assert_eq!(chosen(&mut indexes(&immediate)), None);
    }

    #[test]
    fn all_claims_of_a_pod_go_to_one_node() {
        let mut indexes = indexes(&json!({}));
        let volumes = json!([
            { "name": "v", "persistentVolumeClaim": { "claimName": "c" } },
            { "name": "w", "persistentVolumeClaim": { "claimName": "d" } },
        ]);
        indexes.pods.put(get(json!({
            "metadata": { "namespace": "ns", "name": "p" },
            "spec": { "containers": [], "volumes": volumes },
        })));
        assert_eq!(chosen(&mut indexes), None, "one of them is not there yet");
        indexes.claims.put(get(json!({
            "metadata": { "namespace": "ns", "name": "d", "annotations": { SELECTED_NODE: "b" } },
            "spec": { "storageClassName": "late" },
        })));
        assert_eq!(chosen(&mut indexes).as_deref(), Some("b"));
    }
}
