//! Who owns whom, as the watches tell it. It says whom to look at, never what to do.

use std::collections::{HashMap, HashSet};
use std::fmt;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

/// The finalizer of a foreground deletion: the object goes after its dependents.
pub(super) const FOREGROUND: &str = "foregroundDeletion";

/// The finalizer of an orphan deletion: dependents stay.
pub(super) const ORPHAN: &str = "orphan";

/// One object, and not another of the same name.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Key {
    /// As [`Resource::name`](crate::resources::Resource::name).
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

/// What is remembered of an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Node {
    pub(super) key: Key,
    /// The owners' uids, and whether this object holds up their foreground deletion.
    pub(super) owners: Vec<(String, bool)>,
    pub(super) deleting: bool,
    /// Its deletion waits for the collector.
    pub(super) collecting: bool,
}

impl Node {
    pub(super) fn new(resource: &str, metadata: &ObjectMeta) -> Option<Self> {
        let owners = metadata.owner_references.iter().flatten();
        let deleting = metadata.deletion_timestamp.is_some();
        let mut finalizers = metadata.finalizers.iter().flatten();
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
            collecting: deleting && finalizers.any(|f| f == FOREGROUND || f == ORPHAN),
        })
    }
}

/// All objects.
#[derive(Debug, Default)]
pub(super) struct Graph {
    nodes: HashMap<String, Node>,
    dependents: HashMap<String, HashSet<String>>,
}

impl Graph {
    /// An object came or changed; whom to look at now.
    pub(super) fn apply(&mut self, node: Node) -> Vec<Key> {
        let mut look = Vec::new();
        let uid = node.key.uid.clone();
        let before = self.unlink(&uid);
        for (owner, _) in &node.owners {
            let dependents = self.dependents.entry(owner.clone()).or_default();
            dependents.insert(uid.clone());
        }
        // An owner that is unknown may be gone, one that is going may want its dependents gone.
        let lost = node.owners.iter().any(|(owner, _)| {
            let owner = self.nodes.get(owner);
            owner.is_none_or(|owner| owner.collecting)
        });
        if lost || node.collecting {
            look.push(node.key.clone());
        }
        // Whoever is no longer held up by this one.
        let freed = before.iter().flat_map(|before| &before.owners);
        let freed = freed.filter(|owner| !node.owners.contains(owner));
        look.extend(freed.filter_map(|(owner, _)| self.waiting(owner)));
        self.nodes.insert(uid, node);
        look
    }

    /// An object is gone; whom to look at now.
    pub(super) fn remove(&mut self, uid: &str) -> Vec<Key> {
        let mut look: Vec<Key> = self.dependents(uid).map(|node| node.key.clone()).collect();
        if let Some(gone) = self.unlink(uid) {
            let owners = gone.owners.iter();
            look.extend(owners.filter_map(|(owner, _)| self.waiting(owner)));
        }
        look
    }

    /// A new list of all objects of a kind, or of those in a namespace.
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

    /// Objects that name this one as an owner.
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
        }
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
    fn dependents_are_looked_at_when_an_owner_goes_and_when_it_is_unknown() {
        let mut graph = Graph::default();
        assert_eq!(names(&graph.apply(node("early", &["owner"]))), ["early"]);
        graph.apply(node("owner", &[]));
        graph.apply(node("late", &["owner"]));
        assert_eq!(names(&graph.remove("owner")), ["early", "late"]);
        assert!(graph.remove("owner").len() == 2, "they still name it");
    }

    #[test]
    fn an_owner_that_waits_is_looked_at_when_a_dependent_goes_or_is_freed() {
        let mut graph = Graph::default();
        graph.apply(node("a", &["owner"]));
        graph.apply(node("b", &["owner"]));
        let mut owner = node("owner", &[]);
        (owner.deleting, owner.collecting) = (true, true);
        assert_eq!(names(&graph.apply(owner)), ["owner"]);
        assert_eq!(names(&graph.remove("a")), ["owner"]);
        assert_eq!(names(&graph.apply(node("b", &[]))), ["owner"]);
        assert_eq!(graph.dependents("owner").count(), 0);
    }

    #[test]
    fn what_is_missing_in_a_new_list_is_gone() {
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
}
