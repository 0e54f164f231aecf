//! The multi locks, each case for both kinds. P is the primary object, S the secondary one (the Lease). Cases 39 to 49
//! are those of client-go 1.26. Decisions of client-go's elector are made here by an election that observes the states
//! that the lock has read.

use std::time::Duration;

use kube::Client;
use serde_json::{Value, json};
use tenure_core::{
    Command, Config, Election, Input, LocalTime, Now, Observation, Source, Timing, WallTime,
    WriteKind,
};
use tenure_lock::{
    Class, LEADER_ANNOTATION, Lock, MultiLock, Precision, Snapshot, UNKNOWN_HOLDER, Watch,
    WatchOutcome,
};

use crate::api::{Exchange, Script, get, post, put};
use crate::{LEASE, LEASES, lease, record};

#[derive(Clone, Copy)]
struct Kind {
    name: &'static str,
    plural: &'static str,
    open: fn(Client, &str, &str) -> Result<MultiLock, tenure_lock::Error>,
}

const KINDS: [Kind; 2] = [
    Kind {
        name: "ConfigMap",
        plural: "configmaps",
        open: MultiLock::config_maps_leases,
    },
    Kind {
        name: "Endpoints",
        plural: "endpoints",
        open: MultiLock::endpoints_leases,
    },
];

impl Kind {
    fn all(self) -> String {
        format!("/api/v1/namespaces/foo/{}", self.plural)
    }

    fn one(self) -> String {
        format!("{}/bar", self.all())
    }

    /// Returns P with a record, or without an annotation.
    fn primary(self, holder: Option<&str>, transitions: u32, revision: &str) -> Value {
        let mut object = json!({
            "kind": self.name,
            "apiVersion": "v1",
            "metadata": {
                "name": "bar", "namespace": "foo", "uid": "uid-p", "resourceVersion": revision,
            },
        });
        if let Some(holder) = holder {
            let text = format!(
                "{{\"holderIdentity\":\"{holder}\",\"leaseDurationSeconds\":10,\
                 \"acquireTime\":\"2026-01-02T03:04:05Z\",\"renewTime\":\"2026-01-02T03:04:07Z\",\
                 \"leaderTransitions\":{transitions}}}"
            );
            object["metadata"]["annotations"] = json!({ LEADER_ANNOTATION: text });
        }
        object
    }

    fn lock(self, script: &Script) -> MultiLock {
        (self.open)(script.client(), "foo", "bar").unwrap()
    }

    /// Reads P and S (404 where `None`).
    async fn read(self, primary: &Value, secondary: Option<&Value>) -> Observation {
        let script = Script::new([
            get(&self.one()).answers(200, primary),
            read_lease(secondary),
        ]);
        let seen = self.lock(&script).read().await.unwrap().unwrap();
        script.sent();
        seen.observation().clone()
    }

    /// Reads P and S, then acquires the lock with transitions 1, and checks that all five requests were sent in
    /// client-go's order.
    async fn take(self, primary: &Value, secondary: Option<&Value>) -> Snapshot {
        let last = match secondary {
            Some(_) => put(LEASE).answers(200, &lease("baz", 1, "22")),
            None => post(LEASES).answers(201, &lease("baz", 1, "22")),
        };
        let script = Script::new([
            get(&self.one()).answers(200, primary),
            read_lease(secondary),
            put(&self.one()).answers(200, &self.primary(Some("baz"), 1, "21")),
            read_lease(secondary),
            last,
        ]);
        let lock = self.lock(&script);
        let seen = lock.read().await.unwrap().unwrap();
        let (after, transitions) = taken(&[seen.observation()]);
        let fresh = !seen.observation().record.is_free();
        assert_eq!((after >= LEASE_DURATION, transitions), (fresh, 1));
        let acquire = WriteKind::Acquire(seen.observation().version.clone());
        let won = lock
            .write(&acquire, &record("baz", transitions), Some(&seen))
            .await
            .unwrap();
        assert_eq!(won.observation().record, record("baz", 1));
        let version = &won.observation().version;
        assert_eq!((&*version.uid, version.revision.as_str()), ("uid-p", "22"));

        let sent: Vec<Value> = script
            .sent()
            .iter()
            .map(|body| serde_json::from_str(body).unwrap())
            .collect();
        let text = sent[0]["metadata"]["annotations"][LEADER_ANNOTATION]
            .as_str()
            .unwrap();
        let stored: Value = serde_json::from_str(text).unwrap();
        assert_eq!(
            (&stored["holderIdentity"], &stored["leaderTransitions"]),
            (&json!("baz"), &json!(1))
        );
        assert_eq!(sent[0]["metadata"]["uid"], "uid-p");
        assert_eq!(
            sent[0]["metadata"]["resourceVersion"],
            primary["metadata"]["resourceVersion"]
        );
        assert_eq!(sent[1]["spec"]["renewTime"], "2026-01-02T03:04:07.000000Z");
        if let Some(secondary) = secondary {
            assert_eq!(sent[1]["metadata"]["uid"], secondary["metadata"]["uid"]);
            assert_eq!(
                sent[1]["metadata"]["resourceVersion"],
                secondary["metadata"]["resourceVersion"]
            );
        }
        won
    }
}

