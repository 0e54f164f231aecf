//! Decides which claims and volumes belong to this driver, and what is due for them.

use crate::migration;
use crate::names::{MIGRATED_TO, PROVISIONED_BY, VOLUME_FINALIZER};
use crate::objects::{Claim, Class, Volume};

/// Returns whether a provisioner name is that of this driver or of the in-tree plugin that the driver replaced.
pub(crate) fn is_our_name(name: &str, driver: &str) -> bool {
    name == driver
        || migration::replaced_by(driver).is_some_and(|plugin| plugin.in_tree_name() == name)
}

/// Returns whether a claim names this driver, so that no other provisioner handles it.
pub(crate) fn is_our_claim(claim: &Claim, driver: &str) -> bool {
    claim.provisioner() == Some(driver) || claim.annotation(MIGRATED_TO) == Some(driver)
}

/// Returns whether a claim must be provisioned now.
pub(crate) fn should_provision(
    claim: &Claim,
    driver: &str,
    class: Option<&Class>,
) -> Result<bool, String> {
    if !claim.spec.volume_name.is_empty() || !is_our_claim(claim, driver) {
        return Ok(false);
    }
    let ours = |name| is_our_name(name, driver);
    if !claim.provisioner().is_some_and(ours) {
        return Ok(false);
    }
    let Some(class) = class else {
        return Err(format!(
            "storageclass.storage.k8s.io {:?} not found",
            claim.class()
        ));
    };
    Ok(!class.waits_for_consumer() || claim.selected_node_or_alpha().is_some())
}

/// Returns whether this driver created the volume or serves it.
pub(crate) fn is_our_volume(volume: &Volume, driver: &str) -> bool {
    let ours = |name| is_our_name(name, driver);
    if volume.annotation(MIGRATED_TO).is_some_and(ours) {
        return true;
    }
    match volume.annotation(PROVISIONED_BY) {
        Some(by) => ours(by),
        None => volume
            .spec
            .csi
            .as_ref()
            .is_some_and(|csi| csi.driver == driver),
    }
}

/// The change that our finalizer on a volume needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Finalizer {
    Add,
    Remove,
    Keep,
}

/// Decides the change of the finalizer. Retained volumes do not need it, because their storage is not deleted.
pub(crate) fn finalizer(volume: &Volume) -> Finalizer {
    let present = volume.has_finalizer(VOLUME_FINALIZER);
    let deleting = volume.metadata.deletion_timestamp.is_some();
    match volume.spec.persistent_volume_reclaim_policy.as_str() {
        "Delete" if !present && !deleting && volume.status.phase == "Bound" => Finalizer::Add,
        "Retain" | "Recycle" if present => Finalizer::Remove,
        _ => Finalizer::Keep,
    }
}

/// Returns whether a volume needs any work.
pub(crate) fn is_due(volume: &Volume) -> bool {
    finalizer(volume) != Finalizer::Keep || should_delete(volume)
}

/// Returns whether the storage of a volume must be deleted now.
pub(crate) fn should_delete(volume: &Volume) -> bool {
    let deleting = volume.metadata.deletion_timestamp.is_some();
    if deleting && !volume.has_finalizer(VOLUME_FINALIZER) {
        return false;
    }
    volume.status.phase == "Released" && volume.spec.persistent_volume_reclaim_policy == "Delete"
}

#[cfg(test)]
mod tests {
    use super::*;

    const DRIVER: &str = "d.example";

