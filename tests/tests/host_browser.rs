//! Requests that a web page makes a browser send to listeners of this machine.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use http::Method;
use serde_json::json;
use tenure_tests::clock::{Nanos, poll};
use tenure_tests::event::Kind;
use tenure_tests::home::{Home, write_secret};
use tenure_tests::process::Process;
use tenure_tests::wire::Wire;

use crate::sidecar::free_port;

const LIMIT: Duration = Duration::from_secs(120);
const MAPS: &str = "/api/v1/namespaces/default/configmaps";

/// Sends a request with these headers, and returns the response.
fn send(mut stream: impl Read + Write, line: &str, headers: &[&str], body: &str) -> String {
    let headers: String = headers
        .iter()
        .map(|header| format!("{header}\r\n"))
        .collect();
    let length = body.len();
    let end = format!("Connection: close\r\nContent-Length: {length}\r\n\r\n{body}");
    write!(stream, "{line} HTTP/1.1\r\n{headers}{end}").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

#[track_caller]
fn expect(answer: &str, code: u16, text: &str) {
    let wanted = format!("HTTP/1.1 {code} ");
    assert!(
        answer.starts_with(&wanted) && answer.contains(text),
        "{answer}"
    );
}

fn tcp(port: u16) -> TcpStream {
    let stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    stream.set_read_timeout(Some(LIMIT)).unwrap();
    stream
}

#[test]
fn host_browser_pages_cannot_use_a_server_without_authorization() {
    let home = Home::new();
    let port = free_port();
    let mut command = home.command();
    command
        .args(["server", "--listen=127.0.0.1:0", "--store=memory"])
        .args(["--authorization-mode=AlwaysAllow", "--tls-san=name.example"])
        .args(["--unix-socket=socket", "--write-kubeconfig=config"])
        .arg(format!("--insecure-listen=127.0.0.1:{port}"));
    let server = Process::spawn("server", command).unwrap();
    let up = poll(LIMIT, || {
        let lines = server.text();
        lines.iter().any(|l| l.contains("page on")).then_some(())
    });
    assert!(up.is_some(), "{}", server.transcript());
    let said = server.transcript();
    assert!(
        said.contains("warning: --authorization-mode=AlwaysAllow"),
        "{said}"
    );
    let plain = format!("warning: http://127.0.0.1:{port} is not encrypted");
    assert!(said.contains(&plain), "{said}");

    for host in [
        &format!("127.0.0.1:{port}"),
        &format!("localhost:{port}"),
        "[::1]",
        "kubernetes.default.svc",
        "name.example",
    ] {
        let host = format!("Host: {host}");
        expect(
            &send(tcp(port), "GET /version", &[&host], ""),
            200,
            "gitVersion",
        );
    }
    for path in ["/version", "/ui", MAPS] {
        let line = format!("GET {path}");
        let answer = send(tcp(port), &line, &["Host: evil.example"], "");
        expect(&answer, 403, "add the name with --tls-san");
    }
    let own = format!("Host: 127.0.0.1:{port}");
    let post = |name: &str, more: &[&str]| {
        let body =
            format!(r#"{{"apiVersion":"v1","kind":"ConfigMap","metadata":{{"name":"{name}"}}}}"#);
        let headers = [&[own.as_str(), "Content-Type: application/json"], more].concat();
        send(tcp(port), &format!("POST {MAPS}"), &headers, &body)
    };
    for header in [
        "Origin: http://evil.example",
        "Origin: null",
        "Sec-Fetch-Site: cross-site",
        "Sec-Fetch-Site: same-site",
    ] {
        expect(
            &post("evil", &[header]),
            403,
            "a web page of another origin",
        );
    }
    expect(&post("curl", &[]), 201, "");
    let origin = format!("Origin: http://127.0.0.1:{port}");
    expect(
        &post("page", &[&origin, "Sec-Fetch-Site: same-origin"]),
        201,
        "",
    );
    expect(&post("old-browser", &[&origin]), 201, "");

    // No browser can open the socket file, and client-go sends no such headers over TLS.
    let socket = UnixStream::connect(home.path("socket")).unwrap();
    expect(
        &send(socket, "GET /version", &["Host: evil.example"], ""),
        200,
        "",
    );
    let wire = Wire::connect(&home.path("config")).unwrap();
    let object = json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": "tls" } });
    let made = wire.send(&Method::POST, MAPS, Some(&object)).unwrap();
    assert_eq!(made.status.as_u16(), 201, "{}", made.body);
    let page = [("origin", "https://evil.example")];
    let made = wire.send_with(&Method::POST, MAPS, &page, Some(&object));
    assert_eq!(made.unwrap().status.as_u16(), 403);
}

#[test]
fn host_browser_pages_cannot_use_a_sidecar_on_loopback() {
    let home = Home::new();
    let (port, open) = (free_port(), free_port());
    write_secret(home.path("token"), "s3cret");
    let start = |id: &str, http: &str, flags: &[&str]| {
        let mut command = home.command();
        command
            .args(["elect", "--election=e", "--events=json"])
            .args([&format!("--id={id}"), &format!("--http={http}")])
            .args(flags);
        Process::spawn(id, command).unwrap()
    };
    let flags = [
        "--allowed-host=name.example",
        "--step-down-token-file=token",
    ];
    let first = start("a", &format!("127.0.0.1:{port}"), &flags);
    first.wait_for(Kind::Acquired, Nanos(0), LIMIT).unwrap();
    let second = start("b", &format!("0.0.0.0:{open}"), &[]);
    second.wait_for(Kind::Observed, Nanos(0), LIMIT).unwrap();
    for host in ["127.0.0.1", "localhost", "name.example"] {
        let host = format!("Host: {host}:{port}");
        expect(&send(tcp(port), "GET /v1/leader", &[&host], ""), 200, "");
    }
    for path in ["/", "/ui", "/ui/feed", "/sse", "/metrics"] {
        let answer = send(
            tcp(port),
            &format!("GET {path}"),
            &["Host: evil.example"],
            "",
        );
        expect(&answer, 403, "add the name with --allowed-host");
    }
    let order = "POST /v1/step-down";
    let headers = ["Host: localhost", "Origin: http://evil.example"];
    expect(&send(tcp(port), order, &headers, ""), 403, "a web page");
    let service = ["Host: e.default.svc"];
    expect(&send(tcp(open), "GET /v1/leader", &service, ""), 200, "");
    let known = ["Host: localhost", "Authorization: Bearer s3cret"];
    expect(&send(tcp(port), order, &known, ""), 202, "");
}

#[test]
fn host_browser_pages_cannot_use_the_page_of_a_user() {
    let home = Home::new();
    let mut command = home.command();
    command.args(["ui", "--allowed-host=name.example"]);
    let ui = Process::spawn("ui", command).unwrap();
    let port: u16 = poll(LIMIT, || {
        let lines = ui.text();
        let line = lines
            .iter()
            .find_map(|l| l.strip_prefix("http://127.0.0.1:"))?;
        line.split('/').next()?.parse().ok()
    })
    .unwrap_or_else(|| panic!("{}", ui.transcript()));
    for host in ["127.0.0.1", "localhost", "name.example"] {
        let host = format!("Host: {host}:{port}");
        expect(&send(tcp(port), "GET /ui", &[&host], ""), 200, "<html");
    }
    let answer = send(tcp(port), "GET /ui", &["Host: evil.example"], "");
    expect(&answer, 403, "add the name with --allowed-host");
}
