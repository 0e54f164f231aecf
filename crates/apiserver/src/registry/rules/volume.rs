//! PersistentVolume and PersistentVolumeClaim.

use jiff::Timestamp;
use serde_json::{Map, Value, json};

use super::{child, defaults, entries, immutable, items, set_default_text, text};
use crate::names;
use crate::quantity::Quantity;
use crate::registry::meta::{self, rfc3339};
use crate::status::Cause;

const ACCESS_MODES: &[&str] = &[
    "ReadOnlyMany",
    "ReadWriteMany",
    "ReadWriteOnce",
    "ReadWriteOncePod",
];
const RECLAIM_POLICIES: &[&str] = &["Delete", "Recycle", "Retain"];
const VOLUME_MODES: &[&str] = &["Block", "Filesystem"];
/// The annotation that named the class before there was a field for it.
pub(in crate::registry) const BETA_CLASS: &str = "volume.beta.kubernetes.io/storage-class";

/// Whether a claim names its class by the deprecated annotation.
pub(in crate::registry) fn has_beta_class(claim: &Value) -> bool {
    entries(claim, "/metadata/annotations").any(|(key, _)| key == BETA_CLASS)
}

/// Returns the class of a claim. The deprecated annotation takes precedence over the field.
pub(in crate::registry) fn class_of(claim: &Value) -> &str {
    let mut annotations = entries(claim, "/metadata/annotations");
    let annotated = annotations.find(|(key, _)| *key == BETA_CLASS);
    match annotated {
        Some((_, class)) => class.as_str().unwrap_or_default(),
        None => text(claim, "/spec/storageClassName"),
    }
}

/// The volume sources, in the order of the checks. A spec contains exactly one of them.
const SOURCES: &[&str] = &[
    "hostPath",
    "gcePersistentDisk",
    "awsElasticBlockStore",
    "glusterfs",
    "flocker",
    "nfs",
    "rbd",
    "quobyte",
    "cephfs",
    "iscsi",
    "cinder",
    "fc",
    "flexVolume",
    "azureFile",
    "vsphereVolume",
    "photonPersistentDisk",
    "portworxVolume",
    "azureDisk",
    "scaleIO",
    "local",
    "storageos",
    "csi",
];

pub(in crate::registry) fn default_volume(volume: &mut Value) {
    if let Some(spec) = child(volume, "spec") {
        defaults::fill(&defaults::VOLUME_SPEC, spec);
    }
    if let Some(status) = child(volume, "status") {
        set_default_text(status, "phase", "Pending");
    }
}

/// Sets the phase of a new volume to pending, and adds the finalizer that protects it while it is in use.
pub(in crate::registry) fn prepare_volume(volume: &mut Value) {
    let since = rfc3339(Timestamp::now());
    volume["status"] = json!({"phase": "Pending", "lastPhaseTransitionTime": since});
    protect(volume, "kubernetes.io/pv-protection");
}

pub(in crate::registry) fn prepare_claim(claim: &mut Value) {
    claim["status"] = json!({"phase": "Pending"});
    protect(claim, "kubernetes.io/pvc-protection");
    // The deprecated member supports two kinds. References to other kinds are dropped silently.
    let source = claim.pointer("/spec/dataSource").unwrap_or(&Value::Null);
    let known = matches!(
        (text(source, "/apiGroup"), text(source, "/kind")),
        ("", "PersistentVolumeClaim") | ("snapshot.storage.k8s.io", "VolumeSnapshot")
    );
    if !known || text(source, "/name").is_empty() {
        let spec = claim.get_mut("spec").and_then(Value::as_object_mut);
        spec.map(|spec| spec.remove("dataSource"));
    }
}

pub(in crate::registry) fn default_claim(claim: &mut Value) {
    default_meant(claim);
    if let Some(spec) = child(claim, "spec") {
        same_sources(spec);
    }
}

