//! Programs with the manager as processes: exit codes, final messages, and that nothing runs twice.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, ExitStatus};
use std::time::Duration;

use k8s_openapi::api::coordination::v1::Lease;
use kube::Api;
use kube::api::{Patch, PatchParams};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;
use tenure_tests::clock::poll;
use tenure_tests::embedded::Embedded;
use tenure_tests::process::Process;
use tenure_tests::tools;

const LIMIT: Duration = Duration::from_secs(180);

pub(crate) fn managed(server: &Embedded, what: &str, env: &[(&str, &str)]) -> Process {
    spawn(server, &[what], env)
}

pub(crate) fn spawn(server: &Embedded, args: &[&str], env: &[(&str, &str)]) -> Process {
    let mut command = Command::new(tools::managed().unwrap());
    command.arg(server.kubeconfig()).args(args);
    command.env("RUST_BACKTRACE", "0").envs(env.iter().copied());
    Process::spawn(args[0], command).unwrap()
}

/// Starts a leader whose work has printed this line, and a follower.
fn pair(server: &Embedded, what: &str, starts: &str) -> (Process, Process) {
    let leader = managed(server, what, &[]);
    says(&leader, starts);
    let heir = managed(server, what, &[]);
    says(&heir, "follows");
    (leader, heir)
}

/// Asserts that the successor of an ended leader does the work now, and did not do it before.
fn inherits(heir: &Process, starts: &str) {
    says(heir, starts);
    runs_once(heir);
}

pub(crate) fn runs_once(process: &Process) {
    let said = process.transcript();
    assert!(!said.contains("runs twice"), "{said}");
}

fn hang_up(process: &Process) {
    signal(process, Signal::HUP);
}

pub(crate) fn signal(process: &Process, signal: Signal) {
    let pid = Pid::from_raw(i32::try_from(process.pid()).unwrap()).unwrap();
    kill_process(pid, signal).unwrap();
}

pub(crate) fn says(process: &Process, text: &str) {
    let said = poll(LIMIT, || process.transcript().contains(text).then_some(()));
    assert!(said.is_some(), "no {text:?} in\n{}", process.transcript());
}

pub(crate) fn ends(process: &mut Process) -> ExitStatus {
    process.wait(LIMIT).unwrap()
}

