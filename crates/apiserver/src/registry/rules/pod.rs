//! Pods: the defaults and checks that clients notice. This server runs no containers.

use std::collections::HashSet;

use serde_json::{Map, Value, json};

use super::super::Field;
use super::{
    child, defaults, entries, handler, items, limits, set_default, set_default_text, text,
};
use crate::names;
use crate::status::Cause;

pub(super) const DEFAULT_GRACE_SECONDS: i64 = 30;

pub(in crate::registry) const FIELDS: &[Field] = &[
    Field::new("spec.nodeName", &["/spec/nodeName"]),
    Field::new("spec.restartPolicy", &["/spec/restartPolicy"]),
    Field::new("spec.schedulerName", &["/spec/schedulerName"]),
    Field::new("spec.serviceAccountName", &["/spec/serviceAccountName"]),
    Field::flag("spec.hostNetwork", &["/spec/hostNetwork"]),
    Field::new("status.phase", &["/status/phase"]),
    Field::new("status.podIP", &["/status/podIP"]),
    Field::new("status.podIPs", &["/status/podIPs/0/ip"]),
    Field::new("status.nominatedNodeName", &["/status/nominatedNodeName"]),
];

pub(in crate::registry) fn default_pod(pod: &mut Value) {
    default_intended(pod);
    let Some(spec) = child(pod, "spec") else {
        return;
    };
    set_default(spec, "tolerations", json!([]));
    for key in [
        "node.kubernetes.io/not-ready",
        "node.kubernetes.io/unreachable",
    ] {
        tolerate(spec, key);
    }
}

/// Applies the defaults that a client implies by omitting a field.
pub(in crate::registry) fn default_intended(pod: &mut Value) {
    default_template(pod);
    let Some(spec) = child(pod, "spec") else {
        return;
    };
    set_default(spec, "enableServiceLinks", true);
    let host_network = spec.get("hostNetwork") == Some(&json!(true));
    for container in containers(spec, &["containers", "initContainers"]) {
        request_limits(container);
        if host_network {
            expose_ports(container);
        }
    }
    request_own_limits(pod);
    if let Some(status) = child(pod, "status") {
        set_default_text(status, "phase", "Pending");
        let ip = status
            .get("podIP")
            .and_then(Value::as_str)
            .unwrap_or_default();
        if !ip.is_empty() {
            let ips = json!([{"ip": ip}]);
            set_default(status, "podIPs", ips);
        }
    }
}

/// Applies the defaults that pods and pod templates share.
pub(super) fn default_template(template: &mut Value) {
    let Some(spec) = child(template, "spec") else {
        return;
    };
    // Both names denote the same field; the deprecated name gets the value of the current one.
    let account = ["serviceAccountName", "serviceAccount"]
        .iter()
        .find_map(|key| spec.get(*key)?.as_str().filter(|name| !name.is_empty()))
        .map(str::to_owned);
    if let Some(account) = account {
        spec.insert("serviceAccountName".into(), json!(account));
        spec.insert("serviceAccount".into(), json!(account));
    }
    defaults::fill(&defaults::POD_SPEC, spec);
}

pub(in crate::registry) fn prepare_pod(pod: &mut Value) {
    default_pod(pod);
    let class = qos_class(pod);
    if let Some(map) = pod.as_object_mut() {
        map.insert(
            "status".into(),
            json!({"phase": "Pending", "qosClass": class}),
        );
    }
}

