//! `tenure elect --confirm-death`: a follower takes over from a leader that the kernel, the kubelet or an administrator
//! reports as ended.
//!
//! The lease is much longer than the time limit of a test, so a candidate that leads has not waited for it.

use std::time::Duration;

use http::Method;
use serde_json::{Value, json};
use tenure_tests::clock::poll;
use tenure_tests::embedded::Embedded;
use tenure_tests::home::Home;
use tenure_tests::process::Process;
use tenure_tests::wire::{Wire, lease_path};

const LIMIT: Duration = Duration::from_secs(120);

/// Time in which a follower would take over if it counted the leader as dead.
const WHILE: Duration = Duration::from_secs(2);

const PROOF: &str = "--confirm-death=host";

fn start(home: &Home, id: &str, flags: &[&str]) -> Process {
    let mut command = home.command();
    command
        .args(["elect", "e", "--lease-duration=10m", "--renew-deadline=5m"])
        .args(["--retry-period=500ms", "--id", id])
        .args(flags);
    Process::spawn(id, command).unwrap()
}

fn said(process: &Process, text: &str) -> bool {
    let said = || process.text().iter().any(|line| line.contains(text));
    poll(LIMIT, || said().then_some(())).is_some()
}

fn leads(process: &Process) {
    assert!(
        said(process, "leading default/e"),
        "{}",
        process.transcript()
    );
}

/// Starts a leader and a follower that has observed it.
fn pair(home: &Home, flags_of_leader: &[&str], flags_of_follower: &[&str]) -> [Process; 2] {
    let leader = start(home, "first", flags_of_leader);
    leads(&leader);
    let follower = start(home, "second", flags_of_follower);
    assert!(
        said(&follower, "first holds default/e"),
        "{}",
        follower.transcript()
    );
    [leader, follower]
}

fn holder(home: &Home) -> String {
    let status = home.tenure(&["status", "e", "-o", "json"]);
    let rows: Value = serde_json::from_slice(&status.stdout).unwrap();
    rows[0]["holder"].as_str().unwrap().to_owned()
}

/// Whether the first candidate keeps the lease.
fn keeps(home: &Home) -> bool {
    poll(WHILE, || (holder(home) != "first").then_some(())).is_none()
}

#[test]
fn confirm_death_of_a_killed_leader_replaces_the_wait() {
    let home = Home::new();
    let [mut leader, follower] = pair(&home, &[PROOF], &[PROOF]);
    leader.kill();
    leads(&follower);
}

#[test]
fn confirm_death_does_not_count_a_stopped_leader_as_dead() {
    let home = Home::new();
    let [mut leader, follower] = pair(&home, &[PROOF], &[PROOF]);
    leader.stop();
    assert!(keeps(&home), "{}", follower.transcript());
    leader.kill();
    leads(&follower);
}

/// A leader without the flag does not describe itself, and a follower without it does not read the description.
#[test]
fn confirm_death_needs_the_flag_on_both_sides() {
    for (leader, follower) in [(&[][..], &[PROOF][..]), (&[PROOF], &[])] {
        let home = Home::new();
        let [mut leader, follower] = pair(&home, leader, follower);
        leader.kill();
        assert!(keeps(&home), "{}", follower.transcript());
    }
}

/// Starts a candidate in a pod of this node.
fn start_in_pod(server: &Embedded, home: &Home, pod: &Value, flag: &str) -> Process {
    let id = pod["metadata"]["name"].as_str().unwrap();
    let mut command = home.command();
    command
        .args(["elect", "e", "--lease-duration=10m", "--renew-deadline=5m"])
        .args(["--retry-period=500ms", "--id", id, flag])
        .arg("--kubeconfig")
        .arg(server.kubeconfig())
        .env("POD_NAMESPACE", "default")
        .env("POD_NAME", id)
        .env("POD_UID", pod["metadata"]["uid"].as_str().unwrap())
        .env("CONTAINER_NAME", "elector")
        .env("NODE_NAME", pod["spec"]["nodeName"].as_str().unwrap());
    Process::spawn(id, command).unwrap()
}

