//! Acceptance list of the command, item 6: children of `tenure run` never overlap, despite faults of the API server,
//! the network and the wrappers. docs/book/reference/command.md has the whole table.
//!
//! Every child locks one file and never unlocks it; its own children inherit the lock. A child that finds the file
//! locked reports an overlap.

use std::fs;
use std::time::Duration;

use http::Method;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;
use tenure_tests::clock::{self, poll};
use tenure_tests::home::Home;
use tenure_tests::nemesis::proxy::{Gate, Proxy};
use tenure_tests::nemesis::server::Server;
use tenure_tests::process::{Process, catches_interrupts, family, is_alive, watchdog_of};
use tenure_tests::record::Recorder;
use tenure_tests::stalls::Stalls;
use tenure_tests::wire::Wire;

const LIMIT: Duration = Duration::from_secs(120);

const CHILD: &str = "exec 9>lock; flock -n 9 || echo overlap >> overlaps; \
     echo $TENURE_LEADER_ID $TENURE_FENCING_TOKEN $$ >> terms; sleep 1000 & wait";

/// Like `CHILD`, but only records a request to end.
const DEAF: &str = "exec 9>lock; flock -n 9 || echo overlap >> overlaps; trap 'echo $$ >> asked' TERM; \
     echo $TENURE_LEADER_ID $TENURE_FENCING_TOKEN $$ >> terms; while :; do sleep 1000 & wait; done";

/// Like `CHILD`, but without the file, for suspended hosts, where overlap cannot be prevented.
const SLEEPER: &str = "echo $TENURE_LEADER_ID $TENURE_FENCING_TOKEN $$ >> terms; sleep 1000 & wait";

/// Lease, renew deadline and retry period.
const QUICK: [&str; 3] = ["4s", "2s", "300ms"];

/// Timing with the margin of the default lease: the time between the kill of the last process of a group and the
/// earliest possible next term.
const PATIENT: [&str; 3] = ["15s", "3s", "500ms"];
const MARGIN: Duration = Duration::from_millis(500);

struct Wrapper {
    process: Process,
    proxy: Proxy,
}

impl Wrapper {
    fn start(home: &Home, server: &Server, id: &str, child: &str) -> Self {
        Self::timed(home, server, id, child, QUICK)
    }

    fn timed(home: &Home, server: &Server, id: &str, child: &str, timing: [&str; 3]) -> Self {
        Self::told(home, server, id, child, timing, "rejoin")
    }

    /// `on_lost` is the value of `--on-lost`.
    fn told(
        home: &Home,
        server: &Server,
        id: &str,
        child: &str,
        [lease, renew, retry]: [&str; 3],
        on_lost: &str,
    ) -> Self {
        let proxy = Proxy::start(&server.kubeconfig()).unwrap();
        let mut command = home.command();
        command
            .env("KUBECONFIG", proxy.kubeconfig())
            .args(["run", "--election=e", "--on-lost", on_lost])
            .args(["--lease-duration", lease, "--renew-deadline", renew])
            .args(["--retry-period", retry, &format!("--id={id}")])
            .args(["--", "sh", "-c", child]);
        let process = Process::spawn(id, command).unwrap();
        Self { process, proxy }
    }
}

/// The values that one child reported about itself.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Term {
    id: String,
    token: u64,
    pid: i32,
}

fn terms(home: &Home) -> Vec<Term> {
    let text = fs::read_to_string(home.path("terms")).unwrap_or_default();
    let term = |line: &str| {
        let mut words = line.split(' ');
        Some(Term {
            id: words.next()?.to_owned(),
            token: words.next()?.parse().ok()?,
            pid: words.next()?.parse().ok()?,
        })
    };
    text.lines().filter_map(term).collect()
}

/// Waits for the next term after the first `count` terms.
fn next(home: &Home, count: usize, wrappers: &[Wrapper]) -> Term {
    let found = poll(LIMIT, || terms(home).get(count).cloned());
    found.unwrap_or_else(|| {
        let said = wrappers.iter().map(|w| w.process.transcript());
        panic!("no term {count}: {}", said.collect::<Vec<_>>().join("\n"))
    })
}

/// Waits until a process has ended.
fn gone(pid: i32) -> bool {
    poll(LIMIT, || (!is_alive(pid)).then_some(())).is_some()
}

fn signal(pid: i32, signal: Signal) {
    // The process may have ended already.
    let _ = kill_process(Pid::from_raw(pid).unwrap(), signal);
}

