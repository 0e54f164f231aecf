//! The ownership graph, built from watch events. It decides which objects to examine, never what to do with them.

use std::collections::{HashMap, HashSet};
use std::fmt;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

/// The finalizer of a foreground deletion: the object is deleted after its dependents.
pub(super) const FOREGROUND: &str = "foregroundDeletion";

/// The finalizer of an orphan deletion: dependents stay.
pub(super) const ORPHAN: &str = "orphan";

/// Identifies one object. Another object with the same name has another uid.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Key {
    /// Same as [`Resource::name`](crate::resources::Resource::name).
    pub(super) resource: String,
    pub(super) namespace: String,
    pub(super) name: String,
    pub(super) uid: String,
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let resource = self.resource.trim_start_matches('/');
        write!(f, "{resource} {}/{}", self.namespace, self.name)
    }
}

/// The remembered state of an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Node {
    pub(super) key: Key,
    /// The owners' uids, and whether this object blocks their foreground deletion.
    pub(super) owners: Vec<(String, bool)>,
    pub(super) deleting: bool,
    /// Whether the deletion of the object waits for the collector.
    pub(super) collecting: bool,
    /// Whether the deletion of the object waits for its dependents.
    pub(super) foreground: bool,
}

impl Node {
    pub(super) fn new(resource: &str, metadata: &ObjectMeta) -> Option<Self> {
        let owners = metadata.owner_references.iter().flatten();
        let deleting = metadata.deletion_timestamp.is_some();
        let finalizers = || metadata.finalizers.iter().flatten();
        let foreground = deleting && finalizers().any(|f| f == FOREGROUND);
        Some(Self {
            key: Key {
                resource: resource.to_owned(),
                namespace: metadata.namespace.clone().unwrap_or_default(),
                name: metadata.name.clone()?,
                uid: metadata.uid.clone()?,
            },
            owners: owners
                .map(|owner| (owner.uid.clone(), owner.block_owner_deletion == Some(true)))
                .collect(),
            deleting,
            collecting: foreground || (deleting && finalizers().any(|f| f == ORPHAN)),
            foreground,
        })
    }

    /// Returns whether this object blocks the foreground deletion of an owner.
    fn blocks(&self, owner: &Node) -> bool {
        // A cluster-scoped object cannot have an owner in a namespace: such a reference resolves to nothing.
        let possible = !self.key.namespace.is_empty() || owner.key.namespace.is_empty();
        possible && self.owners.iter().any(|(o, b)| *b && *o == owner.key.uid)
    }
}

/// Maximum number of objects that one search for a ring visits. A longer ring is not found, and its objects stay.
const RING_SEARCH: usize = 10_000;

/// All objects.
#[derive(Debug, Default)]
pub(super) struct Graph {
    nodes: HashMap<String, Node>,
    dependents: HashMap<String, HashSet<String>>,
    /// Objects with an owner of an unknown kind: they are examined again when there are new kinds.
    parked: HashSet<String>,
}

impl Graph {
    /// Schedules another examination of an object, which takes place when there are new kinds.
    pub(super) fn park(&mut self, uid: &str) {
        if self.nodes.contains_key(uid) {
            self.parked.insert(uid.to_owned());
        }
    }

    /// Handles new kinds. Returns the objects to examine now.
    pub(super) fn unpark(&mut self) -> Vec<Key> {
        let parked = std::mem::take(&mut self.parked);
        let nodes = parked.iter().filter_map(|uid| self.nodes.get(uid));
        nodes.map(|node| node.key.clone()).collect()
    }

    /// Returns the dependents that block the foreground deletion of an object.
    pub(super) fn blocking(&self, uid: &str) -> Vec<&Node> {
        let Some(owner) = self.nodes.get(uid) else {
            return Vec::new();
        };
        let dependents = self.dependents(uid);
        dependents.filter(|node| node.blocks(owner)).collect()
    }

