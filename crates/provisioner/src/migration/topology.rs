//! Translations of the topology of a volume: its node affinity and its labels.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::{
    NodeSelectorRequirement, NodeSelectorTerm, PersistentVolume, PersistentVolumeSpec,
};

use super::TranslationError;

pub(super) const ZONE: &str = "topology.kubernetes.io/zone";
const REGION: &str = "topology.kubernetes.io/region";
pub(super) const BETA_ZONE: &str = "failure-domain.beta.kubernetes.io/zone";
const BETA_REGION: &str = "failure-domain.beta.kubernetes.io/region";

/// Separates zones in a label.
pub(super) const DELIMITER: &str = "__";

/// Derives the region of zones from their names.
pub(super) type RegionOf = fn(&[String]) -> Result<String, TranslationError>;

fn terms(volume: &PersistentVolume) -> &[NodeSelectorTerm] {
    let affinity = volume.spec.as_ref().and_then(|s| s.node_affinity.as_ref());
    let required = affinity.and_then(|affinity| affinity.required.as_ref());
    required.map_or(&[], |required| &required.node_selector_terms)
}

fn terms_mut(volume: &mut PersistentVolume) -> &mut [NodeSelectorTerm] {
    let affinity = volume.spec.as_mut().and_then(|s| s.node_affinity.as_mut());
    let required = affinity.and_then(|affinity| affinity.required.as_mut());
    required.map_or(&mut [], |required| &mut required.node_selector_terms)
}

fn requirements(volume: &PersistentVolume) -> impl Iterator<Item = &NodeSelectorRequirement> {
    let terms = terms(volume).iter();
    terms.flat_map(|term| term.match_expressions.iter().flatten())
}

fn has_key(volume: &PersistentVolume, key: &str) -> bool {
    requirements(volume).any(|requirement| requirement.key == key)
}

/// Returns all values of a key, in order and without duplicates.
fn values(volume: &PersistentVolume, key: &str) -> Vec<String> {
    let of_key = requirements(volume).filter(|requirement| requirement.key == key);
    let all: BTreeSet<_> = of_key
        .flat_map(|requirement| requirement.values.iter().flatten())
        .collect();
    all.into_iter().cloned().collect()
}

fn rename_key(volume: &mut PersistentVolume, old: &str, new: &str) {
    for term in terms_mut(volume) {
        for requirement in term.match_expressions.iter_mut().flatten() {
            if requirement.key == old {
                new.clone_into(&mut requirement.key);
            }
        }
    }
}

fn requirement(key: &str, values: Vec<String>) -> NodeSelectorRequirement {
    NodeSelectorRequirement {
        key: key.to_owned(),
        operator: "In".to_owned(),
        values: Some(values),
    }
}

/// Adds a requirement to every term. Does nothing if all values are blank.
fn add_values<'a>(
    volume: &mut PersistentVolume,
    key: &str,
    values: impl IntoIterator<Item = &'a str>,
) {
    let values = values.into_iter().map(str::trim);
    let values: BTreeSet<_> = values.filter(|value| !value.is_empty()).collect();
    if values.is_empty() {
        return;
    }
    let values: Vec<_> = values.into_iter().map(str::to_owned).collect();
    let spec: &mut PersistentVolumeSpec = volume.spec.get_or_insert_default();
    let affinity = spec.node_affinity.get_or_insert_default();
    let terms = &mut affinity
        .required
        .get_or_insert_default()
        .node_selector_terms;
    if terms.is_empty() {
        terms.push(NodeSelectorTerm::default());
    }
    for term in terms {
        let expressions = term.match_expressions.get_or_insert_default();
        expressions.push(requirement(key, values.clone()));
    }
}

pub(super) fn label<'a>(volume: &'a PersistentVolume, key: &str) -> Option<&'a str> {
    let labels = volume.metadata.labels.as_ref()?;
    labels.get(key).map(String::as_str)
}

/// Sets a label unless the volume has it.
fn add_label(volume: &mut PersistentVolume, key: &str, value: String) {
    let labels = volume.metadata.labels.get_or_insert_default();
    labels.entry(key.to_owned()).or_insert(value);
}

