//! An API server that accepts connections and never responds: no command waits for it silently, and no command with a
//! time limit exceeds it.

use std::fs;
use std::net::TcpListener;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use tenure_tests::clock::poll;
use tenure_tests::home::Home;
use tenure_tests::process::Process;

use crate::sidecar::{free_port, request};

const LIMIT: Duration = Duration::from_secs(120);

const TIMING: [&str; 3] = [
    "--lease-duration=4s",
    "--renew-deadline=2s",
    "--retry-period=300ms",
];

/// A home directory whose kubeconfig refers to such a server.
struct Hole {
    home: Home,
    address: String,
    _listener: TcpListener,
}

impl Hole {
    fn new() -> Self {
        Self::with_user(&json!({}))
    }

    /// Like `new`, but the credential plugin does not return either while the home directory exists.
    fn without_credentials() -> Self {
        let plugin = "while [ -e kubeconfig ]; do sleep 0.1; done";
        Self::with_user(&json!({ "exec": {
            "apiVersion": "client.authentication.k8s.io/v1", "interactiveMode": "Never",
            "command": "sh", "args": ["-c", plugin],
        } }))
    }

    fn with_user(user: &Value) -> Self {
        let home = Home::new();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        let config = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "x",
            "clusters": [{ "name": "x", "cluster": { "server": address } }],
            "users": [{ "name": "x", "user": user }],
            "contexts": [{ "name": "x", "context": { "cluster": "x", "user": "x" } }],
        });
        fs::write(home.path("kubeconfig"), config.to_string()).unwrap();
        Self {
            home,
            address,
            _listener: listener,
        }
    }

    fn start(&self, args: &[&str]) -> Process {
        let mut command = self.home.command();
        command.env("KUBECONFIG", self.home.path("kubeconfig"));
        Process::spawn(args.join(" "), {
            command.args(args);
            command
        })
        .unwrap()
    }
}

/// Waits until a process reports that it waits, and for which server.
fn waits_for(process: &Process, whom: &str) {
    let line = format!("tenure: waiting for {whom}");
    let said = || process.text().iter().any(|text| text.starts_with(&line));
    let seen = poll(LIMIT, || said().then_some(()));
    assert!(seen.is_some(), "{}: {:?}", process.name(), process.text());
}

#[test]
fn unanswered_elect_serves_http_and_ends_within_its_startup_timeout() {
    let hole = Hole::new();
    let start = |port: u16, more: &str| {
        let http = format!("--http=127.0.0.1:{port}");
        let limit = "--startup-timeout=10s";
        hole.start(&[&["elect", "--election=e", &http, limit, more], &TIMING[..]].concat())
    };
    let ports = [free_port(), free_port()];
    let mut each = [
        start(ports[0], "--preflight=warn"),
        start(ports[1], "--preflight=fail"),
    ];
    for (process, port) in each.iter_mut().zip(ports) {
        let ready = poll(LIMIT, || request(port, "GET", "/readyz"));
        let name = request(port, "GET", "/");
        assert_eq!(ready.unwrap().0, 500, "{}", process.name());
        assert_eq!(name.unwrap(), (200, r#"{"name":""}"#.to_owned()));
    }
    for mut process in each {
        let code = process.wait(LIMIT).unwrap().code();
        assert_eq!(code, Some(6), "{}", process.transcript());
        let said = process.transcript();
        assert!(
            said.contains("cannot check permissions: no answer"),
            "{said}"
        );
    }
}

#[test]
fn unanswered_run_ends_within_its_time_limit() {
    let hole = Hole::new();
    let run = |flags: &[&str]| {
        let line = [
            &["run", "--election=e"],
            &TIMING[..],
            flags,
            &["--", "true"],
        ];
        hole.start(&line.concat())
    };
    let cases = [
        (run(&["--nonblock"]), 125, "cannot lead e now"),
        (
            run(&["--nonblock", "--slots=2"]),
            125,
            "no answer from http",
        ),
        (run(&["--wait=2s"]), 75, "not elected in e within 2s"),
        (
            run(&["--wait=2s", "--slots=2"]),
            75,
            "not elected in e within 2s: no answer",
        ),
    ];
    for (mut process, code, text) in cases {
        let ended = process.wait(LIMIT).unwrap().code();
        let said = process.transcript();
        assert_eq!(ended, Some(code), "{}: {said}", process.name());
        assert!(said.contains(text), "{}: {said}", process.name());
    }
    // Nobody can acquire a paused election, so the command does not wait for that either.
    let home = Home::new();
    for line in ["run --election=e -- true", "pause e"] {
        let args: Vec<&str> = line.split(' ').collect();
        assert!(home.tenure(&args).status.success(), "{line}");
    }
    let paused = home.tenure(&["run", "--election=e", "--nonblock", "--", "true"]);
    let said = String::from_utf8_lossy(&paused.stderr).into_owned();
    assert_eq!(paused.status.code(), Some(75), "{said}");
    assert!(said.contains("the election e is paused"), "{said}");
    assert!(home.tenure(&["resume", "e"]).status.success());
    let free = home.tenure(&["run", "--election=e", "--nonblock", "--", "true"]);
    assert_eq!(free.status.code(), Some(0), "{free:?}");
}

#[test]
fn unanswered_commands_name_the_server_that_they_wait_for() {
    let hole = Hole::new();
    let lines = [
        "status",
        "status -w",
        "history e",
        "step-down e",
        "pause e",
        "doctor",
        "run --election=e -- true",
        "run --election=e --slots=2 -- true",
    ];
    let started = lines.map(|line| hole.start(&line.split(' ').collect::<Vec<_>>()));
    for process in &started {
        waits_for(process, &hole.address);
        assert!(!process.text().iter().any(|line| line.contains("HOLDER")));
    }
    let hole = Hole::without_credentials();
    let lines = [
        "status",
        "history e",
        "step-down e",
        "doctor",
        "elect --election=e",
        "run --election=e -- true",
    ];
    let started = lines.map(|line| hole.start(&line.split(' ').collect::<Vec<_>>()));
    for process in &started {
        waits_for(process, &format!("the credentials for {}", hole.address));
    }
}

/// A server that needs a while to exit.
#[test]
fn unanswered_server_stop_names_the_process_that_it_waits_for() {
    let home = Home::new();
    let run = home.tenure(&["run", "--election=e", "--", "true"]);
    assert!(run.status.success(), "{run:?}");
    let status = home.tenure(&["server", "status"]).stdout;
    let status: Value = serde_json::from_slice(&status).unwrap();
    let pid = i32::try_from(status["pid"].as_i64().unwrap()).unwrap();
    let server = Pid::from_raw(pid).unwrap();
    kill_process(server, Signal::STOP).unwrap();
    let mut command = home.command();
    command.args(["server", "stop", "--timeout=5m"]);
    let mut stop = Process::spawn("stop", command).unwrap();
    waits_for(&stop, &format!("the server with pid {pid} to end"));
    kill_process(server, Signal::CONT).unwrap();
    assert_eq!(stop.wait(LIMIT).unwrap().code(), Some(0));
}