/// Lease duration of every record in these tests.
const LEASE_DURATION: Duration = Duration::from_secs(10);

/// Passes the observations to an election of baz, one second apart, and then no others. Returns how long the last one
/// was unchanged until the lock was acquired, and the number of transitions written.
fn taken(seen: &[&Observation]) -> (Duration, u32) {
    let mut election = Election::new(Config {
        identity: "baz".to_owned(),
        timing: Timing::builder().build().unwrap(),
        release_on_cancel: true,
        for_life: false,
        rejoin: true,
        coordinated: false,
        preference: None,
        whole_seconds: true,
        seed: 1,
    });
    let at = |millis: u64| Now {
        local: LocalTime::from_nanos(millis * 1_000_000),
        wall: WallTime::from_micros(i64::try_from(millis).unwrap() * 1000),
    };
    let last = u64::try_from(seen.len() - 1).unwrap() * 1000;
    let mut commands = election.step(at(0), Input::Start);
    for millis in (0..60_000).step_by(10) {
        let shown = seen[usize::try_from(millis / 1000).unwrap().min(seen.len() - 1)];
        while let Some(command) = commands.pop() {
            match command {
                Command::Read { id, .. } => {
                    let shown = Input::Observed(Source::Read(id), shown.clone());
                    commands.extend(election.step(at(millis), shown));
                }
                Command::Write { record, .. } => {
                    let since = millis.checked_sub(last).expect("not before the last");
                    return (Duration::from_millis(since), record.transitions);
                }
                _ => {}
            }
        }
        commands = election.step(at(millis), Input::Tick);
    }
    panic!("never taken");
}

/// Checks that the election waits a whole lease duration for an observed holder.
fn is_not_acquired(seen: &[&Observation]) {
    assert!(taken(seen).0 >= LEASE_DURATION);
}

fn read_lease(lease: Option<&Value>) -> Exchange {
    match lease {
        Some(lease) => get(LEASE).answers(200, lease),
        None => get(LEASE).fails(404, "NotFound"),
    }
}

fn bare_lease() -> Value {
    let mut bare = lease("", 0, "2");
    bare["spec"] = json!({});
    bare
}

#[tokio::test]
async fn case_39_neither_exists() {
    for kind in KINDS {
        let script = Script::new([
            get(&kind.one()).fails(404, "NotFound"),
            post(&kind.all()).answers(201, &kind.primary(Some("baz"), 0, "1")),
            post(LEASES).answers(201, &lease("baz", 0, "2")),
        ]);
        let lock = kind.lock(&script);
        assert!(lock.read().await.unwrap().is_none());
        let won = lock
            .write(&WriteKind::Create, &record("baz", 0), None)
            .await
            .unwrap();
        assert_eq!(won.observation().record, record("baz", 0));
        assert_eq!(script.sent().len(), 2);
    }
}

