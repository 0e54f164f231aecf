//! `kubernetes.io/portworx-volume` and `pxd.portworx.com`.

use k8s_openapi::api::core::v1::{
    CSIPersistentVolumeSource, PersistentVolume, PersistentVolumeSpec, PortworxVolumeSource,
};

use super::{ClassFields, Plugin, TranslationError, non_empty, secret, set};

/// Parameter of a class and annotation of a volume: the secret for all requests.
const SECRET: &str = "openstorage.io/auth-secret-name";
/// The namespace of that secret.
const SECRET_NAMESPACE: &str = "openstorage.io/auth-secret-namespace";

/// Volumes of Portworx. They have no topology.
#[derive(Debug)]
pub(super) struct Portworx;

impl Plugin for Portworx {
    fn in_tree_name(&self) -> &'static str {
        "kubernetes.io/portworx-volume"
    }

    fn driver(&self) -> &'static str {
        "pxd.portworx.com"
    }

    fn translate_class(&self, mut class: ClassFields) -> Result<ClassFields, TranslationError> {
        let calls = [
            "provisioner",
            "controller-publish",
            "node-publish",
            "node-stage",
            "controller-expand",
            "node-expand",
        ];
        for (old, end) in [(SECRET, "name"), (SECRET_NAMESPACE, "namespace")] {
            let names = calls.map(|call| format!("csi.storage.k8s.io/{call}-secret-{end}"));
            class.rename_parameter(old, &names.each_ref().map(String::as_str));
        }
        self.driver().clone_into(&mut class.provisioner);
        Ok(class)
    }

    fn has_source(&self, spec: &PersistentVolumeSpec) -> bool {
        spec.portworx_volume.is_some()
    }

    fn take_source(
        &self,
        volume: &mut PersistentVolume,
    ) -> Result<CSIPersistentVolumeSource, TranslationError> {
        let source = volume.spec.get_or_insert_default().portworx_volume.take();
        let source = source.ok_or(TranslationError::UnknownSource)?;
        let annotations = volume.metadata.annotations.as_ref();
        let annotation = |key| annotations.and_then(|annotations| annotations.get(key));
        let names = annotation(SECRET).zip(annotation(SECRET_NAMESPACE));
        let secret = names.map(|(name, namespace)| secret(name, namespace));
        Ok(CSIPersistentVolumeSource {
            driver: self.driver().to_owned(),
            volume_handle: source.volume_id,
            fs_type: source.fs_type.and_then(non_empty),
            controller_publish_secret_ref: secret.clone(),
            node_stage_secret_ref: secret.clone(),
            node_publish_secret_ref: secret.clone(),
            controller_expand_secret_ref: secret.clone(),
            node_expand_secret_ref: secret,
            ..CSIPersistentVolumeSource::default()
        })
    }

    fn put_source(
        &self,
        volume: &mut PersistentVolume,
        csi: CSIPersistentVolumeSource,
    ) -> Result<(), TranslationError> {
        volume.spec.get_or_insert_default().portworx_volume = Some(PortworxVolumeSource {
            volume_id: csi.volume_handle,
            fs_type: csi.fs_type.and_then(non_empty),
            read_only: set(csi.read_only),
        });
        Ok(())
    }
}
