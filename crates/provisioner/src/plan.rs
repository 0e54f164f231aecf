//! Drafts the CreateVolume request from the claim and its class.

use tenure_csi::v1::{CapacityRange, CreateVolumeRequest};
use tenure_csi::{ControllerCapability, Facts, PluginCapability};

use crate::names::RESERVED_PREFIX;
use crate::objects::{Claim, Class, DataSource, requested};
use crate::options::Options;
use crate::state::Failure;
use crate::{capability, parameters};

/// A request without the parts that need lookups: content source, topology, secrets and mutable parameters.
#[derive(Clone, Debug)]
pub(crate) struct Draft {
    pub(crate) request: CreateVolumeRequest,
    pub(crate) fs_type: String,
    pub(crate) source: Option<Source>,
    pub(crate) attributes_class: Option<String>,
}

/// The initial content of a volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Source {
    pub(crate) kind: SourceKind,
    pub(crate) namespace: String,
    pub(crate) name: String,
}

/// The kinds of sources that drivers support.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SourceKind {
    /// A VolumeSnapshot.
    Snapshot,
    /// Another claim.
    Claim,
}

impl SourceKind {
    /// Returns API group and kind.
    pub(crate) const fn names(self) -> (&'static str, &'static str) {
        match self {
            Self::Snapshot => ("snapshot.storage.k8s.io", "VolumeSnapshot"),
            Self::Claim => ("", "PersistentVolumeClaim"),
        }
    }
}

/// Drafts the request. `attributes` says whether claims may name a VolumeAttributesClass.
pub(crate) fn draft(
    facts: &Facts,
    options: &Options,
    attributes: bool,
    claim: &Claim,
    class: &Class,
) -> Result<Draft, Failure> {
    let source = source(claim, options.cross_namespace)?;
    let attributes_class = claim.spec.volume_attributes_class_name.clone();
    let attributes_class = attributes_class.filter(|name| attributes && !name.is_empty());
    check_abilities(facts, source.as_ref(), attributes_class.is_some())?;
    if claim.spec.selector.is_some() {
        return Err(Failure::finished("claim Selector is not supported"));
    }
    let finished = |message| Failure::finished(message);
    let name = options.volume_name(claim.uid()).map_err(finished)?;
    let fs_type = parameters::fs_type(&class.parameters, &options.default_fstype);
    let fs_type = fs_type.map_err(finished)?;
    let required_bytes = requested(claim).map_err(finished)?;
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

/// Returns the data source. Unknown kinds of sources belong to a volume populator. `foreign` says whether the
/// source may be in another namespace.
pub(crate) fn source(claim: &Claim, foreign: bool) -> Result<Option<Source>, Failure> {
    let Some((source, namespace)) = claim.source() else {
        return Ok(None);
    };
    let named = source.namespace.as_deref().unwrap_or_default();
    if claim.spec.data_source.is_none() && !named.is_empty() && !foreign {
        return Err(Failure::finished(
            "dataSourceRef.namespace is set, but the feature gate CrossNamespaceVolumeDataSource is off",
        ));
    }
    if source.name.is_empty() {
        return Err(Failure::finished(
            "the data source of the claim has no name",
        ));
    }
    let kind = match source.kind.as_str() {
        "VolumeSnapshot" if source.api_group.as_deref() != Some("snapshot.storage.k8s.io") => {
            return Err(Failure::finished(format!(
                "the claim's VolumeSnapshot is of API group {:?}, not snapshot.storage.k8s.io",
                source.api_group.as_deref().unwrap_or_default()
            )));
        }
        "VolumeSnapshot" => SourceKind::Snapshot,
        "PersistentVolumeClaim" if is_core(source) => SourceKind::Claim,
        _ => {
            return Err(Failure::ignored(
                "data source is not handled by the provisioner, assuming an external populator will provision it",
            ));
        }
    };
    Ok(Some(Source {
        kind,
        namespace: namespace.to_owned(),
        name: source.name.clone(),
    }))
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
    let needs = source.map(|source| match source.kind {
        SourceKind::Snapshot => (ControllerCapability::CreateDeleteSnapshot, "snapshots"),
        SourceKind::Claim => (ControllerCapability::CloneVolume, "cloning"),
    });
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

/// Checks that the driver can create and delete volumes.
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
    fn data_sources_are_accepted_ignored_or_rejected() {
        let reference = |group: &str, kind: &str, name: &str| {
            claim(&format!(
                r#"{{"dataSource":{{"apiGroup":{group},"kind":"{kind}","name":"{name}"}}}}"#
            ))
        };
        let snapshots = r#""snapshot.storage.k8s.io""#;
        let source_of = |claim: &Claim| source(claim, false);
        let is = |kind, namespace: &str| Source {
            kind,
            namespace: namespace.to_owned(),
            name: "s".to_owned(),
        };
        let found = source_of(&reference(snapshots, "VolumeSnapshot", "s"));
        assert_eq!(found, Ok(Some(is(SourceKind::Snapshot, "n"))));
        let found = source_of(&reference("null", "PersistentVolumeClaim", "s"));
        assert_eq!(found, Ok(Some(is(SourceKind::Claim, "n"))));
        let elsewhere = claim(
            r#"{"dataSourceRef":{"kind":"PersistentVolumeClaim","name":"s","namespace":"x"}}"#,
        );
        let found = source(&elsewhere, true);
        assert_eq!(found, Ok(Some(is(SourceKind::Claim, "x"))));
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
            (elsewhere, FailureKind::Plain),
        ] {
            let failure = source_of(&claim).unwrap_err();
            assert_eq!(
                (failure.state, failure.kind),
                (State::Finished, kind),
                "{failure}"
            );
        }
        assert_eq!(source_of(&claim("{}")), Ok(None));
    }

    #[test]
    fn missing_capabilities_are_reported_before_any_call() {
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
