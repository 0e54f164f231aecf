//! Two candidates of tenure and two of client-go contend continuously for one lock, on several locks concurrently,
//! while leaders are terminated, killed, stopped or disconnected. `real_interop` runs this on the real kube-apiserver,
//! `apiserver_interop` on the embedded one.
//!
//! Leases are short so that there are many hand-overs in little time. On a slow machine client-go may then be late by
//! itself. When it is stopped or disconnected, it is known to keep leading too long. Therefore the test checks that no
//! guard of tenure lasts into the term of another candidate, and that the records are one unbroken sequence.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::candidate::Election;
use crate::clock;
use crate::nemesis::campaign::say;
use crate::nemesis::proxy::{Gate, Proxy};
use crate::nemesis::squad::Make;
use crate::overlap::{History, Overlap, Term};
use crate::process::Process;
use crate::wire::{Answer, Wire, lease_path};
use http::Method;
use serde_json::{Value, json};

const LOCKS: usize = 5;

/// Number of faults per lock.
const BLOWS: usize = 30;

const LIMIT: Duration = Duration::from_secs(180);

/// How a leader loses its lock.
#[derive(Clone, Copy, Debug)]
enum Blow {
    Terminate,
    Kill,
    Stop,
    BlackHole,
}

/// The fast fault alternates with the others, which wait for the lease to expire.
const ORDER: [Blow; 6] = [
    Blow::Terminate,
    Blow::Kill,
    Blow::Terminate,
    Blow::BlackHole,
    Blow::Terminate,
    Blow::Stop,
];

/// Runs all locks concurrently and checks each result.
pub fn contention(kubeconfig: &Path) {
    let wire = Wire::connect(kubeconfig).unwrap();
    let namespace = format!("mixed-{}", clock::now().0);
    let made = json!({"metadata": {"name": namespace}});
    let made = wire.send(&Method::POST, "/api/v1/namespaces", Some(&made));
    let start = made.unwrap().body["metadata"]["resourceVersion"].clone();
    let start = start.as_str().unwrap().to_owned();

    let over = AtomicBool::new(false);
    let (tables, records) = std::thread::scope(|scope| {
        let records = scope.spawn(|| watch(kubeconfig, &namespace, start, &over));
        let tables: Vec<_> = (0..LOCKS)
            .map(|number| {
                let mut election = Election::new(kubeconfig.to_owned(), format!("lock-{number}"));
                election.namespace.clone_from(&namespace);
                election.lease_duration = Duration::from_secs(2);
                election.renew_deadline = Duration::from_millis(1200);
                election.retry_period = Duration::from_millis(200);
                scope.spawn(move || struck(election, number))
            })
            .collect();
        let tables: Vec<_> = tables
            .into_iter()
            .map(std::thread::ScopedJoinHandle::join)
            .collect();
        over.store(true, Ordering::Relaxed);
        (tables, records.join().unwrap())
    });

    let mut successors = Vec::new();
    for (number, table) in tables.into_iter().enumerate() {
        let history = table.unwrap().history();
        let late = history.overlaps(clock::now());
        let late: Vec<_> = late.iter().filter(|pair| is_ours(pair)).collect();
        assert!(late.is_empty(), "guards that lasted too long: {late:#?}");
        successors.extend(checked(&records[&format!("lock-{number}")]));
    }
    let of = |make: &str| {
        successors
            .iter()
            .filter(|who| who.starts_with(make))
            .count()
    };
    let (tenure, client_go) = (of("tenure"), of("client-go"));
    say(&format!(
        "mixed fleets: {tenure} hand-overs to tenure, {client_go} to client-go"
    ));
    assert!(tenure + client_go >= LOCKS * BLOWS, "{successors:?}");
    // Two of three successors are of the other implementation.
    let enough = |count: usize| count >= LOCKS * BLOWS / 4;
    assert!(enough(tenure) && enough(client_go), "{successors:?}");
}

