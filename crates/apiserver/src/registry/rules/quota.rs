//! ResourceQuota: its validation, and the amounts that one object uses.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use super::limits::{Amounts, STANDARD, add, amounts, is_of_pod, pod_sum};
use super::{at, entries, items, text, volume};
use crate::names;
use crate::quantity::Quantity;
use crate::status::{Cause, qualified};

/// Resources whose containers must state an amount if a quota limits it.
const REQUIRED: &[&str] = &[
    "cpu",
    "limits.cpu",
    "limits.memory",
    "memory",
    "requests.cpu",
    "requests.memory",
];
const COMPUTE: &[&str] = &["cpu", "ephemeral-storage", "memory"];
/// Core kinds that a quota also counts under their plural name.
const COUNTED: &[&str] = &[
    "configmaps",
    "persistentvolumeclaims",
    "replicationcontrollers",
    "resourcequotas",
    "secrets",
    "services",
];
const POD_SCOPES: &[&str] = &[
    "BestEffort",
    "CrossNamespacePodAffinity",
    "NotBestEffort",
    "NotTerminating",
    "PriorityClass",
    "Terminating",
];

/// Returns one requirement per scope of a quota: the scope, an operator and values.
fn scopes(quota: &Value) -> Vec<(&str, &str, &[Value])> {
    let plain = items(quota, "/spec/scopes").iter();
    let plain = plain.map(|scope| (scope.as_str().unwrap_or_default(), "Exists", [].as_slice()));
    let selected = items(quota, "/spec/scopeSelector/matchExpressions").iter();
    let selected = selected.map(|one| {
        (
            text(one, "/scopeName"),
            text(one, "/operator"),
            items(one, "/values"),
        )
    });
    plain.chain(selected).collect()
}

pub(in crate::registry) fn validate_quota(quota: &Value, causes: &mut Vec<Cause>) {
    let hard = at(quota, "/spec/hard").and_then(Value::as_object);
    for (name, amount) in hard.into_iter().flatten() {
        let field = format!("spec.hard[{name}]");
        check_resource(name, &field, causes);
        let parsed: Option<Quantity> = amount.as_str().and_then(|text| text.parse().ok());
        if parsed.as_ref().is_some_and(|amount| amount.signum() < 0) {
            let why = "must be greater than or equal to 0";
            causes.push(Cause::invalid(&*field, amount, why));
        }
        let is_count =
            COUNTED.contains(&name.as_str()) || name == "pods" || name.starts_with("services.");
        if is_count && parsed.is_some_and(|amount| !amount.is_whole()) {
            causes.push(Cause::invalid(field, amount, "must be an integer"));
        }
    }
    let listed = items(quota, "/spec/scopes");
    let names: BTreeSet<&str> = listed.iter().filter_map(Value::as_str).collect();
    let field = "spec.scopes";
    for scope in listed {
        if !is_scope(scope.as_str().unwrap_or_default()) {
            causes.push(Cause::invalid(field, &json!(listed), "unsupported scope"));
        }
    }
    for pair in [
        ["BestEffort", "NotBestEffort"],
        ["Terminating", "NotTerminating"],
    ] {
        if pair.iter().all(|scope| names.contains(scope)) {
            causes.push(Cause::invalid(field, &json!(listed), "conflicting scopes"));
        }
    }
    let selected = items(quota, "/spec/scopeSelector/matchExpressions");
    for (index, one) in selected.iter().enumerate() {
        let path = format!("spec.scopeSelector.matchExpressions[{index}]");
        let scope = text(one, "/scopeName");
        if !is_scope(scope) {
            let field = format!("{path}.scopeName");
            causes.push(Cause::invalid(field, &json!(scope), "unsupported scope"));
        }
        let (operator, values) = (text(one, "/operator"), items(one, "/values"));
        match operator {
            "In" | "NotIn" if values.is_empty() => {
                let why = "must be at least one value when `operator` is 'In' or 'NotIn' for scope \
                           selector";
                causes.push(Cause::required(format!("{path}.values"), why));
            }
            "Exists" | "DoesNotExist" if !values.is_empty() => {
                let why = "must be no value when `operator` is 'Exists' or 'DoesNotExist' for scope \
                           selector";
                causes.push(Cause::invalid(
                    format!("{path}.values"),
                    &json!(values),
                    why,
                ));
            }
            "In" | "NotIn" | "Exists" | "DoesNotExist" => {}
            _ => {
                let field = format!("{path}.operator");
                causes.push(Cause::invalid(
                    field,
                    &json!(operator),
                    "not a valid selector operator",
                ));
            }
        }
    }
}