    /// Returns the objects that block the foreground deletion of an object and that themselves wait for dependents. If
    /// one of them is the object itself or an owner of it, these objects wait for each other in a ring.
    pub(super) fn waited_for(&self, uid: &str) -> HashSet<String> {
        let mut found = HashSet::new();
        let mut next = vec![uid];
        while let Some(uid) = next.pop() {
            for node in self.blocking(uid) {
                if found.len() >= RING_SEARCH {
                    return found;
                }
                if node.foreground && found.insert(node.key.uid.clone()) {
                    next.push(&node.key.uid);
                }
            }
        }
        found
    }

    /// Adds or updates an object. Returns the objects to examine now.
    pub(super) fn apply(&mut self, node: Node) -> Vec<Key> {
        let mut look = Vec::new();
        let uid = node.key.uid.clone();
        let before = self.unlink(&uid);
        for (owner, _) in &node.owners {
            let dependents = self.dependents.entry(owner.clone()).or_default();
            dependents.insert(uid.clone());
        }
        // An unknown owner may be gone. An owner that is being deleted may require the deletion of its dependents.
        let lost = node.owners.iter().any(|(owner, _)| {
            let owner = self.nodes.get(owner);
            owner.is_none_or(|owner| owner.collecting)
        });
        if lost || node.collecting {
            look.push(node.key.clone());
        }
        // The owners that this object no longer blocks.
        let freed = before.iter().flat_map(|before| &before.owners);
        let freed = freed.filter(|owner| !node.owners.contains(owner));
        look.extend(freed.filter_map(|(owner, _)| self.waiting(owner)));
        self.nodes.insert(uid, node);
        look
    }

    /// Removes an object. Returns the objects to examine now.
    pub(super) fn remove(&mut self, uid: &str) -> Vec<Key> {
        let mut look: Vec<Key> = self.dependents(uid).map(|node| node.key.clone()).collect();
        if let Some(gone) = self.unlink(uid) {
            let owners = gone.owners.iter();
            look.extend(owners.filter_map(|(owner, _)| self.waiting(owner)));
        }
        look
    }

    /// Applies a new list of all objects of a kind, or of those in a namespace.
    pub(super) fn replace(
        &mut self,
        resource: &str,
        namespace: Option<&str>,
        nodes: Vec<Node>,
    ) -> Vec<Key> {
        let present: HashSet<&str> = nodes.iter().map(|node| node.key.uid.as_str()).collect();
        let known = self.nodes.values();
        let listed = |key: &Key| {
            key.resource == resource && namespace.is_none_or(|namespace| key.namespace == namespace)
        };
        let gone: Vec<String> = known
            .map(|node| &node.key)
            .filter(|key| listed(key) && !present.contains(key.uid.as_str()))
            .map(|key| key.uid.clone())
            .collect();
        let mut look: Vec<Key> = gone.iter().flat_map(|uid| self.remove(uid)).collect();
        look.extend(nodes.into_iter().flat_map(|node| self.apply(node)));
        look
    }

    /// Returns the objects that name this one as an owner.
    pub(super) fn dependents(&self, uid: &str) -> impl Iterator<Item = &Node> {
        let dependents = self.dependents.get(uid).into_iter().flatten();
        dependents.filter_map(|uid| self.nodes.get(uid))
    }

    fn waiting(&self, uid: &str) -> Option<Key> {
        let node = self.nodes.get(uid)?;
        node.collecting.then(|| node.key.clone())
    }