fn create(wire: &Wire, path: &str, object: &Value) -> Value {
    let answer = wire.send(&Method::POST, path, Some(object)).unwrap();
    assert_eq!(answer.status, 201, "{}", answer.body);
    answer.body
}

fn patch(wire: &Wire, path: &str, patch: &Value) {
    let answer = wire.send(&Method::PATCH, path, Some(patch)).unwrap();
    assert_eq!(answer.status, 200, "{}", answer.body);
}

fn pod(wire: &Wire, name: &str, node: &str) -> Value {
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": { "name": name },
        "spec": { "containers": [{ "name": "elector", "image": "tenure" }], "nodeName": node },
    });
    create(wire, "/api/v1/namespaces/default/pods", &pod)
}

/// Starts a leader in the pod web-0 and a follower in the pod web-1, and kills the leader.
fn killed_leader(server: &Embedded, wire: &Wire, home: &Home, flag: &str) -> Process {
    let pods = [pod(wire, "web-0", "n0"), pod(wire, "web-1", "n1")];
    let mut leader = start_in_pod(server, home, &pods[0], flag);
    leads(&leader);
    let follower = start_in_pod(server, home, &pods[1], flag);
    let waits = said(&follower, "web-0 holds default/e");
    assert!(waits, "{}", follower.transcript());
    leader.kill();
    let holds =
        || wire.get(&lease_path("default", "e")).unwrap().body["spec"]["holderIdentity"] != "web-0";
    let took = poll(WHILE, || holds().then_some(()));
    assert!(took.is_none(), "{}", follower.transcript());
    follower
}

#[test]
fn confirm_death_follows_the_status_that_the_kubelet_writes() {
    let (server, home) = (Embedded::start().unwrap(), Home::new());
    let wire = Wire::connect(&server.kubeconfig()).unwrap();
    let follower = killed_leader(&server, &wire, &home, "--confirm-death=pod");
    let lease = wire.get(&lease_path("default", "e")).unwrap().body;
    let acquired = lease["spec"]["acquireTime"].as_str().unwrap();
    let acquired: k8s_openapi::jiff::Timestamp = acquired.parse().unwrap();
    let at = |seconds: i64| {
        let time = acquired + k8s_openapi::jiff::SignedDuration::from_secs(seconds);
        time.round(k8s_openapi::jiff::Unit::Second)
            .unwrap()
            .to_string()
    };
    let status = json!({ "status": { "phase": "Running", "containerStatuses": [{
        "name": "elector", "image": "tenure", "imageID": "", "ready": false, "restartCount": 0,
        "state": { "terminated": {
            "containerID": "containerd://1", "exitCode": 137, "reason": "OOMKilled",
            "startedAt": at(-60), "finishedAt": at(2),
        } },
    }] } });
    patch(
        &wire,
        "/api/v1/namespaces/default/pods/web-0/status",
        &status,
    );
    leads(&follower);
}

#[test]
fn confirm_death_follows_the_taint_that_an_administrator_sets() {
    let (server, home) = (Embedded::start().unwrap(), Home::new());
    let wire = Wire::connect(&server.kubeconfig()).unwrap();
    let node = json!({ "apiVersion": "v1", "kind": "Node", "metadata": { "name": "n0" } });
    create(&wire, "/api/v1/nodes", &node);
    let follower = killed_leader(&server, &wire, &home, "--confirm-death=node");
    let not_ready = json!({ "status": { "conditions": [{
        "type": "Ready", "status": "Unknown", "reason": "NodeStatusUnknown", "message": "",
        "lastHeartbeatTime": "2026-01-01T00:00:00Z", "lastTransitionTime": "2026-01-01T00:00:00Z",
    }] } });
    patch(&wire, "/api/v1/nodes/n0/status", &not_ready);
    let taint = json!({ "spec": { "taints": [{
        "key": "node.kubernetes.io/out-of-service", "value": "nodeshutdown", "effect": "NoExecute",
    }] } });
    patch(&wire, "/api/v1/nodes/n0", &taint);
    leads(&follower);
}
