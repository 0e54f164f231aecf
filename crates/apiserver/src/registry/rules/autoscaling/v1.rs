//! Conversion of HorizontalPodAutoscalers between `autoscaling/v1` and the stored version, `v2`.
//!
//! `v1` has fields for the utilization of CPUs only. All other content is in annotations, in the form of the real
//! server.

use serde_json::{Map, Value, json};

use crate::canonical::canonicalise;
use crate::json::{at, items, text};
use crate::schema;

const METRICS: &str = "autoscaling.alpha.kubernetes.io/metrics";
const CURRENT_METRICS: &str = "autoscaling.alpha.kubernetes.io/current-metrics";
const CONDITIONS: &str = "autoscaling.alpha.kubernetes.io/conditions";
const BEHAVIOR: &str = "autoscaling.alpha.kubernetes.io/behavior";

/// The sources of metrics: their member, and pairs of a member in `v1` and a pointer in `v2`.
type Sources = [(&'static str, &'static [(&'static str, &'static str)])];

const TARGETS: &Sources = &[
    (
        "object",
        &[
            ("target", "/describedObject"),
            ("metricName", "/metric/name"),
            ("selector", "/metric/selector"),
            ("targetValue", "/target/value"),
            ("averageValue", "/target/averageValue"),
        ],
    ),
    (
        "pods",
        &[
            ("metricName", "/metric/name"),
            ("selector", "/metric/selector"),
            ("targetAverageValue", "/target/averageValue"),
        ],
    ),
    (
        "resource",
        &[
            ("name", "/name"),
            ("targetAverageUtilization", "/target/averageUtilization"),
            ("targetAverageValue", "/target/averageValue"),
        ],
    ),
    (
        "containerResource",
        &[
            ("name", "/name"),
            ("container", "/container"),
            ("targetAverageUtilization", "/target/averageUtilization"),
            ("targetAverageValue", "/target/averageValue"),
        ],
    ),
    (
        "external",
        &[
            ("metricName", "/metric/name"),
            ("metricSelector", "/metric/selector"),
            ("targetValue", "/target/value"),
            ("targetAverageValue", "/target/averageValue"),
        ],
    ),
];

const STATUSES: &Sources = &[
    (
        "object",
        &[
            ("target", "/describedObject"),
            ("metricName", "/metric/name"),
            ("selector", "/metric/selector"),
            ("currentValue", "/current/value"),
            ("averageValue", "/current/averageValue"),
        ],
    ),
    (
        "pods",
        &[
            ("metricName", "/metric/name"),
            ("selector", "/metric/selector"),
            ("currentAverageValue", "/current/averageValue"),
        ],
    ),
    (
        "resource",
        &[
            ("name", "/name"),
            ("currentAverageUtilization", "/current/averageUtilization"),
            ("currentAverageValue", "/current/averageValue"),
        ],
    ),
    (
        "containerResource",
        &[
            ("name", "/name"),
            ("container", "/container"),
            ("currentAverageUtilization", "/current/averageUtilization"),
            ("currentAverageValue", "/current/averageValue"),
        ],
    ),
    (
        "external",
        &[
            ("metricName", "/metric/name"),
            ("metricSelector", "/metric/selector"),
            ("currentValue", "/current/value"),
            ("currentAverageValue", "/current/averageValue"),
        ],
    ),
];

/// Converts `v1` to the stored version. Annotations that have another form than expected are ignored.
pub(in crate::registry) fn to_stored(mut scaler: Value) -> Value {
    let notes = take_annotations(&mut scaler);
    let plain = scaler.clone();
    canonical("v2", with_notes(scaler, notes))
        .or_else(|| canonical("v2", with_notes(plain, Map::new())))
        .unwrap_or_default()
}

/// Returns the canonical form of a version, or `None` if a value has the wrong type.
fn canonical(version: &str, scaler: Value) -> Option<Value> {
    let message = schema::message("autoscaling", version, "HorizontalPodAutoscaler")?;
    canonicalise(message, scaler).ok()
}

fn with_notes(mut scaler: Value, mut noted: Map<String, Value>) -> Value {
    let mut note = |name: &str| -> Option<Value> {
        let note = noted.remove(name)?;
        serde_json::from_str(note.as_str()?).ok()
    };
    let mut metrics: Vec<Value> = nested(note(METRICS).as_ref(), TARGETS, set_target_type);
    let target = take(&mut scaler, "spec", "targetCPUUtilizationPercentage");
    if let Some(target) = target.filter(|target| !target.is_null()) {
        metrics.push(json!({"type": "Resource", "resource": {"name": "cpu",
            "target": {"type": "Utilization", "averageUtilization": target}}}));
    }
    if !metrics.is_empty() {
        put(&mut scaler, "spec", "metrics", json!(metrics));
    }
    if let Some(behavior) = note(BEHAVIOR).filter(Value::is_object) {
        put(
            &mut scaler,
            "spec",
            "behavior",
            renamed(behavior, |first| first.to_ascii_lowercase()),
        );
    }
    let current = take(&mut scaler, "status", "currentCPUUtilizationPercentage");
    let mut statuses: Vec<Value> = nested(note(CURRENT_METRICS).as_ref(), STATUSES, |_, _| {});
    if let Some(current) = current.filter(|current| statuses.is_empty() && !current.is_null()) {
        statuses.push(json!({"type": "Resource", "resource": {"name": "cpu",
            "current": {"averageUtilization": current}}}));
    }
    if !statuses.is_empty() {
        put(&mut scaler, "status", "currentMetrics", json!(statuses));
    }
    if let Some(conditions) = note(CONDITIONS).filter(Value::is_array) {
        put(&mut scaler, "status", "conditions", conditions);
    }
    scaler
}

