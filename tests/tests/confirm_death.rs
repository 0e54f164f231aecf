//! `tenure elect --confirm-death=host`: a follower takes over from a leader that the kernel reports as ended.
//!
//! The lease is much longer than the time limit of a test, so a candidate that leads has not waited for it.

use std::time::Duration;

use serde_json::Value;
use tenure_tests::clock::poll;
use tenure_tests::home::Home;
use tenure_tests::process::Process;

const LIMIT: Duration = Duration::from_secs(120);

/// Time in which a follower would take over if it counted the leader as dead.
const WHILE: Duration = Duration::from_secs(2);

const PROOF: &str = "--confirm-death=host";

fn start(home: &Home, id: &str, flags: &[&str]) -> Process {
    let mut command = home.command();
    command
        .args(["elect", "e", "--lease-duration=10m", "--renew-deadline=5m"])
        .args(["--retry-period=500ms", "--id", id])
        .args(flags);
    Process::spawn(id, command).unwrap()
}

fn said(process: &Process, text: &str) -> bool {
    let said = || process.text().iter().any(|line| line.contains(text));
    poll(LIMIT, || said().then_some(())).is_some()
}

fn leads(process: &Process) {
    assert!(
        said(process, "leading default/e"),
        "{}",
        process.transcript()
    );
}

/// Starts a leader and a follower that has observed it.
fn pair(home: &Home, flags_of_leader: &[&str], flags_of_follower: &[&str]) -> [Process; 2] {
    let leader = start(home, "first", flags_of_leader);
    leads(&leader);
    let follower = start(home, "second", flags_of_follower);
    assert!(
        said(&follower, "first holds default/e"),
        "{}",
        follower.transcript()
    );
    [leader, follower]
}

fn holder(home: &Home) -> String {
    let status = home.tenure(&["status", "e", "-o", "json"]);
    let rows: Value = serde_json::from_slice(&status.stdout).unwrap();
    rows[0]["holder"].as_str().unwrap().to_owned()
}

/// Whether the first candidate keeps the lease.
fn keeps(home: &Home) -> bool {
    poll(WHILE, || (holder(home) != "first").then_some(())).is_none()
}

#[test]
fn confirm_death_of_a_killed_leader_replaces_the_wait() {
    let home = Home::new();
    let [mut leader, follower] = pair(&home, &[PROOF], &[PROOF]);
    leader.kill();
    leads(&follower);
}

#[test]
fn confirm_death_does_not_count_a_stopped_leader_as_dead() {
    let home = Home::new();
    let [mut leader, follower] = pair(&home, &[PROOF], &[PROOF]);
    leader.stop();
    assert!(keeps(&home), "{}", follower.transcript());
    leader.kill();
    leads(&follower);
}

/// A leader without the flag does not describe itself, and a follower without it does not read the description.
#[test]
fn confirm_death_needs_the_flag_on_both_sides() {
    for (leader, follower) in [(&[][..], &[PROOF][..]), (&[PROOF], &[])] {
        let home = Home::new();
        let [mut leader, follower] = pair(&home, leader, follower);
        leader.kill();
        assert!(keeps(&home), "{}", follower.transcript());
    }
}
