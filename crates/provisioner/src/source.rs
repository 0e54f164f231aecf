//! Content sources of volumes: snapshots and other claims.

use std::sync::MutexGuard;

use tenure_csi::v1::VolumeContentSource;
use tenure_csi::v1::volume_content_source::{SnapshotSource, Type, VolumeSource};

use crate::controller::{Controller, Restores, lock};
use crate::names::{ALLOW_MODE_CHANGE, CLONE_FINALIZER, SNAPSHOT_FINALIZER};
use crate::objects::{
    Claim, Class, Grant, Snapshot, SnapshotContent, Volume, annotation, bytes, has_finalizer,
    requested,
};
use crate::plan::{self, Source, SourceKind};
use crate::state::Failure;

impl Controller {
    /// Finds the source and protects it from deletion.
    pub(crate) async fn content_source(
        &self,
        claim: &Claim,
        class: &Class,
        source: &Source,
    ) -> Result<VolumeContentSource, Failure> {
        if source.namespace != claim.namespace() {
            self.check_grant(claim, source).await?;
        }
        let (namespace, name) = (&source.namespace, &source.name);
        let (content, set) = match source.kind {
            SourceKind::Snapshot => {
                let content = self.snapshot(claim, class, source).await;
                let content = content.map_err(Failure::no_change)?;
                let lock = snapshot_lock(namespace, name);
                let set = self.busy.run_exclusive(&lock, async {
                    self.restoring()
                        .entry((namespace.clone(), name.clone()))
                        .or_default()
                        .insert(claim.uid().to_owned());
                    let change = (SNAPSHOT_FINALIZER, true);
                    self.cluster
                        .set_finalizer::<Snapshot>(namespace, name, None, change)
                        .await
                });
                match set.await {
                    // Old roles allow only reads of snapshots.
                    Err(error) if error.is_forbidden() => {
                        tracing::info!(%error, "cannot protect the snapshot during the restore");
                        (content, Ok(true))
                    }
                    set => (content, set),
                }
            }
            SourceKind::Claim => {
                let content = self.clone_source(claim, class, source).await;
                let content = content.map_err(Failure::no_change)?;
                let change = (CLONE_FINALIZER, true);
                let set = self
                    .cluster
                    .set_finalizer::<Claim>(namespace, name, None, change)
                    .await;
                (content, set)
            }
        };
        match set {
            Ok(true) => Ok(VolumeContentSource {
                r#type: Some(content),
            }),
            Ok(false) => Err(Failure::no_change(
                "the data source of the claim was deleted",
            )),
            Err(error) => Err(Failure::no_change(error.to_string())),
        }
    }

    /// Removes the protection of the snapshot after the volume object exists, because the driver is not asked again.
    /// The source of a clone keeps its finalizer until it is deleted; see `clone`.
    pub(crate) async fn source_used(&self, claim: &Claim) {
        let source = plan::source(claim, self.options.cross_namespace);
        let Ok(Some(source)) = source else { return };
        if source.kind != SourceKind::Snapshot {
            return;
        }
        let (namespace, name) = (&source.namespace, &source.name);
        let lock = snapshot_lock(namespace, name);
        let set = self.busy.run_exclusive(&lock, async {
            self.restored(claim.uid(), &source);
            // Other claims may be in the middle of a restore, started by this process or a previous leader. The last of
            // these claims, or the periodic cleanup, removes the finalizer.
            if self.is_awaited(namespace, name, claim.uid()) {
                return Ok(true);
            }
            let change = (SNAPSHOT_FINALIZER, false);
            self.cluster
                .set_finalizer::<Snapshot>(namespace, name, None, change)
                .await
        });
        if let Err(error) = set.await {
            tracing::info!(%error, "cannot remove the finalizer of the snapshot; the periodic cleanup retries");
        }
    }

