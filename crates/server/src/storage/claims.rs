//! Claims: which volume they get, and which provisioner creates one.
//!
//! Both objects are written in the order volume, its phase, claim, its phase. The next examination completes an
//! interrupted sequence, and no claim is bound to a volume that does not name it.

use std::collections::HashSet;
use std::sync::Arc;

use kube::ResourceExt as _;
use serde_json::json;
use tenure_kinds::names::{
    BETA_STORAGE_PROVISIONER, BIND_COMPLETED, BOUND_BY_CONTROLLER, IN_TREE, MIGRATED_TO,
    STORAGE_PROVISIONER,
};
use tenure_kinds::{PersistentVolume, PersistentVolumeClaim, StorageClass};

use super::Storage;
use super::matching::{best, mismatch, names};
use super::names::migrated;
use super::nodes;
use super::world::{IndexKey, Name};
use super::write::{Tone, reference};

/// Next action for a claim that is not bound yet.
enum Way {
    Bind(Arc<PersistentVolume>),
    /// The first pod that uses the claim decides the node.
    WaitForConsumer,
    Provision(Arc<StorageClass>),
    /// The class does not exist.
    NoClass,
    /// No provisioner creates a volume for it.
    Nothing,
}

impl Storage {
    pub(super) async fn claim(&self, name: &Name) -> Result<(), kube::Error> {
        let claim = self.world.lock().claims.get(name);
        let Some(claim) = claim else {
            self.world.lock().told.remove(name);
            return Ok(());
        };
        if claim.annotation(BIND_COMPLETED).is_some() {
            self.bound(&claim).await
        } else if claim.spec.volume_name.is_empty() {
            self.unbound(&claim).await
        } else {
            self.asks_for(&claim).await
        }
    }

    /// Handles a claim that does not name a volume.
    async fn unbound(&self, claim: &PersistentVolumeClaim) -> Result<(), kube::Error> {
        match self.way(claim) {
            Way::Bind(volume) => return self.bind(&volume, claim).await,
            Way::WaitForConsumer => {
                let message = "waiting for first consumer to be created before binding";
                self.tell_once(claim, Tone::Normal, "WaitForFirstConsumer", message)
                    .await;
            }
            Way::Provision(class) => return self.provision(claim, &class).await,
            Way::NoClass => {
                let class = claim.class();
                let message = format!("storageclass.storage.k8s.io {class:?} not found");
                self.tell_once(claim, Tone::Warning, "ProvisioningFailed", &message)
                    .await;
            }
            Way::Nothing => {
                let message =
                    "no persistent volumes available for this claim and no storage class is set";
                self.tell_once(claim, Tone::Normal, "FailedBinding", message)
                    .await;
            }
        }
        self.pending(claim).await
    }

    fn way(&self, claim: &PersistentVolumeClaim) -> Way {
        let indexes = self.world.lock();
        let class_name = claim.class();
        let class = indexes.classes.named(class_name);
        let by_node = class
            .as_deref()
            .is_some_and(StorageClass::waits_for_consumer);
        let selected = claim.selected_node();
        let node = selected.and_then(|node| indexes.nodes.named(node));
        let waits = by_node && selected.is_none();
        let naming = indexes
            .volumes
            .find(&IndexKey::Claim(Name::of(&claim.metadata)));
        // If the class waits for the first pod, no volume is available before the node is known. After that, only
        // volumes that the node can reach are available.
        let reached = |volume: &PersistentVolume| {
            let node = node.as_deref();
            node.is_some_and(|node| nodes::reaches(volume, node))
        };
        let free = IndexKey::Free(class_name.to_owned());
        let free = indexes.volumes.find(&free);
        let free = free.filter(|volume| !by_node || reached(volume));
        match (best(claim, naming, free, None), class) {
            (Some(volume), _) => Way::Bind(volume),
            (None, _) if waits => Way::WaitForConsumer,
            (None, Some(class)) => Way::Provision(class),
            (None, None) if !class_name.is_empty() => Way::NoClass,
            (None, None) => Way::Nothing,
        }
    }

