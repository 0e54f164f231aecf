//! Matches volumes with claims: class, size, access modes, mode, labels, node.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use tenure_kinds::node::holds;
use tenure_kinds::{Node, PersistentVolume, PersistentVolumeClaim};
use tenure_quantity::Quantity;

use super::nodes;

/// Returns whether a volume names this claim, by name alone or by its uid as well.
pub(super) fn names(volume: &PersistentVolume, claim: &PersistentVolumeClaim) -> bool {
    volume.spec.claim_ref.as_ref().is_some_and(|named| {
        named.name == claim.name()
            && named.namespace == claim.namespace()
            && (named.uid.is_empty() || named.uid == claim.uid())
    })
}

/// Returns why a claim and the volume that it names do not match.
pub(super) fn mismatch(
    volume: &PersistentVolume,
    claim: &PersistentVolumeClaim,
) -> Option<&'static str> {
    if size(volume) < request(claim) {
        Some("requested PV is too small")
    } else if volume.class() != claim.class() {
        Some("storageClassName does not match")
    } else if !is_same_mode(volume, claim) {
        Some("incompatible volumeMode")
    } else if !has_same_attributes(volume, claim) {
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
            && is_same_mode(volume, claim)
            && has_same_attributes(volume, claim)
            && has_modes(volume, claim)
            && volume.metadata.deletion_timestamp.is_none()
            && node.is_none_or(|node| nodes::reaches(volume, node))
    };
    let mut naming = naming.filter(|volume| names(volume, claim));
    if let Some(volume) = naming.find(|volume| fits(volume)) {
        return Some(volume.clone());
    }
    let selector = claim.spec.selector.as_ref();
    let rank = |volume: &&Arc<PersistentVolume>| {
        let name = volume.metadata.name.clone();
        (volume.spec.access_modes.len(), size(volume), name)
    };
    free.filter(|volume| phase(volume) == "Available")
        .filter(|volume| fits(volume))
        .filter(|volume| selector.is_none_or(|s| selects(s, volume.metadata.labels.as_ref())))
        .min_by_key(rank)
        .cloned()
}

pub(super) fn phase(volume: &PersistentVolume) -> &str {
    match volume.status.phase.as_str() {
        "" => "Pending",
        phase => phase,
    }
}

fn quantity(text: Option<&str>) -> Option<Quantity> {
    text?.parse().ok()
}

fn size(volume: &PersistentVolume) -> Option<Quantity> {
    quantity(volume.spec.capacity.get("storage").map(String::as_str))
}

fn request(claim: &PersistentVolumeClaim) -> Option<Quantity> {
    quantity(claim.requested())
}

fn has_modes(volume: &PersistentVolume, claim: &PersistentVolumeClaim) -> bool {
    let has = |mode| volume.spec.access_modes.contains(mode);
    claim.spec.access_modes.iter().all(has)
}

/// Returns whether both have the same volume mode.
fn is_same_mode(volume: &PersistentVolume, claim: &PersistentVolumeClaim) -> bool {
    let modes = [&volume.spec.volume_mode, &claim.spec.volume_mode];
    let [volume, claim] = modes.map(|mode| mode.as_deref().unwrap_or("Filesystem"));
    volume == claim
}

/// Returns whether both name the same VolumeAttributesClass.
fn has_same_attributes(volume: &PersistentVolume, claim: &PersistentVolumeClaim) -> bool {
    let volume = volume.spec.volume_attributes_class_name.as_deref();
    let claim = claim.spec.volume_attributes_class_name.as_deref();
    volume.unwrap_or_default() == claim.unwrap_or_default()
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
            holds(&term.operator, value(&term.key).map(String::as_str), values)
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
        let (naming, free): (Vec<_>, Vec<_>) =
            volumes.iter().partition(|v| v.spec.claim_ref.is_some());
        best(&claim, naming.into_iter(), free.into_iter(), None)?
            .metadata
            .name
            .clone()
    }

    #[test]
    fn smallest_sufficient_volume_is_chosen() {
        let size = |text: &str| json!({ "capacity": { "storage": text } });
        let volumes = [
            volume("large", size("3Gi")),
            volume("right", size("1100M")),
            volume("small", size("1023Mi")),
        ];
        assert_eq!(chosen(json!({}), &volumes), Some("right".to_owned()));
    }

    #[test]
    fn volume_with_the_fewest_sufficient_modes_is_chosen_even_if_larger() {
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
    fn volume_that_names_the_claim_is_preferred_and_one_of_another_claim_is_excluded() {
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
    fn volume_must_match_labels_and_mode() {
        let volumes = [volume("a", json!({})), volume("b", json!({}))];
        let labels = json!({ "selector": { "matchLabels": { "disk": "b" } } });
        assert_eq!(chosen(labels, &volumes), Some("b".to_owned()));
        let terms = json!([{ "key": "disk", "operator": "NotIn", "values": ["a", "b"] }]);
        let none = json!({ "selector": { "matchExpressions": terms } });
        assert_eq!(chosen(none, &volumes), None);
        assert_eq!(chosen(json!({ "volumeMode": "Block" }), &volumes), None);
    }

    #[test]
    fn mismatch_of_claim_and_volume_is_reported() {
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
