//! Services. Cluster addresses are assigned at random; this server does not route them.

use std::collections::{HashMap, HashSet};

use serde_json::{Map, Value, json};

use super::{child, items, set_default, set_default_text, text};
use crate::names;
use crate::status::Cause;

const TYPES: &[&str] = &["ClusterIP", "ExternalName", "LoadBalancer", "NodePort"];

pub(in crate::registry) fn default_service(service: &mut Value) {
    default_meant(service);
    give_address(service);
}

/// Assigns families and an address to a service that has none.
fn give_address(service: &mut Value) {
    let Some(spec) = child(service, "spec") else {
        return;
    };
    if spec.get("type").and_then(Value::as_str) == Some("ExternalName") {
        return;
    }
    // Without a selector, the address families of a headless service are unknown.
    let selected = spec
        .get("selector")
        .and_then(Value::as_object)
        .is_some_and(|s| !s.is_empty());
    let headless = spec.get("clusterIP").and_then(Value::as_str) == Some("None");
    let (families, policy) = if headless && !selected {
        (json!(["IPv4", "IPv6"]), "RequireDualStack")
    } else {
        (json!(["IPv4"]), "SingleStack")
    };
    set_default(spec, "ipFamilies", families);
    set_default_text(spec, "ipFamilyPolicy", policy);
    let address = spec
        .get("clusterIP")
        .and_then(Value::as_str)
        .unwrap_or_default();
    let address = if address.is_empty() {
        random_address()
    } else {
        address.to_owned()
    };
    spec.insert("clusterIP".into(), json!(address));
    set_default(spec, "clusterIPs", json!([address]));
}

/// Applies the defaults that a client implies by omitting a field. The server assigns the address separately.
pub(in crate::registry) fn default_meant(service: &mut Value) {
    let Some(spec) = child(service, "spec") else {
        return;
    };
    set_default_text(spec, "type", "ClusterIP");
    set_default_text(spec, "sessionAffinity", "None");
    let kind = spec
        .get("type")
        .and_then(Value::as_str)
        .unwrap_or_default()
        .to_owned();
    if kind != "ExternalName" {
        set_default_text(spec, "internalTrafficPolicy", "Cluster");
    }
    default_affinity(spec);
    let has_external_ips = spec
        .get("externalIPs")
        .and_then(Value::as_array)
        .is_some_and(|ips| !ips.is_empty());
    if matches!(kind.as_str(), "LoadBalancer" | "NodePort")
        || (kind == "ClusterIP" && has_external_ips)
    {
        set_default_text(spec, "externalTrafficPolicy", "Cluster");
    }
    if kind == "LoadBalancer" {
        set_default(spec, "allocateLoadBalancerNodePorts", true);
    }
    let ports = spec.get_mut("ports").and_then(Value::as_array_mut);
    for port in ports.into_iter().flatten().filter_map(Value::as_object_mut) {
        set_default_text(port, "protocol", "TCP");
        let number = port.get("port").cloned().unwrap_or(json!(0));
        let target = port.entry("targetPort").or_insert(Value::Null);
        if target.is_null() || *target == json!(0) || *target == json!("") {
            *target = number;
        }
    }
    if let Some(status) = child(service, "status") {
        let balancer = status.entry("loadBalancer").or_insert(Value::Null);
        if balancer.is_null() {
            *balancer = json!({});
        }
        let addresses = balancer.get_mut("ingress").and_then(Value::as_array_mut);
        let addresses = addresses
            .into_iter()
            .flatten()
            .filter(|_| kind == "LoadBalancer");
        for address in addresses.filter_map(Value::as_object_mut) {
            if address.contains_key("ip") {
                set_default(address, "ipMode", "VIP");
            }
        }
    }
}

/// Gives sticky sessions a duration, and removes the settings of sessions that are not sticky.
fn default_affinity(spec: &mut Map<String, Value>) {
    const SECONDS: u32 = 3 * 60 * 60;
    match spec.get("sessionAffinity").and_then(Value::as_str) {
        Some("None") => _ = spec.remove("sessionAffinityConfig"),
        Some("ClientIP") => {
            let config = spec.entry("sessionAffinityConfig").or_insert(Value::Null);
            let seconds = config.pointer("/clientIP/timeoutSeconds");
            if seconds.is_none_or(Value::is_null) {
                *config = json!({"clientIP": {"timeoutSeconds": SECONDS}});
            }
        }
        _ => {}
    }
}