    /// Requests a volume from the provisioner of the class.
    async fn provision(
        &self,
        claim: &PersistentVolumeClaim,
        class: &StorageClass,
    ) -> Result<(), kube::Error> {
        // A claim that is being deleted gets nothing new.
        if claim.metadata.deletion_timestamp.is_some() {
            return Ok(());
        }
        let driver = migrated(&class.provisioner);
        let provisioner = driver.unwrap_or(&class.provisioner);
        if provisioner.starts_with(IN_TREE) {
            let message = format!("no volume plugin matched name: {provisioner}");
            self.tell_once(claim, Tone::Warning, "ProvisioningFailed", &message)
                .await;
            return self.pending(claim).await;
        }
        let asked = |key| claim.annotation(key) == Some(provisioner);
        if asked(STORAGE_PROVISIONER) && asked(BETA_STORAGE_PROVISIONER) {
            return self.pending(claim).await;
        }
        let mut annotations = json!({
            STORAGE_PROVISIONER: provisioner,
            BETA_STORAGE_PROVISIONER: provisioner,
        });
        if let Some(driver) = driver {
            annotations[MIGRATED_TO] = json!(driver);
        }
        let patch = json!({ "metadata": { "annotations": annotations } });
        let claim = self.write.claim(claim, patch).await?;
        let message = format!(
            "Waiting for a volume to be created either by the external provisioner '{provisioner}' or manually by \
             the system administrator. If volume creation is delayed, please verify that the provisioner is \
             running and correctly registered."
        );
        self.tell_once(&claim, Tone::Normal, "ExternalProvisioning", &message)
            .await;
        self.pending(&claim).await
    }

    /// Handles a claim that names one volume.
    async fn asks_for(&self, claim: &PersistentVolumeClaim) -> Result<(), kube::Error> {
        // The claim is examined again when the volume is created or changed.
        let Some(volume) = self.world.lock().volumes.named(&claim.spec.volume_name) else {
            return self.pending(claim).await;
        };
        let claimed = volume.spec.claim_ref.is_some();
        if names(&volume, claim) {
            return self.bind(&volume, claim).await;
        }
        let name = volume.name_any();
        let (reason, message) = if claimed {
            let message = format!("volume {name:?} already bound to a different claim.");
            ("FailedBinding", message)
        } else if let Some(mismatch) = mismatch(&volume, claim) {
            let message = format!("Cannot bind to requested volume {name:?}: {mismatch}");
            ("VolumeMismatch", message)
        } else {
            return self.bind(&volume, claim).await;
        };
        self.tell_once(claim, Tone::Warning, reason, &message).await;
        self.pending(claim).await
    }

    /// Handles a claim that was bound once.
    async fn bound(&self, claim: &PersistentVolumeClaim) -> Result<(), kube::Error> {
        let volume = &claim.spec.volume_name;
        if volume.is_empty() {
            let message =
                "Bound claim has lost reference to PersistentVolume. Data on the volume is lost!";
            return self.lost(claim, "ClaimLost", message).await;
        }
        let known = self.world.lock().volumes.named(volume);
        let known = match known {
            // The watch may deliver claims before their volumes.
            None => self.write.fresh_volume(volume).await?.map(Arc::new),
            known => known,
        };
        let Some(volume) = known else {
            let message = "Bound claim has lost its PersistentVolume. Data on the volume is lost!";
            return self.lost(claim, "ClaimLost", message).await;
        };
        match &volume.spec.claim_ref {
            Some(named) if named.uid != claim.uid() && !names(&volume, claim) => {
                let message =
                    "Two claims are bound to the same volume, this one is bound incorrectly";
                self.lost(claim, "ClaimMisbound", message).await
            }
            _ => self.bind(&volume, claim).await,
        }
    }

