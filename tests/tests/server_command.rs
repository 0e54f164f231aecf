//! `tenure server` as a process: one server per directory, backup and restore.

use std::process::{Command, Output};
use std::time::Duration;

use tenure_tests::clock::poll;
use tenure_tests::home::Home;

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
