//! The caches, and the work that their changes queue.

use std::fmt::Debug;
use std::sync::Arc;

use k8s_openapi::ClusterResourceScope;
use kube::{Api, Client, Resource};
use serde::de::DeserializeOwned;
use tenure_csi::{ControllerCapability, Facts};
use tokio::sync::Notify;
use tokio::task::JoinSet;

use crate::cache::{Cache, Change, Packed};
use crate::controller::Queues;
use crate::decide;
use crate::names::{CLONE_FINALIZER, JOURNAL_FINALIZER};
use crate::objects::{
    Attachment, Claim, Class, CsiNode, Node, StorageCapacity, Volume, has_finalizer,
};
use crate::options::Options;

/// All caches. Claims that have their volume, and volumes of other drivers, are not kept.
#[derive(Clone, Debug, Default)]
pub(crate) struct Caches {
    /// Claims, by uid.
    pub(crate) claims: Cache<Claim, Packed>,
    /// Volumes of our driver, by name.
    pub(crate) volumes: Cache<Volume, Packed>,
    pub(crate) classes: Cache<Class>,
    /// Only with topology.
    pub(crate) nodes: Cache<Node>,
    /// Only with topology.
    pub(crate) csi_nodes: Cache<CsiNode>,
    /// Only if the driver attaches volumes.
    pub(crate) attachments: Cache<Attachment>,
    /// CSIStorageCapacity objects of this provisioner; only with `--enable-capacity`.
    pub(crate) storage_capacities: Cache<StorageCapacity>,
    /// Notified when nodes or classes change.
    pub(crate) changed: Arc<Notify>,
}

/// The caches that the driver and the options require.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Needs {
    pub(crate) nodes: bool,
    pub(crate) attachments: bool,
}

impl Needs {
    pub(crate) fn of(facts: &Facts, options: &Options) -> Self {
        let topology = options.topology && facts.topology();
        Self {
            // With `--node-deployment` the driver reports the topology of its node.
            nodes: (topology || options.capacity.is_some()) && options.node_deployment.is_none(),
            attachments: facts.controller(ControllerCapability::PublishUnpublishVolume),
        }
    }
}

impl Caches {
    /// Starts the watches. Changes are added to the queues.
    pub(crate) fn start(
        &self,
        client: &Client,
        driver: &str,
        needs: Needs,
        queues: &Queues,
    ) -> JoinSet<()> {
        let mut tasks = JoinSet::new();
        let work = queues.clone();
        let name = driver.to_owned();
        let run = self.claims.clone().run(
            Api::all(client.clone()),
            |claim| claim.uid().to_owned(),
            move |claim| of_interest(claim, &name),
            move |uid, change| {
                let due = match change {
                    Change::Applied(due) => due,
                    // The driver may still be creating its volume.
                    Change::Gone => Due::Provision,
                };
                match due {
                    _ if !work.are_open() => {}
                    Due::Nothing => {}
                    Due::Provision => work.claims.add(uid.to_owned()),
                    Due::Release => {
                        work.claims.add(uid.to_owned());
                        work.clones.add(uid.to_owned());
                    }
                }
            },
        );
        tasks.spawn(run);
        let work = queues.clone();
        let driver = driver.to_owned();
        let run = self.volumes.clone().run(
            Api::all(client.clone()),
            |volume| volume.name().to_owned(),
            move |volume| {
                let ours = decide::is_our_volume(volume, &driver);
                ours.then(|| decide::is_due(volume))
            },
            move |name, change| match change {
                Change::Applied(true) if work.are_open() => work.volumes.add(name.to_owned()),
                Change::Applied(_) => {}
                Change::Gone => work.volumes.forget(&name.to_owned()),
            },
        );
        tasks.spawn(run);
        tasks.spawn(self.quiet(&self.classes, client));
        if needs.nodes {
            tasks.spawn(self.quiet(&self.nodes, client));
            tasks.spawn(self.quiet(&self.csi_nodes, client));
        }
        if needs.attachments {
            tasks.spawn(self.quiet(&self.attachments, client));
        }
        tasks
    }

    /// Waits until every required cache has its initial list.
    pub(crate) async fn synced(&self, needs: Needs) {
        self.classes.synced().await;
        if needs.nodes {
            self.nodes.synced().await;
            self.csi_nodes.synced().await;
        }
        if needs.attachments {
            self.attachments.synced().await;
        }
        self.claims.synced().await;
        self.volumes.synced().await;
    }

    /// Starts a cache whose changes queue no work.
    fn quiet<K>(
        &self,
        cache: &Cache<K>,
        client: &Client,
    ) -> impl Future<Output = ()> + Send + 'static
    where
        K: Resource<DynamicType = (), Scope = ClusterResourceScope>
            + Clone
            + DeserializeOwned
            + Debug
            + Send
            + Sync
            + 'static,
    {
        let name = |object: &K| object.meta().name.clone().unwrap_or_default();
        let api = Api::all(client.clone());
        let changed = self.changed.clone();
        let tell = move |_: &str, _| changed.notify_one();
        cache.clone().run(api, name, |_| Some(()), tell)
    }
}

/// Work that may be due for a claim. Most changes concern claims without a provisioner, or of other drivers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Due {
    Nothing,
    /// The claim names this driver, or has our journal finalizer.
    Provision,
    /// The claim is being deleted and has our clone finalizer.
    Release,
}

/// Returns what is due for a claim that waits for its volume or has one of our finalizers.
fn of_interest(claim: &Claim, driver: &str) -> Option<Due> {
    let journalled = has_finalizer(&claim.metadata, JOURNAL_FINALIZER);
    let deleted = claim.metadata.deletion_timestamp.is_some();
    if deleted && has_finalizer(&claim.metadata, CLONE_FINALIZER) {
        return Some(Due::Release);
    }
    if journalled || (claim.spec.volume_name.is_empty() && decide::is_our_claim(claim, driver)) {
        return Some(Due::Provision);
    }
    claim.spec.volume_name.is_empty().then_some(Due::Nothing)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn only_objects_with_possible_work_are_queued() {
        let ours = json!({ "volume.kubernetes.io/storage-provisioner": "d" });
        let deleted = "2026-01-01T00:00:00Z";
        for (metadata, volume, due) in [
            (json!({ "annotations": ours }), "", Some(Due::Provision)),
            (json!({}), "", Some(Due::Nothing)),
            (json!({ "annotations": ours }), "v", None),
            (
                json!({ "finalizers": [JOURNAL_FINALIZER] }),
                "v",
                Some(Due::Provision),
            ),
            (json!({ "finalizers": [CLONE_FINALIZER] }), "v", None),
            (
                json!({ "finalizers": [CLONE_FINALIZER], "deletionTimestamp": deleted }),
                "v",
                Some(Due::Release),
            ),
        ] {
            let claim = json!({ "metadata": metadata, "spec": { "volumeName": volume } });
            let claim: Claim = serde_json::from_value(claim).unwrap();
            assert_eq!(of_interest(&claim, "d"), due, "{claim:?}");
            let other = of_interest(&claim, "other");
            assert!(other == due || other == Some(Due::Nothing), "{other:?}");
        }
    }
}