/// Rejects a change of the scopes.
pub(in crate::registry) fn validate_quota_update(
    old: &Value,
    new: &Value,
    causes: &mut Vec<Cause>,
) {
    let set = |quota: &Value| -> BTreeSet<String> {
        let scopes = items(quota, "/spec/scopes").iter();
        scopes
            .filter_map(|scope| Some(scope.as_str()?.to_owned()))
            .collect()
    };
    if set(old) != set(new) {
        let scopes = json!(items(new, "/spec/scopes"));
        causes.push(Cause::invalid("spec.scopes", &scopes, "field is immutable"));
    }
}

fn is_scope(name: &str) -> bool {
    POD_SCOPES.contains(&name) || name == "VolumeAttributesClass"
}

fn check_resource(name: &str, field: &str, causes: &mut Vec<Cause>) {
    let problems = names::qualified_name(name);
    let known = STANDARD.contains(&name) && name != "storage";
    let huge = ["hugepages-", "requests.hugepages-"]
        .iter()
        .any(|prefix| name.starts_with(prefix));
    if problems.is_empty() && !name.contains('/') && !huge {
        if !STANDARD.contains(&name) {
            let why = "must be a standard resource type or fully qualified";
            causes.push(Cause::invalid(field, &json!(name), why));
        }
        if !known {
            let why = "must be a standard resource for quota";
            causes.push(Cause::invalid(field, &json!(name), why));
        }
    }
    causes.extend(
        problems
            .iter()
            .map(|why| Cause::invalid(field, &json!(name), why)),
    );
}

/// Whether the scopes of a quota select an object. A quota with scopes selects only pods and claims.
pub(in crate::registry) fn selects(quota: &Value, plural: &str, object: &Value) -> bool {
    scopes(quota)
        .into_iter()
        .all(|(scope, operator, values)| match scope {
            "VolumeAttributesClass" => {
                let class = text(object, "/spec/volumeAttributesClassName");
                plural == "persistentvolumeclaims" && holds(class, operator, values)
            }
            _ if plural != "pods" => false,
            "Terminating" => is_terminating(object),
            "NotTerminating" => !is_terminating(object),
            "BestEffort" => is_best_effort(object),
            "NotBestEffort" => !is_best_effort(object),
            "PriorityClass" => holds(text(object, "/spec/priorityClassName"), operator, values),
            "CrossNamespacePodAffinity" => spans_namespaces(object),
            _ => false,
        })
}

fn holds(name: &str, operator: &str, values: &[Value]) -> bool {
    match operator {
        "In" => values.iter().any(|value| value == name),
        "NotIn" => values.iter().all(|value| value != name),
        "DoesNotExist" => name.is_empty(),
        _ => !name.is_empty(),
    }
}

fn is_terminating(pod: &Value) -> bool {
    let deadline = at(pod, "/spec/activeDeadlineSeconds").and_then(Value::as_i64);
    deadline.is_some_and(|deadline| deadline >= 0)
}

fn is_best_effort(pod: &Value) -> bool {
    ["requests", "limits"].iter().all(|member| {
        let sum = pod_sum(pod, member);
        ["cpu", "memory"]
            .iter()
            .all(|name| sum.get(*name).is_none_or(|sum| sum.signum() == 0))
    })
}

