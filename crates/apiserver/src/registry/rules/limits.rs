//! LimitRange: bounds and defaults for the resources of containers, pods and claims.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value, json};

use super::{entries, items, text};
use crate::names;
use crate::quantity::Quantity;
use crate::status::{Cause, MOST_FOUND};

/// Annotation in which the real server records the defaults that it set.
const ANNOTATION: &str = "kubernetes.io/limit-ranger";
const MAPS: [&str; 5] = [
    "max",
    "min",
    "default",
    "defaultRequest",
    "maxLimitRequestRatio",
];
const CONTAINER: &[&str] = &["cpu", "memory", "ephemeral-storage"];
pub(super) const STANDARD: &[&str] = &[
    "cpu",
    "memory",
    "ephemeral-storage",
    "requests.cpu",
    "requests.memory",
    "requests.ephemeral-storage",
    "limits.cpu",
    "limits.memory",
    "limits.ephemeral-storage",
    "pods",
    "resourcequotas",
    "services",
    "replicationcontrollers",
    "secrets",
    "configmaps",
    "persistentvolumeclaims",
    "storage",
    "requests.storage",
    "services.nodeports",
    "services.loadbalancers",
];

/// Amounts by the name of their resource.
pub(in crate::registry) type Amounts = BTreeMap<String, Quantity>;

/// Returns the amounts at a pointer.
pub(in crate::registry) fn amounts(object: &Value, pointer: &str) -> Amounts {
    let amounts = entries(object, pointer);
    let amounts =
        amounts.filter_map(|(name, amount)| Some((name.clone(), amount.as_str()?.parse().ok()?)));
    amounts.collect()
}

/// Derives the missing defaults of containers from the bounds.
pub(in crate::registry) fn default_range(range: &mut Value) {
    let limits = range
        .pointer_mut("/spec/limits")
        .and_then(Value::as_array_mut);
    for limit in limits.into_iter().flatten() {
        if text(limit, "/type") != "Container" {
            continue;
        }
        for (from, to) in [
            ("max", "default"),
            ("default", "defaultRequest"),
            ("min", "defaultRequest"),
        ] {
            let known: Vec<(String, Value)> = entries(limit, &format!("/{from}"))
                .map(|(name, amount)| (name.clone(), amount.clone()))
                .collect();
            let Some(limit) = limit.as_object_mut().filter(|_| !known.is_empty()) else {
                continue;
            };
            let target = limit.entry(to).or_insert_with(|| json!({}));
            if target.is_null() {
                *target = json!({});
            }
            if let Some(target) = target.as_object_mut() {
                for (name, amount) in known {
                    target.entry(name).or_insert(amount);
                }
            }
        }
    }
}

pub(in crate::registry) fn validate_range(range: &Value, causes: &mut Vec<Cause>) {
    let mut seen = BTreeSet::new();
    for (index, limit) in items(range, "/spec/limits").iter().enumerate() {
        let path = format!("spec.limits[{index}]");
        let kind = text(limit, "/type");
        check_type(kind, &format!("{path}.type"), causes);
        if !seen.insert(kind) {
            causes.push(Cause::duplicate(format!("{path}.type"), &json!(kind)));
        }
        let mut maps: BTreeMap<&str, Amounts> = BTreeMap::new();
        for map in MAPS {
            let found = amounts(limit, &format!("/{map}"));
            if kind == "Pod" && map.starts_with("default") {
                if !found.is_empty() {
                    let why = "may not be specified when `type` is 'Pod'";
                    causes.push(Cause::forbidden(format!("{path}.{map}"), why));
                }
                continue;
            }
            for name in found.keys() {
                let is_container = matches!(kind, "Pod" | "Container");
                check_resource(name, is_container, &format!("{path}.{map}[{name}]"), causes);
            }
            maps.insert(map, found);
        }
        let storage = |map: &str| maps.get(map).is_some_and(|map| map.contains_key("storage"));
        if kind == "PersistentVolumeClaim" && !storage("min") && !storage("max") {
            let why =
                "either minimum or maximum storage value is required, but neither was provided";
            causes.push(Cause::required(format!("{path}.limits"), why));
        }
        let resources: BTreeSet<&String> = maps.values().flat_map(BTreeMap::keys).collect();
        for resource in resources {
            check_order(resource, &maps, &path, causes);
        }
    }
}

