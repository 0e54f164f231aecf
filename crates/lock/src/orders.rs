//! Orders of operators: annotations of the lock object that the election obeys.
//!
//! - `tenure.dev/paused: "true"`: no candidate may acquire the lock.
//! - `tenure.dev/step-down: {"transitions":7,"holder":"a","acquireTime":"2026-01-02T03:04:05.000006Z","to":"b","for":"10m"}`:
//!   the holder of the term with this number of transitions releases the lock. `holder` and `acquireTime` are those of its
//!   record. An order without them addresses every term with that number. `to` names the candidate that should lead
//!   next. `for` is the time during which the former holder does not campaign.
//!
//! An invalid order is ignored with a warning, because a typing error must not end a term.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tenure_core::{Orders, Record, StepDownOrder, WallTime};

use crate::duration;
use crate::object::{self, ObjectName};
use crate::time;

/// The annotation that pauses an election.
pub const PAUSED_ANNOTATION: &str = "tenure.dev/paused";

/// The annotation that asks a holder to step down.
pub const STEP_DOWN_ANNOTATION: &str = "tenure.dev/step-down";

/// Time during which a former holder does not campaign if the order does not state one.
pub const DEFAULT_SIT_OUT: Duration = Duration::from_secs(30);

/// Maximum time for which an order can exclude a former holder.
pub const MAX_SIT_OUT: Duration = Duration::from_secs(7 * 24 * 3600);

/// Returns the merge patch that asks the holder of the term that this record shows to step down. The order has no effect
/// once another term has begun, even if that term has the same number of transitions.
pub fn step_down_patch(record: &Record, to: Option<&str>, sit_out: Option<Duration>) -> Value {
    let order = Wire {
        transitions: record.transitions,
        holder: Some(record.holder.clone()).filter(|holder| !holder.is_empty()),
        acquire_time: wire_time(record.acquire_time),
        to: to.map(str::to_owned),
        sit_out: sit_out.map(duration::format),
    };
    patch(STEP_DOWN_ANNOTATION, Some(&order.text()))
}

/// Sets the order of a leader that hands over, in place of an earlier order.
pub(crate) fn set(object: &mut Value, order: &StepDownOrder) {
    let order = Wire {
        transitions: order.transitions,
        holder: order.holder.clone(),
        acquire_time: wire_time(order.acquire_time),
        to: order.to.clone(),
        sit_out: Some(duration::format(order.sit_out)),
    };
    object::set_metadata(object, "annotations", STEP_DOWN_ANNOTATION, &order.text());
}

fn wire_time(time: Option<WallTime>) -> Option<String> {
    time::micro(time).as_str().map(str::to_owned)
}

/// Returns the merge patch that removes the order to step down.
pub fn cancel_step_down_patch() -> Value {
    patch(STEP_DOWN_ANNOTATION, None)
}

/// Returns the merge patch that pauses an election: no candidate may acquire the lock, and the holder keeps its term.
pub fn pause_patch() -> Value {
    patch(PAUSED_ANNOTATION, Some("true"))
}

/// Returns the merge patch that resumes a paused election.
pub fn resume_patch() -> Value {
    patch(PAUSED_ANNOTATION, None)
}

/// Returns whether annotations contain orders, valid or not.
pub(crate) fn are_in(annotations: &Value) -> bool {
    [PAUSED_ANNOTATION, STEP_DOWN_ANNOTATION]
        .iter()
        .any(|key| annotations.get(key).is_some())
}

