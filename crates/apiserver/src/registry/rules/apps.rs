//! Workload kinds that create pods: their defaults and validation. This server creates no pods.

use serde_json::{Value, json};

use super::{at, child, immutable, items, pod, set_default, set_default_text, text, volume};
use crate::names;
use crate::status::Cause;

/// Removes the status of a new object.
pub(in crate::registry) fn clear_status(object: &mut Value) {
    object["status"] = json!({});
}

/// Sets the status of a new object to zero replicas.
pub(in crate::registry) fn prepare_replicas(object: &mut Value) {
    object["status"] = json!({"replicas": 0});
}

pub(in crate::registry) fn prepare_stateful_set(set: &mut Value) {
    set["status"] = json!({"replicas": 0, "availableReplicas": 0});
}

pub(in crate::registry) fn prepare_daemon_set(set: &mut Value) {
    set["status"] = json!({"currentNumberScheduled": 0, "numberMisscheduled": 0,
        "desiredNumberScheduled": 0, "numberReady": 0});
}

pub(in crate::registry) fn default_deployment(deployment: &mut Value) {
    let Some(spec) = child(deployment, "spec") else {
        return;
    };
    set_default(spec, "replicas", 1);
    set_default(spec, "revisionHistoryLimit", 10);
    set_default(spec, "progressDeadlineSeconds", 600);
    default_rolling(deployment, "strategy", &json!("25%"), &json!("25%"));
    default_template(deployment);
}

pub(in crate::registry) fn default_daemon_set(set: &mut Value) {
    let Some(spec) = child(set, "spec") else {
        return;
    };
    set_default(spec, "revisionHistoryLimit", 10);
    default_rolling(set, "updateStrategy", &json!(1), &json!(0));
    default_template(set);
}

pub(in crate::registry) fn default_replica_set(set: &mut Value) {
    let Some(spec) = child(set, "spec") else {
        return;
    };
    set_default(spec, "replicas", 1);
    default_template(set);
}

/// Uses the labels of the template as default for the selector and for the labels of the controller.
pub(in crate::registry) fn default_replication_controller(controller: &mut Value) {
    let labels = controller
        .pointer("/spec/template/metadata/labels")
        .filter(|labels| !labels.is_null())
        .cloned();
    let Some(spec) = child(controller, "spec") else {
        return;
    };
    set_default(spec, "replicas", 1);
    if let Some(labels) = labels {
        for parent in ["spec", "metadata"] {
            let member = if parent == "spec" {
                "selector"
            } else {
                "labels"
            };
            let Some(map) = child(controller, parent) else {
                continue;
            };
            if is_empty(map.get(member)) {
                map.insert(member.to_owned(), labels.clone());
            }
        }
    }
    default_template(controller);
}

pub(in crate::registry) fn default_stateful_set(set: &mut Value) {
    let Some(spec) = child(set, "spec") else {
        return;
    };
    set_default_text(spec, "podManagementPolicy", "OrderedReady");
    set_default(spec, "replicas", 1);
    set_default(spec, "revisionHistoryLimit", 10);
    set_default(spec, "updateStrategy", json!({}));
    set_default(spec, "persistentVolumeClaimRetentionPolicy", json!({}));
    for member in ["whenDeleted", "whenScaled"] {
        if let Some(policy) = spec["persistentVolumeClaimRetentionPolicy"].as_object_mut() {
            set_default_text(policy, member, "Retain");
        }
    }
    let strategy = &mut spec["updateStrategy"];
    if text(strategy, "/type").is_empty() {
        strategy["type"] = json!("RollingUpdate");
        child(strategy, "rollingUpdate");
    }
    if text(strategy, "/type") == "RollingUpdate"
        && let Some(rolling) = strategy.get_mut("rollingUpdate")
        && let Some(rolling) = rolling.as_object_mut()
    {
        set_default(rolling, "partition", 0);
    }
    let claims = spec.get_mut("volumeClaimTemplates");
    for claim in claims.and_then(Value::as_array_mut).into_iter().flatten() {
        claim["apiVersion"] = json!("v1");
        claim["kind"] = json!("PersistentVolumeClaim");
        volume::default_claim(claim);
    }
    default_template(set);
}