/// Applies the defaults that a client implies by omitting a field.
pub(in crate::registry) fn default_meant(claim: &mut Value) {
    if let Some(spec) = child(claim, "spec") {
        defaults::fill(&defaults::CLAIM_SPEC, spec);
    }
    if let Some(status) = child(claim, "status") {
        set_default_text(status, "phase", "Pending");
    }
}

/// Keeps the two names of the data source equal, if the source is in the claim's namespace.
fn same_sources(spec: &mut Map<String, Value>) {
    let absent = |spec: &Map<String, Value>, key: &str| spec.get(key).is_none_or(Value::is_null);
    let (old, new) = ("dataSource", "dataSourceRef");
    if !absent(spec, old) && absent(spec, new) {
        let source = spec[old].clone();
        spec.insert(new.into(), source);
    } else if absent(spec, old) && !absent(spec, new) && text(&spec[new], "/namespace").is_empty() {
        let mut source = spec[new].clone();
        source.as_object_mut().map(|map| map.remove("namespace"));
        spec.insert(old.into(), source);
    }
}

fn protect(object: &mut Value, finalizer: &str) {
    let finalizers = meta::metadata(object)
        .entry("finalizers")
        .or_insert(Value::Null);
    if !finalizers.is_array() {
        *finalizers = json!([]);
    }
    let list = finalizers.as_array_mut().expect("just created as a list");
    if !list.iter().any(|known| known == finalizer) {
        list.push(json!(finalizer));
    }
}

/// Sets the time of a phase change, unless the client set it.
pub(in crate::registry) fn change_volume_status(old: &Value, new: &mut Value) {
    const SINCE: &str = "/status/lastPhaseTransitionTime";
    let changed = text(old, "/status/phase") != text(new, "/status/phase");
    let (was, is) = (old.pointer(SINCE).cloned(), new.pointer(SINCE).cloned());
    let untold = is.as_ref().is_none_or(Value::is_null);
    let since = if changed && (untold || is == was) {
        Some(json!(rfc3339(Timestamp::now())))
    } else if untold {
        was
    } else {
        None
    };
    if let (Some(since), Some(status)) = (since, child(new, "status")) {
        status.insert("lastPhaseTransitionTime".into(), since);
    }
}

pub(in crate::registry) fn validate_volume(volume: &Value, causes: &mut Vec<Cause>) {
    let spec = volume.get("spec").unwrap_or(&Value::Null);
    validate_volume_spec(spec, "spec", false, causes);
    let mountable = [
        "gcePersistentDisk",
        "awsElasticBlockStore",
        "glusterfs",
        "nfs",
        "rbd",
        "quobyte",
        "iscsi",
        "cinder",
        "cephfs",
        "azureFile",
        "vsphereVolume",
        "azureDisk",
        "photonPersistentDisk",
    ];
    const MOUNT_OPTIONS: &str = "volume.beta.kubernetes.io/mount-options";
    let annotated = entries(volume, "/metadata/annotations").any(|(key, _)| key == MOUNT_OPTIONS);
    if annotated && !mountable.iter().any(|source| has(spec, source)) {
        let why = "may not specify mount options for this volume type";
        let field = format!("metadata.annotations.{MOUNT_OPTIONS}");
        causes.push(Cause::forbidden(field, why));
    }
}

