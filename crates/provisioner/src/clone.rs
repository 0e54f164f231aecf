//! Lets go of claims and snapshots that were protected while others were made from them.

use std::collections::HashSet;
use std::sync::Arc;

use kube::api::{Api, ListParams};

use crate::controller::Controller;
use crate::names::{CLONE_FINALIZER, SNAPSHOT_FINALIZER};
use crate::objects::{Claim, DataSource, Snapshot, has_finalizer};

impl Controller {
    /// Works on deleted claims until the queue is shut down.
    pub(crate) async fn clone_worker(self: Arc<Self>) {
        while let Some(uid) = self.queues.clones.get().await {
            match self.sync_clone(&uid).await {
                Ok(()) => self.queues.clones.forget(&uid),
                Err(error) => {
                    tracing::debug!(uid = *uid, error, "claim still protected");
                    self.queues.clones.add_rate_limited(uid.clone());
                }
            }
        }
    }

    async fn sync_clone(&self, uid: &str) -> Result<(), String> {
        let Some(claim) = self.caches.claims.get(uid) else {
            return Ok(());
        };
        let deleting = claim.metadata.deletion_timestamp.is_some();
        if !deleting || !has_finalizer(&claim.metadata, CLONE_FINALIZER) {
            return Ok(());
        }
        let user = self.caches.claims.find_map(|other| {
            let from = source_of(other).is_some_and(|source| {
                source.kind == "PersistentVolumeClaim" && source.name == claim.name()
            });
            let waits = other.namespace() == claim.namespace() && other.status.phase != "Bound";
            (from && waits).then(|| other.key())
        });
        if let Some(user) = user {
            return Err(format!("claim {user} is being cloned from it"));
        }
        let uid = claim.metadata.uid.as_deref();
        let change = (CLONE_FINALIZER, false);
        let (namespace, name) = (claim.namespace(), claim.name());
        let set = self
            .cluster
            .set_finalizer::<Claim>(namespace, name, uid, change)
            .await;
        set.map(drop).map_err(|error| error.to_string())
    }

    /// Every interval, takes our finalizer off snapshots that no claim waits for: a process may have died
    /// between making the volume and doing so. Returns if there are no snapshots to look at.
    pub(crate) async fn sweep_snapshots(self: Arc<Self>) {
        let api: Api<Snapshot> = Api::all(self.cluster.client());
        if let Err(error) = api.list(&ListParams::default().limit(1)).await {
            tracing::info!(%error, "snapshots cannot be listed: their finalizers are not swept");
            return;
        }
        let mut ticks = tokio::time::interval(self.options.snapshot_orphan_sweep_interval);
        loop {
            ticks.tick().await;
            let snapshots = match api.list(&ListParams::default()).await {
                Ok(snapshots) => snapshots,
                Err(error) => {
                    tracing::info!(%error, "cannot list snapshots");
                    continue;
                }
            };
            // After the list: a claim that comes later protects its snapshot after it came.
            let waiting = self.awaited_snapshots();
            for snapshot in snapshots {
                let namespace = snapshot.metadata.namespace.clone().unwrap_or_default();
                let name = snapshot.metadata.name.clone().unwrap_or_default();
                let protected = has_finalizer(&snapshot.metadata, SNAPSHOT_FINALIZER);
                if !protected || waiting.contains(&(namespace.clone(), name.clone())) {
                    continue;
                }
                let uid = snapshot.metadata.uid.as_deref();
                let change = (SNAPSHOT_FINALIZER, false);
                let set = self
                    .cluster
                    .set_finalizer::<Snapshot>(&namespace, &name, uid, change)
                    .await;
                if let Err(error) = set {
                    tracing::info!(%error, "cannot take the finalizer off");
                }
            }
        }
    }

    fn awaited_snapshots(&self) -> HashSet<(String, String)> {
        let claims = self.caches.claims.all();
        let waiting = claims.iter().filter(|claim| claim.status.phase != "Bound");
        let pairs = waiting.filter_map(|claim| {
            let source = source_of(claim).filter(|source| source.kind == "VolumeSnapshot")?;
            Some((claim.namespace().to_owned(), source.name.clone()))
        });
        pairs.collect()
    }
}

fn source_of(claim: &Claim) -> Option<&DataSource> {
    claim
        .spec
        .data_source
        .as_ref()
        .or(claim.spec.data_source_ref.as_ref())
}
