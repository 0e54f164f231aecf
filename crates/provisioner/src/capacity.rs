//! `--enable-capacity`: publishes free capacity for the scheduler, as one CSIStorageCapacity for each topology
//! segment and class.
//!
//! Invariant: the queue is keyed by segment and class, so it holds each pair at most once.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use k8s_openapi::api::storage::v1::CSIStorageCapacity;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, ObjectMeta, OwnerReference};
use kube::Api;
use tenure_csi::Driver;
use tenure_csi::v1::{GetCapacityRequest, Topology};
use tenure_manager::queue::WorkQueue;
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::cache::Change;
use crate::cluster::{Cluster, ClusterError};
use crate::controller::{keys, lock};
use crate::informers::Caches;
use crate::metrics::CapacityMetrics;
use crate::objects::{Class, StorageCapacity, bytes, quantity};
use crate::options::Capacity;
use crate::topology::{Term, term_of};

/// The subject of one CSIStorageCapacity: a topology segment and a class.
pub(crate) type Item = (Term, String);

const DRIVER_LABEL: &str = "csi.storage.k8s.io/drivername";
const MANAGED_LABEL: &str = "csi.storage.k8s.io/managed-by";
/// Time for which changes of nodes are collected. Nodes report often, and most reports do not change the topology.
const PAUSE: Duration = Duration::from_millis(100);

/// Keeps the CSIStorageCapacity objects of one driver up to date.
pub(crate) struct Capacities {
    pub(crate) driver: Driver,
    pub(crate) name: String,
    pub(crate) cluster: Cluster,
    pub(crate) caches: Caches,
    pub(crate) options: Capacity,
    pub(crate) owner: Option<OwnerReference>,
    pub(crate) managed_by: String,
    /// The only segment, with `--node-deployment`.
    pub(crate) fixed: Option<Term>,
    pub(crate) queue: WorkQueue<Item>,
    pub(crate) metrics: CapacityMetrics,
    pub(crate) goal: Mutex<HashSet<Item>>,
}

impl Capacities {
    /// Starts after the existing objects are listed, and runs until the tasks are dropped. Provisioning does not
    /// wait for it.
    pub(crate) fn start(self: Arc<Self>) -> JoinSet<()> {
        let mut tasks = JoinSet::new();
        let api: Api<StorageCapacity> =
            Api::namespaced(self.cluster.client(), &self.options.namespace);
        let labels = format!(
            "{DRIVER_LABEL}={},{MANAGED_LABEL}={}",
            self.name, self.managed_by
        );
        let published = self.caches.storage_capacities.clone();
        let capacities = self.clone();
        let tell = move |name: &str, change: Change<()>| match change {
            Change::Applied(()) => {
                if let Some(object) = capacities.caches.storage_capacities.get(name) {
                    capacities.seen(&object);
                }
            }
            // The comparison with the wanted objects finds the missing one.
            Change::Gone => capacities.caches.changed.notify_one(),
        };
        let name = |object: &StorageCapacity| object.metadata.name.clone().unwrap_or_default();
        tasks.spawn(published.run_labelled(api, labels, name, tell));
        tasks.spawn(self.clone().when_known(self.clone().follow()));
        tasks.spawn(self.clone().when_known(self.clone().poll()));
        for _ in 0..self.options.threads {
            tasks.spawn(self.clone().when_known(self.clone().work()));
        }
        tasks
    }

    async fn when_known(self: Arc<Self>, work: impl Future<Output = ()>) {
        self.caches.storage_capacities.synced().await;
        work.await;
    }

    /// Queues the segments of a new or deleted volume again, or its whole class if the volume has no segments.
    pub(crate) fn refresh(&self, class: &str, terms: &[Vec<(String, Vec<String>)>]) {
        let matches = |segment: &Term| {
            terms.iter().any(|term| {
                term.iter().all(|(key, values)| {
                    let mut pairs = segment.iter();
                    pairs.any(|(name, value)| name == key && values.contains(value))
                })
            })
        };
        let goal = lock(&self.goal).clone();
        for item in goal {
            let asked = match terms {
                [] => item.1 == class,
                _ => matches(&item.0),
            };
            if asked {
                self.queue.add(item);
            }
        }
    }

    /// Handles a CSIStorageCapacity that this process or another client wrote.
    fn seen(&self, object: &StorageCapacity) {
        let item = object.item();
        let wanted = lock(&self.goal).contains(&item);
        if !wanted || !self.is_ours(object) {
            self.queue.add(item);
        }
    }

    /// Follows nodes and classes; never returns.
    async fn follow(self: Arc<Self>) {
        loop {
            self.recompute();
            self.caches.changed.notified().await;
            tokio::time::sleep_until(Instant::now() + PAUSE).await;
        }
    }

