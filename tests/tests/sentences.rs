//! The sentences that new users read first, each with its exact text. One table with real processes and one server.
//!
//! Times, ports and numbers of tokens are replaced before the comparison. No sentence may contain the debug form of a type.

use std::io::Write as _;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use http::Method;
use serde_json::{Value, json};
use tenure_apiserver::auth::User;
use tenure_apiserver::server::Server;
use tenure_tests::clock::poll;
use tenure_tests::embedded::Embedded;
use tenure_tests::home::write_secret;
use tenure_tests::process::Process;
use tenure_tests::tools;
use tenure_tests::wire::{Wire, lease_path};

const LIMIT: Duration = Duration::from_secs(120);

/// Parts of debug output that must not reach a user.
const DEBUG: [&str; 5] = ["Some(", "None", "ServiceError", "Signal::", "Status {"];

/// A server, three users of it, and the failures found so far.
struct Table {
    folder: tempfile::TempDir,
    _server: Embedded,
    admin: Wire,
    refused: String,
    failures: Vec<String>,
    rows: usize,
}

/// Which kubeconfig a command uses.
#[derive(Clone, Copy)]
enum As {
    Admin,
    /// A user without permissions.
    Stranger,
    /// An address on which no server listens.
    Refused,
}

impl Table {
    fn new() -> Self {
        let stranger = User {
            name: "stranger".into(),
            groups: vec!["system:authenticated".into()],
            ..User::admin()
        };
        let server = Embedded::start_with(Server::builder().token("t0ken", stranger)).unwrap();
        let admin = Wire::connect(&server.kubeconfig()).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let text = std::fs::read_to_string(server.kubeconfig()).unwrap();
        let mut config: Value = serde_saphyr::from_str(&text).unwrap();
        write_secret(folder.path().join("admin"), config.to_string());
        config["users"][0]["user"] = json!({ "token": "t0ken" });
        write_secret(folder.path().join("stranger"), config.to_string());
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let refused = listener.local_addr().unwrap().to_string();
        drop(listener);
        config["clusters"][0]["cluster"] = json!({ "server": format!("http://{refused}") });
        std::fs::write(folder.path().join("refused"), config.to_string()).unwrap();
        Self {
            folder,
            _server: server,
            admin,
            refused,
            failures: Vec::new(),
            rows: 0,
        }
    }

    fn kubeconfig(&self, user: As) -> PathBuf {
        self.folder.path().join(match user {
            As::Admin => "admin",
            As::Stranger => "stranger",
            As::Refused => "refused",
        })
    }

