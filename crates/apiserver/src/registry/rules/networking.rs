//! The group `networking.k8s.io`: ingresses, their classes, and network policies.

use serde_json::{Value, json};

use super::address::{check_cidr, check_ip};
use super::{at, child, immutable_text, items, set_default, set_default_text, text, volume};
use crate::names;
use crate::status::Cause;

/// Maximum length of the name of a controller.
const CONTROLLER: usize = 250;
/// Annotation that named the class of an ingress before the field existed.
pub(in crate::registry) const CLASS_ANNOTATION: &str = "kubernetes.io/ingress.class";
const PATH_TYPES: &[&str] = &["Exact", "ImplementationSpecific", "Prefix"];
const PORT_RANGE: &str = "must be between 1 and 65535, inclusive";

/// Defaults the scope of the parameters.
pub(in crate::registry) fn default_class(class: &mut Value) {
    let parameters = class.pointer_mut("/spec/parameters");
    if let Some(parameters) = parameters.and_then(Value::as_object_mut) {
        set_default(parameters, "scope", "Cluster");
    }
}

pub(in crate::registry) fn validate_class(class: &Value, causes: &mut Vec<Cause>) {
    let controller = text(class, "/spec/controller");
    if controller.len() > CONTROLLER {
        causes.push(Cause::too_long("spec.controller", CONTROLLER));
    }
    check_domain_path(controller, "spec.controller", causes);
    let Some(parameters) = given(class, "/spec/parameters") else {
        return;
    };
    let path = "spec.parameters";
    check_reference(parameters, path, causes);
    let scope = text(parameters, "/scope");
    let field = format!("{path}.namespace");
    match (scope, given(parameters, "/namespace")) {
        ("Cluster", Some(_)) => {
            let why = "`parameters.scope` is set to 'Cluster'";
            causes.push(Cause::forbidden(field, why));
        }
        ("Namespace", None) => {
            let why = "`parameters.scope` is set to 'Namespace'";
            causes.push(Cause::required(field, why));
        }
        ("Namespace", Some(namespace)) => {
            let name = namespace.as_str().unwrap_or_default();
            invalid(names::dns1123_label(name), &field, name, causes);
        }
        ("Cluster", None) => {}
        _ => {
            let known = ["Cluster", "Namespace"];
            let field = format!("{path}.scope");
            causes.push(Cause::unsupported(field, &json!(scope), &known));
        }
    }
}

/// Rejects a change of the controller.
pub(in crate::registry) fn validate_class_update(
    old: &Value,
    new: &Value,
    causes: &mut Vec<Cause>,
) {
    immutable_text(old, new, "/spec/controller", "spec.controller", causes);
}

/// Removes the status of a new ingress.
pub(in crate::registry) fn prepare_ingress(ingress: &mut Value) {
    ingress["status"] = json!({"loadBalancer": {}});
}

pub(in crate::registry) fn validate_ingress(ingress: &Value, causes: &mut Vec<Cause>) {
    let rules = items(ingress, "/spec/rules");
    let backend = given(ingress, "/spec/defaultBackend");
    if rules.is_empty() && backend.is_none() {
        let why = "either `defaultBackend` or `rules` must be specified";
        causes.push(Cause::invalid("spec", &json!([]), why));
    }
    if let Some(backend) = backend {
        check_backend(backend, "spec.defaultBackend", causes);
    }
    for (index, rule) in rules.iter().enumerate() {
        check_rule(rule, &format!("spec.rules[{index}]"), causes);
    }
    for (index, tls) in items(ingress, "/spec/tls").iter().enumerate() {
        let path = format!("spec.tls[{index}]");
        for (place, host) in items(tls, "/hosts").iter().enumerate() {
            let host = host.as_str().unwrap_or_default();
            invalid(
                host_problems(host),
                &format!("{path}.hosts[{place}]"),
                host,
                causes,
            );
        }
        let secret = text(tls, "/secretName");
        if !secret.is_empty() {
            let field = format!("{path}.secretName");
            invalid(names::dns1123_subdomain(secret), &field, secret, causes);
        }
    }
    if let Some(class) = given(ingress, "/spec/ingressClassName") {
        let class = class.as_str().unwrap_or_default();
        let problems = names::dns1123_subdomain(class);
        invalid(problems, "spec.ingressClassName", class, causes);
    }
}

