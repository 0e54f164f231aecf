//! PodDisruptionBudget: the number of pods that must remain. A controller counts the pods.

use serde_json::{Value, json};

use super::apps::check_share;
use super::{text, volume};
use crate::status::Cause;

/// Sets the status of a new budget, for which no pods have been counted yet.
pub(in crate::registry) fn prepare_budget(budget: &mut Value) {
    budget["status"] = json!({"disruptionsAllowed": 0, "currentHealthy": 0, "desiredHealthy": 0,
        "expectedPods": 0});
}

pub(in crate::registry) fn validate_budget(budget: &Value, causes: &mut Vec<Cause>) {
    let spec = budget.get("spec").unwrap_or(&Value::Null);
    let given = |member: &str| spec.get(member).filter(|value| !value.is_null());
    if given("minAvailable").is_some() && given("maxUnavailable").is_some() {
        let why = "minAvailable and maxUnavailable cannot be both set";
        causes.push(Cause::invalid("spec", spec, why));
    }
    for member in ["minAvailable", "maxUnavailable"] {
        if let Some(value) = given(member) {
            check_share(value, &format!("spec.{member}"), causes);
        }
    }
    if let Some(selector) = given("selector") {
        volume::validate_selector(selector, "spec.selector", causes);
    }
    let policy = text(spec, "/unhealthyPodEvictionPolicy");
    let known = ["AlwaysAllow", "IfHealthyBudget"];
    if let Some(value) = given("unhealthyPodEvictionPolicy").filter(|_| !known.contains(&policy)) {
        let field = "spec.unhealthyPodEvictionPolicy";
        causes.push(Cause::unsupported(field, value, &known));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn budget_sets_minimum_or_maximum_but_not_both() {
        let fields = |spec: Value| -> Vec<String> {
            let mut causes = Vec::new();
            validate_budget(&json!({"spec": spec}), &mut causes);
            causes.into_iter().map(|cause| cause.field).collect()
        };
        assert_eq!(fields(json!({"minAvailable": "50%"})), [""; 0]);
        assert_eq!(
            fields(json!({"minAvailable": 1, "maxUnavailable": "200%"})),
            ["spec", "spec.maxUnavailable"]
        );
        assert_eq!(
            fields(json!({"unhealthyPodEvictionPolicy": "Never"})),
            ["spec.unhealthyPodEvictionPolicy"]
        );
    }
}
