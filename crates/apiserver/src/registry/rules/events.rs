//! Events: two API groups share one storage, which contains the core form.

use serde_json::{Map, Value, json};

use super::super::Field;
use super::{set_default_text, text};
use crate::names;
use crate::status::Cause;

/// Members that have different names in the two forms: core, events.k8s.io.
const RENAMED: &[(&str, &str)] = &[
    ("involvedObject", "regarding"),
    ("message", "note"),
    ("source", "deprecatedSource"),
    ("firstTimestamp", "deprecatedFirstTimestamp"),
    ("lastTimestamp", "deprecatedLastTimestamp"),
    ("count", "deprecatedCount"),
    ("reportingComponent", "reportingController"),
];

macro_rules! fields {
    ($object:literal, $($label:literal => $($pointer:literal)|+),*) => {
        &[
            Field::new(concat!($object, ".kind"), &["/involvedObject/kind"]),
            Field::new(concat!($object, ".namespace"), &["/involvedObject/namespace"]),
            Field::new(concat!($object, ".name"), &["/involvedObject/name"]),
            Field::new(concat!($object, ".uid"), &["/involvedObject/uid"]),
            Field::new(concat!($object, ".apiVersion"), &["/involvedObject/apiVersion"]),
            Field::new(concat!($object, ".resourceVersion"), &["/involvedObject/resourceVersion"]),
            Field::new(concat!($object, ".fieldPath"), &["/involvedObject/fieldPath"]),
            Field::new("reason", &["/reason"]),
            Field::new("type", &["/type"]),
            $(Field::new($label, &[$($pointer),+])),*
        ]
    };
}

pub(in crate::registry) const CORE_FIELDS: &[Field] = fields!(
    "involvedObject",
    "reportingComponent" => "/reportingComponent",
    "source" => "/source/component" | "/reportingComponent"
);

pub(in crate::registry) const NEW_FIELDS: &[Field] = fields!(
    "regarding",
    "reportingController" => "/reportingComponent"
);

pub(in crate::registry) fn to_core(event: Value) -> Value {
    rename(event, |pair| (pair.1, pair.0))
}

pub(in crate::registry) fn from_core(event: Value) -> Value {
    let mut event = rename(event, |pair| *pair);
    if let Some(map) = event.as_object_mut() {
        // The events.k8s.io form omits empty members that the core form always contains.
        for member in ["reportingController", "reportingInstance"] {
            if map.get(member).and_then(Value::as_str) == Some("") {
                map.remove(member);
            }
        }
    }
    event
}

/// Sets the members that the core form always contains, even if they are empty.
pub(in crate::registry) fn default_event(event: &mut Value) {
    let Some(map) = event.as_object_mut() else {
        return;
    };
    for member in ["involvedObject", "source"] {
        let slot = map.entry(member).or_insert(Value::Null);
        if slot.is_null() {
            *slot = json!({});
        }
    }
    for member in ["firstTimestamp", "lastTimestamp", "eventTime"] {
        map.entry(member).or_insert(Value::Null);
    }
    for member in ["reportingComponent", "reportingInstance"] {
        set_default_text(map, member, "");
    }
}

/// Validates events of the core group with the older, looser rules, unless they use members of the new form.
pub(in crate::registry) fn validate_core(event: &Value, causes: &mut Vec<Cause>) {
    check_namespace(event, causes);
    if !event["eventTime"].is_null() {
        check_new_fields(event, causes);
    }
}

pub(in crate::registry) fn validate_new(event: &Value, causes: &mut Vec<Cause>) {
    check_namespace(event, causes);
    if event["eventTime"].is_null() {
        causes.push(Cause::required("eventTime", ""));
        return;
    }
    check_new_fields(event, causes);
}

