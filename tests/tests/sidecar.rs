//! `tenure elect` as a drop-in for the old sidecar: its command lines, its responses, its hand-over.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::process::CommandExt;
use std::process::{Child, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tenure_tests::clock::poll;
use tenure_tests::home::Home;

const LIMIT: Duration = Duration::from_secs(40);

/// Starts the old command line under the old name.
pub(crate) fn sidecar(home: &Home, args: &[&str]) -> Sidecar {
    let port = free_port();
    let mut command = home.command();
    command
        .arg0("leader-elector")
        .arg(format!("--http=127.0.0.1:{port}"))
        .args(args);
    Sidecar {
        child: command.stdout(Stdio::piped()).spawn().unwrap(),
        port,
    }
}

pub(crate) struct Sidecar {
    pub(crate) child: Child,
    port: u16,
}

impl Sidecar {
    pub(crate) fn request(&self, method: &str, path: &str) -> Option<(u16, String)> {
        request(self.port, method, path)
    }

    /// Sends a request to another port of the same sidecar.
    pub(crate) fn at(&self, port: u16, path: &str) -> Option<(u16, String)> {
        request(port, "GET", path)
    }

    pub(crate) fn get(&self, path: &str) -> (u16, String) {
        self.request("GET", path)
            .unwrap_or_else(|| panic!("no answer for {path}"))
    }

    /// Waits until `/` names this leader.
    pub(crate) fn shows(&self, leader: &str) {
        let expected = format!(r#"{{"name":"{leader}"}}"#);
        let seen = poll(LIMIT, || {
            self.request("GET", "/")
                .filter(|(_, body)| *body == expected)
        });
        assert!(
            seen.is_some(),
            "expected {expected}, got {:?}",
            self.request("GET", "/")
        );
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }
}

/// Returns code and body of a response, or `None` if there is no response.
pub(crate) fn request(port: u16, method: &str, path: &str) -> Option<(u16, String)> {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).ok()?;
    stream
        .set_read_timeout(Some(Duration::from_secs(5)))
        .unwrap();
    write!(
        stream,
        "{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    )
    .ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    let (head, body) = answer.split_once("\r\n\r\n")?;
    Some((head.split(' ').nth(1)?.parse().ok()?, body.to_owned()))
}

impl Drop for Sidecar {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub(crate) fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap()
        .port()
}

#[test]
fn sidecar_answers_as_the_old_one_did() {
    let home = Home::new();
    let sidecar = sidecar(&home, &["--election=example", "--id=me"]);
    sidecar.shows("me");
    for path in ["/", "/x", "/any/path"] {
        assert_eq!(
            sidecar.get(path),
            (200, r#"{"name":"me"}"#.to_owned()),
            "{path}"
        );
    }
    assert_eq!(sidecar.request("POST", "/").unwrap().0, 200);
    assert_eq!(sidecar.request("HEAD", "/").unwrap(), (200, String::new()));
    let (code, body) = sidecar.get("/v1/leader");
    let answer: Value = serde_json::from_str(&body).unwrap();
    assert_eq!(
        (code, &answer["leader"], &answer["isLeader"]),
        (200, &"me".into(), &true.into())
    );
    assert!(
        answer["fencingToken"]
            .as_str()
            .unwrap()
            .parse::<u64>()
            .is_ok()
    );
    for path in ["/livez", "/healthz", "/readyz"] {
        assert_eq!(sidecar.get(path), (200, "ok".to_owned()), "{path}");
    }
    assert_eq!(
        sidecar.request("POST", "/v1/step-down").unwrap().0,
        403,
        "not without a token"
    );
}

#[test]
fn sidecar_followers_report_every_new_leader() {
    let home = Home::new();
    let timing = [
        "--election=e",
        "--lease-duration=4s",
        "--renew-deadline=2s",
        "--retry-period=300ms",
    ];
    let start = |id: &str| sidecar(&home, &[&timing[..], &[&format!("--id={id}")]].concat());
    let first = start("first");
    first.shows("first");
    let second = start("second");
    second.shows("first");
    assert_eq!(second.get("/v1/is-leader").0, 503);
    assert_eq!(first.get("/v1/is-leader").0, 200);
    let third = start("third");
    third.shows("first");
    // After a graceful end the next one leads immediately, after a crash when the lease has expired.
    first.signal(Signal::TERM);
    let next = || {
        let (_, body) = second.request("GET", "/")?;
        ["second", "third"].into_iter().find(|id| body.contains(id))
    };
    let leader = poll(LIMIT, next).expect("a new leader");
    let (leading, other, survivor) = if leader == "second" {
        (&second, &third, "third")
    } else {
        (&third, &second, "second")
    };
    other.shows(leader);
    leading.signal(Signal::KILL);
    other.shows(survivor);
}

#[test]
fn sidecar_streams_the_current_value_first() {
    let home = Home::new();
    let sidecar = sidecar(&home, &["--election=e", "--id=me"]);
    sidecar.shows("me");
    let mut stream = TcpStream::connect(("127.0.0.1", sidecar.port)).unwrap();
    stream.set_read_timeout(Some(LIMIT)).unwrap();
    write!(stream, "GET /sse HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
    let data = BufReader::new(stream)
        .lines()
        .map_while(Result::ok)
        .find_map(|line| line.strip_prefix("data: ").map(str::to_owned))
        .expect("an event");
    let event: Value = serde_json::from_str(&data).unwrap();
    assert_eq!(event["leader"], "me");
}

#[test]
fn sidecar_reports_errors_with_their_exit_codes() {
    let home = Home::new();
    let busy = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("--http={}", busy.local_addr().unwrap());
    let cases: [(&[&str], i32, &str); 4] = [
        (&["--election=e", "--id=x", &address], 5, "cannot listen on"),
        (&["--http=:0"], 2, "--election"),
        (&["--election=e", "--http=nonsense"], 2, "is not an address"),
        (
            &["elect", "--election=e", "--ttl=1s"],
            3,
            "must fit into lease duration 1s",
        ),
    ];
    for (args, expected, text) in cases {
        let output = home
            .command()
            .args(args)
            .stderr(Stdio::piped())
            .output()
            .unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(expected), "{args:?}: {stderr}");
        assert!(stderr.contains(text), "{args:?}: {stderr}");
    }
}

#[test]
fn sidecar_prints_the_role_it_needs() {
    let home = Home::new();
    let output = home
        .command()
        .args([
            "elect",
            "--election=web",
            "--election-namespace=shop",
            "--lock=configmapsleases",
        ])
        .arg("--print-rbac")
        .output()
        .unwrap();
    let role = String::from_utf8_lossy(&output.stdout);
    for line in [
        "namespace: shop",
        "resources: [configmaps]",
        "resources: [leases]",
        "resourceNames: [\"web\"]",
    ] {
        assert!(role.contains(line), "{role}");
    }
    assert!(
        !role.contains("ClusterRole") && !role.contains('*'),
        "{role}"
    );
}
