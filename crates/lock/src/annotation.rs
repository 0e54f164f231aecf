//! The record in an annotation of a ConfigMap or of Endpoints.
//!
//! The record is written byte for byte as Go writes it, and read as Go reads it: keys in any case, unknown keys
//! ignored, and the last of several equal keys wins.

use std::fmt;

use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde_json::{Value, json};
use tenure_core::Record;

use crate::fields::{Field, int32};
use crate::object;
use crate::snapshot::StoredRecord;
use crate::time;

/// The annotation that contains the record.
pub const LEADER_ANNOTATION: &str = "control-plane.alpha.kubernetes.io/leader";

const FIELDS: [(&str, Field); 7] = [
    ("holderIdentity", Field::Holder),
    ("leaseDurationSeconds", Field::Duration),
    ("acquireTime", Field::AcquireTime),
    ("renewTime", Field::RenewTime),
    ("leaderTransitions", Field::Transitions),
    ("strategy", Field::Strategy),
    ("preferredHolder", Field::PreferredHolder),
];

/// Reads the record. An object without the annotation has an empty record.
pub(crate) fn read(object: &Value) -> StoredRecord {
    let Some(text) = object::annotation(object, LEADER_ANNOTATION) else {
        return StoredRecord::default();
    };
    let (record, unreadable) = match serde_json::from_str::<GoRecord>(text) {
        Ok(GoRecord(record)) => (record, None),
        Err(error) => {
            let why = format!("annotation {LEADER_ANNOTATION}: {error}");
            (Record::default(), Some(why))
        }
    };
    StoredRecord {
        record,
        text: text.to_owned(),
        unreadable,
    }
}

/// Returns the object with this record, as text.
pub(crate) fn body(mut object: Value, record: &Record) -> String {
    object::set_metadata(&mut object, "annotations", LEADER_ANNOTATION, &text(record));
    object.to_string()
}

/// Returns the record as Go's encoder writes it: fixed order, no spaces, `<`, `>` and `&` escaped.
pub(crate) fn text(record: &Record) -> String {
    let mut text = String::from("{");
    let mut field = |name: &str, value: Value| {
        let comma = if text.len() > 1 { "," } else { "" };
        text.push_str(&format!("{comma}\"{name}\":{value}"));
    };
    field("holderIdentity", json!(record.holder));
    field(
        "leaseDurationSeconds",
        json!(int32(record.lease_duration_seconds)),
    );
    field("acquireTime", time::seconds(record.acquire_time));
    field("renewTime", time::seconds(record.renew_time));
    field("leaderTransitions", json!(int32(record.transitions)));
    if !record.strategy.is_empty() {
        field("strategy", json!(record.strategy));
    }
    if !record.preferred_holder.is_empty() {
        field("preferredHolder", json!(record.preferred_holder));
    }
    text.push('}');
    escape_as_go(&text)
}

/// Escapes these characters as Go does. In JSON they occur only inside strings.
pub(crate) fn escape_as_go(json: &str) -> String {
    let mut escaped = String::with_capacity(json.len());
    for c in json.chars() {
        match c {
            '<' | '>' | '&' | '\u{2028}' | '\u{2029}' => {
                escaped.push_str(&format!("\\u{:04x}", u32::from(c)));
            }
            c => escaped.push(c),
        }
    }
    escaped
}

/// A record that is parsed like `json.Unmarshal` parses it, but with more tolerance for its values.
struct GoRecord(Record);

impl<'de> Deserialize<'de> for GoRecord {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(GoVisitor)
    }
}

struct GoVisitor;