#[test]
fn acceptance_06_children_never_overlap() {
    let home = Home::new();
    let mut server = Server::embedded().unwrap();
    let mut wrappers = vec![
        Wrapper::start(&home, &server, "w-0", CHILD),
        Wrapper::start(&home, &server, "w-1", CHILD),
    ];
    let at = |wrappers: &[Wrapper], term: &Term| {
        let found = wrappers.iter().position(|w| w.process.name() == term.id);
        found.unwrap_or_else(|| panic!("{term:?}"))
    };
    let first = next(&home, 0, &wrappers);

    // The leader's requests to the API server are held back.
    let cut = &wrappers[at(&wrappers, &first)].proxy;
    cut.set(Gate::Held, Gate::Held);
    let second = next(&home, 1, &wrappers);
    assert_ne!(second.id, first.id);
    cut.heal();

    // Responses arrive later than any renewal can wait.
    let slow = &wrappers[at(&wrappers, &second)].proxy;
    slow.set(Gate::Slow(Duration::from_secs(3)), Gate::Open);
    let third = next(&home, 2, &wrappers);
    assert_ne!(third.id, second.id);
    slow.heal();

    // The server applies the write but responds too late: the lease is renewed, but the leader does not know it.
    let unsure = &wrappers[at(&wrappers, &third)].proxy;
    unsure.set(Gate::Open, Gate::Slow(Duration::from_secs(3)));
    let fourth = next(&home, 3, &wrappers);
    unsure.heal();

    // The wrapper is killed: its child ends with it, and the other wrapper waits for the lease to expire.
    let killed = at(&wrappers, &fourth);
    wrappers[killed].process.kill();
    assert!(gone(fourth.pid));
    wrappers.remove(killed);
    let fifth = next(&home, 4, &wrappers);
    wrappers.push(Wrapper::start(&home, &server, "w-2", CHILD));

    // The API server is down for longer than the guard lasts, and returns with the same data.
    server.kill();
    assert!(gone(fifth.pid));
    server.start().unwrap();
    server.wait_until_ready().unwrap();
    next(&home, 5, &wrappers);

    // The API server is down for a moment. The term may or may not survive, but no two terms may overlap.
    server.kill();
    server.start().unwrap();
    server.wait_until_ready().unwrap();
    for wrapper in &wrappers {
        wrapper.process.terminate();
    }
    for wrapper in &mut wrappers {
        wrapper.process.wait(LIMIT).unwrap();
    }
    assert!(
        !home.path("overlaps").exists(),
        "two children ran at the same time: {:?}",
        terms(&home)
    );
    let tokens: Vec<u64> = terms(&home).iter().map(|term| term.token).collect();
    assert!(
        tokens.windows(2).all(|pair| pair[0] < pair[1]),
        "{tokens:?}"
    );
    for term in terms(&home) {
        assert!(!is_alive(term.pid), "{term:?}");
    }
}

/// Repeats a round with an overlap if the machine itself stalled for so long that no process could have been killed in
/// time.
fn undisturbed(round: impl Fn(&Home)) {
    for _ in 0..5 {
        let stalls = Stalls::watch();
        let home = Home::new();
        round(&home);
        if !home.path("overlaps").exists() {
            return;
        }
        let (longest, terms) = (stalls.longest(), terms(&home));
        assert!(
            longest > MARGIN / 2,
            "two children ran at the same time: {terms:?}, although no process waited for the CPU longer than {longest:?}"
        );
    }
    panic!("this machine is too busy to detect overlapping children");
}

/// The leader's requests are held back, its child ignores signals and its watchdog is stopped. The wrapper itself kills
/// the child at the fence. A lease whose work did not end in time is not released.
#[test]
fn acceptance_06_a_child_that_ignores_signals_is_killed_before_another_starts() {
    undisturbed(|home| {
        let server = Server::embedded().unwrap();
        let recorder = Recorder::start(&server.kubeconfig(), "Lease", "e").unwrap();
        let mut wrappers = vec![Wrapper::timed(home, &server, "w-0", DEAF, PATIENT)];
        let first = next(home, 0, &wrappers);
        wrappers.push(Wrapper::timed(home, &server, "w-1", CHILD, PATIENT));
        let asleep = watchdog_of(wrappers[0].process.pid()).expect("every command has a watchdog");
        signal(asleep, Signal::STOP);
        wrappers[0].proxy.set(Gate::Held, Gate::Held);
        let second = next(home, 1, &wrappers);
        assert_eq!(second.id, "w-1");
        assert!(gone(first.pid));
        let asked = fs::read_to_string(home.path("asked")).unwrap_or_default();
        assert!(
            asked.lines().next() == Some(&first.pid.to_string()),
            "asked, then killed: {asked:?}"
        );
        let led = recorder.wait_for(0, LIMIT, |version| version.holder == "w-1");
        let versions = recorder.versions();
        let released = versions.iter().any(|version| version.holder.is_empty());
        assert!(led.is_some() && !released, "{versions:?}");
        // The wrapper is a candidate again, and leads after the other one has ended.
        wrappers[0].proxy.heal();
        wrappers[1].process.terminate();
        assert_eq!(next(home, 2, &wrappers).id, "w-0");
        wrappers[0].process.terminate();
    });
}

