//! The group `storage.k8s.io`: classes, drivers, nodes, attachments, capacities.

use std::collections::HashSet;

use serde_json::{Value, json};

use super::volume::{has, validate_driver_name, validate_selector, validate_volume_spec};
use super::{
    child, entries, immutable, immutable_text, items, set_default, set_default_text, text,
};
use crate::names;
use crate::quantity::Quantity;
use crate::status::Cause;

const PARAMETERS: usize = 512;
const PARAMETERS_SIZE: usize = 256 * 1024;
const ERROR_SIZE: usize = 1024;
const NODE_ID: usize = 256;

pub(in crate::registry) fn default_class(class: &mut Value) {
    if let Some(class) = class.as_object_mut() {
        set_default_text(class, "reclaimPolicy", "Delete");
        set_default_text(class, "volumeBindingMode", "Immediate");
    }
}

pub(in crate::registry) fn validate_class(class: &Value, causes: &mut Vec<Cause>) {
    validate_provisioner(text(class, "/provisioner"), "provisioner", causes);
    validate_parameters(class, true, causes);
    let policy = text(class, "/reclaimPolicy");
    let known = ["Delete", "Retain"];
    if !policy.is_empty() && !known.contains(&policy) {
        causes.push(Cause::unsupported("reclaimPolicy", &json!(policy), &known));
    }
    let mode = text(class, "/volumeBindingMode");
    let known = ["Immediate", "WaitForFirstConsumer"];
    if !known.contains(&mode) {
        causes.push(Cause::unsupported(
            "volumeBindingMode",
            &json!(mode),
            &known,
        ));
    }
    validate_topologies(class, causes);
}

fn validate_topologies(class: &Value, causes: &mut Vec<Cause>) {
    let terms = items(class, "/allowedTopologies");
    let mut seen_terms = HashSet::new();
    for (index, term) in terms.iter().enumerate() {
        let at = format!("allowedTopologies[{index}].matchLabelExpressions");
        let wanted = items(term, "/matchLabelExpressions");
        let mut seen_keys = HashSet::new();
        for (place, one) in wanted.iter().enumerate() {
            let values = items(one, "/values");
            let mut seen = HashSet::new();
            if values.is_empty() {
                causes.push(Cause::required(format!("{at}[{place}].values"), ""));
            }
            for (number, value) in values.iter().enumerate() {
                if !seen.insert(value) {
                    let field = format!("{at}[{place}].values[{number}]");
                    causes.push(Cause::duplicate(field, value));
                }
            }
            let key = text(one, "/key");
            for why in names::qualified_name(key) {
                causes.push(Cause::invalid(
                    format!("{at}[{place}].key"),
                    &json!(key),
                    &why,
                ));
            }
            if !seen_keys.insert(key) {
                causes.push(Cause::duplicate(format!("{at}[{place}].key"), &json!(key)));
            }
        }
        if !seen_terms.insert(term) {
            causes.push(Cause::duplicate(at, &json!("")));
        }
    }
}

pub(in crate::registry) fn validate_class_update(
    old: &Value,
    new: &Value,
    causes: &mut Vec<Cause>,
) {
    for member in ["parameters", "reclaimPolicy", "volumeBindingMode"] {
        immutable(old, new, &format!("/{member}"), member, causes);
    }
    immutable_text(old, new, "/provisioner", "provisioner", causes);
}

fn validate_provisioner(name: &str, at: &str, causes: &mut Vec<Cause>) {
    if name.is_empty() {
        causes.push(Cause::required(at, ""));
        return;
    }
    for why in names::qualified_name(&name.to_lowercase()) {
        causes.push(Cause::invalid(at, &json!(name.to_lowercase()), &why));
    }
}

fn validate_parameters(object: &Value, may_be_empty: bool, causes: &mut Vec<Cause>) {
    let parameters: Vec<_> = entries(object, "/parameters").collect();
    if parameters.len() > PARAMETERS {
        causes.push(Cause::too_long("parameters", PARAMETERS));
        return;
    }
    let mut size = 0;
    for (key, value) in &parameters {
        if key.is_empty() {
            let why = "field can not be empty.";
            causes.push(Cause::invalid("parameters", &json!(""), why));
        }
        size += key.len() + value.as_str().map_or(0, str::len);
    }
    if size > PARAMETERS_SIZE {
        causes.push(Cause::too_long("parameters", PARAMETERS_SIZE));
    }
    if parameters.is_empty() && !may_be_empty {
        let why = "must contain at least one key/value pair";
        causes.push(Cause::required("parameters", why));
    }
}