/// Resets the status of a new service, because clients cannot set it.
pub(in crate::registry) fn prepare_service(service: &mut Value) {
    if let Some(map) = service.as_object_mut() {
        map.insert("status".into(), json!({"loadBalancer": {}}));
    }
}

pub(in crate::registry) fn validate_service(service: &Value, causes: &mut Vec<Cause>) {
    let kind = text(service, "/spec/type");
    let ports = items(service, "/spec/ports");
    let headless = text(service, "/spec/clusterIP") == "None";
    if ports.is_empty() && !headless && kind != "ExternalName" {
        causes.push(Cause::required("spec.ports", ""));
    }
    if !TYPES.contains(&kind) {
        causes.push(Cause::unsupported("spec.type", &json!(kind), TYPES));
    }
    if kind == "ExternalName" && text(service, "/spec/externalName").is_empty() {
        causes.push(Cause::required("spec.externalName", ""));
    }
    let mut seen = HashSet::new();
    for (index, port) in ports.iter().enumerate() {
        let at = format!("spec.ports[{index}]");
        let name = text(port, "/name");
        if name.is_empty() {
            if ports.len() > 1 {
                causes.push(Cause::required(format!("{at}.name"), ""));
            }
        } else {
            for why in names::dns1123_label(name) {
                causes.push(Cause::invalid(format!("{at}.name"), &json!(name), &why));
            }
            if !seen.insert(name) {
                causes.push(Cause::duplicate(format!("{at}.name"), &json!(name)));
            }
        }
        let number = port.get("port").and_then(Value::as_i64).unwrap_or(0);
        if !(1..=65_535).contains(&number) {
            let why = "must be between 1 and 65535, inclusive";
            causes.push(Cause::invalid(format!("{at}.port"), &json!(number), why));
        }
        if kind == "ClusterIP" && port.get("nodePort").is_some_and(|port| *port != json!(0)) {
            let why = "may not be used when `type` is 'ClusterIP'";
            causes.push(Cause::forbidden(format!("{at}.nodePort"), why));
        }
        let target = port.get("targetPort").and_then(Value::as_i64);
        if let Some(number) = target.filter(|number| !(1..=65_535).contains(number)) {
            let why = "must be between 1 and 65535, inclusive";
            causes.push(Cause::invalid(
                format!("{at}.targetPort"),
                &json!(number),
                why,
            ));
        }
        let protocol = text(port, "/protocol");
        if !["SCTP", "TCP", "UDP"].contains(&protocol) {
            let known = ["SCTP", "TCP", "UDP"];
            causes.push(Cause::unsupported(
                format!("{at}.protocol"),
                &json!(protocol),
                &known,
            ));
        }
    }
    let affinity = text(service, "/spec/sessionAffinity");
    if !["ClientIP", "None"].contains(&affinity) {
        let known = ["ClientIP", "None"];
        causes.push(Cause::unsupported(
            "spec.sessionAffinity",
            &json!(affinity),
            &known,
        ));
    }
}

/// Rejects a change of the address while the service has one.
pub(in crate::registry) fn validate_service_update(
    old: &Value,
    new: &Value,
    causes: &mut Vec<Cause>,
) {
    let external = [old, new]
        .iter()
        .any(|s| text(s, "/spec/type") == "ExternalName");
    if !external && text(old, "/spec/clusterIP") != text(new, "/spec/clusterIP") {
        let value = &json!([text(new, "/spec/clusterIP")]);
        let why = "may not change once set";
        causes.push(Cause::invalid("spec.clusterIPs[0]", value, why));
    }
}

/// Preserves the old address and the old node ports if the client omits them.
pub(crate) fn preserve_assigned(old: &Value, new: &mut Value) {
    preserve_address(old, new);
    preserve_node_ports(old, new);
    drop_unchanged(old, new);
}

