//! Deployment: what clients write and read back; nothing here makes pods.

use serde_json::{Value, json};

use super::pod;
use super::{child, entries, immutable, set_default, text};
use crate::status::Cause;

pub(in crate::registry) fn default_deployment(deployment: &mut Value) {
    let Some(spec) = child(deployment, "spec") else {
        return;
    };
    set_default(spec, "replicas", 1);
    set_default(spec, "revisionHistoryLimit", 10);
    set_default(spec, "progressDeadlineSeconds", 600);
    let strategy = spec.entry("strategy").or_insert(Value::Null);
    if !strategy.is_object() {
        *strategy = json!({});
    }
    if text(strategy, "/type").is_empty() {
        strategy["type"] = json!("RollingUpdate");
    }
    if text(strategy, "/type") == "RollingUpdate"
        && let Some(rolling) = child(strategy, "rollingUpdate")
    {
        for member in ["maxUnavailable", "maxSurge"] {
            set_default(rolling, member, "25%");
        }
    }
    if let Some(template) = spec.get_mut("template") {
        pod::default_template(template);
    }
}

pub(in crate::registry) fn prepare_deployment(deployment: &mut Value) {
    deployment["status"] = json!({});
}

pub(in crate::registry) fn validate_deployment(deployment: &Value, causes: &mut Vec<Cause>) {
    let spec = deployment.get("spec").unwrap_or(&Value::Null);
    for member in ["replicas", "minReadySeconds", "revisionHistoryLimit"] {
        if let Some(number) = spec.get(member).filter(|n| n.as_i64() < Some(0)) {
            let why = "must be greater than or equal to 0";
            causes.push(Cause::invalid(format!("spec.{member}"), number, why));
        }
    }
    let labels: Vec<_> = entries(spec, "/selector/matchLabels").collect();
    match spec.get("selector") {
        None | Some(Value::Null) => causes.push(Cause::required("spec.selector", "")),
        Some(selector) if selector.as_object().is_some_and(serde_json::Map::is_empty) => {
            let why = "empty selector is invalid for deployment";
            causes.push(Cause::invalid("spec.selector", selector, why));
        }
        Some(_) => {}
    }
    let template = spec.pointer("/template/metadata/labels");
    let carried = |key: &str, value: &Value| template.and_then(|t| t.get(key)) == Some(value);
    let selects = spec
        .get("selector")
        .is_some_and(|selector| !selector.is_null());
    if !selects || !labels.iter().all(|(key, value)| carried(key, value)) {
        let value = template.cloned().unwrap_or(Value::Null);
        let why = "`selector` does not match template `labels`";
        causes.push(Cause::invalid("spec.template.metadata.labels", &value, why));
    }
    let kind = text(spec, "/strategy/type");
    let known = ["Recreate", "RollingUpdate"];
    if !known.contains(&kind) {
        let strategy = spec.get("strategy").unwrap_or(&Value::Null);
        causes.push(Cause::unsupported("spec.strategy", strategy, &known));
    }
    let mut inner = Vec::new();
    pod::validate_pod(spec.get("template").unwrap_or(&Value::Null), &mut inner);
    for mut cause in inner {
        cause.field = format!("spec.template.{}", cause.field);
        causes.push(cause);
    }
    let restart = text(spec, "/template/spec/restartPolicy");
    if restart != "Always" {
        let field = "spec.template.spec.restartPolicy";
        causes.push(Cause::unsupported(field, &json!(restart), &["Always"]));
    }
}

pub(in crate::registry) fn validate_deployment_update(
    old: &Value,
    new: &Value,
    causes: &mut Vec<Cause>,
) {
    immutable(old, new, "/spec/selector", "spec.selector", causes);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_and_the_selector() {
        let mut deployment = json!({"spec": {"selector": {"matchLabels": {"a": "b"}}, "template":
            {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}}}});
        default_deployment(&mut deployment);
        let mut causes = Vec::new();
        validate_deployment(&deployment, &mut causes);
        assert_eq!(causes, []);
        assert_eq!(
            deployment["spec"]["strategy"],
            json!({"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": "25%", "maxSurge": "25%"}})
        );
        assert!(
            deployment["spec"]["template"]["spec"]
                .get("tolerations")
                .is_none()
        );
        deployment["spec"]["selector"]["matchLabels"]["a"] = json!("c");
        deployment["spec"]["template"]["spec"]["restartPolicy"] = json!("Never");
        validate_deployment(&deployment, &mut causes);
        let fields: Vec<_> = causes.iter().map(|c| c.field.as_str()).collect();
        assert_eq!(
            fields,
            [
                "spec.template.metadata.labels",
                "spec.template.spec.restartPolicy"
            ]
        );
    }
}