/// Validates the spec of a volume, either its own or inline in an attachment.
pub(in crate::registry) fn validate_volume_spec(
    spec: &Value,
    at: &str,
    inline: bool,
    causes: &mut Vec<Cause>,
) {
    const INLINE: &str = "may not be specified in the context of inline volumes";
    let capacity: Vec<_> = entries(spec, "/capacity").collect();
    if inline {
        for (there, member) in [
            (has(spec, "claimRef"), "claimRef"),
            (!capacity.is_empty(), "capacity"),
        ] {
            if there {
                causes.push(Cause::forbidden(format!("{at}.{member}"), INLINE));
            }
        }
        if !has(spec, "csi") {
            let why = "has to be specified in the context of inline volumes";
            causes.push(Cause::required(format!("{at}.csi"), why));
        }
    }
    if items(spec, "/accessModes").is_empty() {
        causes.push(Cause::required(format!("{at}.accessModes"), ""));
    }
    validate_access_modes(spec, at, causes);
    if !inline {
        let field = format!("{at}.capacity");
        if capacity.is_empty() {
            causes.push(Cause::required(field.clone(), ""));
        }
        if capacity.len() != 1 || !capacity.iter().any(|(name, _)| *name == "storage") {
            // The message shows an absent map as `null`.
            let value = spec.get("capacity").cloned().unwrap_or_default();
            causes.push(Cause::unsupported(field.clone(), &value, &["storage"]));
        }
        for (name, amount) in &capacity {
            let field = format!("{field}[{name}]");
            if let Some(number) = negative(amount) {
                let why = "must be a valid resource quantity";
                causes.push(Cause::invalid(field.clone(), &json!(number), why));
            }
            if sign(amount) <= 0 {
                causes.push(Cause::invalid(field, amount, "must be greater than zero"));
            }
        }
    }
    let policy = text(spec, "/persistentVolumeReclaimPolicy");
    if !policy.is_empty() {
        let field = format!("{at}.persistentVolumeReclaimPolicy");
        if inline && policy != "Retain" {
            let why = "may only be Retain in the context of inline volumes";
            causes.push(Cause::forbidden(field, why));
        } else if !RECLAIM_POLICIES.contains(&policy) {
            causes.push(Cause::unsupported(field, &json!(policy), RECLAIM_POLICIES));
        }
    }
    if let Some(affinity) = spec.get("nodeAffinity").filter(|value| !value.is_null()) {
        let field = format!("{at}.nodeAffinity");
        if inline {
            causes.push(Cause::forbidden(field, INLINE));
        } else {
            validate_affinity(affinity, &field, causes);
        }
    }
    validate_source(spec, at, policy, causes);
    let class = text(spec, "/storageClassName");
    if !class.is_empty() {
        let field = format!("{at}.storageClassName");
        if inline {
            causes.push(Cause::forbidden(field, INLINE));
        } else {
            check_class(class, &field, causes);
        }
    }
    validate_mode(spec, at, causes);
    let class = text(spec, "/volumeAttributesClassName");
    if spec.get("volumeAttributesClassName").is_some() {
        let field = format!("{at}.volumeAttributesClassName");
        if class.is_empty() {
            let why = "an empty string is disallowed";
            causes.push(Cause::required(field, why));
        } else {
            check_class(class, &field, causes);
        }
    }
}

fn validate_source(spec: &Value, at: &str, policy: &str, causes: &mut Vec<Cause>) {
    let mut given = SOURCES.iter().filter(|source| has(spec, source));
    let Some(first) = given.next() else {
        causes.push(Cause::required(at, "must specify a volume type"));
        return;
    };
    let required = |member: &str, causes: &mut Vec<Cause>| {
        if text(spec, &format!("/{first}/{member}")).is_empty() {
            causes.push(Cause::required(format!("{at}.{first}.{member}"), ""));
        }
    };
    match *first {
        "csi" => {
            let driver = text(spec, "/csi/driver");
            validate_driver_name(driver, &format!("{at}.csi.driver"), causes);
            required("volumeHandle", causes);
            for member in [
                "controllerPublishSecretRef",
                "controllerExpandSecretRef",
                "nodePublishSecretRef",
                "nodeExpandSecretRef",
            ] {
                let Some(secret) = spec.pointer(&format!("/csi/{member}")) else {
                    continue;
                };
                for part in ["name", "namespace"] {
                    if !secret.is_null() && text(secret, &format!("/{part}")).is_empty() {
                        causes.push(Cause::required(format!("{at}.csi.{member}.{part}"), ""));
                    }
                }
            }
        }
        "nfs" => {
            required("server", causes);
            required("path", causes);
            let path = text(spec, "/nfs/path");
            if !path.is_empty() && !path.starts_with('/') {
                let field = format!("{at}.nfs.path");
                causes.push(Cause::invalid(
                    field,
                    &json!(path),
                    "must be an absolute path",
                ));
            }
        }
        "hostPath" | "local" => {
            required("path", causes);
            let path = text(spec, &format!("/{first}/path"));
            if path.split('/').any(|part| part == "..") {
                let field = format!("{at}.{first}.path");
                causes.push(Cause::invalid(field, &json!(path), "must not contain '..'"));
            }
            if *first == "local" && !has(spec, "nodeAffinity") {
                let why = "Local volume requires node affinity";
                causes.push(Cause::required(format!("{at}.nodeAffinity"), why));
            }
            if *first == "hostPath" && path == "/" && policy == "Recycle" {
                let field = format!("{at}.persistentVolumeReclaimPolicy");
                let why = "may not be 'recycle' for a hostPath mount of '/'";
                causes.push(Cause::forbidden(field, why));
            }
        }
        _ => {}
    }
    for source in given {
        let why = "may not specify more than 1 volume type";
        causes.push(Cause::forbidden(format!("{at}.{source}"), why));
    }
}

