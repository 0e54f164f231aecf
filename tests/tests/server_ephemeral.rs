//! `tenure server --ephemeral` as a process: what test harnesses in other languages rely on.

use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;
use tempfile::TempDir;
use tenure_tests::clock::poll;
use tenure_tests::home::Home;
use tenure_tests::process::{family, is_alive};
use tenure_tests::real::{self, Peer};
use tenure_tests::wire::Wire;
use tenure_tests::{Skip, tools};

const LIMIT: Duration = Duration::from_secs(120);

/// A program that has started a server, or the server itself. Killed when dropped, and its server ends with it.
struct Harness {
    child: Child,
    /// `TMPDIR` of the server: empty before and after it.
    folder: TempDir,
}

impl Harness {
    /// Starts a program with a free `TMPDIR` and `tenure` on the path.
    fn start(command: &mut Command) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let tenure = tools::tenure().unwrap();
        let path = std::env::var_os("PATH").unwrap_or_default();
        let folders = tenure.parent().into_iter().map(Path::to_owned);
        let path = std::env::join_paths(folders.chain(std::env::split_paths(&path))).unwrap();
        command
            .env_clear()
            .env("PATH", path)
            .env("TMPDIR", folder.path())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let child = command.spawn().unwrap();
        Self { child, folder }
    }

    /// Starts a server as a child of this process.
    fn server(options: &[&str]) -> Self {
        let mut command = Command::new(tools::tenure().unwrap());
        command.args(["server", "--ephemeral"]).args(options);
        Self::start(command.stdin(Stdio::piped()))
    }

    /// Returns the first line on standard output. Closes the pipe, and that of standard error.
    fn kubeconfig(&mut self) -> PathBuf {
        let mut line = String::new();
        let out = self.child.stdout.take().unwrap();
        BufReader::new(out).read_line(&mut line).unwrap();
        self.child.stderr.take();
        assert!(line.ends_with('\n'), "{line:?}");
        PathBuf::from(line.trim_end())
    }

    fn send(&self, signal: Signal) {
        let pid = i32::try_from(self.child.id()).unwrap();
        kill_process(Pid::from_raw(pid).unwrap(), signal).unwrap();
    }

    /// Waits until the folder of the server is gone.
    fn expect_no_files(&self) {
        let left = || std::fs::read_dir(self.folder.path()).unwrap().count() == 0;
        let gone = poll(LIMIT, || left().then_some(()));
        let left: Vec<_> = std::fs::read_dir(self.folder.path()).unwrap().collect();
        assert!(gone.is_some(), "{left:?}");
    }
}

impl Drop for Harness {
    fn drop(&mut self) {
        _ = self.child.kill();
        _ = self.child.wait();
    }
}

/// Returns whether the server of this kubeconfig answers a request of the administrator.
fn answers(kubeconfig: &Path) -> bool {
    let wire = Wire::connect(kubeconfig).unwrap();
    let answer = wire.get("/api/v1/namespaces/default");
    answer.is_ok_and(|answer| answer.status == 200)
}

#[test]
fn server_ephemeral_ends_with_a_killed_parent_and_removes_its_files() {
    let mut command = Command::new("sh");
    command.args(["-c", "tenure server --ephemeral & wait"]);
    let mut shell = Harness::start(&mut command);
    let kubeconfig = shell.kubeconfig();
    assert!(answers(&kubeconfig));
    assert!(kubeconfig.starts_with(shell.folder.path()));
    let shell_pid = i32::try_from(shell.child.id()).unwrap();
    let server = family(shell_pid)
        .into_iter()
        .find(|pid| *pid != shell_pid)
        .unwrap();
    // No process reads the output of the server any more, as after the end of a harness.
    shell.send(Signal::KILL);
    let gone = poll(LIMIT, || (!is_alive(server)).then_some(()));
    assert!(gone.is_some(), "the server outlives its parent");
    shell.expect_no_files();
}

/// The kernel's death signal would arrive when the thread ends.
#[test]
fn server_ephemeral_outlives_the_thread_that_started_it() {
    let started = std::thread::spawn(|| Harness::server(&[])).join().unwrap();
    let mut server = started;
    let kubeconfig = server.kubeconfig();
    std::thread::sleep(Duration::from_millis(300));
    assert!(server.child.try_wait().unwrap().is_none());
    assert!(answers(&kubeconfig));
}

#[test]
fn server_ephemeral_ends_when_its_input_is_closed() {
    let mut server = Harness::server(&["--until-stdin-closes"]);
    let kubeconfig = server.kubeconfig();
    assert!(answers(&kubeconfig));
    drop(server.child.stdin.take());
    assert!(server.child.wait().unwrap().success());
    server.expect_no_files();
}