#[tokio::test]
async fn case_40_p_unled_and_s_missing() {
    for kind in KINDS {
        let primary = kind.primary(None, 0, "1");
        assert!(kind.read(&primary, None).await.record.is_free());
        kind.take(&primary, None).await;
    }
}

#[tokio::test]
async fn case_41_both_unled() {
    for kind in KINDS {
        let primary = kind.primary(None, 0, "1");
        assert!(
            kind.read(&primary, Some(&bare_lease()))
                .await
                .record
                .is_free()
        );
        kind.take(&primary, Some(&bare_lease())).await;
    }
}

#[tokio::test]
async fn case_42_p_held_by_bing_and_s_missing() {
    for kind in KINDS {
        let primary = kind.primary(Some("bing"), 0, "1");
        assert_eq!(kind.read(&primary, None).await.record.holder, "bing");
        kind.take(&primary, None).await;
    }
}

#[tokio::test]
async fn case_43_both_held_by_bing_and_expired_are_taken_with_five_requests() {
    for kind in KINDS {
        kind.take(
            &kind.primary(Some("bing"), 0, "1"),
            Some(&lease("bing", 0, "2")),
        )
        .await;
    }
}

#[tokio::test]
async fn case_44_p_bing_and_s_me_is_held_by_nobody_known() {
    for kind in KINDS {
        let seen = kind
            .read(
                &kind.primary(Some("bing"), 0, "1"),
                Some(&lease("baz", 0, "2")),
            )
            .await;
        assert_eq!(seen.record.holder, UNKNOWN_HOLDER);
        assert_eq!(UNKNOWN_HOLDER, "leaderelection.k8s.io/unknown");
        is_not_acquired(&[&seen]);
    }
}

#[tokio::test]
async fn case_45_both_unknown_and_expired_are_taken() {
    for kind in KINDS {
        let primary = kind.primary(Some(UNKNOWN_HOLDER), 0, "1");
        let secondary = lease(UNKNOWN_HOLDER, 0, "2");
        assert_eq!(
            kind.read(&primary, Some(&secondary)).await.record.holder,
            UNKNOWN_HOLDER
        );
        kind.take(&primary, Some(&secondary)).await;
    }
}

#[tokio::test]
async fn case_46_p_bing_and_s_missing_is_held_by_bing() {
    for kind in KINDS {
        let seen = kind.read(&kind.primary(Some("bing"), 3, "1"), None).await;
        assert_eq!(seen.record, record("bing", 3));
        assert!(!seen.unreadable);
        is_not_acquired(&[&seen]);
    }
}

#[tokio::test]
async fn case_47_p_me_and_s_bing_is_unknown_and_new_to_observers_of_s_alone() {
    for kind in KINDS {
        let secondary = lease("bing", 0, "2");
        let unled = kind.primary(None, 0, "1");
        let alone = kind.read(&unled, Some(&secondary)).await;
        let primary = kind.primary(Some("baz"), 0, "3");
        let seen = kind.read(&primary, Some(&secondary)).await;
        assert_eq!(seen.record.holder, UNKNOWN_HOLDER);
        assert_ne!(seen.fingerprint, alone.fingerprint);
        is_not_acquired(&[&alone, &seen]);
    }
}

#[tokio::test]
async fn case_48_both_bing_is_held_by_bing() {
    for kind in KINDS {
        let seen = kind
            .read(
                &kind.primary(Some("bing"), 0, "1"),
                Some(&lease("bing", 0, "2")),
            )
            .await;
        assert_eq!(seen.record, record("bing", 0));
        is_not_acquired(&[&seen]);
    }
}

