//! Device claims. Selector expressions are stored without evaluation; the allocator of devices evaluates them.

use std::collections::HashSet;

use serde_json::{Value, json};

use super::{immutable, immutable_text, items, set_default, set_default_text, text, volume};
use crate::names;
use crate::status::Cause;

pub(in crate::registry) fn default_claim(claim: &mut Value) {
    default_requests(claim.pointer_mut("/spec/devices"));
}

pub(in crate::registry) fn default_claim_template(template: &mut Value) {
    default_requests(template.pointer_mut("/spec/spec/devices"));
}

pub(in crate::registry) fn validate_claim(claim: &Value, causes: &mut Vec<Cause>) {
    check_devices(claim.pointer("/spec/devices"), "spec.devices", causes);
}

pub(in crate::registry) fn validate_claim_template(template: &Value, causes: &mut Vec<Cause>) {
    let devices = template.pointer("/spec/spec/devices");
    check_devices(devices, "spec.spec.devices", causes);
}

/// Rejects changes of the spec. Other errors in the new spec are not reported.
pub(in crate::registry) fn validate_spec_update(old: &Value, new: &Value, causes: &mut Vec<Cause>) {
    causes.retain(|cause| !cause.field.starts_with("spec."));
    immutable(old, new, "/spec", "spec", causes);
}

/// Rejects changes of the spec of a template, in addition to errors in the new spec.
pub(in crate::registry) fn validate_template_update(
    old: &Value,
    new: &Value,
    causes: &mut Vec<Cause>,
) {
    immutable(old, new, "/spec", "spec", causes);
}

pub(in crate::registry) fn validate_class(class: &Value, causes: &mut Vec<Cause>) {
    let spec = class.get("spec").unwrap_or(&Value::Null);
    check_selectors(spec, "spec.selectors", causes);
    for (index, config) in items(spec, "/config").iter().enumerate() {
        let at = format!("spec.config[{index}].opaque");
        let Some(opaque) = config.get("opaque").filter(|opaque| !opaque.is_null()) else {
            causes.push(Cause::required(at, ""));
            continue;
        };
        volume::validate_driver_name(text(opaque, "/driver"), &format!("{at}.driver"), causes);
        let parameters = opaque.get("parameters");
        if parameters.is_none_or(Value::is_null) {
            causes.push(Cause::required(format!("{at}.parameters"), ""));
        }
    }
}

pub(in crate::registry) fn validate_slice(slice: &Value, causes: &mut Vec<Cause>) {
    let spec = slice.get("spec").unwrap_or(&Value::Null);
    volume::validate_driver_name(text(spec, "/driver"), "spec.driver", causes);
    let pool = text(spec, "/pool/name");
    if pool.is_empty() {
        causes.push(Cause::required("spec.pool.name", ""));
    }
    for part in pool.split('/').filter(|_| !pool.is_empty()) {
        for why in names::dns1123_subdomain(part) {
            causes.push(Cause::invalid("spec.pool.name", &json!(part), &why));
        }
    }
    let count = spec.pointer("/pool/resourceSliceCount");
    if count.and_then(Value::as_i64).unwrap_or(0) <= 0 {
        let value = count.cloned().unwrap_or_else(|| json!(0));
        let why = "must be greater than zero";
        causes.push(Cause::invalid("spec.pool.resourceSliceCount", &value, why));
    }
    check_nodes(spec, causes);
    for (index, device) in items(spec, "/devices").iter().enumerate() {
        let name = text(device, "/name");
        for why in names::dns1123_label(name) {
            let field = format!("spec.devices[{index}].name");
            causes.push(Cause::invalid(field, &json!(name), &why));
        }
    }
}