    fn command(&self, user: As, args: &[&str]) -> Command {
        let mut command = Command::new(tools::tenure().unwrap());
        command
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap_or_default())
            .env("HOME", self.folder.path())
            .env("KUBECONFIG", self.kubeconfig(user))
            .current_dir(self.folder.path())
            .stdin(Stdio::null())
            .args(args);
        command
    }

    /// Runs a command to its end, and checks its exit code and that it printed these lines.
    fn row(&mut self, user: As, line: &str, code: i32, expected: &[&str]) {
        let args: Vec<&str> = line.split(' ').collect();
        self.row_of(user, &args, code, expected);
    }

    fn row_of(&mut self, user: As, args: &[&str], code: i32, expected: &[&str]) {
        let output = self.command(user, args).output().unwrap();
        let mut said = String::from_utf8_lossy(&output.stdout).into_owned();
        said += &String::from_utf8_lossy(&output.stderr);
        let line = args.join(" ");
        if output.status.code() != Some(code) {
            let ended = output.status;
            self.failures
                .push(format!("{line}: {ended}, not {code}:\n{said}"));
        }
        self.check(&line, &said, expected);
    }

    /// Starts a process that runs until it is dropped.
    fn start(&self, args: &[&str]) -> Process {
        Process::spawn(args.join(" "), self.command(As::Admin, args)).unwrap()
    }

    /// Waits until a process has printed a line with this text.
    fn says(&mut self, process: &Process, text: &str) {
        let said = || process.text().iter().any(|line| line.contains(text));
        if poll(LIMIT, || said().then_some(())).is_none() {
            let said = process.transcript();
            self.failures
                .push(format!("{}: no {text:?} in:\n{said}", process.name()));
        }
    }

    /// Checks the output of a process that was started.
    fn checked(&mut self, process: &Process, expected: &[&str]) {
        let said = process.text().join("\n");
        self.check(process.name(), &said, expected);
    }

    fn check(&mut self, line: &str, said: &str, expected: &[&str]) {
        let said = self.tidy(said);
        let lines: Vec<&str> = said.lines().map(str::trim_end).collect();
        for sentence in expected {
            self.rows += 1;
            // Lines of the log begin with a time and a level.
            let found = match sentence.strip_prefix("... ") {
                Some(end) => lines.iter().any(|line| line.ends_with(end)),
                None => lines.contains(sentence),
            };
            if !found {
                self.failures
                    .push(format!("{line}: no line\n  {sentence}\nin:\n{said}"));
            }
        }
        for part in DEBUG {
            if said.contains(part) {
                self.failures
                    .push(format!("{line}: {part:?} is debug output:\n{said}"));
            }
        }
    }

    /// Replaces what differs between two runs.
    fn tidy(&self, said: &str) -> String {
        let folder = self.folder.path().display().to_string();
        let said = said
            .replace(&self.refused, "REFUSED")
            .replace(&folder, "DIR")
            // The read and the watch of a lease are sent at the same time, and either may fail first.
            .replace(
                "watch leases in namespace default: ",
                "get lease default/e: ",
            );
        let words = said.split_inclusive([' ', '\n']).map(|word| {
            let (bare, end) = match word.find([' ', '\n', ',']) {
                Some(at) => word.split_at(at),
                None => (word, ""),
            };
            let is_time = bare.len() >= 20 && bare.ends_with('Z') && bare.starts_with("20");
            if is_time {
                format!("TIME{end}")
            } else {
                word.to_owned()
            }
        });
        let said: String = words.collect();
        numberless(&numberless(&said, "fencing token "), "(for ")
    }

    fn put(&self, path: &str, object: &Value) {
        let answer = self.admin.send(&Method::POST, path, Some(object)).unwrap();
        assert!(answer.status.is_success(), "{path}: {}", answer.body);
    }

    /// Creates a lease that somebody holds for an hour.
    fn hold(&self, name: &str) {
        let now = Command::new("date")
            .args(["-u", "+%Y-%m-%dT%H:%M:%S.000000Z"])
            .output();
        let now = String::from_utf8(now.unwrap().stdout).unwrap();
        let lease = json!({
            "apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": { "name": name },
            "spec": {
                "holderIdentity": "holder", "leaseDurationSeconds": 3600, "leaseTransitions": 0,
                "acquireTime": now.trim(), "renewTime": now.trim(),
            },
        });
        self.put(&lease_path("default", ""), &lease);
    }
}

/// Replaces the number after each of these words with N.
fn numberless(text: &str, before: &str) -> String {
    let mut parts = text.split(before);
    let mut result = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let rest = part.trim_start_matches(|c: char| c.is_ascii_digit());
        result += before;
        result += if rest.len() < part.len() { "N" } else { "" };
        result += rest;
    }
    result
}

const DURATIONS: &str = "(lease 15s, renew deadline 10s, retry period 2s)";

#[test]
fn sentences_for_new_users_are_exact() {
    let mut table = Table::new();
    starting(&mut table);
    without_a_server(&mut table);
    without_permission(&mut table);
    waiting(&mut table);
    steering(&mut table);
    looking(&mut table);
    slots_and_jobs(&mut table);
    signals(&mut table);
    driver(&mut table);
    let Table { failures, rows, .. } = &table;
    assert!(*rows >= 30, "only {rows} sentences");
    _ = writeln!(std::io::stderr(), "{rows} sentences");
    let count = failures.len();
    assert!(
        failures.is_empty(),
        "{count} failures:\n{}",
        failures.join("\n\n")
    );
}