#[tokio::test]
async fn case_49_both_me_is_renewed_with_three_requests_and_transitions_stay() {
    for kind in KINDS {
        let (primary, secondary) = (kind.primary(Some("baz"), 0, "1"), lease("baz", 0, "2"));
        let script = Script::new([
            get(&kind.one()).answers(200, &primary),
            get(LEASE).answers(200, &secondary),
            put(&kind.one()).answers(200, &kind.primary(Some("baz"), 0, "3")),
            get(LEASE).answers(200, &secondary),
            put(LEASE).answers(200, &lease("baz", 0, "4")),
        ]);
        let lock = kind.lock(&script);
        let seen = lock.read().await.unwrap().unwrap();
        assert_eq!(seen.observation().record.holder, "baz");
        let renew = WriteKind::Renew(seen.observation().version.clone());
        let renewed = lock
            .write(&renew, &record("baz", 0), Some(&seen))
            .await
            .unwrap();
        assert_eq!(renewed.observation().record.transitions, 0);
        assert_eq!(
            renewed.secondary().unwrap()["metadata"]["resourceVersion"],
            "4"
        );
        script.sent();
    }
}

#[tokio::test]
async fn change_of_either_record_counts_as_a_renewal_and_other_changes_do_not() {
    for kind in KINDS {
        let (primary, secondary) = (kind.primary(Some("a"), 0, "1"), lease("a", 0, "2"));
        let print = kind.read(&primary, Some(&secondary)).await.fingerprint;
        let mut renewed = secondary.clone();
        renewed["spec"]["renewTime"] = "2026-01-02T03:04:09.000000Z".into();
        assert_ne!(kind.read(&primary, Some(&renewed)).await.fingerprint, print);
        let moved = kind.primary(Some("a"), 1, "3");
        assert_ne!(kind.read(&moved, Some(&secondary)).await.fingerprint, print);
        let mut labelled = lease("a", 0, "9");
        labelled["metadata"]["labels"] = json!({ "x": "y" });
        assert_eq!(
            kind.read(&primary, Some(&labelled)).await.fingerprint,
            print
        );
    }
}

#[tokio::test]
async fn lease_held_by_a_client_of_leases_is_respected_for_its_duration() {
    for kind in KINDS {
        let mut held = lease("bing", 0, "2");
        held["spec"]["leaseDurationSeconds"] = 15.into();
        let seen = kind.read(&kind.primary(None, 0, "1"), Some(&held)).await;
        assert_eq!(seen.record.holder, UNKNOWN_HOLDER);
        assert_eq!(seen.record.lease_duration_seconds, 15);
    }
}

#[tokio::test]
async fn a_renewal_in_p_alone_does_not_count_as_a_renewal() {
    for kind in KINDS {
        let mut older = lease("baz", 0, "2");
        older["spec"]["renewTime"] = "2026-01-02T03:04:06.000000Z".into();
        let seen = kind
            .read(&kind.primary(Some("baz"), 0, "3"), Some(&older))
            .await;
        assert_eq!(seen.record.holder, "baz");
        assert!(seen.record.renew_time < record("baz", 0).renew_time);
    }
}

#[tokio::test]
async fn creation_is_aborted_if_p_exists() {
    for kind in KINDS {
        let script = Script::new([post(&kind.all()).fails(409, "AlreadyExists")]);
        let error = kind
            .lock(&script)
            .write(&WriteKind::Create, &record("baz", 0), None)
            .await;
        assert_eq!(error.unwrap_err().class(), Class::Refused);
        script.sent();
    }
}

/// Takes over from `bing`. The requests for S after the PUT of P have the given results.
async fn take_over(
    kind: Kind,
    secondary: Option<&Value>,
    then: Vec<Exchange>,
) -> tenure_lock::Error {
    let mut exchanges = vec![
        get(&kind.one()).answers(200, &kind.primary(Some("bing"), 0, "1")),
        read_lease(secondary),
        put(&kind.one()).answers(200, &kind.primary(Some("baz"), 1, "3")),
    ];
    exchanges.extend(then);
    let script = Script::new(exchanges);
    let lock = kind.lock(&script);
    let seen = lock.read().await.unwrap().unwrap();
    let acquire = WriteKind::Acquire(seen.observation().version.clone());
    let error = lock
        .write(&acquire, &record("baz", 1), Some(&seen))
        .await
        .unwrap_err();
    script.sent();
    error
}

