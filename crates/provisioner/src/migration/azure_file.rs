//! `kubernetes.io/azure-file` and `file.csi.azure.com`.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{
    AzureFilePersistentVolumeSource, CSIPersistentVolumeSource, PersistentVolume,
    PersistentVolumeSpec,
};

use super::{ClassFields, Plugin, TranslationError, secret, set};

const RESOURCE_GROUP: &str = "kubernetes.io/azure-file-resource-group";

/// File shares of Azure. Their classes and topology are not translated.
#[derive(Debug)]
pub(super) struct AzureFile;

impl Plugin for AzureFile {
    fn in_tree_name(&self) -> &'static str {
        "kubernetes.io/azure-file"
    }

    fn driver(&self) -> &'static str {
        "file.csi.azure.com"
    }

    fn translate_class(&self, class: ClassFields) -> Result<ClassFields, TranslationError> {
        Ok(class)
    }

    fn has_source(&self, spec: &PersistentVolumeSpec) -> bool {
        spec.azure_file.is_some()
    }

    fn take_source(
        &self,
        volume: &mut PersistentVolume,
    ) -> Result<CSIPersistentVolumeSource, TranslationError> {
        let spec = volume.spec.get_or_insert_default();
        let source = spec.azure_file.take();
        let source = source.ok_or(TranslationError::UnknownSource)?;
        let claim = spec.claim_ref.as_ref();
        let of_claim = || claim.and_then(|claim| claim.namespace.clone());
        let namespace = source.secret_namespace.or_else(of_claim);
        let namespace = namespace.unwrap_or_default();
        if namespace.is_empty() {
            let why = "neither the source nor the claimRef has one";
            return Err(TranslationError::invalid("secret namespace", "", why));
        }
        let account = account(&source.secret_name).unwrap_or(&source.secret_name);
        let annotations = volume.metadata.annotations.as_ref();
        let group = annotations.and_then(|annotations| annotations.get(RESOURCE_GROUP));
        let group = group.map_or("", String::as_str);
        let name = volume.metadata.name.as_deref().unwrap_or_default();
        let share = &source.share_name;
        Ok(CSIPersistentVolumeSource {
            driver: self.driver().to_owned(),
            volume_handle: format!("{group}#{account}#{share}#{name}#{namespace}"),
            read_only: set(source.read_only),
            node_stage_secret_ref: Some(secret(&source.secret_name, &namespace)),
            volume_attributes: Some(BTreeMap::from([("sharename".to_owned(), share.clone())])),
            ..CSIPersistentVolumeSource::default()
        })
    }

    fn put_source(
        &self,
        volume: &mut PersistentVolume,
        csi: CSIPersistentVolumeSource,
    ) -> Result<(), TranslationError> {
        let mut source = AzureFilePersistentVolumeSource {
            read_only: set(csi.read_only),
            ..AzureFilePersistentVolumeSource::default()
        };
        for (key, value) in csi.volume_attributes.into_iter().flatten() {
            match key.to_lowercase().as_str() {
                "sharename" => source.share_name = value,
                "secretname" => source.secret_name = value,
                "secretnamespace" => source.secret_namespace = Some(value),
                _ => {}
            }
        }
        if let Some(stage) = csi.node_stage_secret_ref
            && let Some(name) = stage.name.filter(|name| !name.is_empty())
        {
            source.secret_name = name;
            source.secret_namespace = Some(stage.namespace.unwrap_or_default());
        }
        if source.share_name.is_empty() || source.secret_name.is_empty() {
            let handle = &csi.volume_handle;
            let parts: Vec<_> = handle.split('#').collect();
            let [group, account, share, ..] = &*parts else {
                let why = "expected GROUP#ACCOUNT#SHARE";
                return Err(TranslationError::invalid("volume handle", handle, why));
            };
            if source.share_name.is_empty() {
                (*share).clone_into(&mut source.share_name);
            }
            if source.secret_name.is_empty() {
                source.secret_name = format!("azure-storage-account-{account}-secret");
            }
            if !group.is_empty() {
                let annotations = volume.metadata.annotations.get_or_insert_default();
                annotations.insert(RESOURCE_GROUP.to_owned(), (*group).to_owned());
            }
        }
        let namespace = source.secret_namespace;
        source.secret_namespace = namespace.or_else(|| Some("default".to_owned()));
        volume.spec.get_or_insert_default().azure_file = Some(source);
        Ok(())
    }
}

/// Returns the storage account that the name of a secret contains.
fn account(secret: &str) -> Option<&str> {
    secret.split('\n').find_map(|line| {
        let (_, rest) = line.split_once("azure-storage-account-")?;
        let (account, _) = rest.rsplit_once("-secret")?;
        (!account.is_empty()).then_some(account)
    })
}
