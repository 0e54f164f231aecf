//! The Lease lock. The case numbers are those of client-go's own tests in our list of them.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use tenure_core::{ResourceVersion, Version, WriteKind};
use tenure_lock::{Class, Lock, ObjectLock, Precision, Snapshot, Watch, WatchOutcome};

use crate::api::{Script, get, post, put};
use crate::{LEASE, LEASES, lease, record};

fn lock(script: &Script) -> ObjectLock {
    ObjectLock::lease(script.client(), "foo", "bar").unwrap()
}

fn labels(key: &str, value: &str) -> BTreeMap<String, String> {
    BTreeMap::from([(key.to_owned(), value.to_owned())])
}

/// Reads `stored`, renews it with the labels, and returns the body of the PUT.
async fn renewed(stored: &Value, labels: BTreeMap<String, String>) -> Value {
    let script = Script::new([
        get(LEASE).answers(200, stored),
        put(LEASE).answers(200, &lease("baz", 0, "8")),
    ]);
    let lock = lock(&script).labels(labels);
    let seen = lock.read().await.unwrap().unwrap();
    let renew = WriteKind::Renew(seen.observation().version.clone());
    lock.write(&renew, &record("baz", 0), Some(&seen))
        .await
        .unwrap();
    script.sent_one()
}

#[tokio::test]
async fn case_26_a_missing_lease_is_none() {
    let script = Script::new([get(LEASE).fails(404, "NotFound")]);
    assert!(lock(&script).read().await.unwrap().is_none());
    script.sent();
}

#[tokio::test]
async fn case_27_create_and_get_return_all_fields() {
    let script = Script::new([
        post(LEASES).answers(201, &lease("baz", 3, "7")),
        get(LEASE).answers(200, &lease("baz", 3, "7")),
    ]);
    let lock = lock(&script);
    let created = lock
        .write(&WriteKind::Create, &record("baz", 3), None)
        .await
        .unwrap();
    let seen = lock.read().await.unwrap().unwrap();
    assert_eq!(seen.observation(), created.observation());
    assert_eq!(seen.observation().record, record("baz", 3));
    assert_eq!(
        seen.observation().version,
        Version {
            uid: "uid-lease".into(),
            revision: ResourceVersion::new("7")
        }
    );
    assert_eq!(
        script.sent(),
        [concat!(
            r#"{"apiVersion":"coordination.k8s.io/v1","kind":"Lease","#,
            r#""metadata":{"name":"bar","namespace":"foo"},"#,
            r#""spec":{"holderIdentity":"baz","leaseDurationSeconds":10,"#,
            r#""acquireTime":"2026-01-02T03:04:05.000000Z","#,
            r#""renewTime":"2026-01-02T03:04:07.000000Z","leaseTransitions":3}}"#
        )]
    );
}

#[tokio::test]
async fn case_28_and_29_events_refer_to_the_lease_seen_or_not() {
    let script = Script::new([get(LEASE).answers(200, &lease("a", 0, "7"))]);
    let lock = lock(&script);
    let unseen = lock.references(None);
    assert_eq!((unseen.len(), unseen[0].uid.as_deref()), (1, None));
    let seen = lock.read().await.unwrap();
    let reference = lock.references(seen.as_ref()).remove(0);
    assert_eq!(
        (reference.api_version.as_str(), reference.kind.as_str()),
        ("coordination.k8s.io/v1", "Lease")
    );
    assert_eq!(
        (reference.namespace.as_str(), reference.name.as_str()),
        ("foo", "bar")
    );
    assert_eq!(
        (
            reference.uid.as_deref(),
            reference.resource_version.as_deref()
        ),
        (Some("uid-lease"), Some("7"))
    );
}