/// Checks that a slice states in exactly one way which nodes can use its devices.
fn check_nodes(spec: &Value, causes: &mut Vec<Cause>) {
    const WAYS: &str = "exactly one of `nodeName`, `nodeSelector`, `allNodes`, \
                        `perDeviceNodeSelection` is required";
    let given = |member: &str| spec.get(member).filter(|value| !value.is_null());
    let mut set = Vec::new();
    if let Some(node) = given("nodeName").and_then(Value::as_str) {
        if node.is_empty() {
            let why = "must be either unset or set to a non-empty string";
            causes.push(Cause::invalid("spec.nodeName", &json!(node), why));
        } else {
            set.push("`nodeName`");
            for why in names::dns1123_subdomain(node) {
                causes.push(Cause::invalid("spec.nodeName", &json!(node), &why));
            }
        }
    }
    if given("nodeSelector").is_some() {
        set.push("`nodeSelector`");
    }
    for (member, shown) in [
        ("allNodes", "`allNodes`"),
        ("perDeviceNodeSelection", "`perDeviceNodeSelection`"),
    ] {
        match given(member).and_then(Value::as_bool) {
            Some(true) => set.push(shown),
            Some(false) => {
                let why = "must be either unset or set to true";
                causes.push(Cause::invalid(format!("spec.{member}"), &json!(false), why));
            }
            None => {}
        }
    }
    match set.len() {
        0 => causes.push(Cause::required("spec", WAYS)),
        1 => {}
        _ => {
            let why = format!("{WAYS}, but multiple fields are set");
            let value = json!(format!("{{{}}}", set.join(", ")));
            causes.push(Cause::invalid("spec", &value, &why));
        }
    }
}

pub(in crate::registry) fn validate_slice_update(
    old: &Value,
    new: &Value,
    causes: &mut Vec<Cause>,
) {
    for (pointer, field) in [
        ("/spec/pool/name", "spec.pool.name"),
        ("/spec/driver", "spec.driver"),
    ] {
        immutable_text(old, new, pointer, field, causes);
    }
    immutable(old, new, "/spec/nodeName", "spec.nodeName", causes);
}

/// Defaults a request to one device.
fn default_requests(devices: Option<&mut Value>) {
    let requests = devices
        .and_then(|devices| devices.get_mut("requests"))
        .and_then(Value::as_array_mut);
    for request in requests.into_iter().flatten() {
        let mut wanted: Vec<&mut Value> = Vec::new();
        if let Some(map) = request.as_object_mut() {
            for (member, value) in map {
                match member.as_str() {
                    "exactly" => wanted.push(value),
                    "firstAvailable" => {
                        wanted.extend(value.as_array_mut().into_iter().flatten());
                    }
                    _ => {}
                }
            }
        }
        for wanted in wanted.into_iter().filter_map(Value::as_object_mut) {
            set_default_text(wanted, "allocationMode", "ExactCount");
            if wanted["allocationMode"] == "ExactCount" {
                set_default(wanted, "count", 1);
            }
        }
    }
}

fn check_devices(devices: Option<&Value>, path: &str, causes: &mut Vec<Cause>) {
    let devices = devices.unwrap_or(&Value::Null);
    let mut seen = HashSet::new();
    for (index, request) in items(devices, "/requests").iter().enumerate() {
        let at = format!("{path}.requests[{index}]");
        let name = text(request, "/name");
        check_name(name, &at, &mut seen, causes);
        let exactly = request.get("exactly").filter(|value| !value.is_null());
        let choices = items(request, "/firstAvailable");
        match (exactly, choices.is_empty()) {
            (None, true) => {
                let why = "exactly one of `exactly` or `firstAvailable` is required";
                causes.push(Cause::required(at, why));
            }
            (Some(_), false) => {
                let why = "exactly one of `exactly` or `firstAvailable` is required, but multiple \
                           fields are set";
                causes.push(Cause::invalid(at, &Value::Null, why));
            }
            (Some(exactly), true) => check_request(exactly, &format!("{at}.exactly"), causes),
            (None, false) => {
                let mut seen = HashSet::new();
                for (index, choice) in choices.iter().enumerate() {
                    let at = format!("{at}.firstAvailable[{index}]");
                    check_name(text(choice, "/name"), &at, &mut seen, causes);
                    check_request(choice, &at, causes);
                }
            }
        }
    }
}

fn check_name<'a>(name: &'a str, at: &str, seen: &mut HashSet<&'a str>, causes: &mut Vec<Cause>) {
    for why in names::dns1123_label(name) {
        causes.push(Cause::invalid(format!("{at}.name"), &json!(name), &why));
    }
    if !seen.insert(name) {
        causes.push(Cause::duplicate(at, &json!(name)));
    }
}