fn spans_namespaces(pod: &Value) -> bool {
    let terms = ["podAffinity", "podAntiAffinity"]
        .into_iter()
        .flat_map(|kind| {
            let path = format!("/spec/affinity/{kind}");
            let required = items(
                pod,
                &format!("{path}/requiredDuringSchedulingIgnoredDuringExecution"),
            );
            let preferred = items(
                pod,
                &format!("{path}/preferredDuringSchedulingIgnoredDuringExecution"),
            );
            let preferred = preferred
                .iter()
                .filter_map(|one| one.get("podAffinityTerm"));
            required.iter().chain(preferred)
        });
    let mut terms = terms;
    terms.any(|term| {
        let selector = term.get("namespaceSelector");
        !items(term, "/namespaces").is_empty()
            || selector.is_some_and(|selector| !selector.is_null())
    })
}

/// Whether a quota with these hard amounts may count objects of a kind.
pub(in crate::registry) fn concerns((group, plural): (&str, &str), hard: &Amounts) -> bool {
    let measured = matches!(plural, "pods" | "persistentvolumeclaims" | "services");
    hard.keys().any(|name| match name.strip_prefix("count/") {
        Some(resource) => resource == qualified(plural, group),
        None => group.is_empty() && (measured || name == plural),
    })
}

/// Returns the amounts that an object of a kind uses.
pub(in crate::registry) fn usage((group, plural): (&str, &str), object: &Value) -> Amounts {
    let one = Quantity::from_bytes(1);
    let mut used = Amounts::from([(format!("count/{}", qualified(plural, group)), one.clone())]);
    if !group.is_empty() {
        return used;
    }
    if COUNTED.contains(&plural) {
        used.insert(plural.to_owned(), one);
    }
    match plural {
        "pods" => add(&mut used, &pod_usage(object)),
        "persistentvolumeclaims" => add(&mut used, &claim_usage(object)),
        "services" => {
            let count =
                |number: usize| Quantity::from_bytes(i64::try_from(number).unwrap_or(i64::MAX));
            let ports = items(object, "/spec/ports");
            let chosen = |port: &&Value| port.get("nodePort").and_then(Value::as_i64) > Some(0);
            let kind = text(object, "/spec/type");
            let allocates =
                object.pointer("/spec/allocateLoadBalancerNodePorts") != Some(&json!(false));
            let balancers = usize::from(kind == "LoadBalancer");
            let ports = match kind {
                "NodePort" => ports.len(),
                "LoadBalancer" if allocates => ports.len(),
                "LoadBalancer" => ports.iter().filter(chosen).count(),
                _ => 0,
            };
            used.insert("services.loadbalancers".into(), count(balancers));
            used.insert("services.nodeports".into(), count(ports));
        }
        _ => {}
    }
    used
}

/// Returns the amounts of a pod that has not ended.
fn pod_usage(pod: &Value) -> Amounts {
    if matches!(text(pod, "/status/phase"), "Succeeded" | "Failed") {
        return Amounts::new();
    }
    let overhead = amounts(pod, "/spec/overhead");
    let mut used = Amounts::from([("pods".to_owned(), Quantity::from_bytes(1))]);
    let [mut requests, mut limits] = ["requests", "limits"].map(|member| pod_sum(pod, member));
    add(&mut requests, &overhead);
    if !limits.is_empty() {
        let known = overhead
            .into_iter()
            .filter(|(name, _)| limits.contains_key(name));
        let known: Amounts = known.collect();
        add(&mut limits, &known);
    }
    name_usage(&requests, &limits, &mut used);
    used
}

/// Adds requests and limits under the names that quotas use.
fn name_usage(requests: &Amounts, limits: &Amounts, used: &mut Amounts) {
    for (name, amount) in requests {
        if COMPUTE.contains(&name.as_str()) || name.starts_with("hugepages-") {
            used.insert(name.clone(), amount.clone());
        } else if !name.contains('/') {
            continue;
        }
        used.insert(format!("requests.{name}"), amount.clone());
    }
    let limits = limits
        .iter()
        .filter(|(name, _)| COMPUTE.contains(&name.as_str()));
    used.extend(limits.map(|(name, amount)| (format!("limits.{name}"), amount.clone())));
}

