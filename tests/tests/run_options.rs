//! The flags of `tenure run` for the environment of the command, for restarts and for signals. Each test has its own
//! home directory, and therefore its own local server.

use std::collections::BTreeMap;
use std::fs;
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use tenure_tests::clock::poll;
use tenure_tests::embedded::Embedded;
use tenure_tests::home::Home;
use tenure_tests::nemesis::proxy::{Gate, Proxy};
use tenure_tests::process::Process;

const LIMIT: Duration = Duration::from_secs(60);

const QUICK: [&str; 5] = [
    "run",
    "--election=e",
    "--lease-duration=4s",
    "--renew-deadline=2s",
    "--retry-period=300ms",
];

fn run(home: &Home, flags: &[&str], command: &[&str]) -> Output {
    let output = home
        .command()
        .args(QUICK)
        .args(flags)
        .arg("--")
        .args(command)
        .output();
    output.unwrap()
}

/// The command would inherit signals that the caller of the tests ignores, so their handling is reset.
fn start(home: &Home, flags: &[&str], script: &str) -> Child {
    let tenure = home.command();
    let mut command = Command::new("env");
    command
        .env_clear()
        .envs(
            tenure
                .get_envs()
                .filter_map(|(name, value)| Some((name, value?))),
        )
        .current_dir(home.path(""))
        .arg("--default-signal=HUP,INT,QUIT")
        .arg(tenure.get_program())
        .args(QUICK)
        .args(flags)
        .args(["--", "sh", "-c", script]);
    command.stdin(Stdio::null()).stderr(Stdio::null());
    command.spawn().unwrap()
}

fn signal(child: &Child, signal: Signal) {
    kill_process(Pid::from_child(child), signal).unwrap();
}

/// Waits until the command has written a file, and removes the file for the next use.
fn wrote(home: &Home, name: &str) -> String {
    let text = || {
        fs::read_to_string(home.path(name))
            .ok()
            .filter(|text| text.ends_with('\n'))
    };
    let text = poll(LIMIT, text).unwrap_or_else(|| panic!("{name} was not written"));
    fs::remove_file(home.path(name)).unwrap();
    text
}

fn code(child: &mut Child) -> Option<i32> {
    child.wait().unwrap().code()
}

/// Parses the output of `env`.
fn variables(output: &Output) -> BTreeMap<String, String> {
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let pairs = text.lines().filter_map(|line| line.split_once('='));
    pairs
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .collect()
}

#[test]
fn run_options_set_command_line_and_environment() {
    let home = Home::new();
    let env = variables(&run(&home, &["--id=me"], &["env"]));
    let get = |name: &str| {
        env.get(name)
            .unwrap_or_else(|| panic!("no {name} in {env:?}"))
    };
    for (name, value) in [
        ("TENURE_LOCK_HELD", "true"),
        ("TENURE_ELECTION", "e"),
        ("TENURE_NAMESPACE", "default"),
        ("TENURE_LOCK_KIND", "leases"),
        ("TENURE_LEADER_ID", "me"),
        ("TENURE_PREVIOUS_LEADER", ""),
        ("TENURE_TERM", "0"),
        ("TENURE_LEASE_DURATION", "4s"),
    ] {
        assert_eq!(get(name), value, "{name}");
    }
    let token: u64 = get("TENURE_FENCING_TOKEN").parse().unwrap();
    let sortable = get("TENURE_FENCING_TOKEN_SORTABLE");
    assert_eq!((sortable.len(), sortable.parse()), (20, Ok(token)));
    assert_eq!(get("TENURE_LEASE_UID").len(), 36);
    assert!(get("TENURE_ACQUIRE_TIME").contains('T'), "{env:?}");
    assert!(!env.contains_key("TENURE_SLOT"));
    let slotted = Home::new();
    let env = variables(&run(
        &slotted,
        &["--slots=2", "--env-prefix=LOCK_"],
        &["env"],
    ));
    assert!(["0", "1"].contains(&env["LOCK_SLOT"].as_str()), "{env:?}");
    assert_eq!(env["LOCK_ELECTION"], "e");
    assert!(!env.contains_key("TENURE_ELECTION"), "{env:?}");
    // The command as one shell line, and a run without an election.
    let said = |output: &Output| String::from_utf8_lossy(&output.stdout).into_owned();
    let shell = run(
        &home,
        &["--shell"],
        &["echo $((1 + 1));", "echo $TENURE_TERM"],
    );
    assert_eq!(said(&shell), "2\n1\n");
    let mut command = home.command();
    command.args(QUICK).arg("--without-election");
    command.args(["--", "sh", "-c", "echo $$ ${TENURE_ELECTION-none}"]);
    let plain = command.stdout(Stdio::piped()).spawn().unwrap();
    let pid = plain.id();
    let output = plain.wait_with_output().unwrap();
    assert_eq!(
        said(&output),
        format!("{pid} none\n"),
        "the process is replaced by the command"
    );
}

