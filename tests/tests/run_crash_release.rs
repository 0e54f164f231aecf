//! `tenure run`: the watchdog of a killed wrapper releases the lease, once nothing of the command is left.
//!
//! The lease is much longer than the time limit of a test, so a candidate that leads has not waited for it.

use std::fs;
use std::time::Duration;

use http::Method;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tenure_tests::clock::poll;
use tenure_tests::embedded::Embedded;
use tenure_tests::home::Home;
use tenure_tests::process::{Process, is_alive, watchdog_of};
use tenure_tests::wire::{Wire, lease_path};

const LIMIT: Duration = Duration::from_secs(120);

/// Leaves processes behind that hide, and appends the id of each process to the file `$TENURE_LEADER_ID`.
const FAMILY: &str = "echo $$ >> $TENURE_LEADER_ID; \
     env -i PATH=\"$PATH\" FILE=\"$TENURE_LEADER_ID\" setsid sh -c 'echo $$ >> \"$FILE\"; exec sleep 1000' & \
     sleep 1000 & wait";

/// Number of ids that one command writes.
const MEMBERS: usize = 2;

fn start(home: &Home, id: &str, flags: &[&str]) -> Process {
    let mut command = home.command();
    command
        .args(["run", "--election=e", "--lease-duration=10m"])
        .args(["--renew-deadline=5m", "--retry-period=500ms", "--id", id])
        .args(flags)
        .args(["--", "sh", "-c", FAMILY]);
    Process::spawn(id, command).unwrap()
}

/// Waits until the command of this candidate runs, and returns its processes.
fn members(home: &Home, wrapper: &Process) -> Vec<i32> {
    let found = poll(LIMIT, || {
        let text = fs::read_to_string(home.path(wrapper.name())).ok()?;
        let pids: Vec<i32> = text.lines().filter_map(|line| line.parse().ok()).collect();
        (pids.len() == MEMBERS).then_some(pids)
    });
    found.unwrap_or_else(|| panic!("{}", wrapper.transcript()))
}

fn watchdog(wrapper: &Process) -> i32 {
    watchdog_of(wrapper.pid()).expect("every command has a watchdog")
}

fn gone(pids: &[i32]) -> bool {
    let ended = || pids.iter().all(|pid| !is_alive(*pid)).then_some(());
    poll(LIMIT, ended).is_some()
}

/// Waits until a line of its output contains this text.
fn said(process: &Process, text: &str) -> bool {
    let said = || process.text().iter().any(|line| line.contains(text));
    poll(LIMIT, || said().then_some(())).is_some()
}

fn signal(pid: i32, signal: Signal) {
    // The process may have ended already.
    let _ = kill_process(Pid::from_raw(pid).unwrap(), signal);
}

/// Returns the holder of the election.
fn holder(home: &Home) -> String {
    let status = home.tenure(&["status", "e", "-o", "json"]);
    let rows: Value = serde_json::from_slice(&status.stdout).unwrap();
    rows[0]["holder"].as_str().unwrap().to_owned()
}

#[test]
fn run_crash_release_lets_the_next_candidate_lead_without_waiting() {
    let home = Home::new();
    let mut first = start(&home, "first", &[]);
    let members_of_first = members(&home, &first);
    let mut second = start(&home, "second", &[]);
    assert!(said(&second, "first holds"));
    first.kill();
    let members_of_second = members(&home, &second);
    let left: Vec<_> = members_of_first
        .iter()
        .filter(|pid| is_alive(**pid))
        .collect();
    assert!(left.is_empty(), "still alive: {left:?}");
    let reported = "tenure was killed; released default/e after the command had ended";
    assert!(said(&first, reported), "{}", first.transcript());
    second.terminate();
    assert!(second.wait(LIMIT).is_ok());
    assert!(gone(&members_of_second));
}

/// A slot has its own lease, whose name is not that of the election.
#[test]
fn run_crash_release_frees_a_slot() {
    let home = Home::new();
    let mut first = start(&home, "first", &["--slots=1"]);
    members(&home, &first);
    first.kill();
    let mut second = start(&home, "second", &["--slots=1"]);
    members(&home, &second);
    second.terminate();
    assert!(second.wait(LIMIT).is_ok());
}

/// The kernel resumes the watchdog when the wrapper dies.
#[test]
fn run_crash_release_works_after_the_watchdog_was_stopped() {
    let home = Home::new();
    let mut first = start(&home, "first", &[]);
    let ended = members(&home, &first);
    signal(watchdog(&first), Signal::STOP);
    first.kill();
    assert!(gone(&ended));
    let released = poll(LIMIT, || holder(&home).is_empty().then_some(()));
    assert!(released.is_some(), "{}", first.transcript());
}

/// Without a watchdog nobody knows whether the command has ended. With a lock delay, requests of the command may still
/// be on their way. Whole-second times do not distinguish two terms.
#[test]
fn run_crash_release_keeps_the_lease_if_the_end_of_the_work_is_uncertain() {
    let kept: [(&str, &[&str], bool); 3] = [
        ("the watchdog is killed too", &[], true),
        ("a lock delay", &["--lock-delay=1s"], false),
        ("a lock with whole seconds", &["--lock=configmaps"], false),
    ];
    for (why, flags, kills_watchdog) in kept {
        let home = Home::new();
        let mut first = start(&home, "first", flags);
        let ended = members(&home, &first);
        let watchdog = watchdog(&first);
        if kills_watchdog {
            // The watchdog must not see the end of the wrapper.
            signal(watchdog, Signal::STOP);
            first.stop();
            signal(watchdog, Signal::KILL);
        }
        first.kill();
        assert!(gone(&[watchdog, ended[0]]), "{why}");
        assert_eq!(holder(&home), "first", "{why}: {}", first.transcript());
        ended.iter().for_each(|pid| signal(*pid, Signal::KILL));
    }
}

/// An operator replaces the record while the wrapper and its watchdog are stopped.
#[test]
fn run_crash_release_leaves_the_term_of_another_holder_alone() {
    let home = Home::new();
    let server = Embedded::start().unwrap();
    let config = server.kubeconfig();
    let mut first = start(&home, "first", &["--kubeconfig", config.to_str().unwrap()]);
    let ended = members(&home, &first);
    let watchdog = watchdog(&first);
    first.stop();
    let wire = Wire::connect(&config).unwrap();
    let path = lease_path("default", "e");
    let mut lease = wire.get(&path).unwrap().body;
    lease["spec"]["holderIdentity"] = "operator".into();
    let answer = wire.send(&Method::PUT, &path, Some(&lease)).unwrap();
    assert_eq!(answer.status, 200, "{}", answer.body);
    first.kill();
    assert!(gone(&ended) && gone(&[watchdog]));
    let lease = wire.get(&path).unwrap().body;
    assert_eq!(lease["spec"]["holderIdentity"], "operator");
}
