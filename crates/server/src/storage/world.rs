//! Cached objects, from a watch or from the response to one of our writes.
//!
//! A cached object is only replaced by a newer version, because responses and watch events overtake each other. A
//! response replaces an existing entry but never adds one, because the object may already be gone.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::ResourceExt as _;
use tenure_kinds::{CSINode, Node, PersistentVolume, PersistentVolumeClaim, StorageClass};

use super::choices::Choices;
use super::objects::Pod;

/// Namespace and name of an object. The namespace is empty for cluster-scoped objects.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Name {
    pub(super) namespace: String,
    pub(super) name: String,
}

impl Name {
    pub(super) fn new(namespace: &str, name: &str) -> Self {
        Self {
            namespace: namespace.to_owned(),
            name: name.to_owned(),
        }
    }

    pub(super) fn of(meta: &ObjectMeta) -> Self {
        Self::new(
            meta.namespace.as_deref().unwrap_or_default(),
            meta.name.as_deref().unwrap_or_default(),
        )
    }
}

/// Objects of one kind, with an index of the keys by which they are looked up.
pub(super) struct ObjectIndex<K> {
    objects: HashMap<Name, Arc<K>>,
    by_key: HashMap<IndexKey, BTreeSet<Name>>,
}

/// Key by which objects are looked up.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum IndexKey {
    /// Volumes that name this claim.
    Claim(Name),
    /// Volumes that name no claim, or claims that name no volume, of this class.
    Free(String),
    /// Claims that name no volume and need one that this node can reach.
    Selected(String),
    /// Claims that name this volume.
    Volume(String),
    /// Pods without a node that use this claim.
    Waiting(Name),
    /// Pods that use this claim.
    Uses(Name),
}

/// A cached kind.
pub(super) trait Kept: kube::Resource {
    /// Returns the keys of an object.
    fn index_keys(&self) -> Vec<IndexKey> {
        Vec::new()
    }
}

impl Kept for PersistentVolume {
    fn index_keys(&self) -> Vec<IndexKey> {
        vec![match &self.spec.claim_ref {
            Some(claim) => IndexKey::Claim(Name::new(&claim.namespace, &claim.name)),
            None => IndexKey::Free(self.class().to_owned()),
        }]
    }
}

impl Kept for PersistentVolumeClaim {
    fn index_keys(&self) -> Vec<IndexKey> {
        if !self.spec.volume_name.is_empty() {
            return vec![IndexKey::Volume(self.spec.volume_name.clone())];
        }
        let node = self.selected_node();
        let node = node.map(|node| IndexKey::Selected(node.to_owned()));
        let free = IndexKey::Free(self.class().to_owned());
        [Some(free), node].into_iter().flatten().collect()
    }
}

impl Kept for Pod {
    fn index_keys(&self) -> Vec<IndexKey> {
        let waits = super::first_consumer::waits_for_a_node(self);
        let claims = claims_of(self).into_iter();
        claims
            .flat_map(|name| {
                let uses = IndexKey::Uses(name.clone());
                [Some(uses), waits.then_some(IndexKey::Waiting(name))]
            })
            .flatten()
            .collect()
    }
}

impl Kept for StorageClass {}
impl Kept for Node {}
impl Kept for CSINode {}

/// Returns the claims that a pod's volumes name, including claims created for the pod.
pub(super) fn claims_of(pod: &Pod) -> Vec<Name> {
    let (namespace, name) = (pod.namespace().unwrap_or_default(), pod.name_any());
    let volumes = pod.spec.as_ref().and_then(|spec| spec.volumes.as_deref());
    let claims = volumes.unwrap_or_default().iter().filter_map(|volume| {
        let named = volume.persistent_volume_claim.as_ref();
        named.map(|claim| claim.claim_name.clone()).or_else(|| {
            volume
                .ephemeral
                .as_ref()
                .map(|_| format!("{name}-{}", volume.name))
        })
    });
    claims.map(|claim| Name::new(&namespace, &claim)).collect()
}

impl<K> Default for ObjectIndex<K> {
    fn default() -> Self {
        Self {
            objects: HashMap::new(),
            by_key: HashMap::new(),
        }
    }
}

impl<K: Kept> ObjectIndex<K> {
    pub(super) fn get(&self, name: &Name) -> Option<Arc<K>> {
        self.objects.get(name).cloned()
    }

    /// Returns a cluster-scoped object.
    pub(super) fn named(&self, name: &str) -> Option<Arc<K>> {
        self.get(&Name::new("", name))
    }

    pub(super) fn all(&self) -> impl Iterator<Item = &Arc<K>> {
        self.objects.values()
    }

