//! Matches volumes with claims: class, size, access modes, mode, labels, node.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, ObjectMeta};
use tenure_quantity::Quantity;

use super::names::{CLASS_BETA, SELECTED_NODE};
use super::nodes;
use super::objects::{Node, PersistentVolume, PersistentVolumeClaim};

/// Returns the class of a claim; empty for none.
pub(super) fn claim_class(claim: &PersistentVolumeClaim) -> &str {
    let field = claim
        .spec
        .as_ref()
        .and_then(|s| s.storage_class_name.as_deref());
    annotation(&claim.metadata, CLASS_BETA)
        .or(field)
        .unwrap_or_default()
}

/// Returns the class of a volume; empty for none.
pub(super) fn volume_class(volume: &PersistentVolume) -> &str {
    let field = volume
        .spec
        .as_ref()
        .and_then(|s| s.storage_class_name.as_deref());
    annotation(&volume.metadata, CLASS_BETA)
        .or(field)
        .unwrap_or_default()
}

pub(super) fn annotation<'a>(meta: &'a ObjectMeta, key: &str) -> Option<&'a str> {
    meta.annotations.as_ref()?.get(key).map(String::as_str)
}

/// Returns the node that was selected for a claim.
pub(super) fn selected_node(claim: &PersistentVolumeClaim) -> Option<&str> {
    annotation(&claim.metadata, SELECTED_NODE).filter(|node| !node.is_empty())
}

/// Returns whether a volume names this claim, by name alone or by its uid as well.
pub(super) fn names(volume: &PersistentVolume, claim: &PersistentVolumeClaim) -> bool {
    let Some(named) = volume.spec.as_ref().and_then(|s| s.claim_ref.as_ref()) else {
        return false;
    };
    let uid = named.uid.as_deref().unwrap_or_default();
    named.name == claim.metadata.name
        && named.namespace == claim.metadata.namespace
        && (uid.is_empty() || Some(uid) == claim.metadata.uid.as_deref())
}

/// Returns why a claim and the volume that it names do not match.
pub(super) fn mismatch(
    volume: &PersistentVolume,
    claim: &PersistentVolumeClaim,
) -> Option<&'static str> {
    if size(volume) < request(claim) {
        Some("requested PV is too small")
    } else if volume_class(volume) != claim_class(claim) {
        Some("storageClassName does not match")
    } else if mode(volume) != claim_mode(claim) {
        Some("incompatible volumeMode")
    } else if attributes(volume) != claim_attributes(claim) {
        Some("volumeAttributesClassName does not match")
    } else if !has_modes(volume, claim) {
        Some("incompatible accessMode")
    } else {
        None
    }
}

/// Returns the volume for a claim: one that names it, otherwise the one with the fewest additional access modes, and
/// among these the smallest. All volumes in `free` have the claim's class.
pub(super) fn best<'a>(
    claim: &PersistentVolumeClaim,
    naming: impl Iterator<Item = &'a Arc<PersistentVolume>>,
    free: impl Iterator<Item = &'a Arc<PersistentVolume>>,
    node: Option<&Node>,
) -> Option<Arc<PersistentVolume>> {
    let fits = |volume: &Arc<PersistentVolume>| {
        size(volume) >= request(claim)
            && mode(volume) == claim_mode(claim)
            && attributes(volume) == claim_attributes(claim)
            && has_modes(volume, claim)
            && volume.metadata.deletion_timestamp.is_none()
            && node.is_none_or(|node| nodes::reaches(volume, node))
    };
    let mut naming = naming.filter(|volume| names(volume, claim));
    if let Some(volume) = naming.find(|volume| fits(volume)) {
        return Some(volume.clone());
    }
    let selector = claim.spec.as_ref().and_then(|spec| spec.selector.as_ref());
    let rank = |volume: &&Arc<PersistentVolume>| {
        let name = volume.metadata.name.clone();
        (modes(volume).len(), size(volume), name)
    };
    free.filter(|volume| phase(volume) == "Available")
        .filter(|volume| fits(volume))
        .filter(|volume| selector.is_none_or(|s| selects(s, volume.metadata.labels.as_ref())))
        .min_by_key(rank)
        .cloned()
}

pub(super) fn phase(volume: &PersistentVolume) -> &str {
    let phase = volume.status.as_ref().and_then(|s| s.phase.as_deref());
    phase.unwrap_or("Pending")
}

fn quantity<Q: AsRef<str>>(text: Option<Q>) -> Option<Quantity> {
    text?.as_ref().parse().ok()
}

fn size(volume: &PersistentVolume) -> Option<Quantity> {
    let capacity = volume.spec.as_ref()?.capacity.as_ref()?;
    quantity(capacity.get("storage").map(|size| &size.0))
}

fn request(claim: &PersistentVolumeClaim) -> Option<Quantity> {
    let resources = claim.spec.as_ref()?.resources.as_ref()?;
    quantity(
        resources
            .requests
            .as_ref()?
            .get("storage")
            .map(|size| &size.0),
    )
}

fn modes(volume: &PersistentVolume) -> &[String] {
    let modes = volume.spec.as_ref().and_then(|s| s.access_modes.as_deref());
    modes.unwrap_or_default()
}

fn has_modes(volume: &PersistentVolume, claim: &PersistentVolumeClaim) -> bool {
    let wanted = claim.spec.as_ref().and_then(|s| s.access_modes.as_deref());
    let wanted = wanted.unwrap_or_default();
    wanted.iter().all(|mode| modes(volume).contains(mode))
}

fn mode(volume: &PersistentVolume) -> &str {
    let mode = volume.spec.as_ref().and_then(|s| s.volume_mode.as_deref());
    mode.unwrap_or("Filesystem")
}

