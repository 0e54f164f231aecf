//! Locks against recorded requests and responses of a real kube-apiserver.

use serde_json::Value;
use tenure_core::{Record, WallTime, WriteKind};
use tenure_lock::candidate::{CandidateSpec, LeaseCandidate, OLDEST_EMULATION_VERSION};
use tenure_lock::{Class, Error, LEADER_ANNOTATION, Lock, ObjectLock, Snapshot};

use crate::api::{Exchange, Script, get};
use crate::fixtures::Fixture;

macro_rules! fixture {
    ($name:literal) => {
        Fixture::load(include_str!(concat!("../fixtures/", $name, ".json")))
    };
}

const NAMESPACE: &str = "t-run";
const T5: i64 = 1_767_323_045_000_006;

fn lease(script: &Script) -> ObjectLock {
    ObjectLock::lease(script.client(), NAMESPACE, "l").unwrap()
}

fn held_by(holder: &str) -> Record {
    Record {
        holder: holder.into(),
        lease_duration_seconds: 15,
        ..Record::default()
    }
}

/// Passes `object` to the lock and lets it write `record` over it.
async fn over(lock: &ObjectLock, object: &Value, record: &Record) -> Result<Snapshot, Error> {
    let tenure_lock::WatchOutcome::Present(seen) =
        lock.apply_watch_event(0, Some(object.clone()), None)
    else {
        panic!("not seen: {object}")
    };
    let acquire = WriteKind::Acquire(seen.observation().version.clone());
    lock.write(&acquire, record, Some(&seen)).await
}

async fn create(exchange: Exchange, record: &Record) -> (Result<Snapshot, Error>, Script) {
    let script = Script::new([exchange]);
    let result = lease(&script).write(&WriteKind::Create, record, None).await;
    (result, script)
}

/// Returns the JSON text without whitespace, with keys in their order.
fn compact(text: &str) -> String {
    let (mut out, mut quoted, mut escaped) = (String::new(), false, false);
    for c in text.chars() {
        if quoted || !c.is_whitespace() {
            out.push(c);
        }
        quoted ^= c == '"' && !escaped;
        escaped = quoted && c == '\\' && !escaped;
    }
    out
}

#[tokio::test]
async fn a_new_lease_is_sent_byte_for_byte_as_recorded() {
    let fixture = fixture!("lease-create-get");
    let record = Record {
        acquire_time: Some(WallTime::from_micros(T5)),
        renew_time: Some(WallTime::from_micros(T5 + 2_123_450)),
        ..held_by("a")
    };
    let (created, script) = create(fixture.exchange(1), &record).await;
    let recorded = compact(include_str!("../fixtures/lease-create-get.json"));
    let sent = script.sent().remove(0).replace("t-run", "t-${run}");
    assert!(recorded.contains(&format!("\"body\":{sent}")), "{sent}");

    let read = Script::new([fixture.exchange(2)]);
    let seen = lease(&read).read().await.unwrap().unwrap();
    assert_eq!(seen.observation(), created.unwrap().observation());
    assert_eq!(seen.observation().version.revision.as_str(), "101");
    assert_eq!(
        seen.observation().record.acquire_time,
        Some(WallTime::from_micros(T5))
    );
}

#[tokio::test]
async fn a_release_is_sent_byte_for_byte_as_recorded() {
    let fixture = fixture!("lease-release");
    let script = Script::new([fixture.exchange(2)]);
    let lock = lease(&script);
    let held = Record {
        transitions: 3,
        ..held_by("a")
    };
    let released = held.released(WallTime::from_micros(T5));
    let stored = over(&lock, fixture.answer_body(1), &released)
        .await
        .unwrap();
    assert!(stored.observation().record.is_free());
    assert_eq!(stored.observation().record.transitions, 3);
    let sent = script.sent().remove(0);
    let spec = &sent[sent.find("\"spec\":").unwrap()..];
    assert!(
        compact(include_str!("../fixtures/lease-release.json")).contains(spec),
        "{spec}"
    );
    assert_eq!(
        serde_json::from_str::<Value>(&sent).unwrap()["metadata"]["uid"],
        "uid-1",
        "the uid is always sent"
    );
}

