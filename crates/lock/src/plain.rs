//! Plain Leases, which are read and written without a tree of values.
//!
//! A process may renew a thousand Leases per second, and nearly all of them have the same structure. Unusual content
//! (orders, unknown fields, escapes, values of other types) is left to the general code in `lease.rs`. If both can read
//! an object, both give the same result.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::de::IgnoredAny;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use tenure_core::{Mark, Observation, Orders, Record, ResourceVersion, Version};

use crate::fields::countable;
use crate::holder::{self, HOLDER_ANNOTATION};
use crate::object::ObjectName;
use crate::snapshot::{Snapshot, fingerprint};
use crate::term::{self, TERM_ANNOTATION};
use crate::{lease, orders, time};

/// The content of a plain Lease that the observation does not contain, and that the next write repeats.
#[derive(Debug)]
pub(crate) struct Plain {
    name: ObjectName,
    /// The other metadata as text, with a comma before each field and the annotations last. The mark is omitted,
    /// because it follows from the record. This text does not change between renewals, so it is shared.
    rest: Arc<str>,
    /// Whether `rest` ends with annotations.
    annotated: bool,
    /// Whether the mark of the record was among the annotations.
    marked: bool,
}

/// A Lease as the API server sends it.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Lease<'a> {
    api_version: &'a str,
    kind: &'a str,
    #[serde(borrow)]
    metadata: Metadata<'a>,
    spec: Spec<'a>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Metadata<'a> {
    name: &'a str,
    namespace: &'a str,
    uid: &'a str,
    resource_version: &'a str,
    creation_timestamp: Option<&'a str>,
    labels: Option<Value>,
    annotations: Option<Value>,
    owner_references: Option<Value>,
    /// See `lean.rs`.
    #[serde(default, rename = "managedFields")]
    _managed: IgnoredAny,
}

/// The metadata that is kept as text.
#[derive(Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
struct Rest<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    creation_timestamp: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    labels: Option<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    owner_references: Option<Value>,
    /// Must be the last field: see [`Plain::rest`].
    #[serde(skip_serializing_if = "Option::is_none")]
    annotations: Option<Value>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Spec<'a> {
    holder_identity: Option<&'a str>,
    lease_duration_seconds: Option<u32>,
    acquire_time: Option<&'a str>,
    renew_time: Option<&'a str>,
    lease_transitions: Option<u32>,
    strategy: Option<&'a str>,
    preferred_holder: Option<&'a str>,
}

/// Parses the Lease of this name; `None` if it is not plain. Data that is equal to that of the previous version,
/// `base`, is shared.
pub(crate) fn snapshot(name: &ObjectName, text: &str, base: Option<&Snapshot>) -> Option<Snapshot> {
    let Lease { metadata, spec, .. } = parse(text)?;
    let record = spec.record();
    let (annotations, marked) = without_mark(metadata.annotations, &record)?;
    if metadata.name != name.name() || metadata.namespace != name.namespace() {
        return None;
    }
    let uid = base.map(|base| &base.observation().version.uid);
    let uid = uid.filter(|uid| ***uid == *metadata.uid).cloned();
    let version = Version {
        uid: uid.unwrap_or_else(|| metadata.uid.into()),
        revision: ResourceVersion::new(metadata.resource_version),
    };
    let description = annotations
        .as_ref()
        .and_then(|own| own.get(HOLDER_ANNOTATION));
    let description = match description {
        None => None,
        Some(Value::String(text)) => Some(text.clone()),
        Some(_) => return None,
    };
    let rest = Rest {
        creation_timestamp: metadata.creation_timestamp,
        labels: metadata.labels,
        owner_references: metadata.owner_references,
        annotations,
    };
    let annotated = rest.annotations.is_some();
    let rest = rest.text();
    let same = base.and_then(|base| Some((base, &base.plain()?.rest)));
    let same = same.filter(|(_, same)| ***same == *rest);
    let described = match (same, description) {
        (_, None) => None,
        // The same text has the same meaning.
        (Some((base, _)), Some(_)) => base.observation().described.clone(),
        (None, Some(text)) => Some(Arc::new(holder::parse(&text).ok()?)),
    };
    let observation = Observation {
        version,
        mark: marked.then(|| Mark::of(&record)),
        described,
        record,
        fingerprint: fingerprint(&spec.text()),
        unreadable: false,
        orders: Orders::default(),
    };
    let same = same.map(|(_, rest)| rest.clone());
    let lease = Plain {
        name: name.clone(),
        rest: same.unwrap_or_else(|| rest.into()),
        annotated,
        marked,
    };
    Some(Snapshot::of_plain(observation, lease))
}

