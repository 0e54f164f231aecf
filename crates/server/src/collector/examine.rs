//! Decides about one object, based on a fresh read from the API server.

use std::collections::HashSet;
use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use kube::api::{DeleteParams, Patch, PatchParams, Preconditions, PropagationPolicy};
use serde_json::json;

use super::graph::{FOREGROUND, Key, Node, ORPHAN};
use super::{Collector, is_watched};
use crate::resources::Resource;

/// Reason why an object could not be processed. It is retried.
#[derive(Debug, thiserror::Error)]
pub(super) enum Obstacle {
    #[error(transparent)]
    Api(#[from] kube::Error),
    /// The object is retried only when there are new kinds.
    #[error("owner {0} has an unknown kind")]
    UnknownKind(String),
    #[error("dependents still exist")]
    Dependents,
}

/// State of an owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Owner {
    /// The owner exists.
    Solid,
    /// The owner does not exist, or the object with its name is a different one.
    Dangling,
    /// The owner waits for its dependents to be deleted.
    Waiting,
}

impl Collector {
    pub(super) async fn examine(&self, key: &Key) -> Result<(), Obstacle> {
        let Some(resource) = self.resource(|resource| resource.name() == key.resource) else {
            return Ok(());
        };
        let Some(live) = self.live(&resource, &key.namespace, &key.name).await? else {
            return Ok(());
        };
        if live.uid.as_deref() != Some(&key.uid) {
            return Ok(());
        }
        if live.deletion_timestamp.is_some() {
            return self.finish_deletion(&resource, key, &live).await;
        }
        let owners = live.owner_references.clone().unwrap_or_default();
        if owners.is_empty() {
            return Ok(());
        }
        let mut states = Vec::new();
        for owner in &owners {
            states.push(self.owner(owner, &key.namespace).await?);
        }
        let count = |state| states.iter().filter(|s| **s == state).count();
        if count(Owner::Solid) > 0 {
            if count(Owner::Solid) == owners.len() {
                return Ok(());
            }
            // Another owner still exists; the references to the other owners are removed.
            let solid = owners.iter().zip(&states);
            let solid = solid.filter(|(_, state)| **state == Owner::Solid);
            let rest: Vec<&OwnerReference> = solid.map(|(owner, _)| owner).collect();
            return self.set_owners(&resource, key, &live, &rest).await;
        }
        let finalizers = live.finalizers.clone().unwrap_or_default();
        let has = |finalizer: &str| finalizers.iter().any(|f| f == finalizer);
        let has_dependents = self.graph().dependents(&key.uid).next().is_some();
        let policy = if count(Owner::Waiting) > 0 && has_dependents {
            // In a foreground deletion, the dependents of this object are deleted before it, and it is deleted before
            // its owner.
            PropagationPolicy::Foreground
        } else if has(ORPHAN) {
            PropagationPolicy::Orphan
        } else if has(FOREGROUND) {
            PropagationPolicy::Foreground
        } else {
            PropagationPolicy::Background
        };
        self.delete(&resource, key, &live, policy).await
    }

    /// Handles an object that is being deleted and waits for the collector.
    async fn finish_deletion(
        &self,
        resource: &Resource,
        key: &Key,
        live: &ObjectMeta,
    ) -> Result<(), Obstacle> {
        let finalizers = live.finalizers.clone().unwrap_or_default();
        let has = |finalizer: &str| finalizers.iter().any(|f| f == finalizer);
        if has(ORPHAN) || has(FOREGROUND) {
            self.list_unwatched(&key.namespace).await?;
        }
        if has(ORPHAN) {
            let dependents: Vec<Key> = self.dependents(&key.uid, |_| true);
            for dependent in dependents {
                self.orphan(&dependent, &key.uid).await?;
            }
            return self.drop_finalizer(resource, key, live, ORPHAN).await;
        }
        if !has(FOREGROUND) {
            return Ok(());
        }
        let (blocking, unheard, ring) = {
            let graph = self.graph();
            let blocking = graph.blocking(&key.uid);
            let unheard = blocking.iter().any(|n| !is_watched(&n.key.resource));
            (!blocking.is_empty(), unheard, graph.waited_for(&key.uid))
        };
        if !blocking {
            self.drop_finalizer(resource, key, live, FOREGROUND).await?;
        } else if self.unblock(resource, key, live, &ring).await? {
            // The change causes a watch event, after which the graph checks the owners again.
            return Ok(());
        }
        // Dependents that are already being deleted are skipped: checking them again would change nothing.
        let dependents = self.dependents(&key.uid, |node| !node.deleting);
        dependents.into_iter().for_each(|key| self.work.add(key));
        // The graph checks this object again when the last dependent is deleted, if the graph receives that event.
        if unheard {
            return Err(Obstacle::Dependents);
        }
        Ok(())
    }

    /// Removes the blocking references to owners, if this object and those owners wait for each other. Otherwise
    /// objects that own each other in a ring would wait forever. Returns true if there were such owners.
    async fn unblock(
        &self,
        resource: &Resource,
        key: &Key,
        live: &ObjectMeta,
        ring: &HashSet<String>,
    ) -> Result<bool, Obstacle> {
        let mut owners = live.owner_references.clone().unwrap_or_default();
        let mut found = false;
        for owner in &mut owners {
            // An object that owns itself waits for itself.
            let waits = owner.uid == key.uid || ring.contains(&owner.uid);
            if waits && owner.block_owner_deletion == Some(true) {
                owner.block_owner_deletion = Some(false);
                found = true;
            }
        }
        if found {
            tracing::debug!(object = %key, "owners block each other in a cycle; unblocking them");
            let owners: Vec<&OwnerReference> = owners.iter().collect();
            self.set_owners(resource, key, live, &owners).await?;
        }
        Ok(found)
    }

