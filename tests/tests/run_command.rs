//! `tenure run` as a process: exit codes, signals, and the fate of the child when the wrapper or the API server ends.
//! Each test has its own home directory, and therefore its own local server.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, Output};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process, test_kill_process};
use tenure_tests::clock::poll;
use tenure_tests::home::Home;
use tenure_tests::process::catches_interrupts;

const LIMIT: Duration = Duration::from_secs(40);

/// Short enough for a test, long enough for a busy machine.
const QUICK: [&str; 6] = [
    "--lease-duration=4s",
    "--renew-deadline=2s",
    "--retry-period=300ms",
    "--wait",
    "30s",
    "--election=e",
];

/// Starts `tenure run` on a shell line.
fn start(home: &Home, flags: &[&str], line: &str) -> Child {
    let mut command = home.command();
    command
        .arg("run")
        .args(QUICK)
        .args(flags)
        .args(["--", "sh", "-c", line]);
    command.spawn().unwrap()
}

/// Waits until a process has written its id to a file of the home.
fn pid(home: &Home, name: &str) -> Pid {
    let read = || {
        fs::read_to_string(home.path(name))
            .ok()?
            .trim()
            .parse()
            .ok()
    };
    Pid::from_raw(poll(LIMIT, read).unwrap_or_else(|| panic!("{name} was not written"))).unwrap()
}

fn code(output: &Output) -> i32 {
    output.status.code().unwrap_or_else(|| panic!("{output:?}"))
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Waits until a process has ended. A zombie child of the test counts as ended.
fn gone(pid: Pid) -> bool {
    let dead = || {
        let state = fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero())).ok();
        let zombie = state.is_some_and(|stat| stat.contains(") Z "));
        (test_kill_process(pid).is_err() || zombie).then_some(())
    };
    poll(LIMIT, dead).is_some()
}

fn signal(child: &Child, signal: Signal) {
    kill_process(Pid::from_child(child), signal).unwrap();
}

/// Ends a wrapper and waits for it.
fn end(wrapper: &mut Child) {
    signal(wrapper, Signal::TERM);
    wrapper.wait().unwrap();
}

/// A command that starts a child process, writes the ids of both to files and waits. SIGTERM ends it immediately.
const FAMILY: &str = "sleep 1000 & echo $! > grandchild; echo $$ > child; wait";

#[test]
fn run_command_needs_no_cluster_and_passes_the_token() {
    let home = Home::new();
    let output = home.tenure(&[
        "run",
        "--election",
        "hello",
        "--",
        "sh",
        "-c",
        "echo $TENURE_FENCING_TOKEN",
    ]);
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    let first: u64 = String::from_utf8_lossy(&output.stdout)
        .trim()
        .parse()
        .unwrap();
    assert!(stderr(&output).contains("other machines cannot see it"));
    let output = home.tenure(&[
        "run",
        "--election",
        "hello",
        "--",
        "sh",
        "-c",
        "echo $TENURE_FENCING_TOKEN",
    ]);
    let second: u64 = String::from_utf8_lossy(&output.stdout)
        .trim()
        .parse()
        .unwrap();
    assert!(second > first, "tokens grow: {first}, {second}");
    let status = home.tenure(&["status", "-o", "json"]);
    let rows: serde_json::Value = serde_json::from_slice(&status.stdout).unwrap();
    assert_eq!(
        (&rows[0]["name"], &rows[0]["state"]),
        (&"hello".into(), &"free".into())
    );
}

#[test]
fn run_command_passes_exit_codes_on() {
    let home = Home::new();
    for (line, expected) in [("exit 7", 7), ("kill -9 $$", 128 + 9), ("true", 0)] {
        let output = home.tenure(&["run", "--election", "e", "--", "sh", "-c", line]);
        assert_eq!(code(&output), expected, "{line}: {}", stderr(&output));
    }
}

