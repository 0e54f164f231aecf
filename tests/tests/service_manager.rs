//! Reports to a service manager. The test is the service manager: it binds the socket that `NOTIFY_SOCKET` names.

use std::io::Write as _;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use http::Method;
use serde_json::json;
use tenure_tests::clock::{self, poll};
use tenure_tests::embedded::Embedded;
use tenure_tests::home::Home;
use tenure_tests::process::Process;
use tenure_tests::tools;
use tenure_tests::wire::{Wire, lease_path};

const LIMIT: Duration = Duration::from_secs(60);

/// Longer than two intervals of a watchdog in these tests.
const WHILE: Duration = Duration::from_secs(1);

const QUICK: [&str; 4] = [
    "--lease-duration=4s",
    "--renew-deadline=2s",
    "--retry-period=300ms",
    "--election=e",
];

/// The assignments that Tenure may send.
const KEYS: [&str; 4] = ["READY=1", "STATUS=", "STOPPING=1", "WATCHDOG=1"];

/// A service manager.
struct Manager {
    socket: UnixDatagram,
    address: String,
    reports: Vec<String>,
}

impl Manager {
    fn new(socket: UnixDatagram, address: String) -> Self {
        let reports = Vec::new();
        Self {
            socket,
            address,
            reports,
        }
    }

    fn at(path: &Path) -> Self {
        let socket = UnixDatagram::bind(path).unwrap();
        Self::new(socket, path.display().to_string())
    }

    fn abstract_at(name: &str) -> Self {
        let address = SocketAddr::from_abstract_name(name).unwrap();
        let socket = UnixDatagram::bind_addr(&address).unwrap();
        Self::new(socket, format!("@{name}"))
    }

    fn start(&self, name: &str, mut command: Command) -> Process {
        command.env("NOTIFY_SOCKET", &self.address);
        Process::spawn(name, command).unwrap()
    }

    /// Reads one report; `None` if there is none in time.
    fn next(&mut self, limit: Duration) -> Option<String> {
        self.socket
            .set_read_timeout(Some(limit.max(Duration::from_millis(1))))
            .unwrap();
        let mut bytes = [0; 4_096];
        let length = self.socket.recv(&mut bytes).ok()?;
        let report = String::from_utf8(bytes[..length].to_vec()).unwrap();
        for line in report.lines() {
            assert!(KEYS.iter().any(|key| line.starts_with(key)), "{report}");
        }
        self.reports.push(report.clone());
        Some(report)
    }

    /// Waits for a report that contains this text.
    fn wait_for(&mut self, text: &str) -> String {
        let end = clock::now() + LIMIT;
        while let Some(report) = self.next(end.since(clock::now())) {
            if report.contains(text) {
                return report;
            }
        }
        panic!("no report with {text:?}: {:?}", self.reports);
    }

    fn drain(&mut self) {
        while self.next(Duration::from_millis(1)).is_some() {}
    }

    fn count(&self, text: &str) -> usize {
        let reports = self.reports.iter();
        reports.filter(|report| report.contains(text)).count()
    }
}

/// Returns the names of the variables that a child has written with `env`.
fn environment(home: &Home) -> String {
    let written = || {
        let text = std::fs::read_to_string(home.path("env")).ok()?;
        text.contains("PATH=").then_some(text)
    };
    poll(LIMIT, written).expect("the child wrote its environment")
}

fn assert_hidden(environment: &str) {
    for variable in ["NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"] {
        assert!(!environment.contains(variable), "{environment}");
    }
}

