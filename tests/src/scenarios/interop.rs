//! Fleets of tenure and client-go on one lock. Each function gets a kubeconfig and a lock kind. `real_interop` runs
//! them on the real kube-apiserver, `apiserver_interop` on the embedded one.

use std::time::Duration;

use crate::Skip;
use crate::candidate::{self, Election, Fleet};
use crate::clock::{self, Nanos};
use crate::event::Kind;
use crate::process::Process;
use crate::real::{Peer, available};
use crate::wire::{Wire, lease_path, object_path};
use serde_json::{Value, json};

/// All lock kinds.
pub const LOCKS: [&str; 5] = [
    "leases",
    "configmaps",
    "endpoints",
    "configmapsleases",
    "endpointsleases",
];

const WORK: [&str; 2] = ["--work", "10ms"];

const LIMIT: Duration = Duration::from_secs(60);

/// How a tenure candidate is started: by the command, or by a program that uses the library.
pub type Start = fn(&Election, &str, &[&str]) -> Result<Process, candidate::Error>;

/// Whether client-go's elector for this lock and the tenure candidate are available.
pub fn both<T>(lock: &str, ours: Result<T, Skip>) -> bool {
    let peer = if lock == "leases" {
        Peer::Elector
    } else {
        Peer::OldElector
    };
    Skip::unless(available(&[peer]).and(ours)).is_some()
}

/// Leaders end by SIGTERM and SIGKILL, and a candidate of the other implementation takes over each time.
pub fn hand_overs(mut election: Election, lock: &'static str, ours: Start) {
    election.lock = lock;
    let election = election.quick();
    let wire = Wire::connect(&election.kubeconfig).expect("the harness wrote it");
    let mut fleet = Fleet::default();
    fleet.add(run(Election::client_go, &election, "client-go-0", &[]));
    let (mut leader, _) = next(&fleet, Nanos(0), None);
    for round in 1..=9 {
        let (make, start): (_, Start) = match leader.starts_with("client-go") {
            true => ("tenure", ours),
            false => ("client-go", Election::client_go),
        };
        let successor = format!("{make}-{round}");
        fleet.add(run(start, &election, &successor, &[]));
        let seen =
            |event: &crate::event::Event| event.event == Kind::Observed && event.leader == leader;
        let observed = fleet
            .member(&successor)
            .wait_until("sight of the leader", LIMIT, seen);
        observed.unwrap_or_else(|silence| panic!("{silence}"));

        let since = clock::now();
        match round % 3 {
            0 => _ = fleet.member(&leader).kill(),
            _ => fleet.member(&leader).terminate(),
        }
        let (new, _) = next(&fleet, since, Some(&leader));
        assert_eq!(new, successor);
        for record in records(&wire, &election) {
            assert_eq!(
                record,
                record_of(&new, round, &record),
                "{lock}, round {round}"
            );
        }
        leader = new;
    }
    let history = fleet.history();
    assert_eq!(history.terms().len(), 10);
    assert_eq!(history.check(clock::now()), Ok(()));
}

/// A tenure leader that was stopped for longer than its lease does not lead when it resumes, not even for an instant.
pub fn stopped(election: Election, ours: Start) {
    let election = election.quick();
    let mut fleet = Fleet::default();
    fleet.add(run(ours, &election, "a", &WORK));
    next(&fleet, Nanos(0), None);
    fleet.add(run(Election::client_go, &election, "b", &WORK));
    for _ in 0..3 {
        let since = clock::now();
        fleet.member("a").stop();
        let (new, _) = next(&fleet, since, Some("a"));
        assert_eq!(new, "b");
        let resumed = clock::now();
        fleet.member("a").resume();
        let lost = fleet.member("a").wait_for(Kind::Lost, since, LIMIT);
        let lost = lost.unwrap_or_else(|silence| panic!("{silence}"));
        assert!(lost.until < Some(resumed), "{lost:?}");
        let since = clock::now();
        fleet.member("b").terminate();
        next(&fleet, since, Some("b"));
        // The next round needs a new "b" under the same name.
        let gone = fleet.retire("b");
        assert_eq!(gone, 1);
        fleet.add(run(Election::client_go, &election, "b", &WORK));
    }
    let history = fleet.history();
    assert_eq!(history.stale_work("a"), Duration::ZERO);
    assert_eq!(history.check(clock::now()), Ok(()));
}

fn run(start: Start, election: &Election, id: &str, extra: &[&str]) -> Process {
    start(election, id, extra).unwrap_or_else(|error| panic!("{error}"))
}

fn next(fleet: &Fleet, since: Nanos, not: Option<&str>) -> (String, Nanos) {
    fleet
        .next_leader(since, not, LIMIT)
        .unwrap_or_else(|silence| panic!("{silence}"))
}

/// Returns the records of a lock, one per object, with times replaced by their format.
fn records(wire: &Wire, election: &Election) -> Vec<Value> {
    let mut records = Vec::new();
    if election.lock.contains("leases") {
        let lease = body(wire, &lease_path(&election.namespace, &election.name));
        records.push(lease["spec"].clone());
    }
    if let Some(resource) = ["configmaps", "endpoints"]
        .iter()
        .find(|r| election.lock.starts_with(**r))
    {
        let path = object_path("/api/v1", &election.namespace, resource, &election.name);
        let object = body(wire, &path);
        let text = &object["metadata"]["annotations"]["control-plane.alpha.kubernetes.io/leader"];
        let text = text
            .as_str()
            .unwrap_or_else(|| panic!("no annotation: {object}"));
        records.push(serde_json::from_str(text).unwrap_or_else(|error| panic!("{text}: {error}")));
    }
    for record in &mut records {
        for field in ["acquireTime", "renewTime"] {
            let form = |c: char| if c.is_ascii_digit() { '0' } else { c };
            let text = record[field].as_str().unwrap_or_default();
            record[field] = text.chars().map(form).collect::<String>().into();
        }
    }
    records
}

/// Returns the record that client-go would have written, in the form of `like`: of a Lease or of an annotation.
fn record_of(holder: &str, transitions: u32, like: &Value) -> Value {
    let (count, time) = match like.get("leaseTransitions") {
        Some(_) => ("leaseTransitions", "0000-00-00T00:00:00.000000Z"),
        None => ("leaderTransitions", "0000-00-00T00:00:00Z"),
    };
    json!({"holderIdentity": holder, "leaseDurationSeconds": 5, count: transitions,
           "acquireTime": time, "renewTime": time})
}

fn body(wire: &Wire, path: &str) -> Value {
    wire.get(path)
        .unwrap_or_else(|error| panic!("{error}"))
        .body
}
