//! Lets go of claims and snapshots that were protected while others were made from them.

use std::collections::HashSet;
use std::sync::Arc;

use kube::api::{Api, ListParams};

use crate::controller::Controller;
use crate::names::{CLONE_FINALIZER, SNAPSHOT_FINALIZER};
use crate::objects::{Claim, Snapshot, has_finalizer};

/// Snapshots looked at in one request.
const PAGE: u32 = 500;

impl Controller {
    /// Works on deleted claims until the queue is shut down.
    pub(crate) async fn clone_worker(self: Arc<Self>) {
        while let Some(uid) = self.queues.clones.get().await {
            if self.is_stopping() {
                continue;
            }
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
        let uses = |other: &Arc<Claim>| {
            let (source, namespace) = other.source()?;
            let same = source.kind == "PersistentVolumeClaim"
                && source.name == claim.name()
                && namespace == claim.namespace();
            (same && other.status.phase != "Bound").then(|| other.key())
        };
        let user = self.caches.claims.find_map(uses);
        // One that was deleted may still be copied for.
        let user = user.or_else(|| self.progress().values().find_map(uses));
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
            let mut page = ListParams::default().limit(PAGE);
            loop {
                let snapshots = match api.list(&page).await {
                    Ok(snapshots) => snapshots,
                    Err(error) => {
                        tracing::info!(%error, "cannot list snapshots");
                        break;
                    }
                };
                // After the list: a claim that comes later protects its snapshot after it came.
                let waiting = self.awaited_snapshots();
                let next = snapshots.metadata.continue_.clone();
                for snapshot in snapshots {
                    self.sweep(&snapshot, &waiting).await;
                }
                match next.filter(|token| !token.is_empty()) {
                    Some(token) => page = page.continue_token(&token),
                    None => break,
                }
            }
        }
    }

    async fn sweep(&self, snapshot: &Snapshot, waiting: &HashSet<(String, String)>) {
        let namespace = snapshot.metadata.namespace.clone().unwrap_or_default();
        let name = snapshot.metadata.name.clone().unwrap_or_default();
        let protected = has_finalizer(&snapshot.metadata, SNAPSHOT_FINALIZER);
        let place = (namespace, name);
        if !protected || waiting.contains(&place) {
            return;
        }
        let uid = snapshot.metadata.uid.as_deref();
        let change = (SNAPSHOT_FINALIZER, false);
        let set = self
            .cluster
            .set_finalizer::<Snapshot>(&place.0, &place.1, uid, change)
            .await;
        if let Err(error) = set {
            tracing::info!(%error, "cannot take the finalizer off");
        }
    }

    /// Namespaces and names of the snapshots that claims wait for, also claims that are deleted but that the
    /// driver may be at work for.
    fn awaited_snapshots(&self) -> HashSet<(String, String)> {
        let mut claims = self.caches.claims.all();
        claims.extend(self.progress().values().cloned());
        let waiting = claims.iter().filter(|claim| claim.status.phase != "Bound");
        let pairs = waiting.filter_map(|claim| {
            let (source, namespace) = claim.source()?;
            let snapshot = source.kind == "VolumeSnapshot";
            snapshot.then(|| (namespace.to_owned(), source.name.clone()))
        });
        pairs.collect()
    }
}
