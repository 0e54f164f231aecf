//! HorizontalPodAutoscaler: its defaults and validation. A controller scales the target.

pub(in crate::registry) mod v1;

use serde_json::{Map, Value, json};

use super::{at, child, items, set_default, text};
use crate::names;
use crate::quantity::Quantity;
use crate::status::Cause;

/// Utilization of CPUs that is the target if there is no other metric, in percent.
const UTILIZATION: i64 = 80;
const LONGEST_PERIOD: i64 = 1800;
const LONGEST_WINDOW: i64 = 3600;
/// Types of metrics and their members.
const SOURCES: [(&str, &str); 5] = [
    ("ContainerResource", "containerResource"),
    ("External", "external"),
    ("Object", "object"),
    ("Pods", "pods"),
    ("Resource", "resource"),
];

pub(in crate::registry) fn prepare_scaler(scaler: &mut Value) {
    scaler["status"] = json!({"desiredReplicas": 0, "currentMetrics": null});
}

pub(in crate::registry) fn default_scaler(scaler: &mut Value) {
    let Some(spec) = child(scaler, "spec") else {
        return;
    };
    set_default(spec, "minReplicas", 1);
    let metrics = spec.get("metrics").and_then(Value::as_array);
    if metrics.is_none_or(Vec::is_empty) {
        let target = json!({"type": "Utilization", "averageUtilization": UTILIZATION});
        let metric = json!({"type": "Resource", "resource": {"name": "cpu", "target": target}});
        spec.insert("metrics".into(), json!([metric]));
    }
    let Some(behavior) = spec.get_mut("behavior").and_then(Value::as_object_mut) else {
        return;
    };
    let percent = json!({"type": "Percent", "value": 100, "periodSeconds": 15});
    let pods = json!({"type": "Pods", "value": 4, "periodSeconds": 15});
    let up = rules_of(behavior, "scaleUp");
    set_default(up, "stabilizationWindowSeconds", 0);
    default_rules(up, json!([pods, percent]));
    default_rules(rules_of(behavior, "scaleDown"), json!([percent]));
}

fn rules_of<'a>(behavior: &'a mut Map<String, Value>, member: &str) -> &'a mut Map<String, Value> {
    let rules = behavior.entry(member).or_insert(Value::Null);
    if !rules.is_object() {
        *rules = json!({});
    }
    rules.as_object_mut().expect("just created as an object")
}

fn default_rules(rules: &mut Map<String, Value>, policies: Value) {
    set_default(rules, "selectPolicy", "Max");
    set_default(rules, "policies", policies);
}

pub(in crate::registry) fn validate_scaler(scaler: &Value, causes: &mut Vec<Cause>) {
    let number = |member: &str| scaler["spec"][member].as_i64();
    let (least, most) = (number("minReplicas"), number("maxReplicas").unwrap_or(0));
    if let Some(least) = least.filter(|least| *least < 1) {
        let why = "must be greater than or equal to 1";
        causes.push(Cause::invalid("spec.minReplicas", &json!(least), why));
    }
    if most == 0 {
        let why = "must be set and greater than 0";
        causes.push(Cause::required("spec.maxReplicas", why));
    } else if most < 0 {
        let why = "must be greater than or equal to 1";
        causes.push(Cause::invalid("spec.maxReplicas", &json!(most), why));
    }
    if least.is_some_and(|least| most < least) {
        let why = "must be greater than or equal to `minReplicas`";
        causes.push(Cause::invalid("spec.maxReplicas", &json!(most), why));
    }
    let spec = &scaler["spec"];
    check_reference(&spec["scaleTargetRef"], "spec.scaleTargetRef", causes);
    for (index, metric) in items(scaler, "/spec/metrics").iter().enumerate() {
        check_metric(metric, &format!("spec.metrics[{index}]"), causes);
    }
    if least == Some(0) {
        let scales = |metric: &Value| matches!(text(metric, "/type"), "Object" | "External");
        if !items(scaler, "/spec/metrics").iter().any(scales) {
            let why = "must specify at least one Object or External metric to support scaling to \
                       zero replicas";
            causes.push(Cause::forbidden("spec.metrics", why));
        }
    }
    for member in ["scaleUp", "scaleDown"] {
        let rules = at(spec, "/behavior").and_then(|behavior| behavior.get(member));
        if let Some(rules) = rules.filter(|rules| rules.is_object()) {
            check_rules(rules, &format!("spec.behavior.{member}"), causes);
        }
    }
}

