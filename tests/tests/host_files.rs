//! Owners and modes of files with secrets, and of the data directory.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, chown, symlink};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, Output};
use std::time::Duration;

use tenure_tests::clock::{Nanos, poll};
use tenure_tests::event::Kind;
use tenure_tests::home::{Home, write_secret};
use tenure_tests::process::Process;
use tenure_tests::tools;

use crate::sidecar::free_port;

const LIMIT: Duration = Duration::from_secs(120);

/// A user that has no other files on this machine.
const STRANGER: u32 = 54_321;

fn set(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o7777
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Runs `tenure`, which must refuse, and returns the command between backquotes in its error.
#[track_caller]
fn refused(home: &Home, args: &[&str]) -> String {
    let Output { status, stderr, .. } = home.tenure(args);
    let text = String::from_utf8_lossy(&stderr).into_owned();
    assert!(!status.success(), "{args:?}: {text}");
    let command = text.split('`').nth(1);
    command.unwrap_or_else(|| panic!("{text}")).to_owned()
}

/// Starts a server in a folder and waits until it serves.
fn serve(mut command: Command, flags: &[&str]) -> Process {
    command.args(["server", "--listen=127.0.0.1:0"]).args(flags);
    let server = Process::spawn("server", command).unwrap();
    let up = poll(LIMIT, || {
        let lines = server.text();
        lines.iter().any(|l| l.contains("serving on")).then_some(())
    });
    assert!(up.is_some(), "{}", server.transcript());
    server
}

fn stop(mut server: Process) -> String {
    server.terminate();
    server.wait(LIMIT).unwrap();
    server.transcript()
}

#[test]
fn host_files_loose_secrets_are_refused_with_the_command_that_corrects_them() {
    let home = Home::new();
    let tokens = home.path("tokens");
    fs::write(&tokens, "secret,alice,1\n").unwrap();
    let serving = ["server", "--listen=127.0.0.1:0", "--store=memory"];
    let server = [
        &serving[..],
        &["--data-dir=data", "--token-auth-file=tokens"],
    ]
    .concat();
    let key = [
        &serving[..],
        &["--data-dir=data", "--service-account-key-file=old.key"],
    ]
    .concat();
    let pem = "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n";
    fs::write(home.path("old.key"), pem).unwrap();
    set(&home.path("old.key"), 0o640);
    assert_eq!(refused(&home, &key), "chmod 600 old.key");
    let port = free_port();
    let http = format!("--http=127.0.0.1:{port}");
    let elect = [
        "elect",
        "--election=e",
        &http,
        "--step-down-token-file=tokens",
    ];
    for (mode, args) in [(0o644, &server[..]), (0o620, &server), (0o604, &elect)] {
        set(&tokens, mode);
        assert_eq!(refused(&home, args), "chmod 600 tokens", "{mode:o}");
    }
    if is_root() {
        set(&tokens, 0o600);
        chown(&tokens, Some(STRANGER), None).unwrap();
        for args in [&server[..], &elect] {
            assert_eq!(refused(&home, args), "chown 0 tokens");
        }
        chown(&tokens, Some(0), None).unwrap();
    }
    write_secret(&tokens, "secret,alice,1\n");
    set(&tokens, 0o600);
    stop(serve(home.command(), &server[2..]));
}

#[test]
fn host_files_data_directory_belongs_to_one_user() {
    let home = Home::new();
    let data = home.path("data");
    let flags = ["--data-dir=data"];
    fs::create_dir(&data).unwrap();
    set(&data, 0o777);
    // The folder is still empty, so its mode is corrected.
    let said = stop(serve(home.command(), &flags));
    assert!(said.contains("removed the access of other users"), "{said}");
    assert_eq!(mode(&data), 0o700);

    // Files of an earlier version, or after a copy.
    for name in [
        "token",
        "sa.key",
        "pki/ca.key",
        "pki/server.key",
        "store.redb",
    ] {
        set(&data.join(name), 0o644);
    }
    set(&data, 0o755);
    let said = stop(serve(home.command(), &flags));
    assert!(said.contains("removed the access of other users"), "{said}");
    for name in [
        "token",
        "sa.key",
        "pki/ca.key",
        "pki/server.key",
        "store.redb",
    ] {
        assert_eq!(mode(&data.join(name)), 0o600, "{name}");
    }
    assert_eq!(mode(&data), 0o700);

    let path = data.canonicalize().unwrap();
    for action in ["run", "status", "token", "stop"] {
        set(&data, 0o1777);
        let command = refused(
            &home,
            &["server", action, "--data-dir", path.to_str().unwrap()],
        );
        assert_eq!(command, format!("chmod 700 {}", path.display()), "{action}");
        if is_root() {
            set(&data, 0o700);
            chown(&data, Some(STRANGER), None).unwrap();
            let command = refused(&home, &["server", action, "--data-dir=data"]);
            assert_eq!(command, "chown 0 data", "{action}");
            chown(&data, Some(0), None).unwrap();
        }
    }
    // Another user cannot make a command use its server.
    set(&data, 0o777);
    let mut command = home.command();
    command.env("TENURE_DATA_DIR", &data).args(["status"]);
    let output = command.output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        !output.status.success() && text.contains("chmod 700"),
        "{text}"
    );
    set(&data, 0o700);
}

