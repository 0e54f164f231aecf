//! `kubernetes.io/gce-pd` and `pd.csi.storage.gke.io`.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::{
    CSIPersistentVolumeSource, GCEPersistentDiskVolumeSource, PersistentVolume,
    PersistentVolumeSpec,
};

use super::topology::{BETA_ZONE, DELIMITER};
use super::{ClassFields, Plugin, TranslationError, non_empty, partition, set, topology};

const ZONE: &str = "topology.gke.io/zone";
/// Stands for a project or zone that the volume object does not have. The driver looks it up.
const UNSPECIFIED: &str = "UNSPECIFIED";

/// Persistent disks of Google Compute Engine.
#[derive(Debug)]
pub(super) struct GcePd;

impl Plugin for GcePd {
    fn in_tree_name(&self) -> &'static str {
        "kubernetes.io/gce-pd"
    }

    fn driver(&self) -> &'static str {
        "pd.csi.storage.gke.io"
    }

    fn translate_class(&self, mut class: ClassFields) -> Result<ClassFields, TranslationError> {
        class.translate_zones(ZONE)?;
        class.rename_fs_type();
        Ok(class)
    }

    fn has_source(&self, spec: &PersistentVolumeSpec) -> bool {
        spec.gce_persistent_disk.is_some()
    }

    fn take_source(
        &self,
        volume: &mut PersistentVolume,
    ) -> Result<CSIPersistentVolumeSource, TranslationError> {
        let spec = volume.spec.get_or_insert_default();
        let source = spec.gce_persistent_disk.take();
        let source = source.ok_or(TranslationError::UnknownSource)?;
        let place = place(volume)?;
        topology::to_csi(volume, ZONE);
        let spec = volume.spec.get_or_insert_default();
        spec.access_modes = spec.access_modes.take().map(|modes| access_modes(&modes));
        let partition = source.partition.filter(|partition| *partition != 0);
        let partition = partition.map_or_else(String::new, |partition| partition.to_string());
        Ok(CSIPersistentVolumeSource {
            driver: self.driver().to_owned(),
            volume_handle: format!("projects/{UNSPECIFIED}/{place}/disks/{}", source.pd_name),
            read_only: set(source.read_only),
            fs_type: source.fs_type.and_then(non_empty),
            volume_attributes: Some(BTreeMap::from([("partition".to_owned(), partition)])),
            ..CSIPersistentVolumeSource::default()
        })
    }

    fn put_source(
        &self,
        volume: &mut PersistentVolume,
        csi: CSIPersistentVolumeSource,
    ) -> Result<(), TranslationError> {
        let handle = &csi.volume_handle;
        let name = handle.split('/').nth(5).ok_or_else(|| {
            let why = "expected projects/PROJECT/zones/ZONE/disks/NAME";
            TranslationError::invalid("volume handle", handle, why)
        })?;
        let attributes = csi.volume_attributes.unwrap_or_default();
        let partition = match attributes.get("partition") {
            Some(text) if !text.is_empty() => partition(text)?,
            _ => None,
        };
        let name = name.to_owned();
        topology::to_in_tree(volume, ZONE, Some(region_of))?;
        let spec = volume.spec.get_or_insert_default();
        spec.gce_persistent_disk = Some(GCEPersistentDiskVolumeSource {
            pd_name: name,
            fs_type: csi.fs_type.and_then(non_empty),
            read_only: set(csi.read_only),
            partition,
        });
        Ok(())
    }
}

/// Returns the zone or the region of a disk as part of its handle, derived from the labels of the volume.
fn place(volume: &PersistentVolume) -> Result<String, TranslationError> {
    let old = topology::label(volume, BETA_ZONE).filter(|zones| !zones.is_empty());
    let zones = old.or_else(|| topology::label(volume, topology::ZONE));
    let zones: Vec<_> = zones.unwrap_or_default().split(DELIMITER).collect();
    match &*zones {
        [zone] if !zone.is_empty() => Ok(format!("zones/{zone}")),
        [_] => Ok(format!("zones/{UNSPECIFIED}")),
        _ => {
            let zones: Vec<_> = zones.into_iter().map(str::to_owned).collect();
            Ok(format!("regions/{}", region_of(&zones)?))
        }
    }
}

/// Returns the modes that the driver supports. The plugin did not check them, and attached every disk for one writer
/// unless it was only read.
fn access_modes(modes: &[String]) -> Vec<String> {
    let has = |mode: &str| modes.iter().any(|known| known == mode);
    let written = has("ReadWriteOnce") || has("ReadWriteMany");
    let mode = match has("ReadOnlyMany") && !written {
        true => "ReadOnlyMany",
        false => "ReadWriteOnce",
    };
    vec![mode.to_owned()]
}

/// Returns the region of zones: `us-east1` of `us-east1-b`.
fn region_of(zones: &[String]) -> Result<String, TranslationError> {
    let mut regions = BTreeSet::new();
    for zone in zones {
        let parts: Vec<_> = zone.split('-').collect();
        let [continent, region, _] = &*parts else {
            let why = "it does not have the form of a GCE zone";
            return Err(TranslationError::invalid("zone", zone, why));
        };
        regions.insert(format!("{continent}-{region}"));
    }
    topology::only_region(regions)
}
