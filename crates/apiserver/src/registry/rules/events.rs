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

/// Validates events of the core group with the older rules.
pub(in crate::registry) fn validate_core(event: &Value, causes: &mut Vec<Cause>) {
    check_either(event, "reportingComponent", causes);
}

/// Validates new and changed events of the group `events.k8s.io`.
pub(in crate::registry) fn validate_either(event: &Value, causes: &mut Vec<Cause>) {
    check_either(event, "reportingController", causes);
}

/// Validates new events of the group `events.k8s.io`, which must not use the older members. An update can change none
/// of these members except the series, so that an event of the core group can be updated.
pub(in crate::registry) fn validate_new(event: &Value, causes: &mut Vec<Cause>) {
    check_series(event, causes);
    if event["eventTime"].is_null() {
        causes.push(Cause::required("eventTime", ""));
    }
    check_new_members(event, causes);
}

fn check_series(event: &Value, causes: &mut Vec<Cause>) {
    if let Some(series) = event.get("series").filter(|series| !series.is_null()) {
        if series["count"].as_i64().unwrap_or(0) < 2 {
            let why = "should be at least 2";
            causes.push(Cause::invalid("series.count", &json!(""), why));
        }
        if series["lastObservedTime"].is_null() {
            causes.push(Cause::required("series.lastObservedTime", ""));
        }
    }
}

fn check_new_members(event: &Value, causes: &mut Vec<Cause>) {
    let kind = text(event, "/type");
    if !matches!(kind, "Normal" | "Warning") {
        let why = format!("has invalid value: {kind}");
        causes.push(Cause::invalid("type", &json!(""), &why));
    }
    let source = ["/source/component", "/source/host"];
    for (is_set, field) in [
        (!event["firstTimestamp"].is_null(), "firstTimestamp"),
        (!event["lastTimestamp"].is_null(), "lastTimestamp"),
        (
            event["count"].as_i64().is_some_and(|count| count != 0),
            "count",
        ),
        (
            source.iter().any(|member| !text(event, member).is_empty()),
            "source",
        ),
    ] {
        if is_set {
            causes.push(Cause::invalid(field, &json!(""), "needs to be unset"));
        }
    }
}

pub(in crate::registry) fn validate_new_update(old: &Value, new: &Value, causes: &mut Vec<Cause>) {
    if old.get("series") != new.get("series") {
        check_series(new, causes);
    }
    let fixed = [
        ("/involvedObject", "involvedObject"),
        ("/source", "source"),
        ("/firstTimestamp", "firstTimestamp"),
        ("/lastTimestamp", "lastTimestamp"),
        ("/eventTime", "eventTime"),
        ("/related", "related"),
    ];
    for (pointer, field) in fixed {
        super::immutable(old, new, pointer, field, causes);
    }
    let [was, is] = [old, new].map(|event| event["count"].as_i64().unwrap_or(0));
    if was != is {
        causes.push(Cause::invalid("count", &json!(is), "field is immutable"));
    }
    let texts = [
        ("/reason", "reason"),
        ("/message", "message"),
        ("/type", "type"),
        ("/action", "action"),
        ("/reportingComponent", "reportingController"),
        ("/reportingInstance", "reportingInstance"),
    ];
    for (pointer, field) in texts {
        super::immutable_text(old, new, pointer, field, causes);
    }
}

/// Validates the namespace of an event, and the members that an event with `eventTime` has in both groups.
/// `controller` is the name of `reportingComponent` in the group of the request.
fn check_either(event: &Value, controller: &str, causes: &mut Vec<Cause>) {
    let about = text(event, "/involvedObject/namespace");
    let own = text(event, "/metadata/namespace");
    let has_time = !event["eventTime"].is_null();
    let fits = match (has_time, about) {
        (false, "") => own == "default",
        (false, about) => about == own,
        (true, "") => matches!(own, "default" | "kube-system"),
        (true, _) => true,
    };
    if !fits {
        let why = "does not match event.namespace";
        causes.push(Cause::invalid(
            "involvedObject.namespace",
            &json!(about),
            why,
        ));
    }
    if !has_time {
        return;
    }
    let reporter = text(event, "/reportingComponent");
    if reporter.is_empty() {
        causes.push(Cause::required(controller, ""));
    }
    for why in names::qualified_name(reporter) {
        causes.push(Cause::invalid(controller, &json!(reporter), &why));
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
    fn core_events_with_a_time_have_any_type_and_object() {
        let event = json!({"metadata": {"namespace": "n"}, "involvedObject": {"namespace": "m"},
            "eventTime": "2026-01-01T00:00:00.000000Z", "reportingComponent": "c",
            "reportingInstance": "i", "action": "a", "reason": "r", "type": "Odd", "count": 1});
        let fields = |validate: fn(&Value, &mut Vec<Cause>), event: &Value| -> Vec<String> {
            let mut causes = Vec::new();
            validate(event, &mut causes);
            causes.into_iter().map(|cause| cause.field).collect()
        };
        assert_eq!(fields(validate_core, &event), [""; 0]);
        assert_eq!(fields(validate_either, &event), [""; 0]);
        assert_eq!(fields(validate_new, &event), ["type", "count"]);
        let bare = json!({"metadata": {"namespace": "default"}, "eventTime": "t", "series": {}});
        let required = ["reportingInstance", "action", "reason"];
        let component = ["reportingComponent"; 2];
        let expected: Vec<&str> = component.into_iter().chain(required).collect();
        assert_eq!(fields(validate_core, &bare)[..2], component);
        assert!(
            expected
                .iter()
                .all(|field| fields(validate_core, &bare).iter().any(|it| it == field))
        );
        let found = fields(validate_new, &bare);
        assert!(
            found.ends_with(&[
                "series.count".into(),
                "series.lastObservedTime".into(),
                "type".into()
            ]),
            "{found:?}"
        );
    }

    #[test]
    fn update_of_a_new_event_compares_members_and_checks_a_changed_series() {
        let old = json!({"type": "Odd", "action": "a", "series": {"count": 1}});
        let update = |member: &str, value: Value| -> Vec<Cause> {
            let mut new = old.clone();
            new[member] = value;
            let mut causes = Vec::new();
            validate_new_update(&old, &new, &mut causes);
            causes
        };
        assert_eq!(update("type", json!("Odd")), []);
        assert_eq!(update("count", json!(0)), []);
        let message = "Invalid value: \"\": field is immutable";
        assert_eq!(update("action", json!(null))[0].message, message);
        assert_eq!(
            update("series", json!({"count": 0}))[0].field,
            "series.count"
        );
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