/// Converts the stored version to `v1`.
pub(in crate::registry) fn from_stored(mut scaler: Value) -> Value {
    take_annotations(&mut scaler);
    let mut notes: Vec<(&str, Value)> = Vec::new();
    let (mut others, mut target) = (Vec::new(), None);
    for metric in items(&scaler, "/spec/metrics") {
        let utilization = at(metric, "/resource/target/averageUtilization");
        match utilization.filter(|value| is_cpu(metric) && !value.is_null()) {
            Some(utilization) => target = target.or_else(|| Some(utilization.clone())),
            None => others.push(flat(metric, TARGETS)),
        }
    }
    let current = items(&scaler, "/status/currentMetrics").iter();
    let current = current.filter(|metric| is_cpu(metric));
    let mut current =
        current.filter_map(|metric| at(metric, "/resource/current/averageUtilization"));
    let current = current.next().cloned();
    let statuses = items(&scaler, "/status/currentMetrics").iter();
    let statuses: Vec<Value> = statuses.map(|metric| flat(metric, STATUSES)).collect();
    for (name, list) in [(METRICS, others), (CURRENT_METRICS, statuses)] {
        if !list.is_empty() {
            notes.push((name, json!(list)));
        }
    }
    if let Some(behavior) = take(&mut scaler, "spec", "behavior").filter(Value::is_object) {
        notes.push((
            BEHAVIOR,
            renamed(behavior, |first| first.to_ascii_uppercase()),
        ));
    }
    let conditions = take(&mut scaler, "status", "conditions");
    if let Some(conditions) =
        conditions.filter(|list| list.as_array().is_some_and(|l| !l.is_empty()))
    {
        notes.push((CONDITIONS, conditions));
    }
    take(&mut scaler, "spec", "metrics");
    take(&mut scaler, "status", "currentMetrics");
    if let Some(target) = target {
        put(
            &mut scaler,
            "spec",
            "targetCPUUtilizationPercentage",
            target,
        );
    }
    if let Some(current) = current {
        put(
            &mut scaler,
            "status",
            "currentCPUUtilizationPercentage",
            current,
        );
    }
    if !notes.is_empty() {
        let metadata = crate::registry::meta::metadata(&mut scaler);
        let annotations = metadata.entry("annotations").or_insert_with(|| json!({}));
        for (name, note) in notes {
            annotations[name] = json!(note.to_string());
        }
    }
    canonical("v1", scaler).unwrap_or_default()
}

fn is_cpu(metric: &Value) -> bool {
    text(metric, "/type") == "Resource" && text(metric, "/resource/name") == "cpu"
}

/// Removes the annotations of the conversion, and returns them.
fn take_annotations(scaler: &mut Value) -> Map<String, Value> {
    let mut taken = Map::new();
    let annotations = scaler.pointer_mut("/metadata/annotations");
    if let Some(annotations) = annotations.and_then(Value::as_object_mut) {
        for name in [METRICS, CURRENT_METRICS, CONDITIONS, BEHAVIOR] {
            if let Some(note) = annotations.remove(name) {
                taken.insert(name.to_owned(), note);
            }
        }
        if annotations.is_empty() {
            crate::registry::meta::metadata(scaler).remove("annotations");
        }
    }
    taken
}

/// Converts metrics to `v2`. `complete` adds the members that `v1` does not have.
fn nested(
    metrics: Option<&Value>,
    sources: &Sources,
    complete: fn(&str, &mut Value),
) -> Vec<Value> {
    let metrics = metrics.and_then(Value::as_array).into_iter().flatten();
    let convert = |metric: &Value| {
        let mut converted = json!({"type": metric["type"]});
        for (source, pairs) in sources {
            let Some(from) = metric.get(*source).filter(|from| from.is_object()) else {
                continue;
            };
            let mut to = json!({});
            for (member, pointer) in *pairs {
                let Some(value) = from.get(*member).filter(|value| !value.is_null()) else {
                    continue;
                };
                let mut place = &mut to;
                for part in pointer.trim_start_matches('/').split('/') {
                    place = &mut place[part];
                }
                *place = value.clone();
            }
            complete(source, &mut to);
            converted[*source] = to;
        }
        converted
    };
    metrics.map(convert).collect()
}