pub(in crate::registry) fn validate_deployment(deployment: &Value, causes: &mut Vec<Cause>) {
    let spec = deployment.get("spec").unwrap_or(&Value::Null);
    let counts = ["replicas", "minReadySeconds", "revisionHistoryLimit"];
    not_negative(spec, "spec", &counts, causes);
    check_selector(spec, "deployment", causes);
    check_carried(spec, causes);
    let kind = text(spec, "/strategy/type");
    let known = ["Recreate", "RollingUpdate"];
    if !known.contains(&kind) {
        let strategy = spec.get("strategy").unwrap_or(&Value::Null);
        causes.push(Cause::unsupported("spec.strategy", strategy, &known));
    }
    check_template(spec, "ReplicaSet", causes);
}

pub(in crate::registry) fn validate_replica_set(set: &Value, causes: &mut Vec<Cause>) {
    let spec = set.get("spec").unwrap_or(&Value::Null);
    not_negative(spec, "spec", &["replicas", "minReadySeconds"], causes);
    // The real server reports this check with the kind `deployment`.
    check_selector(spec, "deployment", causes);
    check_carried(spec, causes);
    check_template(spec, "ReplicaSet", causes);
}

pub(in crate::registry) fn validate_replication_controller(
    controller: &Value,
    causes: &mut Vec<Cause>,
) {
    let spec = controller.get("spec").unwrap_or(&Value::Null);
    let empty = is_empty(spec.get("selector"));
    if empty {
        causes.push(Cause::required("spec.selector", ""));
    }
    not_negative(spec, "spec", &["replicas", "minReadySeconds"], causes);
    let Some(template) = spec.get("template").filter(|template| !template.is_null()) else {
        causes.push(Cause::required("spec.template", ""));
        return;
    };
    let labels = template.pointer("/metadata/labels");
    let selector = json!({"matchLabels": spec["selector"]});
    if !empty && !selects(&selector, labels) {
        mismatch(labels, causes);
    }
    check_template(spec, "ReplicationController", causes);
}

pub(in crate::registry) fn validate_daemon_set(set: &Value, causes: &mut Vec<Cause>) {
    let spec = set.get("spec").unwrap_or(&Value::Null);
    check_carried(spec, causes);
    if let Some(selector) = spec.get("selector").filter(|selector| is_all(selector)) {
        let why = "empty selector is invalid for daemonset";
        causes.push(Cause::invalid("spec.selector", selector, why));
    }
    check_template(spec, "DaemonSet", causes);
    let counts = ["minReadySeconds", "revisionHistoryLimit"];
    not_negative(spec, "spec", &counts, causes);
    let kind = text(spec, "/updateStrategy/type");
    let known = ["RollingUpdate", "OnDelete"];
    if !known.contains(&kind) {
        let field = "spec.updateStrategy.type";
        causes.push(Cause::unsupported(field, &json!(kind), &known));
    }
    let rolling = "/updateStrategy/rollingUpdate";
    if kind == "RollingUpdate"
        && let Some(rolling) = at(spec, rolling)
    {
        let path = "spec.updateStrategy.rollingUpdate";
        let (down, surge) = (&rolling["maxUnavailable"], &rolling["maxSurge"]);
        for (value, member) in [(down, "maxUnavailable"), (surge, "maxSurge")] {
            check_share(value, &format!("{path}.{member}"), causes);
        }
        match (share(down) != 0, share(surge) != 0) {
            (true, true) => {
                let why = "may not be set when maxUnavailable is non-zero";
                causes.push(Cause::invalid(format!("{path}.maxSurge"), surge, why));
            }
            (false, false) => {
                let why = "cannot be 0 when maxSurge is 0";
                causes.push(Cause::required(format!("{path}.maxUnavailable"), why));
            }
            _ => {}
        }
    }
}