#[test]
fn run_options_control_the_end_of_the_command() {
    let home = Home::new();
    let script = ["sh", "-c", "echo x >> count; exit 3"];
    let restarted = run(&home, &["--on-exit=restart", "--max-restarts=1"], &script);
    assert_eq!(restarted.status.code(), Some(3));
    assert_eq!(fs::read_to_string(home.path("count")).unwrap(), "x\nx\n");
    // Only a failed command is run again.
    let twice = "echo x > again; test -e failed || { touch failed; exit 3; }";
    let restarted = run(&home, &["--on-exit-failure=restart"], &["sh", "-c", twice]);
    assert_eq!(restarted.status.code(), Some(0));
    assert!(home.path("failed").exists());
    // The work is done, and no other candidate may repeat it.
    let mut holding = start(&home, &["--id=me", "--on-exit=hold"], "echo done > done");
    wrote(&home, "done");
    let other = run(&home, &["--nonblock"], &["true"]);
    assert_eq!(other.status.code(), Some(75), "{other:?}");
    signal(&holding, Signal::TERM);
    assert_eq!(code(&mut holding), Some(0));
    let next = run(&home, &["--nonblock"], &["true"]);
    assert_eq!(
        next.status.code(),
        Some(0),
        "the lease was released: {next:?}"
    );
}

/// Returns a script that reports its start, records a signal in a file and continues.
fn noting(signal: &str, more: &str) -> String {
    format!(
        "trap 'echo {signal} > noted' {signal}; {more}; echo > ready; while :; do sleep 0.05; done"
    )
}

#[test]
fn run_options_control_signals() {
    let home = Home::new();
    // A forwarded SIGHUP makes the command reload its configuration and does not end it.
    let script = noting("HUP", "trap 'exit 7' TERM");
    let mut reloading = start(&home, &[], &script);
    wrote(&home, "ready");
    for _ in 0..2 {
        signal(&reloading, Signal::HUP);
        wrote(&home, "noted");
    }
    signal(&reloading, Signal::TERM);
    assert_eq!(code(&mut reloading), Some(7));
    // With `--forward-signal=none`, SIGHUP ends the command.
    let script = noting("USR1", "trap 'exit 8' HUP");
    let mut ending = start(&home, &["--forward-signal=none"], &script);
    wrote(&home, "ready");
    signal(&ending, Signal::USR1);
    wrote(&home, "noted");
    signal(&ending, Signal::HUP);
    assert_eq!(code(&mut ending), Some(8));
    let mut stopped = start(
        &home,
        &["--stop-signal=QUIT"],
        &noting("USR1", "trap 'exit 5' QUIT"),
    );
    wrote(&home, "ready");
    signal(&stopped, Signal::TERM);
    assert_eq!(code(&mut stopped), Some(5));
    // A second request kills a command that ignores the first.
    let mut deaf = start(&home, &[], &noting("TERM", ":"));
    wrote(&home, "ready");
    signal(&deaf, Signal::TERM);
    wrote(&home, "noted");
    signal(&deaf, Signal::TERM);
    assert_eq!(code(&mut deaf), Some(128 + 9));
    // A signal orders a step-down: the term ends, and that of another candidate starts.
    let script = noting("USR2", "trap 'exit 9' TERM");
    let mut leader = start(&home, &["--step-down-signal=USR1"], &script);
    wrote(&home, "ready");
    let mut follower = start(&home, &[], "echo next > next");
    signal(&leader, Signal::USR1);
    assert_eq!(code(&mut leader), Some(76));
    wrote(&home, "next");
    assert_eq!(code(&mut follower), Some(0));
}

/// Returns the events that `--output-events` has written so far.
fn events(home: &Home) -> Vec<String> {
    let text = fs::read_to_string(home.path("events")).unwrap_or_default();
    let lines = text
        .lines()
        .filter_map(|line| serde_json::from_str(line).ok());
    let kind = |event: serde_json::Value| event["event"].as_str().map(str::to_owned);
    lines.filter_map(kind).collect()
}

