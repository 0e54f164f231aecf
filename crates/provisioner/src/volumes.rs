//! The volume worker: maintains finalizers and deletes released volumes.

use std::collections::BTreeMap;
use std::sync::Arc;

use tenure_csi::ControllerCapability;
use tokio::time::Instant;

use crate::controller::Controller;
use crate::decide::{Finalizer, finalizer, is_our_volume, should_delete};
use crate::events::Kind;
use crate::migrated::ReadVolume;
use crate::names::{DELETION_SECRET_NAME, DELETION_SECRET_NAMESPACE, VOLUME_FINALIZER};
use crate::objects::{Claim, Volume};
use crate::plan::check_can_provision;
use crate::secrets::{self, SecretRef};

impl Controller {
    /// Processes volumes until the queue is shut down.
    pub(crate) async fn volume_worker(self: Arc<Self>) {
        while let Some(name) = self.queues.volumes.get().await {
            if self.is_stopping() {
                continue;
            }
            match Box::pin(self.sync_volume(&name)).await {
                Ok(()) => self.queues.volumes.forget(&name),
                Err(error) => {
                    tracing::warn!(
                        volume = *name,
                        error,
                        token = self.token(),
                        "cannot process the volume; retrying"
                    );
                    self.queues.volumes.add_rate_limited(name.clone());
                }
            }
        }
    }

    async fn sync_volume(&self, name: &str) -> Result<(), String> {
        let Some(volume) = self.caches.volumes.get(name) else {
            return Ok(());
        };
        let wanted = match finalizer(&volume) {
            Finalizer::Add => Some(true),
            Finalizer::Remove => Some(false),
            Finalizer::Keep => None,
        };
        if let Some(wanted) = wanted {
            let change = self
                .cluster
                .set_volume_finalizer(&volume, VOLUME_FINALIZER, wanted)
                .await;
            change.map_err(|error| error.to_string())?;
        }
        // The topology of an in-tree volume is compared after its translation.
        if !should_delete(&volume) || (volume.spec.csi.is_some() && self.is_elsewhere(&volume)) {
            return Ok(());
        }
        self.busy.run_exclusive(name, self.delete(&volume)).await
    }

    async fn delete(&self, volume: &Volume) -> Result<(), String> {
        // A deletion cannot be undone, so a fresh copy of the volume decides. The volume may be gone, or its policy may
        // have been changed to Retain.
        let live = match self.read_volume(volume.name()).await {
            Ok(live) => live,
            Err(error) if error.is_not_found() => return Ok(()),
            Err(error) => return Err(error.to_string()),
        };
        let is_same = live.volume.metadata.uid == volume.metadata.uid;
        let volume = &live.volume;
        if !is_same
            || !should_delete(volume)
            || !is_our_volume(volume, &self.facts.name)
            || self.is_elsewhere(volume)
        {
            return Ok(());
        }
        let started = Instant::now();
        let class = &volume.spec.storage_class_name;
        if let Err(error) = self.delete_behind(&live).await {
            self.events
                .volume(volume, Kind::Warning, "VolumeFailedDelete", &error);
            self.metrics.delete_failed(class);
            return Err(error);
        }
        self.metrics.deleted(class, started.elapsed());
        self.note_deleted(volume.name());
        if let Some(capacities) = &self.capacities {
            capacities.refresh(class, &volume.places());
        }
        let deleted = self.cluster.delete_volume(volume, VOLUME_FINALIZER).await;
        if deleted.map_err(|error| error.to_string())? {
            let change = self
                .cluster
                .set_volume_finalizer(volume, VOLUME_FINALIZER, false)
                .await;
            change.map_err(|error| error.to_string())?;
        }
        tracing::info!(volume = volume.name(), token = self.token(), "deleted");
        Ok(())
    }

    /// Returns whether the storage of a volume is on another node, with `--node-deployment`.
    fn is_elsewhere(&self, volume: &Volume) -> bool {
        let local = self.local.as_ref();
        local.is_some_and(|local| !local.has(volume))
    }

    /// Deletes the storage of a volume.
    async fn delete_behind(&self, read: &ReadVolume) -> Result<(), String> {
        let volume = &read.volume;
        if let Some(error) = &read.error {
            return Err(format!("cannot translate the in-tree PV: {error}"));
        }
        let Some(csi) = &volume.spec.csi else {
            return Err("invalid CSI PV: it has no spec.csi".to_owned());
        };
        check_can_provision(&self.facts)?;
        let secrets = self.deletion_secrets(volume).await?;
        if self
            .facts
            .controller(ControllerCapability::PublishUnpublishVolume)
        {
            let name = volume.name();
            let node = self.caches.attachments.find_map(name, |attachment| {
                let source = attachment.spec.source.persistent_volume_name.as_deref();
                (source == Some(name)).then(|| attachment.spec.node_name.clone())
            });
            if let Some(node) = node {
                return Err(format!(
                    "persistentvolume {} is still attached to node {node}",
                    volume.name()
                ));
            }
        }
        let driver = self.driver.migrated(read.migrated);
        let deleted = self
            .delete_storage(&driver, &csi.volume_handle, secrets)
            .await;
        deleted.map_err(|error| error.to_string())
    }

    /// Reads the deletion secrets that the volume's annotations name or, for old volumes, its class.
    async fn deletion_secrets(&self, volume: &Volume) -> Result<BTreeMap<String, String>, String> {
        let noted = (
            volume.annotation(DELETION_SECRET_NAME),
            volume.annotation(DELETION_SECRET_NAMESPACE),
        );
        let secret = match noted {
            (Some(name), Some(namespace)) => Some(SecretRef {
                name: name.to_owned(),
                namespace: namespace.to_owned(),
            })
            .filter(|secret| !secret.name.is_empty() && !secret.namespace.is_empty()),
            _ => self.secret_of_class(volume)?,
        };
        let Some(secret) = secret else {
            return Ok(BTreeMap::new());
        };
        match self.cluster.secret(&secret).await {
            // The secret may be deleted before the volume, or reading it may be forbidden; the driver then decides whether it
            // needs one. Other errors are retried.
            Err(error) if error.is_not_found() || error.is_forbidden() => {
                tracing::warn!(volume = volume.name(), %error, "cannot read the secret; deleting the volume without it");
                Ok(BTreeMap::new())
            }
            other => other.map_err(|error| error.to_string()),
        }
    }

    fn secret_of_class(&self, volume: &Volume) -> Result<Option<SecretRef>, String> {
        let Some(class) = self.caches.classes.get(&volume.spec.storage_class_name) else {
            tracing::warn!(
                volume = volume.name(),
                class = volume.spec.storage_class_name,
                "the class was deleted; deleting the volume without a secret"
            );
            return Ok(None);
        };
        let Some(reference) = &volume.spec.claim_ref else {
            return Ok(None);
        };
        let class = self.translated(&class).map_err(|error| {
            let name = &volume.spec.storage_class_name;
            format!("storageclass {name}: {error}")
        })?;
        let mut claim = Claim::default();
        claim.metadata.name = Some(reference.name.clone());
        claim.metadata.namespace = Some(reference.namespace.clone());
        secrets::resolve(
            &secrets::PROVISIONER,
            &class.parameters,
            volume.name(),
            &claim,
        )
    }
}