/// Rejects a new target without an API group. Only replication controllers have none.
pub(in crate::registry) fn validate_new_scaler(scaler: &Value, causes: &mut Vec<Cause>) {
    let target = &scaler["spec"]["scaleTargetRef"];
    let version = text(target, "/apiVersion");
    let field = "spec.scaleTargetRef.apiVersion";
    if version.matches('/').count() > 1 {
        let why = format!("unexpected GroupVersion string: {version}");
        causes.push(Cause::invalid(field, &json!(version), &why));
    } else if !version.contains('/') && text(target, "/kind") != "ReplicationController" {
        let why = "apiVersion must specify API group";
        causes.push(Cause::invalid(field, &json!(version), why));
    }
}

/// Checks the API group of a changed target.
pub(in crate::registry) fn validate_scaler_update(
    old: &Value,
    new: &Value,
    causes: &mut Vec<Cause>,
) {
    let identity = |scaler: &Value| {
        let target = &scaler["spec"]["scaleTargetRef"];
        [target["apiVersion"].clone(), target["kind"].clone()]
    };
    if identity(old) != identity(new) {
        validate_new_scaler(new, causes);
    }
}

pub(in crate::registry) fn validate_scaler_status(scaler: &Value, causes: &mut Vec<Cause>) {
    for member in ["currentReplicas", "desiredReplicas"] {
        let number = &scaler["status"][member];
        if number.as_i64().unwrap_or(0) < 0 {
            let why = "must be greater than or equal to 0";
            causes.push(Cause::invalid(format!("status.{member}"), number, why));
        }
    }
}

fn check_reference(reference: &Value, path: &str, causes: &mut Vec<Cause>) {
    for member in ["kind", "name"] {
        let (name, field) = (
            text(reference, &format!("/{member}")),
            format!("{path}.{member}"),
        );
        if name.is_empty() {
            causes.push(Cause::required(field, ""));
        } else {
            let problems = names::path_segment(name).into_iter();
            causes.extend(problems.map(|why| Cause::invalid(&*field, &json!(name), &why)));
        }
    }
}

fn check_metric(metric: &Value, path: &str, causes: &mut Vec<Cause>) {
    let kind = text(metric, "/type");
    if kind.is_empty() {
        let why = "must specify a metric source type";
        causes.push(Cause::required(format!("{path}.type"), why));
    }
    let source = |member: &str| metric.get(member).filter(|source| !source.is_null());
    let expected = SOURCES.iter().find(|(known, _)| *known == kind);
    let Some((_, expected)) = expected else {
        let known = SOURCES.map(|(kind, _)| kind);
        let field = format!("{path}.type");
        causes.push(Cause::unsupported(field, &json!(kind), &known));
        return;
    };
    match source(expected) {
        Some(source) => check_source(expected, source, &format!("{path}.{expected}"), causes),
        None => {
            let why = "must populate information for the given metric source";
            causes.push(Cause::required(format!("{path}.{expected}"), why));
        }
    }
    for (_, other) in SOURCES.iter().filter(|(_, member)| member != expected) {
        if source(other).is_some() {
            let why = "must populate the given metric source only";
            causes.push(Cause::forbidden(format!("{path}.{other}"), why));
        }
    }
}

