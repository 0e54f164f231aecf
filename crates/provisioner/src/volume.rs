//! Builds the PersistentVolume object from the driver's response.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{
    CSIPersistentVolumeSource, NodeSelector, NodeSelectorRequirement, NodeSelectorTerm,
    ObjectReference, PersistentVolume, PersistentVolumeSpec, SecretReference, VolumeNodeAffinity,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use tenure_csi::v1::{CreateVolumeResponse, Topology, Volume};

use crate::migration::TopologyTerm;
use crate::names;
use crate::objects::{Claim, Class, quantity};
use crate::secrets::{SecretRef, Secrets};

/// Inputs of a volume object.
#[derive(Debug)]
pub(crate) struct VolumeInputs<'a> {
    pub(crate) driver: &'a str,
    pub(crate) identity: &'a str,
    pub(crate) claim: &'a Claim,
    pub(crate) class: &'a Class,
    pub(crate) name: &'a str,
    pub(crate) fs_type: &'a str,
    pub(crate) secrets: &'a Secrets,
    pub(crate) volume: &'a Volume,
    pub(crate) bytes: i64,
    /// Whether the driver restricts where its volumes are accessible.
    pub(crate) topology: bool,
    /// `--controller-publish-readonly`
    pub(crate) readonly: bool,
    pub(crate) attributes_class: Option<&'a str>,
    /// The fencing token, with `--fencing-token-annotation`.
    pub(crate) token: Option<&'a str>,
}

/// A response that cannot become a volume object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Unfit {
    pub(crate) message: String,
    /// The handle to delete, if the response has one.
    pub(crate) volume_id: Option<String>,
}

/// Checks a response: the volume and its size.
pub(crate) fn accept(
    response: CreateVolumeResponse,
    requested: i64,
    wants_source: bool,
) -> Result<(Volume, i64), Unfit> {
    let unfit = |message: &str, volume_id| Unfit {
        message: message.to_owned(),
        volume_id,
    };
    let Some(volume) = response.volume else {
        return Err(unfit(
            "the driver's response to CreateVolume has no volume",
            None,
        ));
    };
    if volume.volume_id.is_empty() {
        return Err(unfit(
            "the driver's response to CreateVolume has no volume id",
            None,
        ));
    }
    let bytes = match volume.capacity_bytes {
        0 => requested,
        bytes if bytes < requested => {
            let message =
                format!("created volume capacity {bytes} less than requested capacity {requested}");
            return Err(unfit(&message, Some(volume.volume_id)));
        }
        bytes => bytes,
    };
    if wants_source && volume.content_source.is_none() {
        let message = "volume content source missing from the driver's response to CreateVolume";
        return Err(unfit(message, Some(volume.volume_id)));
    }
    Ok((volume, bytes))
}

/// Builds the object.
pub(crate) fn build(parts: &VolumeInputs<'_>) -> PersistentVolume {
    let VolumeInputs {
        claim,
        class,
        volume,
        secrets,
        ..
    } = parts;
    let mut attributes = BTreeMap::from([(
        names::IDENTITY_ATTRIBUTE.to_owned(),
        parts.identity.to_owned(),
    )]);
    attributes.extend(volume.volume_context.clone());
    let only_reads = claim.spec.access_modes == ["ReadOnlyMany"];
    let csi = CSIPersistentVolumeSource {
        driver: parts.driver.to_owned(),
        volume_handle: volume.volume_id.clone(),
        fs_type: (!claim.is_block() && !parts.fs_type.is_empty()).then(|| parts.fs_type.to_owned()),
        read_only: (parts.readonly && only_reads).then_some(true),
        volume_attributes: Some(attributes),
        controller_publish_secret_ref: reference(secrets.controller_publish.as_ref()),
        node_stage_secret_ref: reference(secrets.node_stage.as_ref()),
        node_publish_secret_ref: reference(secrets.node_publish.as_ref()),
        controller_expand_secret_ref: reference(secrets.controller_expand.as_ref()),
        node_expand_secret_ref: reference(secrets.node_expand.as_ref()),
    };
    let capacity = BTreeMap::from([("storage".to_owned(), Quantity(quantity(parts.bytes)))]);
    let mount_options = &class.mount_options;
    let affinity = parts
        .topology
        .then(|| affinity(&volume.accessible_topology))
        .flatten();
    PersistentVolume {
        metadata: ObjectMeta {
            name: Some(parts.name.to_owned()),
            annotations: Some(annotations(parts)),
            finalizers: Some(vec![names::VOLUME_FINALIZER.to_owned()]),
            ..ObjectMeta::default()
        },
        spec: Some(PersistentVolumeSpec {
            access_modes: Some(claim.spec.access_modes.clone()),
            capacity: Some(capacity),
            claim_ref: Some(ObjectReference {
                api_version: Some("v1".to_owned()),
                kind: Some("PersistentVolumeClaim".to_owned()),
                name: claim.metadata.name.clone(),
                namespace: claim.metadata.namespace.clone(),
                uid: claim.metadata.uid.clone(),
                resource_version: claim.metadata.resource_version.clone(),
                ..ObjectReference::default()
            }),
            csi: Some(csi),
            mount_options: (!mount_options.is_empty()).then(|| mount_options.clone()),
            node_affinity: affinity,
            persistent_volume_reclaim_policy: class.reclaim_policy.clone(),
            storage_class_name: Some(claim.class().to_owned()),
            volume_attributes_class_name: parts.attributes_class.map(str::to_owned),
            volume_mode: claim.spec.volume_mode.clone(),
            ..PersistentVolumeSpec::default()
        }),
        status: None,
    }
}