#[test]
fn run_command_reports_invalid_command_lines() {
    let home = Home::new();
    fs::write(home.path("not-executable"), "").unwrap();
    let cases: [(&[&str], i32, &str); 9] = [
        (&["run"], 64, "--election"),
        (&["run", "--election", "e"], 64, "CMD"),
        (
            &["run", "--election", "e", "--wait", "soon", "--", "true"],
            64,
            "is not a duration",
        ),
        (
            &[
                "run",
                "--election=e",
                "--step-down-signal=TERM",
                "--",
                "true",
            ],
            64,
            "choose USR1 or USR2",
        ),
        (
            &["run", "--election=e", "--forward-signal=TERM", "--", "true"],
            64,
            "TERM is not HUP or QUIT",
        ),
        (
            &[
                "run",
                "--election=e",
                "--output-events=/no/where",
                "--",
                "true",
            ],
            64,
            "cannot write /no/where",
        ),
        (
            &["run", "--election", "e", "--", "no-such-command"],
            127,
            "not found",
        ),
        (
            &["run", "--election", "e", "--", "./not-executable"],
            126,
            "not executable",
        ),
        (
            &[
                "run",
                "--election",
                "e",
                "--renew-deadline=14s",
                "--retry-period=10s",
                "--",
                "true",
            ],
            64,
            "must fit into lease duration 15s",
        ),
    ];
    for (args, expected, text) in cases {
        let output = home.tenure(args);
        assert_eq!(code(&output), expected, "{args:?}: {}", stderr(&output));
        assert!(
            stderr(&output).contains(text),
            "{args:?}: {}",
            stderr(&output)
        );
    }
}

#[test]
fn run_command_does_not_use_the_local_server_in_kubernetes_or_if_disabled() {
    let home = Home::new();
    let args = ["run", "--election", "e", "--", "true"];
    let inside = home
        .command()
        .env("KUBERNETES_SERVICE_HOST", "10.0.0.1")
        .args(args)
        .output()
        .unwrap();
    assert_eq!(code(&inside), 125);
    assert!(
        stderr(&inside).contains("this pod has no service account token"),
        "{}",
        stderr(&inside)
    );
    let required = home.tenure(&["run", "--require-cluster", "--election", "e", "--", "true"]);
    assert_eq!(code(&required), 78);
    assert!(
        stderr(&required).contains("no cluster"),
        "{}",
        stderr(&required)
    );
    assert!(!home.path(".local").exists(), "no server was started");
}

/// Cron on every machine of a fleet must not start a private server on each of them.
#[test]
fn run_command_without_a_terminal_uses_the_local_server_only_if_asked() {
    let home = Home::new();
    let line = ["run", "--election", "e", "--", "true"];
    let script = home
        .command()
        .env_remove("TENURE_ALLOW_LOCAL")
        .args(line)
        .output()
        .unwrap();
    assert_eq!(code(&script), 78);
    assert_eq!(
        stderr(&script),
        "tenure: no cluster found: pass --kubeconfig FILE, set KUBECONFIG, or pass --local to use a server that only \
         this machine can see\n"
    );
    assert!(!home.path(".local").exists(), "no server was started");
    let asked = home
        .command()
        .env_remove("TENURE_ALLOW_LOCAL")
        .env("KUBECONFIG", "/nowhere")
        .arg("--local")
        .args(line)
        .output()
        .unwrap();
    assert_eq!(code(&asked), 0, "{}", stderr(&asked));
    assert!(home.path(".local").exists());
}

/// A candidate without slots would run alongside the holders of slots, and the reverse.
#[test]
fn run_command_election_is_used_with_slots_or_without_not_both() {
    let home = Home::new();
    let mut holder = start(&home, &["--slots=2", "--id=holder"], FAMILY);
    pid(&home, "child");
    let plain = home.tenure(&["run", "--election=e", "--", "true"]);
    assert_eq!(code(&plain), 64, "{}", stderr(&plain));
    let text = "tenure: election default/e has 2 slots: pass --slots 2, or delete the lease e-0 if no candidate uses \
                slots any more\n";
    assert!(stderr(&plain).ends_with(text), "{}", stderr(&plain));
    end(&mut holder);

    let home = Home::new();
    let mut holder = start(&home, &["--id=holder"], FAMILY);
    pid(&home, "child");
    let slotted = home.tenure(&["run", "--election=e", "--slots=2", "--", "true"]);
    assert_eq!(code(&slotted), 64, "{}", stderr(&slotted));
    let text = "tenure: holder leads the election default/e without slots: remove --slots, or choose another election\n";
    assert!(stderr(&slotted).ends_with(text), "{}", stderr(&slotted));
    end(&mut holder);
}

