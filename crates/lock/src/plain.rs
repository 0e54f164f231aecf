//! Plain Leases: read and written without a tree of values.
//!
//! A process may renew a thousand Leases a second, and nearly all of them look alike. Whatever is unusual
//! (orders, unknown fields, escapes, values of other types) is left to the ordinary way, in `lease.rs`; where
//! both can read an object, both say the same.

use std::collections::BTreeMap;

use serde::de::IgnoredAny;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use tenure_core::{Observation, Orders, Record, ResourceVersion, Version};

use crate::fields::countable;
use crate::sighting::{Sighting, fingerprint};
use crate::{lease, orders, time};

/// A Lease with nothing unusual in it.
#[derive(Deserialize, Serialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Plain<'a> {
    api_version: &'a str,
    kind: &'a str,
    #[serde(borrow)]
    metadata: Metadata<'a>,
    spec: Spec<'a>,
}

#[derive(Deserialize, Serialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Metadata<'a> {
    name: &'a str,
    namespace: &'a str,
    uid: &'a str,
    resource_version: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    creation_timestamp: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    labels: Option<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    annotations: Option<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    owner_references: Option<Value>,
    /// See `lean.rs`.
    #[serde(skip_serializing, default, rename = "managedFields")]
    _managed: IgnoredAny,
}

#[derive(Deserialize, Serialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Spec<'a> {
    holder_identity: Option<&'a str>,
    lease_duration_seconds: Option<u32>,
    acquire_time: Option<&'a str>,
    renew_time: Option<&'a str>,
    lease_transitions: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    strategy: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    preferred_holder: Option<&'a str>,
}

/// The body of a renewal.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Body<'a> {
    api_version: &'a str,
    kind: &'a str,
    metadata: Metadata<'a>,
    spec: lease::Spec<'a>,
}

/// What a Lease says; `None` if it is not plain.
pub(crate) fn sighting(text: &str) -> Option<Sighting> {
    let plain = parse(text)?;
    let (metadata, spec) = (&plain.metadata, &plain.spec);
    let version = Version {
        uid: metadata.uid.to_owned(),
        revision: ResourceVersion::new(metadata.resource_version),
    };
    let observation = Observation {
        version,
        record: spec.record(),
        fingerprint: fingerprint(&spec.text()),
        unreadable: false,
        orders: Orders::default(),
    };
    Some(Sighting::plain(observation, written(&plain)))
}

/// The Lease with this record and these labels besides its own, as text; `None` if it is not plain.
pub(crate) fn body(
    text: &str,
    record: &Record,
    labels: &BTreeMap<String, String>,
) -> Option<String> {
    let Plain {
        api_version,
        kind,
        mut metadata,
        ..
    } = parse(text)?;
    if !labels.is_empty() {
        let mut all = match metadata.labels.take() {
            Some(Value::Object(own)) => own,
            _ => Map::new(),
        };
        for (key, value) in labels {
            all.insert(key.clone(), value.as_str().into());
        }
        metadata.labels = Some(Value::Object(all));
    }
    Some(written(&Body {
        api_version,
        kind,
        metadata,
        spec: lease::Spec::new(record),
    }))
}

fn parse(text: &str) -> Option<Plain<'_>> {
    let plain: Plain<'_> = serde_json::from_str(text).ok()?;
    let Metadata {
        uid,
        resource_version,
        annotations,
        ..
    } = &plain.metadata;
    let orders = annotations.as_ref().is_some_and(orders::are_in);
    let whole = !uid.is_empty() && !resource_version.is_empty();
    (whole && !orders && plain.api_version == "coordination.k8s.io/v1" && plain.kind == "Lease")
        .then_some(plain)
}

fn written(value: &impl Serialize) -> String {
    serde_json::to_string(value).expect("maps with string keys are always JSON")
}