    /// Returns the names for a key.
    pub(super) fn by<'a>(&'a self, key: &IndexKey) -> impl Iterator<Item = &'a Name> + use<'a, K> {
        self.by_key.get(key).into_iter().flatten()
    }

    /// Returns the objects for a key.
    pub(super) fn find<'a>(
        &'a self,
        key: &IndexKey,
    ) -> impl Iterator<Item = &'a Arc<K>> + use<'a, K> {
        self.by(key).filter_map(|name| self.objects.get(name))
    }

    /// Stores an object from a watch. Returns the previous version, if there was one.
    pub(super) fn put(&mut self, object: Arc<K>) -> Option<Arc<K>> {
        let name = Name::of(object.meta());
        let old = self.objects.get(&name).cloned();
        if old
            .as_ref()
            .is_some_and(|old| newer(old.meta(), object.meta()))
        {
            return old;
        }
        self.take(&name);
        for key in object.index_keys() {
            self.by_key.entry(key).or_default().insert(name.clone());
        }
        self.objects.insert(name, object);
        old
    }

    /// Stores an object from the response to a write.
    pub(super) fn replace(&mut self, object: Arc<K>) {
        let there = self.objects.get(&Name::of(object.meta()));
        if there.is_some_and(|there| there.meta().uid == object.meta().uid) {
            self.put(object);
        }
    }

    /// Removes an object that a watch reported as deleted. A newer object with the same name stays.
    pub(super) fn remove(&mut self, gone: &K) {
        let name = Name::of(gone.meta());
        let there = self.objects.get(&name);
        if there.is_some_and(|there| !newer(there.meta(), gone.meta())) {
            self.take(&name);
        }
    }

    /// Applies a complete list. Returns the objects that are missing in it.
    pub(super) fn reset(&mut self, objects: Vec<Arc<K>>) -> Vec<Arc<K>> {
        let listed: BTreeSet<Name> = objects.iter().map(|o| Name::of(o.meta())).collect();
        let gone: Vec<Name> = self
            .objects
            .keys()
            .filter(|n| !listed.contains(n))
            .cloned()
            .collect();
        let gone = gone.iter().filter_map(|name| self.take(name)).collect();
        for object in objects {
            self.put(object);
        }
        gone
    }

    fn take(&mut self, name: &Name) -> Option<Arc<K>> {
        let old = self.objects.remove(name)?;
        for key in old.index_keys() {
            if let Some(names) = self.by_key.get_mut(&key) {
                names.remove(name);
                if names.is_empty() {
                    self.by_key.remove(&key);
                }
            }
        }
        Some(old)
    }
}

/// Returns whether the first is newer than the second.
fn newer(first: &ObjectMeta, second: &ObjectMeta) -> bool {
    let revision = |meta: &ObjectMeta| meta.resource_version.as_ref()?.parse::<u64>().ok();
    match (revision(first), revision(second)) {
        (Some(first), Some(second)) => first > second,
        _ => false,
    }
}

/// The caches of all kinds.
#[derive(Default)]
pub(super) struct Indexes {
    pub(super) claims: ObjectIndex<PersistentVolumeClaim>,
    pub(super) volumes: ObjectIndex<PersistentVolume>,
    pub(super) classes: ObjectIndex<StorageClass>,
    pub(super) pods: ObjectIndex<Pod>,
    pub(super) nodes: ObjectIndex<Node>,
    pub(super) drivers: ObjectIndex<CSINode>,
    /// Order in which nodes were last selected for a claim, counted from the first selection.
    pub(super) chosen: HashMap<String, u64>,
    /// Number of node selections per claim, only for cached claims that name no volume.
    pub(super) choices: Choices,
    /// Reasons already reported per claim, with the claim's uid.
    pub(super) told: HashMap<Name, (Option<String>, HashSet<String>)>,
}

impl Indexes {
    /// Returns whether a claim still exists, is the same one, and has no volume.
    pub(super) fn is_open(&self, claim: &PersistentVolumeClaim) -> bool {
        let there = self.claims.objects.get(&Name::of(&claim.metadata));
        there.is_some_and(|there| {
            there.metadata.uid == claim.metadata.uid && there.spec.volume_name.is_empty()
        })
    }
}

/// The cache that all controllers share.
#[derive(Clone, Default)]
pub(super) struct World(Arc<Mutex<Indexes>>);

impl World {
    pub(super) fn lock(&self) -> MutexGuard<'_, Indexes> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn volume(version: u64, uid: &str, claim: Option<&str>) -> Arc<PersistentVolume> {
        let claim = claim.map(|name| serde_json::json!({ "namespace": "ns", "name": name }));
        let volume = serde_json::json!({
            "metadata": { "name": "v", "uid": uid, "resourceVersion": version.to_string() },
            "spec": { "storageClassName": "fast", "claimRef": claim },
        });
        Arc::new(serde_json::from_value(volume).unwrap())
    }

    fn found(index: &ObjectIndex<PersistentVolume>, key: &IndexKey) -> usize {
        index.by(key).count()
    }

    #[test]
    fn older_versions_are_ignored_and_the_index_follows_the_newest() {
        let (free, claimed) = (
            IndexKey::Free("fast".into()),
            IndexKey::Claim(Name::new("ns", "c")),
        );
        let mut index = ObjectIndex::default();
        index.put(volume(2, "a", None));
        assert_eq!(found(&index, &free), 1);
        index.replace(volume(3, "a", Some("c")));
        index.put(volume(2, "a", None));
        assert_eq!((found(&index, &free), found(&index, &claimed)), (0, 1));
        index.remove(&volume(2, "a", None));
        assert_eq!(found(&index, &claimed), 1, "the news of its end is older");
        index.remove(&volume(4, "a", None));
        assert_eq!((found(&index, &free), found(&index, &claimed)), (0, 0));
    }

    #[test]
    fn response_does_not_restore_a_removed_object_or_replace_its_successor() {
        let mut index = ObjectIndex::default();
        index.replace(volume(3, "a", None));
        assert!(index.named("v").is_none());
        index.put(volume(5, "b", None));
        index.replace(volume(6, "a", Some("c")));
        assert_eq!(index.named("v").unwrap().metadata.uid.as_deref(), Some("b"));
    }

    #[test]
    fn objects_missing_in_a_list_are_removed_from_the_cache() {
        let mut index = ObjectIndex::default();
        index.put(volume(3, "a", None));
        assert_eq!(index.reset(Vec::new()).len(), 1);
        assert_eq!(found(&index, &IndexKey::Free("fast".into())), 0);
    }
}