#[tokio::test]
async fn case_30_creating_twice_is_refused() {
    let script = Script::new([post(LEASES).fails(409, "AlreadyExists")]);
    let error = lock(&script)
        .write(&WriteKind::Create, &record("baz", 0), None)
        .await
        .unwrap_err();
    assert_eq!(error.class(), Class::Refused);
    assert_eq!(
        error.to_string(),
        "cannot create lease foo/bar: it already exists"
    );
}

#[tokio::test]
async fn case_31_updating_an_unread_lease_is_rejected_without_a_request() {
    let script = Script::new([get(LEASE).answers(200, &lease("a", 0, "7"))]);
    let lock = lock(&script);
    let seen = lock.read().await.unwrap().unwrap();
    let other = Version {
        uid: "uid-lease".into(),
        revision: ResourceVersion::new("8"),
    };
    for (kind, base) in [
        (WriteKind::Renew(seen.observation().version.clone()), None),
        (WriteKind::Acquire(other), Some(&seen)),
    ] {
        let error = lock
            .write(&kind, &record("baz", 0), base)
            .await
            .unwrap_err();
        assert_eq!(error.class(), Class::Refused);
    }
    assert_eq!(script.sent(), Vec::<String>::new());
}

#[tokio::test]
async fn case_32_the_description_names_namespace_and_name() {
    let lock = lock(&Script::new([]));
    assert_eq!(lock.describe(), "lease foo/bar");
    assert_eq!(lock.precision(), Precision::Micros);
    let Watch::Objects(targets) = lock.watch() else {
        panic!("the lock is in the API server")
    };
    assert_eq!(targets[0].object.path(), LEASE);
}

#[tokio::test]
async fn case_33_all_seven_fields_round_trip() {
    let mut full = record("baz", 3);
    full.strategy = "OldestEmulationVersion".into();
    full.preferred_holder = "bing".into();
    let mut stored = lease("baz", 3, "8");
    stored["spec"]["strategy"] = "OldestEmulationVersion".into();
    stored["spec"]["preferredHolder"] = "bing".into();
    let script = Script::new([
        get(LEASE).answers(200, &lease("baz", 3, "7")),
        put(LEASE).answers(200, &stored),
    ]);
    let lock = lock(&script);
    let seen = lock.read().await.unwrap().unwrap();
    let renew = WriteKind::Renew(seen.observation().version.clone());
    let written = lock.write(&renew, &full, Some(&seen)).await.unwrap();
    assert_eq!(written.observation().record, full);
    assert_eq!(script.sent_one()["spec"], stored["spec"]);
}

#[tokio::test]
async fn case_34_labels_are_added_to_a_lease_without_labels() {
    let mut stored = lease("baz", 0, "7");
    assert_eq!(
        renewed(&stored, labels("a", "b")).await["metadata"]["labels"],
        json!({ "a": "b" })
    );
    stored["metadata"]["labels"] = Value::Null;
    assert_eq!(
        renewed(&stored, labels("a", "b")).await["metadata"]["labels"],
        json!({ "a": "b" })
    );
}

#[tokio::test]
async fn case_35_without_configured_labels_those_of_the_lease_stay() {
    let mut stored = lease("baz", 0, "7");
    stored["metadata"]["labels"] = json!({ "x": "y" });
    assert_eq!(
        renewed(&stored, BTreeMap::new()).await["metadata"]["labels"],
        json!({ "x": "y" })
    );
}

#[tokio::test]
async fn case_36_a_configured_label_wins_and_foreign_ones_stay() {
    let mut stored = lease("baz", 0, "7");
    stored["metadata"]["labels"] = json!({ "a": "old", "x": "y" });
    assert_eq!(
        renewed(&stored, labels("a", "new")).await["metadata"]["labels"],
        json!({ "a": "new", "x": "y" })
    );
}