fn check_source(member: &str, source: &Value, path: &str, causes: &mut Vec<Cause>) {
    let target = source.get("target").unwrap_or(&Value::Null);
    let given = |member: &str| target.get(member).is_some_and(|value| !value.is_null());
    let (value, average, utilization) = (
        given("value"),
        given("averageValue"),
        given("averageUtilization"),
    );
    if member == "object" {
        check_reference(
            &source["describedObject"],
            &format!("{path}.describedObject"),
            causes,
        );
    }
    let is_resource = matches!(member, "resource" | "containerResource");
    if is_resource {
        if text(source, "/name").is_empty() {
            let why = "must specify a resource name";
            causes.push(Cause::required(format!("{path}.name"), why));
        }
        if member == "containerResource" && text(source, "/container").is_empty() {
            let why = "must specify a container";
            causes.push(Cause::required(format!("{path}.container"), why));
        }
    } else {
        let (name, field) = (text(source, "/metric/name"), format!("{path}.metric.name"));
        if name.is_empty() {
            causes.push(Cause::required(field, "must specify a metric name"));
        } else {
            let problems = names::path_segment(name).into_iter();
            causes.extend(problems.map(|why| Cause::invalid(&*field, &json!(name), &why)));
        }
    }
    check_target(target, &format!("{path}.target"), causes);
    let mut missing = |member: &str, why: &str| {
        causes.push(Cause::required(format!("{path}.target.{member}"), why));
    };
    match member {
        "object" if !value && !average => {
            missing(
                "averageValue",
                "must set either a target value or averageValue",
            );
        }
        "external" if !value && !average => {
            let why = "must set either a target value for metric or a per-pod target";
            missing("averageValue", why);
        }
        "pods" if !average => missing(
            "averageValue",
            "must specify a positive target averageValue",
        ),
        _ if is_resource && !utilization && !average => {
            let why = "must set either a target raw value or a target utilization";
            missing("averageUtilization", why);
        }
        "external" if value && average => {
            let why = "may not set both a target value for metric and a per-pod target";
            causes.push(Cause::forbidden(format!("{path}.target.value"), why));
        }
        _ if is_resource && utilization && average => {
            let why = "may not set both a target raw value and a target utilization";
            causes.push(Cause::forbidden(format!("{path}.target.averageValue"), why));
        }
        _ => {}
    }
}

fn check_target(target: &Value, path: &str, causes: &mut Vec<Cause>) {
    let kind = text(target, "/type");
    if kind.is_empty() {
        let why = "must specify a metric target type";
        causes.push(Cause::required(format!("{path}.type"), why));
    }
    if !["Utilization", "Value", "AverageValue"].contains(&kind) {
        let why = "must be either Utilization, Value, or AverageValue";
        causes.push(Cause::invalid(format!("{path}.type"), &json!(kind), why));
    }
    for member in ["value", "averageValue"] {
        let amount = target.get(member).and_then(Value::as_str);
        let parsed = amount.and_then(|amount| amount.parse::<Quantity>().ok());
        if parsed.is_some_and(|amount| amount.signum() != 1) {
            let (field, why) = (format!("{path}.{member}"), "must be positive");
            causes.push(Cause::invalid(field, &target[member], why));
        }
    }
    let utilization = target.get("averageUtilization").and_then(Value::as_i64);
    if utilization.is_some_and(|utilization| utilization < 1) {
        let (field, why) = (
            format!("{path}.averageUtilization"),
            "must be greater than 0",
        );
        causes.push(Cause::invalid(field, &target["averageUtilization"], why));
    }
}