/// Validates a new ingress: the annotation and the field must name the same class.
pub(in crate::registry) fn validate_new_ingress(ingress: &Value, causes: &mut Vec<Cause>) {
    let annotations = at(ingress, "/metadata/annotations");
    let annotation = annotations.and_then(|annotations| annotations.get(CLASS_ANNOTATION));
    let class = given(ingress, "/spec/ingressClassName");
    if let (Some(annotation), Some(class)) = (annotation, class)
        && annotation != class
    {
        let field = format!("annotations.{CLASS_ANNOTATION}");
        let why = "must match `ingressClassName` when both are specified";
        causes.push(Cause::invalid(field, annotation, why));
    }
}

pub(in crate::registry) fn validate_ingress_status(ingress: &Value, causes: &mut Vec<Cause>) {
    let points = items(ingress, "/status/loadBalancer/ingress");
    for (index, point) in points.iter().enumerate() {
        let path = format!("status.loadBalancer.ingress[{index}]");
        let (ip, host) = (text(point, "/ip"), text(point, "/hostname"));
        if !ip.is_empty() {
            check_ip(ip, &format!("{path}.ip"), causes);
        }
        if !host.is_empty() {
            let field = format!("{path}.hostname");
            invalid(names::dns1123_subdomain(host), &field, host, causes);
            check_not_ip(host, &field, causes);
        }
    }
}

fn check_rule(rule: &Value, path: &str, causes: &mut Vec<Cause>) {
    let host = text(rule, "/host");
    if !host.is_empty() {
        let field = format!("{path}.host");
        check_not_ip(host, &field, causes);
        invalid(host_problems(host), &field, host, causes);
    }
    let Some(http) = given(rule, "/http") else {
        return;
    };
    let paths = items(http, "/paths");
    if paths.is_empty() {
        causes.push(Cause::required(format!("{path}.http.paths"), ""));
    }
    for (index, one) in paths.iter().enumerate() {
        check_path(one, &format!("{path}.http.paths[{index}]"), causes);
    }
}

fn check_path(rule: &Value, path: &str, causes: &mut Vec<Cause>) {
    let Some(kind) = given(rule, "/pathType") else {
        let why = "pathType must be specified";
        causes.push(Cause::required(format!("{path}.pathType"), why));
        return;
    };
    let (value, field) = (text(rule, "/path"), format!("{path}.path"));
    let mut complain = |why: &str| causes.push(Cause::invalid(&*field, &json!(value), why));
    match kind.as_str().unwrap_or_default() {
        "Exact" | "Prefix" => {
            if !value.starts_with('/') {
                complain("must be an absolute path");
            }
            for part in ["//", "/./", "/../", "%2f", "%2F"] {
                if value.contains(part) {
                    complain(&format!("must not contain '{part}'"));
                }
            }
            for end in ["/..", "/."] {
                if value.ends_with(end) {
                    complain(&format!("cannot end with '{end}'"));
                }
            }
        }
        "ImplementationSpecific" => {
            if !value.is_empty() && !value.starts_with('/') {
                complain("must be an absolute path");
            }
        }
        _ => causes.push(Cause::unsupported(
            format!("{path}.pathType"),
            kind,
            PATH_TYPES,
        )),
    }
    let none = json!({});
    let backend = rule.get("backend").unwrap_or(&none);
    check_backend(backend, &format!("{path}.backend"), causes);
}