pub(in crate::registry) fn validate_pod(pod: &Value, causes: &mut Vec<Cause>) {
    let containers = items(pod, "/spec/containers");
    if containers.is_empty() {
        causes.push(Cause::required("spec.containers", ""));
    }
    let grace = pod.pointer("/spec/terminationGracePeriodSeconds");
    let grace = grace.and_then(Value::as_i64);
    let mut seen: HashSet<&str> = HashSet::new();
    for (list, name) in [
        (items(pod, "/spec/initContainers"), "initContainers"),
        (containers, "containers"),
    ] {
        for (index, container) in list.iter().enumerate() {
            let at = format!("spec.{name}[{index}]");
            let own = text(container, "/name");
            if own.is_empty() {
                causes.push(Cause::required(format!("{at}.name"), ""));
            } else {
                for why in names::dns1123_label(own) {
                    causes.push(Cause::invalid(format!("{at}.name"), &json!(own), &why));
                }
                if !seen.insert(own) {
                    causes.push(Cause::duplicate(format!("{at}.name"), &json!(own)));
                }
            }
            if text(container, "/image").is_empty() {
                causes.push(Cause::required(format!("{at}.image"), ""));
            }
            match name {
                "initContainers" => handler::validate_init(container, grace, &at, causes),
                _ => handler::validate(container, grace, &at, causes),
            }
        }
    }
    let policy = text(pod, "/spec/restartPolicy");
    let known = ["Always", "OnFailure", "Never"];
    if !known.contains(&policy) {
        causes.push(Cause::unsupported(
            "spec.restartPolicy",
            &json!(policy),
            &known,
        ));
    }
}

/// Rejects negative amounts, requests above their limits, and a pod that requests less than its containers: quotas would
/// count too little. Rejects the token of an account in a pod without an account.
pub(in crate::registry) fn validate_new_pod(pod: &Value, causes: &mut Vec<Cause>) {
    check_tokens(pod, causes);
    for list in ["initContainers", "containers"] {
        let containers = items(pod, &format!("/spec/{list}"));
        for (index, container) in containers.iter().enumerate() {
            let resources = container.get("resources");
            check_amounts(
                resources,
                &format!("spec.{list}[{index}].resources"),
                causes,
            );
        }
    }
    let path = "spec.resources";
    check_amounts(pod.pointer("/spec/resources"), path, causes);
    let sum = limits::container_sum(pod, "requests");
    for (name, own) in limits::amounts(pod, "/spec/resources/requests") {
        if let Some(sum) = sum.get(&name).filter(|sum| **sum > own) {
            let why =
                format!("must be greater than or equal to aggregate container requests of {sum}");
            let field = format!("{path}.requests[{name}]");
            causes.push(Cause::invalid(field, &json!(own.to_string()), &why));
        }
    }
}

fn check_tokens(pod: &Value, causes: &mut Vec<Cause>) {
    if !text(pod, "/spec/serviceAccountName").is_empty() {
        return;
    }
    for (volume, sources) in items(pod, "/spec/volumes").iter().enumerate() {
        for (source, content) in items(sources, "/projected/sources").iter().enumerate() {
            if content.get("serviceAccountToken").is_some() {
                let field = format!(
                    "spec.volumes[{volume}].projected.sources[{source}].serviceAccountToken"
                );
                let why = "must not be specified when serviceAccountName is not set";
                causes.push(Cause::forbidden(field, why));
            }
        }
    }
}

/// Rejects negative limits and requests, and requests that do not fit to their limits.
fn check_amounts(resources: Option<&Value>, path: &str, causes: &mut Vec<Cause>) {
    let resources = resources.unwrap_or(&Value::Null);
    for member in ["limits", "requests"] {
        for (name, amount) in limits::amounts(resources, &format!("/{member}")) {
            if amount.signum() < 0 {
                let why = "must be greater than or equal to 0";
                let field = format!("{path}.{member}[{name}]");
                causes.push(Cause::invalid(field, &json!(amount.to_string()), why));
            }
        }
    }
    let limits = limits::amounts(resources, "/limits");
    for (name, amount) in limits::amounts(resources, "/requests") {
        let Some(limit) = limits.get(&name) else {
            continue;
        };
        // Huge pages and devices are not shared.
        let relation = if name.starts_with("hugepages-") || name.contains('/') {
            (amount != *limit).then_some("equal to")
        } else {
            (amount > *limit).then_some("less than or equal to")
        };
        if let Some(relation) = relation {
            let why = format!("must be {relation} {name} limit of {limit}");
            let field = format!("{path}.requests");
            causes.push(Cause::invalid(field, &json!(amount.to_string()), &why));
        }
    }
}

