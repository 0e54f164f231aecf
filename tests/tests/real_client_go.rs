//! client-go alone on the real kube-apiserver. This shows that the harness detects the records, the hand-overs, and the
//! overlap that client-go is known to allow.

use std::time::Duration;

use serde_json::{Value, json};
use tenure_tests::Skip;
use tenure_tests::candidate::{Election, Fleet};
use tenure_tests::clock::{self, Nanos};
use tenure_tests::event::Kind;
use tenure_tests::real::{Cluster, Peer, available, shared};
use tenure_tests::wire::{lease_path, object_path};

const LIMIT: Duration = Duration::from_secs(60);

fn cluster(peer: Peer) -> Option<&'static Cluster> {
    Skip::unless(available(&[peer]).and_then(|()| shared()))
}

/// Masks times after checking their format: six digits after the second.
fn mask_times(spec: &mut Value) {
    for field in ["acquireTime", "renewTime"] {
        let fraction = spec[field].as_str().and_then(|text| text.split_once('.'));
        let digits = fraction.and_then(|(_, fraction)| fraction.strip_suffix('Z'));
        assert_eq!(digits.map(str::len), Some(6), "{field} is {}", spec[field]);
        spec[field] = json!("T");
    }
}

#[test]
fn client_go_term_has_the_expected_records() {
    let Some(cluster) = cluster(Peer::Elector) else {
        return;
    };
    let wire = cluster.wire().unwrap();
    let election = Election::new(cluster.kubeconfig(), "client-go-term");
    let path = lease_path("default", &election.name);
    let mut a = election.client_go("a", &[]).unwrap();

    let acquired = a.wait_for(Kind::Acquired, Nanos(0), LIMIT).unwrap();
    assert_eq!((acquired.me.as_str(), acquired.leader.as_str()), ("a", "a"));
    let mut held = wire.get(&path).unwrap().body;
    mask_times(&mut held["spec"]);
    assert_eq!(
        held["spec"],
        json!({"holderIdentity": "a", "leaseDurationSeconds": 15, "leaseTransitions": 0,
               "acquireTime": "T", "renewTime": "T"})
    );
    // The token is the version of the first write; the lease may have been renewed since.
    let token: u64 = acquired.token.unwrap().parse().unwrap();
    let version: u64 = held["metadata"]["resourceVersion"]
        .as_str()
        .unwrap()
        .parse()
        .unwrap();
    assert!(token <= version, "token {token}, version {version}");

    a.terminate();
    assert!(a.wait(LIMIT).unwrap().success());
    let released = a.wait_for(Kind::Released, acquired.t, LIMIT).unwrap();
    assert!(released.until.unwrap() <= released.t);
    let mut free = wire.get(&path).unwrap().body;
    mask_times(&mut free["spec"]);
    assert_eq!(
        free["spec"],
        json!({"holderIdentity": "", "leaseDurationSeconds": 1, "leaseTransitions": 0,
               "acquireTime": "T", "renewTime": "T"})
    );
}

#[test]
fn hand_overs_by_sigterm_and_kill() {
    let Some(cluster) = cluster(Peer::Elector) else {
        return;
    };
    let election = Election::new(cluster.kubeconfig(), "client-go-hand-overs").quick();
    let mut fleet = Fleet::default();
    for id in ["a", "b", "c"] {
        fleet.add(election.client_go(id, &[]).unwrap());
    }
    let (mut leader, _) = fleet.next_leader(Nanos(0), None, LIMIT).unwrap();
    for round in 0..6 {
        let since = clock::now();
        match round % 3 {
            2 => _ = fleet.member(&leader).kill(),
            _ => fleet.member(&leader).terminate(),
        }
        fleet.add(election.client_go(&format!("r{round}"), &[]).unwrap());
        let (next, _) = fleet.next_leader(since, Some(&leader), LIMIT).unwrap();
        leader = next;
    }
    let history = fleet.history();
    assert_eq!(history.terms().len(), 7);
    history.check(clock::now()).unwrap();
    let last = cluster
        .wire()
        .unwrap()
        .get(&lease_path("default", &election.name))
        .unwrap()
        .body;
    assert_eq!(last["spec"]["holderIdentity"], leader);
    assert_eq!(last["spec"]["leaseTransitions"], 6);
}

/// If this finds no overlap, the checker or the nemesis is too weak to prove anything about other candidates.
///
/// The overlap depends on the moment at which the leader was stopped:
/// - Between two rounds of renewal: it continues to work until its renew deadline, at the same time as the new leader.
/// - During a round: it gives up, but releases the lease, which the other one holds by then, and acquires it
///   immediately. Then the other one continues to work.
#[test]
fn client_go_stopped_leader_and_its_successor_both_work() {
    let Some(cluster) = cluster(Peer::Elector) else {
        return;
    };
    let election = Election::new(cluster.kubeconfig(), "client-go-stopped").quick();
    let mut fleet = Fleet::default();
    fleet.add(election.client_go("a", &["--work", "10ms"]).unwrap());
    fleet.next_leader(Nanos(0), None, LIMIT).unwrap();
    fleet.add(election.client_go("b", &["--work", "10ms"]).unwrap());
    std::thread::sleep(election.retry_period);

    let stopped = clock::now();
    fleet.member("a").stop();
    let (next, _) = fleet.next_leader(stopped, Some("a"), LIMIT).unwrap();
    assert_eq!(next, "b");
    fleet.member("a").resume();
    std::thread::sleep(election.renew_deadline + 2 * election.retry_period);

    let (history, now) = (fleet.history(), clock::now());
    let (a, b) = (history.stale_work("a"), history.stale_work("b"));
    eprintln!(
        "client-go stopped past its lease: stale work {a:?} by the old, {b:?} by the new leader"
    );
    assert!(
        a.max(b) > election.retry_period,
        "stale work {a:?} and {b:?}"
    );
    assert!(
        history
            .check(now)
            .unwrap_err()
            .to_string()
            .contains("a and b both led for")
    );
}

#[test]
fn client_go_records_of_old_lock_kinds_are_as_expected() {
    let Some(cluster) = cluster(Peer::OldElector) else {
        return;
    };
    let wire = cluster.wire().unwrap();
    for (lock, resource) in [
        ("configmaps", "configmaps"),
        ("endpoints", "endpoints"),
        ("configmapsleases", "configmaps"),
        ("endpointsleases", "endpoints"),
    ] {
        let mut election = Election::new(cluster.kubeconfig(), format!("old-{lock}")).quick();
        election.lock = lock;
        let mut fleet = Fleet::default();
        fleet.add(election.client_go("a", &[]).unwrap());
        fleet.next_leader(Nanos(0), None, LIMIT).unwrap();
        fleet.add(election.client_go("b", &[]).unwrap());
        let since = clock::now();
        fleet.member("a").terminate();
        let (next, _) = fleet.next_leader(since, Some("a"), LIMIT).unwrap();
        assert_eq!(next, "b");
        fleet.history().check(clock::now()).unwrap();

        let path = object_path("/api/v1", "default", resource, &election.name);
        let object = wire.get(&path).unwrap().body;
        let record = &object["metadata"]["annotations"]["control-plane.alpha.kubernetes.io/leader"];
        let record: Value = serde_json::from_str(record.as_str().unwrap()).unwrap();
        assert_eq!(
            (&record["holderIdentity"], &record["leaderTransitions"]),
            (&json!("b"), &json!(1))
        );
        if lock.ends_with("leases") {
            let lease = wire
                .get(&lease_path("default", &election.name))
                .unwrap()
                .body;
            assert_eq!(lease["spec"]["holderIdentity"], "b");
        }
    }
}
