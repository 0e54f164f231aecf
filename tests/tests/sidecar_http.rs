//! The HTTP responses of the sidecar, as a table: codes, content types, keys, and its event stream.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use serde_json::Value;
use tenure_tests::clock::{Nanos, poll};
use tenure_tests::event::Kind;
use tenure_tests::home::Home;
use tenure_tests::process::Process;

use crate::sidecar::free_port;

const LIMIT: Duration = Duration::from_secs(120);

/// The keys of `/v1/leader` and of every event of the stream.
const KEYS: [&str; 14] = [
    "election",
    "namespace",
    "lock",
    "leader",
    "self",
    "isLeader",
    "term",
    "fencingToken",
    "acquireTime",
    "renewTime",
    "leaseDurationSeconds",
    "observedAt",
    "validForMillis",
    "state",
];

fn start(home: &Home, id: &str, port: u16, flags: &[&str]) -> Process {
    let mut command = home.command();
    command
        .args(["elect", "--election=e", "--events=json"])
        .args(["--lease-duration=4s", "--renew-deadline=2s"])
        .args(["--retry-period=300ms", &format!("--id={id}")])
        .arg(format!("--http=127.0.0.1:{port}"))
        .args(flags);
    Process::spawn(id, command).unwrap()
}

struct Answer {
    code: u16,
    headers: BTreeMap<String, String>,
    body: String,
}

fn ask(port: u16, method: &str, path: &str) -> Answer {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    stream.set_read_timeout(Some(LIMIT)).unwrap();
    let end = "Host: localhost\r\nConnection: close\r\nContent-Length: 0\r\n\r\n";
    write!(stream, "{method} {path} HTTP/1.1\r\n{end}").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    let headers = head
        .lines()
        .skip(1)
        .filter_map(|line| line.split_once(": "));
    Answer {
        code: head.split(' ').nth(1).unwrap().parse().unwrap(),
        headers: headers
            .map(|(name, value)| (name.to_lowercase(), value.to_owned()))
            .collect(),
        body: body.to_owned(),
    }
}

const JSON: &str = "application/json";
const PLAIN: &str = "text/plain";
const OK: Option<&str> = Some("ok");

/// A request, its code, its content type, and its body if it is constant.
type Row = (&'static str, u16, &'static str, Option<&'static str>);

/// Checks the responses of a sidecar against a table.
#[track_caller]
fn has_answers(port: u16, table: &[Row]) {
    for &(line, code, kind, body) in table {
        let (method, path) = line.split_once(' ').unwrap();
        let answer = ask(port, method, path);
        assert_eq!(answer.code, code, "{line}: {}", answer.body);
        let given = &answer.headers["content-type"];
        assert!(given.starts_with(kind), "{line}: {given}");
        assert_eq!(answer.headers["cache-control"], "no-store", "{line}");
        if let Some(body) = body {
            assert_eq!(answer.body, body, "{line}");
        }
    }
}

fn keys(text: &str) -> BTreeSet<String> {
    let object: BTreeMap<String, Value> = serde_json::from_str(text).unwrap();
    object.into_keys().collect()
}

/// Returns the lines of an event stream.
fn stream(port: u16, path: &str, last: Option<&str>) -> impl Iterator<Item = String> {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    stream.set_read_timeout(Some(LIMIT)).unwrap();
    let last = last.map_or(String::new(), |id| format!("Last-Event-ID: {id}\r\n"));
    write!(
        stream,
        "GET {path} HTTP/1.1\r\nHost: localhost\r\n{last}\r\n"
    )
    .unwrap();
    BufReader::new(stream).lines().map_while(Result::ok)
}

#[test]
fn sidecar_http_responses_equal_the_table() {
    let home = Home::new();
    let (at, other) = (free_port(), free_port());
    let leader = start(&home, "me", at, &[]);
    leader.wait_for(Kind::Acquired, Nanos(0), LIMIT).unwrap();
    let follower = start(&home, "other", other, &["--compat=true"]);
    follower.wait_for(Kind::Observed, Nanos(0), LIMIT).unwrap();
    let follows = poll(LIMIT, || {
        (ask(other, "GET", "/").body == r#"{"name":"me"}"#).then_some(())
    });
    assert!(follows.is_some(), "{}", follower.transcript());
    let (name, leads) = (Some(r#"{"name":"me"}"#), Some(r#"{"leader":"me"}"#));
    has_answers(
        at,
        &[
            ("GET /", 200, JSON, name),
            ("HEAD /", 200, JSON, Some("")),
            ("POST /", 405, PLAIN, None),
            ("DELETE /x", 405, PLAIN, None),
            ("GET /x", 404, PLAIN, None),
            ("GET /v1/leader", 200, JSON, None),
            ("POST /v1/leader", 405, PLAIN, None),
            ("GET /v1/is-leader", 200, JSON, leads),
            ("GET /leader", 200, JSON, leads),
            ("GET /ready", 200, JSON, leads),
            ("GET /livez", 200, PLAIN, OK),
            ("GET /healthz", 200, PLAIN, OK),
            ("GET /readyz", 200, PLAIN, OK),
            ("GET /metrics", 200, PLAIN, None),
            ("POST /v1/step-down", 403, PLAIN, None),
        ],
    );
    has_answers(
        other,
        &[
            ("GET /", 200, JSON, name),
            ("POST /", 200, JSON, name),
            ("GET /x", 200, JSON, name),
            ("DELETE /x", 200, JSON, name),
            ("GET /v1/leader", 200, JSON, None),
            ("GET /v1/is-leader", 503, JSON, leads),
            ("GET /leader", 503, JSON, leads),
            ("GET /ready", 503, JSON, leads),
            ("GET /readyz", 200, PLAIN, OK),
        ],
    );
    let all: BTreeSet<String> = KEYS.map(str::to_owned).into();
    for port in [at, other] {
        assert_eq!(keys(&ask(port, "GET", "/v1/leader").body), all);
    }
    let metrics = ask(at, "GET", "/metrics").body;
    for line in [
        r#"leader_election_master_status{name="e"} 1"#,
        r#"leader_election_slowpath_total{name="e"} "#,
    ] {
        assert!(metrics.contains(line), "{line}: {metrics}");
    }
}

#[test]
fn sidecar_http_streams_terms_and_keeps_idle_streams_alive() {
    let home = Home::new();
    let port = free_port();
    let leader = start(&home, "me", port, &[]);
    leader.wait_for(Kind::Acquired, Nanos(0), LIMIT).unwrap();
    let all: BTreeSet<String> = KEYS.map(str::to_owned).into();
    // A client that reconnects also gets the current value, regardless of the last event that it received.
    for (path, last) in [("/sse", None), ("/v1/watch", None), ("/sse", Some("0"))] {
        let mut lines = stream(port, path, last);
        let head: Vec<String> = lines.by_ref().take_while(|line| !line.is_empty()).collect();
        let head = head.join("\n").to_lowercase();
        for wanted in ["content-type: text/event-stream", "cache-control: no-store"] {
            assert!(head.contains(wanted), "{head}");
        }
        let id = lines.find(|line| line.starts_with("id: ")).unwrap();
        let data = lines.next().unwrap();
        let data = data.strip_prefix("data: ").unwrap();
        assert_eq!(keys(data), all);
        let data: Value = serde_json::from_str(data).unwrap();
        assert_eq!(id, format!("id: {}", data["term"]));
        assert_eq!(data["leader"], "me");
    }
    // Without changes, a comment shows that the stream is alive.
    let alive = stream(port, "/sse", None).any(|line| line.starts_with(": "));
    assert!(alive, "{}", leader.transcript());
}