/// Rejects changes after creation, except of images, deadlines and additional tolerations. A binding sets the node
/// without this check.
pub(in crate::registry) fn validate_pod_update(old: &Value, new: &Value, causes: &mut Vec<Cause>) {
    validate_new_pod(new, causes);
    for list in ["containers", "initContainers"] {
        let at = format!("/spec/{list}");
        let count = |pod: &Value| {
            pod.pointer(&at)
                .and_then(Value::as_array)
                .map_or(0, Vec::len)
        };
        if count(old) != count(new) {
            let why = "pod updates may not add or remove containers";
            causes.push(Cause::forbidden(format!("spec.{list}"), why));
            return;
        }
    }
    if !check_deadline(old, new, causes) {
        return;
    }
    let (mut was, is) = (frozen(old), frozen(new));
    let grace = "terminationGracePeriodSeconds";
    if was[grace].as_i64().is_some_and(|grace| grace < 0) && is[grace] == 1 {
        was[grace] = json!(1);
    }
    if was != is {
        let why = "pod updates may not change fields other than \
                   `spec.containers[*].image`,`spec.initContainers[*].image`,\
                   `spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to existing \
                   tolerations),`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if \
                   it was previously negative)";
        causes.push(Cause::forbidden("spec", why));
    }
}

/// Rejects a removed or later deadline: a quota with a scope such as `NotTerminating` limits a pod when it is created.
/// Returns false if the deadline is out of range, after which the real server checks nothing else.
fn check_deadline(old: &Value, new: &Value, causes: &mut Vec<Cause>) -> bool {
    let [was, is] = [old, new].map(|pod| pod.pointer("/spec/activeDeadlineSeconds"));
    let (was, is) = (was.and_then(Value::as_i64), is.and_then(Value::as_i64));
    let highest = i64::from(i32::MAX);
    let is_in_range = is.is_none_or(|is| (0..=highest).contains(&is));
    let why = match (was, is) {
        _ if !is_in_range => format!("must be between 0 and {highest}, inclusive"),
        (Some(was), Some(is)) if is > was => {
            "must be less than or equal to previous value".to_owned()
        }
        (Some(_), None) => "must not update from a positive integer to nil value".to_owned(),
        _ => return true,
    };
    causes.push(Cause::invalid(
        "spec.activeDeadlineSeconds",
        &json!(is),
        &why,
    ));
    is_in_range
}

/// Returns the grace period of a pod: the requested one, otherwise that of its spec. Pods that are not assigned to a
/// node have none.
pub(crate) fn grace_seconds(pod: &Value, asked: Option<i64>) -> i64 {
    let over = matches!(text(pod, "/status/phase"), "Succeeded" | "Failed");
    if over || text(pod, "/spec/nodeName").is_empty() {
        return 0;
    }
    let own = pod
        .pointer("/spec/terminationGracePeriodSeconds")
        .and_then(Value::as_i64);
    let seconds = asked.or(own).unwrap_or(DEFAULT_GRACE_SECONDS);
    if seconds < 0 { 1 } else { seconds }
}

/// Returns the containers of these lists.
fn containers<'a>(
    spec: &'a mut Map<String, Value>,
    lists: &'static [&'static str],
) -> impl Iterator<Item = &'a mut Map<String, Value>> {
    let lists = spec
        .iter_mut()
        .filter(|(name, _)| lists.contains(&name.as_str()));
    let lists = lists.filter_map(|(_, list)| list.as_array_mut());
    lists.flatten().filter_map(Value::as_object_mut)
}

