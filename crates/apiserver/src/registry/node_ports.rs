//! Ports that a Service has on every node. The server assigns them; it does not route them.

use std::collections::{HashMap, HashSet};
use std::ops::RangeInclusive;

use serde_json::{Value, json};

use super::engine::{Registry, Target, parsed};
use super::rules::{items, text};
use crate::status::{Cause, Failure};
use crate::store::Range;

/// The range that clusters commonly use.
const PORTS: RangeInclusive<u64> = 30_000..=32_767;

/// Assigns the node ports that a Service needs and does not have, and rejects ports of other Services.
pub(super) fn assign(
    registry: &Registry,
    target: &Target<'_>,
    service: &mut Value,
) -> Result<(), Failure> {
    let kind = text(service, "/spec/type");
    let balances = kind == "LoadBalancer";
    let allocates = kind == "NodePort"
        || (balances
            && service.pointer("/spec/allocateLoadBalancerNodePorts") != Some(&json!(false)));
    let checks_health = balances && text(service, "/spec/externalTrafficPolicy") == "Local";
    if !matches!(kind, "NodePort" | "LoadBalancer") {
        return Ok(());
    }
    let name = text(service, "/metadata/name").to_owned();
    let refuse = |field: String, port: u64, why: &str| {
        let cause = Cause::invalid(field, &json!(port), why);
        Err(Failure::invalid(("", "Service"), &name, vec![cause]))
    };
    let used = used_ports(registry, target, &name);
    let ports = items(service, "/spec/ports").to_vec();
    let mut own: HashSet<u64> = HashSet::new();
    // Ports of the same number share a node port, one for each protocol.
    let mut by_port: HashMap<u64, u64> = HashMap::new();
    for (index, port) in ports.iter().enumerate() {
        let given = number(port, "nodePort");
        if given == 0 {
            continue;
        }
        let field = format!("spec.ports[{index}].nodePort");
        if !PORTS.contains(&given) {
            let why =
                "provided port is not in the valid range. The range of valid ports is 30000-32767";
            return refuse(field, given, why);
        }
        if used.contains(&given) {
            return refuse(field, given, "provided port is already allocated");
        }
        own.insert(given);
        by_port.entry(number(port, "port")).or_insert(given);
    }
    let choose = |own: &mut HashSet<u64>| {
        let free: Vec<u64> = PORTS
            .filter(|port| !used.contains(port) && !own.contains(port))
            .collect();
        let chosen = free.get(rand::random_range(0..free.len().max(1))).copied();
        own.extend(chosen);
        chosen.ok_or_else(|| Failure::internal("failed to allocate a nodePort: range is full"))
    };
    for (index, port) in ports.iter().enumerate() {
        if !allocates || number(port, "nodePort") != 0 {
            continue;
        }
        let number = number(port, "port");
        let chosen = match by_port.get(&number) {
            Some(shared) => *shared,
            None => choose(&mut own)?,
        };
        by_port.insert(number, chosen);
        service["spec"]["ports"][index]["nodePort"] = json!(chosen);
    }
    if checks_health && number(&service["spec"], "healthCheckNodePort") == 0 {
        service["spec"]["healthCheckNodePort"] = json!(choose(&mut own)?);
    }
    Ok(())
}

/// Returns the node ports of all other Services.
fn used_ports(registry: &Registry, target: &Target<'_>, name: &str) -> HashSet<u64> {
    let range = Range {
        resource: target.kind.storage_key(),
        namespace: None,
        name: None,
    };
    let listing = registry.store.list(&range, None);
    let services = listing.map(|listing| listing.objects).unwrap_or_default();
    let others = services.iter().filter(|other| {
        (other.key.namespace.as_str(), other.key.name.as_str()) != (target.namespace, name)
    });
    // Most Services have no node port. Parsing all of them would make each create slower than the one before.
    let others = others.filter(|other| mentions_node_port(&other.json));
    let others = others.filter_map(|other| parsed(other).ok());
    others
        .flat_map(|other| {
            let ports = items(&other, "/spec/ports").iter();
            let mut ports: Vec<u64> = ports.map(|port| number(port, "nodePort")).collect();
            ports.push(number(&other["spec"], "healthCheckNodePort"));
            ports
        })
        .filter(|port| *port != 0)
        .collect()
}

fn mentions_node_port(json: &[u8]) -> bool {
    // The end of `nodePort` and of `healthCheckNodePort`.
    const MEMBER: &[u8] = b"odePort\"";
    json.windows(MEMBER.len()).any(|window| window == MEMBER)
}

fn number(object: &Value, member: &str) -> u64 {
    object.get(member).and_then(Value::as_u64).unwrap_or(0)
}
