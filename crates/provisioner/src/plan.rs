//! What is asked of the driver for a claim, as far as the claim and its class tell.

use tenure_csi::v1::{CapacityRange, CreateVolumeRequest};
use tenure_csi::{ControllerCapability, Facts, PluginCapability};

use crate::names::{RESERVED_PREFIX, volume_name};
use crate::objects::{Claim, Class, DataSource};
use crate::options::Options;
use crate::state::Failure;
use crate::{capability, parameters};

/// A request that lacks what has to be looked up: content source, topology, secrets, parameters that can
/// change.
#[derive(Clone, Debug)]
pub(crate) struct Draft {
    pub(crate) request: CreateVolumeRequest,
    pub(crate) fs_type: String,
    pub(crate) source: Option<Source>,
    pub(crate) attributes_class: Option<String>,
}

/// What the volume starts with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    /// A VolumeSnapshot of this name in the claim's namespace.
    Snapshot(String),
    /// Another claim of this name in the claim's namespace.
    Claim(String),
}

/// Drafts the request. `attributes`: whether claims may name a VolumeAttributesClass.
pub(crate) fn draft(
    facts: &Facts,
    options: &Options,
    attributes: bool,
    claim: &Claim,
    class: &Class,
) -> Result<Draft, Failure> {
    let source = source(claim)?;
    let attributes_class = claim.spec.volume_attributes_class_name.clone();
    let attributes_class = attributes_class.filter(|name| attributes && !name.is_empty());
    check_abilities(facts, source.as_ref(), attributes_class.is_some())?;
    if claim.spec.selector.is_some() {
        return Err(Failure::finished("claim Selector is not supported"));
    }
    let finished = |message| Failure::finished(message);
    let prefix = &options.volume_name_prefix;
    let name = volume_name(prefix, options.volume_name_uuid_length, claim.uid());
    let name = name.map_err(finished)?;
    let fs_type = parameters::fs_type(&class.parameters, &options.default_fstype);
    let fs_type = fs_type.map_err(finished)?;
    let required_bytes = claim.requested().map_err(finished)?;
    let multi_writer = facts.controller(ControllerCapability::SingleNodeMultiWriter);
    let capabilities = capability::of_claim(claim, &fs_type, &class.mount_options, multi_writer);
    let mut parameters = parameters::for_driver(&class.parameters).map_err(finished)?;
    if options.extra_create_metadata {
        for (key, value) in [
            ("pvc/name", claim.name()),
            ("pvc/namespace", claim.namespace()),
            ("pv/name", &name),
        ] {
            parameters.insert(format!("{RESERVED_PREFIX}{key}"), value.to_owned());
        }
    }
    Ok(Draft {
        request: CreateVolumeRequest {
            name,
            capacity_range: Some(CapacityRange {
                required_bytes,
                limit_bytes: 0,
            }),
            volume_capabilities: capabilities.map_err(finished)?,
            parameters,
            ..CreateVolumeRequest::default()
        },
        fs_type,
        source,
        attributes_class,
    })
}

/// The data source. Sources that neither we nor the driver know belong to a volume populator.
pub(crate) fn source(claim: &Claim) -> Result<Option<Source>, Failure> {
    let spec = &claim.spec;
    let Some(source) = spec.data_source.as_ref().or(spec.data_source_ref.as_ref()) else {
        return Ok(None);
    };
    let foreign = spec
        .data_source
        .is_none()
        .then_some(source.namespace.as_deref())
        .flatten();
    if foreign.is_some_and(|namespace| !namespace.is_empty()) {
        return Err(Failure::finished(
            "dataSourceRef.namespace: sources in other namespaces are not supported",
        ));
    }
    if source.name.is_empty() {
        return Err(Failure::finished(
            "the data source of the claim has no name",
        ));
    }
    match source.kind.as_str() {
        "VolumeSnapshot" => {
            if source.api_group.as_deref() != Some("snapshot.storage.k8s.io") {
                return Err(Failure::finished(format!(
                    "the claim's VolumeSnapshot is of API group {:?}, not snapshot.storage.k8s.io",
                    source.api_group.as_deref().unwrap_or_default()
                )));
            }
            Ok(Some(Source::Snapshot(source.name.clone())))
        }
        "PersistentVolumeClaim" if is_core(source) => Ok(Some(Source::Claim(source.name.clone()))),
        _ => Err(Failure::ignored(
            "data source is not handled by the provisioner, assuming an external populator will provision it",
        )),
    }
}

fn is_core(source: &DataSource) -> bool {
    source.api_group.as_deref().unwrap_or_default().is_empty()
}