    /// Returns the dependents of an object that match a condition.
    fn dependents(&self, uid: &str, wanted: impl Fn(&Node) -> bool) -> Vec<Key> {
        let graph = self.graph();
        let dependents = graph.dependents(uid).filter(|node| wanted(node));
        dependents.map(|node| node.key.clone()).collect()
    }

    async fn orphan(&self, key: &Key, owner: &str) -> Result<(), Obstacle> {
        let Some(resource) = self.resource(|resource| resource.name() == key.resource) else {
            return Err(Obstacle::Dependents);
        };
        let Some(live) = self.live(&resource, &key.namespace, &key.name).await? else {
            return Ok(());
        };
        let owners = live.owner_references.clone().unwrap_or_default();
        let rest: Vec<&OwnerReference> = owners.iter().filter(|o| o.uid != owner).collect();
        if rest.len() == owners.len() {
            return Ok(());
        }
        self.set_owners(&resource, key, &live, &rest).await
    }

    async fn owner(&self, owner: &OwnerReference, namespace: &str) -> Result<Owner, Obstacle> {
        let (group, _) = owner
            .api_version
            .split_once('/')
            .unwrap_or(("", &owner.api_version));
        let found = self.resource(|r| r.api.group == group && r.api.kind == owner.kind);
        let Some(resource) = found else {
            let kind = format!("{} {}", owner.api_version, owner.kind);
            return Err(Obstacle::UnknownKind(kind));
        };
        if resource.namespaced && namespace.is_empty() {
            // A cluster-scoped object cannot have an owner in a namespace. Such a reference resolves to nothing, so the
            // owner is not known to be gone, and the object is never collected because of it.
            return Ok(Owner::Solid);
        }
        let live = self.live(&resource, namespace, &owner.name).await?;
        let Some(live) = live.filter(|live| live.uid.as_ref() == Some(&owner.uid)) else {
            return Ok(Owner::Dangling);
        };
        let mut finalizers = live.finalizers.iter().flatten();
        let waits = live.deletion_timestamp.is_some() && finalizers.any(|f| f == FOREGROUND);
        Ok(if waits { Owner::Waiting } else { Owner::Solid })
    }

    pub(super) fn resource(&self, wanted: impl Fn(&Resource) -> bool) -> Option<Resource> {
        let resources: Arc<Vec<Resource>> = self.resources.borrow().clone();
        resources.iter().find(|resource| wanted(resource)).cloned()
    }

    async fn live(
        &self,
        resource: &Resource,
        namespace: &str,
        name: &str,
    ) -> Result<Option<ObjectMeta>, Obstacle> {
        let objects = resource.objects(&self.client, namespace);
        match objects.get_metadata(name).await {
            Ok(object) => Ok(Some(object.metadata)),
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    async fn set_owners(
        &self,
        resource: &Resource,
        key: &Key,
        live: &ObjectMeta,
        owners: &[&OwnerReference],
    ) -> Result<(), Obstacle> {
        let owners = (!owners.is_empty()).then_some(owners);
        self.patch(resource, key, live, "ownerReferences", json!(owners))
            .await
    }

    async fn drop_finalizer(
        &self,
        resource: &Resource,
        key: &Key,
        live: &ObjectMeta,
        finalizer: &str,
    ) -> Result<(), Obstacle> {
        let finalizers = live.finalizers.iter().flatten();
        let rest: Vec<&String> = finalizers.filter(|f| *f != finalizer).collect();
        let rest = (!rest.is_empty()).then_some(rest);
        self.patch(resource, key, live, "finalizers", json!(rest))
            .await
    }

    /// Patches a field of exactly the object that was examined.
    async fn patch(
        &self,
        resource: &Resource,
        key: &Key,
        live: &ObjectMeta,
        field: &str,
        value: serde_json::Value,
    ) -> Result<(), Obstacle> {
        let patch = json!({ "metadata": {
            "uid": key.uid,
            "resourceVersion": live.resource_version,
            field: value,
        }});
        let objects = resource.objects(&self.client, &key.namespace);
        let patch = Patch::Merge(patch);
        let parameters = PatchParams::default();
        gone_is_good(objects.patch_metadata(&key.name, &parameters, &patch).await)
    }

    async fn delete(
        &self,
        resource: &Resource,
        key: &Key,
        live: &ObjectMeta,
        policy: PropagationPolicy,
    ) -> Result<(), Obstacle> {
        tracing::debug!(object = %key, ?policy, "deleting an object whose owners were deleted");
        let objects = resource.objects(&self.client, &key.namespace);
        let parameters = DeleteParams {
            propagation_policy: Some(policy),
            preconditions: Some(Preconditions {
                uid: Some(key.uid.clone()),
                resource_version: live.resource_version.clone(),
            }),
            ..DeleteParams::default()
        };
        gone_is_good(objects.delete(&key.name, &parameters).await)
    }
}

fn gone_is_good<T>(result: Result<T, kube::Error>) -> Result<(), Obstacle> {
    match result {
        Ok(_) => Ok(()),
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
        Err(error) => Err(error.into()),
    }
}
