//! `tenure server` as a process: one server per directory, backup and restore.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::process::{Command, Output};
use std::time::Duration;

use tenure_tests::clock::poll;
use tenure_tests::home::Home;
use tenure_tests::process::Process;

const LIMIT: Duration = Duration::from_secs(40);

fn text(output: &Output) -> String {
    let (out, err) = (&output.stdout, &output.stderr);
    format!(
        "{}{}",
        String::from_utf8_lossy(out),
        String::from_utf8_lossy(err)
    )
}

/// Runs a command while leading and returns the token of its term.
fn token(home: &Home) -> u64 {
    let output = home.tenure(&[
        "run",
        "--election=e",
        "--",
        "sh",
        "-c",
        "echo $TENURE_FENCING_TOKEN",
    ]);
    assert!(output.status.success(), "{}", text(&output));
    String::from_utf8_lossy(&output.stdout)
        .trim()
        .parse()
        .unwrap()
}

#[test]
fn server_command_restores_what_it_saved_and_never_reuses_a_revision() {
    let home = Home::new();
    token(&home);
    let saved = home.tenure(&["server", "backup", "live.backup"]);
    assert!(saved.status.success(), "{}", text(&saved));
    let last = token(&home);
    assert!(home.tenure(&["server", "stop"]).status.success());
    let saved = home.tenure(&["server", "backup", "stopped.backup"]);
    assert!(saved.status.success(), "{}", text(&saved));
    let restored = home.tenure(&["server", "restore", "live.backup"]);
    assert!(restored.status.success(), "{}", text(&restored));
    assert!(
        token(&home) > last,
        "the token goes on above all that were ever given"
    );
}

#[test]
fn server_command_refuses_a_directory_in_use() {
    let home = Home::new();
    token(&home);
    let status = home.tenure(&["server", "status"]);
    let instance: serde_json::Value = serde_json::from_slice(&status.stdout).unwrap();
    let second = home.tenure(&["server", "run", "--listen=127.0.0.1:0"]);
    assert_eq!(second.status.code(), Some(1), "{}", text(&second));
    assert!(
        text(&second).contains(&instance["pid"].to_string()),
        "{}",
        text(&second)
    );
    let restore = home.tenure(&["server", "restore", "nothing"]);
    assert!(
        text(&restore).contains("stop it first"),
        "{}",
        text(&restore)
    );
}

#[test]
fn server_command_ends_cleanly_when_asked() {
    let home = Home::new();
    token(&home);
    let status = home.tenure(&["server", "status"]);
    let instance: serde_json::Value = serde_json::from_slice(&status.stdout).unwrap();
    let ended = Command::new("kill")
        .arg(instance["pid"].to_string())
        .status()
        .unwrap();
    assert!(ended.success());
    let gone = || (home.tenure(&["server", "status"]).status.code() == Some(1)).then_some(());
    assert!(poll(LIMIT, gone).is_some());
    assert!(token(&home) > 0, "the next one starts on the same data");
}

#[test]
fn server_command_carries_ten_thousand_idle_connections() {
    const CONNECTIONS: usize = 10_000;
    let home = Home::new();
    raise_file_limit(CONNECTIONS as u64 + 500);
    let mut command = home.command();
    command.args([
        "server",
        "run",
        "--listen=127.0.0.1:0",
        "--insecure-listen=127.0.0.1:0",
        "--store=memory",
    ]);
    let server = Process::spawn("server", command).unwrap();
    let instance = poll(LIMIT, || {
        let status = home.tenure(&["server", "status"]);
        serde_json::from_slice::<serde_json::Value>(&status.stdout).ok()
    });
    let instance = instance.expect("the server starts");
    let address = instance["insecureUrl"].as_str().unwrap();
    let address = address.trim_start_matches("http://");
    let memory = || server.resident_bytes().unwrap();
    let before = memory();
    let idle: Vec<TcpStream> = (0..CONNECTIONS)
        .map(|_| TcpStream::connect(address).unwrap())
        .collect();
    for _ in 0..10 {
        let mut client = TcpStream::connect(address).unwrap();
        let request = b"GET /version HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n";
        client.write_all(request).unwrap();
        let mut answer = String::new();
        client.read_to_string(&mut answer).unwrap();
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    }
    let each = memory().saturating_sub(before) / CONNECTIONS as u64;
    assert!(each < 20_000, "{each} bytes for an idle connection");
    assert_eq!(idle.len(), CONNECTIONS);
}

/// As far as the system allows it.
fn raise_file_limit(wanted: u64) {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    if limit.current.is_some_and(|current| current < wanted) {
        let current = Some(wanted);
        let maximum = limit.maximum;
        setrlimit(Resource::Nofile, Rlimit { current, maximum }).expect("ten thousand files");
    }
}