    fn recompute(&self) {
        let new = self.wanted();
        let published = self.caches.storage_capacities.all();
        let there: HashSet<Item> = published.iter().map(|object| object.item()).collect();
        let old = {
            let mut goal = lock(&self.goal);
            std::mem::replace(&mut *goal, new.clone())
        };
        let missing = new.iter().filter(|item| !there.contains(*item));
        let obsolete = there.iter().filter(|item| !new.contains(*item));
        let more = old.iter().filter(|item| !new.contains(*item));
        for item in missing.chain(obsolete).chain(more) {
            self.queue.add(item.clone());
        }
        self.count();
    }

    fn count(&self) {
        let goal = lock(&self.goal).clone();
        let published = self.caches.storage_capacities.all();
        let there: HashSet<Item> = published.iter().map(|object| object.item()).collect();
        let current = goal.iter().filter(|item| there.contains(*item)).count();
        let obsolete = there.iter().filter(|item| !goal.contains(*item)).count();
        self.metrics.set(goal.len(), current, obsolete);
    }

    fn wanted(&self) -> HashSet<Item> {
        let segments = match &self.fixed {
            Some(segment) => BTreeSet::from([segment.clone()]),
            None => self.segments(),
        };
        let classes = self.caches.classes.all();
        let ours = |class: &&Arc<Class>| {
            class.provisioner == self.name && (self.options.immediate || class.waits_for_consumer())
        };
        let names = classes.iter().filter(ours);
        let names: Vec<_> = names
            .filter_map(|class| class.metadata.name.clone())
            .collect();
        let pair = |segment: &Term| {
            let segment = segment.clone();
            names
                .iter()
                .map(move |name| (segment.clone(), name.clone()))
        };
        segments.iter().flat_map(pair).collect()
    }

    /// Returns the topology segment of every node on which the driver is registered.
    fn segments(&self) -> BTreeSet<Term> {
        let nodes = self.caches.csi_nodes.all();
        let segment = |csi_node: &Arc<crate::objects::CsiNode>| {
            let keys = keys(csi_node, &self.name)?;
            let node = self.caches.nodes.get(csi_node.metadata.name.as_deref()?)?;
            let labels = node.metadata.labels.clone().unwrap_or_default();
            term_of(&labels, &keys)
        };
        nodes.iter().filter_map(segment).collect()
    }

    /// Queues every item once per poll interval.
    async fn poll(self: Arc<Self>) {
        let every = self.options.poll_interval.max(PAUSE);
        let mut ticks = tokio::time::interval_at(Instant::now() + every, every);
        loop {
            ticks.tick().await;
            let goal = lock(&self.goal).clone();
            goal.into_iter().for_each(|item| self.queue.add(item));
        }
    }

    async fn work(self: Arc<Self>) {
        while let Some(item) = self.queue.get().await {
            match self.sync(&item).await {
                Ok(()) => self.queue.forget(&item),
                Err(error) => {
                    tracing::warn!(segment = ?item.0, class = item.1, error, "cannot read the capacity");
                    self.queue.add_rate_limited(item.clone());
                }
            }
            self.count();
        }
    }

    async fn sync(&self, item: &Item) -> Result<(), String> {
        let mut published = self.caches.storage_capacities.all();
        published.retain(|object| object.item() == *item);
        published.sort_by(|a, b| a.metadata.name.cmp(&b.metadata.name));
        let wanted = lock(&self.goal).contains(item);
        let spare = if wanted { 1 } else { 0 };
        for object in published.iter().skip(spare) {
            let deleted = self.cluster.delete_storage_capacity(object).await;
            deleted.map_err(|error| error.to_string())?;
            self.caches
                .storage_capacities
                .remove(object.metadata.name.as_deref().unwrap_or_default());
        }
        let class = self.caches.classes.get(&item.1).filter(|_| wanted);
        let Some(class) = class else { return Ok(()) };
        let request = GetCapacityRequest {
            parameters: class.parameters.clone(),
            accessible_topology: Some(Topology {
                segments: item.0.iter().cloned().collect(),
            }),
            ..GetCapacityRequest::default()
        };
        let answer = self.driver.get_capacity(request).await;
        let answer = answer.map_err(|error| error.to_string())?;
        let capacity = quantity(answer.available_capacity.max(0));
        let largest = answer.maximum_volume_size.map(quantity);
        let written = match published.first() {
            Some(object) if self.says(object, &capacity, largest.as_ref()) => return Ok(()),
            object => {
                let object = self.object(
                    item,
                    object.map(|object| &object.metadata),
                    capacity,
                    largest,
                );
                self.cluster.write_storage_capacity(&object).await
            }
        };
        let written = written.map_err(|error| error.to_string())?;
        let name = written.metadata.name.clone().unwrap_or_default();
        // Until the watch reports the object, it must not count as missing.
        self.caches
            .storage_capacities
            .insert(&name, StorageCapacity::from(written));
        Ok(())
    }

