//! Volumes: their phases, and what happens to them when their claim is gone.
//!
//! Volumes of a driver are deleted by its provisioner, which waits for the phase Released. This controller only sets
//! the phase.

use std::sync::Arc;

use serde_json::json;
use tenure_kinds::names::{BOUND_BY_CONTROLLER, IN_TREE, MIGRATED_TO, PROVISIONED_BY};
use tenure_kinds::{PersistentVolume, PersistentVolumeClaim};

use super::matching::phase;
use super::names::migrated;
use super::world::Name;
use super::write::Tone;
use super::{Key, Storage};

impl Storage {
    pub(super) async fn volume(&self, name: &Name) -> Result<(), kube::Error> {
        let Some(volume) = self.world.lock().volumes.get(name) else {
            return Ok(());
        };
        let volume = self.name_driver(volume).await?;
        let named = volume.spec.claim_ref.as_ref();
        let Some(named) = named.filter(|named| !named.uid.is_empty()) else {
            return self.phase(&volume, "Available", None).await.map(drop);
        };
        let claim = Name::new(&named.namespace, &named.name);
        let Some(found) = self.claim_with_uid(&claim, &named.uid).await? else {
            return self.released(&volume).await;
        };
        match found.spec.volume_name.as_str() {
            "" => {
                self.queue.add(Key::Claim(claim));
                Ok(())
            }
            bound_to if bound_to == name.name => self.phase(&volume, "Bound", None).await.map(drop),
            // The volume was created for the claim, which is bound to another volume, so the volume is not needed.
            _ if volume.annotation(PROVISIONED_BY).is_some() && policy(&volume) == "Delete" => {
                self.released(&volume).await
            }
            _ => self.set_free(&volume).await,
        }
    }

    /// Names the driver that replaced the in-tree plugin of a volume, as kube-controller-manager does. The driver's
    /// provisioner deletes the volume.
    async fn name_driver(
        &self,
        volume: Arc<PersistentVolume>,
    ) -> Result<Arc<PersistentVolume>, kube::Error> {
        let plugin = volume.annotation(PROVISIONED_BY);
        let Some(driver) = plugin.and_then(migrated) else {
            return Ok(volume);
        };
        if volume.annotation(MIGRATED_TO) == Some(driver) {
            return Ok(volume);
        }
        let patch = json!({ "metadata": { "annotations": { MIGRATED_TO: driver } } });
        self.write.volume(&volume, patch).await
    }

    /// Returns the claim if it is still the referenced one. Reads it again before it counts as gone.
    async fn claim_with_uid(
        &self,
        name: &Name,
        uid: &str,
    ) -> Result<Option<Arc<PersistentVolumeClaim>>, kube::Error> {
        let meant = |claim: &PersistentVolumeClaim| claim.metadata.uid.as_deref() == Some(uid);
        let known = self.world.lock().claims.get(name);
        if let Some(claim) = known.filter(|claim| meant(claim)) {
            return Ok(Some(claim));
        }
        let fresh = self.write.fresh_claim(name).await?;
        Ok(fresh.filter(meant).map(Arc::new))
    }

    async fn released(&self, volume: &PersistentVolume) -> Result<(), kube::Error> {
        let volume = match phase(volume) {
            // The failure stays visible.
            "Released" | "Failed" => Arc::new(volume.clone()),
            _ => self.phase(volume, "Released", None).await?,
        };
        match policy(&volume) {
            "Recycle" => {
                let why = "No recycler plugin found for the volume!";
                self.failed(&volume, "VolumeFailedRecycle", why).await
            }
            "Delete" if !is_external(&volume) => {
                let name = volume.name();
                let why = format!(
                    "error getting deleter volume plugin for volume {name:?}: no deletable volume plugin matched"
                );
                self.failed(&volume, "VolumeFailedDelete", &why).await
            }
            _ => Ok(()),
        }
    }

    /// Handles a volume whose claim has another volume. If the binder chose the claim, the reference is removed. If a
    /// person chose it, the reference stays for a future claim of that name.
    async fn set_free(&self, volume: &PersistentVolume) -> Result<(), kube::Error> {
        let ours = volume.annotation(BOUND_BY_CONTROLLER).is_some();
        let patch = if ours {
            json!({
                "metadata": { "annotations": { BOUND_BY_CONTROLLER: null } },
                "spec": { "claimRef": null },
            })
        } else {
            json!({ "spec": { "claimRef": { "uid": null, "resourceVersion": null } } })
        };
        let volume = self.write.volume(volume, patch).await?;
        self.phase(&volume, "Available", None).await.map(drop)
    }

    async fn failed(
        &self,
        volume: &PersistentVolume,
        reason: &str,
        message: &str,
    ) -> Result<(), kube::Error> {
        if phase(volume) != "Failed" {
            let volume = self.phase(volume, "Failed", Some(message)).await?;
            self.write
                .event(&*volume, Tone::Warning, reason, message)
                .await;
        }
        Ok(())
    }

    /// Sets the phase of a volume, unless it is already set.
    pub(super) async fn phase(
        &self,
        volume: &PersistentVolume,
        phase: &str,
        message: Option<&str>,
    ) -> Result<Arc<PersistentVolume>, kube::Error> {
        if self::phase(volume) == phase {
            return Ok(Arc::new(volume.clone()));
        }
        let status = json!({ "phase": phase, "message": message });
        self.write.volume_status(volume, status).await
    }
}

/// Returns whether a component outside this server may delete the volume: it belongs to a driver, or no in-tree plugin
/// created it.
fn is_external(volume: &PersistentVolume) -> bool {
    let maker = volume.annotation(PROVISIONED_BY);
    volume.spec.csi.is_some()
        || volume.annotation(MIGRATED_TO).is_some()
        || maker.is_some_and(|maker| !maker.starts_with(IN_TREE))
}

fn policy(volume: &PersistentVolume) -> &str {
    match volume.spec.persistent_volume_reclaim_policy.as_str() {
        "" => "Retain",
        policy => policy,
    }
}
