//! Updates the cached objects, and decides what to examine after a change.
//!
//! The manager's cache does not fit, because a decision needs the previous version of an object, several kinds under one
//! lock, and an index.

use std::sync::Arc;

use futures_util::StreamExt as _;
use futures_util::future::BoxFuture;
use kube::runtime::watcher::{self, Event};
use kube::runtime::{WatchStreamExt as _, watcher as watch_objects};
use kube::{Api, Resource, ResourceExt as _};
use tenure_kinds::{CSINode, Node, PersistentVolume, PersistentVolumeClaim, StorageClass};
use tenure_manager::Cached;
use tokio::sync::watch;

use super::objects::Pod;
use super::world::{IndexKey, Indexes, Kept, Name, ObjectIndex, claims_of};
use super::{Key, Storage};

/// A cached kind, and the items that a change of it affects.
pub(super) trait Followed: Kept + Cached {
    fn index(indexes: &mut Indexes) -> &mut ObjectIndex<Self>;

    /// Returns what to examine when an object was created, changed (from `old`) or deleted.
    fn touched(&self, old: Option<&Self>, indexes: &Indexes) -> Vec<Key>;

    /// Drops state that is no longer needed after such a change.
    fn forget(&self, _: &mut Indexes) {}
}

impl Storage {
    /// Returns the feeds of all needed kinds, and the number of kinds that are not listed yet.
    pub(super) fn feeds(&self) -> (Vec<BoxFuture<'_, ()>>, watch::Receiver<usize>) {
        let (missing, synced) = watch::channel(0);
        let mut feeds = vec![
            self.follow::<PersistentVolumeClaim>(&missing),
            self.follow::<PersistentVolume>(&missing),
        ];
        if self.which.binder || self.which.first_consumer {
            feeds.push(self.follow::<StorageClass>(&missing));
            feeds.push(self.follow::<Node>(&missing));
        }
        if self.which.claim_protection || self.which.first_consumer {
            feeds.push(self.follow::<Pod>(&missing));
        }
        if self.which.first_consumer {
            feeds.push(self.follow::<CSINode>(&missing));
        }
        (feeds, synced)
    }

    fn follow<K>(&self, missing: &watch::Sender<usize>) -> BoxFuture<'_, ()>
    where
        K: Followed + Resource<DynamicType = ()>,
    {
        missing.send_modify(|missing| *missing += 1);
        let mut first = Some(missing.clone());
        let objects: Api<K> = Api::all(self.write.client.clone());
        Box::pin(async move {
            let events = watch_objects(objects, watcher::Config::default()).default_backoff();
            let mut events = std::pin::pin!(events);
            let mut listing = Vec::new();
            while let Some(event) = events.next().await {
                match event {
                    Ok(Event::Init) => listing.clear(),
                    Ok(Event::InitApply(object)) => listing.push(Arc::new(object)),
                    Ok(Event::InitDone) => {
                        self.listed(std::mem::take(&mut listing));
                        if let Some(missing) = first.take() {
                            missing.send_modify(|missing| *missing -= 1);
                        }
                    }
                    Ok(Event::Apply(object)) => self.changed(&Arc::new(object)),
                    Ok(Event::Delete(object)) => self.gone(&object),
                    Err(error) => {
                        let kind = K::plural(&());
                        tracing::debug!(%kind, error = tenure_lock::in_words(&error), "a watch failed; retrying");
                    }
                }
            }
        })
    }

    fn listed<K: Followed>(&self, objects: Vec<Arc<K>>) {
        let mut indexes = self.world.lock();
        let mut all = objects.clone();
        all.extend(K::index(&mut indexes).reset(objects));
        for object in &all {
            object.forget(&mut indexes);
        }
        let keys: Vec<Key> = all
            .iter()
            .flat_map(|object| object.touched(None, &indexes))
            .collect();
        drop(indexes);
        self.queue_all(keys);
    }

    pub(super) fn changed<K: Followed>(&self, object: &Arc<K>) {
        let mut indexes = self.world.lock();
        let old = K::index(&mut indexes).put(object.clone());
        object.forget(&mut indexes);
        let keys = object.touched(old.as_deref(), &indexes);
        drop(indexes);
        self.queue_all(keys);
    }

    fn gone<K: Followed>(&self, object: &K) {
        let mut indexes = self.world.lock();
        K::index(&mut indexes).remove(object);
        object.forget(&mut indexes);
        let keys = object.touched(None, &indexes);
        drop(indexes);
        self.queue_all(keys);
    }

    fn queue_all(&self, keys: Vec<Key>) {
        for key in keys {
            let wanted = match key {
                Key::Claim(_) | Key::Volume(_) => self.which.binder,
                Key::ClaimProtection(_) => self.which.claim_protection,
                Key::VolumeProtection(_) => self.which.volume_protection,
                Key::Pod(_) => self.which.first_consumer,
            };
            if wanted {
                self.queue.add(key);
            }
        }
    }
}