fn check_abilities(
    facts: &Facts,
    source: Option<&Source>,
    attributes: bool,
) -> Result<(), Failure> {
    check_can_provision(facts).map_err(Failure::finished)?;
    let needs = match source {
        Some(Source::Snapshot(_)) => {
            Some((ControllerCapability::CreateDeleteSnapshot, "snapshots"))
        }
        Some(Source::Claim(_)) => Some((ControllerCapability::CloneVolume, "cloning")),
        None => None,
    };
    let modifies = attributes.then_some((
        ControllerCapability::ModifyVolume,
        "volume attributes classes",
    ));
    for (capability, what) in needs.into_iter().chain(modifies) {
        if !facts.controller(capability) {
            return Err(Failure::finished(format!(
                "CSI driver {} does not support {what}: controller capability {} is not reported",
                facts.name,
                capability.as_str_name()
            )));
        }
    }
    Ok(())
}

/// What a driver needs so that volumes can be made and deleted at all.
pub(crate) fn check_can_provision(facts: &Facts) -> Result<(), String> {
    let controller = ControllerCapability::CreateDeleteVolume;
    if !facts.plugin(PluginCapability::ControllerService) {
        return Err(format!(
            "CSI driver {} does not support dynamic provisioning: plugin CONTROLLER_SERVICE capability is not reported",
            facts.name
        ));
    }
    if !facts.controller(controller) {
        return Err(format!(
            "CSI driver {} does not support dynamic provisioning: controller CREATE_DELETE_VOLUME capability is not reported",
            facts.name
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::{FailureKind, State};

    fn facts(controller: &[ControllerCapability]) -> Facts {
        let create = [ControllerCapability::CreateDeleteVolume];
        let controller = create.iter().chain(controller).copied();
        Facts::new("d", [PluginCapability::ControllerService], controller)
    }

    fn claim(spec: &str) -> Claim {
        let text =
            format!(r#"{{"metadata":{{"name":"c","namespace":"n","uid":"u-1"}},"spec":{spec}}}"#);
        serde_json::from_str(&text).unwrap()
    }

    #[test]
    fn data_sources() {
        let reference = |group: &str, kind: &str, name: &str| {
            claim(&format!(
                r#"{{"dataSource":{{"apiGroup":{group},"kind":"{kind}","name":"{name}"}}}}"#
            ))
        };
        let snapshots = r#""snapshot.storage.k8s.io""#;
        let found = source(&reference(snapshots, "VolumeSnapshot", "s"));
        assert_eq!(found, Ok(Some(Source::Snapshot("s".to_owned()))));
        let found = source(&reference("null", "PersistentVolumeClaim", "c"));
        assert_eq!(found, Ok(Some(Source::Claim("c".to_owned()))));
        for (claim, kind) in [
            (
                reference(r#""x""#, "VolumeSnapshot", "s"),
                FailureKind::Plain,
            ),
            (
                reference(snapshots, "VolumeSnapshot", ""),
                FailureKind::Plain,
            ),
            (reference(r#""x""#, "Populator", "p"), FailureKind::Ignored),
            (
                claim(
                    r#"{"dataSourceRef":{"kind":"PersistentVolumeClaim","name":"c","namespace":"x"}}"#,
                ),
                FailureKind::Plain,
            ),
        ] {
            let failure = source(&claim).unwrap_err();
            assert_eq!(
                (failure.state, failure.kind),
                (State::Finished, kind),
                "{failure}"
            );
        }
        assert_eq!(source(&claim("{}")), Ok(None));
    }

    #[test]
    fn abilities_are_checked_before_anything_is_asked() {
        let options = Options::default();
        let plain = claim("{}");
        let class = Class::default();
        assert!(draft(&facts(&[]), &options, true, &plain, &class).is_ok());
        let none = Facts::new("d", [], [ControllerCapability::CreateDeleteVolume]);
        let failure = draft(&none, &options, true, &plain, &class).unwrap_err();
        assert!(failure.message.contains("CONTROLLER_SERVICE"), "{failure}");
        let none = Facts::new("d", [PluginCapability::ControllerService], []);
        let failure = draft(&none, &options, true, &plain, &class).unwrap_err();
        assert!(
            failure.message.contains("CREATE_DELETE_VOLUME"),
            "{failure}"
        );
        let clone = claim(r#"{"dataSource":{"kind":"PersistentVolumeClaim","name":"c"}}"#);
        let failure = draft(&facts(&[]), &options, true, &clone, &class).unwrap_err();
        assert!(failure.message.contains("CLONE_VOLUME"), "{failure}");
        assert!(
            draft(
                &facts(&[ControllerCapability::CloneVolume]),
                &options,
                true,
                &clone,
                &class
            )
            .is_ok()
        );
        let attributes = claim(r#"{"volumeAttributesClassName":"gold"}"#);
        let failure = draft(&facts(&[]), &options, true, &attributes, &class).unwrap_err();
        assert!(failure.message.contains("MODIFY_VOLUME"), "{failure}");
        let found = draft(&facts(&[]), &options, false, &attributes, &class).unwrap();
        assert_eq!(found.attributes_class, None, "the gate is off");
    }
}