#[test]
fn run_options_control_the_length_and_the_end_of_a_term() {
    let home = Home::new();
    // The maximum hold time has passed, so the command exits with success.
    let turn = run(&home, &["--max-hold=500ms"], &["sleep", "1000"]);
    assert_eq!(turn.status.code(), Some(0), "{turn:?}");
    // A candidate that rejoins lets others lead first.
    let script = "echo $TENURE_LEADER_ID >> turns; exec sleep 1000";
    let rotating = |id: &str| {
        let (events, id) = (
            format!("--output-events=seen-by-{id}"),
            format!("--id={id}"),
        );
        let flags = ["--max-hold=300ms", "--on-lost=rejoin", &id, &events];
        start(&home, &flags, script)
    };
    let mut both = [rotating("a"), rotating("b")];
    let turns = || fs::read_to_string(home.path("turns")).unwrap_or_default();
    let taken = poll(LIMIT, || {
        let turns = turns();
        (turns.contains('a') && turns.contains('b') && turns.lines().count() > 3).then_some(())
    });
    assert!(taken.is_some(), "{:?}", turns());
    for child in &mut both {
        signal(child, Signal::TERM);
        child.wait().unwrap();
    }
    // A candidate rejoins only once: two candidates of one process would record every event twice.
    for file in ["seen-by-a", "seen-by-b"] {
        let text = fs::read_to_string(home.path(file)).unwrap();
        let events = text.lines().map(|line| {
            let event: serde_json::Value = serde_json::from_str(line).unwrap();
            (event["event"].to_string(), event["leader"].to_string())
        });
        let events: Vec<_> = events.collect();
        let twice =
            |pair: &[(String, String)]| pair[0] == pair[1] && pair[0].0.contains("observed");
        assert!(!events.windows(2).any(twice), "{events:?}");
    }
    // After a step-down the exit code is that of `--lost-exit-code`.
    let mut leader = start(
        &home,
        &["--lost-exit-code=42", "--step-down-signal=USR1"],
        "echo > ready; exec sleep 1000",
    );
    wrote(&home, "ready");
    signal(&leader, Signal::USR1);
    assert_eq!(code(&mut leader), Some(42));
    // A minimum validity above the lease duration would hold the lease without ever running the command.
    let never = run(&home, &["--min-validity=4s"], &["true"]);
    let said = String::from_utf8_lossy(&never.stderr).into_owned();
    assert_eq!(never.status.code(), Some(64), "{said}");
    assert!(said.contains("--min-validity 4s"), "{said}");
}

#[test]
fn run_options_min_validity_prevents_a_late_start() {
    let home = Home::new();
    let server = Embedded::start().unwrap();
    let proxy = Proxy::start(&server.kubeconfig()).unwrap();
    // Every response is so slow that less than the minimum validity remains when it arrives.
    proxy.set(Gate::Open, Gate::Slow(Duration::from_secs(1)));
    let mut command = home.command();
    command
        .env("KUBECONFIG", proxy.kubeconfig())
        .args(["run", "--election=e", "--min-validity=9200ms"])
        .args(["--output-events=events", "--", "sh", "-c", "echo > ran"]);
    let mut run = Process::spawn("run", command).unwrap();
    let acquired = || events(&home).contains(&"acquired".to_owned()).then_some(());
    assert!(poll(LIMIT, acquired).is_some(), "{}", run.transcript());
    std::thread::sleep(Duration::from_secs(1));
    assert!(!home.path("ran").exists(), "there were not 9.2 s left");
    proxy.heal();
    assert_eq!(run.wait(LIMIT).unwrap().code(), Some(0));
    assert!(home.path("ran").exists());
}

#[test]
fn run_options_removed_slots_are_not_acquired_again() {
    let home = Home::new();
    let script = |name: &str| format!("echo $TENURE_SLOT > {name}; exec sleep 1000");
    let mut holders: Vec<(String, Child)> = ["a", "b"]
        .map(|name| {
            let child = start(&home, &["--slots=2"], &script(name));
            (wrote(&home, name), child)
        })
        .into();
    holders.sort_by(|a, b| a.0.cmp(&b.0));
    assert_eq!((&*holders[0].0, &*holders[1].0), ("0\n", "1\n"));
    // The process waits for either of two slots, one of which will be removed.
    let mut waiting = start(&home, &["--slots=2"], &script("c"));
    let one = |flags: &[&str]| {
        let flags = [&["--slots=1", "--nonblock"], flags].concat();
        let output = run(&home, &flags, &["sh", "-c", "echo $TENURE_SLOT > last"]);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        (output.status.code(), said)
    };
    let (refused, said) = one(&[]);
    assert_eq!(refused, Some(64), "{said}");
    assert!(said.contains("has 2 slots, not 1"), "{said}");
    assert_eq!(one(&["--resize"]).0, Some(75), "the one slot is held");
    // The command in the removed slot may finish, but a process that waited for that slot exits.
    assert!(holders[1].1.try_wait().unwrap().is_none());
    signal(&holders[1].1, Signal::TERM);
    holders[1].1.wait().unwrap();
    assert_eq!(code(&mut waiting), Some(64));
    assert!(
        !home.path("c").exists(),
        "the command ran in a removed slot"
    );
    signal(&holders[0].1, Signal::TERM);
    holders[0].1.wait().unwrap();
    assert_eq!(one(&[]).0, Some(0));
    assert_eq!(wrote(&home, "last"), "0\n");
    // A command is not restarted in a removed slot.
    let again = "echo $TENURE_SLOT > again; while [ ! -e shrunk ]; do sleep 0.05; done";
    let flags = ["--slots=3", "--resize", "--on-exit=restart"];
    let mut restarting: Vec<(String, Child)> = (0..3)
        .map(|_| {
            let child = start(&home, &flags, again);
            (wrote(&home, "again"), child)
        })
        .collect();
    restarting.sort_by(|a, b| a.0.cmp(&b.0));
    assert_eq!(one(&["--resize"]).0, Some(75));
    fs::write(home.path("shrunk"), "").unwrap();
    for (slot, mut child) in restarting {
        if slot == "0\n" {
            wrote(&home, "again");
            signal(&child, Signal::TERM);
        }
        assert!(code(&mut child).is_some(), "slot {slot}");
    }
}