    fn says(&self, object: &StorageCapacity, capacity: &str, largest: Option<&String>) -> bool {
        let size = |text: Option<&String>| text.and_then(|text| bytes(text).ok());
        size(object.capacity.as_ref()) == bytes(capacity).ok()
            && size(object.maximum_volume_size.as_ref()) == size(largest)
            && self.is_ours(object)
    }

    /// Returns whether this provisioner still owns the object.
    fn is_ours(&self, object: &StorageCapacity) -> bool {
        let owners = object.metadata.owner_references.iter().flatten();
        owners.eq(self.owner.iter())
    }

    fn object(
        &self,
        (segment, class): &Item,
        there: Option<&ObjectMeta>,
        capacity: String,
        largest: Option<String>,
    ) -> CSIStorageCapacity {
        let labels = [
            (DRIVER_LABEL, &self.name),
            (MANAGED_LABEL, &self.managed_by),
        ];
        let labels = labels.map(|(key, value)| (key.to_owned(), value.clone()));
        let segment: BTreeMap<_, _> = segment.iter().cloned().collect();
        CSIStorageCapacity {
            metadata: ObjectMeta {
                name: there.and_then(|meta| meta.name.clone()),
                generate_name: there.is_none().then(|| "csisc-".to_owned()),
                namespace: Some(self.options.namespace.clone()),
                resource_version: there.and_then(|meta| meta.resource_version.clone()),
                labels: Some(BTreeMap::from(labels)),
                owner_references: self.owner.clone().map(|owner| vec![owner]),
                ..ObjectMeta::default()
            },
            node_topology: Some(LabelSelector {
                match_labels: Some(segment),
                ..LabelSelector::default()
            }),
            storage_class_name: class.clone(),
            capacity: Some(Quantity(capacity)),
            maximum_volume_size: largest.map(Quantity),
        }
    }
}

/// Finds the owner of the objects: the controller `level` steps above the pod.
pub(crate) async fn owner(
    cluster: &Cluster,
    options: &Capacity,
) -> Result<Option<OwnerReference>, String> {
    let Some(level) = options.owner_level else {
        return Ok(None);
    };
    let (namespace, pod) = (&options.namespace, &options.pod);
    let text = |error: ClusterError| error.to_string();
    let mut owner = cluster
        .reference(namespace, "v1", "Pod", pod)
        .await
        .map_err(text)?;
    for _ in 0..level {
        let up = cluster
            .controller_of(namespace, &owner)
            .await
            .map_err(text)?;
        owner = up.ok_or_else(|| {
            format!(
                "{} {namespace}/{} has no controller: --capacity-ownerref-level is too high",
                owner.kind, owner.name
            )
        })?;
    }
    owner.controller = Some(true);
    Ok(Some(owner))
}

/// Returns the value of the label that identifies our objects; with a node, those of that node's provisioner.
pub(crate) fn managed_by(node: Option<&str>) -> String {
    const BASE: &str = "external-provisioner";
    const MOST: usize = 63;
    let Some(node) = node else {
        return BASE.to_owned();
    };
    let whole = format!("{BASE}-{node}");
    if whole.len() <= MOST {
        return whole;
    }
    // Ten characters: two dashes and eight digits.
    match MOST.checked_sub(10 + node.len()) {
        Some(left) if left > 0 => format!("{}-{:08x}-{node}", &BASE[..left], fnv1a(BASE)),
        _ => format!("{BASE}-{:08x}", fnv1a(&whole)),
    }
}

/// FNV-1a, 32 bits: xor, then multiply.
fn fnv1a(text: &str) -> u32 {
    text.bytes().fold(2_166_136_261, |hash: u32, byte| {
        (hash ^ u32::from(byte)).wrapping_mul(16_777_619)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_of_nodes_are_short_enough() {
        assert_eq!(managed_by(None), "external-provisioner");
        for (node, label) in [
            ("node-1".to_owned(), "external-provisioner-node-1"),
            (
                "ip-10-0-123-45.eu-central-1.compute.internal".to_owned(),
                "external--53f40b57-ip-10-0-123-45.eu-central-1.compute.internal",
            ),
            ("n".repeat(60), "external-provisioner-68181516"),
        ] {
            assert_eq!(managed_by(Some(&node)), label);
            assert!(label.len() <= 63);
        }
    }
}
