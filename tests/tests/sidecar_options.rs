//! The flags of `tenure elect` that have no other test, and what it answers while an election changes hands or
//! the API server is lost.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde_json::Value;
use tenure_tests::clock::{Nanos, now, poll};
use tenure_tests::event::Kind;
use tenure_tests::home::Home;
use tenure_tests::process::Process;

use crate::sidecar::{free_port, request};

const LIMIT: Duration = Duration::from_secs(120);

const QUICK: [&str; 6] = [
    "elect",
    "--election=e",
    "--events=json",
    "--lease-duration=4s",
    "--renew-deadline=2s",
    "--retry-period=300ms",
];

fn start(home: &Home, id: &str, flags: &[&str]) -> Process {
    let mut command = home.command();
    command.args(QUICK).arg(format!("--id={id}")).args(flags);
    Process::spawn(id, command).unwrap()
}

fn leads(process: &Process, since: Nanos) {
    let led = process.wait_for(Kind::Acquired, since, LIMIT);
    led.unwrap_or_else(|silence| panic!("{silence}"));
}

/// Asks to step down; the code of the answer.
fn step_down(mut stream: impl Read + Write, token: Option<&str>) -> u16 {
    let token = token.map_or(String::new(), |token| {
        format!("Authorization: Bearer {token}\r\n")
    });
    let head =
        "POST /v1/step-down HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 0\r\n";
    write!(stream, "{head}{token}\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer.split(' ').nth(1).unwrap().parse().unwrap()
}

#[test]
fn sidecar_options_step_down_by_http_and_by_socket_is_seen_by_everybody() {
    let home = Home::new();
    fs::write(home.path("token"), "s3cret\n").unwrap();
    let (port, other) = (free_port(), free_port());
    let token = "--step-down-token-file=token";
    let notes = "--on-change=echo $TENURE_LEADER_ID >> changes";
    let first = start(
        &home,
        "first",
        &[&format!("--http=127.0.0.1:{port}"), token, notes],
    );
    leads(&first, Nanos(0));
    let second = start(
        &home,
        "second",
        &[&format!("--http=127.0.0.1:{other}"), token],
    );
    second.wait_for(Kind::Observed, Nanos(0), LIMIT).unwrap();
    let tcp = |port: u16| TcpStream::connect(("127.0.0.1", port)).unwrap();
    let mut stream = tcp(other);
    stream.set_read_timeout(Some(LIMIT)).unwrap();
    write!(stream, "GET /v1/watch HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
    let lines = BufReader::new(stream).lines().map_while(Result::ok);
    let mut leaders = lines.filter_map(|line| {
        let event: Value = serde_json::from_str(line.strip_prefix("data: ")?).ok()?;
        event["leader"].as_str().map(str::to_owned)
    });
    assert_eq!(
        leaders.next().as_deref(),
        Some("first"),
        "the present value"
    );
    assert_eq!(step_down(tcp(port), None), 403);
    assert_eq!(step_down(tcp(port), Some("guess")), 403);
    assert_eq!(
        step_down(tcp(other), Some("s3cret")),
        409,
        "it does not lead"
    );
    let asked = now();
    assert_eq!(step_down(tcp(port), Some("s3cret")), 202);
    leads(&second, asked);
    assert!(leaders.any(|leader| leader == "second"), "every change");
    let changes = || {
        let text = fs::read_to_string(home.path("changes")).unwrap_or_default();
        (text.lines().next() == Some("first") && text.ends_with("second\n")).then_some(())
    };
    assert!(
        poll(LIMIT, changes).is_some(),
        "{:?}",
        fs::read_to_string(home.path("changes"))
    );
    // Whoever can open the socket needs no token.
    drop(first);
    let third = start(&home, "third", &["--http=unix:socket"]);
    third.wait_for(Kind::Observed, Nanos(0), LIMIT).unwrap();
    let socket = || UnixStream::connect(home.path("socket")).unwrap();
    assert_eq!(step_down(socket(), None), 409);
    let asked = now();
    assert_eq!(step_down(tcp(other), Some("s3cret")), 202);
    leads(&third, asked);
    assert_eq!(step_down(socket(), None), 202);
    third.wait_for(Kind::Released, asked, LIMIT).unwrap();
}

#[test]
fn sidecar_options_fitness_and_what_is_left_behind() {
    let home = Home::new();
    // A program beside that says how it is.
    let program = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!(
        "--health-url=http://{}/healthz",
        program.local_addr().unwrap()
    );
    let well = Arc::new(AtomicBool::new(false));
    let is_well = well.clone();
    std::thread::spawn(move || {
        for mut stream in program.incoming().map_while(Result::ok) {
            let _ = stream.read(&mut [0; 1024]);
            let code = if is_well.load(Ordering::SeqCst) {
                "200 OK"
            } else {
                "503 No"
            };
            let _ = write!(
                stream,
                "HTTP/1.1 {code}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
            );
        }
    });
    let flags = [url.as_str(), "--health-interval=100ms", "--release-on-exit"];
    let checked = start(&home, "checked", &flags);
    let early = checked.wait_for(Kind::Acquired, Nanos(0), Duration::from_secs(1));
    assert!(early.is_err(), "not before the program is well");
    well.store(true, Ordering::SeqCst);
    leads(&checked, Nanos(0));
    well.store(false, Ordering::SeqCst);
    checked.wait_for(Kind::Released, Nanos(0), LIMIT).unwrap();
    drop(checked);
    // There is no pod to label, and it is told not to lead without.
    let unlabelled = start(
        &home,
        "unlabelled",
        &["--label", "--label-required", "--preflight=off"],
    );
    leads(&unlabelled, Nanos(0));
    unlabelled
        .wait_for(Kind::Released, Nanos(0), LIMIT)
        .unwrap();
    drop(unlabelled);
    let mut keeper = start(&home, "keeper", &["--release-on-exit=false"]);
    leads(&keeper, Nanos(0));
    keeper.terminate();
    assert_eq!(keeper.wait(LIMIT).unwrap().code(), Some(0));
    let rows = home.tenure(&["status", "e", "-o", "json"]);
    let rows: Value = serde_json::from_slice(&rows.stdout).unwrap();
    assert_eq!(rows[0]["holder"], "keeper", "nothing was given back");
}

#[test]
fn sidecar_options_a_leader_without_an_api_server_says_so() {
    let home = Home::new();
    let port = free_port();
    let leader = start(&home, "me", &[&format!("--http=127.0.0.1:{port}")]);
    leads(&leader, Nanos(0));
    assert_eq!(request(port, "GET", "/").unwrap().1, r#"{"name":"me"}"#);
    assert!(home.tenure(&["server", "stop"]).status.success());
    let becomes = |path: &str, wanted: (u16, &str)| {
        let answer = || request(port, "GET", path);
        let seen = poll(LIMIT, || {
            let (code, body) = answer()?;
            (code == wanted.0 && body.contains(wanted.1)).then_some(())
        });
        assert!(seen.is_some(), "{path}: {:?}", answer());
    };
    becomes("/", (200, r#"{"name":""}"#));
    becomes("/v1/is-leader", (503, ""));
    becomes("/v1/leader", (503, r#""state":"disconnected""#));
    // As client-go has it: a lease that is still its own was not renewed for 20 s more than it lasts.
    becomes("/livez", (500, "[-]leaderElection failed: reason withheld"));
}

#[test]
fn sidecar_options_of_other_programs_are_hinted_at() {
    let home = Home::new();
    for (line, code, hint) in [
        (
            "elect --election=e --leader-elect-lease-duration=15s",
            2,
            "there is no --leader-elect-lease-duration; here it is --lease-duration",
        ),
        (
            "elect --election=e --port=4040",
            2,
            "here it is --http=:PORT",
        ),
        (
            "run --election=e --timeout=3s -- true",
            64,
            "here it is --wait",
        ),
        (
            "run --election=e --limit 3 -- true",
            64,
            "here it is --slots",
        ),
    ] {
        let output = home.tenure(&line.split(' ').collect::<Vec<_>>());
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(code), "{line}: {said}");
        assert!(
            said.contains(hint) && said.lines().count() == 1,
            "{line}: {said}"
        );
    }
}