fn check_request(request: &Value, at: &str, causes: &mut Vec<Cause>) {
    let class = text(request, "/deviceClassName");
    let field = format!("{at}.deviceClassName");
    if class.is_empty() {
        causes.push(Cause::required(field, ""));
    } else {
        for why in names::dns1123_subdomain(class) {
            causes.push(Cause::invalid(field.clone(), &json!(class), &why));
        }
    }
    check_selectors(request, &format!("{at}.selectors"), causes);
    let count = request.get("count").and_then(Value::as_i64).unwrap_or(0);
    let field = format!("{at}.count");
    match text(request, "/allocationMode") {
        "All" if count != 0 => {
            let why = "must not be specified when allocationMode is 'All'";
            causes.push(Cause::invalid(field, &json!(count), why));
        }
        "ExactCount" if count <= 0 => {
            let why = "must be greater than zero";
            causes.push(Cause::invalid(field, &json!(count), why));
        }
        "All" | "ExactCount" => {}
        other => {
            let field = format!("{at}.allocationMode");
            let known = ["All", "ExactCount"];
            causes.push(Cause::unsupported(field, &json!(other), &known));
        }
    }
}

fn check_selectors(of: &Value, at: &str, causes: &mut Vec<Cause>) {
    for (index, selector) in items(of, "/selectors").iter().enumerate() {
        if selector.get("cel").is_none_or(Value::is_null) {
            causes.push(Cause::required(format!("{at}[{index}].cel"), ""));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fields(claim: &Value) -> Vec<String> {
        let mut causes = Vec::new();
        validate_claim(claim, &mut causes);
        causes.into_iter().map(|cause| cause.field).collect()
    }

    #[test]
    fn device_claim_defaults_to_one_device() {
        let request = json!({"name": "gpu", "exactly": {"deviceClassName": "gpu.example.com"}});
        let mut claim = json!({"spec": {"devices": {"requests": [request]}}});
        default_claim(&mut claim);
        assert_eq!(
            claim["spec"]["devices"]["requests"][0]["exactly"]["count"],
            1
        );
        assert_eq!(fields(&claim), [""; 0]);
        let both =
            json!([{"name": "a"}, {"name": "a", "exactly": {"allocationMode": "All", "count": 2}}]);
        claim["spec"]["devices"]["requests"] = both;
        let at = "spec.devices.requests";
        let wanted = [
            format!("{at}[0]"),
            format!("{at}[1]"),
            format!("{at}[1].exactly.deviceClassName"),
            format!("{at}[1].exactly.count"),
        ];
        assert_eq!(fields(&claim), wanted);
    }

    #[test]
    fn a_slice_has_a_driver_and_a_pool() {
        let pool = json!({"name": "node-1", "resourceSliceCount": 1, "generation": 1});
        let good = json!({"spec": {"driver": "d.example.com", "pool": pool, "nodeName": "n"}});
        let mut causes = Vec::new();
        validate_slice(&good, &mut causes);
        assert_eq!(causes, []);
        validate_slice(&json!({"spec": {}}), &mut causes);
        assert_eq!(causes.len(), 4);
    }

    #[test]
    fn a_slice_names_its_nodes_in_one_way() {
        let fields = |spec: Value| -> Vec<String> {
            let mut causes = Vec::new();
            check_nodes(&spec, &mut causes);
            causes.into_iter().map(|cause| cause.field).collect()
        };
        assert_eq!(fields(json!({"allNodes": true})), [""; 0]);
        assert_eq!(fields(json!({})), ["spec"]);
        let both = json!({"nodeName": "n", "allNodes": true});
        assert_eq!(fields(both), ["spec"]);
        let off = json!({"nodeName": "n", "allNodes": false});
        assert_eq!(fields(off), ["spec.allNodes"]);
    }

    #[test]
    fn changed_template_keeps_its_errors_and_a_changed_claim_has_one() {
        let spec = |name: &str| json!({"devices": {"requests": [{"name": name, "exactly": {"deviceClassName": "c"}}]}});
        let template = |name: &str| json!({"spec": {"spec": spec(name)}});
        let mut causes = Vec::new();
        validate_claim_template(&template("Bad Name"), &mut causes);
        let errors = causes.clone();
        validate_template_update(&template("r"), &template("Bad Name"), &mut causes);
        assert!(!errors.is_empty() && causes.starts_with(&errors));
        assert_eq!(causes.len(), errors.len() + 1);
        let claim = |name: &str| json!({"spec": spec(name)});
        causes.clear();
        validate_claim(&claim("Bad Name"), &mut causes);
        validate_spec_update(&claim("r"), &claim("Bad Name"), &mut causes);
        assert_eq!(causes.len(), 1);
    }
}