#[test]
fn service_manager_hears_of_every_state_of_run_and_its_command_does_not_know_it() {
    let home = Home::new();
    let mut manager = Manager::at(&home.path("notify"));
    let mut command = home.command();
    command
        .env("WATCHDOG_USEC", "100000")
        .env("WATCHDOG_PID", "1")
        .arg("run")
        .args(QUICK)
        .args(["--", "sh", "-c", "env > env; exec sleep 1000"]);
    let mut run = manager.start("run", command);
    let first = manager.wait_for("STATUS=");
    assert!(
        first.starts_with("READY=1\nSTATUS=campaigning in default/e as "),
        "{first}"
    );
    manager.wait_for("STATUS=leading default/e, fencing token ");
    assert_hidden(&environment(&home));
    run.terminate();
    manager.wait_for("STOPPING=1");
    manager.wait_for("STATUS=stopped leading default/e: received SIGTERM");
    manager.wait_for("STATUS=released default/e");
    run.wait(LIMIT).unwrap();
    manager.drain();
    assert_eq!(manager.count("READY=1"), 1, "{:?}", manager.reports);
    assert_eq!(manager.count("STOPPING=1"), 1, "{:?}", manager.reports);
    // The variable names the watchdog of another process.
    assert_eq!(manager.count("WATCHDOG=1"), 0, "{:?}", manager.reports);
}

/// Every candidate can write its identity, and a line break would separate two assignments.
#[test]
fn service_manager_at_an_abstract_address_gets_no_assignment_of_a_foreign_holder() {
    let server = Embedded::start().unwrap();
    let admin = Wire::connect(&server.kubeconfig()).unwrap();
    let lease = json!({
        "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
        "metadata": { "name": "e", "namespace": "default" },
        "spec": {
            "holderIdentity": "other\nMAINPID=1", "leaseDurationSeconds": 3600,
            "acquireTime": "2026-01-01T00:00:00.000000Z", "renewTime": "2026-01-01T00:00:00.000000Z",
        },
    });
    let made = admin.send(&Method::POST, &lease_path("default", ""), Some(&lease));
    assert!(made.unwrap().status.is_success());
    let home = Home::new();
    let mut manager = Manager::abstract_at(&format!("tenure-{}", std::process::id()));
    let mut command = home.command();
    command
        .env("KUBECONFIG", server.kubeconfig())
        .args(["elect", "-n", "default", "--health-cmd=env > env"])
        .args(QUICK);
    let mut elect = manager.start("elect", command);
    manager.wait_for("READY=1\nSTATUS=campaigning in default/e as ");
    let waits = manager.wait_for("STATUS=waiting");
    assert_eq!(waits, "STATUS=waiting: other\\nMAINPID=1 holds default/e");
    assert_hidden(&environment(&home));
    elect.terminate();
    manager.wait_for("STOPPING=1");
    assert_eq!(elect.wait(LIMIT).unwrap().code(), Some(0));
}

#[test]
fn service_manager_waits_until_the_server_serves() {
    let home = Home::new();
    let mut manager = Manager::at(&home.path("notify"));
    let mut command = home.command();
    command
        .env("WATCHDOG_USEC", "100000")
        .args(["server", "run", "--listen=127.0.0.1:0"]);
    let mut server = manager.start("server", command);
    let ready = manager.wait_for("READY=1");
    let address = ready
        .trim()
        .strip_prefix("READY=1\nSTATUS=serving on https://");
    std::net::TcpStream::connect(address.expect("its address")).unwrap();
    for _ in 0..5 {
        manager.wait_for("WATCHDOG=1");
    }
    // Commands of the same unit do not speak for the server.
    let status = home
        .command()
        .env("NOTIFY_SOCKET", &manager.address)
        .args(["server", "status"])
        .output()
        .unwrap();
    assert!(status.status.success());
    server.terminate();
    manager.wait_for("STOPPING=1");
    assert_eq!(server.wait(LIMIT).unwrap().code(), Some(0));
    manager.drain();
    assert_eq!(manager.count("READY=1"), 1, "{:?}", manager.reports);
}

