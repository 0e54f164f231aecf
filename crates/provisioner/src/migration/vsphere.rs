//! `kubernetes.io/vsphere-volume` and `csi.vsphere.vmware.com`.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{
    CSIPersistentVolumeSource, PersistentVolume, PersistentVolumeSpec,
    VsphereVirtualDiskVolumeSource,
};

use super::{ClassFields, Plugin, TranslationError, non_empty, topology};

const ZONE: &str = "topology.csi.vmware.com/zone";
const REGION: &str = "topology.csi.vmware.com/region";
const STORAGE_POLICY: &str = "storagepolicyname";
/// Attribute of a volume: its path, if the request had the parameter `csimigration`.
const PATH: &str = "initialvolumefilepath";

/// The parameters of the plugin that the driver supports only for migration.
const MIGRATED_PARAMETERS: [&str; 8] = [
    "datastore",
    "diskformat",
    "hostfailurestotolerate",
    "forceprovisioning",
    "cachereservation",
    "diskstripes",
    "objectspacereservation",
    "iopslimit",
];

/// Disks of vSphere.
#[derive(Debug)]
pub(super) struct Vsphere;

impl Plugin for Vsphere {
    fn in_tree_name(&self) -> &'static str {
        "kubernetes.io/vsphere-volume"
    }

    fn driver(&self) -> &'static str {
        "csi.vsphere.vmware.com"
    }

    /// Drops parameters that the plugin did not have.
    fn translate_class(&self, mut class: ClassFields) -> Result<ClassFields, TranslationError> {
        let mut known = ClassFields::default();
        for (name, value) in std::mem::take(&mut class.parameters) {
            let name = name.to_lowercase();
            let new = match name.as_str() {
                "fstype" | STORAGE_POLICY => name,
                _ if MIGRATED_PARAMETERS.contains(&name.as_str()) => {
                    format!("{name}-migrationparam")
                }
                _ => {
                    tracing::warn!(name, value, "dropped a class parameter of vSphere");
                    continue;
                }
            };
            known.parameters.insert(new, value);
        }
        known.rename_fs_type();
        // The driver then returns the path of the volume, by which the plugin names it.
        let migration = ("csimigration".to_owned(), "true".to_owned());
        class.parameters = known.parameters;
        class.parameters.extend([migration]);
        class.rename_zone_keys(ZONE);
        Ok(class)
    }

    fn has_source(&self, spec: &PersistentVolumeSpec) -> bool {
        spec.vsphere_volume.is_some()
    }

    fn take_source(
        &self,
        volume: &mut PersistentVolume,
    ) -> Result<CSIPersistentVolumeSource, TranslationError> {
        let source = volume.spec.get_or_insert_default().vsphere_volume.take();
        let source = source.ok_or(TranslationError::UnknownSource)?;
        topology::pair_to_csi(volume, (ZONE, REGION));
        let policy = source.storage_policy_name.and_then(non_empty);
        let policy = policy.map(|policy| BTreeMap::from([(STORAGE_POLICY.to_owned(), policy)]));
        Ok(CSIPersistentVolumeSource {
            driver: self.driver().to_owned(),
            volume_handle: source.volume_path,
            fs_type: source.fs_type.and_then(non_empty),
            volume_attributes: policy,
            ..CSIPersistentVolumeSource::default()
        })
    }

    fn put_source(
        &self,
        volume: &mut PersistentVolume,
        csi: CSIPersistentVolumeSource,
    ) -> Result<(), TranslationError> {
        topology::pair_to_in_tree(volume, (ZONE, REGION));
        let mut attributes = csi.volume_attributes.unwrap_or_default();
        let spec = volume.spec.get_or_insert_default();
        spec.vsphere_volume = Some(VsphereVirtualDiskVolumeSource {
            fs_type: csi.fs_type.and_then(non_empty),
            volume_path: attributes.remove(PATH).unwrap_or_default(),
            ..VsphereVirtualDiskVolumeSource::default()
        });
        Ok(())
    }
}
