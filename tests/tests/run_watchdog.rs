//! The watchdog of `tenure run`: the process that kills the process group when the wrapper cannot.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::PathBuf;
use std::time::Duration;

use rustix::fs::OFlags;
use rustix::process::{Pid, Signal, kill_process};
use tenure_tests::clock::poll;
use tenure_tests::home::Home;
use tenure_tests::process::{Process, is_alive, watchdog_of};

const LIMIT: Duration = Duration::from_secs(120);

/// Writes the ids of the shell and of the grandchild to a file.
const FAMILY: &str = "sleep 1000 & echo $$ $! > $TENURE_ELECTION.new; \
     mv $TENURE_ELECTION.new $TENURE_ELECTION; wait";

fn start(home: &Home, election: &str) -> Process {
    start_line(home, election, FAMILY)
}

fn start_line(home: &Home, election: &str, line: &str) -> Process {
    let mut command = home.command();
    command
        .args(["run", "--lease-duration=4s", "--renew-deadline=2s"])
        .args(["--retry-period=300ms", "--election", election])
        .args(["--", "sh", "-c", line]);
    Process::spawn(election, command).unwrap()
}

/// Returns the processes of an election.
fn members(home: &Home, wrapper: &Process) -> Vec<i32> {
    let read = || fs::read_to_string(home.path(wrapper.name())).ok();
    let text = poll(LIMIT, read).unwrap_or_else(|| panic!("{}", wrapper.transcript()));
    text.split_whitespace()
        .map(|pid| pid.parse().unwrap())
        .collect()
}

fn watchdog(wrapper: &Process) -> i32 {
    watchdog_of(wrapper.pid()).expect("every command has a watchdog")
}

/// Waits until all of them have ended.
fn gone(pids: &[i32]) -> bool {
    let ended = || pids.iter().all(|pid| !is_alive(*pid)).then_some(());
    poll(LIMIT, ended).is_some()
}

fn signal(pid: i32, signal: Signal) {
    kill_process(Pid::from_raw(pid).unwrap(), signal).unwrap();
}

/// Fills the input of the watchdog if it is a pipe. Then writes to it block until the watchdog reads.
fn fill_input(watchdog: i32) {
    let input = PathBuf::from(format!("/proc/{watchdog}/fd/0"));
    let is_pipe = fs::metadata(&input).is_ok_and(|data| data.file_type().is_fifo());
    if is_pipe {
        let mut options = File::options();
        let flags = OFlags::NONBLOCK.bits().cast_signed();
        let mut pipe = options
            .write(true)
            .custom_flags(flags)
            .open(&input)
            .unwrap();
        // A deadline in the distant future, so that the watchdog kills nothing when it reads the value.
        while pipe.write_all(&(u64::MAX / 2).to_le_bytes()).is_ok() {}
    }
}

/// Returns the version of the lease, which each renewal changes.
fn version(home: &Home) -> Option<String> {
    let status = home.tenure(&["status", "-o", "json"]);
    let rows: serde_json::Value = serde_json::from_slice(&status.stdout).ok()?;
    Some(rows[0]["renewTime"].as_str()?.to_owned())
}

/// A watchdog that never reads again delays no renewal, and the wrapper still handles requests.
#[test]
fn run_watchdog_that_is_stopped_delays_no_renewal() {
    let home = Home::new();
    let mut wrapper = start(&home, "e");
    let members = members(&home, &wrapper);
    let stopped = watchdog(&wrapper);
    signal(stopped, Signal::STOP);
    fill_input(stopped);
    let mut seen = BTreeSet::new();
    let renewed = poll(LIMIT, || {
        seen.extend(version(&home));
        let ended = members.iter().any(|pid| !is_alive(*pid));
        (ended || seen.len() > 20).then_some(!ended)
    });
    wrapper.terminate();
    let code = wrapper.wait(LIMIT).map(|status| status.code());
    assert!(gone(&members) && gone(&[stopped]));
    assert_eq!(renewed, Some(true), "{seen:?}: {}", wrapper.transcript());
    assert_eq!(code.unwrap(), Some(128 + 15), "{}", wrapper.transcript());
}

/// The command ends while its watchdog cannot report the exit code.
#[test]
fn run_watchdog_that_is_stopped_hides_no_exit_code() {
    let home = Home::new();
    let line = "echo $$ $$ > e.new; mv e.new e; while ! test -e go; do sleep 0.05; done; exit 7";
    let mut wrapper = start_line(&home, "e", line);
    members(&home, &wrapper);
    let stopped = watchdog(&wrapper);
    signal(stopped, Signal::STOP);
    fs::write(home.path("go"), "").unwrap();
    let code = wrapper.wait(LIMIT).map(|status| status.code());
    assert_eq!(code.unwrap(), Some(7), "{}", wrapper.transcript());
    assert!(gone(&[stopped]));
}

#[test]
fn run_watchdog_that_is_stopped_does_not_delay_the_exit() {
    let home = Home::new();
    let mut wrapper = start(&home, "e");
    let members = members(&home, &wrapper);
    let asleep = watchdog(&wrapper);
    signal(asleep, Signal::STOP);
    wrapper.terminate();
    let ended = poll(LIMIT, || wrapper.has_ended().then_some(()));
    if is_alive(asleep) {
        signal(asleep, Signal::CONT);
    }
    assert!(ended.is_some(), "the wrapper waits for its watchdog");
    assert!(gone(&members) && !is_alive(asleep));
}

/// A wrapper that resumes finds its group killed. It may detect the end of the command or the loss of leadership first.
/// Several wrappers cover both orders: for each, the loss determines the result, not the end of the command.
#[test]
fn run_watchdog_kills_the_group_of_a_stopped_wrapper() {
    let home = Home::new();
    let names: Vec<String> = (0..6).map(|number| format!("e-{number}")).collect();
    let mut wrappers: Vec<Process> = names.iter().map(|name| start(&home, name)).collect();
    for wrapper in &mut wrappers {
        let members = members(&home, wrapper);
        wrapper.stop();
        assert_eq!(members.len(), 2);
    }
    for wrapper in &wrappers {
        assert!(gone(&members(&home, wrapper)), "{}", wrapper.name());
    }
    for wrapper in &mut wrappers {
        wrapper.resume();
    }
    for wrapper in &mut wrappers {
        let code = wrapper.wait(LIMIT).unwrap().code();
        assert_eq!(code, Some(76), "{}", wrapper.transcript());
    }
}
