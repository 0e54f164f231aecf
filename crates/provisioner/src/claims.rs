//! The claim worker: turns a claim into a volume object, or schedules a retry.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use crate::cluster::{ClusterError, Posted};
use crate::controller::{Controller, lock};
use crate::decide::{is_our_name, should_provision};
use crate::events::Kind;
use crate::metrics::ClaimLabels;
use crate::migrated::ReadVolume;
use crate::names::{ALPHA_SELECTED_NODE, JOURNAL_FINALIZER, SELECTED_NODE};
use crate::objects::{Claim, Class};
use crate::provision::Made;
use crate::state::{Failure, FailureKind, State};

/// Number of pending volume objects that are posted concurrently.
const SAVERS: usize = 4;

/// The next step for a queue item.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Next {
    /// Nothing until the object changes.
    Done,
    /// Retries with backoff.
    Retry,
}

/// Result of posting a volume object.
enum Saved {
    /// The object exists.
    Now,
    /// The object is queued and will be posted.
    Later,
    /// The API server rejected the object as invalid.
    Never(Failure),
}

impl Controller {
    /// Processes claims until the queue is shut down.
    pub(crate) async fn claim_worker(self: Arc<Self>) {
        while let Some(uid) = self.queues.claims.get().await {
            if self.is_stopping() {
                continue;
            }
            // The future is boxed, because most of the many workers are idle and should not reserve its size.
            match Box::pin(self.sync_claim(&uid)).await {
                Next::Done => self.queues.claims.forget(&uid),
                Next::Retry => self.queues.claims.add_rate_limited(uid.clone()),
            }
        }
    }

    async fn sync_claim(&self, uid: &str) -> Next {
        let cached = self.caches.claims.get(uid);
        let Some(claim) = cached.or_else(|| self.ledger.in_progress(uid)) else {
            self.forget_claim(uid);
            return Next::Done;
        };
        let class = self.caches.classes.get(claim.class());
        if let Some(class) = &class
            && self
                .ledger
                .is_delayed(uid, class.metadata.uid.as_deref(), Instant::now())
        {
            return Next::Retry;
        }
        if self.options.provision_journal && self.needs_no_volume(&claim) {
            return self.finish(&claim).await;
        }
        // The claim is bound to another volume, but the driver may still be creating one. Only the driver's response
        // shows whether it did.
        let pursued = !claim.spec.volume_name.is_empty() && self.ledger.is_in_progress(uid);
        match should_provision(&claim, &self.facts.name, class.as_deref()) {
            Ok(false) if !pursued => return Next::Done,
            Ok(_) => {}
            Err(message) => {
                tracing::warn!(claim = claim.key(), error = message, "cannot provision");
                self.metrics.provision_failed(&labels(&claim));
                return Next::Retry;
            }
        }
        if let (Some(local), Some(class)) = (&self.local, &class)
            && !self.is_here(local, &claim, class).await
        {
            return Next::Done;
        }
        let work = self.provision_claim(&claim, class.as_deref());
        match self.options.volume_name(uid) {
            Ok(name) => self.busy.run_exclusive(&name, work).await,
            // Provisioning reports the invalid name.
            Err(_) => work.await,
        }
    }

    /// Removes all state of a deleted claim.
    fn forget_claim(&self, uid: &str) {
        self.ledger.forget(uid);
        if let Some(local) = &self.local {
            local.forget(uid);
        }
        lock(&self.restores).retain(|_, claims| {
            claims.remove(uid);
            !claims.is_empty()
        });
    }

    /// Ends the work on a claim whose volume can no longer be lost.
    async fn finish(&self, claim: &Claim) -> Next {
        match self.remove_journal_finalizer(claim).await {
            Ok(()) => Next::Done,
            Err(error) => {
                tracing::warn!(claim = claim.key(), %error, "cannot remove the finalizer of the claim");
                Next::Retry
            }
        }
    }