    fn restoring(&self) -> MutexGuard<'_, Restores> {
        lock(&self.restores)
    }

    fn restored(&self, uid: &str, source: &Source) {
        let mut restoring = self.restoring();
        let place = (source.namespace.clone(), source.name.clone());
        if let Some(claims) = restoring.get_mut(&place) {
            claims.remove(uid);
            if claims.is_empty() {
                restoring.remove(&place);
            }
        }
    }

    /// Checks that the namespace of the source permits the reference.
    async fn check_grant(&self, claim: &Claim, source: &Source) -> Result<(), Failure> {
        let grants = self.cluster.list_in::<Grant>(&source.namespace).await;
        let grants = grants.map_err(|error| Failure::no_change(error.to_string()))?;
        if grants.iter().any(|grant| permits(grant, claim, source)) {
            return Ok(());
        }
        let (_, kind) = source.kind.names();
        Err(Failure::finished(format!(
            "no ReferenceGrant in namespace {} permits claims of namespace {} to use {kind} {}",
            source.namespace,
            claim.namespace(),
            source.name
        )))
    }

    async fn snapshot(
        &self,
        claim: &Claim,
        class: &Class,
        source: &Source,
    ) -> Result<Type, String> {
        let name = &source.name;
        let snapshot = self.cluster.get_in::<Snapshot>(&source.namespace, name);
        let snapshot = snapshot.await.map_err(|error| error.to_string())?;
        let content = snapshot
            .status
            .bound_volume_snapshot_content_name
            .as_deref();
        let content =
            content.ok_or_else(|| format!("volumesnapshot {name} is not bound to a content"))?;
        let content = self.cluster.get::<SnapshotContent>(content).await;
        let content = content.map_err(|error| error.to_string())?;
        let prevent = self.options.prevent_volume_mode_conversion;
        let handle = check_snapshot(claim, class, &snapshot, &content, prevent)?;
        Ok(Type::Snapshot(SnapshotSource {
            snapshot_id: handle,
        }))
    }

    async fn clone_source(
        &self,
        claim: &Claim,
        class: &Class,
        source: &Source,
    ) -> Result<Type, String> {
        let found = self
            .cluster
            .get_in::<Claim>(&source.namespace, &source.name);
        let source = found.await.map_err(|error| error.to_string())?;
        // Once the driver has begun, the request must be repeated until the driver answers.
        let begun = self.ledger.is_in_progress(claim.uid());
        check_source_claim(claim, &source, begun)?;
        let read = self.read_volume(&source.spec.volume_name).await;
        let volume = read.map_err(|error| error.to_string())?.volume;
        let volume_id = check_source_volume(class, &source, &volume)?;
        Ok(Type::Volume(VolumeSource { volume_id }))
    }
}

/// Returns the lock name that serialises changes of a snapshot's finalizer.
pub(crate) fn snapshot_lock(namespace: &str, name: &str) -> String {
    format!("volumesnapshot/{namespace}/{name}")
}

/// Returns whether a grant in the source's namespace permits this claim to use this source.
fn permits(grant: &Grant, claim: &Claim, source: &Source) -> bool {
    let (group, kind) = source.kind.names();
    let from = grant.spec.from.iter().any(|from| {
        from.group.is_empty()
            && from.kind == "PersistentVolumeClaim"
            && from.namespace == claim.namespace()
    });
    let to = grant.spec.to.iter().any(|to| {
        to.group == group && to.kind == kind && (to.name.is_empty() || to.name == source.name)
    });
    from && to
}

