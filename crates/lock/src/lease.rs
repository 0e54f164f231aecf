//! The record in the spec of a Lease.

use serde::Serialize;
use serde_json::{Map, Value};
use tenure_core::Record;

use crate::fields::{Field, int32};
use crate::sighting::Stored;
use crate::time;

/// The names in the spec. The count of transitions has another name here than in annotations.
const FIELDS: [(&str, Field); 7] = [
    ("holderIdentity", Field::Holder),
    ("leaseDurationSeconds", Field::Duration),
    ("acquireTime", Field::AcquireTime),
    ("renewTime", Field::RenewTime),
    ("leaseTransitions", Field::Transitions),
    ("strategy", Field::Strategy),
    ("preferredHolder", Field::PreferredHolder),
];

/// Reads the record; a Lease without a spec has an empty one.
pub(crate) fn read(object: &Value) -> Stored {
    let spec = &object["spec"];
    let mut stored = Stored::default();
    for (name, field) in FIELDS {
        let value = &spec[name];
        stored.text.push_str(&value.to_string());
        stored.text.push(',');
        if let Err(why) = field.read(value, &mut stored.record) {
            stored.unreadable = Some(format!("spec.{name}: {why}"));
        }
    }
    if stored.unreadable.is_some() {
        stored.record = Record::default();
    }
    stored
}

/// The Lease with this record, as text. All but the record is kept, also fields of the spec that
/// only a newer API knows.
pub(crate) fn body(mut object: Value, record: &Record) -> String {
    let mut rest = match object.as_object_mut() {
        Some(object) => std::mem::take(object),
        None => Map::new(),
    };
    let mut spec = match rest.remove("spec") {
        Some(Value::Object(spec)) => spec,
        _ => Map::new(),
    };
    for (name, _) in FIELDS {
        spec.remove(name);
    }
    let body = Body {
        api_version: rest.remove("apiVersion"),
        kind: rest.remove("kind"),
        metadata: rest.remove("metadata"),
        spec: Spec {
            holder_identity: &record.holder,
            lease_duration_seconds: int32(record.lease_duration_seconds),
            acquire_time: time::micro(record.acquire_time),
            renew_time: time::micro(record.renew_time),
            lease_transitions: int32(record.transitions),
            strategy: &record.strategy,
            preferred_holder: &record.preferred_holder,
            rest: spec,
        },
        rest,
    };
    serde_json::to_string(&body).expect("maps with string keys are always JSON")
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Body<'a> {
    api_version: Option<Value>,
    kind: Option<Value>,
    metadata: Option<Value>,
    spec: Spec<'a>,
    #[serde(flatten)]
    rest: Map<String, Value>,
}

/// In the order of the Go type.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Spec<'a> {
    holder_identity: &'a str,
    lease_duration_seconds: i32,
    acquire_time: Value,
    renew_time: Value,
    lease_transitions: i32,
    #[serde(skip_serializing_if = "str::is_empty")]
    strategy: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    preferred_holder: &'a str,
    #[serde(flatten)]
    rest: Map<String, Value>,
}