#[tokio::test]
async fn update_sends_uid_and_resource_version_and_preserves_unknown_fields() {
    let mut stored = lease("bing", 4, "7");
    stored["metadata"]["annotations"] = json!({ "note": "<kept>" });
    stored["metadata"]["ownerReferences"] = json!([{ "kind": "Pod", "name": "p", "uid": "u" }]);
    stored["metadata"]["finalizers"] = json!(["example.com/f"]);
    stored["metadata"]["managedFields"] = json!([{ "manager": "m", "fieldsV1": { "f:spec": {} } }]);
    stored["metadata"]["future"] = json!({ "deep": [1, 2.5, null] });
    stored["spec"]["future"] = json!("kept");
    stored["spec"]["strategy"] = json!("OldestEmulationVersion");
    stored["spec"]["preferredHolder"] = json!("bong");
    let sent = renewed(&stored, BTreeMap::new()).await;
    // The server keeps these fields itself.
    stored["metadata"]
        .as_object_mut()
        .unwrap()
        .remove("managedFields");
    assert_eq!(sent["metadata"], stored["metadata"]);
    assert_eq!(sent["spec"]["future"], "kept");
    assert_eq!(sent["spec"]["holderIdentity"], "baz");
    // An elector that is not coordinated erases these, as client-go does.
    assert!(sent["spec"].get("strategy").is_none());
    assert!(sent["spec"].get("preferredHolder").is_none());
}

#[tokio::test]
async fn a_lease_without_times_is_written_with_nulls() {
    let script = Script::new([post(LEASES).answers(201, &lease("a", 0, "1"))]);
    let mut bare = record("a", 0);
    (bare.acquire_time, bare.renew_time) = (None, None);
    lock(&script)
        .write(&WriteKind::Create, &bare, None)
        .await
        .unwrap();
    let sent = script.sent_one();
    assert_eq!(
        (&sent["spec"]["acquireTime"], &sent["spec"]["renewTime"]),
        (&Value::Null, &Value::Null)
    );
}

#[tokio::test]
async fn empty_spec_is_free_and_label_edits_do_not_count_as_renewals() {
    let bare = json!({ "metadata": { "name": "bar", "namespace": "foo", "uid": "u", "resourceVersion": "1" }, "spec": {} });
    let mut edited = lease("a", 0, "2");
    edited["metadata"]["labels"] = json!({ "a": "b" });
    let script = Script::new([
        get(LEASE).answers(200, &bare),
        get(LEASE).answers(200, &lease("a", 0, "1")),
        get(LEASE).answers(200, &edited),
    ]);
    let lock = lock(&script);
    let free = lock.read().await.unwrap().unwrap();
    assert!(free.observation().record.is_free());
    assert!(!free.observation().unreadable);
    let before = lock.read().await.unwrap().unwrap();
    let after = lock.read().await.unwrap().unwrap();
    assert_eq!(
        before.observation().fingerprint,
        after.observation().fingerprint
    );
    assert_ne!(
        before.observation().fingerprint,
        free.observation().fingerprint
    );
}

#[tokio::test]
async fn a_watch_event_is_seen_without_a_request_and_can_be_the_base_of_a_write() {
    let script = Script::new([put(LEASE).answers(200, &lease("baz", 1, "8"))]);
    let lock = lock(&script);
    // Items of a list have neither kind nor apiVersion.
    let mut event = lease("", 0, "7");
    event
        .as_object_mut()
        .unwrap()
        .retain(|key, _| key == "metadata" || key == "spec");
    let WatchOutcome::Present(seen) = lock.apply_watch_event(0, Some(event), None) else {
        panic!("not seen")
    };
    let acquire = WriteKind::Acquire(seen.observation().version.clone());
    lock.write(&acquire, &record("baz", 1), Some(&seen))
        .await
        .unwrap();
    let sent = script.sent_one();
    assert_eq!(
        (&sent["apiVersion"], &sent["kind"]),
        (&json!("coordination.k8s.io/v1"), &json!("Lease"))
    );
    assert_eq!(sent["metadata"]["resourceVersion"], "7");
    assert_eq!(sent["metadata"]["uid"], "uid-lease");
}

