//! `tenure run` and processes that hide: no descendant of the command outlives its wrapper.

use std::fs;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use tenure_tests::clock::poll;
use tenure_tests::home::Home;
use tenure_tests::process::{Process, is_alive, watchdog_of};
use tenure_tests::{Skip, tools};

const LIMIT: Duration = Duration::from_secs(120);

/// Appends its id to `members`, starts itself one level deeper, in a new session and without its environment, and
/// sleeps. `$1` is the number of remaining levels.
const TREE: &str = "echo $$ >> members; \
    if [ $1 -gt 0 ]; then env -i PATH=\"$PATH\" setsid sh tree $(($1-1)) & fi; sleep 1000 & wait";

/// Ways to hide. Each is a shell line that leaves one process behind, with its id in `members`.
const HIDING: [(&str, &str); 3] = [
    (
        "without its environment in a session of its own",
        "env -i PATH=\"$PATH\" setsid sh -c 'echo $$ >> members; exec sleep 1000' &",
    ),
    (
        "with its title written over its environment",
        "perl -e 'use POSIX; exit if fork; POSIX::setsid(); exit if fork; $0 = \"x\" x 8000; \
         open F, \">>members\"; print F \"$$\\n\"; close F; sleep 1000' &",
    ),
    (
        "below parents that have ended",
        "env -i PATH=\"$PATH\" setsid sh -c \
         'setsid sh -c \"(setsid sh -c \\\"echo \\\\\\$\\\\\\$ >> members; exec sleep 1000\\\" &)\" &' &",
    ),
];

fn start(home: &Home, line: &str) -> Process {
    fs::write(home.path("tree"), TREE).unwrap();
    let mut command = home.command();
    command
        .args(["run", "--lease-duration=4s", "--renew-deadline=2s"])
        .args(["--retry-period=300ms", "--election=e"])
        .args(["--", "sh", "-c", line]);
    Process::spawn("e", command).unwrap()
}

/// Waits until this many processes have recorded their ids.
fn members(home: &Home, wrapper: &Process, count: usize) -> Vec<i32> {
    let found = poll(LIMIT, || {
        let text = fs::read_to_string(home.path("members")).ok()?;
        let pids: Vec<i32> = text.lines().filter_map(|line| line.parse().ok()).collect();
        (pids.len() == count).then_some(pids)
    });
    found.unwrap_or_else(|| panic!("{}", wrapper.transcript()))
}

/// Whether all processes end. The others are killed here, so that no process outlives the test.
fn gone(pids: &[i32]) -> bool {
    let ended = || pids.iter().all(|pid| !is_alive(*pid)).then_some(());
    let ended = poll(Duration::from_secs(20), ended).is_some();
    for pid in pids.iter().filter(|pid| is_alive(**pid)) {
        signal(*pid, Signal::KILL);
    }
    ended
}

fn signal(pid: i32, signal: Signal) {
    // The process may have ended already.
    let _ = kill_process(Pid::from_raw(pid).unwrap(), signal);
}

fn watchdog(wrapper: &Process) -> i32 {
    watchdog_of(wrapper.pid()).expect("every command has a watchdog")
}

#[test]
fn run_containment_hidden_daemon_ends_with_a_killed_wrapper() {
    for (how, line) in HIDING {
        if line.starts_with("perl") && Skip::unless(tools::perl()).is_none() {
            continue;
        }
        let home = Home::new();
        let mut wrapper = start(
            &home,
            &format!("echo $$ >> members; {line} sleep 1000 & wait"),
        );
        let members = members(&home, &wrapper, 2);
        wrapper.kill();
        assert!(gone(&members), "a process {how} outlived its wrapper");
    }
}

#[test]
fn run_containment_tree_ends_with_a_killed_wrapper() {
    let home = Home::new();
    let mut wrapper = start(&home, "exec sh tree 4");
    let members = members(&home, &wrapper, 5);
    wrapper.kill();
    assert!(gone(&members));
}

/// The kernel resumes a stopped watchdog when the wrapper is killed.
#[test]
fn run_containment_tree_ends_with_a_killed_wrapper_although_its_watchdog_is_stopped() {
    let home = Home::new();
    let mut wrapper = start(&home, "exec sh tree 4");
    let members = members(&home, &wrapper, 5);
    let stopped = watchdog(&wrapper);
    signal(stopped, Signal::STOP);
    wrapper.kill();
    let ended = gone(&members);
    assert!(gone(&[stopped]) && ended);
}