#[tokio::test]
async fn stale_versions_are_refused_and_missing_ones_would_be_unusable() {
    let fixture = fixture!("lease-cas");
    let script = Script::new([fixture.exchange(3), fixture.exchange(4)]);
    let lock = lease(&script);
    let error = over(&lock, fixture.answer_body(1), &held_by("c"))
        .await
        .unwrap_err();
    assert_eq!(error.class(), Class::Refused);
    assert!(error.to_string().contains(fixture.message(3)), "{error}");
    let error = over(&lock, fixture.answer_body(1), &held_by("d"))
        .await
        .unwrap_err();
    assert_eq!(error.class(), Class::Unusable);
    assert!(
        error
            .to_string()
            .contains("must be specified for an update"),
        "{error}"
    );
}

#[tokio::test]
async fn another_lease_of_the_same_name_refuses_writes_to_the_old_one() {
    let fixture = fixture!("lease-recreate-uid");
    for step in [4, 5] {
        let script = Script::new([fixture.exchange(step)]);
        let error = over(&lease(&script), fixture.answer_body(1), &held_by("x"))
            .await
            .unwrap_err();
        assert_eq!(error.class(), Class::Refused);
        assert!(
            error.to_string().contains("UID in precondition: uid-1"),
            "{error}"
        );
        let sent = script.sent_one();
        assert_eq!(
            sent["metadata"]["uid"],
            fixture.request_body(step)["metadata"]["uid"]
        );
    }
}

#[tokio::test]
async fn deleted_lease_is_not_recreated_by_a_renewal() {
    let fixture = fixture!("lease-put-creates");
    let script = Script::new([fixture.exchange(2), fixture.exchange(3)]);
    let lock = ObjectLock::lease(script.client(), NAMESPACE, "m").unwrap();
    let mut gone = fixture.answer_body(1).clone();
    gone["metadata"]["name"] = "m".into();
    let error = over(&lock, &gone, &held_by("a")).await.unwrap_err();
    assert_eq!(error.class(), Class::Refused);
    assert!(lock.read().await.unwrap().is_none());
    script.sent();
}

#[tokio::test]
async fn creating_twice_is_refused() {
    let fixture = fixture!("lease-exists");
    let (result, _) = create(fixture.exchange(2), &held_by("a")).await;
    let error = result.unwrap_err();
    assert_eq!(error.class(), Class::Refused);
    assert_eq!(
        error.to_string(),
        "cannot create lease t-run/l: it already exists"
    );
}

#[tokio::test]
async fn absent_lease_and_absent_namespace_are_read_as_none() {
    let fixture = fixture!("lease-absent");
    for (step, namespace, name) in [(1, NAMESPACE, "no"), (4, "none-run", "x")] {
        let script = Script::new([fixture.exchange(step)]);
        let lock = ObjectLock::lease(script.client(), namespace, name).unwrap();
        assert!(lock.read().await.unwrap().is_none());
        script.sent();
    }
}

#[tokio::test]
async fn labels_are_sent_back_with_the_configured_ones() {
    let fixture = fixture!("lease-labels-kept");
    let script = Script::new([fixture.exchange(2)]);
    let lock = lease(&script).labels([("c".to_owned(), "d".to_owned())].into());
    over(&lock, fixture.answer_body(1), &held_by("b"))
        .await
        .unwrap();
    assert_eq!(
        script.sent_one()["metadata"]["labels"],
        fixture.request_body(2)["metadata"]["labels"]
    );
    let (result, _) = create(fixture.exchange(3), &held_by("a")).await;
    let error = result.unwrap_err();
    assert_eq!(error.class(), Class::Unusable);
    assert!(
        error.to_string().contains("a valid label must be"),
        "{error}"
    );
}

#[tokio::test]
async fn error_of_a_rejected_lease_has_the_reason() {
    let fixture = fixture!("lease-invalid");
    for step in 1..=5 {
        let (result, _) = create(fixture.exchange(step), &held_by("a")).await;
        let error = result.unwrap_err();
        assert_eq!(error.class(), Class::Unusable);
        assert!(error.to_string().contains(fixture.message(step)), "{error}");
    }
}

#[tokio::test]
async fn times_always_have_the_six_digits_that_the_server_requires() {
    for fixture in [
        fixture!("lease-microtime-none"),
        fixture!("lease-microtime-three"),
    ] {
        let whole = Record {
            renew_time: Some(WallTime::from_micros(T5 - 6)),
            ..held_by("a")
        };
        let (result, script) = create(fixture.exchange(1), &whole).await;
        assert_eq!(result.unwrap_err().class(), Class::Unusable);
        assert_eq!(
            script.sent_one()["spec"]["renewTime"],
            "2026-01-02T03:04:05.000000Z"
        );
    }
}