    async fn provision_claim(&self, claim: &Arc<Claim>, class: Option<&Class>) -> Next {
        let started = Instant::now();
        let uid = claim.uid();
        let name = self.options.volume_name(uid).unwrap_or_default();
        if lock(&self.unsaved).contains_key(&name) {
            self.ledger.stop_pursuing(uid);
            return Next::Done;
        }
        if self.caches.volumes.contains(&name) {
            self.ledger.stop_pursuing(uid);
            return self.finish(claim).await;
        }
        // A volume of this name was deleted, so this copy of the claim may be stale.
        if lock(&self.deleted).contains_key(&name) && !self.still_wants(claim).await {
            self.ledger.stop_pursuing(uid);
            return Next::Done;
        }
        let ours = |class: &&Class| is_our_name(&class.provisioner, &self.facts.name);
        let Some(class) = class.filter(ours) else {
            // Without the class, the driver cannot be asked about a volume in progress.
            return match self.ledger.is_in_progress(uid) {
                true => Next::Retry,
                false => Next::Done,
            };
        };
        self.events.claim(
            claim,
            Kind::Normal,
            "Provisioning",
            format!(
                "External provisioner is provisioning volume for claim \"{}\"",
                claim.key()
            ),
        );
        match self.provision(claim, class).await {
            Ok(made) => {
                if let Some(capacities) = &self.capacities {
                    capacities.refresh(claim.class(), &made.places);
                }
                self.ledger.created(uid);
                match self.save(made, claim).await {
                    Saved::Now => {
                        self.metrics.provisioned(&labels(claim), started.elapsed());
                        self.finish(claim).await
                    }
                    Saved::Later => {
                        self.metrics.provisioned(&labels(claim), started.elapsed());
                        Next::Done
                    }
                    Saved::Never(failure) => self.failed(claim, class, &failure).await,
                }
            }
            Err(failure) => self.failed(claim, class, &failure).await,
        }
    }

    async fn failed(&self, claim: &Arc<Claim>, class: &Class, failure: &Failure) -> Next {
        let uid = claim.uid();
        if let Some(capacities) = &self.capacities
            && failure.state != State::NoChange
            && failure.kind != FailureKind::Ignored
        {
            capacities.refresh(claim.class(), &[]);
        }
        if failure.settles() {
            self.ledger.settle(uid);
        } else if failure.state == State::InBackground {
            self.ledger.pursue(claim);
        }
        if failure.kind == FailureKind::Ignored {
            return Next::Done;
        }
        tracing::warn!(
            claim = claim.key(), error = failure.message, state = ?failure.state, token = self.token(),
            "provisioning failed"
        );
        if failure.kind == FailureKind::Infeasible {
            let until = Instant::now() + self.options.retry_interval_max;
            self.ledger.reject(uid, class.metadata.uid.clone(), until);
            let message = format!(
                "Volume provisioning failed with infeasible error. Retries will be delayed. {failure}"
            );
            self.events
                .claim(claim, Kind::Warning, "ProvisioningFailed", message);
            self.metrics.provision_failed(&labels(claim));
            return Next::Retry;
        }
        self.events
            .claim(claim, Kind::Warning, "ProvisioningFailed", &failure.message);
        if failure.state == State::Reschedule && claim.selected_node_or_alpha().is_some() {
            return match self.unassign_node(claim, failure).await {
                Ok(()) if failure.undecided => Next::Retry,
                Ok(()) => Next::Done,
                Err(error) => {
                    tracing::warn!(claim = claim.key(), %error, "cannot remove the selected node from the claim");
                    Next::Retry
                }
            };
        }
        self.metrics.provision_failed(&labels(claim));
        Next::Retry
    }

