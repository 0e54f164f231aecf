//! `kubernetes.io/azure-disk` and `disk.csi.azure.com`.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{
    AzureDiskVolumeSource, CSIPersistentVolumeSource, PersistentVolume, PersistentVolumeSpec,
};

use super::{ClassFields, Plugin, TranslationError, non_empty, set};

const ZONE: &str = "topology.disk.csi.azure.com/zone";
const MANAGED: &str = "Managed";

/// Disks of Azure. Their topology is not translated.
#[derive(Debug)]
pub(super) struct AzureDisk;

impl Plugin for AzureDisk {
    fn in_tree_name(&self) -> &'static str {
        "kubernetes.io/azure-disk"
    }

    fn driver(&self) -> &'static str {
        "disk.csi.azure.com"
    }

    fn translate_class(&self, mut class: ClassFields) -> Result<ClassFields, TranslationError> {
        class.translate_zones(ZONE)?;
        let zones = class.allowed_topologies.iter_mut().flatten();
        for (_, values) in zones.filter(|(key, _)| key == ZONE) {
            for value in values {
                // In a region without zones, the plugin used the number of a fault domain, and the driver uses "".
                let is_number = value.bytes().all(|byte| byte.is_ascii_digit());
                if is_number {
                    value.clear();
                }
            }
        }
        Ok(class)
    }

    fn has_source(&self, spec: &PersistentVolumeSpec) -> bool {
        spec.azure_disk.is_some()
    }

    fn take_source(
        &self,
        volume: &mut PersistentVolume,
    ) -> Result<CSIPersistentVolumeSource, TranslationError> {
        let spec = volume.spec.get_or_insert_default();
        let source = spec.azure_disk.take();
        let source = source.ok_or(TranslationError::UnknownSource)?;
        if let Some(kind) = &source.kind
            && !kind.eq_ignore_ascii_case(MANAGED)
        {
            let why = "the CSI driver supports only managed disks";
            return Err(TranslationError::invalid("kind of Azure disk", kind, why));
        }
        let mut attributes = BTreeMap::from([("kind".to_owned(), MANAGED.to_owned())]);
        for (key, value) in [
            ("cachingmode", source.caching_mode),
            ("fstype", source.fs_type.clone()),
        ] {
            attributes.extend(value.map(|value| (key.to_owned(), value)));
        }
        Ok(CSIPersistentVolumeSource {
            driver: self.driver().to_owned(),
            volume_handle: source.disk_uri,
            read_only: set(source.read_only),
            fs_type: source.fs_type.and_then(non_empty),
            volume_attributes: Some(attributes),
            ..CSIPersistentVolumeSource::default()
        })
    }

    fn put_source(
        &self,
        volume: &mut PersistentVolume,
        csi: CSIPersistentVolumeSource,
    ) -> Result<(), TranslationError> {
        let uri = csi.volume_handle;
        let name = disk_name(&uri).ok_or_else(|| {
            let why = "expected /subscriptions/ID/resourceGroups/GROUP/providers/Microsoft.Compute/disks/NAME";
            TranslationError::invalid("volume handle", &uri, why)
        })?;
        let mut source = AzureDiskVolumeSource {
            disk_name: name.to_owned(),
            fs_type: Some(csi.fs_type.unwrap_or_default()),
            read_only: Some(csi.read_only.unwrap_or_default()),
            kind: Some(MANAGED.to_owned()),
            caching_mode: None,
            disk_uri: String::new(),
        };
        for (key, value) in csi.volume_attributes.into_iter().flatten() {
            match key.to_lowercase().as_str() {
                "cachingmode" if !value.is_empty() => source.caching_mode = Some(value),
                "fstype" if !value.is_empty() => source.fs_type = Some(value),
                _ => {}
            }
        }
        source.disk_uri = uri;
        volume.spec.get_or_insert_default().azure_disk = Some(source);
        Ok(())
    }
}

/// Returns the name of a disk, which is the last part of its URI. The URI of an unmanaged disk is that of a blob.
fn disk_name(uri: &str) -> Option<&str> {
    let start = uri.as_bytes().get(..4);
    let is_blob = uri.len() > 4 && start.is_some_and(|start| start.eq_ignore_ascii_case(b"http"));
    uri.split('\n').find_map(|line| match is_blob {
        true => {
            let rest = after(after(line, "http")?, "://")?;
            after_last(rest, |rest| rest.strip_prefix("/vhds/"))
        }
        false => {
            let rest = after(after(line, "/subscriptions/")?, "/resourceGroups/")?;
            after_last(rest, |rest| {
                let mut rest = rest.strip_prefix("/providers/Microsoft")?.chars();
                rest.next()?;
                rest.as_str().strip_prefix("Compute/disks/")
            })
        }
    })
}

fn after<'a>(text: &'a str, marker: &str) -> Option<&'a str> {
    text.split_once(marker).map(|(_, rest)| rest)
}

/// Returns the text after the last marker that is not at the end.
fn after_last(text: &str, strip: impl Fn(&str) -> Option<&str>) -> Option<&str> {
    let starts = text.rmatch_indices('/').map(|(start, _)| start);
    let mut rests = starts.filter_map(|start| strip(text.get(start..)?));
    rests.find(|rest| !rest.is_empty())
}