/// Returns the keys of zone and region that a volume uses. The affinity takes precedence over the labels.
fn keys_in_use(volume: &PersistentVolume) -> (&'static str, &'static str) {
    let by_label = label(volume, ZONE).is_none() && label(volume, BETA_ZONE).is_some();
    match has_key(volume, ZONE) {
        false if has_key(volume, BETA_ZONE) || by_label => (BETA_ZONE, BETA_REGION),
        _ => (ZONE, REGION),
    }
}

/// Replaces the key of Kubernetes for zones with the key of the driver. A volume whose affinity has no zones gets
/// those of its label.
pub(super) fn to_csi(volume: &mut PersistentVolume, csi_zone: &str) {
    let (zone, region) = keys_in_use(volume);
    if !values(volume, zone).is_empty() {
        rename_key(volume, zone, csi_zone);
    } else if let Some(zones) = label(volume, zone).map(str::to_owned) {
        add_values(volume, csi_zone, zones.split(DELIMITER));
    }
    // New nodes do not have the old label.
    if region == BETA_REGION && !values(volume, region).is_empty() {
        rename_key(volume, region, REGION);
    }
}

/// Replaces the key of the driver for zones with the key of Kubernetes, and adds the region, if it can be derived, and
/// the labels.
pub(super) fn to_in_tree(
    volume: &mut PersistentVolume,
    csi_zone: &str,
    region_of: Option<RegionOf>,
) -> Result<(), TranslationError> {
    let (zone, _) = keys_in_use(volume);
    rename_key(volume, csi_zone, zone);
    if let Some(region_of) = region_of {
        add_regions(volume, region_of)?;
    }
    let zones = values(volume, zone);
    if !zones.is_empty() {
        add_label(volume, zone, zones.join(DELIMITER));
    }
    Ok(())
}

fn add_regions(volume: &mut PersistentVolume, region_of: RegionOf) -> Result<(), TranslationError> {
    if terms(volume).is_empty() {
        return Ok(());
    }
    let (zone, region) = keys_in_use(volume);
    for term in terms_mut(volume) {
        let expressions = term.match_expressions.get_or_insert_default();
        if expressions.iter().any(|known| known.key == region) {
            continue;
        }
        let of_zone = expressions.iter().filter(|known| known.key == zone);
        let zones: Vec<_> = of_zone
            .flat_map(|known| known.values.iter().flatten().cloned())
            .collect();
        let value = region_of(&zones)?;
        expressions.push(requirement(region, vec![value]));
    }
    if let [value] = &*values(volume, region) {
        add_label(volume, region, value.clone());
    }
    Ok(())
}

/// Replaces both keys of Kubernetes, for zones and regions, with keys of the driver. A volume whose affinity does not
/// have a key gets the value of its label.
pub(super) fn pair_to_csi(volume: &mut PersistentVolume, csi: (&str, &str)) {
    let (zone, region) = keys_in_use(volume);
    for (key, csi_key) in [(zone, csi.0), (region, csi.1)] {
        if !values(volume, key).is_empty() {
            rename_key(volume, key, csi_key);
        } else if let Some(value) = label(volume, key).map(str::to_owned) {
            add_values(volume, csi_key, [value.as_str()]);
        }
    }
}

/// Replaces both keys of the driver with keys of Kubernetes, and adds the first value of each as a label.
pub(super) fn pair_to_in_tree(volume: &mut PersistentVolume, csi: (&str, &str)) {
    let (zone, region) = keys_in_use(volume);
    rename_key(volume, csi.0, zone);
    rename_key(volume, csi.1, region);
    for key in [zone, region] {
        if let Some(first) = values(volume, key).into_iter().next() {
            add_label(volume, key, first);
        }
    }
}

/// Returns the only region, for plugins whose zones name their region.
pub(super) fn only_region(regions: BTreeSet<String>) -> Result<String, TranslationError> {
    let count = regions.len();
    let listed = regions.iter().cloned().collect::<Vec<_>>().join(", ");
    let mut regions = regions.into_iter();
    match (regions.next(), count) {
        (Some(region), 1) => Ok(region),
        _ => Err(TranslationError::invalid(
            "zones",
            listed,
            "they must be of exactly one region",
        )),
    }
}