fn claim_mode(claim: &PersistentVolumeClaim) -> &str {
    let mode = claim.spec.as_ref().and_then(|s| s.volume_mode.as_deref());
    mode.unwrap_or("Filesystem")
}

fn attributes(volume: &PersistentVolume) -> &str {
    let spec = volume.spec.as_ref();
    let class = spec.and_then(|s| s.volume_attributes_class_name.as_deref());
    class.unwrap_or_default()
}

fn claim_attributes(claim: &PersistentVolumeClaim) -> &str {
    let spec = claim.spec.as_ref();
    let class = spec.and_then(|s| s.volume_attributes_class_name.as_deref());
    class.unwrap_or_default()
}

fn selects(selector: &LabelSelector, labels: Option<&BTreeMap<String, String>>) -> bool {
    let value = |key: &String| labels.and_then(|labels| labels.get(key));
    let exact = selector.match_labels.iter().flatten();
    let terms = selector.match_expressions.iter().flatten();
    exact
        .into_iter()
        .all(|(key, wanted)| value(key) == Some(wanted))
        && terms.into_iter().all(|term| {
            let values = term.values.as_deref().unwrap_or_default();
            nodes::holds(&term.operator, value(&term.key).map(String::as_str), values)
        })
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn claim(spec: Value) -> PersistentVolumeClaim {
        let mut all = json!({
            "accessModes": ["ReadWriteOnce"],
            "resources": { "requests": { "storage": "1Gi" } },
        });
        merge(&mut all, spec);
        let meta = json!({ "namespace": "ns", "name": "c", "uid": "1" });
        serde_json::from_value(json!({ "metadata": meta, "spec": all })).unwrap()
    }

    fn volume(name: &str, spec: Value) -> Arc<PersistentVolume> {
        let mut all = json!({
            "accessModes": ["ReadWriteOnce"],
            "capacity": { "storage": "1Gi" },
        });
        merge(&mut all, spec);
        let meta = json!({ "name": name, "labels": { "disk": name } });
        let status = json!({ "phase": "Available" });
        let volume = json!({ "metadata": meta, "spec": all, "status": status });
        Arc::new(serde_json::from_value(volume).unwrap())
    }

    fn merge(into: &mut Value, from: Value) {
        let Value::Object(from) = from else {
            unreachable!("members")
        };
        for (key, value) in from {
            into[key] = value;
        }
    }

    fn chosen(claim: Value, volumes: &[Arc<PersistentVolume>]) -> Option<String> {
        let claim = self::claim(claim);
        let (naming, free): (Vec<_>, Vec<_>) = volumes
            .iter()
            .partition(|v| v.spec.as_ref().unwrap().claim_ref.is_some());
        best(&claim, naming.into_iter(), free.into_iter(), None)?
            .metadata
            .name
            .clone()
    }

    #[test]
    fn the_smallest_that_suffices() {
        let size = |text: &str| json!({ "capacity": { "storage": text } });
        let volumes = [
            volume("large", size("3Gi")),
            volume("right", size("1100M")),
            volume("small", size("1023Mi")),
        ];
        assert_eq!(chosen(json!({}), &volumes), Some("right".to_owned()));
    }

    #[test]
    fn the_fewest_modes_that_suffice_even_if_larger() {
        let both = json!({ "accessModes": ["ReadWriteOnce", "ReadOnlyMany"] });
        let one = json!({ "capacity": { "storage": "9Gi" } });
        let volumes = [volume("both", both), volume("one", one)];
        assert_eq!(chosen(json!({}), &volumes), Some("one".to_owned()));
        let wanted = json!({ "accessModes": ["ReadOnlyMany"] });
        assert_eq!(chosen(wanted, &volumes), Some("both".to_owned()));
        assert_eq!(
            chosen(json!({ "accessModes": ["ReadWriteMany"] }), &volumes),
            None
        );
    }

    #[test]
    fn one_that_names_the_claim_comes_first_and_one_that_names_another_never() {
        let naming = |name: &str, uid: &str| {
            let claim = json!({ "namespace": "ns", "name": name, "uid": uid });
            json!({ "claimRef": claim, "capacity": { "storage": "9Gi" } })
        };
        let mine = volume("mine", naming("c", ""));
        let volumes = [volume("free", json!({})), mine];
        assert_eq!(chosen(json!({}), &volumes), Some("mine".to_owned()));
        let others = [volume("a", naming("d", "")), volume("b", naming("c", "2"))];
        assert_eq!(chosen(json!({}), &others), None);
    }

    #[test]
    fn labels_and_mode() {
        let volumes = [volume("a", json!({})), volume("b", json!({}))];
        let labels = json!({ "selector": { "matchLabels": { "disk": "b" } } });
        assert_eq!(chosen(labels, &volumes), Some("b".to_owned()));
        let terms = json!([{ "key": "disk", "operator": "NotIn", "values": ["a", "b"] }]);
        let none = json!({ "selector": { "matchExpressions": terms } });
        assert_eq!(chosen(none, &volumes), None);
        assert_eq!(chosen(json!({ "volumeMode": "Block" }), &volumes), None);
    }

    #[test]
    fn what_keeps_them_apart_is_told() {
        let told = |spec: Value| mismatch(&volume("v", json!({})), &claim(spec));
        assert_eq!(told(json!({})), None);
        let more = json!({ "resources": { "requests": { "storage": "2Gi" } } });
        assert_eq!(told(more), Some("requested PV is too small"));
        let class = json!({ "storageClassName": "x" });
        assert_eq!(told(class), Some("storageClassName does not match"));
        let mode = json!({ "volumeMode": "Block" });
        assert_eq!(told(mode), Some("incompatible volumeMode"));
        let modes = json!({ "accessModes": ["ReadWriteMany"] });
        assert_eq!(told(modes), Some("incompatible accessMode"));
    }
}
