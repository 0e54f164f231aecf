//! Candidates of coordinated elections.

use serde_json::{Value, json};
use tenure_core::WallTime;
use tenure_lock::Class;
use tenure_lock::candidate::{CandidateSpec, LeaseCandidate, OLDEST_EMULATION_VERSION};

use crate::NOON;
use crate::api::{Script, get, post, put};

const ALL: &str = "/apis/coordination.k8s.io/v1beta1/namespaces/foo/leasecandidates";
const ONE: &str = "/apis/coordination.k8s.io/v1beta1/namespaces/foo/leasecandidates/Host_1";

fn spec() -> CandidateSpec {
    CandidateSpec {
        lease_name: "bar".into(),
        binary_version: "1.37.0".into(),
        emulation_version: "1.36.0".into(),
        strategy: OLDEST_EMULATION_VERSION.into(),
    }
}

fn candidate(script: &Script) -> LeaseCandidate {
    LeaseCandidate::new(script.client(), "foo", "Host_1", spec()).unwrap()
}

fn stored(ping: Option<&str>, renew: &str, revision: &str) -> Value {
    let mut object = json!({
        "kind": "LeaseCandidate",
        "apiVersion": "coordination.k8s.io/v1beta1",
        "metadata": {
            "name": "Host_1", "namespace": "foo", "uid": "u", "resourceVersion": revision,
            "labels": { "kept": "yes" },
        },
        "spec": {
            "leaseName": "bar",
            "binaryVersion": "1.35.0",
            "emulationVersion": "1.36.0",
            "strategy": "OldestEmulationVersion",
            "renewTime": renew,
        },
    });
    if let Some(ping) = ping {
        object["spec"]["pingTime"] = ping.into();
    }
    object
}

fn now() -> WallTime {
    WallTime::from_micros(NOON)
}

#[tokio::test]
async fn case_37_on_start_the_object_is_created() {
    let script = Script::new([
        get(ONE).fails(404, "NotFound"),
        post(ALL).answers(201, &stored(None, "2026-01-02T03:04:05.000000Z", "1")),
    ]);
    let seen = candidate(&script).ensure(now(), None).await.unwrap();
    assert_eq!(seen.renew_time, Some(now()));
    assert!(!seen.wants_ack());
    assert_eq!(
        script.sent_one(),
        json!({
            "apiVersion": "coordination.k8s.io/v1beta1",
            "kind": "LeaseCandidate",
            "metadata": { "name": "Host_1", "namespace": "foo" },
            "spec": {
                "leaseName": "bar",
                "binaryVersion": "1.37.0",
                "emulationVersion": "1.36.0",
                "strategy": "OldestEmulationVersion",
                "renewTime": "2026-01-02T03:04:05.000000Z",
            },
        })
    );
}

#[tokio::test]
async fn case_38_a_ping_is_answered_by_moving_past_it_even_with_a_slow_clock() {
    let pinged = stored(
        Some("2026-01-02T03:09:05.000000Z"),
        "2026-01-02T03:04:05.000000Z",
        "2",
    );
    let script = Script::new([put(ONE).answers(200, &pinged)]);
    let candidate = candidate(&script);
    let seen = candidate.apply_watch_event(pinged.clone()).unwrap();
    assert!(seen.wants_ack());
    candidate.ensure(now(), Some(&seen)).await.unwrap();
    let sent = script.sent_one();
    assert_eq!(sent["spec"]["renewTime"], "2026-01-02T03:09:05.000001Z");
    assert_eq!(sent["spec"]["pingTime"], pinged["spec"]["pingTime"]);
    assert_eq!(
        sent["spec"]["binaryVersion"], "1.37.0",
        "brought up to date"
    );
    assert_eq!(
        sent["metadata"], pinged["metadata"],
        "uid, version and labels are sent back"
    );
}

#[tokio::test]
async fn ping_during_a_renewal_is_answered_by_the_second_attempt() {
    let old = stored(None, "2026-01-02T03:04:05.000000Z", "1");
    let pinged = stored(
        Some("2026-01-02T03:04:06.000000Z"),
        "2026-01-02T03:04:05.000000Z",
        "2",
    );
    let script = Script::new([
        put(ONE).fails(409, "Conflict"),
        get(ONE).answers(200, &pinged),
        put(ONE).answers(200, &pinged),
    ]);
    let candidate = candidate(&script);
    let seen = candidate.apply_watch_event(old).unwrap();
    candidate.ensure(now(), Some(&seen)).await.unwrap();
    let second: Value = serde_json::from_str(&script.sent()[1]).unwrap();
    assert_eq!(second["metadata"]["resourceVersion"], "2");
    assert_eq!(second["spec"]["renewTime"], "2026-01-02T03:04:06.000001Z");
}

#[tokio::test]
async fn missing_leasecandidate_api_is_reported() {
    let script = Script::new([get(ONE).answers_text(404, "404 page not found")]);
    let error = candidate(&script).ensure(now(), None).await.unwrap_err();
    assert_eq!(error.class(), Class::Unknown);
    assert_eq!(
        error.to_string(),
        "cannot get leasecandidate foo/Host_1: the server answered 404: 404 page not found"
    );
}

#[tokio::test]
async fn all_problems_of_a_candidate_are_reported_together() {
    let bad = CandidateSpec {
        binary_version: "v1".into(),
        strategy: "x".into(),
        ..spec()
    };
    let error = LeaseCandidate::new(Script::new([]).client(), "foo", "a b", bad).unwrap_err();
    assert_eq!(error.problems.len(), 3);
    assert!(
        error
            .to_string()
            .starts_with("leasecandidate foo/a b is invalid: identity \"a b\"")
    );
}
