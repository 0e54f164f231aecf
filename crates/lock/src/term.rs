//! The mark of a term: an annotation of the lock object that names the last write of an elector of this kind.
//!
//! Format: `tenure.dev/term: {"holder":"a","renewTime":"2026-01-02T03:04:05.000006Z","leaseDurationSeconds":15}`, with
//! an empty holder after a release. Every write sets it together with the record, in the same request. Other writers
//! keep annotations that they do not know. A mark with the holder and the renew time of the record therefore belongs to
//! that record. Any other mark names a term whose record was replaced by another writer.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use tenure_core::{Mark, Record};

use crate::object::{self, ObjectName};
use crate::time;

/// The annotation that names the last write of an elector.
pub const TERM_ANNOTATION: &str = "tenure.dev/term";

#[derive(Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
struct Wire {
    holder: String,
    renew_time: Value,
    lease_duration_seconds: u32,
}

/// Returns the mark of a write of this record.
pub(crate) fn text(record: &Record) -> String {
    let mark = Wire {
        holder: record.holder.clone(),
        renew_time: time::micro(record.renew_time),
        lease_duration_seconds: record.lease_duration_seconds,
    };
    serde_json::to_string(&mark).expect("strings and numbers are always JSON")
}

/// Returns the mark on an object, and a warning if it cannot be parsed.
pub(crate) fn read(name: &ObjectName, object: &Value) -> (Option<Mark>, Option<String>) {
    let Some(text) = object::annotation(object, TERM_ANNOTATION) else {
        return (None, None);
    };
    match serde_json::from_str::<Wire>(text) {
        Ok(mark) => {
            let renewed = time::parse(&mark.renew_time);
            let mark = Mark::new(&mark.holder, renewed, mark.lease_duration_seconds);
            (Some(mark), None)
        }
        Err(error) => {
            let text: String = text.chars().take(200).collect();
            let warning =
                format!("ignoring the mark {TERM_ANNOTATION}={text:?} on {name}: {error}");
            (None, Some(warning))
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use tenure_core::WallTime;

    use super::*;
    use crate::object::Resource;

    fn read_text(text: &str) -> (Option<Mark>, Option<String>) {
        let name = ObjectName::new(Resource::LEASE, "ns", "x");
        let object = json!({ "metadata": { "annotations": { TERM_ANNOTATION: text } } });
        read(&name, &object)
    }

    fn held() -> Record {
        Record {
            holder: "a\"b".to_owned(),
            lease_duration_seconds: 15,
            renew_time: Some(WallTime::from_micros(1_767_323_045_000_006)),
            ..Record::default()
        }
    }

    #[test]
    fn mark_of_a_record_is_read_back() {
        let expected = concat!(
            r#"{"holder":"a\"b","renewTime":"2026-01-02T03:04:05.000006Z","#,
            r#""leaseDurationSeconds":15}"#
        );
        assert_eq!(text(&held()), expected);
        assert_eq!(read_text(&text(&held())), (Some(Mark::of(&held())), None));
        let released = held().released(WallTime::from_micros(7));
        let (mark, _) = read_text(&text(&released));
        assert!(mark.unwrap().is_release());
        let untimed = Record {
            renew_time: None,
            ..held()
        };
        assert_eq!(read_text(&text(&untimed)).0, Some(Mark::of(&untimed)));
    }

    #[test]
    fn malformed_mark_is_ignored_with_a_warning_that_names_the_object() {
        for text in ["", "{}", "[]", "7", r#"{"holder":1}"#] {
            let (mark, warning) = read_text(text);
            assert_eq!(mark, None, "{text}");
            assert!(warning.unwrap().contains("on lease ns/x"), "{text}");
        }
    }
}