/// Checks that a snapshot can be restored into this claim, and returns its handle.
fn check_snapshot(
    claim: &Claim,
    class: &Class,
    snapshot: &Snapshot,
    content: &SnapshotContent,
    prevent_conversion: bool,
) -> Result<String, String> {
    let name = snapshot.metadata.name.as_deref().unwrap_or_default();
    let deleting = snapshot.metadata.deletion_timestamp.is_some();
    // If the snapshot has our finalizer, the restore began before the deletion.
    if deleting && !has_finalizer(&snapshot.metadata, SNAPSHOT_FINALIZER) {
        return Err(format!("volumesnapshot {name} is being deleted"));
    }
    let back = &content.spec.volume_snapshot_ref;
    let same = Some(back.uid.as_str()) == snapshot.metadata.uid.as_deref()
        && Some(back.namespace.as_str()) == snapshot.metadata.namespace.as_deref()
        && back.name == name;
    if !same {
        return Err(format!(
            "volumesnapshot {name} and its content do not name each other"
        ));
    }
    if content.spec.driver != class.provisioner {
        return Err(format!(
            "volumesnapshot {name} belongs to driver {:?}, but the class to driver {:?}",
            content.spec.driver, class.provisioner
        ));
    }
    if snapshot.status.ready_to_use != Some(true) {
        return Err(format!("volumesnapshot {name} is not ready to use"));
    }
    let handle = content.status.snapshot_handle.clone();
    let handle =
        handle.ok_or_else(|| format!("the content of volumesnapshot {name} has no handle"))?;
    if let Some(size) = &snapshot.status.restore_size {
        let (needed, requested) = (bytes(size)?, requested(claim)?);
        if requested < needed {
            return Err(format!(
                "requested volume size {requested} is less than the size {needed} of volumesnapshot {name}"
            ));
        }
    }
    let modes = (&content.spec.source_volume_mode, &claim.spec.volume_mode);
    if let (true, (Some(from), Some(to))) = (prevent_conversion, modes) {
        let allowed = annotation(&content.metadata, ALLOW_MODE_CHANGE);
        let allowed =
            allowed.is_some_and(|text| matches!(text, "1" | "t" | "T" | "true" | "TRUE" | "True"));
        if from != to && !allowed {
            return Err(format!(
                "volumesnapshot {name} has volume mode {from} and the claim {to}: to allow this, annotate the content with {ALLOW_MODE_CHANGE}"
            ));
        }
    }
    Ok(handle)
}

fn check_source_claim(claim: &Claim, source: &Claim, begun: bool) -> Result<(), String> {
    let name = source.name();
    if source.status.phase != "Bound" {
        return Err(format!("the claim {name} to clone from is not bound"));
    }
    let protected = has_finalizer(&source.metadata, CLONE_FINALIZER);
    if source.metadata.deletion_timestamp.is_some() && !(begun && protected) {
        return Err(format!("the claim {name} to clone from is being deleted"));
    }
    if source.spec.storage_class_name.is_none() || claim.spec.storage_class_name.is_none() {
        return Err(format!(
            "claim {name} and its clone both need a storageClassName"
        ));
    }
    let (needed, requested) = (requested(source)?, requested(claim)?);
    if requested < needed {
        return Err(format!(
            "requested volume size {requested} is less than the size {needed} of claim {name}"
        ));
    }
    if source.spec.volume_name.is_empty() {
        return Err(format!("the claim {name} to clone from has no volume"));
    }
    let mode = |claim: &Claim| {
        claim
            .spec
            .volume_mode
            .clone()
            .unwrap_or_else(|| "Filesystem".to_owned())
    };
    if mode(source) != mode(claim) {
        return Err(format!(
            "claim {name} has volume mode {}, but this claim {}",
            mode(source),
            mode(claim)
        ));
    }
    Ok(())
}

fn check_source_volume(class: &Class, source: &Claim, volume: &Volume) -> Result<String, String> {
    let name = volume.name();
    let Some(csi) = &volume.spec.csi else {
        return Err(format!("volume {name} to clone is not a CSI volume"));
    };
    if csi.driver != class.provisioner {
        return Err(format!(
            "volume {name} to clone belongs to driver {:?}, but the class to driver {:?}",
            csi.driver, class.provisioner
        ));
    }
    let claim = volume.spec.claim_ref.as_ref();
    let same = claim.is_some_and(|claim| {
        claim.uid == source.uid()
            && claim.namespace == source.namespace()
            && claim.name == source.name()
    });
    if !same || volume.status.phase != "Bound" {
        return Err(format!(
            "volume {name} is not bound to claim {}",
            source.key()
        ));
    }
    Ok(csi.volume_handle.clone())
}