/// Returns the orders on an object, and a warning for each malformed one.
pub(crate) fn read(name: &ObjectName, object: &Value) -> (Orders, Vec<String>) {
    let mut orders = Orders::default();
    let mut warnings = Vec::new();
    let mut ignored = |key: &str, text: &str, why: &str| {
        let text: String = text.chars().take(200).collect();
        warnings.push(format!(
            "ignoring the order {key}={text:?} on {name}: {why}"
        ));
    };
    match object::annotation(object, PAUSED_ANNOTATION) {
        Some("true") => orders.paused = true,
        None | Some("false") => {}
        Some(other) => ignored(PAUSED_ANNOTATION, other, "expected \"true\" or \"false\""),
    }
    if let Some(text) = object::annotation(object, STEP_DOWN_ANNOTATION) {
        match parse_step_down(text) {
            Ok(order) => orders.step_down = Some(Box::new(order)),
            Err(why) => ignored(STEP_DOWN_ANNOTATION, text, &why),
        }
    }
    (orders, warnings)
}

fn parse_step_down(text: &str) -> Result<StepDownOrder, String> {
    let wire: Wire = serde_json::from_str(text).map_err(|error| error.to_string())?;
    let sit_out = match wire.sit_out {
        None => DEFAULT_SIT_OUT,
        Some(text) => duration::parse(&text)?,
    };
    let parse_time = |text: String| {
        time::parse_text(&text)
            .ok_or_else(|| format!("acquireTime {text:?} is not an RFC 3339 time"))
    };
    Ok(StepDownOrder {
        transitions: wire.transitions,
        holder: wire.holder.filter(|holder| !holder.is_empty()),
        acquire_time: wire.acquire_time.map(parse_time).transpose()?,
        to: wire.to.filter(|to| !to.is_empty()),
        sit_out: sit_out.min(MAX_SIT_OUT),
    })
}

fn patch(key: &str, value: Option<&str>) -> Value {
    json!({ "metadata": { "annotations": { key: value } } })
}

#[derive(Serialize, Deserialize)]
struct Wire {
    transitions: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    holder: Option<String>,
    #[serde(
        default,
        rename = "acquireTime",
        skip_serializing_if = "Option::is_none"
    )]
    acquire_time: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    to: Option<String>,
    #[serde(default, rename = "for", skip_serializing_if = "Option::is_none")]
    sit_out: Option<String>,
}

