//! The record in the spec of a Lease.

use serde::Serialize;
use serde_json::{Map, Value};
use tenure_core::Record;

use crate::fields::{Field, int32};
use crate::snapshot::StoredRecord;
use crate::time;

/// Names of the fields in the spec. The number of transitions has a different name here than in annotations.
const FIELDS: [(&str, Field); 7] = [
    ("holderIdentity", Field::Holder),
    ("leaseDurationSeconds", Field::Duration),
    ("acquireTime", Field::AcquireTime),
    ("renewTime", Field::RenewTime),
    ("leaseTransitions", Field::Transitions),
    ("strategy", Field::Strategy),
    ("preferredHolder", Field::PreferredHolder),
];

/// Reads the record. A Lease without a spec has an empty record.
pub(crate) fn read(object: &Value) -> StoredRecord {
    let spec = &object["spec"];
    let mut stored = StoredRecord::default();
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

/// Returns the Lease with this record, as text. It preserves every other field, including fields of the spec that only
/// a newer API knows.
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
            rest: spec,
            ..Spec::new(record)
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

/// Fields in the order of the Go type.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Spec<'a> {
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

impl<'a> Spec<'a> {
    /// Creates a spec that contains only this record.
    pub(crate) fn new(record: &'a Record) -> Self {
        Self {
            holder_identity: &record.holder,
            lease_duration_seconds: int32(record.lease_duration_seconds),
            acquire_time: time::micro(record.acquire_time),
            renew_time: time::micro(record.renew_time),
            lease_transitions: int32(record.transitions),
            strategy: &record.strategy,
            preferred_holder: &record.preferred_holder,
            rest: Map::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;
    use tenure_core::WallTime;

    use super::*;
    use crate::testing;

    fn round_trip(record: &Record) -> StoredRecord {
        read(&serde_json::from_str(&body(json!({}), record)).unwrap())
    }

    #[test]
    fn case_11_conversion_there_and_back_is_loss_free() {
        let record = Record {
            holder: "foo".to_owned(),
            lease_duration_seconds: 15,
            acquire_time: Some(WallTime::from_micros(1_767_323_045_000_006)),
            renew_time: Some(WallTime::from_micros(1_767_323_047_123_456)),
            transitions: 1,
            strategy: "OldestEmulationVersion".to_owned(),
            preferred_holder: "bar".to_owned(),
        };
        let once = round_trip(&record);
        assert_eq!(once.record, record);
        assert_eq!(round_trip(&once.record), once);
    }

    #[test]
    fn missing_and_null_fields_give_a_free_record() {
        for object in [
            json!({}),
            json!({ "spec": {} }),
            json!({ "spec": { "holderIdentity": null } }),
        ] {
            assert_eq!(
                (read(&object).record, read(&object).unreadable),
                (Record::default(), None)
            );
        }
    }

    #[test]
    fn the_text_changes_with_any_field_and_not_with_the_order_or_metadata() {
        let a = read(&json!({ "spec": { "holderIdentity": "a", "renewTime": "x" } }));
        let b = read(
            &json!({ "metadata": { "labels": { "l": "m" } }, "spec": { "renewTime": "x", "holderIdentity": "a" } }),
        );
        let c = read(&json!({ "spec": { "holderIdentity": "a", "renewTime": "y" } }));
        assert_eq!(a.text, b.text);
        assert_ne!(a.text, c.text);
        assert_eq!(a.record, c.record);
    }

    #[test]
    fn a_spec_of_the_wrong_types_is_unreadable() {
        let stored = read(&json!({ "spec": { "holderIdentity": ["a"], "leaseTransitions": 3 } }));
        assert_eq!(
            stored.unreadable.as_deref(),
            Some(r#"spec.holderIdentity: expected a string, found ["a"]"#)
        );
        assert_eq!(stored.record, Record::default());
    }

    #[test]
    fn fields_of_a_newer_api_are_kept() {
        let object = json!({ "spec": { "holderIdentity": "a", "strategy": "s", "new": [1] }, "status": { "x": 1 } });
        let written: Value = serde_json::from_str(&body(object, &Record::default())).unwrap();
        assert_eq!(written["spec"]["new"], json!([1]));
        assert_eq!(written["status"], json!({ "x": 1 }));
        assert!(written["spec"].get("strategy").is_none());
    }

    proptest! {
        #[test]
        fn records_round_trip(record in testing::record()) {
            prop_assert_eq!(round_trip(&record).record, record);
        }

        #[test]
        fn any_object_is_read_and_written_without_panic(
            value in testing::json(), spec in testing::json(), record in testing::record(),
        ) {
            read(&value);
            read(&json!({ "spec": spec }));
            let written: Value = serde_json::from_str(&body(value, &record)).unwrap();
            prop_assert_eq!(read(&written).record, record);
        }
    }
}
