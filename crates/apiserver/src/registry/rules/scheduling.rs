//! PriorityClass and RuntimeClass.

use std::collections::HashSet;

use serde_json::{Value, json};

use super::{entries, immutable, items, limits, set_default_text, text};
use crate::names;
use crate::status::Cause;

/// The classes that every cluster has: name, value and description.
pub(in crate::registry) const SYSTEM_CLASSES: [(&str, i64, &str); 2] = [
    (
        "system-cluster-critical",
        2_000_000_000,
        "Used for system critical pods that must run in the cluster, but can be moved to another \
         node if necessary.",
    ),
    (
        "system-node-critical",
        2_000_001_000,
        "Used for system critical pods that must not be moved from their current node.",
    ),
];
/// Highest value of the classes of users.
const HIGHEST: i64 = 1_000_000_000;
const PREFIX: &str = "system-";

pub(in crate::registry) fn default_priority_class(class: &mut Value) {
    if let Some(class) = class.as_object_mut() {
        set_default_text(class, "preemptionPolicy", "PreemptLowerPriority");
    }
}

pub(in crate::registry) fn validate_priority_class(class: &Value, causes: &mut Vec<Cause>) {
    let name = text(class, "/metadata/name");
    let value = class["value"].as_i64().unwrap_or(0);
    let is_default = class["globalDefault"] == true;
    if name.starts_with(PREFIX) {
        let known = SYSTEM_CLASSES.iter().find(|(known, ..)| *known == name);
        let why = match known {
            None => Some(format!("{name} is not a known system priority class")),
            Some((_, wanted, _)) if *wanted != value => {
                Some(format!("value of {name} PriorityClass must be {wanted}"))
            }
            Some(_) if is_default => Some(format!(
                "globalDefault of {name} PriorityClass must be false"
            )),
            Some(_) => None,
        };
        if let Some(why) = why {
            let why = format!(
                "priority class names with '{PREFIX}' prefix are reserved for system use only. \
                 error: {why}"
            );
            causes.push(Cause::forbidden("metadata.name", &why));
        }
    } else if value > HIGHEST {
        let why = format!("maximum allowed value of a user defined priority is {HIGHEST}");
        causes.push(Cause::forbidden("value", &why));
    }
    let policy = text(class, "/preemptionPolicy");
    let known = ["Never", "PreemptLowerPriority"];
    if !known.contains(&policy) {
        causes.push(Cause::unsupported(
            "preemptionPolicy",
            &json!(policy),
            &known,
        ));
    }
}

/// Rejects changes of the value and of the policy.
pub(in crate::registry) fn validate_priority_class_update(
    old: &Value,
    new: &Value,
    causes: &mut Vec<Cause>,
) {
    if old["value"] != new["value"] {
        causes.push(Cause::forbidden(
            "value",
            "may not be changed in an update.",
        ));
    }
    immutable(old, new, "/preemptionPolicy", "preemptionPolicy", causes);
}

pub(in crate::registry) fn validate_runtime_class(class: &Value, causes: &mut Vec<Cause>) {
    let handler = text(class, "/handler");
    if handler.is_empty() {
        causes.push(Cause::required("handler", ""));
    } else {
        let problems = names::dns1123_label(handler).into_iter();
        causes.extend(problems.map(|why| Cause::invalid("handler", &json!(handler), &why)));
    }
    for (name, amount) in limits::amounts(class, "/overhead/podFixed") {
        if amount.signum() < 0 {
            // The real server checks the overhead as limits, and names the field accordingly.
            let field = format!("overhead.limits[{name}]");
            let why = "must be greater than or equal to 0";
            causes.push(Cause::invalid(field, &json!(amount.to_string()), why));
        }
    }
    for (key, value) in entries(class, "/scheduling/nodeSelector") {
        let field = "scheduling.nodeSelector";
        let problems = names::qualified_name(key).into_iter();
        causes.extend(problems.map(|why| Cause::invalid(field, &json!(key), &why)));
        let problems = names::label_value(value.as_str().unwrap_or_default()).into_iter();
        causes.extend(problems.map(|why| Cause::invalid(field, value, &why)));
    }
    let mut seen = HashSet::new();
    let tolerations = items(class, "/scheduling/tolerations");
    for (index, toleration) in tolerations.iter().enumerate() {
        let path = format!("scheduling.tolerations[{index}]");
        check_toleration(toleration, &path, causes);
        let identity = ["/key", "/operator", "/value", "/effect"].map(|m| text(toleration, m));
        if !seen.insert(identity) {
            causes.push(Cause::duplicate(path, toleration));
        }
    }
}

