//! Work that ignores its cancellation, in a real process: the process ends before another candidate may lead, and
//! nothing is released.

use std::os::unix::process::ExitStatusExt as _;
use std::time::Duration;

use http::Method;
use tenure_tests::candidate::Election;
use tenure_tests::clock::Nanos;
use tenure_tests::embedded::Embedded;
use tenure_tests::event::Kind;
use tenure_tests::process::Process;
use tenure_tests::wire::{Wire, lease_path};
use tenure_tests::{Skip, tools};

const LIMIT: Duration = Duration::from_secs(60);
const SIGABRT: i32 = 6;

/// A leader whose work cannot be stopped, and a candidate that waits.
struct Pair {
    stubborn: Process,
    heir: Process,
}

impl Pair {
    fn start(server: &Embedded, name: &str) -> Option<(Self, Election)> {
        Skip::unless(tools::candidate())?;
        let election = Election::new(server.kubeconfig(), name).quick();
        let stubborn = election
            .library("stubborn", &["--work", "10ms", "--stubborn"])
            .unwrap();
        stubborn.wait_for(Kind::Working, Nanos(0), LIMIT).unwrap();
        let heir = election.library("heir", &[]).unwrap();
        heir.wait_for(Kind::Observed, Nanos(0), LIMIT).unwrap();
        Some((Self { stubborn, heir }, election))
    }

    /// Asserts that the leader aborts and that the other one leads only afterwards.
    fn check(mut self) {
        let status = self.stubborn.wait(LIMIT).unwrap();
        let said = self.stubborn.transcript();
        assert_eq!(status.signal(), Some(SIGABRT), "{said}");
        assert!(said.contains("did not end in time; aborting"), "{said}");
        let next = self.heir.wait_for(Kind::Acquired, Nanos(0), LIMIT).unwrap();
        let events = self.stubborn.events();
        let work = events.iter().filter(|event| event.event == Kind::Working);
        let last = work.map(|event| event.t).max().unwrap();
        assert!(
            last < next.t,
            "worked at {last:?}, replaced at {:?}",
            next.t
        );
        assert!(
            events.iter().all(|event| event.event != Kind::Released),
            "{said}"
        );
        let seen = self.heir.events();
        let emptied = |event: &&tenure_tests::event::Event| {
            event.event == Kind::Observed && event.leader.is_empty()
        };
        assert!(seen.iter().find(emptied).is_none(), "a release was seen");
    }
}

#[test]
fn shutdown_that_the_work_ignores_ends_the_process_without_a_release() {
    let server = Embedded::start().unwrap();
    let Some((pair, _)) = Pair::start(&server, "overrun-shutdown") else {
        return;
    };
    pair.stubborn.terminate();
    pair.check();
}

#[test]
fn lost_lock_ends_the_process_whose_work_continues() {
    let server = Embedded::start().unwrap();
    let Some((pair, election)) = Pair::start(&server, "overrun-lost") else {
        return;
    };
    // The lease is assigned to a name without a process. It expires after five seconds.
    let client = Wire::connect(&server.kubeconfig()).unwrap();
    let path = lease_path(&election.namespace, &election.name);
    loop {
        let mut lease = client.get(&path).unwrap().body;
        lease["spec"]["holderIdentity"] = "nobody".into();
        let answer = client.send(&Method::PUT, &path, Some(&lease)).unwrap();
        if answer.status.is_success() {
            break;
        }
    }
    pair.check();
}

/// A lost term is not released before the thread that works for it has ended.
#[test]
fn a_blocking_thread_that_outlives_its_term_keeps_the_lock_until_it_ends() {
    let server = Embedded::start().unwrap();
    if Skip::unless(tools::candidate()).is_none() {
        return;
    }
    let election = Election::new(server.kubeconfig(), "overrun-blocking").quick();
    let work = ["--work", "10ms", "--blocking"];
    let leader = election.library("leader", &work).unwrap();
    leader.wait_for(Kind::Working, Nanos(0), LIMIT).unwrap();
    let heir = election.library("heir", &work).unwrap();
    heir.wait_for(Kind::Observed, Nanos(0), LIMIT).unwrap();
    leader.terminate();
    let next = heir.wait_for(Kind::Acquired, Nanos(0), LIMIT).unwrap();
    let events = leader.events();
    let work = events.iter().filter(|event| event.event == Kind::Working);
    let last = work.map(|event| event.t).max().unwrap();
    let said = leader.transcript();
    assert!(
        last < next.t,
        "worked at {last:?}, replaced at {:?}\n{said}",
        next.t
    );
    assert!(
        events.iter().any(|event| event.event == Kind::Released),
        "{said}"
    );
}