fn annotations(parts: &VolumeInputs<'_>) -> BTreeMap<String, String> {
    let provisioner = parts.secrets.provisioner.as_ref();
    let mut annotations = vec![
        (names::PROVISIONED_BY, parts.class.provisioner.as_str()),
        (
            names::DELETION_SECRET_NAME,
            provisioner.map_or("", |s| &s.name),
        ),
        (
            names::DELETION_SECRET_NAMESPACE,
            provisioner.map_or("", |s| &s.namespace),
        ),
    ];
    if let Some(modify) = &parts.secrets.controller_modify {
        annotations.push((names::MODIFY_SECRET_NAME, &modify.name));
        annotations.push((names::MODIFY_SECRET_NAMESPACE, &modify.namespace));
    }
    annotations.extend(parts.token.map(|token| (names::FENCING_TOKEN, token)));
    let owned = |(key, value): (&str, &str)| (key.to_owned(), value.to_owned());
    annotations.into_iter().map(owned).collect()
}

fn reference(secret: Option<&SecretRef>) -> Option<SecretReference> {
    secret.map(|secret| SecretReference {
        name: Some(secret.name.clone()),
        namespace: Some(secret.namespace.clone()),
    })
}

/// Returns the topology terms from which a volume is accessible.
pub(crate) fn places(topologies: &[Topology]) -> Vec<TopologyTerm> {
    let filled = topologies
        .iter()
        .filter(|topology| !topology.segments.is_empty());
    let term = |topology: &Topology| {
        let segments = topology.segments.iter();
        segments
            .map(|(key, value)| (key.clone(), vec![value.clone()]))
            .collect()
    };
    filled.map(term).collect()
}

/// Converts topologies to a node affinity, with segments in the order of their keys. Empty topologies are not a
/// restriction, and the API server rejects an affinity without terms.
fn affinity(topologies: &[Topology]) -> Option<VolumeNodeAffinity> {
    let term = |topology: &Topology| NodeSelectorTerm {
        match_expressions: Some(
            topology
                .segments
                .iter()
                .map(|(key, value)| NodeSelectorRequirement {
                    key: key.clone(),
                    operator: "In".to_owned(),
                    values: Some(vec![value.clone()]),
                })
                .collect(),
        ),
        match_fields: None,
    };
    let filled = topologies
        .iter()
        .filter(|topology| !topology.segments.is_empty());
    let terms: Vec<_> = filled.map(term).collect();
    (!terms.is_empty()).then_some(VolumeNodeAffinity {
        required: Some(NodeSelector {
            node_selector_terms: terms,
        }),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn response(capacity_bytes: i64, volume_id: &str) -> CreateVolumeResponse {
        CreateVolumeResponse {
            volume: Some(Volume {
                capacity_bytes,
                volume_id: volume_id.to_owned(),
                ..Volume::default()
            }),
        }
    }

    #[test]
    fn create_volume_responses_are_checked() {
        assert_eq!(accept(response(0, "v"), 5, false).unwrap().1, 5);
        assert_eq!(accept(response(9, "v"), 5, false).unwrap().1, 9);
        let small = accept(response(4, "v"), 5, false).unwrap_err();
        assert_eq!(small.volume_id.as_deref(), Some("v"));
        assert_eq!(
            small.message,
            "created volume capacity 4 less than requested capacity 5"
        );
        let sourceless = accept(response(5, "v"), 5, true).unwrap_err();
        assert_eq!(sourceless.volume_id.as_deref(), Some("v"));
        assert_eq!(
            accept(response(5, ""), 5, false).unwrap_err().volume_id,
            None
        );
        let empty = CreateVolumeResponse { volume: None };
        assert_eq!(accept(empty, 5, false).unwrap_err().volume_id, None);
    }

    #[test]
    fn empty_topologies_give_no_affinity() {
        assert_eq!(affinity(&[]), None);
        assert_eq!(affinity(&[Topology::default(), Topology::default()]), None);
        let zone = Topology {
            segments: BTreeMap::from([("zone".to_owned(), "a".to_owned())]),
        };
        let found = affinity(&[Topology::default(), zone])
            .unwrap()
            .required
            .unwrap();
        assert_eq!(found.node_selector_terms.len(), 1);
    }
}
