//! Removes the protection of claims and snapshots from which other volumes were created.

use std::sync::Arc;

use kube::api::{Api, ListParams};

use crate::controller::{Controller, lock};
use crate::names::{CLONE_FINALIZER, SNAPSHOT_FINALIZER};
use crate::objects::{Claim, Snapshot, has_finalizer};
use crate::source::snapshot_lock;

/// Page size of snapshot lists.
const PAGE: u32 = 500;

impl Controller {
    /// Processes deleted claims until the queue is shut down.
    pub(crate) async fn clone_worker(self: Arc<Self>) {
        while let Some(uid) = self.queues.clones.get().await {
            if self.is_stopping() {
                continue;
            }
            match self.sync_clone(&uid).await {
                Ok(()) => self.queues.clones.forget(&uid),
                Err(error) => {
                    tracing::debug!(
                        uid = *uid,
                        error,
                        "cannot remove the finalizer of the claim yet"
                    );
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
        let user = self.caches.claims.find_map(claim.name(), uses);
        // The driver may still be copying for a deleted claim.
        let user = user.or_else(|| self.ledger.find_in_progress(uses));
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

    /// Removes our finalizer periodically from snapshots that no claim waits for, because a process may have died
    /// between creating the volume and removing the finalizer. Returns if snapshots cannot be listed.
    pub(crate) async fn sweep_snapshots(self: Arc<Self>) {
        let api: Api<Snapshot> = Api::all(self.cluster.client());
        let first = api.list(&ListParams::default().limit(1)).await;
        if let Err(kube::Error::Api(error)) = first
            && matches!(error.code, 403 | 404)
        {
            tracing::info!(%error, "cannot list snapshots; skipping snapshot cleanup");
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
                let next = snapshots.metadata.continue_.clone();
                for snapshot in snapshots {
                    self.sweep(&snapshot).await;
                }
                match next.filter(|token| !token.is_empty()) {
                    Some(token) => page = page.continue_token(&token),
                    None => break,
                }
            }
        }
    }

    async fn sweep(&self, snapshot: &Snapshot) {
        if !has_finalizer(&snapshot.metadata, SNAPSHOT_FINALIZER) {
            return;
        }
        let namespace = snapshot.metadata.namespace.as_deref().unwrap_or_default();
        let name = snapshot.metadata.name.as_deref().unwrap_or_default();
        // A restore takes the same lock, so a later restore adds the finalizer again.
        let set = self
            .busy
            .run_exclusive(&snapshot_lock(namespace, name), async {
                if self.is_awaited(namespace, name, "") {
                    return Ok(true);
                }
                let uid = snapshot.metadata.uid.as_deref();
                let change = (SNAPSHOT_FINALIZER, false);
                self.cluster
                    .set_finalizer::<Snapshot>(namespace, name, uid, change)
                    .await
            })
            .await;
        if let Err(error) = set {
            tracing::info!(%error, "cannot remove the finalizer of the snapshot");
        }
    }

    /// Returns whether a claim other than `except` waits for a snapshot. Deleted claims count while the driver may
    /// still work for them.
    pub(crate) fn is_awaited(&self, namespace: &str, name: &str, except: &str) -> bool {
        let waits = |claim: &Arc<Claim>| {
            let (source, place) = claim.source()?;
            let same = source.kind == "VolumeSnapshot" && source.name == name && place == namespace;
            let open = claim.status.phase != "Bound" && claim.uid() != except;
            // A claim that has its volume only waits for its binding.
            (same && open && !self.has_volume(claim)).then_some(())
        };
        if self.ledger.find_in_progress(waits).is_some() {
            return true;
        }
        let place = (namespace.to_owned(), name.to_owned());
        let restoring = lock(&self.restores).get(&place).cloned();
        if restoring.is_some_and(|claims| claims.iter().any(|uid| uid != except)) {
            return true;
        }
        self.caches.claims.find_map(name, waits).is_some()
    }

    fn has_volume(&self, claim: &Claim) -> bool {
        let name = self.options.volume_name(claim.uid());
        name.is_ok_and(|name| self.caches.volumes.contains(&name))
    }
}