#[test]
fn run_command_stops_waiting_at_its_time_limit() {
    let home = Home::new();
    let mut holder = start(&home, &["--id=holder"], FAMILY);
    pid(&home, "child");
    let output = home.tenure(&["run", "--election=e", "--nonblock", "--", "true"]);
    assert_eq!(code(&output), 75, "{}", stderr(&output));
    assert!(
        stderr(&output).contains("holder holds the election e"),
        "{}",
        stderr(&output)
    );
    let output = home.tenure(&["run", "--election=e", "--wait=5s", "-E", "9", "--", "true"]);
    assert_eq!(code(&output), 9, "{}", stderr(&output));
    assert!(
        stderr(&output).contains("holder leads"),
        "{}",
        stderr(&output)
    );
    signal(&holder, Signal::TERM);
    assert_eq!(holder.wait().unwrap().code(), Some(128 + 15));
}

#[test]
fn run_command_hands_over_when_the_leader_is_asked_to_end() {
    let home = Home::new();
    let mut first = start(&home, &["--id=first"], FAMILY);
    let (child, grandchild) = (pid(&home, "child"), pid(&home, "grandchild"));
    let mut second = start(
        &home,
        &["--id=second"],
        "echo $$ > successor; kill -0 $(cat child) || exit 3",
    );
    signal(&first, Signal::TERM);
    assert_eq!(first.wait().unwrap().code(), Some(128 + 15));
    assert!(
        gone(child) && gone(grandchild),
        "the whole group ends before the lease is released"
    );
    // The successor ran only after the child of the first one had ended.
    assert_eq!(second.wait().unwrap().code(), Some(3));
}

#[test]
fn run_command_that_is_killed_leaves_no_process_of_its_group() {
    let home = Home::new();
    let mut wrapper = start(&home, &[], FAMILY);
    let (child, grandchild) = (pid(&home, "child"), pid(&home, "grandchild"));
    signal(&wrapper, Signal::KILL);
    assert_eq!(wrapper.wait().unwrap().signal(), Some(9));
    assert!(gone(child), "the kernel kills the child");
    assert!(gone(grandchild), "the watchdog kills the rest");
}

#[test]
fn run_command_stops_the_child_when_the_api_server_is_gone() {
    let home = Home::new();
    let mut wrapper = start(&home, &[], FAMILY);
    let (child, grandchild) = (pid(&home, "child"), pid(&home, "grandchild"));
    assert_eq!(code(&home.tenure(&["server", "stop"])), 0);
    assert!(gone(child) && gone(grandchild));
    assert_eq!(
        wrapper.wait().unwrap().code(),
        Some(76),
        "leadership was lost"
    );
}

#[test]
fn run_command_interrupt_ends_waiting_immediately() {
    let home = Home::new();
    let mut holder = start(&home, &[], FAMILY);
    pid(&home, "child");
    let mut waiting = start(&home, &["--id=waiting"], "true");
    // The process reads the holder with its first request. Until then it waits in the same way.
    poll(LIMIT, || catches_interrupts(waiting.id()).then_some(())).unwrap();
    std::thread::sleep(Duration::from_millis(300));
    signal(&waiting, Signal::INT);
    assert_eq!(waiting.wait().unwrap().code(), Some(128 + 2));
    signal(&holder, Signal::TERM);
    holder.wait().unwrap();
}