fn validate_access_modes(spec: &Value, at: &str, causes: &mut Vec<Cause>) {
    let modes = items(spec, "/accessModes");
    let field = format!("{at}.accessModes");
    let known = |mode: &Value| {
        mode.as_str()
            .is_some_and(|mode| ACCESS_MODES.contains(&mode))
    };
    for mode in modes.iter().filter(|mode| !known(mode)) {
        causes.push(Cause::unsupported(field.clone(), mode, ACCESS_MODES));
    }
    let single = |mode: &Value| mode == "ReadWriteOncePod";
    if modes.iter().any(single) && modes.iter().any(|mode| known(mode) && !single(mode)) {
        let why = "may not use ReadWriteOncePod with other access modes";
        causes.push(Cause::forbidden(field, why));
    }
}

fn validate_affinity(affinity: &Value, at: &str, causes: &mut Vec<Cause>) {
    if !has(affinity, "required") {
        let why = "must specify required node constraints";
        causes.push(Cause::required(format!("{at}.required"), why));
        return;
    }
    let terms = items(affinity, "/required/nodeSelectorTerms");
    let at = format!("{at}.required.nodeSelectorTerms");
    if terms.is_empty() {
        let why = "must have at least one node selector term";
        causes.push(Cause::required(at.clone(), why));
    }
    for (index, term) in terms.iter().enumerate() {
        for (place, wanted) in items(term, "/matchExpressions").iter().enumerate() {
            let at = format!("{at}[{index}].matchExpressions[{place}]");
            let known = ["In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"];
            validate_requirement(wanted, &at, &known, causes);
        }
    }
}

/// Validates one expression of a node or label selector, which differ in their operators.
fn validate_requirement(wanted: &Value, at: &str, known: &[&str], causes: &mut Vec<Cause>) {
    let values = items(wanted, "/values");
    match text(wanted, "/operator") {
        other if !known.contains(&other) => {
            let why = "not a valid selector operator";
            causes.push(Cause::invalid(format!("{at}.operator"), &json!(other), why));
        }
        "In" | "NotIn" if values.is_empty() => {
            let why = "must be specified when `operator` is 'In' or 'NotIn'";
            causes.push(Cause::required(format!("{at}.values"), why));
        }
        "Exists" | "DoesNotExist" if !values.is_empty() => {
            let why = "may not be specified when `operator` is 'Exists' or 'DoesNotExist'";
            causes.push(Cause::forbidden(format!("{at}.values"), why));
        }
        "Gt" | "Lt" if values.len() != 1 => {
            let why = "must be specified single value when `operator` is 'Lt' or 'Gt'";
            causes.push(Cause::required(format!("{at}.values"), why));
        }
        _ => {}
    }
    let key = text(wanted, "/key");
    for why in names::qualified_name(key) {
        causes.push(Cause::invalid(format!("{at}.key"), &json!(key), &why));
    }
}

