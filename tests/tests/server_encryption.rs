//! `tenure server --encryption-key-file` as a process: no Secret in any file, no start without the key, rotation of keys,
//! and restored backups.

use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Output;
use std::time::Duration;

use http::{Method, StatusCode};
use serde_json::{Value, json};
use tenure_tests::Skip;
use tenure_tests::clock::poll;
use tenure_tests::home::Home;
use tenure_tests::process::Process;
use tenure_tests::real::{Etcd, Peer, available};
use tenure_tests::wire::Wire;

const LIMIT: Duration = Duration::from_secs(180);

const SECRETS: &str = "/api/v1/namespaces/default/secrets";
/// The base64 of a password, as it is stored.
const PASSWORD: &str = "aHVudGVyMi1wYXNzd29yZC1vZi1hLXRlc3Q=";
const OTHER: &str = "YW5vdGhlci1wYXNzd29yZC1vZi1hLXRlc3Q=";

fn text(output: &Output) -> String {
    let (out, err) = (&output.stdout, &output.stderr);
    format!(
        "{}{}",
        String::from_utf8_lossy(out),
        String::from_utf8_lossy(err)
    )
}

/// Runs `tenure server ARGS` to its end, which must be a success.
fn server(home: &Home, args: &[&str]) -> String {
    let output = home.tenure(&[&["server"], args].concat());
    assert!(output.status.success(), "{args:?}: {}", text(&output));
    text(&output)
}

/// Runs `tenure server ARGS` to its end, which must be an error and not a panic.
fn refused(home: &Home, args: &[&str]) -> String {
    let output = home.tenure(&[&["server"], args].concat());
    let said = text(&output);
    assert_eq!(output.status.code(), Some(1), "{args:?}: {said}");
    assert!(!said.contains("panicked"), "{said}");
    said
}

/// A running server on the data directory `data`.
struct Running {
    process: Process,
    data: PathBuf,
    wire: Wire,
}

impl Running {
    fn start(home: &Home, options: &[&str]) -> Self {
        let data = home.path("data");
        let mut command = home.command();
        command.args(["server", "run", "--data-dir=data", "--listen=127.0.0.1:0"]);
        let process = Process::spawn("server", command_with(command, options)).unwrap();
        let pid = process.pid();
        let kubeconfig = poll(LIMIT, || {
            let file = std::fs::read(data.join("server.json")).ok()?;
            let instance: Value = serde_json::from_slice(&file).ok()?;
            // The file of a killed server is still there.
            (instance["pid"] == pid).then(|| instance["kubeconfig"].as_str().map(PathBuf::from))?
        });
        let kubeconfig = kubeconfig.unwrap_or_else(|| panic!("no start: {}", process.transcript()));
        let wire = Wire::connect(&home.path(kubeconfig)).unwrap();
        Self {
            process,
            data,
            wire,
        }
    }

    fn create(&self, name: &str, password: &str) {
        let body = json!({"metadata": {"name": name}, "data": {"password": password}});
        let answer = self.wire.send(&Method::POST, SECRETS, Some(&body)).unwrap();
        assert_eq!(answer.status, StatusCode::CREATED, "{}", answer.body);
    }

    /// Returns the stored password of a Secret.
    fn password(&self, name: &str) -> String {
        let answer = self.wire.get(&format!("{SECRETS}/{name}")).unwrap();
        assert_eq!(answer.status, StatusCode::OK, "{}", answer.body);
        answer.body["data"]["password"].as_str().unwrap().to_owned()
    }

    fn stop(mut self) {
        self.process.terminate();
        self.process.wait(LIMIT).unwrap();
    }

    /// Kills the server with SIGKILL.
    fn kill(mut self) {
        self.process.kill();
        self.process.wait(LIMIT).unwrap();
    }
}

fn command_with(mut command: std::process::Command, options: &[&str]) -> std::process::Command {
    command.args(options);
    command
}

/// Returns the files below a folder that contain a text.
fn files_with(folder: &Path, text: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(files_with(&path, text));
        } else if path.is_file() {
            let bytes = std::fs::read(&path).unwrap();
            if bytes
                .windows(text.len())
                .any(|part| part == text.as_bytes())
            {
                found.push(path);
            }
        }
    }
    found
}

/// Creates a key file and returns the id of its key.
fn new_key(home: &Home, file: &str) -> String {
    let said = server(home, &["new-key", file]);
    let id = said.split_whitespace().nth(1).unwrap().to_owned();
    assert_eq!(id.len(), 16, "{said}");
    id
}