#[tokio::test]
async fn s_is_replaced_only_in_the_observed_version() {
    for kind in KINDS {
        let seen = lease("bing", 0, "2");
        let taken = lease("bong", 1, "9");
        let error = take_over(kind, Some(&seen), vec![get(LEASE).answers(200, &taken)]).await;
        assert_eq!(error.class(), Class::Unknown);
        let text = error.to_string();
        assert!(
            text.contains("the primary object was written, but the secondary object was not"),
            "{text}"
        );
        assert!(text.contains("cannot update lease foo/bar"), "{text}");

        let appeared = vec![get(LEASE).answers(200, &taken)];
        assert_eq!(
            take_over(kind, None, appeared).await.class(),
            Class::Unknown
        );
        let mut recreated = seen.clone();
        recreated["metadata"]["uid"] = "uid-other".into();
        let recreated = vec![get(LEASE).answers(200, &recreated)];
        assert_eq!(
            take_over(kind, Some(&seen), recreated).await.class(),
            Class::Unknown
        );
        let raced = vec![
            get(LEASE).answers(200, &seen),
            put(LEASE).fails(409, "Conflict"),
        ];
        assert_eq!(
            take_over(kind, Some(&seen), raced).await.class(),
            Class::Unknown
        );
        let created = vec![
            get(LEASE).fails(404, "NotFound"),
            post(LEASES).fails(409, "AlreadyExists"),
        ];
        assert_eq!(
            take_over(kind, Some(&seen), created).await.class(),
            Class::Unknown
        );
    }
}

#[tokio::test]
async fn write_without_a_response_about_s_uses_the_last_version_read() {
    for kind in KINDS {
        let seen = lease("bing", 0, "2");
        let then = vec![get(LEASE).breaks(), put(LEASE).fails(409, "Conflict")];
        assert_eq!(
            take_over(kind, Some(&seen), then).await.class(),
            Class::Unknown
        );
        let then = vec![
            get(LEASE).fails(503, "Down"),
            post(LEASES).fails(409, "AlreadyExists"),
        ];
        assert_eq!(take_over(kind, None, then).await.class(), Class::Unknown);
    }
}

#[tokio::test]
async fn a_missing_permission_on_s_is_named() {
    for kind in KINDS {
        let then = vec![
            get(LEASE).fails(404, "NotFound"),
            post(LEASES).fails(403, "Forbidden"),
        ];
        let error = take_over(kind, None, then).await;
        assert_eq!(error.class(), Class::Unusable);
        assert!(
            error
                .to_string()
                .contains("the permission to create leases.coordination.k8s.io")
        );
    }
}

#[tokio::test]
async fn failed_put_of_p_sends_no_request_for_s() {
    for kind in KINDS {
        let script = Script::new([
            get(&kind.one()).answers(200, &kind.primary(Some("bing"), 0, "1")),
            get(LEASE).answers(200, &lease("bing", 0, "2")),
            put(&kind.one()).fails(409, "Conflict"),
        ]);
        let lock = kind.lock(&script);
        let seen = lock.read().await.unwrap().unwrap();
        let acquire = WriteKind::Acquire(seen.observation().version.clone());
        let error = lock
            .write(&acquire, &record("baz", 1), Some(&seen))
            .await
            .unwrap_err();
        assert_eq!(error.class(), Class::Refused);
        script.sent();
    }
}

#[tokio::test]
async fn an_unreadable_primary_makes_the_whole_unreadable() {
    for kind in KINDS {
        let mut primary = kind.primary(None, 0, "1");
        primary["metadata"]["annotations"] = json!({ LEADER_ANNOTATION: "garbage" });
        let seen = kind.read(&primary, Some(&lease("baz", 0, "2"))).await;
        assert!(seen.unreadable);
        // There is no known holder, but the Lease states how long its holder may continue.
        assert_eq!(seen.record.holder, "");
        assert_eq!(seen.record.lease_duration_seconds, 10);
    }
}

