//! The page in a real Chromium: `tenure ui`, `tenure elect --http` and `tenure server` serve it.

use std::net::TcpListener;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use http::Method;
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use serde_json::json;
use tenure_tests::clock::{Nanos, poll};
use tenure_tests::embedded::Embedded;
use tenure_tests::event::Kind;
use tenure_tests::home::write_secret;
use tenure_tests::process::Process;
use tenure_tests::wire::{Wire, lease_path, object_path};
use tenure_tests::{Skip, tools};

use crate::seeing::Place;

const LIMIT: Duration = Duration::from_secs(120);

/// A running browser.
struct Browser(Process);

impl Browser {
    fn open(scenario: &str, url: &str, library: &Path) -> Self {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("clients/page.mjs");
        let mut command = Command::new("node");
        command.arg(script).args([scenario, url]).arg(library);
        // Folder for screenshots, if set.
        command.args(std::env::var_os("TENURE_SCREENSHOTS"));
        Self(Process::spawn("browser", command).unwrap())
    }

    /// Returns the rest of the nth line that starts with this text.
    fn line(&self, start: &str, nth: usize) -> String {
        let said = poll(LIMIT, || {
            let lines = self.0.text();
            let own = lines.iter().filter_map(|line| line.strip_prefix(start));
            own.map(|rest| rest.trim().to_owned()).nth(nth)
        });
        said.unwrap_or_else(|| panic!("no {start:?} #{nth}: {}", self.0.text().join("\n")))
    }

    fn ends_well(mut self) {
        let status = self.0.wait(LIMIT).unwrap();
        let said = self.0.text();
        assert!(
            status.success() && said.iter().any(|l| l == "done"),
            "{}",
            said.join("\n")
        );
    }
}

/// Returns the first output of a process that contains `mark`, from there on.
fn said(process: &Process, mark: &str) -> String {
    let found = poll(LIMIT, || {
        let lines = process.text();
        let line = lines.iter().find(|line| line.contains(mark))?;
        Some(line[line.find(mark)?..].to_owned())
    });
    found.unwrap_or_else(|| panic!("no {mark:?}: {}", process.transcript()))
}

#[test]
fn page_shows_the_next_leader_without_reload_and_steps_it_down() {
    let Some(library) = Skip::unless(tools::playwright()) else {
        return;
    };
    let place = Place::new();
    let web = place.election("web");
    let mut candidates = vec![place.leader(&web, "a")];
    candidates.extend(["b", "c"].map(|id| place.follower(&web, id)));
    let mut command = place.command();
    command.arg("ui");
    let ui = Process::spawn("ui", command).unwrap();
    let browser = Browser::open("ui", &said(&ui, "http://"), &library);
    assert_eq!(browser.line("shown ", 0), "a");
    candidates[0].kill();
    let second = browser.line("shown ", 1);
    assert!(["b", "c"].contains(&second.as_str()), "{second}");
    // Only one candidate is left that was neither killed nor ordered to step down.
    let third = browser.line("shown ", 2);
    assert_ne!(third, second);
    browser.ends_well();
    assert!(ui.transcript().contains("^C ends it"));
}

/// Elections on a server, without candidates. Their times are relative to now.
struct Elections {
    server: Embedded,
    admin: Wire,
}

impl Elections {
    fn new() -> Self {
        let server = Embedded::start().unwrap();
        let admin = Wire::connect(&server.kubeconfig()).unwrap();
        Self { server, admin }
    }

    fn add(&self, name: &str, holder: &str, renewed_seconds_ago: i64, lease_seconds: u32) {
        let lease = json!({
            "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
            "metadata": { "name": name },
            "spec": {
                "holderIdentity": holder,
                "leaseDurationSeconds": lease_seconds,
                "leaseTransitions": 4,
                "acquireTime": format!("{:.6}", ago(600)),
                "renewTime": format!("{:.6}", ago(renewed_seconds_ago)),
            },
        });
        self.post(&lease_path("default", ""), &lease);
    }

    /// Writes an Event of a candidate.
    fn record(&self, name: &str, seconds_ago: i64, message: &str, why: Option<&str>) {
        let at = ago(seconds_ago);
        let event = json!({
            "apiVersion": "v1", "kind": "Event",
            "metadata": {
                "name": format!("{name}.{:x}", at.as_microsecond()),
                "annotations": why.map(|why| json!({ "tenure.dev/reason": why })),
            },
            "involvedObject": { "kind": "Lease", "namespace": "default", "name": name },
            "reason": "LeaderElection",
            "message": message,
            "firstTimestamp": format!("{at:.0}"),
            "lastTimestamp": format!("{at:.0}"),
        });
        self.post(&object_path("/api/v1", "default", "events", ""), &event);
    }

    fn post(&self, path: &str, object: &serde_json::Value) {
        let made = self.admin.send(&Method::POST, path, Some(object)).unwrap();
        assert!(made.status.is_success(), "{path}: {}", made.body);
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "the time is only sent, and decides nothing"
)]
fn ago(seconds: i64) -> Timestamp {
    Timestamp::now() - SignedDuration::from_secs(seconds)
}