pub(in crate::registry) fn validate_stateful_set(set: &Value, causes: &mut Vec<Cause>) {
    let spec = set.get("spec").unwrap_or(&Value::Null);
    let either = |causes: &mut Vec<Cause>, field: &str, pointer: &str, known: [&str; 2]| {
        let value = spec.pointer(pointer).unwrap_or(&Value::Null);
        let name = value.as_str().unwrap_or_else(|| text(value, "/type"));
        if !known.contains(&name) {
            let why = format!("must be '{}' or '{}'", known[0], known[1]);
            causes.push(Cause::invalid(format!("spec.{field}"), value, &why));
        }
    };
    let orders = ["OrderedReady", "Parallel"];
    either(
        causes,
        "podManagementPolicy",
        "/podManagementPolicy",
        orders,
    );
    let ways = ["RollingUpdate", "OnDelete"];
    either(causes, "updateStrategy", "/updateStrategy", ways);
    let field = "spec.updateStrategy.rollingUpdate";
    if let Some(rolling) = at(spec, "/updateStrategy/rollingUpdate").filter(|r| !r.is_null()) {
        match text(spec, "/updateStrategy/type") {
            "OnDelete" => {
                let why = "only allowed for updateStrategy 'RollingUpdate'";
                causes.push(Cause::invalid(field, rolling, why));
            }
            _ => not_negative(rolling, field, &["partition"], causes),
        }
    }
    for member in ["whenDeleted", "whenScaled"] {
        let policy = text(
            spec,
            &format!("/persistentVolumeClaimRetentionPolicy/{member}"),
        );
        let known = ["Retain", "Delete"];
        if !known.contains(&policy) {
            let field = format!("spec.persistentVolumeClaimRetentionPolicy.{member}");
            causes.push(Cause::unsupported(field, &json!(policy), &known));
        }
    }
    for (index, claim) in items(spec, "/volumeClaimTemplates").iter().enumerate() {
        let mut inner = Vec::new();
        volume::validate_claim(claim, &mut inner);
        moved(
            inner,
            &format!("spec.volumeClaimTemplates[{index}]"),
            causes,
        );
    }
    not_negative(spec, "spec", &["replicas", "minReadySeconds"], causes);
    if let Some(ordinals) = spec.get("ordinals") {
        not_negative(ordinals, "spec.ordinals", &["start"], causes);
    }
    check_selector(spec, "statefulset", causes);
    check_carried(spec, causes);
    check_template(spec, "StatefulSet", causes);
}

/// Checks the name of the service, which an update cannot change.
pub(in crate::registry) fn validate_new_stateful_set(set: &Value, causes: &mut Vec<Cause>) {
    let service = text(set, "/spec/serviceName");
    if !service.is_empty() {
        for why in names::dns1123_label(service) {
            causes.push(Cause::invalid("spec.serviceName", &json!(service), &why));
        }
    }
}

/// Rejects changes of the selector.
pub(in crate::registry) fn validate_selector_update(
    old: &Value,
    new: &Value,
    causes: &mut Vec<Cause>,
) {
    immutable(old, new, "/spec/selector", "spec.selector", causes);
}

pub(in crate::registry) fn validate_stateful_set_update(
    old: &Value,
    new: &Value,
    causes: &mut Vec<Cause>,
) {
    const LOOSE: [&str; 7] = [
        "replicas",
        "ordinals",
        "template",
        "updateStrategy",
        "revisionHistoryLimit",
        "persistentVolumeClaimRetentionPolicy",
        "minReadySeconds",
    ];
    let frozen = |set: &Value| {
        let mut spec = set["spec"].as_object().cloned().unwrap_or_default();
        spec.retain(|member, _| !LOOSE.contains(&member.as_str()));
        spec
    };
    if frozen(old) != frozen(new) {
        let why = "updates to statefulset spec for fields other than 'replicas', 'ordinals', \
                   'template', 'updateStrategy', 'revisionHistoryLimit', \
                   'persistentVolumeClaimRetentionPolicy' and 'minReadySeconds' are forbidden";
        causes.push(Cause::forbidden("spec", why));
    }
}

/// Reports negative numbers.
pub(super) fn not_negative(spec: &Value, path: &str, members: &[&str], causes: &mut Vec<Cause>) {
    for member in members {
        if let Some(number) = spec
            .get(member)
            .filter(|n| n.as_i64() < Some(0) && n.is_i64())
        {
            let why = "must be greater than or equal to 0";
            causes.push(Cause::invalid(format!("{path}.{member}"), number, why));
        }
    }
}

/// Reports values that are neither a number of pods nor a percentage.
pub(super) fn check_share(value: &Value, field: &str, causes: &mut Vec<Cause>) {
    let percent = value.as_str().map(|text| {
        let digits = text.strip_suffix('%').unwrap_or_default();
        let all = !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit());
        all.then(|| digits.parse::<u64>().unwrap_or(u64::MAX))
    });
    match percent {
        Some(None) => {
            let why = "a valid percent string must be a numeric string followed by an ending '%' \
                       (e.g. '1%',  or '93%', regex used for validation is '[0-9]+%')";
            causes.push(Cause::invalid(field, value, why));
        }
        Some(Some(percent)) if percent > 100 => {
            let why = "must not be greater than 100%";
            causes.push(Cause::invalid(field, value, why));
        }
        None if value.as_i64() < Some(0) && value.is_i64() => {
            let why = "must be greater than or equal to 0";
            causes.push(Cause::invalid(field, value, why));
        }
        _ => {}
    }
}