pub(in crate::registry) fn validate_volume_update(
    old: &Value,
    new: &Value,
    causes: &mut Vec<Cause>,
) {
    let source = |volume: &Value| -> Vec<(&str, Value)> {
        let mut sources: Vec<(&str, Value)> = SOURCES
            .iter()
            .filter_map(|name| Some((*name, volume.pointer(&format!("/spec/{name}"))?.clone())))
            .collect();
        let late = "controllerExpandSecretRef";
        for (name, value) in &mut sources {
            if *name == "csi" && !has(old.pointer("/spec/csi").unwrap_or(&Value::Null), late) {
                value.as_object_mut().map(|csi| csi.remove(late));
            }
        }
        sources
    };
    if source(old) != source(new) {
        let why = "spec.persistentvolumesource is immutable after creation";
        causes.push(Cause::forbidden("spec.persistentvolumesource", why));
    }
    immutable(old, new, "/spec/volumeMode", "volumeMode", causes);
    let affinity = old.pointer("/spec/nodeAffinity");
    if affinity.is_some() && affinity != new.pointer("/spec/nodeAffinity") {
        let value = new.pointer("/spec/nodeAffinity").unwrap_or(&Value::Null);
        let why = "field is immutable, except for updating from beta label to GA";
        causes.push(Cause::invalid("nodeAffinity", value, why));
    }
    let class = "/spec/volumeAttributesClassName";
    if old.pointer(class).is_some() && new.pointer(class).is_none() {
        let why = "update from non-nil value to nil is forbidden";
        causes.push(Cause::forbidden("spec.volumeAttributesClassName", why));
    }
}

pub(in crate::registry) fn validate_claim(claim: &Value, causes: &mut Vec<Cause>) {
    let spec = claim.get("spec").unwrap_or(&Value::Null);
    if items(spec, "/accessModes").is_empty() {
        let why = "at least 1 access mode is required";
        causes.push(Cause::required("spec.accessModes", why));
    }
    if let Some(selector) = spec.get("selector") {
        validate_selector(selector, "spec.selector", causes);
    }
    validate_access_modes(spec, "spec", causes);
    let field = "spec.resources[storage]";
    match spec.pointer("/resources/requests/storage") {
        None | Some(Value::Null) => causes.push(Cause::required(field, "")),
        Some(amount) if sign(amount) <= 0 => {
            causes.push(Cause::invalid(field, amount, "must be greater than zero"));
        }
        Some(_) => {}
    }
    let class = text(spec, "/storageClassName");
    if !class.is_empty() {
        check_class(class, "spec.storageClassName", causes);
    }
    validate_mode(spec, "spec", causes);
    for member in ["dataSource", "dataSourceRef"] {
        if let Some(source) = spec.get(member).filter(|source| !source.is_null()) {
            validate_data_source(source, &format!("spec.{member}"), causes);
        }
    }
    let local = |source: Option<&Value>| {
        let mut source = source.cloned().unwrap_or_default();
        source.as_object_mut().map(|map| map.remove("namespace"));
        source
    };
    let there = |member| has(spec, member);
    let elsewhere = !text(spec, "/dataSourceRef/namespace").is_empty();
    if there("dataSource") && elsewhere {
        let why = "may not be specified when dataSourceRef.namespace is specified";
        causes.push(Cause::invalid("spec", &json!("spec.dataSource"), why));
    } else if there("dataSource")
        && there("dataSourceRef")
        && local(spec.get("dataSource")) != local(spec.get("dataSourceRef"))
    {
        let why = "must match dataSourceRef";
        causes.push(Cause::invalid("spec", &json!("spec.dataSource"), why));
    }
    let class = text(spec, "/volumeAttributesClassName");
    if !class.is_empty() {
        check_class(class, "spec.volumeAttributesClassName", causes);
    }
}