/// Returns the annotations without the mark of this record, and whether the mark was present; `None` if there is the
/// mark of another record.
fn without_mark(annotations: Option<Value>, record: &Record) -> Option<(Option<Value>, bool)> {
    let mut own = match annotations {
        None => return Some((None, false)),
        Some(Value::Object(own)) => own,
        Some(_) => return None,
    };
    match own.remove(TERM_ANNOTATION) {
        None => Some((Some(Value::Object(own)), false)),
        Some(Value::String(mark)) if mark == term::text(record) => {
            let rest = (!own.is_empty()).then_some(Value::Object(own));
            Some((rest, true))
        }
        Some(_) => None,
    }
}

impl Plain {
    /// Returns the Lease with this record and with these labels added to its own, as text; `None` if its own labels
    /// cannot be separated from the rest.
    pub(crate) fn body(
        &self,
        seen: &Observation,
        record: &Record,
        labels: &BTreeMap<String, String>,
    ) -> Option<String> {
        if labels.is_empty() {
            return Some(self.with(&self.rest, &seen.version, record, true));
        }
        let fields = format!("{{{}}}", self.rest.strip_prefix(',').unwrap_or_default());
        let mut rest: Rest<'_> = serde_json::from_str(&fields).ok()?;
        let mut all = match rest.labels.take() {
            Some(Value::Object(own)) => own,
            _ => Map::new(),
        };
        for (key, value) in labels {
            all.insert(key.clone(), value.as_str().into());
        }
        rest.labels = Some(Value::Object(all));
        Some(self.with(&rest.text(), &seen.version, record, true))
    }

    /// Returns the Lease as it was read.
    pub(crate) fn text(&self, seen: &Observation) -> String {
        self.with(&self.rest, &seen.version, &seen.record, self.marked)
    }

    /// Formats the Lease. Names, uid and version need no escapes: they were parsed without escapes, or the API server
    /// rejects names that need them.
    fn with(&self, rest: &str, version: &Version, record: &Record, mark: bool) -> String {
        let mut lease = Vec::with_capacity(USUAL + rest.len());
        // Removes the closing brace of the annotations, so that the mark can be appended.
        let rest = match rest.strip_suffix('}') {
            Some(open) if mark && self.annotated => open,
            _ => rest,
        };
        for part in [
            r#"{"apiVersion":"coordination.k8s.io/v1","kind":"Lease","metadata":{"name":""#,
            self.name.name(),
            r#"","namespace":""#,
            self.name.namespace(),
            r#"","uid":""#,
            &version.uid,
            r#"","resourceVersion":""#,
            version.revision.as_str(),
            r#"""#,
            rest,
        ] {
            lease.extend_from_slice(part.as_bytes());
        }
        if mark {
            let before = match (self.annotated, rest.ends_with('{')) {
                (false, _) => r#","annotations":{"#,
                (true, true) => "",
                (true, false) => ",",
            };
            for part in [before, "\"", TERM_ANNOTATION, "\":"] {
                lease.extend_from_slice(part.as_bytes());
            }
            serde_json::to_writer(&mut lease, &term::text(record)).expect("text is always JSON");
            lease.push(b'}');
        }
        lease.extend_from_slice(br#"},"spec":"#);
        serde_json::to_writer(&mut lease, &lease::Spec::new(record))
            .expect("maps with string keys are always JSON");
        lease.push(b'}');
        String::from_utf8(lease).expect("made of text")
    }
}

/// Typical size in bytes of a Lease without its other metadata.
const USUAL: usize = 560;

impl Rest<'_> {
    fn text(&self) -> String {
        let mut text = serde_json::to_string(self).expect("maps with string keys are always JSON");
        // Remove the braces, and put a comma before each field.
        text.pop();
        match text.len() {
            1 => text.clear(),
            _ => text.replace_range(..1, ","),
        }
        text
    }
}

fn parse(text: &str) -> Option<Lease<'_>> {
    let lease: Lease<'_> = serde_json::from_str(text).ok()?;
    let Metadata {
        uid,
        resource_version,
        annotations,
        ..
    } = &lease.metadata;
    let orders = annotations.as_ref().is_some_and(orders::are_in);
    let whole = !uid.is_empty() && !resource_version.is_empty();
    (whole && !orders && lease.api_version == "coordination.k8s.io/v1" && lease.kind == "Lease")
        .then_some(lease)
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

    /// Returns the same text as `lease::read`: the fields in their order.
    fn text(&self) -> String {
        let mut fields = String::with_capacity(128);
        push_text(&mut fields, self.holder_identity);
        push_number(&mut fields, self.lease_duration_seconds);
        push_text(&mut fields, self.acquire_time);
        push_text(&mut fields, self.renew_time);
        push_number(&mut fields, self.lease_transitions);
        push_text(&mut fields, self.strategy);
        push_text(&mut fields, self.preferred_holder);
        fields
    }
}

