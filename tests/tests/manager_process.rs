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

const LIMIT: Duration = Duration::from_secs(180);

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
fn manager_hook_that_fails_exits_1_with_the_hook_and_nothing_runs() {
    let server = Embedded::start().unwrap();
    for (what, why) in [
        ("failing-hook", "no seed"),
        ("hanging-hook", "has not returned within 0.5 s"),
        (
            "dropped-hook",
            "its done handle was dropped without being called",
        ),
        ("panicking-hook", "panicked: no seed"),
    ] {
        let mut process = managed(&server, what, &[]);
        assert_eq!(ends(&mut process).code(), Some(1), "{what}");
        says(&process, &format!("Error: startup hook seed: {why}"));
        let said = process.transcript();
        assert!(!said.contains("work starts"), "{what}: {said}");
    }
}

/// Its start takes long; meanwhile somebody else takes the lease.
#[test]
fn manager_lease_lost_during_the_start_of_a_controller_exits_1() {
    let server = Embedded::start().unwrap();
    let mut process = managed(&server, "slow-start", &[]);
    says(&process, "slow begins to start");
    steal(&server, "default", "g");
    assert_eq!(ends(&mut process).code(), Some(1));
    says(
        &process,
        "Error: leader election lost for g: foreign-holder",
    );
    says(&process, "slow gave up");
    let said = process.transcript();
    assert_eq!(said.matches("slow begins to start").count(), 1, "{said}");
    assert_eq!(said.matches("slow gave up").count(), 1, "{said}");
}

#[test]
fn manager_controller_that_ignores_cancellation_exits_1_with_its_name() {
    let server = Embedded::start().unwrap();
    let mut process = managed(&server, "deaf-leader", &[]);
    says(&process, "deaf starts");
    process.terminate();
    assert_eq!(ends(&mut process).code(), Some(1));
    says(
        &process,
        "still running 0.5 s after they were told to stop: deaf",
    );
    let holder = holder(&server, "default", "g");
    assert_eq!(holder.as_deref(), Some(""), "dropped, then released");
}

/// A runtime waits for its threads; a process that has ended its work must not.
#[test]
fn manager_blocked_thread_does_not_keep_a_process_that_has_failed() {
    let server = Embedded::start().unwrap();
    let mut process = managed(&server, "stuck", &[]);
    says(&process, "stuck starts");
    let pid = rustix::process::Pid::from_raw(i32::try_from(process.pid()).unwrap()).unwrap();
    let listens = poll(LIMIT, || {
        // The signal is caught once the failing one listens.
        let status = std::fs::read_to_string(format!("/proc/{}/status", process.pid())).ok()?;
        let caught = status
            .lines()
            .find_map(|line| line.strip_prefix("SigCgt:"))?;
        let caught = u64::from_str_radix(caught.trim(), 16).ok()?;
        (caught & 1 == 1).then_some(())
    });
    assert!(listens.is_some());
    rustix::process::kill_process(pid, rustix::process::Signal::HUP).unwrap();
    assert_eq!(ends(&mut process).code(), Some(1));
    says(
        &process,
        "tenure: nodes: no disk; still running 0.5 s after they were told to stop: stuck",
    );
}

#[test]
fn server_with_a_controller_that_blocks_its_thread_ends_when_asked() {
    let server = Embedded::start().unwrap();
    let mut process = managed(&server, "stuck-server", &[]);
    says(&process, "stuck starts");
    process.terminate();
    assert_eq!(ends(&mut process).code(), Some(1));
    says(
        &process,
        "tenure: still running 0.5 s after they were told to stop: stuck",
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

/// No task runs any more, not even the renewals: the process ends before another may lead.
#[test]
fn manager_controllers_that_block_the_whole_runtime_are_named_and_the_process_aborted() {
    let server = Embedded::start().unwrap();
    let mut process = managed(&server, "block-all", &[]);
    says(&process, "a starts");
    says(&process, "b starts");
    let status = ends(&mut process);
    assert_eq!(status.signal(), Some(6), "{status}");
    says(
        &process,
        "a, b of leader group g did not end in time after the term of lease default/g ended",
    );
}

#[test]
fn wrangler_follower_exits_0_too_and_takes_nothing_with_it() {
    let server = Embedded::start().unwrap();
    let leader = managed(&server, "wrangler", &[]);
    says(&leader, "work starts");
    let before = holder(&server, "kube-system", "w");
    let mut follower = managed(&server, "wrangler", &[]);
    says(&follower, "campaigning");
    follower.terminate();
    assert_eq!(ends(&mut follower).code(), Some(0));
    says(&follower, "tenure: requested to terminate, exiting");
    assert!(!follower.transcript().contains("work starts"));
    assert_eq!(holder(&server, "kube-system", "w"), before);
}

#[test]
fn wrangler_durations_come_from_the_environment() {
    let server = Embedded::start().unwrap();
    let development = ("CATTLE_DEV_MODE", "true");
    for (env, seconds) in [
        (&[development][..], 45 * 3600),
        (
            &[
                development,
                ("CATTLE_ELECTION_LEASE_DURATION", "1m"),
                ("CATTLE_ELECTION_RENEW_DEADLINE", "40s"),
                ("CATTLE_ELECTION_RETRY_PERIOD", "3s"),
            ],
            60,
        ),
    ] {
        let mut process = managed(&server, "wrangler", env);
        says(&process, "work starts");
        let lease = call(&server, "kube-system", async |leases| leases.get("w").await);
        let duration = lease.spec.unwrap().lease_duration_seconds;
        assert_eq!(duration, Some(seconds), "{env:?}");
        process.terminate();
        assert_eq!(ends(&mut process).code(), Some(0));
    }
}

#[test]
fn wrangler_durations_that_make_no_sense_together_are_told() {
    let server = Embedded::start().unwrap();
    let bad = [("CATTLE_ELECTION_RENEW_DEADLINE", "50s")];
    let mut process = managed(&server, "wrangler", &bad);
    assert_eq!(ends(&mut process).code(), Some(1));
    says(&process, "tenure: failed to start leader election for w: ");
    says(&process, "50s");
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
