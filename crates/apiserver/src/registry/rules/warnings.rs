//! Warnings about objects that are valid, but use deprecated or misleading members.

use std::collections::{HashMap, HashSet};

use serde_json::{Value, json};

use super::{entries, items, text};

/// Volume sources that no longer work, with the text of the real server.
const REMOVED: [(&str, &str); 8] = [
    (
        "photonPersistentDisk",
        "deprecated in v1.11, non-functional in v1.16+",
    ),
    ("scaleIO", "deprecated in v1.16, non-functional in v1.22+"),
    ("flocker", "deprecated in v1.22, non-functional in v1.25+"),
    ("storageos", "deprecated in v1.22, non-functional in v1.25+"),
    ("quobyte", "deprecated in v1.22, non-functional in v1.25+"),
    ("glusterfs", "deprecated in v1.25, non-functional in v1.26+"),
    ("cephfs", "deprecated in v1.28, non-functional in v1.31+"),
    ("rbd", "deprecated in v1.28, non-functional in v1.31+"),
];
const GIT: (&str, &str) = (
    "gitRepo",
    "deprecated in v1.11, and disabled by default in v1.33+",
);

/// Sources about which the real server does not warn in a PersistentVolume.
const SILENT_IN_VOLUMES: [&str; 2] = ["flocker", "quobyte"];

pub(in crate::registry) fn of_pod(pod: &Value) -> Vec<String> {
    of_template(pod, "")
}

/// Warns about the template of a workload.
pub(in crate::registry) fn of_workload(object: &Value) -> Vec<String> {
    let template = object.pointer("/spec/template").unwrap_or(&Value::Null);
    of_template(template, "spec.template.")
}

pub(in crate::registry) fn of_cron_job(object: &Value) -> Vec<String> {
    let template = object.pointer("/spec/jobTemplate/spec/template");
    of_template(
        template.unwrap_or(&Value::Null),
        "spec.jobTemplate.spec.template.",
    )
}

pub(in crate::registry) fn of_volume(volume: &Value) -> Vec<String> {
    let mut out = Vec::new();
    for (key, why) in [
        (
            "volume.beta.kubernetes.io/storage-class",
            "deprecated since v1.8; use \"storageClassName\" attribute instead",
        ),
        (
            "volume.beta.kubernetes.io/mount-options",
            "deprecated since v1.31; use \"mountOptions\" attribute instead",
        ),
    ] {
        if entries(volume, "/metadata/annotations").any(|(known, _)| known == key) {
            out.push(format!("metadata.annotations[{key}]: {why}"));
        }
    }
    if text(volume, "/spec/persistentVolumeReclaimPolicy") == "Recycle" {
        out.push(
            "spec.persistentVolumeReclaimPolicy: The Recycle reclaim policy is deprecated. Instead, the \
             recommended approach is to use dynamic provisioning."
                .to_owned(),
        );
    }
    let sources = REMOVED.iter();
    let sources = sources.filter(|(source, _)| !SILENT_IN_VOLUMES.contains(source));
    out.extend(of_sources(&volume["spec"], "spec", sources));
    out
}

/// Returns the warnings about a volume with one of these sources.
fn of_sources<'a>(
    volume: &Value,
    at: &str,
    sources: impl Iterator<Item = &'a (&'a str, &'a str)>,
) -> Vec<String> {
    let used = sources.filter(|(source, _)| volume.get(source).is_some_and(|it| !it.is_null()));
    let shown = |source: &str| match source {
        "storageos" => "storageOS".to_owned(),
        source => source.to_owned(),
    };
    used.map(|(source, why)| format!("{at}.{}: {why}", shown(source)))
        .collect()
}

fn of_template(template: &Value, at: &str) -> Vec<String> {
    let mut out = Vec::new();
    for (key, why) in [
        (
            "scheduler.alpha.kubernetes.io/critical-pod",
            "non-functional in v1.16+; use the \"priorityClassName\" field instead",
        ),
        (
            "security.alpha.kubernetes.io/sysctls",
            "non-functional in v1.11+; use the \"sysctls\" field instead",
        ),
        (
            "security.alpha.kubernetes.io/unsafe-sysctls",
            "non-functional in v1.11+; use the \"sysctls\" field instead",
        ),
    ] {
        if entries(template, "/metadata/annotations").any(|(known, _)| known == key) {
            out.push(format!("{at}metadata.annotations[{key}]: {why}"));
        }
    }
    for (index, volume) in items(template, "/spec/volumes").iter().enumerate() {
        let at = format!("{at}spec.volumes[{index}]");
        out.extend(of_sources(volume, &at, REMOVED.iter().chain([&GIT])));
    }
    for (list, member, what) in [
        ("hostAliases", "ip", "ip"),
        ("imagePullSecrets", "name", "name"),
    ] {
        let mut seen = HashSet::new();
        for (index, item) in items(template, &format!("/spec/{list}")).iter().enumerate() {
            let value = text(item, &format!("/{member}"));
            let field = format!("{at}spec.{list}[{index}].{member}");
            if !seen.insert(value) {
                out.push(format!("{field}: duplicate {what} {value:?}"));
            }
            if list == "imagePullSecrets" && value.is_empty() {
                out.push(format!("{field}: invalid empty name \"\""));
            }
        }
    }
    let mut ports: HashMap<&str, String> = HashMap::new();
    for list in ["initContainers", "containers"] {
        for (index, container) in items(template, &format!("/spec/{list}")).iter().enumerate() {
            let at = format!("{at}spec.{list}[{index}]");
            hidden_variables(container, &at, &mut out);
            for (index, port) in items(container, "/ports").iter().enumerate() {
                let (name, field) = (text(port, "/name"), format!("{at}.ports[{index}]"));
                if name.is_empty() {
                    continue;
                }
                match ports.get(name) {
                    Some(other) => out.push(format!(
                        "{field}: duplicate port name {name:?} with {other}, services and probes that \
                         select ports by name will use {other}"
                    )),
                    None => _ = ports.insert(name, field),
                }
            }
        }
    }
    let grace = template.pointer("/spec/terminationGracePeriodSeconds");
    if grace
        .and_then(Value::as_i64)
        .is_some_and(|seconds| seconds < 0)
    {
        out.push(format!(
            "{at}spec.terminationGracePeriodSeconds: must be >= 0; negative values are invalid and will \
             be treated as 1"
        ));
    }
    out
}

/// Reports variables that replace one of the same name without using its value.
fn hidden_variables(container: &Value, at: &str, out: &mut Vec<String>) {
    let mut seen = HashSet::new();
    for (index, variable) in items(container, "/env").iter().enumerate() {
        let (name, value) = (text(variable, "/name"), text(variable, "/value"));
        if seen.insert(name) {
            continue;
        }
        let reference = format!("$({name})");
        let has_source = variable
            .get("valueFrom")
            .is_some_and(|it| *it != json!(null));
        if has_source || value == reference || !value.contains(&reference) {
            out.push(format!(
                "{at}.env[{index}]: hides previous definition of {name:?}, which may be dropped when using apply"
            ));
        }
    }
}