pub(in crate::registry) fn validate_attributes_class(class: &Value, causes: &mut Vec<Cause>) {
    validate_provisioner(text(class, "/driverName"), "driverName", causes);
    validate_parameters(class, false, causes);
}

pub(in crate::registry) fn validate_attributes_class_update(
    old: &Value,
    new: &Value,
    causes: &mut Vec<Cause>,
) {
    for member in ["driverName", "parameters"] {
        if old.get(member) != new.get(member) {
            let why = format!("updates to {member} are forbidden.");
            causes.push(Cause::forbidden(member, &why));
        }
    }
}

pub(in crate::registry) fn default_driver(driver: &mut Value) {
    let Some(spec) = child(driver, "spec") else {
        return;
    };
    set_default(spec, "attachRequired", true);
    for member in [
        "podInfoOnMount",
        "storageCapacity",
        "requiresRepublish",
        "seLinuxMount",
    ] {
        set_default(spec, member, false);
    }
    set_default_text(spec, "fsGroupPolicy", "ReadWriteOnceWithFSType");
    set_default(spec, "volumeLifecycleModes", json!(["Persistent"]));
}

pub(in crate::registry) fn validate_driver(driver: &Value, causes: &mut Vec<Cause>) {
    let policy = text(driver, "/spec/fsGroupPolicy");
    let known = ["File", "None", "ReadWriteOnceWithFSType"];
    if !known.contains(&policy) {
        let field = "spec.fsGroupPolicy";
        causes.push(Cause::unsupported(field, &json!(policy), &known));
    }
    let requests = items(driver, "/spec/tokenRequests");
    for (index, request) in requests.iter().enumerate() {
        let at = format!("spec.tokenRequests[{index}]");
        let audience = text(request, "/audience");
        if requests[..index]
            .iter()
            .any(|other| text(other, "/audience") == audience)
        {
            causes.push(Cause::duplicate(format!("{at}.audience"), &json!(audience)));
            continue;
        }
        let seconds = request.get("expirationSeconds").and_then(Value::as_i64);
        let field = format!("{at}.expirationSeconds");
        if let Some(seconds) = seconds.filter(|seconds| *seconds < 600) {
            let why = "may not specify a duration less than 10 minutes";
            causes.push(Cause::invalid(field.clone(), &json!(seconds), why));
        }
        if let Some(seconds) = seconds.filter(|seconds| *seconds > 1 << 32) {
            let why = "may not specify a duration larger than 2^32 seconds";
            causes.push(Cause::invalid(field, &json!(seconds), why));
        }
    }
    let known = ["Persistent", "Ephemeral"];
    for mode in items(driver, "/spec/volumeLifecycleModes") {
        if !mode.as_str().is_some_and(|mode| known.contains(&mode)) {
            causes.push(Cause::unsupported(
                "spec.volumeLifecycleModes",
                mode,
                &known,
            ));
        }
    }
    let period = driver.pointer("/spec/nodeAllocatableUpdatePeriodSeconds");
    if let Some(period) = period.filter(|period| period.as_i64() < Some(10)) {
        let field = "spec.nodeAllocatableUpdatePeriodSeconds";
        let why = "must be greater than or equal to 10 seconds";
        causes.push(Cause::invalid(field, period, why));
    }
    let secrets = driver.pointer("/spec/serviceAccountTokenInSecrets");
    if let Some(secrets) = secrets.filter(|value| !value.is_null() && requests.is_empty()) {
        let why = "serviceAccountTokenInSecrets is set but no tokenRequests are specified";
        causes.push(Cause::invalid(
            "spec.serviceAccountTokenInSecrets",
            secrets,
            why,
        ));
    }
}

pub(in crate::registry) fn validate_driver_update(
    old: &Value,
    new: &Value,
    causes: &mut Vec<Cause>,
) {
    let attach = "/spec/attachRequired";
    immutable(old, new, attach, "spec.attachedRequired", causes);
    let modes = "/spec/volumeLifecycleModes";
    immutable(old, new, modes, "spec.volumeLifecycleModes", causes);
}

