//! `--enable-capacity`: how much room there is, for the scheduler. One CSIStorageCapacity for each topology
//! segment and class.
//!
//! The invariant: work is named by value, segment and class, so the queue holds each pair at most once,
//! however often something asks for it.

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
use crate::metrics::Rooms;
use crate::objects::{Class, Room};
use crate::options::Capacity;
use crate::quantity;
use crate::topology::{Term, term_of};

/// What one object is about: a segment and a class.
pub(crate) type Item = (Term, String);

const DRIVER_LABEL: &str = "csi.storage.k8s.io/drivername";
const MANAGED_LABEL: &str = "csi.storage.k8s.io/managed-by";
/// Nodes report often, and rarely anything that counts here.
const PAUSE: Duration = Duration::from_millis(100);

/// Keeps the objects of one driver up to date.
pub(crate) struct Capacities {
    pub(crate) driver: Driver,
    pub(crate) name: String,
    pub(crate) cluster: Cluster,
    pub(crate) caches: Caches,
    pub(crate) options: Capacity,
    pub(crate) owner: Option<OwnerReference>,
    pub(crate) managed_by: String,
    /// With `--node-deployment`, the only segment.
    pub(crate) fixed: Option<Term>,
    pub(crate) queue: WorkQueue<Item>,
    pub(crate) metrics: Rooms,
    pub(crate) goal: Mutex<HashSet<Item>>,
}

impl Capacities {
    /// Works until the tasks are dropped, from when it is known which objects there are. Provisioning does
    /// not wait for that.
    pub(crate) fn start(self: Arc<Self>) -> JoinSet<()> {
        let mut tasks = JoinSet::new();
        let api: Api<Room> = Api::namespaced(self.cluster.client(), &self.options.namespace);
        let labels = format!(
            "{DRIVER_LABEL}={},{MANAGED_LABEL}={}",
            self.name, self.managed_by
        );
        let rooms = self.caches.rooms.clone();
        let capacities = self.clone();
        let tell = move |name: &str, change: Change<()>| match change {
            Change::Applied(()) => {
                if let Some(room) = capacities.caches.rooms.get(name) {
                    capacities.seen(&room);
                }
            }
            // Whose it was is known by what is missing now.
            Change::Gone => capacities.caches.changed.notify_one(),
        };
        let name = |room: &Room| room.metadata.name.clone().unwrap_or_default();
        tasks.spawn(rooms.run_labelled(api, labels, name, tell));
        tasks.spawn(self.clone().when_known(self.clone().follow()));
        tasks.spawn(self.clone().when_known(self.clone().poll()));
        for _ in 0..self.options.threads {
            tasks.spawn(self.clone().when_known(self.clone().work()));
        }
        tasks
    }

    async fn when_known(self: Arc<Self>, work: impl Future<Output = ()>) {
        self.caches.rooms.synced().await;
        work.await;
    }

    /// Asks again about what a new or deleted volume has changed: the segments it is in, else its class.
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

    /// Somebody wrote an object; perhaps we did.
    fn seen(&self, room: &Room) {
        let item = room.item();
        let wanted = lock(&self.goal).contains(&item);
        if !wanted || !self.is_ours(room) {
            self.queue.add(item);
        }
    }

    /// Follows nodes and classes, for ever.
    async fn follow(self: Arc<Self>) {
        loop {
            self.recompute();
            self.caches.changed.notified().await;
            tokio::time::sleep_until(Instant::now() + PAUSE).await;
        }
    }

    fn recompute(&self) {
        let new = self.wanted();
        let rooms = self.caches.rooms.all();
        let there: HashSet<Item> = rooms.iter().map(|room| room.item()).collect();
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
        let rooms = self.caches.rooms.all();
        let there: HashSet<Item> = rooms.iter().map(|room| room.item()).collect();
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

    /// Where the driver runs: the topology of every node that it is registered on.
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

    /// Asks about everything once in a while.
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
                    tracing::warn!(segment = ?item.0, class = item.1, error, "capacity not known");
                    self.queue.add_rate_limited(item.clone());
                }
            }
            self.count();
        }
    }

    async fn sync(&self, item: &Item) -> Result<(), String> {
        let mut rooms = self.caches.rooms.all();
        rooms.retain(|room| room.item() == *item);
        rooms.sort_by(|a, b| a.metadata.name.cmp(&b.metadata.name));
        let wanted = lock(&self.goal).contains(item);
        let spare = if wanted { 1 } else { 0 };
        for room in rooms.iter().skip(spare) {
            let deleted = self.cluster.delete_room(room).await;
            deleted.map_err(|error| error.to_string())?;
            self.caches
                .rooms
                .remove(room.metadata.name.as_deref().unwrap_or_default());
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
        let capacity = quantity::format(answer.available_capacity.max(0));
        let largest = answer.maximum_volume_size.map(quantity::format);
        let written = match rooms.first() {
            Some(room) if self.says(room, &capacity, largest.as_ref()) => return Ok(()),
            room => {
                let object = self.object(item, room.map(|room| &room.metadata), capacity, largest);
                self.cluster.write_room(&object).await
            }
        };
        let written = written.map_err(|error| error.to_string())?;
        let name = written.metadata.name.clone().unwrap_or_default();
        // The watch tells us later; until then this must not be taken for missing.
        self.caches.rooms.insert(&name, Room::from(written));
        Ok(())
    }

    fn says(&self, room: &Room, capacity: &str, largest: Option<&String>) -> bool {
        let size = |text: Option<&String>| text.and_then(|text| quantity::parse(text).ok());
        size(room.capacity.as_ref()) == quantity::parse(capacity).ok()
            && size(room.maximum_volume_size.as_ref()) == size(largest)
            && self.is_ours(room)
    }

    /// Nobody took it over.
    fn is_ours(&self, room: &Room) -> bool {
        let owners = room.metadata.owner_references.iter().flatten();
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

/// Whom the objects belong to: so many controllers up from the pod.
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

/// The label that tells whose objects these are: of all provisioners, or of the one on a node.
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
    // Two dashes and eight digits.
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