/// Adds a request for each resource that has a limit and no request.
fn request_limits(container: &mut Map<String, Value>) {
    let resources = container
        .get_mut("resources")
        .and_then(Value::as_object_mut);
    if let Some(resources) = resources
        && let Some(limits) = resources.get("limits").and_then(Value::as_object).cloned()
    {
        set_default(resources, "requests", json!({}));
        if let Some(requests) = resources.get_mut("requests").and_then(Value::as_object_mut) {
            for (name, limit) in limits {
                requests.entry(name).or_insert(limit);
            }
        }
    }
}

/// Adds requests to a pod whose `spec.resources` has limits: the sums of its containers, or these limits if no container
/// requests the resource.
fn request_own_limits(pod: &mut Value) {
    let mut own = entries(pod, "/spec/resources/limits").peekable();
    if own.peek().is_none() {
        return;
    }
    let is_shared = |name: &str| matches!(name, "cpu" | "memory");
    let own = own.filter(|(name, _)| limits::is_of_pod(name));
    let own = own.map(|(name, limit)| (name.clone(), limit.clone()));
    let sums = limits::container_sum(pod, "requests").into_iter();
    let sums = sums.filter(|(name, _)| is_shared(name));
    let sums = sums.map(|(name, sum)| (name, json!(sum.to_string())));
    let wanted: Vec<(String, Value)> = sums.chain(own).collect();
    let resources = child(pod, "spec").and_then(|spec| spec.get_mut("resources")?.as_object_mut());
    if let Some(resources) = resources.filter(|_| !wanted.is_empty()) {
        set_default(resources, "requests", json!({}));
        if let Some(requests) = resources.get_mut("requests").and_then(Value::as_object_mut) {
            for (name, amount) in wanted {
                requests.entry(name).or_insert(amount);
            }
        }
    }
}

/// Copies the ports of a container in the network of its host to the ports of the host.
fn expose_ports(container: &mut Map<String, Value>) {
    let ports = container.get_mut("ports").and_then(Value::as_array_mut);
    for port in ports.into_iter().flatten().filter_map(Value::as_object_mut) {
        if let Some(number) = port.get("containerPort").cloned() {
            set_default(port, "hostPort", number);
        }
    }
}

/// Adds the default toleration: a pod stays five minutes on a failing node, unless it sets its own.
fn tolerate(spec: &mut Map<String, Value>, key: &str) {
    if let Some(list) = spec.get_mut("tolerations").and_then(Value::as_array_mut)
        && !list.iter().any(|toleration| toleration["key"] == key)
    {
        list.push(
            json!({"key": key, "operator": "Exists", "effect": "NoExecute",
            "tolerationSeconds": 300}),
        );
    }
}

fn qos_class(pod: &Value) -> &'static str {
    let all = ["/spec/containers", "/spec/initContainers"]
        .map(|list| items(pod, list))
        .concat();
    let set = |container: &Value, kind: &str| {
        let map = container
            .pointer(&format!("/resources/{kind}"))
            .and_then(Value::as_object);
        map.is_some_and(|map| map.contains_key("cpu") || map.contains_key("memory"))
    };
    let equal = |container: &Value| {
        let limits = container.pointer("/resources/limits");
        let requests = container
            .pointer("/resources/requests")
            .unwrap_or(&Value::Null);
        ["cpu", "memory"].iter().all(|name| {
            let limit = limits.and_then(|limits| limits.get(name));
            limit.is_some()
                && requests
                    .get(name)
                    .is_none_or(|request| Some(request) == limit)
        })
    };
    if !all.iter().any(|c| set(c, "limits") || set(c, "requests")) {
        "BestEffort"
    } else if all.iter().all(equal) {
        "Guaranteed"
    } else {
        "Burstable"
    }
}