/// Removes members that the new type does not have, if the client did not change them.
fn drop_unchanged(old: &Value, new: &mut Value) {
    let kinds = [old, &*new].map(|service| text(service, "/spec/type").to_owned());
    let (balances, exposes) = (
        ["LoadBalancer"].as_slice(),
        ["LoadBalancer", "NodePort"].as_slice(),
    );
    for (member, owners) in [
        ("allocateLoadBalancerNodePorts", balances),
        ("healthCheckNodePort", balances),
        ("loadBalancerClass", balances),
        ("externalTrafficPolicy", exposes),
    ] {
        let [had, has] = kinds.each_ref().map(|kind| owners.contains(&kind.as_str()));
        let is_external = owners == exposes && !items(new, "/spec/externalIPs").is_empty();
        let is_same = old["spec"].get(member) == new["spec"].get(member);
        if had && !has && !is_external && is_same {
            new["spec"].as_object_mut().map(|spec| spec.remove(member));
        }
    }
}

/// Keeps the node ports of ports with the same name. Removes them if the new type has none and the client did not change
/// them.
fn preserve_node_ports(old: &Value, new: &mut Value) {
    let has_ports =
        |service: &Value| matches!(text(service, "/spec/type"), "NodePort" | "LoadBalancer");
    let node_port = |port: &Value| port.get("nodePort").and_then(Value::as_u64).unwrap_or(0);
    let all = |service: &Value| -> Vec<u64> {
        items(service, "/spec/ports")
            .iter()
            .map(node_port)
            .collect()
    };
    if !has_ports(old) {
        return;
    }
    let (before, after) = (all(old), all(new));
    let keeps = has_ports(new);
    let sent: HashSet<u64> = after.iter().copied().collect();
    let mut used: HashSet<u64> = before
        .iter()
        .copied()
        .filter(|port| sent.contains(port))
        .collect();
    let mut known: HashMap<&str, u64> = HashMap::new();
    for port in items(old, "/spec/ports") {
        known.entry(text(port, "/name")).or_insert(node_port(port));
    }
    let ports = new.pointer_mut("/spec/ports").and_then(Value::as_array_mut);
    for port in ports.into_iter().flatten() {
        let was = known.get(text(port, "/name")).copied().unwrap_or(0);
        let Some(port) = port.as_object_mut() else {
            continue;
        };
        if !keeps && before == after {
            port.remove("nodePort");
        } else if keeps && !port.contains_key("nodePort") && was != 0 && used.insert(was) {
            port.insert("nodePort".to_owned(), json!(was));
        }
    }
}

/// Preserves the old address if the client omits it.
fn preserve_address(old: &Value, new: &mut Value) {
    if text(new, "/spec/type") == "ExternalName" {
        return;
    }
    for key in ["clusterIP", "clusterIPs"] {
        let was = old.pointer(&format!("/spec/{key}")).cloned();
        if let (Some(was), Some(spec)) = (was, child(new, "spec")) {
            let slot = spec.entry(key).or_insert(Value::Null);
            if slot.is_null() || slot.as_str() == Some("") {
                *slot = was;
            }
        }
    }
}

/// Returns a random address in 10.96.0.0/12, the range that clusters commonly use.
fn random_address() -> String {
    let bits: u32 = rand::random_range(1..(1 << 20) - 1);
    std::net::Ipv4Addr::from_bits(0x0a60_0000 | bits).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_service_gets_an_address_and_keeps_it() {
        let mut service = json!({"spec": {"ports": [{"port": 80}]}});
        default_service(&mut service);
        let mut causes = Vec::new();
        validate_service(&service, &mut causes);
        assert_eq!(causes, []);
        assert_eq!(service["spec"]["ports"][0]["targetPort"], 80);
        let mut update = json!({"spec": {"ports": [{"port": 81}]}});
        preserve_assigned(&service, &mut update);
        default_service(&mut update);
        assert_eq!(update["spec"]["clusterIP"], service["spec"]["clusterIP"]);
        validate_service_update(&service, &update, &mut causes);
        assert_eq!(causes, []);
    }

    #[test]
    fn several_ports_need_names() {
        let mut service = json!({"spec": {"ports": [{"port": 80}, {"port": 81}]}});
        default_service(&mut service);
        let mut causes = Vec::new();
        validate_service(&service, &mut causes);
        assert_eq!(causes.len(), 2);
    }
}
