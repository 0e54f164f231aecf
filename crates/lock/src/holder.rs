//! The description of the holder: an annotation of the lock object that says where its incarnation runs.
//!
//! Format: `tenure.dev/holder: {"identity":"a","acquireTime":"2026-01-02T03:04:05.000006Z","transitions":3,
//! "machine":"...","processes":[...],"container":{...},"node":"..."}`. Only a lock that knows its
//! [`Place`] writes it, together with the record and in the same request. It is bound to its term by identity, acquire
//! time and number of transitions, because other writers keep annotations that they do not know.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use tenure_core::{Container, Incarnation, Place, Process, Record};

use crate::object::{self, ObjectName};
use crate::time;

/// The annotation that describes the incarnation that holds the lock.
pub const HOLDER_ANNOTATION: &str = "tenure.dev/holder";

/// Limit of the description in bytes. A longer one is neither written nor read.
const LIMIT: usize = 4096;

#[derive(Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
struct Wire {
    identity: String,
    acquire_time: Value,
    transitions: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    machine: Option<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    processes: Vec<WireProcess>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    container: Option<WireContainer>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    node: Option<String>,
}

#[derive(Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
struct WireProcess {
    boot: String,
    pid_namespace: u64,
    time_namespace: u64,
    pid: u32,
    started: u64,
}

#[derive(Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
struct WireContainer {
    namespace: String,
    pod: String,
    uid: String,
    name: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    id: Option<String>,
}

/// Sets the description of the holder of this record. Removes it if the record is free, or if it would be too long.
pub(crate) fn set(object: &mut Value, record: &Record, place: &Place) {
    let described = (!record.is_free()).then(|| text(record, place)).flatten();
    match described {
        Some(text) => object::set_metadata(object, "annotations", HOLDER_ANNOTATION, &text),
        None => {
            let annotations = object.pointer_mut("/metadata/annotations");
            if let Some(Value::Object(annotations)) = annotations {
                annotations.remove(HOLDER_ANNOTATION);
            }
        }
    }
}

/// Returns whether an object that describes `described` already has the annotation that [`set`] would write.
pub(crate) fn is_set(described: Option<&Incarnation>, record: &Record, place: &Place) -> bool {
    let held = !record.is_free();
    described.is_some_and(|known| held && known.place == *place && known.holds(record))
}

fn text(record: &Record, place: &Place) -> Option<String> {
    let wire = Wire {
        identity: record.holder.clone(),
        acquire_time: time::micro(record.acquire_time),
        transitions: record.transitions,
        machine: place.machine.clone(),
        processes: place.processes.iter().map(WireProcess::from).collect(),
        container: place.container.as_ref().map(WireContainer::from),
        node: place.node.clone(),
    };
    let text = serde_json::to_string(&wire).expect("strings and numbers are always JSON");
    (text.len() <= LIMIT).then_some(text)
}

/// Returns the description on an object, and a warning if it cannot be parsed.
pub(crate) fn read(
    name: &ObjectName,
    object: &Value,
) -> (Option<Arc<Incarnation>>, Option<String>) {
    let Some(text) = object::annotation(object, HOLDER_ANNOTATION) else {
        return (None, None);
    };
    match parse(text) {
        Ok(incarnation) => (Some(Arc::new(incarnation)), None),
        Err(why) => {
            let text: String = text.chars().take(200).collect();
            let warning =
                format!("ignoring the description {HOLDER_ANNOTATION}={text:?} on {name}: {why}");
            (None, Some(warning))
        }
    }
}

/// Parses the text of a description.
pub(crate) fn parse(text: &str) -> Result<Incarnation, String> {
    if text.len() > LIMIT {
        return Err(format!("it has more than {LIMIT} bytes"));
    }
    let wire: Wire = serde_json::from_str(text).map_err(|error| error.to_string())?;
    Ok(Incarnation {
        identity: wire.identity,
        acquire_time: time::parse(&wire.acquire_time),
        transitions: wire.transitions,
        place: Place {
            machine: wire.machine,
            processes: wire.processes.into_iter().map(Process::from).collect(),
            container: wire.container.map(Container::from),
            node: wire.node,
        },
    })
}

impl From<&Process> for WireProcess {
    fn from(process: &Process) -> Self {
        Self {
            boot: process.boot.clone(),
            pid_namespace: process.pid_namespace,
            time_namespace: process.time_namespace,
            pid: process.pid,
            started: process.started,
        }
    }
}

impl From<WireProcess> for Process {
    fn from(wire: WireProcess) -> Self {
        Self {
            boot: wire.boot,
            pid_namespace: wire.pid_namespace,
            time_namespace: wire.time_namespace,
            pid: wire.pid,
            started: wire.started,
        }
    }
}

impl From<&Container> for WireContainer {
    fn from(container: &Container) -> Self {
        Self {
            namespace: container.namespace.clone(),
            pod: container.pod.clone(),
            uid: container.uid.clone(),
            name: container.name.clone(),
            id: container.id.clone(),
        }
    }
}