fn validate_data_source(source: &Value, at: &str, causes: &mut Vec<Cause>) {
    for member in ["name", "kind"] {
        if text(source, &format!("/{member}")).is_empty() {
            causes.push(Cause::required(format!("{at}.{member}"), ""));
        }
    }
    let (group, kind) = (text(source, "/apiGroup"), text(source, "/kind"));
    if group.is_empty() && kind != "PersistentVolumeClaim" {
        let why = "must be 'PersistentVolumeClaim' when referencing the default apiGroup";
        causes.push(Cause::invalid(at, &json!(kind), why));
    }
    if !group.is_empty() {
        for why in names::dns1123_subdomain(group) {
            causes.push(Cause::invalid(
                format!("{at}.apiGroup"),
                &json!(group),
                &why,
            ));
        }
    }
    let namespace = text(source, "/namespace");
    if !namespace.is_empty() {
        for why in names::dns1123_label(namespace) {
            causes.push(Cause::invalid(
                format!("{at}.namespace"),
                &json!(namespace),
                &why,
            ));
        }
    }
}

pub(in crate::registry) fn validate_claim_update(
    old: &Value,
    new: &Value,
    causes: &mut Vec<Cause>,
) {
    let mut was = old.get("spec").cloned().unwrap_or_default();
    let mut is = new.get("spec").cloned().unwrap_or_default();
    same_sources_of(&mut was);
    same_sources_of(&mut is);
    let mut forgive = |member: &str| match was.get(member).cloned() {
        Some(value) => is[member] = value,
        None => {
            is.as_object_mut().map(|spec| spec.remove(member));
        }
    };
    if text(old, "/spec/volumeName").is_empty() {
        forgive("volumeName");
    }
    let beta = format!("/metadata/annotations/{}", BETA_CLASS.replace('/', "~1"));
    let annotated = old.pointer(&beta);
    let (had, has_now) = (
        old.pointer("/spec/storageClassName"),
        new.pointer("/spec/storageClassName"),
    );
    let named_by_field = had.is_none() && has_now.is_some();
    if named_by_field && (annotated.is_none() || annotated == has_now) {
        forgive("storageClassName");
    } else if annotated != new.pointer(&beta) {
        let field = format!("metadata.annotations.{BETA_CLASS}");
        let value = new.pointer(&beta).unwrap_or(&Value::Null);
        causes.push(Cause::invalid(field, value, "field is immutable"));
    }
    let bound = text(new, "/status/phase") == "Bound";
    if bound {
        forgive("volumeAttributesClassName");
    }
    let requested = "/spec/resources/requests/storage";
    if bound
        && let Some(storage) = old.pointer(requested)
        && let Some(slot) = is.pointer_mut("/resources/requests/storage")
    {
        *slot = storage.clone();
    }
    if was != is {
        let why = "spec is immutable after creation except resources.requests and \
                   volumeAttributesClassName for bound claims";
        causes.push(Cause::forbidden("spec", why));
    }
    let amount =
        |object: &Value, pointer: &str| -> Option<Quantity> { text(object, pointer).parse().ok() };
    let (less, present) = (
        amount(new, requested) < amount(old, requested),
        amount(old, "/status/capacity/storage"),
    );
    let zero: Option<Quantity> = "0".parse().ok();
    if less && amount(new, requested) <= present.or(zero) {
        let why = "field can not be less than status.capacity";
        causes.push(Cause::forbidden("spec.resources.requests.storage", why));
    }
    immutable(old, new, "/spec/volumeMode", "volumeMode", causes);
    let class = "/spec/volumeAttributesClassName";
    if old.pointer(class) != new.pointer(class)
        && has(
            old.get("status").unwrap_or(&Value::Null),
            "currentVolumeAttributesClassName",
        )
        && text(new, class).is_empty()
    {
        let what = if new.pointer(class).is_none() {
            "nil"
        } else {
            "empty string"
        };
        let why = format!(
            "update to {what} is forbidden when status.currentVolumeAttributesClassName is not nil"
        );
        causes.push(Cause::forbidden("spec.volumeAttributesClassName", &why));
    }
}