/// Whether tenure should have ended: the token shows which term is older. A client-go candidate that was stopped after
/// it had won starts its work late, when a newer term has begun.
fn is_ours(overlap: &Overlap) -> bool {
    let token = |term: &Term| {
        let token = term.token.clone().unwrap_or_default();
        (token.len(), token)
    };
    let (first, second) = (&overlap.first, &overlap.second);
    let older = if token(first) < token(second) {
        first
    } else {
        second
    };
    older.who.starts_with("tenure")
}

/// The candidates of one lock.
struct Table {
    election: Election,
    seats: Vec<Seat>,
    retired: Vec<Process>,
}

struct Seat {
    make: Make,
    proxy: Proxy,
    process: Process,
    incarnation: u32,
}

/// Runs one lock from its first leader to its last.
fn struck(election: Election, number: usize) -> Table {
    let wire = Wire::connect(&election.kubeconfig).unwrap();
    let mut table = Table::new(election);
    for round in 0..BLOWS {
        let leader = clock::poll(LIMIT, || table.holder(&wire));
        let leader = leader.unwrap_or_else(|| panic!("nobody leads: {}", table.said()));
        // tenure watches for a free lock, and client-go only polls. Therefore the other implementation takes over only
        // if no other candidate of the leader's implementation is there.
        let make = table.seats[leader].make;
        let kin = |seat: &usize| *seat != leader && table.seats[*seat].make == make;
        let held: Vec<usize> = (0..table.seats.len()).filter(kin).collect();
        let held = if round % 3 == 2 { Vec::new() } else { held };
        held.iter()
            .for_each(|seat| table.seats[*seat].process.stop());

        let blow = ORDER[(round + number) % ORDER.len()];
        let seat = &mut table.seats[leader];
        match blow {
            Blow::Terminate => seat.process.terminate(),
            Blow::Kill => _ = seat.process.kill(),
            Blow::Stop => seat.process.stop(),
            Blow::BlackHole => seat.proxy.set(Gate::Held, Gate::Held),
        }
        let followed = clock::poll(LIMIT, || {
            table.holder(&wire).filter(|holder| *holder != leader)
        });
        followed.unwrap_or_else(|| panic!("nobody follows after {blow:?}: {}", table.said()));

        held.iter()
            .for_each(|seat| table.seats[*seat].process.resume());
        let seat = &mut table.seats[leader];
        match blow {
            Blow::Terminate => _ = seat.process.wait(LIMIT).unwrap(),
            Blow::Kill => {}
            Blow::Stop => seat.process.resume(),
            Blow::BlackHole => seat.proxy.heal(),
        }
        table.revive();
    }
    table
}

impl Table {
    fn new(election: Election) -> Self {
        let makes = [Make::Tenure, Make::Tenure, Make::ClientGo, Make::ClientGo];
        let seats = makes.iter().enumerate().map(|(index, make)| {
            let proxy = Proxy::start(&election.kubeconfig).unwrap();
            let process = launch(&election, *make, &proxy, index, 0);
            Seat {
                make: *make,
                proxy,
                process,
                incarnation: 0,
            }
        });
        Self {
            seats: seats.collect(),
            election,
            retired: Vec::new(),
        }
    }

    /// Returns the holder of the lock, if its process is still there. The record decides, not the output of the
    /// candidates: a client-go process that was stopped reacquires a lock that was released in the meantime without
    /// reporting it.
    fn holder(&self, wire: &Wire) -> Option<usize> {
        std::thread::sleep(Duration::from_millis(20));
        let lease = lease_path(&self.election.namespace, &self.election.name);
        let record = wire.get(&lease).ok()?.body;
        let holder = record["spec"]["holderIdentity"].as_str()?;
        let mut seats = self.seats.iter();
        seats.position(|seat| seat.process.name() == holder)
    }

    /// Replaces ended candidates by new ones.
    fn revive(&mut self) {
        for index in 0..self.seats.len() {
            let seat = &mut self.seats[index];
            if seat.process.has_ended() {
                // Marks every term as ended that the process did not report as ended itself.
                seat.process.kill();
                seat.incarnation += 1;
                let fresh = launch(
                    &self.election,
                    seat.make,
                    &seat.proxy,
                    index,
                    seat.incarnation,
                );
                let old = std::mem::replace(&mut seat.process, fresh);
                self.retired.push(old);
            }
        }
    }