impl From<WireContainer> for Container {
    fn from(wire: WireContainer) -> Self {
        Self {
            namespace: wire.namespace,
            pod: wire.pod,
            uid: wire.uid,
            name: wire.name,
            id: wire.id,
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use tenure_core::WallTime;

    use super::*;
    use crate::object::Resource;

    fn read_text(text: &str) -> (Option<Arc<Incarnation>>, Option<String>) {
        let name = ObjectName::new(Resource::LEASE, "ns", "x");
        let object = json!({ "metadata": { "annotations": { HOLDER_ANNOTATION: text } } });
        read(&name, &object)
    }

    fn held() -> Record {
        Record {
            holder: "a\"b".to_owned(),
            lease_duration_seconds: 15,
            acquire_time: Some(WallTime::from_micros(1_767_323_045_000_006)),
            transitions: 3,
            ..Record::default()
        }
    }

    fn place() -> Place {
        Place {
            machine: Some("m".to_owned()),
            processes: vec![Process {
                boot: "b".to_owned(),
                pid_namespace: 4_026_531_836,
                time_namespace: 4_026_531_834,
                pid: 7,
                started: u64::MAX,
            }],
            container: Some(Container {
                namespace: "shop".to_owned(),
                pod: "web-0".to_owned(),
                uid: "u".to_owned(),
                name: "elector".to_owned(),
                id: Some("c".to_owned()),
            }),
            node: Some("n".to_owned()),
        }
    }

    #[test]
    fn description_of_a_record_is_read_back() {
        let expected = concat!(
            r#"{"identity":"a\"b","acquireTime":"2026-01-02T03:04:05.000006Z","transitions":3,"machine":"m","#,
            r#""processes":[{"boot":"b","pidNamespace":4026531836,"timeNamespace":4026531834,"pid":7,"#,
            r#""started":18446744073709551615}],"container":{"namespace":"shop","pod":"web-0","uid":"u","#,
            r#""name":"elector","id":"c"},"node":"n"}"#
        );
        let text = text(&held(), &place()).unwrap();
        assert_eq!(text, expected);
        let expected = Incarnation::of(&held(), place());
        assert_eq!(read_text(&text), (Some(Arc::new(expected)), None));
    }

    #[test]
    fn unknown_parts_are_omitted() {
        let record = Record {
            acquire_time: None,
            ..held()
        };
        let text = text(&record, &Place::default()).unwrap();
        let short = r#"{"identity":"a\"b","acquireTime":null,"transitions":3}"#;
        assert_eq!(text, short);
        let (described, _) = read_text(short);
        assert!(described.is_some_and(|described| described.holds(&record)));
    }

    #[test]
    fn malformed_or_long_description_is_ignored_with_a_warning() {
        let long = format!(
            r#"{{"identity":"{}","acquireTime":null,"transitions":0}}"#,
            "x".repeat(LIMIT)
        );
        let pid = r#"{"identity":"a","acquireTime":null,"transitions":0,"processes":[{"pid":-1}]}"#;
        for text in ["", "{}", "[]", "7", r#"{"identity":1}"#, pid, &long] {
            let (described, warning) = read_text(text);
            assert_eq!(described, None, "{text}");
            assert!(warning.unwrap().contains("on lease ns/x"), "{text}");
        }
    }

    #[test]
    fn description_of_the_greatest_length_is_written_and_read() {
        let place = |length: usize| Place {
            node: Some("n".repeat(length)),
            ..Place::default()
        };
        let around = text(&held(), &place(0)).unwrap().len();
        let longest = place(LIMIT - around);
        let text_of = |place: &Place| text(&held(), place);
        let written = text_of(&longest).expect("it is not too long");
        assert_eq!(written.len(), LIMIT);
        assert_eq!(parse(&written).unwrap().place, longest);
        assert_eq!(text_of(&place(LIMIT - around + 1)), None);
    }

    #[test]
    fn release_and_a_place_that_is_too_long_remove_the_description() {
        let mut object = json!({ "metadata": { "annotations": { "other": "x" } } });
        let bare = object.clone();
        set(&mut object, &held(), &place());
        assert!(object::annotation(&object, HOLDER_ANNOTATION).is_some());
        let described = object.clone();
        let released = held().released(WallTime::from_micros(7));
        set(&mut object, &released, &place());
        assert_eq!(object, bare);
        object = described;
        let long = Place {
            node: Some("n".repeat(LIMIT)),
            ..place()
        };
        set(&mut object, &held(), &long);
        assert_eq!(object, bare);
    }

    #[test]
    fn description_is_current_for_the_same_term_and_place_only() {
        let known = Incarnation::of(&held(), place());
        let renewed = Record {
            renew_time: Some(WallTime::from_micros(9)),
            ..held()
        };
        assert!(is_set(Some(&known), &renewed, &place()));
        assert!(!is_set(None, &renewed, &place()));
        assert!(!is_set(Some(&known), &renewed, &Place::default()));
        let later = Record {
            transitions: 4,
            ..held()
        };
        assert!(!is_set(Some(&known), &later, &place()));
    }
}
