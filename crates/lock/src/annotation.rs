//! The record in an annotation of a ConfigMap or of Endpoints.
//!
//! Written byte for byte as Go writes it, and read as Go reads it: keys in any case, unknown ones
//! ignored, the last of equal ones valid.

use std::fmt;

use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde_json::{Value, json};
use tenure_core::Record;

use crate::fields::{Field, int32};
use crate::object;
use crate::sighting::Stored;
use crate::time;

/// The annotation that has the record.
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

/// Reads the record; an object without the annotation has an empty one.
pub(crate) fn read(object: &Value) -> Stored {
    let Some(text) = object::annotation(object, LEADER_ANNOTATION) else {
        return Stored::default();
    };
    let (record, unreadable) = match serde_json::from_str::<GoRecord>(text) {
        Ok(GoRecord(record)) => (record, None),
        Err(error) => {
            let why = format!("annotation {LEADER_ANNOTATION}: {error}");
            (Record::default(), Some(why))
        }
    };
    Stored {
        record,
        text: text.to_owned(),
        unreadable,
    }
}

/// The object with this record, as text.
pub(crate) fn body(mut object: Value, record: &Record) -> String {
    object::set_metadata(&mut object, "annotations", LEADER_ANNOTATION, &text(record));
    object.to_string()
}

/// The record as Go's encoder writes it: fixed order, no spaces, `<`, `>` and `&` escaped.
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

/// These characters occur in JSON only inside strings.
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

/// A record read like `json.Unmarshal` does, with more patience for its values.
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