/// Converts a metric to `v1`.
fn flat(metric: &Value, sources: &Sources) -> Value {
    let mut converted = json!({"type": metric["type"]});
    for (source, pairs) in sources {
        let Some(from) = metric.get(*source).filter(|from| from.is_object()) else {
            continue;
        };
        let mut to = Map::new();
        for (member, pointer) in *pairs {
            match at(from, pointer).filter(|value| !value.is_null()) {
                Some(value) => _ = to.insert((*member).to_owned(), value.clone()),
                // These members are required in `v1`.
                None if is_required(source, member) => {
                    to.insert((*member).to_owned(), json!("0"));
                }
                None => {}
            }
        }
        converted[*source] = Value::Object(to);
    }
    converted
}

fn is_required(source: &str, member: &str) -> bool {
    match member {
        "targetValue" => source == "object",
        "targetAverageValue" => source == "pods",
        "currentValue" => true,
        "currentAverageValue" => source != "external",
        _ => false,
    }
}

/// Derives the type of a target, which `v1` does not have.
fn set_target_type(source: &str, to: &mut Value) {
    let has = |member: &str| to.pointer(&format!("/target/{member}")).is_some();
    let kind = match source {
        "resource" | "containerResource" if has("averageUtilization") => "Utilization",
        "external" if has("value") => "Value",
        "object" if !has("averageValue") => "Value",
        _ => "AverageValue",
    };
    if source == "object" && kind == "AverageValue" && text(to, "/target/value") == "0" {
        take(to, "target", "value");
    }
    to["target"]["type"] = json!(kind);
}

/// Changes the case of the first letter of all members. The real server writes the behavior with the names of Go.
fn renamed(value: Value, case: fn(&char) -> char) -> Value {
    match value {
        Value::Object(members) => {
            let members = members.into_iter().filter(|(_, value)| !value.is_null());
            let rename = |(name, value): (String, Value)| {
                let mut letters = name.chars();
                let first = letters.next().map(|first| case(&first));
                let name: String = first.into_iter().chain(letters).collect();
                (name, renamed(value, case))
            };
            Value::Object(members.map(rename).collect())
        }
        Value::Array(list) => list.into_iter().map(|item| renamed(item, case)).collect(),
        other => other,
    }
}

fn take(object: &mut Value, parent: &str, member: &str) -> Option<Value> {
    object.get_mut(parent)?.as_object_mut()?.remove(member)
}

fn put(object: &mut Value, parent: &str, member: &str, value: Value) {
    if let Some(parent) = object.get_mut(parent).and_then(Value::as_object_mut) {
        parent.insert(member.to_owned(), value);
    } else if object.is_object() {
        object[parent] = json!({member: value});
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn utilization_of_cpus_is_a_field() {
        let old = json!({"metadata": {}, "spec": {"maxReplicas": 3, "targetCPUUtilizationPercentage": 70}});
        let old = canonical("v1", old).expect("valid");
        let stored = to_stored(old.clone());
        assert_eq!(
            stored["spec"]["metrics"][0]["resource"]["target"]["averageUtilization"],
            70
        );
        assert_eq!(from_stored(stored), old);
    }

    #[test]
    fn everything_else_survives_in_annotations() {
        let object = json!({"describedObject": {"kind": "Service", "name": "s", "apiVersion": "v1"},
            "metric": {"name": "hits"}, "target": {"type": "Value", "value": "5"}});
        let stored = json!({"metadata": {"annotations": {"a": "b"}}, "spec": {"maxReplicas": 3,
            "metrics": [
                {"type": "Object", "object": object},
                {"type": "Pods", "pods": {"metric": {"name": "m", "selector": {"matchLabels": {"x": "y"}}},
                    "target": {"type": "AverageValue", "averageValue": "1"}}},
                {"type": "External", "external": {"metric": {"name": "e"},
                    "target": {"type": "Value", "value": "9"}}},
                {"type": "ContainerResource", "containerResource": {"name": "memory", "container": "c",
                    "target": {"type": "Utilization", "averageUtilization": 50}}}],
            "behavior": {"scaleUp": {"selectPolicy": "Max", "stabilizationWindowSeconds": 0,
                "policies": [{"type": "Pods", "value": 4, "periodSeconds": 15}]}}},
            "status": {"conditions": [{"type": "AbleToScale", "status": "True"}],
                "currentMetrics": [{"type": "Resource", "resource": {"name": "cpu",
                    "current": {"averageUtilization": 7, "averageValue": "70m"}}}]}});
        let stored = canonical("v2", stored).expect("valid");
        let old = from_stored(stored.clone());
        assert_eq!(old["status"]["currentCPUUtilizationPercentage"], 7);
        assert_eq!(old["spec"].get("metrics"), None);
        let behavior = old["metadata"]["annotations"][BEHAVIOR]
            .as_str()
            .expect("text");
        assert!(behavior.contains("\"ScaleUp\""), "{behavior}");
        assert_eq!(to_stored(old), stored);
    }

    #[test]
    fn annotation_of_another_form_is_ignored() {
        let old = json!({"metadata": {"annotations": {METRICS: "[{\"type\": 7}]"}},
            "spec": {"maxReplicas": 3, "targetCPUUtilizationPercentage": 70}});
        let stored = to_stored(old);
        assert_eq!(stored["spec"]["metrics"].as_array().map(Vec::len), Some(1));
    }
}