#[test]
fn server_ephemeral_ignores_its_input_without_the_flag() {
    let mut server = Harness::server(&[]);
    let kubeconfig = server.kubeconfig();
    drop(server.child.stdin.take());
    std::thread::sleep(Duration::from_millis(300));
    assert!(answers(&kubeconfig));
}

#[test]
fn server_ephemeral_removes_its_files_after_repeated_signals() {
    let mut server = Harness::server(&[]);
    let kubeconfig = server.kubeconfig();
    assert!(answers(&kubeconfig));
    server.send(Signal::INT);
    server.send(Signal::TERM);
    assert!(server.child.wait().unwrap().success());
    server.expect_no_files();
}

#[test]
fn server_ephemeral_rejects_options_that_would_leave_data_behind() {
    let home = Home::new();
    for (option, reason) in [
        ("--data-dir=x", "cannot be combined with --data-dir"),
        ("--kubeconfig=x", "cannot be combined with --kubeconfig"),
        (
            "--store=etcd=http://127.0.0.1:1",
            "cannot be combined with --store etcd",
        ),
    ] {
        let output = home.tenure(&["server", "--ephemeral", option]);
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert!(said.contains(reason), "{option}: {said}");
        assert!(output.stdout.is_empty());
    }
}

#[test]
fn server_disable_takes_a_list_and_all() {
    let mut none = Harness::server(&["--disable=all"]);
    let mut some = Harness::server(&["--disable", "root-ca,garbage-collector"]);
    let [none_wire, some_wire] =
        [&mut none, &mut some].map(|server| Wire::connect(&server.kubeconfig()).unwrap());
    for wire in [&none_wire, &some_wire] {
        let namespace = json!({"metadata": {"name": "shop"}});
        let made = wire.send(&http::Method::POST, "/api/v1/namespaces", Some(&namespace));
        assert_eq!(made.unwrap().status, 201);
    }
    let code = |wire: &Wire, path: &str| wire.get(path).unwrap().status;
    let account = "/api/v1/namespaces/shop/serviceaccounts/default";
    let found = poll(LIMIT, || (code(&some_wire, account) == 200).then_some(()));
    assert!(
        found.is_some(),
        "the controller that was not disabled did nothing"
    );
    let root = "/api/v1/namespaces/shop/configmaps/kube-root-ca.crt";
    assert_eq!(code(&some_wire, root), 404);
    assert_eq!(code(&none_wire, account), 404);
}

/// Returns the code block of this language in docs/book/reference/server.md that starts a server.
fn documented(language: &str) -> String {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/book/reference/server.md");
    let page = std::fs::read_to_string(page).unwrap();
    let fence = format!("```{language}\n");
    let mut blocks = page.split(&fence).skip(1);
    let block = blocks.find_map(|block| Some(block.split_once("```")?.0));
    block
        .filter(|code| code.contains("--ephemeral"))
        .unwrap()
        .to_owned()
}

fn runs(mut harness: Harness) {
    let mut said = String::new();
    let err = harness.child.stderr.take().unwrap();
    for line in BufReader::new(err).lines().map_while(Result::ok) {
        said += &(line + "\n");
    }
    assert!(harness.child.wait().unwrap().success(), "{said}");
    harness.expect_no_files();
}

#[test]
fn server_ephemeral_works_as_documented_for_python() {
    let Some(python) = Skip::unless(tools::python()) else {
        return;
    };
    let mut command = Command::new(python);
    runs(Harness::start(command.arg("-c").arg(documented("python"))));
}

#[test]
fn server_ephemeral_works_as_documented_for_node() {
    let Some(library) = Skip::unless(tools::node_client()) else {
        return;
    };
    let modules = library
        .ancestors()
        .find(|folder| folder.ends_with("node_modules"));
    let project = tempfile::tempdir().unwrap();
    std::os::unix::fs::symlink(modules.unwrap(), project.path().join("node_modules")).unwrap();
    let file = project.path().join("test.mjs");
    std::fs::write(&file, documented("js")).unwrap();
    runs(Harness::start(Command::new("node").arg(file)));
}

/// The example is compiled before the tests, from a copy of the code block.
#[test]
fn server_ephemeral_works_as_documented_for_go() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../peers/ephemeral");
    let source = std::fs::read_to_string(folder.join("server_test.go")).unwrap();
    assert_eq!(
        source,
        documented("go"),
        "docs/book/reference/server.md and peers/ephemeral/server_test.go differ; copy one to the other"
    );
    if Skip::unless(real::available(&[Peer::EphemeralExample])).is_none() {
        return;
    }
    let mut command = Command::new(real::built(Peer::EphemeralExample).unwrap());
    runs(Harness::start(command.args(["-test.count=1", "-test.v"])));
}