/// Validates the pod template, with field paths relative to the whole object.
pub(super) fn check_pods(spec: &Value, causes: &mut Vec<Cause>) {
    let mut inner = Vec::new();
    pod::validate_pod(spec.get("template").unwrap_or(&Value::Null), &mut inner);
    moved(inner, "spec.template", causes);
}

/// Checks that the labels of the template match the selector.
pub(super) fn check_carried(spec: &Value, causes: &mut Vec<Cause>) {
    let labels = spec.pointer("/template/metadata/labels");
    let selector = spec.get("selector").filter(|selector| !selector.is_null());
    // An absent selector matches nothing, unlike an empty one.
    if !selector.is_some_and(|selector| selects(selector, labels)) {
        mismatch(labels, causes);
    }
}

fn default_rolling(object: &mut Value, member: &str, down: &Value, surge: &Value) {
    let strategy = &mut object["spec"][member];
    if !strategy.is_object() {
        *strategy = json!({});
    }
    if text(strategy, "/type").is_empty() {
        strategy["type"] = json!("RollingUpdate");
    }
    if text(strategy, "/type") == "RollingUpdate"
        && let Some(rolling) = child(strategy, "rollingUpdate")
    {
        set_default(rolling, "maxUnavailable", down.clone());
        set_default(rolling, "maxSurge", surge.clone());
    }
}

fn default_template(object: &mut Value) {
    if let Some(template) = object.pointer_mut("/spec/template")
        && !template.is_null()
    {
        pod::default_template(template);
    }
}

fn check_selector(spec: &Value, kind: &str, causes: &mut Vec<Cause>) {
    match spec.get("selector") {
        None | Some(Value::Null) => causes.push(Cause::required("spec.selector", "")),
        Some(selector) if is_all(selector) => {
            let why = format!("empty selector is invalid for {kind}");
            causes.push(Cause::invalid("spec.selector", selector, &why));
        }
        Some(selector) => volume::validate_selector(selector, "spec.selector", causes),
    }
}

/// Checks the template of kinds whose pods run until they are stopped.
fn check_template(spec: &Value, kind: &str, causes: &mut Vec<Cause>) {
    check_pods(spec, causes);
    let restart = text(spec, "/template/spec/restartPolicy");
    if restart != "Always" {
        let field = "spec.template.spec.restartPolicy";
        causes.push(Cause::unsupported(field, &json!(restart), &["Always"]));
    }
    let deadline = at(spec, "/template/spec/activeDeadlineSeconds");
    if deadline.is_some_and(|deadline| !deadline.is_null()) {
        let field = "spec.template.spec.activeDeadlineSeconds";
        let why = format!("activeDeadlineSeconds in {kind} is not Supported");
        causes.push(Cause::forbidden(field, &why));
    }
}

fn mismatch(labels: Option<&Value>, causes: &mut Vec<Cause>) {
    let why = "`selector` does not match template `labels`";
    let labels = labels.unwrap_or(&Value::Null);
    causes.push(Cause::invalid("spec.template.metadata.labels", labels, why));
}

/// Whether a label selector matches these labels.
pub(in crate::registry) fn selects(selector: &Value, labels: Option<&Value>) -> bool {
    let label = |key: &str| labels.and_then(|labels| labels.get(key));
    let equal =
        super::entries(selector, "/matchLabels").all(|(key, value)| label(key) == Some(value));
    let holds = |expression: &Value| {
        let value = label(text(expression, "/key"));
        let listed = value.is_some_and(|value| items(expression, "/values").contains(value));
        match text(expression, "/operator") {
            "In" => listed,
            "NotIn" => !listed,
            "Exists" => value.is_some(),
            _ => value.is_none(),
        }
    };
    equal && items(selector, "/matchExpressions").iter().all(holds)
}

/// Whether a selector is empty, which matches everything.
fn is_all(selector: &Value) -> bool {
    selector.is_object()
        && is_empty(selector.get("matchLabels"))
        && items(selector, "/matchExpressions").is_empty()
}

fn is_empty(map: Option<&Value>) -> bool {
    map.and_then(Value::as_object)
        .is_none_or(serde_json::Map::is_empty)
}

