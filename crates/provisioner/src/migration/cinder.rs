//! `kubernetes.io/cinder` and `cinder.csi.openstack.org`.

use k8s_openapi::api::core::v1::{
    CSIPersistentVolumeSource, CinderPersistentVolumeSource, PersistentVolume, PersistentVolumeSpec,
};

use super::{ClassFields, Plugin, TranslationError, non_empty, set, topology};

const ZONE: &str = "topology.cinder.csi.openstack.org/zone";

/// Block storage of OpenStack. The region cannot be derived from the zone.
#[derive(Debug)]
pub(super) struct Cinder;

impl Plugin for Cinder {
    fn in_tree_name(&self) -> &'static str {
        "kubernetes.io/cinder"
    }

    fn driver(&self) -> &'static str {
        "cinder.csi.openstack.org"
    }

    /// Keeps the parameter `availability`, which the driver supports.
    fn translate_class(&self, mut class: ClassFields) -> Result<ClassFields, TranslationError> {
        class.rename_fs_type();
        class.rename_zone_keys(ZONE);
        Ok(class)
    }

    fn has_source(&self, spec: &PersistentVolumeSpec) -> bool {
        spec.cinder.is_some()
    }

    fn take_source(
        &self,
        volume: &mut PersistentVolume,
    ) -> Result<CSIPersistentVolumeSource, TranslationError> {
        let source = volume.spec.get_or_insert_default().cinder.take();
        let source = source.ok_or(TranslationError::UnknownSource)?;
        topology::to_csi(volume, ZONE);
        Ok(CSIPersistentVolumeSource {
            driver: self.driver().to_owned(),
            volume_handle: source.volume_id,
            read_only: set(source.read_only),
            fs_type: source.fs_type.and_then(non_empty),
            ..CSIPersistentVolumeSource::default()
        })
    }

    fn put_source(
        &self,
        volume: &mut PersistentVolume,
        csi: CSIPersistentVolumeSource,
    ) -> Result<(), TranslationError> {
        topology::to_in_tree(volume, ZONE, None)?;
        volume.spec.get_or_insert_default().cinder = Some(CinderPersistentVolumeSource {
            volume_id: csi.volume_handle,
            fs_type: csi.fs_type.and_then(non_empty),
            read_only: set(csi.read_only),
            secret_ref: None,
        });
        Ok(())
    }
}