/// Only the wrapper is stopped, and its child would continue: the watchdog kills the child. When the wrapper resumes,
/// it has lost leadership and does not touch the lease of the new holder. It then campaigns again or exits, depending
/// on `--on-lost`.
#[test]
fn acceptance_06_the_child_of_a_stopped_wrapper_is_killed_before_another_starts() {
    undisturbed(|home| {
        let server = Server::embedded().unwrap();
        let recorder = Recorder::start(&server.kubeconfig(), "Lease", "e").unwrap();
        let mut wrappers = vec![Wrapper::timed(home, &server, "w-0", CHILD, PATIENT)];
        let first = next(home, 0, &wrappers);
        let leaves = Wrapper::told(home, &server, "w-1", CHILD, PATIENT, "exit");
        wrappers.push(leaves);
        wrappers[0].process.stop();
        let second = next(home, 1, &wrappers);
        assert_eq!(second.id, "w-1");
        assert!(gone(first.pid));
        wrappers[0].process.resume();
        wrappers[1].process.stop();
        assert_eq!(next(home, 2, &wrappers).id, "w-0");
        assert!(gone(second.pid));
        wrappers[1].process.resume();
        let status = wrappers[1].process.wait(LIMIT).unwrap();
        assert_eq!(status.code(), Some(76), "leadership was lost");
        wrappers[0].process.terminate();
        let released = recorder.wait_for(0, LIMIT, |version| version.holder.is_empty());
        let versions = recorder.versions();
        let mut holders: Vec<&str> = versions.iter().map(|v| v.holder.as_str()).collect();
        holders.dedup();
        // No wrapper writes during the term of another one, and none releases an expired lease.
        assert_eq!(holders, ["w-0", "w-1", "w-0", ""], "{versions:?}");
        assert!(released.is_some());
    });
}

/// A suspended host: all processes of one wrapper are stopped for longer than the lease.
#[test]
fn acceptance_06_after_a_sleep_the_child_is_killed_before_anything_is_written() {
    let home = Home::new();
    let server = Server::embedded().unwrap();
    let recorder = Recorder::start(&server.kubeconfig(), "Lease", "e").unwrap();
    let mut wrappers = vec![Wrapper::start(&home, &server, "sleeper", SLEEPER)];
    let first = next(&home, 0, &wrappers);
    wrappers.push(Wrapper::start(&home, &server, "other", SLEEPER));
    let asleep = family(i32::try_from(wrappers[0].process.pid()).unwrap());
    assert!(asleep.contains(&first.pid), "{asleep:?}");
    for pid in &asleep {
        signal(*pid, Signal::STOP);
    }
    let second = next(&home, 1, &wrappers);
    assert_eq!(second.id, "other");
    assert!(
        is_alive(first.pid),
        "all its processes are stopped, so none of them can end it"
    );
    let known = recorder.versions().len();
    for pid in asleep.iter().rev() {
        signal(*pid, Signal::CONT);
    }
    assert!(gone(first.pid));
    // Writes with the token of the old term are rejected.
    let admin = Wire::connect(&server.kubeconfig()).unwrap();
    let late = json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": "late" } });
    let write = |term: &Term| {
        let fence = format!("default/e; holder={}; token={}", term.id, term.token);
        let path = "/api/v1/namespaces/default/configmaps?dryRun=All";
        let headers = [("tenure-fence", fence.as_str())];
        admin
            .send_with(&Method::POST, path, &headers, Some(&late))
            .unwrap()
    };
    let refused = write(&first);
    assert_eq!(refused.status, 409, "{}", refused.body);
    assert!(refused.body.to_string().contains("StaleFencingToken"));
    assert_eq!(write(&second).status, 201, "the current leader may write");
    let since = recorder.versions().split_off(known);
    assert!(
        since.iter().all(|version| version.holder != "sleeper"),
        "{since:?}"
    );
    for wrapper in &wrappers {
        wrapper.process.terminate();
    }
}

#[test]
fn acceptance_06_an_interrupt_while_waiting_ends_within_a_second_although_a_request_hangs() {
    let home = Home::new();
    let server = Server::embedded().unwrap();
    let mut wrappers = vec![Wrapper::start(&home, &server, "holder", CHILD)];
    next(&home, 0, &wrappers);
    let mut best = Duration::MAX;
    for round in 0..5 {
        let mut waiting = Wrapper::start(&home, &server, &format!("w-{round}"), CHILD);
        // The wrapper handles interrupts, connects and follows. Then no more responses arrive.
        let ready = poll(LIMIT, || {
            catches_interrupts(waiting.process.pid()).then_some(())
        });
        assert!(ready.is_some(), "{}", waiting.process.transcript());
        std::thread::sleep(Duration::from_millis(700));
        waiting.proxy.set(Gate::Held, Gate::Held);
        std::thread::sleep(Duration::from_millis(700));
        let since = clock::now();
        signal(i32::try_from(waiting.process.pid()).unwrap(), Signal::INT);
        let status = waiting.process.wait(LIMIT).unwrap();
        best = best.min(clock::now().since(since));
        assert_eq!(status.code(), Some(128 + 2));
        if best <= Duration::from_secs(1) {
            break;
        }
    }
    assert!(best <= Duration::from_secs(1), "{best:?} at best");
    assert_eq!(terms(&home).len(), 1, "no other command ran");
    wrappers.clear();
}