    /// Makes claim and volume name each other.
    async fn bind(
        &self,
        volume: &PersistentVolume,
        claim: &PersistentVolumeClaim,
    ) -> Result<(), kube::Error> {
        let volume = &*self.reserve(volume, claim).await?;
        let volume = self.phase(volume, "Bound", None).await?;
        let name = volume.name_any();
        let ours = claim.spec.volume_name != name;
        let claim = if ours || claim.annotation(BIND_COMPLETED).is_none() {
            let mut annotations = json!({ BIND_COMPLETED: "yes" });
            if ours {
                annotations[BOUND_BY_CONTROLLER] = json!("yes");
            }
            let patch = json!({
                "metadata": { "annotations": annotations },
                "spec": { "volumeName": name },
            });
            self.write.claim(claim, patch).await?
        } else {
            Arc::new(claim.clone())
        };
        self.claim_bound(&claim, &volume).await
    }

    /// Makes a volume name a claim.
    pub(super) async fn reserve(
        &self,
        volume: &PersistentVolume,
        claim: &PersistentVolumeClaim,
    ) -> Result<Arc<PersistentVolume>, kube::Error> {
        let named = volume.spec.claim_ref.as_ref();
        if named.is_some_and(|named| named.uid == claim.uid()) {
            return Ok(Arc::new(volume.clone()));
        }
        let mut patch = json!({ "spec": { "claimRef": reference(claim) } });
        if !names(volume, claim) {
            patch["metadata"]["annotations"] = json!({ BOUND_BY_CONTROLLER: "yes" });
        }
        self.write.volume(volume, patch).await
    }

    async fn claim_bound(
        &self,
        claim: &PersistentVolumeClaim,
        volume: &PersistentVolume,
    ) -> Result<(), kube::Error> {
        let (old, spec) = (&claim.status, &volume.spec);
        let was_bound = old.phase == "Bound";
        if was_bound && old.access_modes == spec.access_modes {
            return Ok(());
        }
        let mut status = json!({ "phase": "Bound", "accessModes": spec.access_modes });
        // The size of a bound claim is managed by the resizer.
        if !was_bound {
            status["capacity"] = json!(spec.capacity);
            if let Some(class) = &spec.volume_attributes_class_name {
                status["currentVolumeAttributesClassName"] = json!(class);
            }
        }
        self.write.claim_status(claim, status).await.map(drop)
    }

    async fn lost(
        &self,
        claim: &PersistentVolumeClaim,
        reason: &str,
        message: &str,
    ) -> Result<(), kube::Error> {
        if phase(claim) == "Lost" {
            return Ok(());
        }
        let status = json!({ "phase": "Lost", "accessModes": null, "capacity": null });
        let claim = self.write.claim_status(claim, status).await?;
        self.write
            .event(&*claim, Tone::Warning, reason, message)
            .await;
        Ok(())
    }

    async fn pending(&self, claim: &PersistentVolumeClaim) -> Result<(), kube::Error> {
        if phase(claim) == "Pending" {
            return Ok(());
        }
        let status = json!({ "phase": "Pending", "accessModes": null, "capacity": null });
        self.write.claim_status(claim, status).await.map(drop)
    }

    /// Records an Event about a claim, each reason once per term.
    async fn tell_once(
        &self,
        claim: &PersistentVolumeClaim,
        tone: Tone,
        reason: &str,
        message: &str,
    ) {
        let new = {
            let mut indexes = self.world.lock();
            let told = indexes.told.entry(Name::of(&claim.metadata)).or_default();
            if told.0 != claim.metadata.uid {
                *told = (claim.metadata.uid.clone(), HashSet::new());
            }
            told.1.insert(reason.to_owned())
        };
        if new {
            self.write.event(claim, tone, reason, message).await;
        }
    }
}

fn phase(claim: &PersistentVolumeClaim) -> &str {
    match claim.status.phase.as_str() {
        "" => "Pending",
        phase => phase,
    }
}