/// Appends a text field. Text that was borrowed from JSON has no escapes, so it needs none here either.
fn push_text(fields: &mut String, value: Option<&str>) {
    match value {
        Some(text) => fields.extend(["\"", text, "\","]),
        None => fields.push_str("null,"),
    }
}

fn push_number(fields: &mut String, value: Option<u32>) {
    match value {
        Some(number) => fields.extend([number.to_string().as_str(), ","]),
        None => fields.push_str("null,"),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;
    use tenure_core::Place;

    use super::*;
    use crate::object::Resource;
    use crate::object_lock::Part;
    use crate::orders::{PAUSED_ANNOTATION, STEP_DOWN_ANNOTATION};
    use crate::testing;

    fn part() -> Part {
        Part::new(Resource::LEASE, "ns", "x").unwrap()
    }

    fn seen(text: &str, base: Option<&Snapshot>) -> Option<Snapshot> {
        snapshot(&part().name, text, base)
    }

    fn object(record: &Record) -> Value {
        let mut object = part().name.blank();
        object["metadata"]["uid"] = "u".into();
        object["metadata"]["resourceVersion"] = "7".into();
        serde_json::from_str(&part().body(object, record)).unwrap()
    }

    #[test]
    fn lease_without_metadata_and_with_long_labels_is_written() {
        let record = Record {
            holder: "a".to_owned(),
            lease_duration_seconds: 15,
            ..Record::default()
        };
        let bare = object(&record);
        let mut labelled = bare.clone();
        let labels: Map<String, Value> = (0..20)
            .map(|n| (format!("key-{n}"), "x".repeat(60).into()))
            .collect();
        labelled["metadata"]["labels"] = labels.into();
        for lease in [bare, labelled] {
            let seen = seen(&lease.to_string(), None).expect("it is plain");
            let plain = seen.plain().expect("kept as one");
            let body = plain.body(seen.observation(), &record, &BTreeMap::new());
            let body: Value = serde_json::from_str(&body.unwrap()).unwrap();
            assert_eq!(body["metadata"], lease["metadata"]);
        }
    }

    #[test]
    fn a_renewed_lease_is_plain() {
        let text = r#"{"kind":"Lease","apiVersion":"coordination.k8s.io/v1","metadata":{"name":"x",
            "namespace":"ns","uid":"u","resourceVersion":"7","creationTimestamp":"2026-01-02T03:04:05Z",
            "managedFields":[{"manager":"tenure","operation":"Update","fieldsV1":{"f:spec":{}}}]},
            "spec":{"holderIdentity":"a","leaseDurationSeconds":15,"leaseTransitions":2,
            "acquireTime":"2026-01-02T03:04:05.000006Z","renewTime":"2026-01-02T03:04:06.000006Z"}}"#;
        let seen = seen(text, None).expect("it is plain");
        assert_eq!(seen.observation().record.holder, "a");
        let mut expected: Value = serde_json::from_str(text).unwrap();
        let metadata = expected["metadata"].as_object_mut().unwrap();
        metadata.remove("managedFields");
        assert_eq!(seen.object(), expected);
        let name = part().name;
        let another = ObjectName::new(Resource::LEASE, "ns", "y");
        assert!(snapshot(&name, text, None).is_some());
        assert!(snapshot(&another, text, None).is_none());
    }

    #[test]
    fn unchanged_metadata_is_shared_between_renewals() {
        let mut lease = object(&Record::default());
        lease["metadata"]["creationTimestamp"] = "2026-01-02T03:04:05Z".into();
        let first = seen(&lease.to_string(), None).unwrap();
        lease["metadata"]["resourceVersion"] = "8".into();
        let second = seen(&lease.to_string(), Some(&first)).unwrap();
        let uid = |snapshot: &Snapshot| snapshot.observation().version.uid.clone();
        let rest = |snapshot: &Snapshot| snapshot.plain().unwrap().rest.clone();
        assert!(Arc::ptr_eq(&uid(&first), &uid(&second)));
        assert!(Arc::ptr_eq(&rest(&first), &rest(&second)));
        lease["metadata"]["uid"] = "v".into();
        lease["metadata"]["labels"] = json!({ "a": "b" });
        let third = seen(&lease.to_string(), Some(&second)).unwrap();
        assert_eq!((&*uid(&third), third.object()), ("v", lease));
    }

    #[test]
    fn description_is_shared_between_renewals_and_written_once_per_term() {
        let place = Arc::new(Place {
            machine: Some("m".to_owned()),
            ..Place::default()
        });
        let mut part = part();
        part.place = Some(place.clone());
        let record = Record {
            holder: "a".to_owned(),
            lease_duration_seconds: 15,
            ..Record::default()
        };
        let free = seen(&object(&Record::default()).to_string(), None).unwrap();
        let first = seen(&part.body_on(&free, &record, None), None).expect("it is plain");
        let described = |snapshot: &Snapshot| snapshot.observation().described.clone().unwrap();
        assert_eq!(described(&first).place, *place);
        assert!(first.observation().incarnation().is_some());
        let second = seen(&part.body_on(&first, &record, None), Some(&first)).unwrap();
        assert!(Arc::ptr_eq(&described(&first), &described(&second)));
        let later = Record {
            transitions: 1,
            ..record
        };
        let third = seen(&part.body_on(&second, &later, None), Some(&second)).unwrap();
        assert!(described(&third).holds(&later));
        // A candidate without a place keeps the annotation, which then belongs to an earlier term.
        part.place = None;
        let other = Record {
            holder: "b".to_owned(),
            transitions: 2,
            ..later
        };
        let fourth = seen(&part.body_on(&third, &other, None), Some(&third)).unwrap();
        assert!(Arc::ptr_eq(&described(&third), &described(&fourth)));
        assert!(fourth.observation().incarnation().is_none());
    }

    #[test]
    fn unusual_lease_is_not_plain() {
        let plain = object(&Record::default());
        assert!(seen(&plain.to_string(), None).is_some());
        let unusual: [fn(&mut Value); 13] = [
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
            |lease| lease["metadata"]["annotations"] = json!({ TERM_ANNOTATION: "{}" }),
            |lease| lease["metadata"]["annotations"] = json!({ HOLDER_ANNOTATION: "{}" }),
            |lease| lease["metadata"]["annotations"] = json!({ HOLDER_ANNOTATION: 7 }),
        ];
        for change in unusual {
            let mut lease = plain.clone();
            change(&mut lease);
            let text = lease.to_string();
            assert!(seen(&text, None).is_none(), "{text}");
        }
        for text in ["", "{}", "[]", "null"] {
            assert!(seen(text, None).is_none(), "{text}");
        }
    }

    #[test]
    fn configured_labels_are_added_to_those_of_the_lease() {
        let record = Record::default();
        let mut lease = object(&record);
        lease["metadata"]["labels"] = json!({ "a": "old", "x": "y" });
        let mut part = part();
        part.labels.insert("a".to_owned(), "new".to_owned());
        let seen = seen(&lease.to_string(), None).expect("it is plain");
        let body: Value = serde_json::from_str(&part.body_on(&seen, &record, None)).unwrap();
        assert_eq!(body["metadata"]["labels"], json!({ "a": "new", "x": "y" }));
    }

    fn strings() -> impl Strategy<Value = BTreeMap<String, String>> {
        proptest::collection::btree_map("[a-z]{0,3}", any::<String>(), 0..3)
    }

    proptest! {
        #[test]
        fn plain_and_general_code_give_the_same_result(
            stored in testing::record(), next in testing::record(), labels in strings(),
            transitions in any::<u32>(), annotations in strings(), own: bool, marked: bool, described: bool,
            placed in prop::option::of(testing::place()),
        ) {
            let mut object = object(&stored);
            object["metadata"]["labels"] = json!(labels);
            let mut annotations = annotations;
            if marked {
                annotations.insert(TERM_ANNOTATION.to_owned(), term::text(&stored));
            }
            object["metadata"]["annotations"] = json!(annotations);
            if described {
                holder::set(&mut object, &stored, &Place::default());
            }
            object["spec"]["leaseTransitions"] = transitions.into();
            let text = object.to_string();
            let (observed, warnings) = part().observed(&object).unwrap();
            if let Some(seen) = seen(&text, None) {
                prop_assert_eq!(seen.observation(), &observed);
                prop_assert!(warnings.is_empty());
                let mut part = part();
                if own {
                    part.labels.insert("own".to_owned(), "label".to_owned());
                }
                part.place = placed.map(Arc::new);
                let ordinary: Value = serde_json::from_str(&part.body(object, &next)).unwrap();
                let quick = part.body_on(&seen, &next, None);
                let quick: Value = serde_json::from_str(&quick).unwrap();
                prop_assert_eq!(quick, ordinary);
                let again = seen.object();
                prop_assert_eq!(&again["metadata"], &serde_json::from_str::<Value>(&text).unwrap()["metadata"]);
                prop_assert_eq!(&part.observed(&again).unwrap().0.record, &observed.record);
            }
        }
    }
}