impl<'de> Visitor<'de> for GoVisitor {
    type Value = GoRecord;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an election record (a JSON object)")
    }

    fn visit_unit<E>(self) -> Result<GoRecord, E> {
        Ok(GoRecord(Record::default()))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<GoRecord, A::Error> {
        let mut record = Record::default();
        while let Some((key, value)) = map.next_entry::<String, Value>()? {
            let known = FIELDS
                .iter()
                .find(|(name, _)| name.eq_ignore_ascii_case(&key));
            if let Some((name, field)) = known {
                let read = field.read(&value, &mut record);
                read.map_err(|why| serde::de::Error::custom(format!("{name}: {why}")))?;
            }
        }
        Ok(GoRecord(record))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use tenure_core::WallTime;

    use super::*;
    use crate::testing;

    fn object(text: &str) -> Value {
        json!({ "metadata": { "annotations": { LEADER_ANNOTATION: text } } })
    }

    #[test]
    fn text_equals_that_of_go() {
        let record = Record {
            holder: "a<b>&c\u{2028}\"\u{8}".to_owned(),
            lease_duration_seconds: 15,
            acquire_time: Some(WallTime::from_micros(1_507_594_122_000_000)),
            renew_time: None,
            transitions: 3,
            ..Record::default()
        };
        assert_eq!(
            text(&record),
            concat!(
                r#"{"holderIdentity":"a\u003cb\u003e\u0026c\u2028\"\b","leaseDurationSeconds":15,"#,
                r#""acquireTime":"2017-10-10T00:08:42Z","renewTime":null,"leaderTransitions":3}"#
            )
        );
        let coordinated = Record {
            strategy: "s".to_owned(),
            preferred_holder: "p".to_owned(),
            ..Record::default()
        };
        assert!(text(&coordinated).ends_with(r#","strategy":"s","preferredHolder":"p"}"#));
    }

    #[test]
    fn record_of_a_real_cluster_is_read() {
        let stored = read(&object(concat!(
            r#"{"holderIdentity":"bananapi","leaseDurationSeconds":15,"#,
            r#""acquireTime":"2017-10-10T00:08:42Z","renewTime":"2018-03-14T03:01:42.486157803+01:00","#,
            r#""leaderTransitions":7,"strategy":"","preferredHolder":"","new":{"a":[1]}}"#
        )));
        assert_eq!(stored.unreadable, None);
        assert_eq!(stored.record.holder, "bananapi");
        assert_eq!(stored.record.transitions, 7);
        assert_eq!(
            stored.record.renew_time,
            Some(WallTime::from_micros(1_520_992_902_486_157))
        );
    }

    #[test]
    fn keys_are_read_in_any_case_and_the_last_one_wins() {
        let stored = read(&object(
            r#"{"HOLDERIDENTITY":"a","holderidentity":"b","LeaseDurationSeconds":9}"#,
        ));
        assert_eq!(
            (
                stored.record.holder.as_str(),
                stored.record.lease_duration_seconds
            ),
            ("b", 9)
        );
        let null_later = read(&object(r#"{"holderIdentity":"a","holderIdentity":null}"#));
        assert_eq!(null_later.record.holder, "a");
    }

    #[test]
    fn object_without_the_annotation_has_a_free_record() {
        for object in [
            json!({}),
            json!({ "metadata": { "annotations": null } }),
            Value::Null,
        ] {
            assert_eq!(read(&object), StoredRecord::default());
        }
        assert_eq!(read(&object("null")).record, Record::default());
        assert_eq!(read(&object("null")).unreadable, None);
    }

    #[test]
    fn invalid_annotation_is_unreadable_and_its_error_has_the_position() {
        for text in [
            "",
            "{",
            "[]",
            "7",
            "\"a\"",
            "{} {}",
            r#"{"holderIdentity":7}"#,
            r#"{"leaseDurationSeconds":"15"}"#,
        ] {
            let stored = read(&object(text));
            let why = stored.unreadable.expect(text);
            assert!(why.starts_with("annotation control-plane.alpha.kubernetes.io/leader: "));
            assert_eq!(
                (stored.record, stored.text.as_str()),
                (Record::default(), text)
            );
        }
    }

    proptest! {
        #[test]
        fn records_round_trip(record in testing::record()) {
            let stored = read(&object(&text(&record)));
            prop_assert_eq!(stored.unreadable, None);
            prop_assert_eq!(stored.record, record);
        }

        #[test]
        fn any_annotation_is_read_without_panic(value in testing::json(), text: String) {
            read(&value);
            read(&object(&value.to_string()));
            read(&object(&text));
        }

        #[test]
        fn any_object_can_be_written(value in testing::json(), record in testing::record()) {
            let written: Value = serde_json::from_str(&body(value, &record)).unwrap();
            prop_assert_eq!(read(&written).record, record);
        }
    }
}
