//! Programs on the manager as processes: exit codes, last words, and that nothing runs twice.

use std::os::unix::process::ExitStatusExt;
use std::process::{Command, ExitStatus};
use std::time::Duration;

use k8s_openapi::api::coordination::v1::Lease;
use kube::Api;
use kube::api::{Patch, PatchParams};
use serde_json::json;
use tenure_tests::clock::poll;
use tenure_tests::embedded::Embedded;
use tenure_tests::process::Process;
use tenure_tests::tools;

const LIMIT: Duration = Duration::from_secs(40);

fn managed(server: &Embedded, what: &str, env: &[(&str, &str)]) -> Process {
    let mut command = Command::new(tools::managed().unwrap());
    command.arg(server.kubeconfig()).arg(what);
    command.env("RUST_BACKTRACE", "0").envs(env.iter().copied());
    Process::spawn(what, command).unwrap()
}

fn says(process: &Process, text: &str) {
    let said = poll(LIMIT, || process.transcript().contains(text).then_some(()));
    assert!(said.is_some(), "no {text:?} in\n{}", process.transcript());
}

fn ends(process: &mut Process) -> ExitStatus {
    process.wait(LIMIT).unwrap()
}

/// Calls the API server.
fn call<T>(
    server: &Embedded,
    namespace: &str,
    what: impl AsyncFnOnce(Api<Lease>) -> Result<T, kube::Error>,
) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let kubeconfig = kube::config::Kubeconfig::read_from(server.kubeconfig()).unwrap();
        let options = Default::default();
        let config = kube::Config::from_custom_kubeconfig(kubeconfig, &options);
        let client = kube::Client::try_from(config.await.unwrap()).unwrap();
        what(Api::namespaced(client, namespace)).await.unwrap()
    })
}

fn holder(server: &Embedded, namespace: &str, lease: &str) -> Option<String> {
    call(server, namespace, async |leases| leases.get(lease).await)
        .spec
        .and_then(|spec| spec.holder_identity)
}

/// Somebody else takes the lease.
fn steal(server: &Embedded, namespace: &str, lease: &str) {
    call(server, namespace, async |leases| {
        let patch = Patch::Merge(json!({ "spec": { "holderIdentity": "thief" } }));
        leases.patch(lease, &PatchParams::default(), &patch).await
    });
}

#[test]
fn manager_asked_to_stop_exits_0_after_the_release() {
    let server = Embedded::start().unwrap();
    let mut process = managed(&server, "work", &[]);
    says(&process, "work starts");
    process.terminate();
    assert_eq!(ends(&mut process).code(), Some(0));
    says(&process, "work stopped");
    assert_eq!(holder(&server, "default", "g").as_deref(), Some(""));
}

#[test]
fn manager_second_signal_exits_1_at_once() {
    let server = Embedded::start().unwrap();
    let mut process = managed(&server, "deaf", &[]);
    says(&process, "deaf starts");
    process.terminate();
    std::thread::sleep(Duration::from_millis(300));
    assert!(!process.has_ended(), "it waits for the deaf one");
    process.terminate();
    assert_eq!(ends(&mut process).code(), Some(1));
    says(&process, "a second signal, exiting now");
}

#[test]
fn manager_loss_exits_1_with_the_group() {
    let server = Embedded::start().unwrap();
    let mut process = managed(&server, "work", &[]);
    says(&process, "work starts");
    steal(&server, "default", "g");
    assert_eq!(ends(&mut process).code(), Some(1));
    says(&process, "work stopped");
    says(&process, "leader election lost for g: foreign-holder");
    assert_eq!(holder(&server, "default", "g").as_deref(), Some("thief"));
}

#[test]
fn manager_panic_exits_1_with_the_controller() {
    let server = Embedded::start().unwrap();
    let mut process = managed(&server, "panic", &[]);
    assert_eq!(ends(&mut process).code(), Some(1));
    says(&process, "nodes: panicked: no node");
}

#[test]
fn manager_dropped_hook_exits_1_with_the_hook() {
    let server = Embedded::start().unwrap();
    let mut process = managed(&server, "dropped-hook", &[]);
    assert_eq!(ends(&mut process).code(), Some(1));
    says(
        &process,
        "startup hook seed: its done handle was dropped without being called",
    );
}

#[test]
fn manager_controller_that_blocks_its_thread_is_named_and_the_process_aborted() {
    let server = Embedded::start().unwrap();
    let mut process = managed(&server, "block", &[]);
    says(&process, "stuck starts");
    steal(&server, "default", "g");
    let status = ends(&mut process);
    assert_eq!(status.signal(), Some(6), "{status}");
    says(
        &process,
        "stuck of leader group g did not end in time after the term of lease default/g ended",
    );
}

#[test]
fn wrangler_exits_0_when_asked_to_stop() {
    let server = Embedded::start().unwrap();
    let mut process = managed(&server, "wrangler", &[]);
    says(&process, "work starts");
    process.terminate();
    assert_eq!(ends(&mut process).code(), Some(0));
    says(&process, "work stopped");
    assert_eq!(holder(&server, "kube-system", "w").as_deref(), Some(""));
}

#[test]
fn wrangler_exits_1_on_loss() {
    let server = Embedded::start().unwrap();
    let mut process = managed(&server, "wrangler", &[]);
    says(&process, "work starts");
    steal(&server, "kube-system", "w");
    assert_eq!(ends(&mut process).code(), Some(1));
    says(&process, "leaderelection lost for w: foreign-holder");
}

#[test]
fn wrangler_names_a_bad_variable_its_value_and_the_cause() {
    let server = Embedded::start().unwrap();
    let bad = [("CATTLE_ELECTION_LEASE_DURATION", "soon")];
    let mut process = managed(&server, "wrangler", &bad);
    assert_eq!(ends(&mut process).code(), Some(1));
    says(
        &process,
        "failed to start leader election for w: CATTLE_ELECTION_LEASE_DURATION=\"soon\": ",
    );
}

#[test]
fn run_or_die_names_what_panicked() {
    let server = Embedded::start().unwrap();
    let mut process = managed(&server, "run-or-die", &[]);
    assert_eq!(ends(&mut process).code(), Some(1));
    says(&process, "tunnel panicked: no tunnel");
}

#[test]
fn server_replicas_on_one_api_server_elect_one_leader() {
    let server = Embedded::start().unwrap();
    let replica = |name: &str| {
        let mut command = Command::new(tools::tenure().unwrap());
        command.arg("server").arg("--kubeconfig");
        command.arg(server.kubeconfig());
        Process::spawn(name, command).unwrap()
    };
    let holder = || {
        let lease = call(&server, "kube-system", async |leases| {
            leases.get_opt("tenure-server").await
        });
        let holder = lease?.spec?.holder_identity?;
        Some(holder).filter(|holder| !holder.is_empty())
    };
    let mut replicas = [replica("a"), replica("b")];
    let first = poll(LIMIT, holder).expect("one leads");
    // Who that is shows when it leaves.
    replicas[0].terminate();
    assert_eq!(ends(&mut replicas[0]).code(), Some(0));
    let second = poll(LIMIT, holder).expect("one leads");
    replicas[1].terminate();
    assert_eq!(ends(&mut replicas[1]).code(), Some(0));
    assert_eq!(holder(), None, "{first} and {second} have released it");
}