impl Spec<'_> {
    fn record(&self) -> Record {
        let text = |text: Option<&str>| text.unwrap_or_default().to_owned();
        Record {
            holder: text(self.holder_identity),
            lease_duration_seconds: self.lease_duration_seconds.unwrap_or_default(),
            acquire_time: self.acquire_time.and_then(time::parse_text),
            renew_time: self.renew_time.and_then(time::parse_text),
            transitions: countable(self.lease_transitions.unwrap_or_default()),
            strategy: text(self.strategy),
            preferred_holder: text(self.preferred_holder),
        }
    }

    /// As `lease::read` has it: the fields in their order.
    fn text(&self) -> String {
        let mut fields = written(&(
            self.holder_identity,
            self.lease_duration_seconds,
            self.acquire_time,
            self.renew_time,
            self.lease_transitions,
            self.strategy,
            self.preferred_holder,
        ));
        // A list has brackets around it, and no comma at its end.
        fields.pop();
        fields.push(',');
        fields.remove(0);
        fields
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;
    use crate::object::Resource;
    use crate::object_lock::Part;
    use crate::orders::{PAUSED_ANNOTATION, STEP_DOWN_ANNOTATION};
    use crate::testing;

    fn part() -> Part {
        Part::new(Resource::LEASE, "ns", "x").unwrap()
    }

    fn object(record: &Record) -> Value {
        let mut object = part().name.blank();
        object["metadata"]["uid"] = "u".into();
        object["metadata"]["resourceVersion"] = "7".into();
        serde_json::from_str(&part().body(object, record)).unwrap()
    }

    #[test]
    fn a_renewed_lease_is_plain() {
        let text = r#"{"kind":"Lease","apiVersion":"coordination.k8s.io/v1","metadata":{"name":"x",
            "namespace":"ns","uid":"u","resourceVersion":"7","creationTimestamp":"2026-01-02T03:04:05Z",
            "managedFields":[{"manager":"tenure","operation":"Update","fieldsV1":{"f:spec":{}}}]},
            "spec":{"holderIdentity":"a","leaseDurationSeconds":15,"leaseTransitions":2,
            "acquireTime":"2026-01-02T03:04:05.000006Z","renewTime":"2026-01-02T03:04:06.000006Z"}}"#;
        let seen = sighting(text).expect("it is plain");
        assert_eq!(seen.observation().record.holder, "a");
        assert_eq!(seen.object()["metadata"].get("managedFields"), None);
        assert!(
            body(
                &seen.object().to_string(),
                &Record::default(),
                &BTreeMap::new()
            )
            .is_some()
        );
    }

    #[test]
    fn what_is_unusual_is_left_to_others() {
        let plain = object(&Record::default());
        assert!(sighting(&plain.to_string()).is_some());
        let unusual: [fn(&mut Value); 10] = [
            |lease| lease["status"] = json!({}),
            |lease| lease["kind"] = "ConfigMap".into(),
            |lease| lease["spec"]["new"] = json!(1),
            |lease| lease["spec"]["holderIdentity"] = "a\"b".into(),
            |lease| lease["spec"]["leaseDurationSeconds"] = json!(1.5),
            |lease| lease["spec"]["renewTime"] = json!(7),
            |lease| lease["metadata"]["new"] = json!(1),
            |lease| lease["metadata"]["uid"] = "".into(),
            |lease| lease["metadata"]["annotations"] = json!({ PAUSED_ANNOTATION: "true" }),
            |lease| lease["metadata"]["annotations"] = json!({ STEP_DOWN_ANNOTATION: "x" }),
        ];
        for change in unusual {
            let mut lease = plain.clone();
            change(&mut lease);
            let text = lease.to_string();
            assert!(sighting(&text).is_none(), "{text}");
            assert!(
                body(&text, &Record::default(), &BTreeMap::new()).is_none(),
                "{text}"
            );
        }
        for text in ["", "{}", "[]", "null"] {
            assert!(sighting(text).is_none(), "{text}");
        }
    }

    fn strings() -> impl Strategy<Value = BTreeMap<String, String>> {
        proptest::collection::btree_map("[a-z]{0,3}", any::<String>(), 0..3)
    }

    proptest! {
        #[test]
        fn both_ways_say_the_same(
            stored in testing::record(), next in testing::record(), labels in strings(),
            transitions in any::<u32>(), annotations in strings(), own: bool,
        ) {
            let mut object = object(&stored);
            object["metadata"]["labels"] = json!(labels);
            object["metadata"]["annotations"] = json!(annotations);
            object["spec"]["leaseTransitions"] = transitions.into();
            let text = object.to_string();
            let (observed, warnings) = part().observed(&object).unwrap();
            if let Some(seen) = sighting(&text) {
                prop_assert_eq!(seen.observation(), &observed);
                prop_assert!(warnings.is_empty());
                let kept = seen.object();
                let mut part = part();
                if own {
                    part.labels.insert("own".to_owned(), "label".to_owned());
                }
                let ordinary: Value = serde_json::from_str(&part.body(object, &next)).unwrap();
                let quick = body(&kept.to_string(), &next, &part.labels).unwrap();
                let quick: Value = serde_json::from_str(&quick).unwrap();
                prop_assert_eq!(quick, ordinary);
            }
        }
    }
}
