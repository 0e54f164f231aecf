//! The flags of `tenure run` that say what the command gets, when it is run again, and which signals mean
//! what. Each test has its own home, and so its own local server.

use std::collections::BTreeMap;
use std::fs;
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use tenure_tests::clock::poll;
use tenure_tests::home::Home;

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

/// Signals that whoever runs the tests ignores would be ignored by the command too.
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

/// Waits until the command has written a file, and removes it for the next one.
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

/// What `env` printed.
fn variables(output: &Output) -> BTreeMap<String, String> {
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let pairs = text.lines().filter_map(|line| line.split_once('='));
    pairs
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .collect()
}

#[test]
fn run_options_what_the_command_is_and_what_it_learns() {
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
    let env = variables(&run(&home, &["--slots=2", "--env-prefix=LOCK_"], &["env"]));
    assert!(["0", "1"].contains(&env["LOCK_SLOT"].as_str()), "{env:?}");
    assert_eq!(env["LOCK_ELECTION"], "e");
    assert!(!env.contains_key("TENURE_ELECTION"), "{env:?}");
    // One line of a shell, and no election at all.
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
        "it has become the command"
    );
}

#[test]
fn run_options_what_happens_when_the_command_ends() {
    let home = Home::new();
    let script = ["sh", "-c", "echo x >> count; exit 3"];
    let restarted = run(&home, &["--on-exit=restart", "--max-restarts=1"], &script);
    assert_eq!(restarted.status.code(), Some(3));
    assert_eq!(fs::read_to_string(home.path("count")).unwrap(), "x\nx\n");
    // Only a failure is tried again.
    let twice = "echo x > again; test -e failed || { touch failed; exit 3; }";
    let restarted = run(&home, &["--on-exit-failure=restart"], &["sh", "-c", twice]);
    assert_eq!(restarted.status.code(), Some(0));
    assert!(home.path("failed").exists());
    // Its work is done, and nobody else shall do it.
    let mut holding = start(&home, &["--id=me", "--on-exit=hold"], "echo done > done");
    wrote(&home, "done");
    let other = run(&home, &["--nonblock"], &["true"]);
    assert_eq!(other.status.code(), Some(75), "{other:?}");
    signal(&holding, Signal::TERM);
    assert_eq!(code(&mut holding), Some(0));
    let next = run(&home, &["--nonblock"], &["true"]);
    assert_eq!(next.status.code(), Some(0), "it was given back: {next:?}");
}

/// A script that says it is there, notes a signal in a file and goes on.
fn noting(signal: &str, more: &str) -> String {
    format!(
        "trap 'echo {signal} > noted' {signal}; {more}; echo > ready; while :; do sleep 0.05; done"
    )
}

#[test]
fn run_options_what_signals_mean() {
    let home = Home::new();
    // A command that reads its configuration again is not asked to end by that.
    let script = noting("HUP", "trap 'exit 7' TERM");
    let mut reloading = start(&home, &[], &script);
    wrote(&home, "ready");
    for _ in 0..2 {
        signal(&reloading, Signal::HUP);
        wrote(&home, "noted");
    }
    signal(&reloading, Signal::TERM);
    assert_eq!(code(&mut reloading), Some(7));
    // Unless it shall be.
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
    // Whoever does not listen is killed by the second request.
    let mut deaf = start(&home, &[], &noting("TERM", ":"));
    wrote(&home, "ready");
    signal(&deaf, Signal::TERM);
    wrote(&home, "noted");
    signal(&deaf, Signal::TERM);
    assert_eq!(code(&mut deaf), Some(128 + 9));
    // An order by signal: the term ends, and another's begins.
    let script = noting("USR2", "trap 'exit 9' TERM");
    let mut leader = start(&home, &["--step-down-signal=USR1"], &script);
    wrote(&home, "ready");
    let mut follower = start(&home, &[], "echo next > next");
    signal(&leader, Signal::USR1);
    assert_eq!(code(&mut leader), Some(76));
    wrote(&home, "next");
    assert_eq!(code(&mut follower), Some(0));
}