fn check_backend(backend: &Value, path: &str, causes: &mut Vec<Cause>) {
    let (resource, service) = (given(backend, "/resource"), given(backend, "/service"));
    let service = match (resource, service) {
        (Some(_), Some(_)) => {
            let why = "cannot set both resource and service backends";
            causes.push(Cause::invalid(path, &json!(""), why));
            return;
        }
        (None, None) => {
            let why = "resource or service backend is required";
            causes.push(Cause::invalid(path, &json!(""), why));
            return;
        }
        (Some(resource), None) => {
            check_reference(resource, &format!("{path}.resource"), causes);
            return;
        }
        (None, Some(service)) => service,
    };
    let name = text(service, "/name");
    if name.is_empty() {
        causes.push(Cause::required(format!("{path}.service.name"), ""));
    } else {
        let field = format!("{path}.service.name");
        invalid(names::dns1123_label(name), &field, name, causes);
    }
    let name = text(service, "/port/name");
    let number = at(service, "/port/number").and_then(Value::as_i64);
    match (name, number.unwrap_or(0)) {
        ("", 0) => {
            let why = "port name or number is required";
            causes.push(Cause::required(path, why));
        }
        ("", number) => check_port(number, &format!("{path}.service.port.number"), causes),
        (name, 0) => {
            let field = format!("{path}.service.port.name");
            invalid(names::port_name(name), &field, name, causes);
        }
        _ => {
            let why = "cannot set both port name & port number";
            causes.push(Cause::invalid(path, &json!(""), why));
        }
    }
}

/// Defaults the protocols of ports, and the directions that a policy restricts.
pub(in crate::registry) fn default_policy(policy: &mut Value) {
    let egress = !items(policy, "/spec/egress").is_empty();
    let Some(spec) = child(policy, "spec") else {
        return;
    };
    let types = spec.get("policyTypes").and_then(Value::as_array);
    if types.is_none_or(Vec::is_empty) {
        let types: &[&str] = if egress {
            &["Ingress", "Egress"]
        } else {
            &["Ingress"]
        };
        spec.insert("policyTypes".into(), json!(types));
    }
    for direction in ["ingress", "egress"] {
        let rules = spec.get_mut(direction).and_then(Value::as_array_mut);
        let ports = rules
            .into_iter()
            .flatten()
            .filter_map(|rule| rule.get_mut("ports"));
        let ports = ports.filter_map(Value::as_array_mut).flatten();
        for port in ports.filter_map(Value::as_object_mut) {
            set_default_text(port, "protocol", "TCP");
        }
    }
}

pub(in crate::registry) fn validate_policy(policy: &Value, causes: &mut Vec<Cause>) {
    if let Some(selector) = given(policy, "/spec/podSelector") {
        volume::validate_selector(selector, "spec.podSelector", causes);
    }
    for (direction, peers) in [("ingress", "from"), ("egress", "to")] {
        let rules = items(policy, &format!("/spec/{direction}"));
        for (index, rule) in rules.iter().enumerate() {
            let path = format!("spec.{direction}[{index}]");
            for (place, port) in items(rule, "/ports").iter().enumerate() {
                check_policy_port(port, &format!("{path}.ports[{place}]"), causes);
            }
            for (place, peer) in items(rule, &format!("/{peers}")).iter().enumerate() {
                check_peer(peer, &format!("{path}.{peers}[{place}]"), causes);
            }
        }
    }
    let types = items(policy, "/spec/policyTypes");
    if types.len() > 2 {
        let why = "may not specify more than two policyTypes";
        causes.push(Cause::invalid("spec.policyTypes", &json!(types), why));
        return;
    }
    let known = ["Egress", "Ingress"];
    for (index, one) in types.iter().enumerate() {
        if !known.contains(&one.as_str().unwrap_or_default()) {
            let field = format!("spec.policyTypes[{index}]");
            causes.push(Cause::unsupported(field, one, &known));
        }
    }
}