pub(in crate::registry) fn validate_new_update(old: &Value, new: &Value, causes: &mut Vec<Cause>) {
    let fixed = [
        ("/involvedObject", "involvedObject"),
        ("/reason", "reason"),
        ("/message", "message"),
        ("/source", "source"),
        ("/firstTimestamp", "firstTimestamp"),
        ("/lastTimestamp", "lastTimestamp"),
        ("/count", "count"),
        ("/type", "type"),
        ("/eventTime", "eventTime"),
        ("/action", "action"),
        ("/related", "related"),
        ("/reportingComponent", "reportingController"),
        ("/reportingInstance", "reportingInstance"),
    ];
    for (pointer, field) in fixed {
        super::immutable(old, new, pointer, field, causes);
    }
}

fn check_namespace(event: &Value, causes: &mut Vec<Cause>) {
    let about = text(event, "/involvedObject/namespace");
    let own = text(event, "/metadata/namespace");
    let new_style = !event["eventTime"].is_null();
    let fits = if about.is_empty() {
        own == "default" || (new_style && own == "kube-system")
    } else {
        about == own
    };
    if !fits {
        let why = "does not match event.namespace";
        causes.push(Cause::invalid(
            "involvedObject.namespace",
            &json!(about),
            why,
        ));
    }
}

fn check_new_fields(event: &Value, causes: &mut Vec<Cause>) {
    let controller = text(event, "/reportingComponent");
    if controller.is_empty() {
        causes.push(Cause::required("reportingController", ""));
    }
    for why in names::qualified_name(controller) {
        causes.push(Cause::invalid(
            "reportingController",
            &json!(controller),
            &why,
        ));
    }
    let mut check = |pointer: &str, field: &str, required: bool, limit: usize| {
        let value = text(event, pointer);
        if required && value.is_empty() {
            causes.push(Cause::required(field, ""));
        }
        if value.len() > limit {
            let why = format!("can have at most {limit} characters");
            causes.push(Cause::invalid(field, &json!(""), &why));
        }
    };
    check("/reportingInstance", "reportingInstance", true, 128);
    check("/action", "action", true, 128);
    check("/reason", "reason", true, 128);
    check("/message", "message", false, 1024);
    let kind = text(event, "/type");
    if !matches!(kind, "Normal" | "Warning") {
        let why = format!("has invalid value: {kind}");
        causes.push(Cause::invalid("type", &json!(""), &why));
    }
}

fn rename(
    event: Value,
    pair: fn(&(&'static str, &'static str)) -> (&'static str, &'static str),
) -> Value {
    let Value::Object(map) = event else {
        return event;
    };
    let names: Vec<(&str, &str)> = RENAMED.iter().map(pair).collect();
    let renamed: Map<String, Value> = map
        .into_iter()
        .map(|(key, value)| {
            let new = names
                .iter()
                .find(|(from, _)| *from == key)
                .map(|(_, to)| *to);
            (new.map_or(key, str::to_owned), value)
        })
        .collect();
    Value::Object(renamed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn event_forms_convert_in_both_directions() {
        let mut core = json!({"metadata": {"name": "e"}, "involvedObject": {"kind": "Lease"},
            "message": "m", "reportingComponent": "c", "count": 3});
        default_event(&mut core);
        let new = from_core(core.clone());
        assert_eq!(new["note"], "m");
        assert_eq!(new["regarding"], json!({"kind": "Lease"}));
        assert_eq!(new["deprecatedCount"], 3);
        assert!(new.get("reportingInstance").is_none());
        let mut back = to_core(new);
        default_event(&mut back);
        assert_eq!(back, core);
    }

    #[test]
    fn event_is_in_the_namespace_of_its_object() {
        let event = |own: &str, about: &str| json!({"metadata": {"namespace": own}, "involvedObject": {"namespace": about}});
        for (own, about, good) in [
            ("n", "n", true),
            ("n", "m", false),
            ("default", "", true),
            ("kube-system", "", false),
        ] {
            let mut causes = Vec::new();
            validate_core(&event(own, about), &mut causes);
            assert_eq!(causes.is_empty(), good, "{own} {about}");
        }
    }
}
