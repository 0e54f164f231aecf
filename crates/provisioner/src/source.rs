//! Volumes that start with the contents of a snapshot or of another volume.

use tenure_csi::v1::VolumeContentSource;
use tenure_csi::v1::volume_content_source::{SnapshotSource, Type, VolumeSource};

use crate::controller::Controller;
use crate::names::{ALLOW_MODE_CHANGE, CLONE_FINALIZER, SNAPSHOT_FINALIZER};
use crate::objects::{Claim, Class, Snapshot, SnapshotContent, Volume, annotation, has_finalizer};
use crate::plan::Source;
use crate::quantity;
use crate::state::Failure;

impl Controller {
    /// Finds the source and protects it from being deleted meanwhile.
    pub(crate) async fn content_source(
        &self,
        claim: &Claim,
        class: &Class,
        source: &Source,
    ) -> Result<VolumeContentSource, Failure> {
        let (found, finalizer) = match source {
            Source::Snapshot(name) => (self.snapshot(claim, class, name).await, SNAPSHOT_FINALIZER),
            Source::Claim(name) => (self.clone_source(claim, class, name).await, CLONE_FINALIZER),
        };
        let content = found.map_err(Failure::no_change)?;
        let namespace = claim.namespace();
        let set = match source {
            Source::Snapshot(name) => {
                let change = (finalizer, true);
                let set = self
                    .cluster
                    .set_finalizer::<Snapshot>(namespace, name, None, change)
                    .await;
                match set {
                    // Old roles may only read snapshots.
                    Err(error) if error.is_forbidden() => {
                        tracing::info!(%error, "the snapshot is not protected while it is restored");
                        Ok(true)
                    }
                    set => set,
                }
            }
            Source::Claim(name) => {
                self.cluster
                    .set_finalizer::<Claim>(namespace, name, None, (finalizer, true))
                    .await
            }
        };
        match set {
            Ok(true) => Ok(VolumeContentSource {
                r#type: Some(content),
            }),
            Ok(false) => Err(Failure::no_change("the data source of the claim is gone")),
            Err(error) => Err(Failure::no_change(error.to_string())),
        }
    }

    /// After the volume is made, the snapshot may go. (A clone's source keeps its finalizer until somebody
    /// deletes it: see `clone`.)
    pub(crate) async fn source_used(&self, claim: &Claim, source: &Source) {
        let Source::Snapshot(name) = source else {
            return;
        };
        let change = (SNAPSHOT_FINALIZER, false);
        let namespace = claim.namespace();
        let set = self
            .cluster
            .set_finalizer::<Snapshot>(namespace, name, None, change)
            .await;
        if let Err(error) = set {
            tracing::info!(%error, "the snapshot's finalizer is left to the sweeper");
        }
    }

    async fn snapshot(&self, claim: &Claim, class: &Class, name: &str) -> Result<Type, String> {
        let snapshot = self
            .cluster
            .get_in::<Snapshot>(claim.namespace(), name)
            .await;
        let snapshot = snapshot.map_err(|error| error.to_string())?;
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

    async fn clone_source(&self, claim: &Claim, class: &Class, name: &str) -> Result<Type, String> {
        let source = self.cluster.get_in::<Claim>(claim.namespace(), name).await;
        let source = source.map_err(|error| error.to_string())?;
        check_source_claim(claim, &source)?;
        let volume = self.cluster.get::<Volume>(&source.spec.volume_name).await;
        let volume = volume.map_err(|error| error.to_string())?;
        let volume_id = check_source_volume(class, &source, &volume)?;
        Ok(Type::Volume(VolumeSource { volume_id }))
    }
}

/// The handle of a snapshot that may be restored into this claim.
fn check_snapshot(
    claim: &Claim,
    class: &Class,
    snapshot: &Snapshot,
    content: &SnapshotContent,
    prevent_conversion: bool,
) -> Result<String, String> {
    let name = snapshot.metadata.name.as_deref().unwrap_or_default();
    let deleting = snapshot.metadata.deletion_timestamp.is_some();
    // With our finalizer, restoring began before it was deleted.
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
            "volumesnapshot {name} is of driver {:?}, the class of {:?}",
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
        let (needed, requested) = (quantity::parse(size)?, claim.requested()?);
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
                "volumesnapshot {name} is of mode {from} and the claim of mode {to}: the content needs the annotation {ALLOW_MODE_CHANGE}"
            ));
        }
    }
    Ok(handle)
}

fn check_source_claim(claim: &Claim, source: &Claim) -> Result<(), String> {
    let name = source.name();
    if source.status.phase != "Bound" {
        return Err(format!("the claim {name} to clone from is not bound"));
    }
    if source.metadata.deletion_timestamp.is_some() {
        return Err(format!("the claim {name} to clone from is being deleted"));
    }
    if source.spec.storage_class_name.is_none() || claim.spec.storage_class_name.is_none() {
        return Err(format!(
            "claim {name} and the one cloned from it both need a storageClassName"
        ));
    }
    let (needed, requested) = (source.requested()?, claim.requested()?);
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
            "claim {name} is of mode {}, this one of mode {}",
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
            "volume {name} to clone is of driver {:?}, the class of {:?}",
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