    fn history(&self) -> History {
        let mut history = History::default();
        let seats = self.seats.iter().map(|seat| &seat.process);
        for process in seats.chain(&self.retired) {
            history.add(&process.events(), process.killed_at());
        }
        history
    }

    fn said(&self) -> String {
        let said = self.seats.iter().map(|seat| {
            let process = &seat.process;
            format!("--- {}\n{}", process.name(), process.transcript())
        });
        said.collect::<Vec<_>>().join("\n")
    }
}

fn launch(
    election: &Election,
    make: Make,
    proxy: &Proxy,
    index: usize,
    incarnation: u32,
) -> Process {
    let mut election = election.clone();
    election.kubeconfig = proxy.kubeconfig();
    let work = ["--work", "20ms"];
    let started = match make {
        Make::Tenure => election.library(&format!("tenure-{index}-{incarnation}"), &work),
        Make::ClientGo => election.client_go(&format!("client-go-{index}-{incarnation}"), &work),
    };
    started.unwrap_or_else(|error| panic!("{error}"))
}

/// Returns every record of every lock, in the order of the writes.
fn watch(
    kubeconfig: &Path,
    namespace: &str,
    mut version: String,
    over: &AtomicBool,
) -> BTreeMap<String, Vec<Value>> {
    let wire = Wire::connect(kubeconfig).unwrap();
    let mut records = BTreeMap::<String, Vec<Value>>::new();
    let path = lease_path(namespace, "");
    loop {
        // One more watch after the end, for writes since the previous one.
        let last = over.load(Ordering::Relaxed);
        let query = format!("?watch=true&timeoutSeconds=2&resourceVersion={version}");
        let answer = wire
            .get(&format!("{}{query}", path.trim_end_matches('/')))
            .unwrap();
        for event in events(answer) {
            let lease = &event["object"];
            assert!(
                matches!(event["type"].as_str(), Some("ADDED" | "MODIFIED")),
                "{event}"
            );
            let text = |field: &str| lease["metadata"][field].as_str().unwrap().to_owned();
            version = text("resourceVersion");
            records
                .entry(text("name"))
                .or_default()
                .push(lease["spec"].clone());
        }
        if last {
            return records;
        }
    }
}

/// One line is an event; a single line has already been parsed as JSON.
fn events(answer: Answer) -> Vec<Value> {
    match answer.body {
        Value::String(text) => {
            let lines = text.lines().map(serde_json::from_str);
            lines
                .collect::<Result<_, _>>()
                .unwrap_or_else(|error| panic!("{error}: {text}"))
        }
        Value::Null => Vec::new(),
        event => vec![event],
    }
}

/// Checks the records of one lock from the first on. Returns every holder that took it over from another one.
fn checked(records: &[Value]) -> Vec<String> {
    let mut successors = Vec::new();
    for pair in records.windows(2) {
        let [before, after] = pair else { continue };
        let holder = |record: &Value| record["holderIdentity"].as_str().unwrap().to_owned();
        let count = |record: &Value| record["leaseTransitions"].as_i64().unwrap();
        let given = !holder(after).is_empty() && holder(after) != holder(before);
        // A candidate that lost the lock and acquired it again starts a new term, too.
        let again =
            holder(after) == holder(before) && after["acquireTime"] != before["acquireTime"];
        let began = i64::from(given || again);
        assert_eq!(count(after), count(before) + began, "{before} then {after}");
        successors.extend(given.then(|| holder(after)));
    }
    for record in records {
        let released = record["holderIdentity"] == "";
        let mut form = record.clone();
        for field in ["acquireTime", "renewTime"] {
            let digit = |c: char| if c.is_ascii_digit() { '0' } else { c };
            let text = record[field].as_str().unwrap_or_default();
            form[field] = text.chars().map(digit).collect::<String>().into();
        }
        let time = "0000-00-00T00:00:00.000000Z";
        let expected = json!({"holderIdentity": record["holderIdentity"],
            "leaseDurationSeconds": if released { 1 } else { 2 },
            "leaseTransitions": record["leaseTransitions"], "acquireTime": time, "renewTime": time});
        assert_eq!(form, expected);
    }
    successors
}