#[tokio::test]
async fn other_objects_of_a_shared_watch_are_ignored() {
    let lock = lock(&Script::new([]));
    let mut other = lease("a", 0, "7");
    other["metadata"]["name"] = "other".into();
    assert!(matches!(
        lock.apply_watch_event(0, Some(other), None),
        WatchOutcome::ReadNeeded
    ));
    assert!(matches!(
        lock.apply_watch_event(0, Some(json!({})), None),
        WatchOutcome::ReadNeeded
    ));
    assert!(matches!(
        lock.apply_watch_event(0, None, None),
        WatchOutcome::Absent
    ));
}

#[tokio::test]
async fn known_version_of_a_watch_event_is_not_parsed_again() {
    let script = Script::new([get(LEASE).answers(200, &lease("a", 0, "7"))]);
    let lock = lock(&script);
    let last = lock.read().await.unwrap().unwrap();
    let event = |object: Value| match lock.apply_watch_event(0, Some(object), Some(&last)) {
        WatchOutcome::Present(seen) => seen,
        other => panic!("{other:?}"),
    };
    let same = |seen: &Snapshot| std::ptr::eq(seen.observation(), last.observation());
    assert!(same(&event(lease("a", 0, "7"))));
    let renewed = event(lease("a", 0, "8"));
    assert_eq!(renewed.observation().version.revision.as_str(), "8");
    let mut other = lease("a", 0, "7");
    other["metadata"]["uid"] = "another".into();
    assert_eq!(&*event(other).observation().version.uid, "another");
}

#[tokio::test]
async fn event_of_an_unknown_target_needs_a_read() {
    let script = Script::new([get(LEASE).answers(200, &lease("a", 0, "7"))]);
    let lock = lock(&script);
    let last = lock.read().await.unwrap().unwrap();
    for last in [None, Some(&last)] {
        for object in [None, Some(lease("a", 0, "7")), Some(lease("a", 0, "8"))] {
            if let Some(object) = &object {
                let text = object.to_string();
                let shown = lock.apply_watch_text(0, &text, last);
                assert!(matches!(shown, WatchOutcome::Present(_)), "{shown:?}");
                let shown = lock.apply_watch_text(1, &text, last);
                assert!(matches!(shown, WatchOutcome::ReadNeeded), "{shown:?}");
            }
            let shown = lock.apply_watch_event(1, object, last);
            assert!(matches!(shown, WatchOutcome::ReadNeeded), "{shown:?}");
        }
    }
}

#[tokio::test]
async fn connection_is_shared_if_the_last_response_came_over_http2() {
    let read = || get(LEASE).answers(200, &lease("a", 0, "7"));
    let script = Script::new([read(), read().over_http2(), read()]);
    let lock = lock(&script);
    let mut shared = vec![lock.shares_connection()];
    for _ in 0..3 {
        lock.read().await.unwrap();
        shared.push(lock.shares_connection());
    }
    assert_eq!(shared, [false, false, true, false]);
}

#[tokio::test]
async fn orders_come_with_the_snapshot_and_survive_writes() {
    let mut stored = lease("baz", 7, "7");
    stored["metadata"]["annotations"] = json!({
        "tenure.dev/paused": "true",
        "tenure.dev/step-down": r#"{"transitions":7,"to":"bing","for":"10m"}"#,
    });
    let script = Script::new([get(LEASE).answers(200, &stored)]);
    let seen = lock(&script).read().await.unwrap().unwrap();
    let orders = &seen.observation().orders;
    assert!(orders.paused);
    let step_down = orders.step_down.as_ref().unwrap();
    assert_eq!(
        (step_down.transitions, step_down.to.as_deref()),
        (7, Some("bing"))
    );
    assert_eq!(step_down.sit_out.as_secs(), 600);
    let sent = renewed(&stored, BTreeMap::new()).await;
    assert_eq!(
        sent["metadata"]["annotations"],
        stored["metadata"]["annotations"]
    );
}