#[test]
fn page_shows_many_elections_as_a_table_with_problems_first() {
    let Some(library) = Skip::unless(tools::playwright()) else {
        return;
    };
    let elections = Elections::new();
    let names: Vec<String> = (0..12).map(|n| format!("e{n:02}")).collect();
    for name in &names {
        elections.add(name, &format!("{name}-holder"), 0, 3600);
    }
    let long = "l".repeat(63);
    elections.add(&long, &format!("{long}_{long}"), 0, 3600);
    elections.add("w-free", "", 60, 15);
    elections.add("x-paused", "x", 0, 3600);
    let paused = json!({ "metadata": { "annotations": { "tenure.dev/paused": "true" } } });
    let path = lease_path("default", "x-paused");
    let sent = elections.admin.send(&Method::PATCH, &path, Some(&paused));
    assert_eq!(sent.unwrap().status, 200);
    elections.add("z-expired", "z", 120, 15);
    // Two holders end without an Event, and two hand over late.
    let flapping = "y-flapping";
    for (seconds_ago, message, why) in [
        (500, "f0 became leader", None),
        (440, "f0 stopped leading", Some("guard-expired")),
        (425, "f1 became leader", None),
        (330, "f2 became leader", None),
        (240, "f2 stopped leading", Some("shutdown")),
        (225, "f0 became leader", None),
        (100, "f1 became leader", None),
    ] {
        elections.record(flapping, seconds_ago, message, why);
    }
    elections.add(flapping, "f1", 0, 3600);
    let mut command = Command::new(tools::tenure().unwrap());
    let kubeconfig = elections.server.kubeconfig();
    command.arg("ui").arg("--kubeconfig").arg(kubeconfig);
    let ui = Process::spawn("ui", command).unwrap();
    let browser = Browser::open("many", &said(&ui, "http://"), &library);
    browser.line("table", 0);
    for name in names.iter().skip(3) {
        let path = lease_path("default", name);
        let gone = elections.admin.send(&Method::DELETE, &path, None).unwrap();
        assert_eq!(gone.status, 200, "{}", gone.body);
    }
    browser.ends_well();
}

#[test]
fn page_of_a_sidecar_reconnects_after_a_broken_feed() {
    let Some(library) = Skip::unless(tools::playwright()) else {
        return;
    };
    let place = Place::new();
    let web = place.election("web");
    let port = {
        let free = TcpListener::bind("127.0.0.1:0").unwrap();
        free.local_addr().unwrap().port()
    };
    let address = format!("--http=127.0.0.1:{port}");
    let mut first = web.tenure("first", &[&address]).unwrap();
    first.wait_for(Kind::Acquired, Nanos(0), LIMIT).unwrap();
    let browser = Browser::open("sidecar", &format!("http://127.0.0.1:{port}/ui"), &library);
    assert_eq!(browser.line("shown ", 0), "first");
    first.terminate();
    first.wait(LIMIT).unwrap();
    browser.line("stale", 0);
    let _second = web.tenure("second", &[&address]).unwrap();
    assert_eq!(browser.line("shown ", 1), "second");
    browser.ends_well();
}

#[test]
fn page_of_a_server_acts_with_the_permissions_of_its_user() {
    let Some(library) = Skip::unless(tools::playwright()) else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let tokens = folder.path().join("tokens");
    write_secret(&tokens, "s3cret,admin,1,\"system:masters\"\n");
    let kubeconfig = folder.path().join("kubeconfig");
    let mut command = Command::new(tools::tenure().unwrap());
    command.args(["server", "--listen=127.0.0.1:0", "--store=memory"]);
    command.arg("--data-dir").arg(folder.path().join("data"));
    command.arg("--token-auth-file").arg(&tokens);
    command.arg("--write-kubeconfig").arg(&kubeconfig);
    let server = Process::spawn("server", command).unwrap();
    let page = said(&server, "https://");
    let page = said(&server, &format!("page on {page}")).replace("page on ", "");
    let web = tenure_tests::candidate::Election::new(kubeconfig, "web").quick();
    let me = web.tenure("me", &[]).unwrap();
    me.wait_for(Kind::Acquired, Nanos(0), LIMIT).unwrap();
    let browser = Browser::open("server", &page, &library);
    assert_eq!(browser.line("shown ", 0), "me");
    browser.ends_well();
}

#[test]
fn page_is_never_at_the_root_of_a_sidecar() {
    use std::io::{Read, Write};
    use std::net::TcpStream;
    let place = Place::new();
    let port = {
        let free = TcpListener::bind("127.0.0.1:0").unwrap();
        free.local_addr().unwrap().port()
    };
    let web = place.election("web");
    let sidecar = web
        .tenure("me", &[&format!("--http=127.0.0.1:{port}")])
        .unwrap();
    sidecar.wait_for(Kind::Acquired, Nanos(0), LIMIT).unwrap();
    let ask = |method: &str, path: &str, more: &str| -> String {
        let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
        stream.set_read_timeout(Some(LIMIT)).unwrap();
        let head = format!(
            "{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{more}\r\n"
        );
        stream.write_all(head.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    };
    assert!(ask("GET", "/", "").ends_with(r#"{"name":"me"}"#));
    let page = ask("GET", "/ui", "").to_lowercase();
    assert!(page.starts_with("http/1.1 200"), "{page}");
    for header in [
        "content-type: text/html",
        "content-security-policy: default-src 'none'; script-src 'sha256-",
        "x-content-type-options: nosniff",
        "referrer-policy: no-referrer",
    ] {
        assert!(page.contains(header), "no {header}");
    }
    let order = "/ui/step-down?namespace=default&name=web&lock=leases";
    assert!(ask("POST", order, "").starts_with("HTTP/1.1 401"));
    assert!(ask("POST", order, "Authorization: Bearer x\r\n").starts_with("HTTP/1.1 401"));
    assert!(ask("GET", order, "").starts_with("HTTP/1.1 405"));
    assert!(ask("GET", "/ui/../etc/passwd", "").starts_with("HTTP/1.1 404"));
}
