//! Locks in annotations of ConfigMaps and Endpoints.

use serde_json::{Value, json};
use tenure_core::{WallTime, WriteKind};
use tenure_lock::{Class, LEADER_ANNOTATION, Lock, ObjectLock, Precision, WatchOutcome};

use crate::api::{Script, get, post, put};
use crate::{NOON, record};

const MAPS: &str = "/api/v1/namespaces/foo/configmaps";
const MAP: &str = "/api/v1/namespaces/foo/configmaps/bar";
const ENDPOINTS: &str = "/api/v1/namespaces/foo/endpoints/bar";

fn map(text: Option<&str>) -> Value {
    let mut map = json!({
        "kind": "ConfigMap",
        "apiVersion": "v1",
        "metadata": { "name": "bar", "namespace": "foo", "uid": "uid-map", "resourceVersion": "7" },
        "data": { "k": "v" },
    });
    if let Some(text) = text {
        map["metadata"]["annotations"] = json!({ LEADER_ANNOTATION: text });
    }
    map
}

fn lock(script: &Script) -> ObjectLock {
    ObjectLock::config_map(script.client(), "foo", "bar").unwrap()
}

#[tokio::test]
async fn a_new_config_map_has_a_name_and_the_annotation_only() {
    let text = concat!(
        r#"{"holderIdentity":"baz","leaseDurationSeconds":10,"acquireTime":"2026-01-02T03:04:05Z","#,
        r#""renewTime":"2026-01-02T03:04:07Z","leaderTransitions":0}"#
    );
    let script = Script::new([post(MAPS).answers(201, &map(Some(text)))]);
    let lock = lock(&script);
    assert_eq!(
        (lock.describe(), lock.precision()),
        ("configmap foo/bar", Precision::Seconds)
    );
    let written = lock
        .write(&WriteKind::Create, &record("baz", 0), None)
        .await
        .unwrap();
    assert_eq!(written.observation().record, record("baz", 0));
    assert_eq!(
        script.sent_one(),
        json!({
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": { "name": "bar", "namespace": "foo", "annotations": { LEADER_ANNOTATION: text } },
        })
    );
}

#[tokio::test]
async fn times_are_truncated_to_the_precision_of_the_lock() {
    let script = Script::new([post(MAPS).answers(201, &map(Some("{}")))]);
    let lock = lock(&script);
    let mut fine = record("baz", 0);
    fine.renew_time = Some(WallTime::from_micros(NOON + 999_999));
    lock.write(&WriteKind::Create, &fine, None).await.unwrap();
    let sent = script.sent_one();
    let text = sent["metadata"]["annotations"][LEADER_ANNOTATION]
        .as_str()
        .unwrap();
    assert!(
        text.contains(r#""renewTime":"2026-01-02T03:04:05Z""#),
        "{text}"
    );
    let cut = lock.precision().cut(WallTime::from_micros(NOON + 999_999));
    assert_eq!(cut, WallTime::from_micros(NOON));
}

#[tokio::test]
async fn an_update_keeps_data_subsets_and_other_annotations() {
    let stored = json!({
        "kind": "Endpoints",
        "apiVersion": "v1",
        "metadata": {
            "name": "bar", "namespace": "foo", "uid": "uid-ep", "resourceVersion": "7",
            "annotations": { "other": "a&b" },
        },
        "subsets": [{ "addresses": [{ "ip": "10.0.0.1" }] }],
    });
    let script = Script::new([
        get(ENDPOINTS).answers(200, &stored),
        put(ENDPOINTS).answers(200, &stored),
    ]);
    let lock = ObjectLock::endpoints(script.client(), "foo", "bar").unwrap();
    let seen = lock.read().await.unwrap().unwrap();
    assert!(
        seen.observation().record.is_free(),
        "without the annotation it is free"
    );
    let acquire = WriteKind::Acquire(seen.observation().version.clone());
    lock.write(&acquire, &record("a<b", 1), Some(&seen))
        .await
        .unwrap();
    let mut sent = script.sent_one();
    let text = sent["metadata"]["annotations"]
        .as_object_mut()
        .unwrap()
        .remove(LEADER_ANNOTATION);
    assert!(
        text.unwrap()
            .as_str()
            .unwrap()
            .starts_with(r#"{"holderIdentity":"a\u003cb","#)
    );
    assert_eq!(sent, stored);
}

#[tokio::test]
async fn a_malformed_annotation_is_unreadable_and_named_and_can_be_replaced() {
    let script = Script::new([
        get(MAP).answers(200, &map(Some("{oops"))),
        put(MAP).answers(200, &map(Some(r#"{"holderIdentity":"baz"}"#))),
    ]);
    let lock = lock(&script);
    let seen = lock.read().await.unwrap().unwrap();
    assert!(seen.observation().unreadable);
    let warning = &seen.warnings()[0];
    assert!(warning.contains("configmap foo/bar"), "{warning}");
    assert!(warning.contains(LEADER_ANNOTATION), "{warning}");
    let acquire = WriteKind::Acquire(seen.observation().version.clone());
    let taken = lock
        .write(&acquire, &record("baz", 0), Some(&seen))
        .await
        .unwrap();
    assert!(!taken.observation().unreadable);
    assert_eq!(taken.observation().record.holder, "baz");
}

#[tokio::test]
async fn every_change_of_the_text_counts_as_a_renewal_even_if_invalid() {
    let lock = lock(&Script::new([]));
    let print = |text: Option<&str>| match lock.apply_watch_event(0, Some(map(text)), None) {
        WatchOutcome::Present(seen) => seen.observation().fingerprint,
        other => panic!("{other:?}"),
    };
    let texts = [
        None,
        Some("{"),
        Some("{ "),
        Some("{}"),
        Some(r#"{"leaderTransitions":1}"#),
    ];
    let mut prints: Vec<u64> = texts.into_iter().map(print).collect();
    prints.dedup();
    assert_eq!(prints.len(), 5);
}

#[tokio::test]
async fn a_config_map_deleted_before_the_update_is_refused() {
    let script = Script::new([
        get(MAP).answers(200, &map(Some("{}"))),
        put(MAP).fails(404, "NotFound"),
    ]);
    let lock = lock(&script);
    let seen = lock.read().await.unwrap().unwrap();
    let renew = WriteKind::Renew(seen.observation().version.clone());
    let error = lock
        .write(&renew, &record("baz", 0), Some(&seen))
        .await
        .unwrap_err();
    assert_eq!(error.class(), Class::Refused);
    assert_eq!(
        error.to_string(),
        "cannot update configmap foo/bar: it no longer exists"
    );
}