fn starting(table: &mut Table) {
    let campaigning = format!("tenure: campaigning in default/s as a {DURATIONS}");
    table.row(
        As::Admin,
        "run --election=s --id=a -- true",
        0,
        &[
            &campaigning,
            "tenure: leading default/s, fencing token N",
            "tenure: stopped leading default/s: the command exited with code 0",
            "tenure: released default/s",
        ],
    );
    let fails = ["run", "--election=s", "--", "sh", "-c", "exit 3"];
    let stopped = "tenure: stopped leading default/s: the command exited with code 3";
    table.row_of(As::Admin, &fails, 3, &[stopped]);
    let quiet = table.command(As::Admin, &["run", "-q", "--election=s", "--", "true"]);
    let said = { quiet }.output().unwrap().stderr;
    assert_eq!(String::from_utf8_lossy(&said), "", "--quiet");
    let json = [
        "--log-format=json",
        "run",
        "--election=s",
        "--id=a",
        "--",
        "true",
    ];
    let said = table.command(As::Admin, &json).output().unwrap().stderr;
    let said = String::from_utf8_lossy(&said).into_owned();
    let leading = said.lines().any(|line| {
        let line: Value = serde_json::from_str(line).unwrap_or_default();
        line["message"] == "leading" && line["leader"] == "a" && line["election"] == "s"
    });
    assert!(leading, "{said}");
    table.row(
        As::Admin,
        "run --election=s -- no-such-command",
        127,
        &["tenure: command not found: no-such-command"],
    );
    table.row(
        As::Admin,
        "run --name=s -- true",
        64,
        &["tenure: unknown flag --name; use --election; see `tenure run --help`"],
    );
    table.row(
        As::Admin,
        "run --election=s --lease-duration=5s -- true",
        64,
        &["tenure: invalid election timing: lease duration 5s must be greater than renew deadline 10s; change \
           these durations, or set all of them with --ttl"],
    );
    table.row(
        As::Admin,
        "run --election=s --kubeconfig=none -- true",
        125,
        &["tenure: cannot read kubeconfig none: no such file or directory"],
    );
}

fn without_a_server(table: &mut Table) {
    let refused = "cannot connect to REFUSED: connection refused";
    for (line, code, before) in [
        ("status", 1, "tenure: cannot list leases: "),
        ("history e", 1, "tenure: cannot get leases default/e: "),
        ("step-down e", 1, "tenure: cannot get leases default/e: "),
        ("pause e", 1, "tenure: cannot patch leases default/e: "),
        (
            "doctor e",
            1,
            "FAIL     connection  http://REFUSED/ does not answer: ",
        ),
    ] {
        table.row(As::Refused, line, code, &[&format!("{before}{refused}")]);
    }
    table.row(
        As::Refused,
        "run --election=e --nonblock -- true",
        125,
        &[&format!(
            "tenure: cannot lead e now: cannot get lease default/e: {refused} (for N s)"
        )],
    );
}

fn without_permission(table: &mut Table) {
    table.row(
        As::Stranger,
        "run --election=web --startup-timeout=3s -- true",
        125,
        &[
            "tenure: missing permissions: get leases, list leases, update leases, watch leases, create \
             leases, create events in namespace default",
            "tenure: save this as role.yaml, then run: kubectl apply -f role.yaml && kubectl create \
             rolebinding tenure-web --namespace=default --role=tenure-web --user=stranger",
            "tenure: cannot campaign yet; retrying for up to 3s (--startup-timeout)",
            "tenure: gave up after 3s (--startup-timeout): cannot get lease default/web: the permission to \
             get leases.coordination.k8s.io in namespace default is missing: leases.coordination.k8s.io \
             \"web\" is forbidden: User \"stranger\" cannot get resource \"leases\" in API group \
             \"coordination.k8s.io\" in the namespace \"default\"",
        ],
    );
    let missing =
        "cannot create lease nowhere/e: namespace nowhere does not exist; create it first";
    table.row(
        As::Admin,
        "run --election=e --namespace=nowhere --startup-timeout=3s -- true",
        125,
        &[&format!(
            "tenure: gave up after 3s (--startup-timeout): {missing}"
        )],
    );
    table.row(
        As::Admin,
        "elect --election=e --namespace=nowhere --startup-timeout=5s",
        3,
        &[&format!(
            "tenure: gave up after 5s (--startup-timeout): {missing}"
        )],
    );
}