pub(in crate::registry) fn validate_node(node: &Value, causes: &mut Vec<Cause>) {
    let drivers = items(node, "/spec/drivers");
    let mut seen = HashSet::new();
    for (index, driver) in drivers.iter().enumerate() {
        let at = format!("spec.drivers[{index}]");
        let name = text(driver, "/name");
        validate_driver_name(name, &format!("{at}.name"), causes);
        let id = text(driver, "/nodeID");
        if id.is_empty() {
            causes.push(Cause::required(format!("{at}.nodeID"), ""));
        }
        if id.len() > NODE_ID {
            let why = format!("must be {NODE_ID} characters or less");
            causes.push(Cause::invalid(format!("{at}.nodeID"), &json!(id), &why));
        }
        let count = driver.pointer("/allocatable/count");
        if let Some(count) = count.filter(|count| count.as_i64() < Some(0)) {
            let why = "must be greater than or equal to 0";
            causes.push(Cause::invalid(
                format!("{at}.allocatable.count"),
                count,
                why,
            ));
        }
        if !seen.insert(name) {
            causes.push(Cause::duplicate(format!("{at}.name"), &json!(name)));
        }
        let keys = items(driver, "/topologyKeys");
        let mut seen_keys = HashSet::new();
        for key in keys {
            let key_text = key.as_str().unwrap_or_default();
            if key_text.is_empty() {
                causes.push(Cause::required(at.clone(), ""));
            }
            if !seen_keys.insert(key) {
                causes.push(Cause::duplicate(at.clone(), key));
            }
            for why in names::qualified_name(key_text) {
                causes.push(Cause::invalid(at.clone(), key, &why));
            }
        }
    }
}

/// Rejects changes of an existing driver entry of a node, except of `allocatable`. Entries may be added and removed.
pub(in crate::registry) fn validate_node_update(old: &Value, new: &Value, causes: &mut Vec<Cause>) {
    let kept = |driver: &Value| {
        let mut driver = driver.clone();
        driver.as_object_mut().map(|map| map.remove("allocatable"));
        driver
    };
    for was in items(old, "/spec/drivers") {
        let name = text(was, "/name");
        let drivers = items(new, "/spec/drivers").iter();
        for is in drivers.filter(|driver| text(driver, "/name") == name) {
            if kept(was) != kept(is) {
                let why = "field is immutable";
                causes.push(Cause::invalid("spec.drivers", &kept(is), why));
            }
        }
    }
}

pub(in crate::registry) fn prepare_attachment(attachment: &mut Value) {
    attachment["status"] = json!({"attached": false});
}

pub(in crate::registry) fn validate_attachment(attachment: &Value, causes: &mut Vec<Cause>) {
    let attacher = text(attachment, "/spec/attacher");
    validate_driver_name(attacher, "spec.attacher", causes);
    let source = attachment.pointer("/spec/source").unwrap_or(&Value::Null);
    let why = "must specify exactly one of inlineVolumeSpec and persistentVolumeName";
    let volume = text(source, "/persistentVolumeName");
    match (
        has(source, "inlineVolumeSpec"),
        has(source, "persistentVolumeName"),
    ) {
        (false, false) => causes.push(Cause::required("spec.source", why)),
        (true, true) => causes.push(Cause::forbidden("spec.source", why)),
        (false, true) if volume.is_empty() => {
            let why = "must specify non empty persistentVolumeName";
            causes.push(Cause::required("spec.source.persistentVolumeName", why));
        }
        (false, true) => {}
        (true, false) => {
            let at = "spec.source.inlineVolumeSpec";
            validate_volume_spec(&source["inlineVolumeSpec"], at, true, causes);
        }
    }
    let node = text(attachment, "/spec/nodeName");
    for why in names::dns1123_subdomain(node) {
        causes.push(Cause::invalid("spec.nodeName", &json!(node), &why));
    }
    validate_attachment_status(attachment, causes);
    if has(source, "persistentVolumeName") {
        for why in names::dns1123_subdomain(volume) {
            let field = "spec.source.persistentVolumeName";
            causes.push(Cause::invalid(field, &json!(volume), &why));
        }
    }
}