#[tokio::test]
async fn every_write_carries_the_mark_of_its_record_in_the_same_request() {
    let stored = lease("bing", 4, "7");
    let script = Script::new([
        post(LEASES).answers(201, &stored),
        put(LEASE).answers(200, &stored),
    ]);
    let lock = lock(&script);
    let first = lock
        .write(&WriteKind::Create, &record("baz", 0), None)
        .await
        .unwrap();
    assert_eq!(first.observation().mark, None, "the answer has none");
    let release = WriteKind::Release(first.observation().version.clone(), None);
    let released = record("baz", 0).released(record("baz", 0).renew_time.unwrap());
    lock.write(&release, &released, Some(&first)).await.unwrap();
    let marks = script.sent_with_marks().into_iter().map(|body| {
        let sent: Value = serde_json::from_str(&body).unwrap();
        let mark = &sent["metadata"]["annotations"]["tenure.dev/term"];
        mark.as_str().unwrap().to_owned()
    });
    assert_eq!(
        marks.collect::<Vec<_>>(),
        [
            r#"{"holder":"baz","renewTime":"2026-01-02T03:04:07.000000Z","leaseDurationSeconds":10}"#,
            r#"{"holder":"","renewTime":"2026-01-02T03:04:07.000000Z","leaseDurationSeconds":1}"#,
        ]
    );
}

#[tokio::test]
async fn release_of_a_leader_that_hands_over_carries_the_order_in_the_same_request() {
    let mut stored = lease("baz", 4, "7");
    stored["metadata"]["annotations"] = json!({
        "tenure.dev/step-down": r#"{"transitions":3}"#, "example.com/kept": "yes"
    });
    let script = Script::new([
        get(LEASE).answers(200, &stored),
        put(LEASE).answers(200, &stored),
    ]);
    let lock = lock(&script);
    let held = lock.read().await.unwrap().unwrap();
    let order = tenure_core::StepDownOrder {
        transitions: 4,
        holder: Some("baz".to_owned()),
        acquire_time: None,
        to: Some("bing".to_owned()),
        sit_out: std::time::Duration::ZERO,
    };
    let version = held.observation().version.clone();
    let release = WriteKind::Release(version, Some(Box::new(order)));
    let released = record("baz", 4).released(record("baz", 4).renew_time.unwrap());
    lock.write(&release, &released, Some(&held)).await.unwrap();
    let sent: Value = serde_json::from_str(&script.sent_with_marks()[0]).unwrap();
    let annotations = &sent["metadata"]["annotations"];
    assert_eq!(
        annotations["tenure.dev/step-down"],
        r#"{"transitions":4,"holder":"baz","to":"bing","for":"0s"}"#
    );
    assert_eq!(annotations["example.com/kept"], "yes");
    assert_eq!(sent["spec"]["holderIdentity"], "");
}

#[tokio::test]
async fn a_mark_is_of_the_record_or_of_one_that_was_replaced() {
    let mut stored = lease("bing", 4, "7");
    let mark =
        r#"{"holder":"baz","renewTime":"2026-01-02T03:04:07.000000Z","leaseDurationSeconds":30}"#;
    stored["metadata"]["annotations"] = json!({ "tenure.dev/term": mark });
    let script = Script::new([get(LEASE).answers(200, &stored)]);
    let seen = lock(&script).read().await.unwrap().unwrap();
    let observation = seen.observation();
    assert!(!observation.is_marked(), "bing holds it");
    let mark = observation.mark.unwrap();
    assert!(mark.is(&tenure_core::Mark::of(&record("baz", 0))));
    assert_eq!(mark.lease_duration().as_secs(), 30);
    stored["spec"]["holderIdentity"] = "baz".into();
    let script = Script::new([get(LEASE).answers(200, &stored)]);
    let seen = lock(&script).read().await.unwrap().unwrap();
    assert!(seen.observation().is_marked());
}