    fn unlink(&mut self, uid: &str) -> Option<Node> {
        let node = self.nodes.remove(uid)?;
        self.parked.remove(uid);
        for (owner, _) in &node.owners {
            if let Some(dependents) = self.dependents.get_mut(owner) {
                dependents.remove(uid);
                if dependents.is_empty() {
                    self.dependents.remove(owner);
                }
            }
        }
        Some(node)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(name: &str, owners: &[&str]) -> Node {
        Node {
            key: Key {
                resource: "/configmaps".to_owned(),
                namespace: "default".to_owned(),
                name: name.to_owned(),
                uid: name.to_owned(),
            },
            owners: owners.iter().map(|o| ((*o).to_owned(), true)).collect(),
            deleting: false,
            collecting: false,
            foreground: false,
        }
    }

    fn waiting(name: &str, owners: &[&str]) -> Node {
        let mut node = node(name, owners);
        (node.deleting, node.collecting, node.foreground) = (true, true, true);
        node
    }

    fn names(keys: &[Key]) -> Vec<&str> {
        let mut names: Vec<&str> = keys.iter().map(|key| key.name.as_str()).collect();
        names.sort_unstable();
        names
    }

    #[test]
    fn an_object_with_a_living_owner_is_left_alone() {
        let mut graph = Graph::default();
        assert!(graph.apply(node("owner", &[])).is_empty());
        assert!(graph.apply(node("a", &["owner"])).is_empty());
    }

    #[test]
    fn dependents_are_examined_when_an_owner_is_removed_or_unknown() {
        let mut graph = Graph::default();
        assert_eq!(names(&graph.apply(node("early", &["owner"]))), ["early"]);
        graph.apply(node("owner", &[]));
        graph.apply(node("late", &["owner"]));
        assert_eq!(names(&graph.remove("owner")), ["early", "late"]);
        assert!(graph.remove("owner").len() == 2, "they still name it");
    }

    #[test]
    fn waiting_owner_is_examined_when_a_dependent_is_removed_or_unblocked() {
        let mut graph = Graph::default();
        graph.apply(node("a", &["owner"]));
        graph.apply(node("b", &["owner"]));
        assert_eq!(names(&graph.apply(waiting("owner", &[]))), ["owner"]);
        assert_eq!(names(&graph.remove("a")), ["owner"]);
        assert_eq!(names(&graph.apply(node("b", &[]))), ["owner"]);
        assert_eq!(graph.dependents("owner").count(), 0);
    }

    #[test]
    fn objects_missing_in_a_new_list_are_removed() {
        let mut graph = Graph::default();
        graph.apply(node("owner", &[]));
        let mut other = node("a", &["owner"]);
        other.key.resource = "/secrets".to_owned();
        graph.apply(other);
        assert!(
            graph
                .replace("/configmaps", Some("elsewhere"), vec![])
                .is_empty()
        );
        assert_eq!(names(&graph.replace("/configmaps", None, vec![])), ["a"]);
        assert!(graph.replace("/configmaps", None, vec![]).is_empty());
    }

    #[test]
    fn a_ring_is_found_when_all_of_it_waits() {
        let mut graph = Graph::default();
        graph.apply(waiting("a", &["c"]));
        graph.apply(waiting("b", &["a"]));
        graph.apply(node("c", &["b"]));
        assert!(!graph.waited_for("a").contains("a"), "c does not wait yet");
        graph.apply(waiting("c", &["b"]));
        for name in ["a", "b", "c"] {
            assert_eq!(graph.waited_for(name).len(), 3, "{name}");
        }
        let mut free = waiting("c", &["b"]);
        free.owners[0].1 = false;
        assert_eq!(names(&graph.apply(free)), ["b", "c"]);
        assert!(graph.blocking("b").is_empty());
        assert!(!graph.waited_for("a").contains("a"), "c blocks nothing");
    }

    #[test]
    fn an_object_without_a_namespace_blocks_no_owner_in_one() {
        let mut graph = Graph::default();
        graph.apply(waiting("owner", &[]));
        let mut cluster = node("cluster", &["owner"]);
        cluster.key.namespace.clear();
        graph.apply(cluster);
        assert!(graph.blocking("owner").is_empty());
    }

    #[test]
    fn parked_objects_are_examined_once_and_forgotten_when_they_go() {
        let mut graph = Graph::default();
        graph.apply(node("a", &["x"]));
        graph.apply(node("b", &["x"]));
        graph.park("a");
        graph.park("b");
        graph.park("never seen");
        graph.remove("b");
        assert_eq!(names(&graph.unpark()), ["a"]);
        assert!(graph.unpark().is_empty());
    }
}