fn same_sources_of(spec: &mut Value) {
    if let Some(spec) = spec.as_object_mut() {
        same_sources(spec);
    }
}

pub(in crate::registry) fn validate_claim_status(claim: &Value, causes: &mut Vec<Cause>) {
    for member in ["capacity", "allocatedResources"] {
        for (name, amount) in entries(claim, &format!("/status/{member}")) {
            if let Some(number) = negative(amount) {
                let why = "must be a valid resource quantity";
                let field = format!("status.{member}[{name}]");
                causes.push(Cause::invalid(field, &json!(number), why));
            }
        }
    }
}

fn validate_mode(spec: &Value, at: &str, causes: &mut Vec<Cause>) {
    let mode = text(spec, "/volumeMode");
    if has(spec, "volumeMode") && !VOLUME_MODES.contains(&mode) {
        let field = format!("{at}.volumeMode");
        causes.push(Cause::unsupported(field, &json!(mode), VOLUME_MODES));
    }
}

/// Validates the name of a CSI driver.
pub(in crate::registry) fn validate_driver_name(name: &str, at: &str, causes: &mut Vec<Cause>) {
    if name.is_empty() {
        causes.push(Cause::required(at, ""));
        return;
    }
    if name.len() > 63 {
        causes.push(Cause::too_long(at, 63));
    }
    for why in names::dns1123_subdomain(&name.to_lowercase()) {
        causes.push(Cause::invalid(at, &json!(name), &why));
    }
}

fn check_class(class: &str, at: &str, causes: &mut Vec<Cause>) {
    for why in names::dns1123_subdomain(class) {
        causes.push(Cause::invalid(at, &json!(class), &why));
    }
}

/// Validates a label selector: keys, values, and operators with their number of values.
pub(in crate::registry) fn validate_selector(selector: &Value, at: &str, causes: &mut Vec<Cause>) {
    for (key, value) in entries(selector, "/matchLabels") {
        let at = format!("{at}.matchLabels");
        for why in names::qualified_name(key) {
            causes.push(Cause::invalid(at.clone(), &json!(key), &why));
        }
        for why in names::label_value(value.as_str().unwrap_or_default()) {
            causes.push(Cause::invalid(at.clone(), value, &why));
        }
    }
    for (index, wanted) in items(selector, "/matchExpressions").iter().enumerate() {
        let at = format!("{at}.matchExpressions[{index}]");
        let known = ["In", "NotIn", "Exists", "DoesNotExist"];
        validate_requirement(wanted, &at, &known, causes);
    }
}

/// Whether a bound claim requests more storage than before.
pub(in crate::registry) fn grows(old: &Value, new: &Value) -> bool {
    let amount = |claim: &Value| -> Option<Quantity> {
        text(claim, "/spec/resources/requests/storage").parse().ok()
    };
    text(old, "/status/phase") == "Bound" && amount(new) > amount(old)
}

/// Whether a member exists and is not null.
pub(in crate::registry) fn has(value: &Value, member: &str) -> bool {
    value.get(member).is_some_and(|value| !value.is_null())
}

fn quantity(amount: &Value) -> Option<Quantity> {
    amount.as_str()?.parse().ok()
}

fn sign(amount: &Value) -> i32 {
    quantity(amount).map_or(0, |amount| amount.signum())
}