/// Writes a file with the keys of two files.
fn join(home: &Home, first: &str, second: &str, file: &str) {
    let text = [first, second].map(|name| std::fs::read(home.path(name)).unwrap());
    // A copy keeps the mode.
    std::fs::copy(home.path(first), home.path(file)).unwrap();
    std::fs::write(home.path(file), text.concat()).unwrap();
}

#[test]
fn server_encryption_survives_kills_rotation_and_restore() {
    let home = Home::new();
    let old = new_key(&home, "old.keys");
    let mode = std::fs::metadata(home.path("old.keys")).unwrap();
    assert_eq!(mode.permissions().mode() & 0o777, 0o600);
    let said = refused(&home, &["new-key", "old.keys"]);
    assert!(said.contains("old.keys exists"), "{said}");

    let key = "--encryption-key-file=old.keys";
    let running = Running::start(&home, &[key]);
    running.create("a", PASSWORD);
    let data = running.data.clone();
    server(&home, &["backup", "--data-dir=data", "live.backup"]);
    assert!(files_with(&home.path(""), PASSWORD).is_empty());
    running.kill();
    assert!(files_with(&home.path(""), PASSWORD).is_empty());

    // Without the key and with another key, nothing starts, and the data stay as they are.
    let new = new_key(&home, "new.keys");
    let run = ["run", "--data-dir=data", "--listen=127.0.0.1:0"];
    let needed = format!("secrets default/a is encrypted with key {old}");
    let said = refused(&home, &run);
    assert!(said.contains(&needed), "{said}");
    assert!(said.contains("--encryption-key-file FILE"), "{said}");
    let wrong = "--encryption-key-file=new.keys";
    let said = refused(&home, &[&run[..], &[wrong]].concat());
    assert!(
        said.contains(&needed) && said.contains("which is not in new.keys"),
        "{said}"
    );
    let said = refused(&home, &["backup", "--data-dir=data", "stopped.backup"]);
    assert!(said.contains(&needed), "{said}");

    let running = Running::start(&home, &[key]);
    assert_eq!(running.password("a"), PASSWORD);
    join(&home, "new.keys", "old.keys", "both.keys");
    let both = "--encryption-key-file=both.keys";
    let said = refused(&home, &["rotate-keys", "--data-dir=data", both]);
    assert!(said.contains("stop it first"), "{said}");
    running.stop();

    // A server with both keys writes with the first one.
    let running = Running::start(&home, &[both]);
    assert_eq!(running.password("a"), PASSWORD);
    running.create("b", OTHER);
    running.stop();
    let said = refused(&home, &["rotate-keys", "--data-dir=data", wrong]);
    assert!(said.contains(&needed), "{said}");
    let said = server(&home, &["rotate-keys", "--data-dir=data", both]);
    let counts = format!("1 rewritten, 2 encrypted with key {new}");
    assert!(said.contains(&counts), "{said}");
    let said = server(&home, &["rotate-keys", "--data-dir=data", both]);
    assert!(said.contains("0 rewritten, 2 encrypted"), "{said}");

    // The old key is not needed any more, except for the old backup.
    let running = Running::start(&home, &[wrong]);
    assert_eq!(running.password("a"), PASSWORD);
    assert_eq!(running.password("b"), OTHER);
    running.stop();
    server(&home, &["backup", "--data-dir=data", wrong, "new.backup"]);
    let said = refused(&home, &["restore", "--data-dir=data", wrong, "live.backup"]);
    assert!(said.contains(&needed), "{said}");
    let said = refused(&home, &["restore", "--data-dir=data", "new.backup"]);
    assert!(
        said.contains(&format!("is encrypted with key {new}")),
        "{said}"
    );
    server(&home, &["restore", "--data-dir=data", both, "live.backup"]);
    let running = Running::start(&home, &[both]);
    assert_eq!(running.password("a"), PASSWORD);
    running.stop();
    server(&home, &["restore", "--data-dir=data", wrong, "new.backup"]);
    let said = server(&home, &["rotate-keys", "--data-dir=data", wrong]);
    assert!(
        said.contains(".before-"),
        "copies of restores are named: {said}"
    );
    let running = Running::start(&home, &[wrong]);
    assert_eq!(running.password("b"), OTHER);
    running.stop();
    for password in [PASSWORD, OTHER] {
        assert!(files_with(&home.path(""), password).is_empty());
    }
    assert!(data.join("store.redb").exists());
}