#[tokio::test]
async fn orders_on_either_object_count() {
    for kind in KINDS {
        let mut secondary = lease("baz", 0, "2");
        secondary["metadata"]["annotations"] =
            json!({ "tenure.dev/paused": "true", "tenure.dev/step-down": "{\"transitions\":0}" });
        let seen = kind
            .read(&kind.primary(Some("baz"), 0, "1"), Some(&secondary))
            .await;
        assert!(seen.orders.paused);
        assert_eq!(seen.orders.step_down.unwrap().transitions, 0);
    }
}

#[tokio::test]
async fn watch_events_are_combined_with_the_last_observation() {
    for kind in KINDS {
        let (primary, secondary) = (kind.primary(Some("a"), 0, "1"), lease("a", 0, "20"));
        let script = Script::new([
            get(&kind.one()).answers(200, &primary),
            get(LEASE).answers(200, &secondary),
        ]);
        let lock = kind.lock(&script);
        let Watch::Objects(targets) = lock.watch() else {
            panic!("the lock is in the API server")
        };
        assert_eq!(
            (targets[0].object.path(), targets[1].object.path()),
            (kind.one(), LEASE.to_owned())
        );
        assert_eq!(lock.precision(), Precision::Seconds);
        assert_eq!(lock.references(None).len(), 2);

        assert!(matches!(
            lock.apply_watch_event(0, Some(primary.clone()), None),
            WatchOutcome::ReadNeeded
        ));
        let last = lock.read().await.unwrap().unwrap();
        let holder = |sight: WatchOutcome| match sight {
            WatchOutcome::Present(seen) => seen.observation().record.holder.clone(),
            WatchOutcome::Absent => "absent".to_owned(),
            WatchOutcome::ReadNeeded => "read needed".to_owned(),
        };
        let last = Some(&last);
        assert_eq!(
            holder(lock.apply_watch_event(0, Some(kind.primary(Some("b"), 1, "30")), last)),
            UNKNOWN_HOLDER
        );
        // This change happened before the known change of the Lease, so the combined version does not include it.
        assert_eq!(
            holder(lock.apply_watch_event(0, Some(kind.primary(Some("b"), 1, "15")), last)),
            "read needed"
        );
        assert_eq!(
            holder(lock.apply_watch_event(1, Some(lease("b", 1, "31")), last)),
            UNKNOWN_HOLDER
        );
        assert_eq!(
            holder(lock.apply_watch_event(1, Some(lease("a", 0, "21")), last)),
            "a"
        );
        assert_eq!(holder(lock.apply_watch_event(1, None, last)), "a");
        assert_eq!(holder(lock.apply_watch_event(0, None, last)), "absent");
        assert_eq!(
            lock.references(last)[1].resource_version.as_deref(),
            Some("20")
        );
        // The watch is behind the known state.
        assert_eq!(
            holder(lock.apply_watch_event(1, Some(lease("old", 0, "9")), last)),
            "a"
        );
        assert_eq!(
            holder(lock.apply_watch_event(0, Some(primary.clone()), last)),
            "a"
        );
    }
}

#[tokio::test]
async fn missing_object_before_the_first_read_means_absent_only_for_p() {
    for kind in KINDS {
        let lock = kind.lock(&Script::new([]));
        let shown = lock.apply_watch_event(0, None, None);
        assert!(matches!(shown, WatchOutcome::Absent), "{shown:?}");
        let shown = lock.apply_watch_event(1, None, None);
        assert!(matches!(shown, WatchOutcome::ReadNeeded), "{shown:?}");
    }
}

#[tokio::test]
async fn description_names_both_kinds() {
    let descriptions = KINDS.map(|kind| kind.lock(&Script::new([])).describe().to_owned());
    assert_eq!(
        descriptions,
        ["configmap and lease foo/bar", "endpoints and lease foo/bar"]
    );
}

#[tokio::test]
async fn connection_is_shared_if_the_last_response_came_over_http2() {
    for kind in KINDS {
        let absent = || get(&kind.one()).fails(404, "NotFound");
        let script = Script::new([absent(), absent().over_http2()]);
        let lock = kind.lock(&script);
        lock.read().await.unwrap();
        assert!(!lock.shares_connection());
        lock.read().await.unwrap();
        assert!(lock.shares_connection());
    }
}