    /// Removes the selected node, so that the scheduler chooses again. Also removes the journal finalizer, because no
    /// provisioner handles a claim without a node and nobody would remove it later.
    async fn unassign_node(&self, claim: &Claim, failure: &Failure) -> Result<(), ClusterError> {
        let node = claim.selected_node_or_alpha();
        let settled = self.options.provision_journal && failure.settles();
        self.cluster
            .update::<Claim>(claim.namespace(), claim.name(), |object| {
                if object.metadata.uid != claim.metadata.uid {
                    return false;
                }
                let annotations = object.metadata.annotations.get_or_insert_default();
                // The scheduler may have selected another node since.
                let mut changed = false;
                for key in [SELECTED_NODE, ALPHA_SELECTED_NODE] {
                    if annotations.get(key).map(String::as_str) == node {
                        changed |= annotations.remove(key).is_some();
                    }
                }
                if changed && settled {
                    let finalizers = object.metadata.finalizers.get_or_insert_default();
                    finalizers.retain(|finalizer| finalizer != JOURNAL_FINALIZER);
                }
                changed
            })
            .await
            .map(drop)
    }

    /// Asks the API server whether the claim still exists without a volume.
    async fn still_wants(&self, claim: &Claim) -> bool {
        match self
            .cluster
            .get_in::<Claim>(claim.namespace(), claim.name())
            .await
        {
            Ok(live) => live.uid() == claim.uid() && live.spec.volume_name.is_empty(),
            // A claim in progress is retried even after its deletion.
            Err(error) => !error.is_not_found() || self.ledger.is_in_progress(claim.uid()),
        }
    }

    /// Posts a volume object. The storage exists, so posting is retried until it succeeds. The storage is deleted only
    /// if the API server rejects the object as invalid.
    async fn save(&self, made: Made, claim: &Arc<Claim>) -> Saved {
        match self.post(&made).await {
            Ok(Posted::Refused(error)) => return Saved::Never(self.refused(&made, &error).await),
            Ok(_) => {
                self.saved(&made, claim).await;
                return Saved::Now;
            }
            Err(error) => {
                tracing::warn!(volume = made.name(), %error, "cannot create the volume object; retrying");
            }
        }
        let name = made.name().to_owned();
        lock(&self.unsaved).insert(name.clone(), (made, claim.clone()));
        self.queues.unsaved.add_rate_limited(name);
        Saved::Later
    }

    /// Posts a volume object once. After an error, the object may or may not exist.
    async fn post(&self, made: &Made) -> Result<Posted, ClusterError> {
        let posted = self.cluster.create_volume(&made.object).await?;
        match &posted {
            Posted::Created => Ok(posted),
            Posted::Exists => {
                let live = self.read_volume(made.name()).await?;
                self.drop_loser(made, &live);
                Ok(posted)
            }
            // The response to an earlier attempt may have been lost, and the server validates an object before it checks
            // whether the name exists.
            Posted::Refused(_) => match self.read_volume(made.name()).await {
                Ok(live) => {
                    self.drop_loser(made, &live);
                    Ok(Posted::Exists)
                }
                Err(error) if error.is_not_found() => Ok(posted),
                Err(error) => Err(error),
            },
        }
    }

    /// Retries volume objects that could not be posted, until the queue is shut down.
    pub(crate) async fn save_worker(self: Arc<Self>) {
        while let Some(name) = self.queues.unsaved.get().await {
            if self.save_again(&name).await {
                self.queues.unsaved.forget(&name);
            } else {
                self.queues.unsaved.add_rate_limited(name.clone());
            }
        }
    }

    /// Tries once more to post every pending volume object before this process ends.
    pub(crate) async fn save_rest(&self) {
        let names: Vec<_> = lock(&self.unsaved).keys().cloned().collect();
        for name in names {
            if !self.save_again(&name).await {
                tracing::error!(
                    volume = name,
                    "the storage exists without a volume object; the next leader finds it if the claim still exists"
                );
            }
        }
        let orphans: Vec<_> = lock(&self.orphans).drain().collect();
        for (handle, secrets) in orphans {
            if let Err(error) = self.delete_storage(&self.driver, &handle, secrets).await {
                tracing::error!(handle, %error, "orphaned storage left behind");
            }
        }
    }