/// Checks the amounts of one resource against each other.
fn check_order(
    resource: &str,
    maps: &BTreeMap<&str, Amounts>,
    path: &str,
    causes: &mut Vec<Cause>,
) {
    let amount = |map: &str| maps.get(map).and_then(|map| map.get(resource));
    // Lower amount, its name, higher amount, its name, and the amount that is reported with its map.
    let rules = [
        ("min", "min value", "max", "max value", "min"),
        (
            "min",
            "min value",
            "defaultRequest",
            "default request value",
            "defaultRequest",
        ),
        (
            "defaultRequest",
            "default request value",
            "max",
            "max value",
            "defaultRequest",
        ),
        (
            "defaultRequest",
            "default request value",
            "default",
            "default limit value",
            "defaultRequest",
        ),
        ("min", "min value", "default", "default value", "default"),
        ("default", "default value", "max", "max value", "default"),
    ];
    for (low, low_name, high, high_name, field) in rules {
        let (Some(low_amount), Some(high_amount)) = (amount(low), amount(high)) else {
            continue;
        };
        if low_amount > high_amount {
            let why = format!("{low_name} {low_amount} is greater than {high_name} {high_amount}");
            // Upstream reports the other amount in two of the checks on the default limit.
            let shown = match (field, low) {
                ("default", "min") => low_amount,
                ("default", _) => high_amount,
                _ => amount(field).unwrap_or(low_amount),
            };
            let field = format!("{path}.{field}[{resource}]");
            causes.push(Cause::invalid(field, &json!(shown.to_string()), &why));
        }
    }
    let field = |map: &str| format!("{path}.{map}[{resource}]");
    if let Some(ratio) = amount("maxLimitRequestRatio") {
        let one = Quantity::from_bytes(1);
        if *ratio < one {
            let why = format!("ratio {ratio} is less than 1");
            let field = field("maxLimitRequestRatio");
            causes.push(Cause::invalid(field, &json!(ratio.to_string()), &why));
        }
    }
    let native = !resource.contains('/') || resource.contains("kubernetes.io/");
    let overcommits = native && !resource.starts_with("hugepages-");
    if let (false, Some(limit), Some(request)) =
        (overcommits, amount("default"), amount("defaultRequest"))
        && limit != request
    {
        let why = format!(
            "default value {limit} must equal to defaultRequest value {request} in {resource}"
        );
        let field = field("defaultRequest");
        causes.push(Cause::invalid(field, &json!(request.to_string()), &why));
    }
}

fn check_type(kind: &str, field: &str, causes: &mut Vec<Cause>) {
    let problems = names::qualified_name(kind);
    let known = ["Pod", "Container", "PersistentVolumeClaim"];
    if problems.is_empty() && !kind.contains('/') && !known.contains(&kind) {
        let why = "must be a standard limit type or fully qualified";
        causes.push(Cause::invalid(field, &json!(kind), why));
    }
    causes.extend(
        problems
            .iter()
            .map(|why| Cause::invalid(field, &json!(kind), why)),
    );
}

/// Checks the name of a resource.
fn check_resource(name: &str, is_container: bool, field: &str, causes: &mut Vec<Cause>) {
    let mut complain = |why: &str| causes.push(Cause::invalid(field, &json!(name), why));
    let problems = names::qualified_name(name);
    for why in &problems {
        complain(why);
    }
    let huge = name.starts_with("hugepages-");
    if !problems.is_empty() || name.contains('/') || huge {
        return;
    }
    if !STANDARD.contains(&name) {
        complain("must be a standard resource type or fully qualified");
    }
    if is_container && !CONTAINER.contains(&name) {
        complain("must be a standard resource for containers");
    }
}