impl Followed for PersistentVolumeClaim {
    fn index(indexes: &mut Indexes) -> &mut ObjectIndex<Self> {
        &mut indexes.claims
    }

    fn touched(&self, _: Option<&Self>, indexes: &Indexes) -> Vec<Key> {
        let name = Name::of(&self.metadata);
        let mut keys = vec![Key::Claim(name.clone()), Key::ClaimProtection(name.clone())];
        let naming = indexes.volumes.by(&IndexKey::Claim(name.clone()));
        keys.extend(naming.cloned().map(Key::Volume));
        let waiting = indexes.pods.by(&IndexKey::Waiting(name));
        keys.extend(waiting.cloned().map(Key::Pod));
        keys
    }

    fn forget(&self, indexes: &mut Indexes) {
        if !indexes.is_open(self) {
            indexes.choices.forget(&Name::of(&self.metadata));
        }
    }
}

impl Followed for PersistentVolume {
    fn index(indexes: &mut Indexes) -> &mut ObjectIndex<Self> {
        &mut indexes.volumes
    }

    fn touched(&self, old: Option<&Self>, indexes: &Indexes) -> Vec<Key> {
        let name = Name::of(&self.metadata);
        let mut keys = vec![
            Key::Volume(name.clone()),
            Key::VolumeProtection(name.clone()),
        ];
        for volume in [Some(self), old].into_iter().flatten() {
            // The claim that the volume names, and the claims that name the volume.
            keys.extend(volume.index_keys().into_iter().filter_map(|key| match key {
                IndexKey::Claim(claim) => Some(Key::Claim(claim)),
                _ => None,
            }));
        }
        let named = indexes.claims.by(&IndexKey::Volume(name.name));
        keys.extend(named.cloned().map(Key::Claim));
        // A free volume may suit waiting claims, or pods that wait for their claims.
        if self.index_keys() == [IndexKey::Free(self.class().to_owned())] {
            for claim in indexes.claims.by(&self.index_keys()[0]) {
                keys.push(Key::Claim(claim.clone()));
                let waiting = indexes.pods.by(&IndexKey::Waiting(claim.clone()));
                keys.extend(waiting.cloned().map(Key::Pod));
            }
        }
        keys
    }
}

impl Followed for StorageClass {
    fn index(indexes: &mut Indexes) -> &mut ObjectIndex<Self> {
        &mut indexes.classes
    }

    fn touched(&self, _: Option<&Self>, indexes: &Indexes) -> Vec<Key> {
        let mut keys = Vec::new();
        for claim in indexes.claims.find(&IndexKey::Free(self.name_any())) {
            debug_assert_eq!(claim.class(), self.name_any());
            let name = Name::of(&claim.metadata);
            let waiting = indexes.pods.by(&IndexKey::Waiting(name.clone()));
            keys.extend(waiting.cloned().map(Key::Pod));
            keys.push(Key::Claim(name));
        }
        keys
    }
}

impl Followed for Pod {
    fn index(indexes: &mut Indexes) -> &mut ObjectIndex<Self> {
        &mut indexes.pods
    }

    fn touched(&self, old: Option<&Self>, _: &Indexes) -> Vec<Key> {
        // A pod with the same name may use other claims.
        let used = [Some(self), old].into_iter().flatten().flat_map(claims_of);
        let mut keys: Vec<Key> = used.map(Key::ClaimProtection).collect();
        if !keys.is_empty() {
            keys.push(Key::Pod(Name::of(&self.metadata)));
        }
        keys
    }
}

impl Followed for Node {
    fn index(indexes: &mut Indexes) -> &mut ObjectIndex<Self> {
        &mut indexes.nodes
    }

    fn touched(&self, old: Option<&Self>, indexes: &Indexes) -> Vec<Key> {
        // Nodes update their status continuously; only the relevant fields count.
        let same = old.is_some_and(|old| {
            old.spec == self.spec && old.metadata.labels == self.metadata.labels
        });
        if same {
            return Vec::new();
        }
        let mut keys = waiting(indexes);
        let selected = indexes.claims.by(&IndexKey::Selected(self.name_any()));
        keys.extend(selected.cloned().map(Key::Claim));
        keys
    }
}

impl Followed for CSINode {
    fn index(indexes: &mut Indexes) -> &mut ObjectIndex<Self> {
        &mut indexes.drivers
    }

    fn touched(&self, _: Option<&Self>, indexes: &Indexes) -> Vec<Key> {
        waiting(indexes)
    }
}

/// Returns every pod that waits for a node.
fn waiting(indexes: &Indexes) -> Vec<Key> {
    let pods = indexes.pods.all();
    pods.filter(|pod| super::first_consumer::waits_for_a_node(pod))
        .map(|pod| Key::Pod(Name::of(&pod.metadata)))
        .collect()
}