fn check_policy_port(port: &Value, path: &str, causes: &mut Vec<Cause>) {
    let protocol = text(port, "/protocol");
    let known = ["SCTP", "TCP", "UDP"];
    if !known.contains(&protocol) {
        let field = format!("{path}.protocol");
        causes.push(Cause::unsupported(field, &json!(protocol), &known));
    }
    let (number, end) = (given(port, "/port"), given(port, "/endPort"));
    let end_field = format!("{path}.endPort");
    match number {
        Some(Value::String(name)) => {
            if let Some(end) = end {
                let why = "may not be specified when `port` is non-numeric";
                causes.push(Cause::invalid(end_field, end, why));
            }
            invalid(
                names::port_name(name),
                &format!("{path}.port"),
                name,
                causes,
            );
        }
        Some(number) => {
            let first = number.as_i64().unwrap_or(0);
            check_port(first, &format!("{path}.port"), causes);
            if let Some(last) = end.and_then(Value::as_i64) {
                if last < first {
                    let why = "must be greater than or equal to `port`";
                    causes.push(Cause::invalid(&*end_field, number, why));
                }
                check_port(last, &end_field, causes);
            }
        }
        None => {
            if let Some(end) = end {
                let why = "may not be specified when `port` is not specified";
                causes.push(Cause::invalid(end_field, end, why));
            }
        }
    }
}

fn check_peer(peer: &Value, path: &str, causes: &mut Vec<Cause>) {
    let mut several = 0;
    for member in ["podSelector", "namespaceSelector"] {
        if let Some(selector) = given(peer, &format!("/{member}")) {
            several += 1;
            volume::validate_selector(selector, &format!("{path}.{member}"), causes);
        }
    }
    let block = given(peer, "/ipBlock");
    if let Some(block) = block {
        check_block(block, &format!("{path}.ipBlock"), causes);
    }
    match (block, several) {
        (None, 0) => causes.push(Cause::required(path, "must specify a peer")),
        (Some(_), 1..) => {
            let why = "may not specify both ipBlock and another peer";
            causes.push(Cause::forbidden(path, why));
        }
        _ => {}
    }
}

fn check_block(block: &Value, path: &str, causes: &mut Vec<Cause>) {
    let whole = text(block, "/cidr");
    if whole.is_empty() {
        causes.push(Cause::required(format!("{path}.cidr"), ""));
        return;
    }
    let Some(whole) = check_cidr(whole, &format!("{path}.cidr"), causes) else {
        return;
    };
    for (index, part) in items(block, "/except").iter().enumerate() {
        let field = format!("{path}.except[{index}]");
        let range = check_cidr(part.as_str().unwrap_or_default(), &field, causes);
        if range.is_some_and(|range| !whole.strictly_contains(range)) {
            let why = "must be a strict subset of `cidr`";
            causes.push(Cause::invalid(field, part, why));
        }
    }
}

/// Checks a reference to an object of any kind.
fn check_reference(reference: &Value, path: &str, causes: &mut Vec<Cause>) {
    if let Some(group) = given(reference, "/apiGroup") {
        let group = group.as_str().unwrap_or_default();
        invalid(
            names::dns1123_subdomain(group),
            &format!("{path}.apiGroup"),
            group,
            causes,
        );
    }
    for member in ["kind", "name"] {
        let (name, field) = (
            text(reference, &format!("/{member}")),
            format!("{path}.{member}"),
        );
        if name.is_empty() {
            causes.push(Cause::required(field, ""));
        } else {
            invalid(names::path_segment(name), &field, name, causes);
        }
    }
}

fn check_domain_path(value: &str, field: &str, causes: &mut Vec<Cause>) {
    if value.is_empty() {
        causes.push(Cause::required(field, ""));
        return;
    }
    match value
        .split_once('/')
        .filter(|(host, path)| !host.is_empty() && !path.is_empty())
    {
        None => {
            let why = "must be a domain-prefixed path (such as \"acme.io/foo\")";
            causes.push(Cause::invalid(field, &json!(value), why));
        }
        Some((host, path)) => {
            invalid(names::dns1123_subdomain(host), field, host, causes);
            invalid(names::http_path(path), field, path, causes);
        }
    }
}