fn claim_usage(claim: &Value) -> Amounts {
    let mut used = Amounts::new();
    let requests = amounts(claim, "/spec/resources/requests");
    let class = volume::class_of(claim);
    let class = (!class.is_empty()).then(|| format!("{class}.storageclass.storage.k8s.io"));
    if let Some(class) = &class {
        used.insert(
            format!("{class}/persistentvolumeclaims"),
            Quantity::from_bytes(1),
        );
    }
    if let Some(requested) = requests.get("storage") {
        // A failed expansion can leave more allocated than the claim requests now.
        let allocated = amounts(claim, "/status/allocatedResources");
        let storage = allocated.get("storage").unwrap_or(requested).max(requested);
        used.insert("requests.storage".into(), storage.clone());
        if let Some(class) = &class {
            used.insert(format!("{class}/requests.storage"), storage.clone());
        }
    }
    used
}

/// Returns the amounts that a quota requires and the containers of a new pod omit. The containers may omit them if the
/// `spec.resources` of the pod states an amount.
pub(in crate::registry) fn missing(hard: &Amounts, pod: &Value) -> Option<String> {
    let own = ["/spec/resources/requests", "/spec/resources/limits"];
    let mut own = own.into_iter().flat_map(|amounts| entries(pod, amounts));
    if own.any(|(name, _)| is_of_pod(name)) {
        return None;
    }
    let mut missing: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for container in ["/spec/containers", "/spec/initContainers"]
        .into_iter()
        .flat_map(|l| items(pod, l))
    {
        let mut stated = Amounts::new();
        let requests = amounts(container, "/resources/requests");
        name_usage(
            &requests,
            &amounts(container, "/resources/limits"),
            &mut stated,
        );
        for name in REQUIRED {
            if hard.contains_key(*name) && !stated.contains_key(*name) {
                missing
                    .entry(name)
                    .or_default()
                    .insert(text(container, "/name"));
            }
        }
    }
    let list = missing.iter().map(|(name, containers)| {
        let containers: Vec<&str> = containers.iter().copied().collect();
        format!("{name} for: {}", containers.join(","))
    });
    let list: Vec<String> = list.collect();
    (!list.is_empty()).then(|| format!("must specify {}", list.join("; ")))
}