pub(in crate::registry) fn validate_attachment_status(value: &Value, causes: &mut Vec<Cause>) {
    let size: usize = entries(value, "/status/attachmentMetadata")
        .map(|(key, value)| key.len() + value.as_str().map_or(0, str::len))
        .sum();
    if size > PARAMETERS_SIZE {
        causes.push(Cause::too_long(
            "status.attachmentMetadata",
            PARAMETERS_SIZE,
        ));
    }
    for member in ["attachError", "detachError"] {
        if text(value, &format!("/status/{member}/message")).len() > ERROR_SIZE {
            let field = format!("status.{member}.message");
            causes.push(Cause::too_long(field, PARAMETERS_SIZE));
        }
        let code = value.pointer(&format!("/status/{member}/errorCode"));
        if let Some(code) = code.filter(|code| code.as_i64() < Some(0)) {
            let why = "must be between 0 and 2147483647, inclusive";
            causes.push(Cause::invalid(
                format!("status.{member}.errorCode"),
                code,
                why,
            ));
        }
    }
}

pub(in crate::registry) fn validate_attachment_update(
    old: &Value,
    new: &Value,
    causes: &mut Vec<Cause>,
) {
    immutable(old, new, "/spec", "spec", causes);
}

pub(in crate::registry) fn validate_capacity(capacity: &Value, causes: &mut Vec<Cause>) {
    if let Some(topology) = capacity.get("nodeTopology") {
        validate_selector(topology, "nodeTopology", causes);
    }
    let class = text(capacity, "/storageClassName");
    for why in names::dns1123_subdomain(class) {
        causes.push(Cause::invalid("storageClassName", &json!(class), &why));
    }
    let amount = capacity.get("capacity").and_then(Value::as_str);
    let negative = |text: &&str| text.parse::<Quantity>().is_ok_and(|q| q.signum() < 0);
    if let Some(amount) = amount.filter(negative) {
        let why = "must be greater than or equal to 0";
        causes.push(Cause::invalid("capacity", &json!(amount), why));
    }
}

pub(in crate::registry) fn validate_capacity_update(
    old: &Value,
    new: &Value,
    causes: &mut Vec<Cause>,
) {
    immutable(old, new, "/nodeTopology", "nodeTopology", causes);
    immutable_text(old, new, "/storageClassName", "storageClassName", causes);
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
    fn classes_are_checked_field_by_field() {
        let mut class = json!({"provisioner": "a/b/c", "parameters": {"": "x"},
            "allowedTopologies": [{"matchLabelExpressions": [{"key": "k"}, {"key": "k", "values": ["a", "a"]}]}]});
        default_class(&mut class);
        assert_eq!(
            fields(validate_class, &class),
            [
                "provisioner",
                "parameters",
                "allowedTopologies[0].matchLabelExpressions[0].values",
                "allowedTopologies[0].matchLabelExpressions[1].values[1]",
                "allowedTopologies[0].matchLabelExpressions[1].key",
            ]
        );
        let empty = json!({"driverName": "d.example"});
        assert_eq!(fields(validate_attributes_class, &empty), ["parameters"]);
    }

    #[test]
    fn an_attachment_names_one_volume() {
        let nothing = json!({"spec": {"attacher": "d", "nodeName": "n", "source": {}}});
        assert_eq!(fields(validate_attachment, &nothing), ["spec.source"]);
        let inline = json!({"spec": {"attacher": "d", "nodeName": "n", "source":
            {"inlineVolumeSpec": {"accessModes": ["ReadWriteOnce"], "csi": {"driver": "d", "volumeHandle": "h"}}}}});
        assert_eq!(fields(validate_attachment, &inline), [""; 0]);
    }

    #[test]
    fn driver_entry_of_a_node_is_immutable() {
        let node = |id: &str, count: i64| json!({"spec": {"drivers": [{"name": "d", "nodeID": id, "allocatable": {"count": count}}]}});
        let mut causes = Vec::new();
        validate_node_update(&node("a", 1), &node("a", 2), &mut causes);
        assert_eq!(causes, []);
        validate_node_update(&node("a", 1), &node("b", 1), &mut causes);
        assert_eq!(causes[0].field, "spec.drivers");
        assert_eq!(
            fields(validate_node, &node("", -1)),
            [
                "spec.drivers[0].nodeID",
                "spec.drivers[0].allocatable.count"
            ]
        );
    }

    #[test]
    fn drivers_get_their_defaults() {
        let mut driver = json!({"spec": {"serviceAccountTokenInSecrets": true}});
        default_driver(&mut driver);
        assert_eq!(
            driver["spec"]["volumeLifecycleModes"],
            json!(["Persistent"])
        );
        assert_eq!(
            fields(validate_driver, &driver),
            ["spec.serviceAccountTokenInSecrets"]
        );
    }
}