/// Calls the API server.
pub(crate) fn call<T>(
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

/// Assigns the lease to another holder.
pub(crate) fn steal(server: &Embedded, namespace: &str, lease: &str) {
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
    assert!(
        !process.has_ended(),
        "it waits for the work that ignores cancellation"
    );
    process.terminate();
    assert_eq!(ends(&mut process).code(), Some(1));
    says(&process, "received a second signal; exiting");
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
    let (mut process, heir) = pair(&server, "panic", "nodes starts");
    assert!(!heir.transcript().contains("starts"));
    hang_up(&process);
    assert_eq!(ends(&mut process).code(), Some(1));
    says(&process, "nodes: panicked: no node");
    says(&process, "work stopped");
    inherits(&heir, "nodes starts");
    inherits(&heir, "work starts");
}

#[test]
fn manager_hook_that_fails_exits_1_with_the_hook_and_nothing_runs() {
    let server = Embedded::start().unwrap();
    for (what, why) in [
        ("failing-hook", "no seed"),
        ("hanging-hook", "has not returned within 0.5 s"),
        (
            "dropped-hook",
            "its `Done` handle was dropped before it was called",
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

/// The runtime would wait for the thread of the hook without limit.
#[test]
fn manager_hook_that_blocks_its_thread_does_not_keep_the_process() {
    let server = Embedded::start().unwrap();
    let stuck = "still running 0.25 s after the stop was requested: startup hook seed";
    let mut process = managed(&server, "blocking-hook", &[]);
    assert_eq!(ends(&mut process).code(), Some(1));
    says(
        &process,
        &format!("tenure: startup hook seed: has not returned within 0.5 s; {stuck}"),
    );
    let mut process = managed(&server, "endless-hook", &[]);
    says(&process, "seed starts");
    process.terminate();
    assert_eq!(ends(&mut process).code(), Some(1));
    says(&process, &format!("tenure: {stuck}"));
    assert!(!process.transcript().contains("work starts"));
}

/// The controller starts slowly, and another holder takes the lease in the meantime.
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
    let (mut process, heir) = pair(&server, "deaf-leader", "deaf starts");
    let before = holder(&server, "default", "g");
    process.terminate();
    assert_eq!(ends(&mut process).code(), Some(1));
    says(
        &process,
        "still running 0.5 s after the stop was requested: deaf",
    );
    // The work is dropped before the release: the successor acquires the lease immediately and no other work runs.
    inherits(&heir, "deaf starts");
    assert_ne!(holder(&server, "default", "g"), before);
}

/// A runtime waits for its threads. A process that has ended its work must not wait.
#[test]
fn manager_blocked_thread_does_not_delay_the_exit_of_a_failed_process() {
    let server = Embedded::start().unwrap();
    let mut process = managed(&server, "stuck", &[]);
    says(&process, "stuck starts");
    says(&process, "nodes starts");
    hang_up(&process);
    assert_eq!(ends(&mut process).code(), Some(1));
    says(
        &process,
        "tenure: nodes: no disk; still running 0.5 s after the stop was requested: stuck",
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
        "tenure: still running 0.5 s after the stop was requested: stuck",
    );
}

#[test]
fn manager_controller_that_blocks_its_thread_is_named_and_the_process_aborted() {
    let server = Embedded::start().unwrap();
    let (mut process, heir) = pair(&server, "block", "stuck starts");
    says(&process, "bystander starts");
    steal(&server, "default", "g");
    let status = ends(&mut process);
    assert_eq!(status.signal(), Some(6), "{status}");
    // Only the blocked controller is named. A controller outside the group does not delay the end of the process.
    says(
        &process,
        "tenure: stuck of leader group g did not end in time after the term of lease default/g ended",
    );
    inherits(&heir, "stuck starts");
}

/// No task runs any more, not even the renewals: the process ends before another candidate may lead.
#[test]
fn manager_controllers_that_block_the_whole_runtime_are_named_and_the_process_aborted() {
    let server = Embedded::start().unwrap();
    let mut process = managed(&server, "block-all", &[]);
    says(&process, "a starts");
    says(&process, "b starts");
    let heir = managed(&server, "block-all", &[]);
    let status = ends(&mut process);
    assert_eq!(status.signal(), Some(6), "{status}");
    says(
        &process,
        "tenure: a, b of leader group g did not end in time after the term of lease default/g ended",
    );
    inherits(&heir, "a starts");
    inherits(&heir, "b starts");
}

#[test]
fn wrangler_follower_exits_0_too_and_the_leader_continues() {
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
fn wrangler_inconsistent_durations_are_reported() {
    let server = Embedded::start().unwrap();
    let bad = [("CATTLE_ELECTION_RENEW_DEADLINE", "50s")];
    let mut process = managed(&server, "wrangler", &bad);
    assert_eq!(ends(&mut process).code(), Some(1));
    says(
        &process,
        "tenure: failed to start leader election for w: CATTLE_ELECTION_RENEW_DEADLINE=\"50s\": \
         invalid election timing: lease duration 45s must be greater than renew deadline 50s",
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

/// The panic ends the term, so the next process need not wait for the lease to expire.
#[test]
fn wrangler_exits_1_when_the_work_panics_after_the_release() {
    let server = Embedded::start().unwrap();
    let mut process = managed(&server, "wrangler-panic", &[]);
    assert_eq!(ends(&mut process).code(), Some(1));
    says(
        &process,
        "tenure: leaderelection lost for w: panicked: no work",
    );
    assert_eq!(holder(&server, "kube-system", "w").as_deref(), Some(""));
}

#[test]
fn wrangler_names_a_bad_variable_its_value_and_the_cause() {
    let server = Embedded::start().unwrap();
    let bad = [("CATTLE_ELECTION_LEASE_DURATION", "soon")];
    let mut process = managed(&server, "wrangler", &bad);
    assert_eq!(ends(&mut process).code(), Some(1));
    says(
        &process,
        "tenure: failed to start leader election for w: CATTLE_ELECTION_LEASE_DURATION=\"soon\": \
         \"soon\" is not a duration such as \"10m\" or \"1h30m\"",
    );
    // Bytes that are not valid text count as a value, too.
    let mut command = Command::new(tools::managed().unwrap());
    command.arg(server.kubeconfig()).arg("wrangler");
    command.env("CATTLE_ELECTION_RETRY_PERIOD", OsStr::from_bytes(b"\xff"));
    let mut process = Process::spawn("wrangler", command).unwrap();
    assert_eq!(ends(&mut process).code(), Some(1));
    says(
        &process,
        "tenure: failed to start leader election for w: CATTLE_ELECTION_RETRY_PERIOD=\"\u{fffd}\": \
         \"\u{fffd}\" is not a duration such as \"10m\" or \"1h30m\"",
    );
}

#[test]
fn run_or_die_names_the_runnable_that_panicked() {
    let server = Embedded::start().unwrap();
    let mut process = managed(&server, "panic-or-die", &[]);
    assert_eq!(ends(&mut process).code(), Some(1));
    says(&process, "tunnel panicked: no tunnel");
}

#[test]
fn run_or_die_names_the_runnable_that_returned_early() {
    let server = Embedded::start().unwrap();
    let mut process = managed(&server, "return-or-die", &[]);
    assert_eq!(ends(&mut process).code(), Some(1));
    says(&process, "tunnel returned without a request to stop");
    assert!(!process.transcript().contains("tunnel stopped"));
}

#[test]
fn run_or_die_exits_0_when_asked_to_stop() {
    let server = Embedded::start().unwrap();
    let mut process = managed(&server, "run-or-die", &[]);
    says(&process, "tunnel starts");
    process.terminate();
    assert_eq!(ends(&mut process).code(), Some(0));
    says(&process, "tunnel stopped");
}

/// A roll-out of two programs with two replicas each: the file that they read assigns two controllers to the other
/// program.
#[test]
fn manager_migration_moves_controllers_between_two_programs_and_nothing_runs_twice() {
    let server = Embedded::start().unwrap();
    let folder = server.kubeconfig().parent().unwrap().to_owned();
    let file = |owner: &str| {
        let path = folder.join(format!("services-in-{owner}.yaml"));
        let text = format!(
            "kind: LeaderMigrationConfiguration\n\
             apiVersion: controllermanager.config.k8s.io/v1\n\
             leaderName: migration\n\
             controllerLeaders:\n\
             - {{ name: services, component: {owner} }}\n\
             - {{ name: routes, component: {owner} }}\n"
        );
        std::fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let (before, after) = (file("kcm"), file("ccm"));
    let mut old = Vec::new();
    for program in ["kcm", "ccm", "kcm", "ccm"] {
        old.push(spawn(&server, &[program, &before], &[]));
        // The first two lead, the others are standbys.
        let first = &old[(old.len() - 1) % 2];
        says(first, &format!("{program}-nodes starts"));
    }
    says(&old[0], "services starts");
    says(&old[0], "routes starts");
    let mut new = Vec::new();
    for old in &mut old {
        new.push(spawn(&server, &[old.name(), &after], &[]));
        old.terminate();
        assert_eq!(ends(old).code(), Some(0), "{}", old.transcript());
    }
    let count = |program: &str, starts: &str| {
        let replicas = new.iter().filter(|process| process.name() == program);
        let texts = replicas.map(Process::transcript);
        texts.filter(|text| text.contains(starts)).count()
    };
    for (program, starts) in [
        ("kcm", "kcm-nodes starts"),
        ("ccm", "ccm-nodes starts"),
        ("ccm", "services starts"),
        ("ccm", "routes starts"),
    ] {
        let one = poll(LIMIT, || (count(program, starts) == 1).then_some(()));
        assert!(one.is_some(), "{starts} {} times", count(program, starts));
    }
    assert_eq!(
        count("kcm", "services starts"),
        0,
        "the controller has moved away"
    );
    for old in old.iter().filter(|process| process.name() == "ccm") {
        let said = old.transcript();
        assert!(
            !said.contains("services starts"),
            "the controller has not moved yet: {said}"
        );
    }
    for process in &mut new {
        process.terminate();
        assert_eq!(ends(process).code(), Some(0), "{}", process.transcript());
    }
    old.iter().chain(&new).for_each(runs_once);
}