#[tokio::test]
async fn the_version_moves_with_either_object() {
    for kind in KINDS {
        let revision = async |primary: &str, secondary: Option<&str>| {
            let secondary = secondary.map(|revision| lease("a", 0, revision));
            let seen = kind
                .read(&kind.primary(Some("a"), 0, primary), secondary.as_ref())
                .await;
            seen.version.revision.to_string()
        };
        assert_eq!(revision("9", Some("10")).await, "10");
        assert_eq!(revision("11", Some("10")).await, "11");
        assert_eq!(revision("11", None).await, "11");
        assert_eq!(
            revision("x", Some("10")).await,
            "x",
            "without an order the primary decides"
        );
    }
}

#[tokio::test]
async fn first_half_of_an_own_write_is_not_reported_until_the_second_is_written() {
    for kind in KINDS {
        let (primary, secondary) = (kind.primary(Some("bing"), 0, "1"), lease("bing", 0, "2"));
        let half = kind.primary(Some("baz"), 1, "3");
        let script = Script::new([
            get(&kind.one()).answers(200, &primary),
            get(LEASE).answers(200, &secondary),
            put(&kind.one()).answers(200, &half),
            get(LEASE).hangs(),
        ]);
        let lock = kind.lock(&script);
        let last = lock.read().await.unwrap().unwrap();
        let holder =
            |event: &Value| match lock.apply_watch_event(0, Some(event.clone()), Some(&last)) {
                WatchOutcome::Present(seen) => seen.observation().record.holder.clone(),
                other => panic!("{other:?}"),
            };
        let acquire = WriteKind::Acquire(last.observation().version.clone());
        let taken = record("baz", 1);
        let mut write = lock.write(&acquire, &taken, Some(&last));
        let hung = script.hung();
        tokio::select! {
            biased;
            done = &mut write => panic!("{done:?}"),
            () = hung => {}
        }
        assert_eq!(
            holder(&half),
            "bing",
            "half of our own write is not reported"
        );
        assert_eq!(
            holder(&kind.primary(Some("bong"), 1, "3")),
            UNKNOWN_HOLDER,
            "not ours"
        );
        drop(write);
        assert_eq!(
            holder(&half),
            UNKNOWN_HOLDER,
            "an abandoned write is reported"
        );
    }
}

#[tokio::test]
async fn completed_own_write_is_not_reported_and_later_edits_are() {
    for kind in KINDS {
        let (after_p, after_s) = (kind.primary(Some("baz"), 1, "3"), lease("baz", 1, "4"));
        let script = Script::new([
            get(&kind.one()).answers(200, &kind.primary(Some("bing"), 0, "1")),
            get(LEASE).answers(200, &lease("bing", 0, "2")),
            put(&kind.one()).answers(200, &after_p),
            get(LEASE).answers(200, &lease("bing", 0, "2")),
            put(LEASE).answers(200, &after_s),
        ]);
        let lock = kind.lock(&script);
        let last = lock.read().await.unwrap().unwrap();
        let acquire = WriteKind::Acquire(last.observation().version.clone());
        let won = lock
            .write(&acquire, &record("baz", 1), Some(&last))
            .await
            .unwrap();

        let revision = |target: usize, event: &Value, last: &Snapshot| match lock.apply_watch_event(
            target,
            Some(event.clone()),
            Some(last),
        ) {
            WatchOutcome::Present(seen) => seen.observation().version.revision.to_string(),
            other => panic!("{other:?}"),
        };
        // The watch may be faster than the response to the write.
        assert_eq!(revision(0, &after_p, &last), "2");
        assert_eq!(revision(1, &after_s, &last), "2");
        assert_eq!(revision(0, &after_p, &won), "4");
        let mut ordered = kind.primary(Some("baz"), 1, "5");
        ordered["metadata"]["annotations"]["tenure.dev/paused"] = "true".into();
        assert_eq!(revision(0, &ordered, &won), "5");
        script.sent();
    }
}