/// Returns a negative quantity as a whole number. kube-apiserver names this number in the error.
fn negative(amount: &Value) -> Option<i64> {
    let number = quantity(amount)?.value();
    (number < 0).then_some(number)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claim() -> Value {
        let mut claim = json!({"spec": {"accessModes": ["ReadWriteOnce"],
            "resources": {"requests": {"storage": "2Gi"}}}});
        prepare_claim(&mut claim);
        default_claim(&mut claim);
        claim
    }

    fn fields(check: impl Fn(&mut Vec<Cause>)) -> Vec<String> {
        let mut causes = Vec::new();
        check(&mut causes);
        causes.into_iter().map(|cause| cause.field).collect()
    }

    #[test]
    fn new_claims_are_pending_and_protected() {
        let claim = claim();
        assert_eq!(claim["status"], json!({"phase": "Pending"}));
        assert_eq!(
            claim["metadata"]["finalizers"],
            json!(["kubernetes.io/pvc-protection"])
        );
        assert_eq!(fields(|causes| validate_claim(&claim, causes)), [""; 0]);
    }

    #[test]
    fn claim_rejects_changes_of_immutable_fields() {
        let old = claim();
        let mut new = old.clone();
        new["spec"]["volumeName"] = json!("v");
        new["spec"]["storageClassName"] = json!("late");
        assert_eq!(
            fields(|causes| validate_claim_update(&old, &new, causes)),
            [""; 0]
        );
        new["spec"]["resources"]["requests"]["storage"] = json!("3Gi");
        assert_eq!(
            fields(|causes| validate_claim_update(&old, &new, causes)),
            ["spec"]
        );
        let mut bound = old.clone();
        bound["status"] = json!({"phase": "Bound", "capacity": {"storage": "2Gi"}});
        new["status"] = bound["status"].clone();
        assert_eq!(
            fields(|causes| validate_claim_update(&bound, &new, causes)),
            [""; 0]
        );
        new["spec"]["resources"]["requests"]["storage"] = json!("1Gi");
        assert_eq!(
            fields(|causes| validate_claim_update(&bound, &new, causes)),
            ["spec.resources.requests.storage"]
        );
    }

    #[test]
    fn data_source_and_data_source_ref_are_kept_equal() {
        let mut one = claim();
        one["spec"]["dataSource"] = json!({"kind": "PersistentVolumeClaim", "name": "c"});
        default_claim(&mut one);
        assert_eq!(one["spec"]["dataSourceRef"], one["spec"]["dataSource"]);
        let mut other = claim();
        other["spec"]["dataSourceRef"] =
            json!({"apiGroup": "g.io", "kind": "K", "name": "n", "namespace": "far"});
        default_claim(&mut other);
        assert!(other["spec"].get("dataSource").is_none());
    }

    #[test]
    fn phase_change_of_a_volume_sets_its_time() {
        let old = json!({"status": {"phase": "Available", "lastPhaseTransitionTime": "t"}});
        let mut same = json!({"status": {"phase": "Available"}});
        change_volume_status(&old, &mut same);
        assert_eq!(same["status"]["lastPhaseTransitionTime"], "t");
        let mut bound = old.clone();
        bound["status"]["phase"] = json!("Bound");
        change_volume_status(&old, &mut bound);
        assert_ne!(bound["status"]["lastPhaseTransitionTime"], "t");
    }

    #[test]
    fn a_volume_has_one_source_with_its_parts() {
        let spec = json!({"capacity": {"storage": "0"}, "accessModes": ["ReadWriteOnce", "x"],
            "csi": {"driver": "", "nodeExpandSecretRef": {"name": "s"}},
            "nodeAffinity": {"required": {"nodeSelectorTerms": [
                {"matchExpressions": [{"key": "a/b/c", "operator": "In"}]}]}}});
        let found = fields(|causes| validate_volume_spec(&spec, "spec", false, causes));
        assert_eq!(
            found,
            [
                "spec.accessModes",
                "spec.capacity[storage]",
                "spec.nodeAffinity.required.nodeSelectorTerms[0].matchExpressions[0].values",
                "spec.nodeAffinity.required.nodeSelectorTerms[0].matchExpressions[0].key",
                "spec.csi.driver",
                "spec.csi.volumeHandle",
                "spec.csi.nodeExpandSecretRef.namespace",
            ]
        );
    }
}