/// Sets the missing resources of the containers of a new pod.
///
/// Stops and returns false if the defaults exceed `room` bytes. Otherwise many short containers could grow by many
/// defaults each.
#[must_use]
pub(in crate::registry) fn apply_defaults(
    range: &Value,
    pod: &mut Value,
    room: &mut usize,
) -> bool {
    let mut defaults = [Map::new(), Map::new()];
    for limit in items(range, "/spec/limits") {
        if text(limit, "/type") == "Container" {
            for (map, pointer) in defaults.iter_mut().zip(["/defaultRequest", "/default"]) {
                let amounts = entries(limit, pointer);
                map.extend(amounts.map(|(name, amount)| (name.clone(), amount.clone())));
            }
        }
    }
    let mut notes: Vec<String> = Vec::new();
    for (list, called) in [
        ("containers", "container"),
        ("initContainers", "init container"),
    ] {
        let containers = pod.pointer_mut(&format!("/spec/{list}"));
        let containers = containers.and_then(Value::as_array_mut);
        for container in containers.into_iter().flatten() {
            let name = text(container, "/name").to_owned();
            for (map, member, singular) in [
                (&defaults[0], "requests", "request"),
                (&defaults[1], "limits", "limit"),
            ] {
                let Some(set) = set_missing(container, member, map, room) else {
                    return false;
                };
                if !set.is_empty() {
                    notes.push(format!("{} {singular} for {called} {name}", set.join(", ")));
                }
            }
        }
    }
    if !notes.is_empty()
        && let Some(annotations) = super::child(pod, "metadata")
    {
        let annotations = annotations
            .entry("annotations")
            .or_insert_with(|| json!({}));
        annotations[ANNOTATION] = json!(format!("LimitRanger plugin set: {}", notes.join("; ")));
    }
    true
}

/// Sets the missing amounts, and returns their names. Returns `None` if they exceed `room` bytes.
fn set_missing(
    container: &mut Value,
    member: &str,
    defaults: &Map<String, Value>,
    room: &mut usize,
) -> Option<Vec<String>> {
    let present = container
        .get("resources")
        .and_then(|resources| resources.get(member));
    let has = |name: &String| present.is_some_and(|present| present.get(name).is_some());
    let missing: Vec<String> = defaults.keys().filter(|name| !has(name)).cloned().collect();
    // Each name has two quotes and a colon.
    let bytes: usize = missing.iter().map(|name| name.len() + 3).sum();
    *room = room.checked_sub(bytes)?;
    if !missing.is_empty()
        && let Some(resources) = super::child(container, "resources")
    {
        let amounts = resources.entry(member).or_insert_with(|| json!({}));
        for name in &missing {
            amounts[name.as_str()] = defaults[name].clone();
        }
    }
    Some(missing)
}

/// Returns the bounds that a pod violates. The check ends after many violations, because each container can violate every
/// bound.
pub(in crate::registry) fn pod_problems(range: &Value, pod: &Value) -> Vec<String> {
    let mut problems = Vec::new();
    for limit in items(range, "/spec/limits") {
        match text(limit, "/type") {
            "Container" => {
                for list in ["/spec/containers", "/spec/initContainers"] {
                    for container in items(pod, list) {
                        if problems.len() > MOST_FOUND {
                            return problems;
                        }
                        let requests = amounts(container, "/resources/requests");
                        let limits = amounts(container, "/resources/limits");
                        check_bounds(limit, &requests, &limits, &mut problems);
                    }
                }
            }
            "Pod" => {
                let [requests, limits] = ["requests", "limits"].map(|member| pod_sum(pod, member));
                check_bounds(limit, &requests, &limits, &mut problems);
            }
            _ => {}
        }
    }
    problems
}

/// Returns the bounds that a claim violates.
pub(in crate::registry) fn claim_problems(range: &Value, claim: &Value) -> Vec<String> {
    let mut problems = Vec::new();
    let requests = amounts(claim, "/spec/resources/requests");
    let per_claim = items(range, "/spec/limits").iter();
    for limit in per_claim.filter(|limit| text(limit, "/type") == "PersistentVolumeClaim") {
        for (name, least) in amounts(limit, "/min") {
            let what = format!("minimum {name} usage per PersistentVolumeClaim is {least}");
            check_least(&what, &least, requests.get(&name), None, &mut problems);
        }
        for (name, most) in amounts(limit, "/max") {
            let what = format!("maximum {name} usage per PersistentVolumeClaim is {most}");
            match requests.get(&name) {
                None => problems.push(format!("{what}.  No request is specified")),
                Some(request) if *request > most => {
                    problems.push(format!("{what}, but request is {request}"));
                }
                Some(_) => {}
            }
        }
    }
    problems
}