#[test]
fn run_command_obeys_an_operators_order() {
    let home = Home::new();
    let mut first = start(&home, &["--id=first", "--on-lost=exit"], FAMILY);
    pid(&home, "child");
    let mut second = start(&home, &["--id=second"], "echo $$ > successor; sleep 1000");
    let output = home.tenure(&["step-down", "e"]);
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    assert_eq!(
        String::from_utf8_lossy(&output.stdout).trim(),
        "first -> second"
    );
    assert_eq!(first.wait().unwrap().code(), Some(76));
    pid(&home, "successor");
    signal(&second, Signal::TERM);
    second.wait().unwrap();
}

#[test]
fn run_command_writes_events() {
    let home = Home::new();
    let output = home.tenure(&[
        "run",
        "--election=e",
        "--id=me",
        "--output-events=events",
        "--",
        "true",
    ]);
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    let events = read_events(&home.path("events"));
    let kinds: Vec<_> = events
        .iter()
        .map(|event| event["event"].as_str().unwrap())
        .collect();
    assert!(
        kinds.ends_with(&["acquired", "lost", "released"]),
        "{kinds:?}"
    );
    let lost = events
        .iter()
        .find(|event| event["event"] == "lost")
        .unwrap();
    assert!(lost["until"].as_i64().unwrap() <= lost["t"].as_i64().unwrap());
}