fn waiting(table: &mut Table) {
    table.hold("held");
    table.row(
        As::Admin,
        "run --election=held --nonblock -- true",
        75,
        &["tenure: holder holds the election held"],
    );
    table.row(
        As::Admin,
        "run --election=held --wait=2s -- true",
        75,
        &[
            "tenure: waiting: holder holds default/held, until TIME unless it renews its lease",
            "tenure: not elected in held within 2s: holder leads",
        ],
    );
    let observer = table.start(&["elect", "--election=dry", "--dry-run"]);
    table.says(&observer, "observing");
    table.checked(
        &observer,
        &["tenure: observing default/dry; --dry-run never campaigns"],
    );
    drop(observer);
    let unhealthy = table.start(&["elect", "--election=h", "--health-cmd=false"]);
    table.says(&unhealthy, "not campaigning");
    table.checked(
        &unhealthy,
        &["tenure: not campaigning in default/h: the health check failed: `false` exited with code 1"],
    );
}

fn steering(table: &mut Table) {
    let durations = [
        "--lease-duration=4s",
        "--renew-deadline=2s",
        "--retry-period=300ms",
    ];
    let leader = table.start(&[&["elect", "--election=p", "--id=web-2"][..], &durations].concat());
    table.says(&leader, "leading default/p");
    table.row(
        As::Admin,
        "pause p",
        0,
        &["paused p: nobody can acquire it until `tenure resume p`"],
    );
    table.row(
        As::Admin,
        "step-down p",
        0,
        &["web-2 stepped down; nobody can take over while the election is paused; run `tenure resume p`"],
    );
    table.says(&leader, "released default/p");
    table.checked(
        &leader,
        &["tenure: stopped leading default/p: an operator ordered it to step down"],
    );
    drop(leader);
    table.row(
        As::Admin,
        "run --election=p --nonblock -- true",
        75,
        &["tenure: the election p is paused"],
    );
    table.row(
        As::Admin,
        "run --election=p --wait=3s -- true",
        75,
        &["tenure: waiting: default/p is paused; nobody can acquire it until `tenure resume p`"],
    );
    table.row(As::Admin, "resume p", 0, &["resumed p"]);
    let alone = table.start(&[&["elect", "--election=q", "--id=alone"][..], &durations].concat());
    table.says(&alone, "leading default/q");
    table.row(
        As::Admin,
        "step-down q --for=1m",
        0,
        &[
            "alone stepped down; nobody took over, because there is no other candidate; alone may campaign \
             again 1m0s after the order",
        ],
    );
    drop(alone);
    table.row(
        As::Admin,
        "step-down q",
        1,
        &["tenure: nobody holds election default/q, so there is no leader to step down"],
    );
    table.row(
        As::Admin,
        "step-down nothing",
        1,
        &["tenure: election default/nothing with a leases lock does not exist; run `tenure status -A` to list elections"],
    );
}

fn looking(table: &mut Table) {
    table.row(
        As::Admin,
        "status nothing",
        1,
        &["tenure: election nothing does not exist in namespace default; run `tenure status -A` to list elections"],
    );
    table.row(
        As::Admin,
        "history nothing",
        1,
        &["tenure: election default/nothing with a leases lock does not exist, and no Event is about it; run \
           `tenure status -A` to list elections"],
    );
    table.row(
        As::Admin,
        "doctor nothing --samples=1",
        1,
        &[
            "FAIL     elections   election default/nothing with a leases lock does not exist",
            "skipped  identity    not checked: nobody holds an election, so there are no renewals to watch",
        ],
    );
    table.row(
        As::Admin,
        "doctor --namespace=kube-public --samples=1",
        0,
        &["skipped  elections   no elections in namespace kube-public"],
    );
    // Two locks with the same name are distinguished.
    let record = json!({ "holderIdentity": "old", "leaseDurationSeconds": 15 }).to_string();
    let map = json!({
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": {
            "name": "s", "annotations": { "control-plane.alpha.kubernetes.io/leader": record },
        },
    });
    table.put("/api/v1/namespaces/default/configmaps", &map);
    let status = table.command(As::Admin, &["status", "s"]).output().unwrap();
    let status = String::from_utf8_lossy(&status.stdout).into_owned();
    let cells: Vec<Vec<&str>> = status
        .lines()
        .map(|line| line.split_whitespace().take(2).collect())
        .collect();
    assert!(cells.contains(&vec!["NAME", "LOCK"]), "{status}");
    assert!(cells.contains(&vec!["s", "configmaps"]), "{status}");
    assert!(cells.contains(&vec!["s", "leases"]), "{status}");
}