/// Returns the resources that a pod needs at the same time. Its own amounts replace the sums of its containers.
pub(in crate::registry) fn pod_sum(pod: &Value, member: &str) -> Amounts {
    let mut total = container_sum(pod, member);
    let own = amounts(pod, &format!("/spec/resources/{member}")).into_iter();
    total.extend(own.filter(|(name, _)| is_of_pod(name)));
    total
}

/// Returns whether `spec.resources` of a pod may contain this resource.
pub(in crate::registry) fn is_of_pod(name: &str) -> bool {
    matches!(name, "cpu" | "memory") || name.starts_with("hugepages-")
}

/// Returns the resources that the containers of a pod need at the same time.
///
/// Init containers run one after another, before the other containers. Init containers that always restart keep
/// running.
pub(in crate::registry) fn container_sum(pod: &Value, member: &str) -> Amounts {
    let pointer = format!("/resources/{member}");
    let mut total = Amounts::new();
    for container in items(pod, "/spec/containers") {
        add(&mut total, &amounts(container, &pointer));
    }
    let (mut kept, mut highest) = (Amounts::new(), Amounts::new());
    for container in items(pod, "/spec/initContainers") {
        let own = amounts(container, &pointer);
        if text(container, "/restartPolicy") == "Always" {
            add(&mut total, &own);
            add(&mut kept, &own);
            raise(&mut highest, &kept);
        } else {
            let mut now = own;
            add(&mut now, &kept);
            raise(&mut highest, &now);
        }
    }
    raise(&mut total, &highest);
    total
}

/// Adds amounts to a sum.
pub(in crate::registry) fn add(total: &mut Amounts, more: &Amounts) {
    for (name, amount) in more {
        let sum = total
            .get(name)
            .map_or_else(|| amount.clone(), |sum| sum.plus(amount));
        total.insert(name.clone(), sum);
    }
}

fn raise(highest: &mut Amounts, other: &Amounts) {
    for (name, amount) in other {
        if highest.get(name).is_none_or(|highest| highest < amount) {
            highest.insert(name.clone(), amount.clone());
        }
    }
}

fn check_bounds(limit: &Value, requests: &Amounts, limits: &Amounts, problems: &mut Vec<String>) {
    let kind = text(limit, "/type");
    for (name, least) in amounts(limit, "/min") {
        let what = format!("minimum {name} usage per {kind} is {least}");
        check_least(
            &what,
            &least,
            requests.get(&name),
            limits.get(&name),
            problems,
        );
    }
    for (name, most) in amounts(limit, "/max") {
        let what = format!("maximum {name} usage per {kind} is {most}");
        match (requests.get(&name), limits.get(&name)) {
            (_, None) => problems.push(format!("{what}.  No limit is specified")),
            (_, Some(limit)) if *limit > most => {
                problems.push(format!("{what}, but limit is {limit}"));
            }
            (Some(request), _) if *request > most => {
                problems.push(format!("{what}, but request is {request}"));
            }
            _ => {}
        }
    }
    for (name, most) in amounts(limit, "/maxLimitRequestRatio") {
        let what = format!("{name} max limit to request ratio per {kind} is {most}");
        let positive = |amounts: &Amounts| amounts.get(&name).map_or(0.0, Quantity::as_f64);
        let (request, limit) = (positive(requests), positive(limits));
        if request <= 0.0 {
            problems.push(format!(
                "{what}, but no request is specified or request is 0"
            ));
        } else if limit <= 0.0 {
            problems.push(format!("{what}, but no limit is specified or limit is 0"));
        } else if limit / request > most.as_f64() {
            problems.push(format!(
                "{what}, but provided ratio is {:.6}",
                limit / request
            ));
        }
    }
}