fn read_events(path: &Path) -> Vec<serde_json::Value> {
    let text = fs::read_to_string(path).unwrap();
    text.lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

#[test]
fn run_command_has_one_leader_per_slot() {
    let home = Home::new();
    let slots = ["--slots=2", "--delete-on-exit"];
    let line =
        |name: &str| format!("echo $TENURE_SLOT > slot-{name}; echo $$ > {name}; sleep 1000");
    let mut a = start(&home, &slots, &line("a"));
    let mut b = start(&home, &slots, &line("b"));
    pid(&home, "a");
    pid(&home, "b");
    let slot = |name: &str| fs::read_to_string(home.path(format!("slot-{name}"))).unwrap();
    assert_ne!(slot("a"), slot("b"), "each holder has its own slot");
    let args = [
        "run",
        "--election=e",
        "--slots=2",
        "--nonblock",
        "--",
        "true",
    ];
    let third = home.tenure(&args);
    assert_eq!(code(&third), 75, "both are taken: {}", stderr(&third));
    let wrong = home.tenure(&["run", "--election=e", "--slots=3", "--", "true"]);
    assert_eq!(code(&wrong), 64);
    assert!(
        stderr(&wrong).contains("has 2 slots, not 3"),
        "{}",
        stderr(&wrong)
    );
    let mut c = start(&home, &slots, &line("c"));
    signal(&a, Signal::TERM);
    pid(&home, "c");
    assert_eq!(slot("c"), slot("a"), "the slot that became free");
    for child in [&mut a, &mut b, &mut c] {
        // The first one has ended by itself.
        let _ = kill_process(Pid::from_child(child), Signal::TERM);
        assert_eq!(child.wait().unwrap().code(), Some(128 + 15));
    }
}

/// The number of slots is stored on the lease of slot 0. Others rely on it after its holder has ended.
#[test]
fn run_command_slot_zero_keeps_the_number_of_slots() {
    let home = Home::new();
    let slots = ["--slots=2", "--delete-on-exit"];
    let line =
        |name: &str| format!("echo $TENURE_SLOT > {name}.new; mv {name}.new {name}; sleep 1000");
    let mut holders = [
        start(&home, &slots, &line("a")),
        start(&home, &slots, &line("b")),
    ];
    let slot = |name: &str| {
        let read = || fs::read_to_string(home.path(name)).ok();
        poll(LIMIT, read).unwrap_or_else(|| panic!("{name} was not written"))
    };
    let first = usize::from(slot("a").trim() != "0");
    slot("b");
    signal(&holders[first], Signal::TERM);
    assert_eq!(holders[first].wait().unwrap().code(), Some(128 + 15));
    let wrong = home.tenure(&[
        "run",
        "--election=e",
        "--slots=3",
        "--wait=20s",
        "--",
        "true",
    ]);
    signal(&holders[1 - first], Signal::TERM);
    assert_eq!(holders[1 - first].wait().unwrap().code(), Some(128 + 15));
    assert_eq!(code(&wrong), 64, "{}", stderr(&wrong));
    assert!(
        stderr(&wrong).contains("has 2 slots, not 3"),
        "{}",
        stderr(&wrong)
    );
    // The other lease was removed.
    let rows = home.tenure(&["status", "-o", "json"]);
    let rows: serde_json::Value = serde_json::from_slice(&rows.stdout).unwrap();
    let names: Vec<_> = rows
        .as_array()
        .unwrap()
        .iter()
        .map(|row| &row["name"])
        .collect();
    assert_eq!(names, ["e-0"]);
}

#[test]
fn run_command_once_runs_a_successful_command_one_time() {
    let home = Home::new();
    let once = [
        "run",
        "--election=e",
        "--once",
        "--",
        "sh",
        "-c",
        "echo did >> done",
    ];
    for _ in 0..2 {
        let output = home.tenure(&once);
        assert_eq!(code(&output), 0, "{}", stderr(&output));
    }
    assert_eq!(fs::read_to_string(home.path("done")).unwrap(), "did\n");
    let failed = home.tenure(&["run", "--election=f", "--once", "--", "false"]);
    assert_eq!(code(&failed), 1);
    let after = home.tenure(&["run", "--election=f", "--once", "--", "sh", "-c", "exit 5"]);
    assert_eq!(code(&after), 5, "a failed command is run again");
}

#[test]
fn run_command_removes_its_lock_with_the_flag() {
    let home = Home::new();
    for lock in ["leases", "configmapsleases"] {
        let lock = format!("--lock={lock}");
        let args = [
            "run",
            "--election=e",
            &lock,
            "--delete-on-exit",
            "--",
            "true",
        ];
        assert_eq!(code(&home.tenure(&args)), 0);
        let rows = home.tenure(&["status", "-o", "json"]);
        assert_eq!(String::from_utf8_lossy(&rows.stdout).trim(), "[]", "{lock}");
    }
}

/// Processes that leave the process group, and even the session, end with the term.
#[test]
fn run_command_ends_descendants_that_left_the_group() {
    let home = Home::new();
    let escape = "setsid sh -c 'echo $$ > escaped; sleep 1000' & echo $$ > child; wait";
    // The command ends and leaves a daemon behind.
    let output = home.tenure(&[
        "run",
        "--election=e",
        "--",
        "sh",
        "-c",
        "setsid sh -c 'echo $$ > daemon; exec sleep 1000' & while ! test -s daemon; do sleep 0.05; done; exit 4",
    ]);
    assert_eq!(code(&output), 4, "{}", stderr(&output));
    assert!(gone(pid(&home, "daemon")));
    // The wrapper is terminated, and killed.
    for how in [Signal::TERM, Signal::KILL] {
        let mut wrapper = start(&home, &[], escape);
        pid(&home, "child");
        let escaped = pid(&home, "escaped");
        signal(&wrapper, how);
        wrapper.wait().unwrap();
        assert!(gone(escaped), "{how:?}");
        fs::remove_file(home.path("escaped")).unwrap();
        fs::remove_file(home.path("child")).unwrap();
    }
}

#[test]
fn run_command_passes_only_the_requested_file_descriptors() {
    let home = Home::new();
    let tenure = home.command().get_program().to_owned();
    let line = format!(
        "exec 5</dev/null 6</dev/null; exec {} run --election=e --keep-fd 6 -- sh -c \
         'test ! -e /proc/self/fd/5 && test -e /proc/self/fd/6'",
        tenure.display()
    );
    let output = in_shell(&home, &line);
    assert_eq!(code(&output), 0, "{}", stderr(&output));
}

#[test]
fn run_command_under_nohup_ignores_hangup() {
    let home = Home::new();
    let tenure = home.command().get_program().to_owned();
    let line = format!(
        "trap '' HUP; exec {} run --election=e -- sh -c 'kill -HUP $PPID; sleep 0.3; exit 9'",
        tenure.display()
    );
    let output = in_shell(&home, &line);
    assert_eq!(code(&output), 9, "{}", stderr(&output));
}

/// A credential plugin is also a child of the wrapper, but its exit does not end the term.
#[test]
fn run_command_leaves_credential_plugins_alone() {
    let home = Home::new();
    assert_eq!(
        code(&home.tenure(&["run", "--election=e", "--", "true"])),
        0
    );
    let status = home.tenure(&["server", "status"]);
    let instance: serde_json::Value = serde_json::from_slice(&status.stdout).unwrap();
    let kubeconfig = instance["kubeconfig"].as_str().unwrap();
    let mut config =
        serde_json::to_value(kube::config::Kubeconfig::read_from(kubeconfig).unwrap()).unwrap();
    let user = config["users"][0]["user"].clone();
    let decoded = |key: &str| format!("echo {} | base64 -d", user[key].as_str().unwrap());
    let plugin = format!(
        "#!/bin/sh\nsleep 0.5\ncert=$({} | sed ':a;N;$!ba;s/\\n/\\\\n/g')\n\
         key=$({} | sed ':a;N;$!ba;s/\\n/\\\\n/g')\n\
         printf '{{\"apiVersion\":\"client.authentication.k8s.io/v1\",\"kind\":\"ExecCredential\",\
         \"status\":{{\"clientCertificateData\":\"%s\",\"clientKeyData\":\"%s\"}}}}' \
         \"$cert\" \"$key\"\n",
        decoded("client-certificate-data"),
        decoded("client-key-data"),
    );
    fs::write(home.path("plugin"), plugin).unwrap();
    fs::set_permissions(home.path("plugin"), PermissionsExt::from_mode(0o755)).unwrap();
    config["users"][0]["user"] = serde_json::json!({ "exec": {
        "apiVersion": "client.authentication.k8s.io/v1",
        "command": home.path("plugin"),
        "interactiveMode": "Never",
    } });
    fs::write(home.path("with-plugin"), config.to_string()).unwrap();
    let args = [
        "run",
        "--kubeconfig=with-plugin",
        "--election=e",
        "--",
        "sh",
        "-c",
        "sleep 1; exit 3",
    ];
    let output = home.tenure(&args);
    assert_eq!(code(&output), 3, "{}", stderr(&output));
}

fn in_shell(home: &Home, line: &str) -> Output {
    let mut command = Command::new("sh");
    command
        .env_clear()
        .env("PATH", std::env::var_os("PATH").unwrap())
        .env("HOME", home.path(""))
        .env("TENURE_ALLOW_LOCAL", "1")
        .current_dir(home.path(""))
        .args(["-c", line]);
    command.output().unwrap()
}

/// An invalid variable is reported with its value and the reason.
#[test]
fn run_command_names_the_invalid_variable() {
    let home = Home::new();
    let durations = ["LEASE_DURATION", "RENEW_DEADLINE", "RETRY_PERIOD", "TTL"];
    for variable in durations.map(|name| format!("TENURE_{name}")) {
        for (args, expected) in [
            (&["run", "--election=e", "--", "true"][..], 64),
            (&["elect", "--election=e"], 2),
        ] {
            let mut command = home.command();
            let output = command.env(&variable, "soon").args(args).output().unwrap();
            let said = stderr(&output);
            assert_eq!(code(&output), expected, "{variable}: {said}");
            assert_eq!(said.trim().lines().count(), 1, "{said}");
            for text in [&variable, "'soon'", "is not a duration"] {
                assert!(said.contains(text), "no {text:?}: {said}");
            }
        }
    }
}

#[test]
fn run_command_has_completions_and_man_pages() {
    let home = Home::new();
    for shell in ["bash", "zsh", "fish"] {
        let script = home.tenure(&["completions", shell]);
        let script = String::from_utf8_lossy(&script.stdout).into_owned();
        assert!(script.contains("max-hold"), "{shell}");
    }
    assert_eq!(code(&home.tenure(&["man", "--dir", "man"])), 0);
    let page = fs::read_to_string(home.path("man/tenure-run.1")).unwrap();
    assert!(page.contains("slots"), "{page}");
}