/// Returns the spec without the parts that an update may change.
fn frozen(pod: &Value) -> Value {
    let mut spec = pod.get("spec").cloned().unwrap_or_default();
    if let Some(map) = spec.as_object_mut() {
        let loose = [
            "activeDeadlineSeconds",
            "ephemeralContainers",
            "schedulingGates",
            "tolerations",
        ];
        for key in loose {
            map.remove(key);
        }
        for container in containers(map, &["containers", "initContainers"]) {
            container.remove("image");
        }
    }
    spec
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod() -> Value {
        let mut pod = json!({"spec": {"containers": [{"name": "c", "image": "i:1"}]}});
        default_pod(&mut pod);
        pod
    }

    #[test]
    fn pod_with_limits_requests_the_sum_of_its_containers_or_these_limits() {
        let container = json!({"name": "c", "resources": {"requests": {"cpu": "100m"}}});
        let mut pod = json!({"spec": {"containers": [container, container],
            "resources": {"limits": {"cpu": "1", "memory": "1Gi"}}}});
        default_pod(&mut pod);
        let requests = json!({"cpu": "200m", "memory": "1Gi"});
        assert_eq!(pod["spec"]["resources"]["requests"], requests);
    }

    #[test]
    fn amounts_of_a_pod_are_not_negative_and_cover_its_containers() {
        let fields = |own: Value, container: Value| -> Vec<String> {
            let pod = json!({"spec": {"resources": own, "containers": [{"resources": container}]}});
            let mut causes = Vec::new();
            validate_new_pod(&pod, &mut causes);
            causes.into_iter().map(|cause| cause.field).collect()
        };
        let cpu = |amount: &str| json!({"requests": {"cpu": amount}});
        assert_eq!(fields(json!(null), cpu("0")), [""; 0]);
        assert_eq!(fields(cpu("1"), cpu("1000m")), [""; 0]);
        let container = "spec.containers[0].resources";
        assert_eq!(
            fields(json!({}), cpu("-1")),
            [format!("{container}.requests[cpu]")]
        );
        assert_eq!(
            fields(json!(null), json!({"limits": {"a.example/b": "-1m"}})),
            [format!("{container}.limits[a.example/b]")]
        );
        assert_eq!(
            fields(cpu("500m"), cpu("1")),
            ["spec.resources.requests[cpu]"]
        );
        let limited =
            |name: &str, request: &str| json!({"requests": {name: request}, "limits": {name: "2"}});
        assert_eq!(fields(json!(null), limited("cpu", "1500m")), [""; 0]);
        for (name, request) in [("cpu", "2001m"), ("a.example/b", "1"), ("a.example/b", "3")] {
            let container = [format!("{container}.requests")];
            assert_eq!(fields(json!(null), limited(name, request)), container);
        }
    }

    #[test]
    fn token_in_a_pod_without_an_account_is_rejected() {
        let mut pod = json!({"spec": {"volumes": [{"name": "a"}, {"name": "b", "projected":
            {"sources": [{"configMap": {}}, {"serviceAccountToken": {"path": "token"}}]}}]}});
        let fields = |pod: &Value| -> Vec<String> {
            let mut causes = Vec::new();
            validate_new_pod(pod, &mut causes);
            causes.into_iter().map(|cause| cause.field).collect()
        };
        let field = "spec.volumes[1].projected.sources[1].serviceAccountToken";
        assert_eq!(fields(&pod), [field]);
        pod["spec"]["serviceAccountName"] = json!("web");
        assert_eq!(fields(&pod), [""; 0]);
    }

    #[test]
    fn negative_grace_period_is_kept_and_means_one_second() {
        let mut negative = pod();
        negative["spec"]["terminationGracePeriodSeconds"] = json!(-5);
        negative["spec"]["nodeName"] = json!("n");
        default_pod(&mut negative);
        assert_eq!(negative["spec"]["terminationGracePeriodSeconds"], -5);
        let mut causes = Vec::new();
        validate_pod(&negative, &mut causes);
        assert_eq!(causes, []);
        assert_eq!(grace_seconds(&negative, None), 1);
    }

    #[test]
    fn an_update_keeps_the_number_of_containers() {
        let mut fewer = pod();
        fewer["spec"]["containers"] = json!([]);
        let mut causes = Vec::new();
        validate_pod_update(&pod(), &fewer, &mut causes);
        let fields: Vec<_> = causes.iter().map(|cause| cause.field.as_str()).collect();
        assert_eq!(fields, ["spec.containers"]);
    }

    #[test]
    fn defaults_are_idempotent_and_valid() {
        let once = pod();
        let mut twice = once.clone();
        default_pod(&mut twice);
        assert_eq!(once, twice);
        assert_eq!(
            once["spec"]["containers"][0]["imagePullPolicy"],
            "IfNotPresent"
        );
        let mut causes = Vec::new();
        validate_pod(&once, &mut causes);
        assert_eq!(causes, []);
    }

    #[test]
    fn pod_update_changes_images_and_rejects_other_fields() {
        let old = pod();
        let mut new = old.clone();
        new["spec"]["containers"][0]["image"] = json!("i:2");
        let mut causes = Vec::new();
        validate_pod_update(&old, &new, &mut causes);
        assert_eq!(causes, []);
        for (field, value) in [
            ("dnsPolicy", json!("Default")),
            ("nodeName", json!("n")),
            ("terminationGracePeriodSeconds", json!(1)),
        ] {
            let mut new = old.clone();
            new["spec"][field] = value;
            let mut causes = Vec::new();
            validate_pod_update(&old, &new, &mut causes);
            assert_eq!(causes.len(), 1, "{field}");
            assert_eq!(causes[0].field, "spec", "{field}");
        }
    }

    #[test]
    fn deadline_of_a_pod_can_only_become_earlier() {
        let with = |member: &str, value: Value| {
            let mut pod = pod();
            pod["spec"][member] = value;
            pod
        };
        let fields = |old: &Value, new: &Value| -> Vec<String> {
            let mut causes = Vec::new();
            validate_pod_update(old, new, &mut causes);
            causes.into_iter().map(|cause| cause.field).collect()
        };
        let deadline = |seconds: i64| with("activeDeadlineSeconds", json!(seconds));
        for (old, new) in [(pod(), deadline(5)), (deadline(5), deadline(4))] {
            assert_eq!(fields(&old, &new), [""; 0]);
        }
        for (old, new) in [
            (deadline(5), deadline(6)),
            (deadline(5), pod()),
            (pod(), deadline(-1)),
        ] {
            assert_eq!(fields(&old, &new), ["spec.activeDeadlineSeconds"]);
        }
        let grace = |seconds: i64| with("terminationGracePeriodSeconds", json!(seconds));
        assert_eq!(fields(&grace(-5), &grace(1)), [""; 0]);
        assert_eq!(fields(&grace(-5), &grace(2)), ["spec"]);
    }

    #[test]
    fn unscheduled_and_finished_pods_are_deleted_immediately() {
        let mut pod = pod();
        assert_eq!(grace_seconds(&pod, Some(5)), 0);
        pod["spec"]["nodeName"] = json!("n");
        assert_eq!(grace_seconds(&pod, None), 30);
        assert_eq!(grace_seconds(&pod, Some(5)), 5);
        pod["status"]["phase"] = json!("Failed");
        assert_eq!(grace_seconds(&pod, None), 0);
    }

    #[test]
    fn quality_of_service_class_follows_requests_and_limits() {
        let with = |resources: Value| json!({"spec": {"containers": [{"resources": resources}]}});
        assert_eq!(qos_class(&with(json!({}))), "BestEffort");
        assert_eq!(
            qos_class(&with(json!({"requests": {"cpu": "1"}}))),
            "Burstable"
        );
        let full = json!({"limits": {"cpu": "1", "memory": "1Gi"}});
        assert_eq!(qos_class(&with(full)), "Guaranteed");
    }
}
