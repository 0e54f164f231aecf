//! The flags of `tenure elect` without another test, and its responses during hand-overs and while the API server is
//! unreachable.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use http::Method;
use serde_json::{Value, json};
use tenure_tests::clock::{Nanos, now, poll};
use tenure_tests::embedded::Embedded;
use tenure_tests::event::Kind;
use tenure_tests::home::{Home, write_secret};
use tenure_tests::process::Process;
use tenure_tests::wire::Wire;

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

/// Requests a step-down. Returns the code of the response.
fn step_down(mut stream: impl Read + Write, token: Option<&str>) -> u16 {
    let token = token.map_or(String::new(), |token| {
        format!("Authorization: Bearer {token}\r\n")
    });
    let head = "POST /v1/step-down HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: 0\r\n";
    write!(stream, "{head}{token}\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer.split(' ').nth(1).unwrap().parse().unwrap()
}

#[test]
fn sidecar_options_step_down_by_http_and_socket_is_observed_by_all() {
    let home = Home::new();
    write_secret(home.path("token"), "s3cret\n");
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
    write!(stream, "GET /v1/watch HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
    let lines = BufReader::new(stream).lines().map_while(Result::ok);
    let mut leaders = lines.filter_map(|line| {
        let event: Value = serde_json::from_str(line.strip_prefix("data: ")?).ok()?;
        event["leader"].as_str().map(str::to_owned)
    });
    assert_eq!(
        leaders.next().as_deref(),
        Some("first"),
        "the current value"
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
    // A process that can open the socket needs no token.
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
fn sidecar_options_control_health_labels_and_release() {
    let home = Home::new();
    // Another program in the pod that reports its health.
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
    assert!(early.is_err(), "it leads only after the program is healthy");
    well.store(true, Ordering::SeqCst);
    leads(&checked, Nanos(0));
    well.store(false, Ordering::SeqCst);
    checked.wait_for(Kind::Released, Nanos(0), LIMIT).unwrap();
    drop(checked);
    // There is no pod to label, so the leader releases the lease because of `--label-required`.
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
    assert_eq!(rows[0]["holder"], "keeper", "the lease was not released");
}

#[test]
fn sidecar_options_a_leader_without_an_api_server_reports_it() {
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
    // As in client-go: the process still holds the lease but has not renewed it for 20 s longer than its duration.
    becomes("/livez", (500, "[-]leaderElection failed: reason withheld"));
}

#[test]
fn sidecar_options_of_other_sidecars_are_rejected_with_a_hint() {
    let home = Home::new();
    for (line, code, hint) in [
        (
            "elect --election=e --leader-elect-lease-duration=15s",
            2,
            "unknown flag --leader-elect-lease-duration; use --lease-duration",
        ),
        ("elect --election=e --port=4040", 2, "; use --http=:PORT"),
        ("run --election=e --timeout=3s -- true", 64, "; use --wait"),
        ("run --election=e --limit 3 -- true", 64, "; use --slots"),
        (
            "--csi-address=/csi/csi.sock --v=5",
            2,
            "--csi-address is a flag of `tenure provision`: put `provision` before the flags",
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

/// Other programs in the pod are notified by signal and by hook, and a release waits for them.
#[test]
fn sidecar_options_other_programs_are_notified_and_awaited() {
    let home = Home::new();
    // Signals are sent by process name, so this name must be unique. Another process writes the file: this process
    // forks, and a file that a child still has open for writing cannot be executed.
    let name = format!("beside-{}", std::process::id());
    let script =
        "#!/bin/sh\ntrap 'echo told >> told' USR1; echo > up; while :; do sleep 0.05; done";
    let write = "printf '%s\\n' \"$1\" > \"$2\"; chmod +x \"$2\"";
    let mut writer = Command::new("sh");
    writer
        .args(["-c", write, "sh", script])
        .arg(home.path(&name));
    assert!(writer.status().unwrap().success());
    let mut beside = Command::new(home.path(&name));
    beside.current_dir(home.path(""));
    let beside = Process::spawn("beside", beside).unwrap();
    let exists = |name: &str| {
        let seen = poll(LIMIT, || home.path(name).exists().then_some(()));
        assert!(seen.is_some(), "no {name}");
    };
    exists("up");
    let port = free_port();
    let mut leader = start(
        &home,
        "me",
        &[
            &format!("--signal-process={name}:USR1"),
            &format!("--http=127.0.0.1:{port}"),
            "--state-file=state",
            "--on-elected=echo $TENURE_URL $TENURE_STATE_FILE > places.part; mv places.part places",
            "--release-delay=1500ms",
        ],
    );
    leads(&leader, Nanos(0));
    exists("told");
    exists("places");
    let places = fs::read_to_string(home.path("places")).unwrap();
    assert_eq!(places, format!("http://127.0.0.1:{port}/ state\n"));
    fs::remove_file(home.path("told")).unwrap();
    leader.terminate();
    assert_eq!(leader.wait(LIMIT).unwrap().code(), Some(0));
    exists("told");
    let at = |kind: Kind| leader.last_of(&[kind]).unwrap().t;
    let took = at(Kind::Released).since(at(Kind::Lost));
    assert!(took >= Duration::from_millis(1400), "{took:?}");
    // With `--wait-pid` the release waits until the program has ended, even longer than the lease would last without
    // renewals.
    let mut leader = start(&home, "me", &[&format!("--wait-pid={}", beside.pid())]);
    leads(&leader, Nanos(0));
    leader.terminate();
    std::thread::sleep(Duration::from_secs(6));
    let rows = home.tenure(&["status", "e", "-o", "json"]);
    let rows: Value = serde_json::from_slice(&rows.stdout).unwrap();
    let row = (&rows[0]["holder"], &rows[0]["state"]);
    assert_eq!(row, (&"me".into(), &"held".into()));
    assert!(leader.last_of(&[Kind::Lost]).is_none());
    drop(beside);
    leader.wait_for(Kind::Released, Nanos(0), LIMIT).unwrap();
    assert_eq!(leader.wait(LIMIT).unwrap().code(), Some(0));
}

#[test]
fn sidecar_options_names_failures_and_values() {
    let home = Home::new();
    // `/v1/leader` contains the random part of an identity. `/` contains it only if requested.
    for (format, whole) in [("short", false), ("full", true)] {
        let port = free_port();
        let mut command = home.command();
        command.args(QUICK).arg(format!("--election={format}"));
        command.arg(format!("--http=127.0.0.1:{port}"));
        command.arg(format!("--name-format={format}"));
        let process = Process::spawn(format, command).unwrap();
        leads(&process, Nanos(0));
        let field = |path: &str, key: &str| -> String {
            let body = request(port, "GET", path).unwrap().1;
            let body: Value = serde_json::from_str(&body).unwrap();
            body[key].as_str().unwrap().to_owned()
        };
        let (name, leader) = (field("/", "name"), field("/v1/leader", "leader"));
        assert!(
            leader.starts_with(&format!("{name}_")) || whole,
            "{name} {leader}"
        );
        assert_eq!(name == leader, whole, "{name} {leader}");
    }
    // The leader tolerates the configured number of failures.
    fs::write(home.path("well"), "").unwrap();
    let checked = start(
        &home,
        "checked",
        &[
            "--health-cmd=test -e well || { echo x >> failures; false; }",
            "--health-interval=50ms",
            "--health-failures=20",
            "--on-lost=wc -l < failures > counted",
        ],
    );
    leads(&checked, Nanos(0));
    fs::remove_file(home.path("well")).unwrap();
    checked.wait_for(Kind::Released, Nanos(0), LIMIT).unwrap();
    let counted = fs::read_to_string(home.path("counted")).unwrap();
    assert!(counted.trim().parse::<u32>().unwrap() >= 20, "{counted}");
    // The values of the label are configurable.
    let server = Embedded::start().unwrap();
    let admin = Wire::connect(&server.kubeconfig()).unwrap();
    let pods = "/api/v1/namespaces/default/pods";
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": { "name": "p" },
        "spec": { "containers": [{ "name": "c", "image": "i" }] },
    });
    let created = admin.send(&Method::POST, pods, Some(&pod)).unwrap();
    assert!(created.status.is_success(), "{}", created.body);
    let mut command = home.command();
    command
        .env("KUBECONFIG", server.kubeconfig())
        .env("POD_NAME", "p");
    command
        .args(QUICK)
        .args(["--label=role", "--label-values=leader/standby"]);
    let labelled = Process::spawn("labelled", command).unwrap();
    let becomes = |value: &str| {
        let label = || {
            let pod = admin.get(&format!("{pods}/p")).unwrap().body;
            pod["metadata"]["labels"]["role"].clone()
        };
        let seen = poll(LIMIT, || (label() == value).then_some(()));
        assert!(seen.is_some(), "{} instead of {value}", label());
    };
    becomes("leader");
    labelled.terminate();
    becomes("standby");
}

#[test]
fn sidecar_options_failed_webhook_is_retried() {
    let home = Home::new();
    let receiver = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("--webhook=http://{}/hook", receiver.local_addr().unwrap());
    let _leader = start(&home, "me", &[&url]);
    // One request per connection, with the event in its body.
    let post = |answer: &str| -> Value {
        let (mut stream, _) = receiver.accept().unwrap();
        stream.set_read_timeout(Some(LIMIT)).unwrap();
        let (mut text, mut chunk) = (String::new(), [0; 4096]);
        loop {
            let read = stream.read(&mut chunk).unwrap();
            assert_ne!(read, 0, "{text}");
            text += &String::from_utf8_lossy(&chunk[..read]);
            let body = text.split_once("\r\n\r\n").map_or("", |(_, body)| body);
            if let Ok(body) = serde_json::from_str(body) {
                let close = "Content-Length: 0\r\nConnection: close\r\n\r\n";
                write!(stream, "HTTP/1.1 {answer}\r\n{close}").unwrap();
                return body;
            }
        }
    };
    let first = post("503 Not Now");
    assert_eq!(first["leader"], "me");
    assert_eq!(post("500 Still Not"), first, "the same event again");
    assert_eq!(
        post("204 No Content"),
        first,
        "until the webhook accepts it"
    );
    let second = post("204 No Content");
    assert_ne!(second["event"], first["event"], "then the next event");
}