/// Returns the number in a percentage such as `25%`, or the number of pods itself.
fn share(value: &Value) -> i64 {
    let text = value.as_str().and_then(|text| text.strip_suffix('%'));
    text.and_then(|digits| digits.parse().ok())
        .or(value.as_i64())
        .unwrap_or(0)
}

pub(super) fn moved(inner: Vec<Cause>, below: &str, causes: &mut Vec<Cause>) {
    causes.extend(inner.into_iter().map(|cause| Cause {
        field: format!("{below}.{}", cause.field),
        ..cause
    }));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn workload() -> Value {
        json!({"metadata": {}, "spec": {"selector": {"matchLabels": {"a": "b"}}, "template":
            {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}}}})
    }

    type Kind = (fn(&mut Value), fn(&Value, &mut Vec<Cause>));

    const KINDS: [Kind; 4] = [
        (default_deployment, validate_deployment),
        (default_replica_set, validate_replica_set),
        (default_daemon_set, validate_daemon_set),
        (default_stateful_set, validate_stateful_set),
    ];

    fn fields(validate: fn(&Value, &mut Vec<Cause>), object: &Value) -> Vec<String> {
        let mut causes = Vec::new();
        validate(object, &mut causes);
        causes.into_iter().map(|cause| cause.field).collect()
    }

    #[test]
    fn defaults_are_valid_and_idempotent() {
        for (default, validate) in KINDS {
            let mut once = workload();
            default(&mut once);
            assert_eq!(fields(validate, &once), [""; 0]);
            assert!(
                once["spec"]["template"]["spec"]
                    .get("tolerations")
                    .is_none()
            );
            let mut twice = once.clone();
            default(&mut twice);
            assert_eq!(once, twice);
        }
    }

    #[test]
    fn selectors_match_their_templates() {
        for (default, validate) in KINDS {
            let mut object = workload();
            object["spec"]["selector"]["matchLabels"]["a"] = json!("c");
            object["spec"]["template"]["spec"]["restartPolicy"] = json!("Never");
            default(&mut object);
            assert_eq!(
                fields(validate, &object),
                [
                    "spec.template.metadata.labels",
                    "spec.template.spec.restartPolicy"
                ]
            );
        }
        let expression = json!({"matchExpressions": [{"key": "a", "operator": "In", "values": ["b"]},
            {"key": "x", "operator": "DoesNotExist"}]});
        assert!(selects(&expression, Some(&json!({"a": "b"}))));
        assert!(!selects(&expression, Some(&json!({"a": "b", "x": ""}))));
        assert!(!selects(&expression, None));
    }

    #[test]
    fn replication_controller_selector_defaults_to_template_labels() {
        let mut controller = workload();
        controller["spec"]
            .as_object_mut()
            .unwrap()
            .remove("selector");
        default_replication_controller(&mut controller);
        assert_eq!(controller["spec"]["selector"], json!({"a": "b"}));
        assert_eq!(controller["metadata"]["labels"], json!({"a": "b"}));
        assert_eq!(
            fields(validate_replication_controller, &controller),
            [""; 0]
        );
        controller["spec"]["selector"] = json!({"a": "c"});
        assert_eq!(
            fields(validate_replication_controller, &controller),
            ["spec.template.metadata.labels"]
        );
        let bare = json!({"spec": {}});
        assert_eq!(
            fields(validate_replication_controller, &bare),
            ["spec.selector", "spec.template"]
        );
    }

    #[test]
    fn stateful_set_rejects_changes_of_immutable_fields() {
        let old = workload();
        let mut new = old.clone();
        new["spec"]["replicas"] = json!(3);
        let mut causes = Vec::new();
        validate_stateful_set_update(&old, &new, &mut causes);
        assert_eq!(causes, []);
        new["spec"]["serviceName"] = json!("other");
        validate_stateful_set_update(&old, &new, &mut causes);
        assert_eq!(causes[0].field, "spec");
    }

    #[test]
    fn surge_and_unavailable_are_numbers_or_percentages() {
        let bad = |value: Value| {
            let mut causes = Vec::new();
            check_share(&value, "f", &mut causes);
            !causes.is_empty()
        };
        assert!(!bad(json!(0)) && !bad(json!("100%")) && !bad(Value::Null));
        assert!(bad(json!(-1)) && bad(json!("101%")) && bad(json!("%")) && bad(json!("5")));
    }
}
