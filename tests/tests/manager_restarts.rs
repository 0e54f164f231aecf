//! Programs with the manager and an API server that starts late, restarts, or has lost its history. `tenure server`
//! runs as a process on its data directory and is killed and started again.

use std::os::unix::process::ExitStatusExt;
use std::process::Command;
use std::time::Duration;

use http::Method;
use serde_json::json;
use tenure_tests::clock::poll;
use tenure_tests::nemesis::server::Server;
use tenure_tests::process::Process;
use tenure_tests::tools;
use tenure_tests::wire::Wire;

const LIMIT: Duration = Duration::from_secs(120);

fn managed(server: &Server, what: &str) -> Process {
    let mut command = Command::new(tools::managed().unwrap());
    command.arg(server.kubeconfig()).arg(what);
    command.env("RUST_BACKTRACE", "0");
    Process::spawn(what, command).unwrap()
}

fn count(process: &Process, line: &str) -> usize {
    process.text().iter().filter(|said| *said == line).count()
}

/// Waits until a line was printed this many times.
fn says(process: &Process, line: &str, times: usize) {
    let said = poll(LIMIT, || (count(process, line) >= times).then_some(()));
    assert!(said.is_some(), "{line:?}\n{}", process.transcript());
}

/// Waits until a text was printed. The last lines of a process are read after its end.
fn mentions(process: &Process, text: &str) {
    let said = poll(LIMIT, || process.transcript().contains(text).then_some(()));
    assert!(said.is_some(), "no {text:?} in\n{}", process.transcript());
}

fn make(server: &Server, name: &str) {
    let map = json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": name } });
    let admin = Wire::connect(&server.kubeconfig()).unwrap();
    let path = "/api/v1/namespaces/default/configmaps";
    let made = admin.send(&Method::POST, path, Some(&map)).unwrap();
    assert!(made.status.is_success(), "{}", made.body);
}

/// Nothing starts before the API server is ready, and everything starts afterwards.
#[test]
fn manager_api_server_that_is_late_is_waited_for() {
    let mut server = Server::embedded().unwrap();
    server.kill();
    let mut process = managed(&server, "gated");
    // Long enough for more than one request.
    std::thread::sleep(Duration::from_secs(3));
    assert!(!process.has_ended(), "{}", process.transcript());
    assert_eq!(count(&process, "work starts"), 0);
    server.start().unwrap();
    says(&process, "work starts", 1);
    process.terminate();
    assert_eq!(process.wait(LIMIT).unwrap().code(), Some(0));
    assert_eq!(count(&process, "work starts"), 1);
}

#[test]
fn manager_api_server_that_never_comes_ends_the_process() {
    let mut server = Server::embedded().unwrap();
    server.kill();
    let mut process = managed(&server, "never-ready");
    assert_eq!(process.wait(LIMIT).unwrap().code(), Some(1));
    mentions(&process, "Error: the API server was not ready within 3 s: ");
    assert_eq!(count(&process, "work starts"), 0);
}

/// `OnLoss::Exit`: the work stops before another candidate may lead, and the process prints the reason for its exit.
#[test]
fn manager_api_server_that_goes_away_ends_the_process_with_the_group() {
    let mut server = Server::embedded().unwrap();
    let mut process = managed(&server, "work");
    says(&process, "work starts", 1);
    let heir = managed(&server, "work");
    says(&heir, "follows", 1);
    server.kill();
    let status = process.wait(LIMIT).unwrap();
    assert_eq!((status.code(), status.signal()), (Some(1), None));
    says(&process, "work stopped", 1);
    mentions(&process, "leader election lost for g: ");
    assert_eq!(count(&heir, "work starts"), 0);
    server.start().unwrap();
    says(&heir, "work starts", 1);
    assert_eq!(count(&heir, "work runs twice"), 0);
}

/// `OnLoss::Demote`: the work stops, and starts again when the API server is back with its data.
#[test]
fn manager_api_server_that_restarts_gets_a_second_term_of_the_same_process() {
    let mut server = Server::embedded().unwrap();
    let mut process = managed(&server, "demoted");
    says(&process, "work starts", 1);
    make(&server, "before");
    says(&process, "map before", 1);
    server.kill();
    says(&process, "work stopped", 1);
    assert_eq!(count(&process, "work starts"), 1, "nothing runs twice");
    server.start().unwrap();
    says(&process, "work starts", 2);
    server.wait_until_ready().unwrap();
    make(&server, "after");
    says(&process, "map after", 1);
    process.terminate();
    assert_eq!(process.wait(LIMIT).unwrap().code(), Some(0));
    assert_eq!(count(&process, "work starts"), 2);
    assert_eq!(count(&process, "work stopped"), 2);
}

/// A restored API server has other revisions and no history: caches are filled again, and deleted objects disappear.
#[test]
fn manager_api_server_that_lost_its_watch_history_is_listed_again() {
    let mut server = Server::embedded().unwrap();
    let folder = server.kubeconfig().parent().unwrap().to_owned();
    let tenure = |args: &[&str]| {
        let mut command = Command::new(tools::tenure().unwrap());
        command.args(["server", "--data-dir"]).arg(&folder);
        let output = command.args(args).output().unwrap();
        assert!(output.status.success(), "{args:?}: {output:?}");
    };
    let mut process = managed(&server, "demoted");
    says(&process, "work starts", 1);
    make(&server, "saved");
    says(&process, "map saved", 1);
    let file = folder.join("saved.backup");
    let file = file.to_str().unwrap();
    tenure(&["backup", file]);
    make(&server, "not-saved");
    says(&process, "map not-saved", 1);
    server.kill();
    tenure(&["restore", file]);
    server.start().unwrap();
    server.wait_until_ready().unwrap();
    says(&process, "gone not-saved", 1);
    make(&server, "later");
    says(&process, "map later", 1);
    assert_eq!(count(&process, "gone saved"), 0, "{}", process.transcript());
    process.terminate();
    assert_eq!(process.wait(LIMIT).unwrap().code(), Some(0));
}