fn check_least(
    what: &str,
    least: &Quantity,
    request: Option<&Quantity>,
    limit: Option<&Quantity>,
    problems: &mut Vec<String>,
) {
    match (request, limit) {
        (None, _) => problems.push(format!("{what}.  No request is specified")),
        (Some(request), _) if request < least => {
            problems.push(format!("{what}, but request is {request}"));
        }
        (_, Some(limit)) if limit < least => {
            problems.push(format!("{what}, but limit is {limit}"));
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_are_derived_from_the_bounds() {
        let mut range = json!({"spec": {"limits": [{"type": "Container", "max": {"cpu": "2"},
            "min": {"memory": "1Mi"}}, {"type": "Pod", "max": {"cpu": "4"}}]}});
        default_range(&mut range);
        let limit = &range["spec"]["limits"][0];
        assert_eq!(limit["default"], json!({"cpu": "2"}));
        assert_eq!(
            limit["defaultRequest"],
            json!({"cpu": "2", "memory": "1Mi"})
        );
        assert_eq!(range["spec"]["limits"][1].get("default"), None);
        let mut causes = Vec::new();
        validate_range(&range, &mut causes);
        assert_eq!(causes, []);
    }

    #[test]
    fn bounds_must_be_ordered_and_known() {
        let fields = |limit: Value| -> Vec<String> {
            let mut causes = Vec::new();
            validate_range(&json!({"spec": {"limits": [limit]}}), &mut causes);
            causes.into_iter().map(|cause| cause.field).collect()
        };
        let limit = json!({"type": "Container", "min": {"cpu": "2"}, "max": {"cpu": "1"}});
        assert_eq!(fields(limit), ["spec.limits[0].min[cpu]"]);
        assert_eq!(fields(json!({"type": "Odd"})), ["spec.limits[0].type"]);
        let limit = json!({"type": "Container", "max": {"pods": "1"}});
        assert_eq!(fields(limit), ["spec.limits[0].max[pods]"]);
        let limit = json!({"type": "PersistentVolumeClaim"});
        assert_eq!(fields(limit), ["spec.limits[0].limits"]);
    }

    #[test]
    fn init_containers_count_one_at_a_time() {
        let container = |cpu: &str| json!({"resources": {"requests": {"cpu": cpu}}});
        let mut sidecar = container("100m");
        sidecar["restartPolicy"] = json!("Always");
        let pod = json!({"spec": {"containers": [container("1"), container("500m")],
            "initContainers": [sidecar, container("2")]}});
        assert_eq!(pod_sum(&pod, "requests")["cpu"].to_string(), "2100m");
        let pod = json!({"spec": {"containers": [container("1"), container("500m")],
            "initContainers": [container("2"), container("1")]}});
        assert_eq!(pod_sum(&pod, "requests")["cpu"].to_string(), "2");
    }

    #[test]
    fn defaults_and_violations_of_many_containers_are_bounded() {
        let all = |count: usize| -> Value {
            let names = (0..count).map(|number| (format!("a.example/r{number}"), json!("1")));
            Value::Object(names.collect())
        };
        let containers: Value = (0..50).map(|_| json!({"name": "c"})).collect();
        let mut pod = json!({"metadata": {}, "spec": {"containers": containers}});
        let limit = |map: &str| json!({"spec": {"limits": [{"type": "Container", map: all(100)}]}});
        let problems = pod_problems(&limit("max"), &pod);
        assert!(problems.len() <= MOST_FOUND + 100, "{}", problems.len());
        let mut room = 10_000;
        assert!(!apply_defaults(&limit("default"), &mut pod, &mut room));
        let mut room = 1_000_000;
        assert!(apply_defaults(&limit("default"), &mut pod, &mut room));
        let set = &pod["spec"]["containers"][49]["resources"]["limits"];
        assert_eq!(*set, all(100));
    }

    #[test]
    fn ratio_of_limit_to_request_is_bounded() {
        let range = json!({"spec": {"limits": [{"type": "Container",
            "maxLimitRequestRatio": {"cpu": "2"}}]}});
        let pod = |limit: &str| {
            json!({"spec": {"containers": [{"resources":
            {"requests": {"cpu": "1"}, "limits": {"cpu": limit}}}]}})
        };
        assert_eq!(pod_problems(&range, &pod("2")), [""; 0]);
        assert_eq!(
            pod_problems(&range, &pod("3")),
            ["cpu max limit to request ratio per Container is 2, but provided ratio is 3.000000"]
        );
    }
}