fn slots_and_jobs(table: &mut Table) {
    table.row(
        As::Admin,
        "run --election=pool --slots=2 --id=a -- true",
        0,
        &[&format!(
            "tenure: campaigning in default/pool for one of 2 slots as a {DURATIONS}"
        )],
    );
    table.row(
        As::Admin,
        "run --election=pool --slots=3 -- true",
        64,
        &["tenure: election default/pool has 2 slots, not 3: use --slots 2, or --resize to change it for everybody"],
    );
    table.row(
        As::Admin,
        "run --election=pool -- true",
        64,
        &["tenure: election default/pool has 2 slots: pass --slots 2, or delete the lease pool-0 if no \
           candidate uses slots any more"],
    );
    table.row(
        As::Admin,
        "run --election=job --once=1h --id=a -- true",
        0,
        &[],
    );
    for _ in 0..4 {
        table.row(
            As::Admin,
            "run --election=job --once=1h --id=b -- true",
            0,
            &["tenure: skipped: a completed job at TIME (--once)"],
        );
    }
    let status = table
        .command(As::Admin, &["status", "job"])
        .output()
        .unwrap();
    let status = String::from_utf8_lossy(&status.stdout).into_owned();
    assert!(!status.contains("flapping"), "{status}");
    let stops = [
        "run",
        "--election=z",
        "--",
        "sh",
        "-c",
        "kill -TSTP $$; sleep 1",
    ];
    let goes_on = "tenure: ignored ^Z: a suspended leader would keep others from leading";
    table.row_of(As::Admin, &stops, 0, &[goes_on]);
}

fn signals(table: &mut Table) {
    let script = "trap '' TERM; echo ready; while :; do sleep 0.1; done";
    let mut stubborn = table.start(&["run", "--election=sig", "--", "sh", "-c", script]);
    table.says(&stubborn, "ready");
    stubborn.terminate();
    std::thread::sleep(Duration::from_millis(500));
    stubborn.terminate();
    _ = stubborn.wait(LIMIT).unwrap();
    table.checked(
        &stubborn,
        &[
            "tenure: second signal: killing the command instead of waiting for it to end",
            "tenure: stopped leading default/sig: received SIGTERM",
            "tenure: released default/sig",
        ],
    );
    let mut hasty = table.start(&["elect", "--election=hasty", "--on-lost=sleep 8"]);
    table.says(&hasty, "leading default/hasty");
    hasty.terminate();
    table.says(&hasty, "stopped leading default/hasty");
    hasty.terminate();
    _ = hasty.wait(LIMIT).unwrap();
    table.checked(
        &hasty,
        &[
            "tenure: stopped leading default/hasty: it was shut down",
            "tenure: exiting without releasing default/hasty; others wait up to 15s",
        ],
    );
}

fn driver(table: &mut Table) {
    let socket = table.folder.path().join("csi.sock");
    let address = format!("--csi-address={}", shown(&socket));
    let provision = table.start(&["provision", &address]);
    table.says(&provision, "still connecting");
    table.checked(
        &provision,
        &["... still connecting to the csi driver socket=DIR/csi.sock error=\"No such file or directory (os error 2)\""],
    );
}

fn shown(path: &Path) -> String {
    path.display().to_string()
}
