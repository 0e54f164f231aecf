//! Columns of the group `autoscaling`.

use serde_json::{Value, json};

use super::{AGE_COLUMN, Column, scalar, text};

const SPEC: &str = "autoscaling/v2.HorizontalPodAutoscalerSpec";

/// Number of metrics that the column shows.
const SHOWN: usize = 2;

pub(in crate::registry) const SCALER: &[Column] = &[
    text("Reference", |o, _| {
        let target = |member: &str| scalar(o.pointer(&format!("/spec/scaleTargetRef/{member}")));
        json!(format!("{}/{}", target("kind"), target("name")))
    })
    .field(SPEC, "scaleTargetRef"),
    text("Targets", |o, _| json!(targets(o))).field(SPEC, "metrics"),
    text("MinPods", |o, _| match o.pointer("/spec/minReplicas") {
        None | Some(Value::Null) => json!("<unset>"),
        number => json!(scalar(number)),
    })
    .field(SPEC, "minReplicas"),
    text("MaxPods", |o, _| count(o, "/spec/maxReplicas")).field(SPEC, "maxReplicas"),
    text("Replicas", |o, _| count(o, "/status/currentReplicas")).field(
        "autoscaling/v2.HorizontalPodAutoscalerStatus",
        "currentReplicas",
    ),
    AGE_COLUMN,
];

fn count(object: &Value, pointer: &str) -> Value {
    json!(object.pointer(pointer).and_then(Value::as_i64).unwrap_or(0))
}

fn targets(scaler: &Value) -> String {
    let list = |pointer: &str| scaler.pointer(pointer).and_then(Value::as_array);
    let metrics = list("/spec/metrics").map(Vec::as_slice).unwrap_or_default();
    let current = list("/status/currentMetrics")
        .map(Vec::as_slice)
        .unwrap_or_default();
    if metrics.is_empty() {
        return "<none>".to_owned();
    }
    let shown = metrics.iter().take(SHOWN).enumerate();
    let shown: Vec<String> = shown
        .map(|(index, metric)| target(metric, current.get(index)))
        .collect();
    let shown = shown.join(", ");
    match metrics.len().checked_sub(SHOWN) {
        Some(more @ 1..) => format!("{shown} + {more} more..."),
        _ => shown,
    }
}

/// Returns the current value and the target of a metric.
fn target(metric: &Value, current: Option<&Value>) -> String {
    let source = match metric["type"].as_str().unwrap_or_default() {
        "External" => "external",
        "Object" => "object",
        "Pods" => "pods",
        "Resource" => "resource",
        "ContainerResource" => "containerResource",
        _ => return "<unknown type>".to_owned(),
    };
    let wanted = |member: &str| {
        let value = metric.pointer(&format!("/{source}/target/{member}"));
        value
            .filter(|value| !value.is_null())
            .map(|value| scalar(Some(value)))
    };
    let now = |member: &str| {
        let value =
            current.and_then(|current| current.pointer(&format!("/{source}/current/{member}")));
        value
            .filter(|value| !value.is_null())
            .map(|value| scalar(Some(value)))
    };
    let unknown = || "<unknown>".to_owned();
    let resource = || scalar(metric.pointer(&format!("/{source}/name")));
    let is_resource = matches!(source, "resource" | "containerResource");
    let average = wanted("averageValue").or_else(|| (source == "pods").then(String::new));
    match average {
        Some(wanted) => {
            let now = now("averageValue").unwrap_or_else(unknown);
            match source {
                "pods" => format!("{now}/{wanted}"),
                _ if is_resource => format!("{}: {now}/{wanted}", resource()),
                _ => format!("{now}/{wanted} (avg)"),
            }
        }
        None if is_resource => {
            let percent = |number: String| format!("{number}%");
            let now = now("averageUtilization").map_or_else(unknown, percent);
            let wanted = wanted("averageUtilization").map_or_else(|| "<auto>".to_owned(), percent);
            format!("{}: {now}/{wanted}", resource())
        }
        None => {
            let now = now("value").unwrap_or_else(unknown);
            format!("{now}/{}", wanted("value").unwrap_or_default())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_show_two_metrics_and_the_number_of_the_others() {
        let cpu = json!({"type": "Resource", "resource": {"name": "cpu",
            "target": {"type": "Utilization", "averageUtilization": 80}}});
        let pods = json!({"type": "Pods", "pods": {"metric": {"name": "m"},
            "target": {"type": "AverageValue", "averageValue": "5"}}});
        let status = json!({"currentMetrics": [{"type": "Resource", "resource": {"name": "cpu",
            "current": {"averageUtilization": 7}}}]});
        let shown =
            |metrics: Value| targets(&json!({"spec": {"metrics": metrics}, "status": status}));
        assert_eq!(shown(json!([])), "<none>");
        assert_eq!(shown(json!([cpu])), "cpu: 7%/80%");
        assert_eq!(shown(json!([cpu, pods])), "cpu: 7%/80%, <unknown>/5");
        assert_eq!(
            shown(json!([cpu, pods, pods])),
            "cpu: 7%/80%, <unknown>/5 + 1 more..."
        );
    }
}