    /// Retries one volume object. Returns whether it is finished.
    async fn save_again(&self, name: &str) -> bool {
        let waiting = lock(&self.unsaved).get(name).cloned();
        let Some((made, claim)) = waiting else {
            return true;
        };
        match self.post(&made).await {
            Ok(Posted::Refused(error)) => {
                let failure = self.refused(&made, &error).await;
                if failure.state == State::InBackground {
                    self.ledger.pursue(&claim);
                }
                let message = &failure.message;
                self.events
                    .claim(&claim, Kind::Warning, "ProvisioningFailed", message);
                self.metrics.provision_failed(&labels(&claim));
                lock(&self.unsaved).remove(name);
                self.queues.claims.add_rate_limited(claim.uid().to_owned());
            }
            Ok(_) => {
                self.saved(&made, &claim).await;
                lock(&self.unsaved).remove(name);
                // When the claim is processed again, the volume is in the cache and the claim's finalizer can be removed.
                let uid = claim.uid().to_owned();
                self.queues.claims.add_after(uid, Duration::from_secs(1));
            }
            Err(error) => {
                tracing::warn!(volume = name, %error, "cannot create the volume object; retrying");
                return false;
            }
        }
        true
    }

    async fn saved(&self, made: &Made, claim: &Claim) {
        let name = made.name();
        self.source_used(claim).await;
        tracing::info!(
            claim = claim.key(),
            volume = name,
            token = self.token(),
            "provisioned"
        );
        let message = format!("Successfully provisioned volume {name}");
        self.events
            .claim(claim, Kind::Normal, "ProvisioningSucceeded", message);
    }

    /// Handles an existing object of the same name. If it refers to other storage, ours is orphaned.
    fn drop_loser(&self, made: &Made, live: &ReadVolume) {
        let (name, ours) = (made.name(), made.handle.as_str());
        let theirs = live.volume.spec.csi.as_ref();
        // The handle of an in-tree volume is also derived from labels, which others may change. Therefore neither a
        // different handle nor a failed translation proves that the volume refers to other storage.
        let same = theirs.is_some_and(|csi| {
            csi.driver == self.facts.name && (csi.volume_handle == ours || made.is_in_tree())
        });
        if same || live.error.is_some() {
            return;
        }
        tracing::warn!(
            volume = name,
            handle = ours,
            "another volume has this name; deleting ours"
        );
        lock(&self.orphans).insert(ours.to_owned(), made.secrets.clone());
        self.queues.orphans.add(ours.to_owned());
    }

    /// Deletes orphaned storage until it is gone or the queue is shut down.
    pub(crate) async fn orphan_worker(self: Arc<Self>) {
        while let Some(handle) = self.queues.orphans.get().await {
            let secrets = lock(&self.orphans).get(&*handle).cloned();
            let Some(secrets) = secrets else { continue };
            match self.delete_storage(&self.driver, &handle, secrets).await {
                Ok(()) => {
                    lock(&self.orphans).remove(&*handle);
                    self.queues.orphans.forget(&handle);
                }
                Err(error) => {
                    tracing::error!(handle = *handle, %error, "cannot delete orphaned storage; retrying");
                    self.queues.orphans.add_rate_limited(handle.clone());
                }
            }
        }
    }
}

/// Number of workers for unsaved volumes and for orphans.
pub(crate) const fn savers() -> usize {
    SAVERS
}

/// Interval at which all objects are queued again.
pub(crate) const RESYNC: Duration = Duration::from_secs(15 * 60);

fn labels(claim: &Claim) -> ClaimLabels {
    let source = claim.spec.data_source.as_ref();
    ClaimLabels {
        class: claim.spec.storage_class_name.clone().unwrap_or_default(),
        source: source.map_or_else(String::new, |source| source.kind.clone()),
    }
}