/// Returns amounts as text.
pub(in crate::registry) fn shown(amounts: &Amounts) -> String {
    let texts = amounts
        .iter()
        .map(|(name, amount)| format!("{name}={amount}"));
    texts.collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(cpu: &str, extra: &Value) -> Value {
        let mut pod = json!({"spec": {"containers": [{"name": "c", "resources":
            {"requests": {"cpu": cpu}, "limits": {"cpu": "2"}}}]}});
        for (member, value) in extra.as_object().expect("members") {
            pod["spec"][member] = value.clone();
        }
        pod
    }

    #[test]
    fn pod_uses_its_sums_until_it_has_ended() {
        let mut pod = pod("500m", &json!({"overhead": {"cpu": "100m"}}));
        let used = usage(("", "pods"), &pod);
        assert_eq!(
            shown(&used),
            "count/pods=1,cpu=600m,limits.cpu=2100m,pods=1,requests.cpu=600m"
        );
        pod["status"]["phase"] = json!("Succeeded");
        assert_eq!(shown(&usage(("", "pods"), &pod)), "count/pods=1");
    }

    #[test]
    fn kinds_are_counted_by_name_and_group() {
        let leases = usage(("coordination.k8s.io", "leases"), &json!({}));
        assert_eq!(shown(&leases), "count/leases.coordination.k8s.io=1");
        let service = json!({"spec": {"type": "NodePort", "ports": [{}, {}]}});
        assert_eq!(
            shown(&usage(("", "services"), &service)),
            "count/services=1,services=1,services.loadbalancers=0,services.nodeports=2"
        );
        let service = json!({"spec": {"type": "LoadBalancer",
            "allocateLoadBalancerNodePorts": false, "ports": [{"nodePort": 30000}, {}]}});
        let used = usage(("", "services"), &service);
        assert_eq!(used["services.nodeports"].to_string(), "1");
        let mut claim = json!({"spec": {"storageClassName": "fast",
            "resources": {"requests": {"storage": "1Gi"}}}});
        let used = |class: &str, claim: &Value| {
            let used = usage(("", "persistentvolumeclaims"), claim);
            let name = format!("{class}.storageclass.storage.k8s.io/requests.storage");
            used.get(&name).map(ToString::to_string)
        };
        assert_eq!(used("fast", &claim).as_deref(), Some("1Gi"));
        claim["status"] = json!({"allocatedResources": {"storage": "2Gi"}});
        assert_eq!(used("fast", &claim).as_deref(), Some("2Gi"));
        claim["status"] = json!({"allocatedResources": {"storage": "1"}});
        claim["metadata"] = json!({"annotations": {(volume::BETA_CLASS): "old"}});
        assert_eq!(used("old", &claim).as_deref(), Some("1Gi"));
        assert_eq!(used("fast", &claim), None);
    }

    #[test]
    fn scopes_select_pods() {
        let quota = |scope: &str| json!({"spec": {"scopes": [scope]}});
        let (plain, timed) = (
            pod("1", &json!({})),
            pod("1", &json!({"activeDeadlineSeconds": 5})),
        );
        assert!(selects(&quota("Terminating"), "pods", &timed));
        assert!(!selects(&quota("Terminating"), "pods", &plain));
        assert!(selects(&quota("NotBestEffort"), "pods", &plain));
        assert!(!selects(&quota("NotBestEffort"), "configmaps", &json!({})));
        let quota = json!({"spec": {"scopeSelector": {"matchExpressions": [
            {"scopeName": "PriorityClass", "operator": "In", "values": ["high"]}]}}});
        assert!(!selects(&quota, "pods", &plain));
        assert!(selects(
            &quota,
            "pods",
            &pod("1", &json!({"priorityClassName": "high"}))
        ));
    }

    #[test]
    fn containers_must_state_limited_resources() {
        let hard = amounts(&json!({"h": {"requests.memory": "1Gi", "pods": "1"}}), "/h");
        let why = missing(&hard, &pod("1", &json!({})));
        assert_eq!(why.as_deref(), Some("must specify requests.memory for: c"));
        let hard = amounts(&json!({"h": {"cpu": "1"}}), "/h");
        assert_eq!(missing(&hard, &pod("1", &json!({}))), None);
    }

    #[test]
    fn empty_resources_of_a_pod_do_not_replace_those_of_its_containers() {
        let hard = amounts(&json!({"h": {"requests.cpu": "1"}}), "/h");
        let missing = |own: Value| {
            let pod = json!({"spec": {"resources": own, "containers": [{"name": "c"}]}});
            missing(&hard, &pod)
        };
        for own in [
            json!(null),
            json!({}),
            json!({"limits": {"a.example/b": "1"}}),
        ] {
            let why = missing(own);
            assert_eq!(why.as_deref(), Some("must specify requests.cpu for: c"));
        }
        assert_eq!(missing(json!({"limits": {"cpu": "1"}})), None);
    }

    #[test]
    fn hard_amounts_have_known_names_and_are_not_negative() {
        let fields = |quota: Value| -> Vec<String> {
            let mut causes = Vec::new();
            validate_quota(&quota, &mut causes);
            causes.into_iter().map(|cause| cause.field).collect()
        };
        let hard = |name: &str, amount: &str| fields(json!({"spec": {"hard": {name: amount}}}));
        for name in [
            "cpu",
            "count/leases.coordination.k8s.io",
            "requests.example.com/gpu",
        ] {
            assert_eq!(hard(name, "1"), [""; 0], "{name}");
        }
        assert_eq!(hard("pods", "500m"), ["spec.hard[pods]"]);
        assert_eq!(hard("pods", "-1"), ["spec.hard[pods]"]);
        assert_eq!(hard("storage", "1"), ["spec.hard[storage]"]);
        assert_eq!(hard("odd", "1").len(), 2);
        let both = json!({"spec": {"scopes": ["BestEffort", "NotBestEffort"]}});
        assert_eq!(fields(both), ["spec.scopes"]);
    }
}
