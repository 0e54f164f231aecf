//! Endpoints and EndpointSlice.

use std::collections::HashSet;
use std::net::IpAddr;

use serde_json::{Value, json};

use super::{immutable_text, items, set_default_text, text};
use crate::names;
use crate::status::Cause;

const PROTOCOLS: &[&str] = &["SCTP", "TCP", "UDP"];

pub(in crate::registry) fn default_endpoints(endpoints: &mut Value) {
    let subsets = endpoints.get_mut("subsets").and_then(Value::as_array_mut);
    for subset in subsets.into_iter().flatten() {
        default_ports(subset);
    }
}

pub(in crate::registry) fn default_slice(slice: &mut Value) {
    default_ports(slice);
    let ports = slice.get_mut("ports").and_then(Value::as_array_mut);
    for port in ports.into_iter().flatten().filter_map(Value::as_object_mut) {
        port.entry("name").or_insert(json!(""));
    }
}

pub(in crate::registry) fn validate_endpoints(endpoints: &Value, causes: &mut Vec<Cause>) {
    for (index, subset) in items(endpoints, "/subsets").iter().enumerate() {
        let at = format!("subsets[{index}]");
        let (ready, not) = (
            items(subset, "/addresses"),
            items(subset, "/notReadyAddresses"),
        );
        if ready.is_empty() && not.is_empty() {
            let why = "must specify `addresses` or `notReadyAddresses`";
            causes.push(Cause::required(at, why));
            continue;
        }
        for (list, name) in [(ready, "addresses"), (not, "notReadyAddresses")] {
            for (i, address) in list.iter().enumerate() {
                check_address(address, &format!("{at}.{name}[{i}]"), causes);
            }
        }
        let ports = items(subset, "/ports");
        for (i, port) in ports.iter().enumerate() {
            check_port(port, ports.len() > 1, &format!("{at}.ports[{i}]"), causes);
        }
    }
}

pub(in crate::registry) fn validate_slice(slice: &Value, causes: &mut Vec<Cause>) {
    let family = text(slice, "/addressType");
    match family {
        "" => causes.push(Cause::required("addressType", "")),
        "IPv4" | "IPv6" | "FQDN" => {}
        other => {
            let known = ["FQDN", "IPv4", "IPv6"];
            causes.push(Cause::unsupported("addressType", &json!(other), &known));
        }
    }
    for (index, endpoint) in items(slice, "/endpoints").iter().enumerate() {
        let addresses = items(endpoint, "/addresses");
        if addresses.is_empty() {
            let why = "must contain at least 1 address";
            causes.push(Cause::required(
                format!("endpoints[{index}].addresses"),
                why,
            ));
        }
        for (i, address) in addresses.iter().enumerate() {
            let field = format!("endpoints[{index}].addresses[{i}]");
            let ip = address.as_str().and_then(|a| a.parse::<IpAddr>().ok());
            let why = match (family, ip) {
                ("IPv4", None | Some(IpAddr::V6(_))) => "must be a valid IPv4 address",
                ("IPv6", None | Some(IpAddr::V4(_))) => "must be a valid IPv6 address",
                _ => continue,
            };
            causes.push(Cause::invalid(field, address, why));
        }
    }
    let mut seen = HashSet::new();
    for (index, port) in items(slice, "/ports").iter().enumerate() {
        let name = text(port, "/name");
        if !seen.insert(name) {
            causes.push(Cause::duplicate(
                format!("ports[{index}].name"),
                &json!(name),
            ));
        }
        check_protocol(port, &format!("ports[{index}].protocol"), causes);
    }
}

pub(in crate::registry) fn validate_slice_update(
    old: &Value,
    new: &Value,
    causes: &mut Vec<Cause>,
) {
    if old.get("endpoints") == new.get("endpoints") {
        // Unchanged endpoints are not validated again. A changed address type alone does not make them invalid.
        causes.retain(|cause| !cause.field.starts_with("endpoints["));
    }
    immutable_text(old, new, "/addressType", "addressType", causes);
}

fn default_ports(holder: &mut Value) {
    let ports = holder.get_mut("ports").and_then(Value::as_array_mut);
    for port in ports.into_iter().flatten().filter_map(Value::as_object_mut) {
        set_default_text(port, "protocol", "TCP");
    }
}