impl Wire {
    fn text(&self) -> String {
        serde_json::to_string(self).expect("strings and numbers are always JSON")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::object::Resource;

    fn read_one(key: &str, text: &str) -> (Orders, Vec<String>) {
        let name = ObjectName::new(Resource::LEASE, "ns", "x");
        read(
            &name,
            &json!({ "metadata": { "annotations": { key: text } } }),
        )
    }

    #[test]
    fn cancelling_patches_remove_the_annotation() {
        for (patch, key) in [
            (cancel_step_down_patch(), STEP_DOWN_ANNOTATION),
            (resume_patch(), PAUSED_ANNOTATION),
        ] {
            assert_eq!(
                patch,
                json!({ "metadata": { "annotations": { key: null } } })
            );
        }
    }

    #[test]
    fn order_of_a_leader_is_read_back_and_replaces_an_earlier_one() {
        let order = StepDownOrder {
            transitions: 7,
            holder: Some("a".to_owned()),
            acquire_time: Some(WallTime::from_micros(1_767_323_045_000_006)),
            to: Some("b".to_owned()),
            sit_out: Duration::ZERO,
        };
        let mut object = json!({ "metadata": { "annotations": {
            STEP_DOWN_ANNOTATION: r#"{"transitions":6}"#, PAUSED_ANNOTATION: "true", "other": "x"
        } } });
        set(&mut object, &order);
        let name = ObjectName::new(Resource::LEASE, "ns", "x");
        let (orders, warnings) = read(&name, &object);
        assert_eq!(
            (orders.step_down, warnings),
            (Some(Box::new(order)), vec![])
        );
        assert!(orders.paused && object["metadata"]["annotations"]["other"] == "x");
    }

    #[test]
    fn a_patch_is_read_back_as_the_order_it_asks_for() {
        let record = Record {
            holder: "a".to_owned(),
            acquire_time: Some(WallTime::from_micros(1_767_323_045_000_006)),
            transitions: 7,
            ..Record::default()
        };
        let patched = step_down_patch(&record, Some("b"), Some(Duration::from_secs(600)));
        assert_eq!(
            patched["metadata"]["annotations"][STEP_DOWN_ANNOTATION],
            r#"{"transitions":7,"holder":"a","acquireTime":"2026-01-02T03:04:05.000006Z","to":"b","for":"10m0s"}"#
        );
        let name = ObjectName::new(Resource::LEASE, "ns", "x");
        let (orders, warnings) = read(&name, &patched);
        let order = orders.step_down.unwrap();
        assert_eq!((order.transitions, order.to.as_deref()), (7, Some("b")));
        assert_eq!(order.holder.as_deref(), Some("a"));
        assert_eq!(order.acquire_time, record.acquire_time);
        assert!(order.names(&record));
        assert_eq!(order.sit_out, Duration::from_secs(600));
        assert_eq!(warnings, Vec::<String>::new());
    }

    /// Older writers, and people, write an order without holder and time. Other clients may leave them empty.
    #[test]
    fn an_order_without_holder_and_time_names_every_term_with_its_number() {
        let record = |transitions| Record {
            holder: "a".to_owned(),
            acquire_time: Some(WallTime::from_micros(1)),
            transitions,
            ..Record::default()
        };
        for text in [r#"{"transitions":7}"#, r#"{"transitions":7,"holder":""}"#] {
            let (orders, _) = read_one(STEP_DOWN_ANNOTATION, text);
            let order = orders.step_down.unwrap();
            assert!(
                order.names(&record(7)) && !order.names(&record(8)),
                "{text}"
            );
        }
    }

    #[test]
    fn order_without_a_time_excludes_the_holder_for_thirty_seconds() {
        let (orders, _) = read_one(STEP_DOWN_ANNOTATION, r#"{"transitions":0}"#);
        let order = orders.step_down.unwrap();
        assert_eq!((order.sit_out, order.to), (DEFAULT_SIT_OUT, None));
        assert_eq!((order.holder, order.acquire_time), (None, None));
        assert_eq!(
            step_down_patch(&Record::default(), None, None)["metadata"]["annotations"]
                [STEP_DOWN_ANNOTATION],
            r#"{"transitions":0}"#
        );
    }

    #[test]
    fn pause_and_resume_patches_set_and_remove_the_annotation() {
        assert!(read_one(PAUSED_ANNOTATION, "true").0.paused);
        assert_eq!(
            read_one(PAUSED_ANNOTATION, "false"),
            (Orders::default(), vec![])
        );
        assert_eq!(
            pause_patch()["metadata"]["annotations"][PAUSED_ANNOTATION],
            "true"
        );
        assert!(resume_patch()["metadata"]["annotations"][PAUSED_ANNOTATION].is_null());
        assert!(
            cancel_step_down_patch()["metadata"]["annotations"][STEP_DOWN_ANNOTATION].is_null()
        );
    }

    #[test]
    fn malformed_orders_are_ignored_with_a_warning_that_names_the_object() {
        for text in [
            "",
            "now",
            "{}",
            "[]",
            r#"{"transitions":-1}"#,
            r#"{"transitions":1,"for":"x"}"#,
            r#"{"transitions":1,"acquireTime":"today"}"#,
        ] {
            let (orders, warnings) = read_one(STEP_DOWN_ANNOTATION, text);
            assert_eq!(orders, Orders::default(), "{text}");
            assert!(warnings[0].contains("on lease ns/x"), "{warnings:?}");
        }
        let (orders, warnings) = read_one(PAUSED_ANNOTATION, "yes");
        assert!(!orders.paused);
        assert_eq!(
            warnings,
            [
                r#"ignoring the order tenure.dev/paused="yes" on lease ns/x: expected "true" or "false""#
            ]
        );
    }
}