fn check_not_ip(host: &str, field: &str, causes: &mut Vec<Cause>) {
    if host.parse::<std::net::IpAddr>().is_ok() {
        let why = "must be a DNS name, not an IP address";
        causes.push(Cause::invalid(field, &json!(host), why));
    }
}

fn check_port(number: i64, field: &str, causes: &mut Vec<Cause>) {
    if !(1..=65_535).contains(&number) {
        causes.push(Cause::invalid(field, &json!(number), PORT_RANGE));
    }
}

fn host_problems(host: &str) -> Vec<String> {
    if host.contains('*') {
        names::wildcard_subdomain(host)
    } else {
        names::dns1123_subdomain(host)
    }
}

/// Returns the member at a pointer unless it is absent or null.
fn given<'a>(object: &'a Value, pointer: &str) -> Option<&'a Value> {
    at(object, pointer).filter(|value| !value.is_null())
}

fn invalid(problems: Vec<String>, field: &str, value: &str, causes: &mut Vec<Cause>) {
    let problems = problems.into_iter();
    causes.extend(problems.map(|why| Cause::invalid(field, &json!(value), &why)));
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
    fn ingress_paths_need_a_type_and_one_backend() {
        let ingress = |path: Value| {
            json!({"spec": {"rules": [{"host": "*.a.example",
            "http": {"paths": [path]}}]}})
        };
        let service = json!({"service": {"name": "s", "port": {"number": 80}}});
        let good = json!({"path": "/", "pathType": "Prefix", "backend": service});
        assert_eq!(fields(validate_ingress, &ingress(good)), [""; 0]);
        let path = "spec.rules[0].http.paths[0]";
        assert_eq!(
            fields(validate_ingress, &ingress(json!({}))),
            [format!("{path}.pathType")]
        );
        let bad = json!({"path": "/a//b", "pathType": "Exact", "backend": {"resource": {}}});
        assert_eq!(
            fields(validate_ingress, &ingress(bad)),
            ["path", "backend.resource.kind", "backend.resource.name"]
                .map(|f| format!("{path}.{f}"))
        );
        assert_eq!(fields(validate_ingress, &json!({"spec": {}})), ["spec"]);
    }

    #[test]
    fn policy_peer_is_a_block_or_a_selector() {
        let policy = |peer: Value| json!({"spec": {"ingress": [{"from": [peer]}]}});
        let peer = "spec.ingress[0].from[0]";
        assert_eq!(fields(validate_policy, &policy(json!({}))), [peer]);
        let both = json!({"podSelector": {}, "ipBlock": {"cidr": "10.0.0.0/8"}});
        assert_eq!(fields(validate_policy, &policy(both)), [peer]);
        let block = json!({"ipBlock": {"cidr": "10.0.0.0/8", "except": ["11.0.0.0/16"]}});
        assert_eq!(
            fields(validate_policy, &policy(block)),
            [format!("{peer}.ipBlock.except[0]")]
        );
    }

    #[test]
    fn policy_restricts_the_directions_of_its_rules() {
        let mut policy = json!({"spec": {"egress": [{"ports": [{"port": 53}]}]}});
        default_policy(&mut policy);
        assert_eq!(policy["spec"]["policyTypes"], json!(["Ingress", "Egress"]));
        assert_eq!(policy["spec"]["egress"][0]["ports"][0]["protocol"], "TCP");
        let once = policy.clone();
        default_policy(&mut policy);
        assert_eq!(policy, once);
    }

    #[test]
    fn parameters_of_a_class_are_cluster_scoped_unless_said_otherwise() {
        let mut class = json!({"spec": {"controller": "a.example/c",
            "parameters": {"kind": "K", "name": "n"}}});
        default_class(&mut class);
        assert_eq!(fields(validate_class, &class), [""; 0]);
        class["spec"]["parameters"]["namespace"] = json!("ns");
        assert_eq!(
            fields(validate_class, &class),
            ["spec.parameters.namespace"]
        );
        class["spec"]["controller"] = json!("nothing");
        assert_eq!(fields(validate_class, &class)[0], "spec.controller");
    }
}