/// Containment is never restored around a running command: the command is ended, and its exit code gives the reason.
#[test]
fn run_containment_tree_ends_with_a_killed_watchdog() {
    let home = Home::new();
    let mut wrapper = start(&home, "exec sh tree 4");
    let members = members(&home, &wrapper, 5);
    signal(watchdog(&wrapper), Signal::KILL);
    assert!(gone(&members), "{}", wrapper.transcript());
    let code = wrapper.wait(LIMIT).unwrap().code();
    assert_eq!(code, Some(128 + 9), "{}", wrapper.transcript());
    let said = wrapper.transcript();
    assert!(
        said.contains("the watchdog of the command was ended by"),
        "{said}"
    );
}

/// If both are killed at the same moment, the kernel still kills the command itself.
#[test]
fn run_containment_command_ends_with_wrapper_and_watchdog() {
    let home = Home::new();
    let mut wrapper = start(&home, "exec sh tree 4");
    let members = members(&home, &wrapper, 5);
    let watchdog = watchdog(&wrapper);
    wrapper.stop();
    signal(watchdog, Signal::KILL);
    wrapper.kill();
    let ended = gone(&members[..1]);
    gone(&members);
    assert!(ended);
}

/// The command signals its parent to reach `tenure`; the watchdog forwards the signal.
#[test]
fn run_containment_signal_to_the_parent_of_the_command_reaches_the_wrapper() {
    let home = Home::new();
    let mut wrapper = start(
        &home,
        "trap 'exit 5' TERM; kill -TERM $PPID; sleep 1000 & wait",
    );
    let code = wrapper.wait(LIMIT).unwrap().code();
    assert_eq!(code, Some(5), "{}", wrapper.transcript());
}

/// With a control group, processes that outlived both are killed before the next command starts.
#[test]
fn run_containment_left_control_group_is_ended_by_the_next_run() {
    let home = Home::new();
    let output = home.tenure(&["run", "-v", "--election=e", "--", "true"]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(said.contains("containment of the command"), "{said}");
    if !said.contains("cgroup") {
        return;
    }
    let mut wrapper = start(&home, "exec sh tree 4");
    let members = members(&home, &wrapper, 5);
    let watchdog = watchdog(&wrapper);
    wrapper.stop();
    signal(watchdog, Signal::KILL);
    wrapper.kill();
    let output = home.tenure(&["run", "--election=another", "--", "true"]);
    assert!(output.status.success());
    assert!(gone(&members));
}

/// Without control groups, which a mount namespace hides, the process tree is sufficient.
#[test]
fn run_containment_tree_needs_no_control_group() {
    let hide = "umount -a -l -t cgroup,cgroup2";
    let hidden = |then: &str| {
        let mut command = std::process::Command::new("unshare");
        command.args(["-m", "sh", "-c", &format!("{hide}; {then}")]);
        command
    };
    let check = "! grep -qE ' - cgroup2? ' /proc/self/mountinfo";
    let possible = hidden(check)
        .output()
        .is_ok_and(|output| output.status.success());
    let missing = || Skip("control groups can only be hidden by root".to_owned());
    if Skip::unless(possible.then_some(()).ok_or_else(missing)).is_none() {
        return;
    }
    let home = Home::new();
    fs::write(home.path("tree"), TREE).unwrap();
    let tenure = tools::tenure().unwrap();
    let run = "run -v --lease-duration=4s --renew-deadline=2s --retry-period=300ms --election=e";
    let mut command = hidden(&format!("exec {} {run} -- sh tree 4", tenure.display()));
    command
        .env_clear()
        .env("PATH", std::env::var_os("PATH").unwrap());
    command
        .env("HOME", home.path(""))
        .env("TENURE_ALLOW_LOCAL", "1")
        .current_dir(home.path(""));
    let mut wrapper = Process::spawn("e", command).unwrap();
    let members = members(&home, &wrapper, 5);
    let said = wrapper.transcript();
    wrapper.kill();
    assert!(gone(&members));
    assert!(said.contains("process tree"), "{said}");
}