#[test]
fn service_manager_watchdog_starves_while_run_is_stopped() {
    let home = Home::new();
    let mut manager = Manager::at(&home.path("notify"));
    let mut command = home.command();
    command
        .env("WATCHDOG_USEC", "200000")
        .arg("run")
        .args(["--election=e", "--", "sleep", "1000"]);
    let mut run = manager.start("run", command);
    // The watchdog is fed while it waits and while it leads.
    manager.wait_for("WATCHDOG=1");
    manager.wait_for("STATUS=leading");
    for _ in 0..3 {
        manager.wait_for("WATCHDOG=1");
    }
    run.stop();
    manager.drain();
    assert_eq!(manager.next(WHILE), None);
    run.resume();
    manager.wait_for("WATCHDOG=1");
    run.terminate();
    run.wait(LIMIT).unwrap();
}

#[test]
fn service_manager_that_is_missing_does_not_prevent_anything() {
    let home = Home::new();
    for address in ["/nowhere/notify", "@tenure-nowhere", "vsock:2:1", ""] {
        let output = home
            .command()
            .env("NOTIFY_SOCKET", address)
            .args(["run", "--election=e", "--", "true"])
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(0), "{address:?}: {said}");
        let warned = said.matches("cannot report to the service manager").count();
        assert_eq!(warned, 1, "{address:?}: {said}");
    }
}

/// With `--without-election` the command replaces `tenure`, so it is the main process of the unit.
#[test]
fn service_manager_is_known_to_a_command_that_replaces_run() {
    let home = Home::new();
    let output = home
        .command()
        .env("NOTIFY_SOCKET", "@tenure-replaced")
        .args(["run", "--election=e", "--without-election", "--"])
        .args(["sh", "-c", "echo $NOTIFY_SOCKET"])
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert_eq!(said, "@tenure-replaced\n");
}

/// Returns the file name and the text of each unit, with the built program in place of the installed one.
fn units() -> Vec<(PathBuf, String)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/systemd");
    let program = tools::tenure().unwrap();
    let entries = std::fs::read_dir(folder).unwrap().flatten();
    let mut units: Vec<(PathBuf, String)> = entries
        .map(|entry| {
            let text = std::fs::read_to_string(entry.path()).unwrap();
            let installed = "ExecStart=/usr/local/bin/tenure ";
            assert!(text.contains(installed), "{entry:?}");
            let built = format!("ExecStart={} ", program.display());
            let name = entry.file_name().into_string().unwrap();
            let name = name.replace('@', "@example");
            (name.into(), text.replace(installed, &built))
        })
        .collect();
    units.sort();
    units
}

#[test]
fn service_manager_units_start_accepted_command_lines() {
    let units = units();
    let names: Vec<&str> = units.iter().map(|unit| unit.0.to_str().unwrap()).collect();
    assert_eq!(names, ["tenure-server.service", "tenure@example.service"]);
    for (name, text) in units {
        let line = text
            .lines()
            .find_map(|line| line.strip_prefix("ExecStart="));
        let mut words = line.unwrap().split(' ');
        let program = words.next().unwrap();
        let words = words.take_while(|word| !["--", "$FLAGS"].contains(word));
        let words = words.map(|word| word.replace("%i", "example").replace("%S", "/var/lib"));
        let help = Command::new(program).args(words).arg("--help").output();
        assert!(help.unwrap().status.success(), "{}", name.display());
    }
}

#[test]
fn service_manager_units_are_valid() {
    let version = Command::new("systemd-analyze").arg("--version").output();
    if !version.is_ok_and(|output| output.status.success()) {
        _ = writeln!(std::io::stderr(), "skipped: no systemd-analyze");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    for (name, text) in units() {
        let unit = folder.path().join(&name);
        std::fs::write(&unit, text).unwrap();
        let checked = Command::new("systemd-analyze")
            .args(["verify", "--man=no", "--recursive-errors=no"])
            .arg(&unit)
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&checked.stderr);
        let about_it = said.contains(name.to_str().unwrap());
        assert!(checked.status.success() && !about_it, "{said}");
    }
}
