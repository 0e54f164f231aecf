//! `kubernetes.io/aws-ebs` and `ebs.csi.aws.com`.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::{
    AWSElasticBlockStoreVolumeSource, CSIPersistentVolumeSource, PersistentVolume,
    PersistentVolumeSpec,
};

use super::{ClassFields, Plugin, TranslationError, non_empty, partition, set, topology};

const ZONE: &str = "topology.ebs.csi.aws.com/zone";

/// Amazon Elastic Block Store.
#[derive(Debug)]
pub(super) struct AwsEbs;

impl Plugin for AwsEbs {
    fn in_tree_name(&self) -> &'static str {
        "kubernetes.io/aws-ebs"
    }

    fn driver(&self) -> &'static str {
        "ebs.csi.aws.com"
    }

    fn translate_class(&self, mut class: ClassFields) -> Result<ClassFields, TranslationError> {
        class.translate_zones(ZONE)?;
        class.rename_fs_type();
        let mut names = class.parameters.keys();
        // The plugin raised IOPS that are too low for the size of the volume; the driver does so only if it is allowed.
        if names.any(|name| name.to_lowercase() == "iopspergb") {
            let allow = "allowautoiopspergbincrease".to_owned();
            class.parameters.insert(allow, "true".to_owned());
        }
        Ok(class)
    }

    fn has_source(&self, spec: &PersistentVolumeSpec) -> bool {
        spec.aws_elastic_block_store.is_some()
    }

    fn take_source(
        &self,
        volume: &mut PersistentVolume,
    ) -> Result<CSIPersistentVolumeSource, TranslationError> {
        let spec = volume.spec.get_or_insert_default();
        let source = spec.aws_elastic_block_store.take();
        let source = source.ok_or(TranslationError::UnknownSource)?;
        let partition = source.partition.unwrap_or_default().to_string();
        topology::to_csi(volume, ZONE);
        Ok(CSIPersistentVolumeSource {
            driver: self.driver().to_owned(),
            volume_handle: volume_id(&source.volume_id)?,
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
        let attributes = csi.volume_attributes.unwrap_or_default();
        let partition = match attributes.get("partition") {
            Some(text) => partition(text)?,
            None => None,
        };
        topology::to_in_tree(volume, ZONE, Some(region_of))?;
        volume.spec.get_or_insert_default().aws_elastic_block_store =
            Some(AWSElasticBlockStoreVolumeSource {
                volume_id: csi.volume_handle,
                fs_type: csi.fs_type.and_then(non_empty),
                read_only: set(csi.read_only),
                partition,
            });
        Ok(())
    }
}

/// Returns the id of a volume. Old volumes name it as `aws://ZONE/ID`.
fn volume_id(name: &str) -> Result<String, TranslationError> {
    let Some(rest) = name.strip_prefix("aws://") else {
        return Ok(name.to_owned());
    };
    let invalid = |why| TranslationError::invalid("AWS volume", name, why);
    let (rest, fragment) = rest.split_once('#').unwrap_or((rest, ""));
    if rest.bytes().any(|byte| byte < b' ' || byte == 0x7f) {
        return Err(invalid("it has control characters"));
    }
    let (rest, _query) = rest.split_once('?').unwrap_or((rest, ""));
    let (zone, path) = rest
        .find('/')
        .map_or((rest, ""), |slash| rest.split_at(slash));
    if !is_host(zone) {
        return Err(invalid("its zone is not a host name"));
    }
    let (Some(path), Some(_)) = (unescape(path), unescape(fragment)) else {
        return Err(invalid("it has an incomplete escape"));
    };
    let id = path.trim_matches('/');
    if !id.starts_with("vol-") || id.contains('/') {
        return Err(invalid("expected aws://ZONE/vol-ID"));
    }
    Ok(id.to_owned())
}

/// Returns whether a URL may have this host, with an optional port.
fn is_host(host: &str) -> bool {
    let port = host.rsplit_once(':').map_or("", |(_, port)| port);
    let plain =
        |c: char| !c.is_ascii() || c.is_ascii_alphanumeric() || "-_.~!$&'()*+,;=:]<>\"".contains(c);
    host.chars().all(plain) && port.bytes().all(|byte| byte.is_ascii_digit())
}

/// Decodes `%XX`.
fn unescape(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut parts = text.split('%');
    bytes.extend(parts.next().unwrap_or_default().bytes());
    for part in parts {
        let code = part.get(..2)?;
        if !code.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return None;
        }
        bytes.push(u8::from_str_radix(code, 16).ok()?);
        bytes.extend(part.bytes().skip(2));
    }
    Some(String::from_utf8_lossy(&bytes).into_owned())
}

/// Returns the region of zones: `us-west-2` of `us-west-2a`, of the local zone `us-west-2-lax-1a` and of the
/// wavelength zone `us-west-2-wl1-las-wlz-1`.
fn region_of(zones: &[String]) -> Result<String, TranslationError> {
    let mut regions = BTreeSet::new();
    for zone in zones {
        let parts: Vec<_> = zone.split('-').collect();
        let region = match &*parts {
            [_, _, last] | [_, _, _, last] if last.len() == 2 => {
                zone.get(..zone.len().saturating_sub(1))
            }
            [a, b, c, _, _] | [a, b, c, _, _, _, _] => zone.get(..a.len() + b.len() + c.len() + 2),
            _ => None,
        };
        let region = region.ok_or_else(|| {
            TranslationError::invalid("zone", zone, "it does not have the form of an AWS zone")
        })?;
        regions.insert(region.to_owned());
    }
    topology::only_region(regions)
}