fn check_address(address: &Value, at: &str, causes: &mut Vec<Cause>) {
    let ip = text(address, "/ip");
    let field = format!("{at}.ip");
    let value = json!(ip);
    match ip.parse::<IpAddr>() {
        Err(_) => {
            let long = "must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)";
            causes.push(Cause::invalid(field.clone(), &value, long));
            causes.push(Cause::invalid(field, &value, "must be a valid IP address"));
        }
        Ok(ip) => {
            let local = match ip {
                IpAddr::V4(v4) => v4.is_link_local(),
                IpAddr::V6(v6) => v6.is_unicast_link_local(),
            };
            let multicast = match ip {
                IpAddr::V4(v4) => v4.octets()[..3] == [224, 0, 0],
                IpAddr::V6(v6) => v6.segments()[0] & 0xff0f == 0xff02,
            };
            let rules = [
                (
                    ip.is_unspecified(),
                    format!("may not be unspecified ({ip})"),
                ),
                (
                    ip.is_loopback(),
                    "may not be in the loopback range (127.0.0.0/8, ::1/128)".to_owned(),
                ),
                (
                    local,
                    "may not be in the link-local range (169.254.0.0/16, fe80::/10)".to_owned(),
                ),
                (
                    multicast,
                    "may not be in the link-local multicast range (224.0.0.0/24, ff02::/10)"
                        .to_owned(),
                ),
            ];
            for (_, why) in rules.into_iter().filter(|(broken, _)| *broken) {
                causes.push(Cause::invalid(field.clone(), &value, &why));
            }
        }
    }
    let host = text(address, "/hostname");
    if !host.is_empty() {
        for why in names::dns1123_label(host) {
            causes.push(Cause::invalid(format!("{at}.hostname"), &json!(host), &why));
        }
    }
}

fn check_port(port: &Value, named: bool, at: &str, causes: &mut Vec<Cause>) {
    let name = text(port, "/name");
    if name.is_empty() {
        if named {
            causes.push(Cause::required(format!("{at}.name"), ""));
        }
    } else {
        for why in names::dns1123_label(name) {
            causes.push(Cause::invalid(format!("{at}.name"), &json!(name), &why));
        }
    }
    let number = port.get("port").and_then(Value::as_i64).unwrap_or(0);
    if !(1..=65_535).contains(&number) {
        let why = "must be between 1 and 65535, inclusive";
        causes.push(Cause::invalid(format!("{at}.port"), &json!(number), why));
    }
    check_protocol(port, &format!("{at}.protocol"), causes);
}

fn check_protocol(port: &Value, field: &str, causes: &mut Vec<Cause>) {
    match text(port, "/protocol") {
        "" => causes.push(Cause::required(field, "")),
        other if PROTOCOLS.contains(&other) => {}
        other => causes.push(Cause::unsupported(field, &json!(other), PROTOCOLS)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoint_addresses_must_not_be_local_or_multicast() {
        for ip in [
            "0.0.0.0",
            "127.0.0.1",
            "169.254.1.1",
            "224.0.0.1",
            "::",
            "::1",
            "fe80::1",
        ] {
            let mut causes = Vec::new();
            let object = json!({"subsets": [{"addresses": [{"ip": ip}]}]});
            validate_endpoints(&object, &mut causes);
            assert_eq!(causes.len(), 1, "{ip}");
        }
        let mut causes = Vec::new();
        let object =
            json!({"subsets": [{"addresses": [{"ip": "10.0.0.1"}, {"ip": "fd00::1"}]}, {}]});
        validate_endpoints(&object, &mut causes);
        assert_eq!(causes.len(), 1);
        assert_eq!(causes[0].field, "subsets[1]");
    }

    #[test]
    fn endpoint_slice_has_addresses_of_one_family() {
        let slice = json!({"addressType": "IPv4", "endpoints": [{"addresses": ["fd00::1"]}]});
        let mut causes = Vec::new();
        validate_slice(&slice, &mut causes);
        assert_eq!(causes[0].field, "endpoints[0].addresses[0]");
    }

    #[test]
    fn slice_update_validates_changed_endpoints_only() {
        let slice = |address_type: &str, addresses: Value| json!({"addressType": address_type, "endpoints": [{"addresses": addresses}]});
        let fields = |old: &Value, new: &Value| -> Vec<String> {
            let mut causes = Vec::new();
            validate_slice(new, &mut causes);
            validate_slice_update(old, new, &mut causes);
            causes.into_iter().map(|cause| cause.field).collect()
        };
        let old = slice("IPv4", json!(["10.0.0.1"]));
        let unchanged = slice("IPv6", json!(["10.0.0.1"]));
        assert_eq!(fields(&old, &unchanged), ["addressType"]);
        let changed = slice("IPv4", json!([]));
        assert_eq!(fields(&old, &changed), ["endpoints[0].addresses"]);
    }
}