#[test]
fn server_encryption_takes_over_data_in_clear_text() {
    let home = Home::new();
    let running = Running::start(&home, &[]);
    running.create("a", PASSWORD);
    running.stop();
    assert_eq!(files_with(&home.path("data"), PASSWORD).len(), 1);
    new_key(&home, "keys");
    let key = "--encryption-key-file=keys";
    let running = Running::start(&home, &[key]);
    assert_eq!(running.password("a"), PASSWORD);
    let warned = poll(LIMIT, || {
        running
            .process
            .transcript()
            .contains("rotate-keys")
            .then_some(())
    });
    assert!(warned.is_some(), "{}", running.process.transcript());
    running.stop();
    let said = server(&home, &["rotate-keys", "--data-dir=data", key]);
    assert!(said.contains("1 rewritten, 1 encrypted"), "{said}");
    assert!(files_with(&home.path("data"), PASSWORD).is_empty());

    // All objects, and none. Names of objects are not encrypted, but their fields are.
    let said = server(
        &home,
        &["rotate-keys", "--data-dir=data", key, "--encrypt=all"],
    );
    assert!(!said.contains(" 0 rewritten"), "{said}");
    assert!(files_with(&home.path("data"), "roleRef").is_empty());
    let running = Running::start(&home, &[key, "--encrypt=all"]);
    assert_eq!(running.password("a"), PASSWORD);
    running.stop();
    let said = server(
        &home,
        &["rotate-keys", "--data-dir=data", key, "--encrypt=none"],
    );
    assert!(said.contains("none encrypted"), "{said}");
    let running = Running::start(&home, &[]);
    assert_eq!(running.password("a"), PASSWORD);
    running.stop();
}

#[test]
fn server_encryption_rejects_an_open_key_file() {
    let home = Home::new();
    new_key(&home, "keys");
    let open = std::fs::Permissions::from_mode(0o644);
    std::fs::set_permissions(home.path("keys"), open).unwrap();
    let run = ["run", "--data-dir=data", "--listen=127.0.0.1:0"];
    let said = refused(&home, &[&run[..], &["--encryption-key-file=keys"]].concat());
    assert!(said.contains("run `chmod 600 keys`"), "{said}");
    let said = refused(
        &home,
        &[&run[..], &["--encryption-key-file=absent"]].concat(),
    );
    assert!(said.contains("absent"), "{said}");
    let said = refused(&home, &[&run[..], &["--encrypt=all"]].concat());
    assert!(said.contains("--encryption-key-file FILE"), "{said}");
    let said = refused(&home, &["rotate-keys", "--data-dir=data"]);
    assert!(said.contains("--encryption-key-file FILE"), "{said}");
    assert!(!home.path("data/store.redb").exists());
}

#[test]
fn server_encryption_rotates_in_etcd_while_the_server_runs() {
    if Skip::unless(available(&[Peer::Etcd])).is_none() {
        return;
    }
    let etcd = Etcd::start().unwrap();
    let home = Home::new();
    new_key(&home, "old.keys");
    let new = new_key(&home, "new.keys");
    join(&home, "new.keys", "old.keys", "both.keys");
    let store = format!("--store=etcd={}", etcd.url());
    let running = Running::start(&home, &[&store, "--encryption-key-file=old.keys"]);
    running.create("a", PASSWORD);
    running.stop();
    let both = "--encryption-key-file=both.keys";
    let running = Running::start(&home, &[&store, both]);
    let said = server(&home, &["rotate-keys", &store, both]);
    // The Secret, and the keys that servers share.
    assert!(
        said.contains(&format!("2 rewritten, 1 encrypted with key {new}")),
        "{said}"
    );
    assert_eq!(running.password("a"), PASSWORD);
    running.stop();
    let run = ["run", "--data-dir=data", "--listen=127.0.0.1:0", &store];
    let said = refused(
        &home,
        &[&run[..], &["--encryption-key-file=old.keys"]].concat(),
    );
    assert!(
        said.contains(&format!("is encrypted with key {new}")),
        "{said}"
    );
    let running = Running::start(&home, &[&store, "--encryption-key-file=new.keys"]);
    assert_eq!(running.password("a"), PASSWORD);
    running.stop();
}