#[tokio::test]
async fn a_config_map_lock_is_sent_byte_for_byte_as_recorded() {
    let fixture = fixture!("configmap-lock");
    let noon = Some(WallTime::from_micros(T5));
    let record = Record {
        acquire_time: noon,
        renew_time: noon,
        ..held_by("a")
    };
    let script = Script::new([fixture.exchange(1), fixture.exchange(3)]);
    let lock = ObjectLock::config_map(script.client(), NAMESPACE, "c").unwrap();
    let created = lock.write(&WriteKind::Create, &record, None).await.unwrap();
    assert_eq!(created.observation().record.holder, "a");
    let error = over(&lock, fixture.answer_body(1), &held_by("c"))
        .await
        .unwrap_err();
    assert_eq!(error.class(), Class::Refused);

    let sent: Value = serde_json::from_str(&script.sent()[0]).unwrap();
    assert_eq!(&sent, fixture.request_body(1));
    let text = &sent["metadata"]["annotations"][LEADER_ANNOTATION];
    assert_eq!(
        text,
        &fixture.request_body(1)["metadata"]["annotations"][LEADER_ANNOTATION]
    );
}

#[tokio::test]
async fn a_record_with_a_holder_alone_is_read_from_endpoints() {
    let fixture = fixture!("endpoints-lock");
    let script = Script::new([fixture.exchange(3), fixture.exchange(2)]);
    let lock = ObjectLock::endpoints(script.client(), NAMESPACE, "e").unwrap();
    let seen = lock.read().await.unwrap().unwrap();
    assert_eq!(
        seen.observation().record,
        Record {
            holder: "b".into(),
            ..Record::default()
        }
    );
    over(&lock, fixture.answer_body(1), &held_by("b"))
        .await
        .unwrap();
    let sent = script.sent_one();
    assert_eq!(sent["metadata"]["resourceVersion"], "101");
    assert_eq!(sent["metadata"]["uid"], "uid-1");
}

#[tokio::test]
async fn refused_credentials_and_permissions_are_named() {
    let fixture = fixture!("auth-401-403");
    let path = "/apis/coordination.k8s.io/v1/namespaces/t-run/leases/l";
    for (step, words) in [
        (1, "the credentials are not accepted"),
        (
            2,
            "the permission to get leases.coordination.k8s.io in namespace t-run",
        ),
        (3, "User \"alice\" cannot get resource \"leases\""),
    ] {
        let script = Script::new([fixture.answer(step, get(path))]);
        let error = lease(&script).read().await.unwrap_err();
        assert_eq!(error.class(), Class::Unusable);
        assert!(error.to_string().contains(words), "{error}");
    }
    let (result, _) = create(fixture.exchange(4), &held_by("a")).await;
    let error = result.unwrap_err();
    assert_eq!(error.class(), Class::Unusable);
    assert!(
        error
            .to_string()
            .contains("the permission to create leases.coordination.k8s.io")
    );
}

#[tokio::test]
async fn a_candidate_is_taken_and_a_bad_one_rejected_with_reasons() {
    let fixture = fixture!("leasecandidate");
    let spec = CandidateSpec {
        lease_name: "l".into(),
        binary_version: "1.37.0".into(),
        emulation_version: "1.37.0".into(),
        strategy: OLDEST_EMULATION_VERSION.into(),
    };
    let path = "/apis/coordination.k8s.io/v1beta1/namespaces/t-run/leasecandidates/c1";
    let missing = || get(path).fails(404, "NotFound");
    let script = Script::new([
        missing(),
        fixture.exchange(1),
        missing(),
        fixture.exchange(2),
    ]);
    let candidate = LeaseCandidate::new(script.client(), NAMESPACE, "c1", spec).unwrap();
    let now = WallTime::from_micros(T5);
    candidate.ensure(now, None).await.unwrap();
    let error = candidate.ensure(now, None).await.unwrap_err();
    assert_eq!(error.class(), Class::Unusable);
    assert!(error.to_string().contains(fixture.message(2)), "{error}");

    let mut sent: Value = serde_json::from_str(&script.sent()[0]).unwrap();
    let renew_time = sent["spec"].as_object_mut().unwrap().remove("renewTime");
    assert_eq!(renew_time, Some("2026-01-02T03:04:05.000006Z".into()));
    assert_eq!(sent["spec"], fixture.request_body(1)["spec"]);
}