    fn claim(annotations: &str, spec: &str) -> Claim {
        let text = format!(r#"{{"metadata":{{"annotations":{annotations}}},"spec":{spec}}}"#);
        serde_json::from_str(&text).unwrap()
    }

    #[test]
    fn claims_of_this_driver_are_provisioned_and_others_are_not() {
        let newer = r#"{"volume.kubernetes.io/storage-provisioner":"d.example"}"#;
        let older = r#"{"volume.beta.kubernetes.io/storage-provisioner":"d.example"}"#;
        let other = r#"{"volume.kubernetes.io/storage-provisioner":"x","volume.beta.kubernetes.io/storage-provisioner":"d.example"}"#;
        let selected = r#"{"volume.kubernetes.io/storage-provisioner":"d.example","volume.kubernetes.io/selected-node":"n"}"#;
        let alpha = r#"{"volume.kubernetes.io/storage-provisioner":"d.example","volume.alpha.kubernetes.io/selected-node":"n"}"#;
        let immediate = Class::default();
        let waits = Class {
            volume_binding_mode: "WaitForFirstConsumer".to_owned(),
            ..Class::default()
        };
        for (annotations, spec, class, expected) in [
            (newer, "{}", &immediate, true),
            (older, "{}", &immediate, true),
            (other, "{}", &immediate, false),
            ("{}", "{}", &immediate, false),
            (newer, r#"{"volumeName":"v"}"#, &immediate, false),
            (newer, "{}", &waits, false),
            (selected, "{}", &waits, true),
            (alpha, "{}", &waits, true),
            (selected, "{}", &immediate, true),
        ] {
            let found = should_provision(&claim(annotations, spec), DRIVER, Some(class));
            assert_eq!(found, Ok(expected), "{annotations} {spec}");
        }
        assert!(should_provision(&claim(newer, "{}"), DRIVER, None).is_err());
        assert_eq!(
            should_provision(&claim("{}", "{}"), DRIVER, None),
            Ok(false)
        );
    }

    #[test]
    fn objects_of_a_replaced_plugin_are_of_its_driver() {
        let driver = "ebs.csi.aws.com";
        let provisioner = |name: &str, migrated: &str| {
            let annotations = serde_json::json!({
                "volume.kubernetes.io/storage-provisioner": name, MIGRATED_TO: migrated,
            });
            claim(&annotations.to_string(), "{}")
        };
        for (name, migrated, expected) in [
            (driver, driver, true),
            ("kubernetes.io/aws-ebs", driver, true),
            ("kubernetes.io/aws-ebs", "", false),
            ("kubernetes.io/gce-pd", driver, false),
            ("pd.csi.storage.gke.io", "pd.csi.storage.gke.io", false),
        ] {
            let claim = provisioner(name, migrated);
            let found = should_provision(&claim, driver, Some(&Class::default()));
            assert_eq!(found, Ok(expected), "{name} {migrated}");
        }
        for (annotations, expected) in [
            (
                r#"{"pv.kubernetes.io/provisioned-by":"kubernetes.io/aws-ebs"}"#,
                true,
            ),
            (
                r#"{"pv.kubernetes.io/provisioned-by":"kubernetes.io/gce-pd"}"#,
                false,
            ),
            (
                r#"{"pv.kubernetes.io/migrated-to":"ebs.csi.aws.com"}"#,
                true,
            ),
        ] {
            let volume = volume(
                &format!(r#"{{"annotations":{annotations}}}"#),
                "{}",
                "Bound",
            );
            assert_eq!(is_our_volume(&volume, driver), expected, "{annotations}");
            assert!(!is_our_volume(&volume, DRIVER), "{annotations}");
        }
    }

    fn volume(meta: &str, spec: &str, phase: &str) -> Volume {
        let text = format!(r#"{{"metadata":{meta},"spec":{spec},"status":{{"phase":"{phase}"}}}}"#);
        serde_json::from_str(&text).unwrap()
    }

    #[test]
    fn volumes_of_this_driver_are_recognised() {
        for (meta, spec, expected) in [
            (
                r#"{"annotations":{"pv.kubernetes.io/provisioned-by":"d.example"}}"#,
                "{}",
                true,
            ),
            (
                r#"{"annotations":{"pv.kubernetes.io/provisioned-by":"x"}}"#,
                r#"{"csi":{"driver":"d.example"}}"#,
                false,
            ),
            (
                r#"{"annotations":{"pv.kubernetes.io/provisioned-by":"x","pv.kubernetes.io/migrated-to":"d.example"}}"#,
                "{}",
                true,
            ),
            ("{}", r#"{"csi":{"driver":"d.example"}}"#, true),
            ("{}", r#"{"csi":{"driver":"x"}}"#, false),
            (
                r#"{"annotations":{"pv.kubernetes.io/migrated-to":"d.example"}}"#,
                "{}",
                true,
            ),
            ("{}", "{}", false),
        ] {
            assert_eq!(
                is_our_volume(&volume(meta, spec, "Bound"), DRIVER),
                expected,
                "{meta} {spec}"
            );
        }
    }

    #[test]
    fn finalizer_and_deletion_follow_the_state_of_the_volume() {
        let ours = r#""finalizers":["external-provisioner.volume.kubernetes.io/finalizer"]"#;
        let deleting = r#""deletionTimestamp":"2026-01-01T00:00:00Z""#;
        let delete = r#"{"persistentVolumeReclaimPolicy":"Delete"}"#;
        let retain = r#"{"persistentVolumeReclaimPolicy":"Retain"}"#;
        for (meta, spec, phase, change, gone) in [
            (String::new(), delete, "Bound", Finalizer::Add, false),
            (String::new(), delete, "Available", Finalizer::Keep, false),
            (ours.to_owned(), delete, "Bound", Finalizer::Keep, false),
            (deleting.to_owned(), delete, "Bound", Finalizer::Keep, false),
            (ours.to_owned(), retain, "Bound", Finalizer::Remove, false),
            (String::new(), retain, "Released", Finalizer::Keep, false),
            (ours.to_owned(), delete, "Released", Finalizer::Keep, true),
            (String::new(), delete, "Released", Finalizer::Keep, true),
            (
                deleting.to_owned(),
                delete,
                "Released",
                Finalizer::Keep,
                false,
            ),
            (
                format!("{ours},{deleting}"),
                delete,
                "Released",
                Finalizer::Keep,
                true,
            ),
            (ours.to_owned(), delete, "Failed", Finalizer::Keep, false),
        ] {
            let volume = volume(&format!("{{{meta}}}"), spec, phase);
            assert_eq!(finalizer(&volume), change, "{meta} {spec} {phase}");
            assert_eq!(should_delete(&volume), gone, "{meta} {spec} {phase}");
            assert_eq!(is_due(&volume), gone || change != Finalizer::Keep);
        }
    }
}