fn check_rules(rules: &Value, path: &str, causes: &mut Vec<Cause>) {
    let window = &rules["stabilizationWindowSeconds"];
    let why = match window.as_i64() {
        Some(..0) => Some("must be greater than or equal to zero".to_owned()),
        Some(seconds) if seconds > LONGEST_WINDOW => {
            Some(format!("must be less than or equal to {LONGEST_WINDOW}"))
        }
        _ => None,
    };
    if let Some(why) = why {
        let field = format!("{path}.stabilizationWindowSeconds");
        causes.push(Cause::invalid(field, window, &why));
    }
    let select = &rules["selectPolicy"];
    let known = ["Disabled", "Max", "Min"];
    if select
        .as_str()
        .is_some_and(|select| !known.contains(&select))
    {
        causes.push(Cause::unsupported(
            format!("{path}.selectPolicy"),
            select,
            &known,
        ));
    }
    let policies = items(rules, "/policies");
    if policies.is_empty() {
        let why = "must specify at least one Policy";
        causes.push(Cause::required(format!("{path}.policies"), why));
    }
    for (index, policy) in policies.iter().enumerate() {
        let path = format!("{path}.policies[{index}]");
        let known = ["Percent", "Pods"];
        if !known.contains(&text(policy, "/type")) {
            causes.push(Cause::unsupported(
                format!("{path}.type"),
                &policy["type"],
                &known,
            ));
        }
        for member in ["value", "periodSeconds"] {
            let number = policy[member].as_i64().unwrap_or(0);
            if number <= 0 {
                let why = "must be greater than zero";
                causes.push(Cause::invalid(
                    format!("{path}.{member}"),
                    &json!(number),
                    why,
                ));
            }
        }
        let period = policy["periodSeconds"].as_i64().unwrap_or(0);
        if period > LONGEST_PERIOD {
            let why = format!("must be less than or equal to {LONGEST_PERIOD}");
            causes.push(Cause::invalid(
                format!("{path}.periodSeconds"),
                &json!(period),
                &why,
            ));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scaler(spec: &Value) -> Value {
        let mut scaler = json!({"spec": {"maxReplicas": 3,
            "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"}}});
        for (member, value) in spec.as_object().expect("members") {
            scaler["spec"][member] = value.clone();
        }
        default_scaler(&mut scaler);
        scaler
    }

    fn fields(spec: &Value) -> Vec<String> {
        let mut causes = Vec::new();
        let scaler = scaler(spec);
        validate_scaler(&scaler, &mut causes);
        validate_new_scaler(&scaler, &mut causes);
        causes.into_iter().map(|cause| cause.field).collect()
    }

    #[test]
    fn scaler_without_metrics_targets_the_utilization_of_cpus() {
        let mut scaler = scaler(&json!({"behavior": {"scaleUp": {"selectPolicy": "Min"}}}));
        let metric = &scaler["spec"]["metrics"][0]["resource"];
        assert_eq!(metric["target"]["averageUtilization"], UTILIZATION);
        assert_eq!(scaler["spec"]["minReplicas"], 1);
        let behavior = &scaler["spec"]["behavior"];
        assert_eq!(behavior["scaleUp"]["selectPolicy"], "Min");
        assert_eq!(
            behavior["scaleUp"]["policies"].as_array().map(Vec::len),
            Some(2)
        );
        assert_eq!(
            behavior["scaleDown"].get("stabilizationWindowSeconds"),
            None
        );
        let once = scaler.clone();
        default_scaler(&mut scaler);
        assert_eq!(scaler, once);
    }

    #[test]
    fn bounds_targets_and_rules_are_checked() {
        assert_eq!(fields(&json!({})), [""; 0]);
        assert_eq!(fields(&json!({"maxReplicas": 0})), ["spec.maxReplicas"; 2]);
        assert_eq!(fields(&json!({"minReplicas": 5})), ["spec.maxReplicas"]);
        let target = json!({"kind": "Deployment", "name": "web"});
        assert_eq!(
            fields(&json!({"scaleTargetRef": target})),
            ["spec.scaleTargetRef.apiVersion"]
        );
        let metrics = json!([{"type": "Pods", "resource": {}}]);
        assert_eq!(
            fields(&json!({"metrics": metrics})),
            ["spec.metrics[0].pods", "spec.metrics[0].resource"]
        );
        let metrics = json!([{"type": "Resource", "resource": {"name": "cpu", "target": {"type": "Utilization"}}}]);
        assert_eq!(
            fields(&json!({"metrics": metrics})),
            ["spec.metrics[0].resource.target.averageUtilization"]
        );
        let policies = json!([{"type": "Pods", "value": 0, "periodSeconds": 1801}]);
        let path = "spec.behavior.scaleDown.policies[0]";
        assert_eq!(
            fields(&json!({"behavior": {"scaleDown": {"policies": policies}}})),
            [format!("{path}.value"), format!("{path}.periodSeconds")]
        );
    }
}