#[test]
fn host_files_of_kubernetes_volumes_are_accepted() {
    if !is_root() {
        eprintln!("skipped: only root can create the files of a volume");
        return;
    }
    // A Secret with the default mode, as the kubelet mounts it.
    let home = Home::new();
    let volume = home.path("volume");
    fs::create_dir_all(volume.join("..2026_01")).unwrap();
    fs::write(volume.join("..2026_01/token"), "s3cret\n").unwrap();
    symlink("..2026_01", volume.join("..data")).unwrap();
    symlink("..data/token", volume.join("token")).unwrap();
    set(&volume, 0o1777);
    let mut command = home.command();
    command
        .args(["elect", "--election=e", "--events=json", "--id=me"])
        .arg(format!("--http=127.0.0.1:{}", free_port()))
        .arg("--step-down-token-file=volume/token");
    let leader = Process::spawn("me", command).unwrap();
    leader.wait_for(Kind::Acquired, Nanos(0), LIMIT).unwrap();

    // A volume with fsGroup: it belongs to root, its group may write, and new files get that group.
    let folder = tempfile::tempdir().unwrap();
    set(folder.path(), 0o755);
    let data = folder.path().join("data");
    fs::create_dir(&data).unwrap();
    chown(&data, Some(0), Some(STRANGER)).unwrap();
    set(&data, 0o2775);
    let tenure = folder.path().join("tenure");
    fs::copy(tools::tenure().unwrap(), &tenure).unwrap();
    let flag = format!("--data-dir={}", data.display());
    for _ in 0..2 {
        let mut command = Command::new(&tenure);
        command.env_clear().current_dir("/");
        command.uid(STRANGER).gid(STRANGER);
        let said = stop(serve(command, &[&flag]));
        assert!(!said.contains("denied"), "{said}");
        assert_eq!(mode(&data), 0o2775);
        // The kubelet gives the group access to every file when it mounts the volume again.
        for name in ["token", "sa.key", "store.redb"] {
            assert_eq!(mode(&data.join(name)) & 0o777, 0o600, "{name}");
            set(&data.join(name), 0o660);
        }
    }
}

#[test]
fn host_files_kubeconfig_of_a_user_that_others_can_read_is_used_with_a_warning() {
    let home = Home::new();
    let server = serve(
        home.command(),
        &["--store=memory", "--write-kubeconfig=config"],
    );
    let config = home.path("config");
    let run = || home.tenure(&["status", "--kubeconfig=config"]);
    let quiet = run();
    assert!(quiet.status.success() && !String::from_utf8_lossy(&quiet.stderr).contains("warning"));
    set(&config, 0o644);
    let output = run();
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{text}");
    assert_eq!(
        text.matches("warning: kubeconfig config").count(),
        1,
        "{text}"
    );
    assert!(text.contains("`chmod 600 config`"), "{text}");
    stop(server);
}