/// Rejects a change of the handler.
pub(in crate::registry) fn validate_runtime_class_update(
    old: &Value,
    new: &Value,
    causes: &mut Vec<Cause>,
) {
    immutable(old, new, "/handler", "handler", causes);
}

fn check_toleration(toleration: &Value, path: &str, causes: &mut Vec<Cause>) {
    let [key, operator, value, effect] =
        ["/key", "/operator", "/value", "/effect"].map(|member| text(toleration, member));
    let mut invalid = |member: &str, value: &str, why: &str| {
        causes.push(Cause::invalid(
            format!("{path}.{member}"),
            &json!(value),
            why,
        ));
    };
    if key.is_empty() {
        if operator != "Exists" {
            let why = "operator must be Exists when `key` is empty, which means \"match all values \
                       and all keys\"";
            invalid("operator", operator, why);
        }
    } else {
        for why in names::qualified_name(key) {
            invalid("key", key, &why);
        }
    }
    let timed = toleration
        .get("tolerationSeconds")
        .is_some_and(|seconds| !seconds.is_null());
    if timed && effect != "NoExecute" {
        let why = "effect must be 'NoExecute' when `tolerationSeconds` is set";
        invalid("effect", effect, why);
    }
    match operator {
        "" | "Equal" => {
            let problems = names::label_value(value);
            if !problems.is_empty() {
                invalid("operator", value, &problems.join(";"));
            }
        }
        "Exists" => {
            if !value.is_empty() {
                let why = "value must be empty when `operator` is 'Exists'";
                invalid("operator", value, why);
            }
        }
        _ => {
            let (field, known) = (format!("{path}.operator"), ["Equal", "Exists"]);
            causes.push(Cause::unsupported(field, &json!(operator), &known));
        }
    }
    let known = ["NoExecute", "NoSchedule", "PreferNoSchedule"];
    if !effect.is_empty() && !known.contains(&effect) {
        causes.push(Cause::unsupported(
            format!("{path}.effect"),
            &json!(effect),
            &known,
        ));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fields(check: fn(&Value, &mut Vec<Cause>), object: &Value) -> Vec<String> {
        let mut causes = Vec::new();
        check(object, &mut causes);
        causes.into_iter().map(|cause| cause.field).collect()
    }

    #[test]
    fn system_names_and_values_are_reserved() {
        let class = |name: &str, value: i64| {
            let mut class = json!({"metadata": {"name": name}, "value": value});
            default_priority_class(&mut class);
            fields(validate_priority_class, &class)
        };
        for (name, value, _) in SYSTEM_CLASSES {
            assert_eq!(class(name, value), [""; 0]);
            assert_eq!(class(name, value - 1), ["metadata.name"]);
        }
        assert_eq!(class("system-other", 1), ["metadata.name"]);
        assert_eq!(class("mine", HIGHEST), [""; 0]);
        assert_eq!(class("mine", HIGHEST + 1), ["value"]);
    }

    #[test]
    fn overhead_of_a_runtime_class_is_not_negative() {
        let class = |cpu: &str| {
            let class = json!({"handler": "h", "overhead": {"podFixed": {"cpu": cpu}}});
            fields(validate_runtime_class, &class)
        };
        assert_eq!(class("10m"), [""; 0]);
        assert_eq!(class("-10m"), ["overhead.limits[cpu]"]);
    }

    #[test]
    fn tolerations_of_a_runtime_class_are_checked() {
        let class = |toleration: Value| {
            let class = json!({"handler": "h", "scheduling": {"tolerations": [toleration]}});
            fields(validate_runtime_class, &class)
        };
        assert_eq!(class(json!({"key": "a", "operator": "Exists"})), [""; 0]);
        let path = "scheduling.tolerations[0]";
        assert_eq!(class(json!({})), [format!("{path}.operator")]);
        let timed = json!({"key": "a", "operator": "Exists", "tolerationSeconds": 1});
        assert_eq!(class(timed), [format!("{path}.effect")]);
        let twice = json!({"key": "a"});
        let class = json!({"handler": "h", "scheduling": {"tolerations": [twice, twice]}});
        assert_eq!(
            fields(validate_runtime_class, &class),
            ["scheduling.tolerations[1]"]
        );
    }
}
