//! kube-scheduler on `tenure server`: it syncs, acquires its lease, schedules pods, and hands over.
#![allow(clippy::disallowed_methods, reason = "waits for other processes")]

use std::process::Command;
use std::time::Duration;

use serde_json::{Value, json};
use tenure_tests::candidate::Election;
use tenure_tests::clock;
use tenure_tests::event::Kind;
use tenure_tests::process::Process;
use tenure_tests::real::{Peer, available, build};
use tenure_tests::storage::{Api, Served};
use tenure_tests::{Skip, tools};

const LIMIT: Duration = Duration::from_secs(120);
const NODES: &str = "/api/v1/nodes";
const PODS: &str = "/api/v1/namespaces/default/pods";
const LEASE: &str = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/kube-scheduler";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kube_scheduler_places_pods_and_hands_over() {
    let programs = available(&[Peer::KubeScheduler]).and(tools::candidate());
    if Skip::unless(programs).is_none() {
        return;
    }
    let served = Served::start(&["--disable=first-consumer"]).await.unwrap();
    let api = &served.api;
    let first = scheduler(&served);
    let holder = next_holder(api, "", &first).await;

    // One of two nodes has enough capacity.
    node(api, "small", "1").await;
    node(api, "large", "8").await;
    pod(api, "user", "4").await;
    let placed = placed(api, "user", &first).await;
    assert_eq!(placed["spec"]["nodeName"], "large", "{placed}");
    let conditions = placed["status"]["conditions"].as_array().unwrap();
    let scheduled = conditions.iter().find(|c| c["type"] == "PodScheduled");
    assert_eq!(scheduled.unwrap()["status"], "True", "{placed}");

    // A pod that fits on no node stays pending, with the reason.
    pod(api, "huge", "64").await;
    found("the pod is too large", &first, async || {
        let pod = api.get(&format!("{PODS}/huge")).await.unwrap().unwrap();
        let mut conditions = pod["status"]["conditions"].as_array()?.iter();
        conditions.find(|condition| condition["reason"] == "Unschedulable")?;
        Some(())
    })
    .await;

    // A second scheduler takes over when the first one ends, and schedules new pods.
    let second = scheduler(&served);
    first.terminate();
    let next = next_holder(api, &holder, &second).await;
    pod(api, "later", "1").await;
    self::placed(api, "later", &second).await;

    // A tenure candidate takes over the same lease, too.
    let mut election = Election::new(served.kubeconfig(), "kube-scheduler").quick();
    election.namespace = "kube-system".to_owned();
    let ours = election.library("tenure-0", &[]).unwrap();
    ours.wait_until("sight of the scheduler", LIMIT, |event| {
        event.event == Kind::Observed && event.leader == next
    })
    .unwrap();
    let since = clock::now();
    second.terminate();
    ours.wait_for(Kind::Acquired, since, LIMIT).unwrap();
    let lease = api.get(LEASE).await.unwrap().unwrap();
    assert_eq!(lease["spec"]["holderIdentity"], "tenure-0", "{lease}");
    assert_eq!(lease["spec"]["leaseTransitions"], 2, "{lease}");
}

fn scheduler(served: &Served) -> Process {
    let mut command = Command::new(build(Peer::KubeScheduler).unwrap());
    command
        .arg(format!("--kubeconfig={}", served.kubeconfig().display()))
        .args(["--secure-port=0", "--leader-elect=true"])
        .arg("--leader-elect-retry-period=500ms");
    Process::spawn(Peer::KubeScheduler.name(), command).unwrap()
}

/// Creates a ready node with this number of CPUs.
async fn node(api: &Api, name: &str, cpu: &str) {
    let node = json!({ "metadata": { "name": name } });
    api.create(NODES, &node).await.unwrap();
    let room = json!({ "cpu": cpu, "memory": "8Gi", "pods": "110" });
    let ready = json!([{ "type": "Ready", "status": "True" }]);
    let status = json!({ "capacity": room, "allocatable": room, "conditions": ready });
    let path = format!("{NODES}/{name}");
    let change = json!({ "status": status });
    api.merge(&format!("{path}/status"), &change).await.unwrap();
    // kube-controller-manager does this for a ready node.
    let change = json!({ "spec": { "taints": null } });
    api.merge(&path, &change).await.unwrap();
}

async fn pod(api: &Api, name: &str, cpu: &str) {
    let resources = json!({ "requests": { "cpu": cpu } });
    let container = json!({ "name": "c", "image": "i", "resources": resources });
    let pod = json!({
        "metadata": { "name": name },
        "spec": { "schedulerName": "default-scheduler", "containers": [container] },
    });
    api.create(PODS, &pod).await.unwrap();
}

/// Waits until a pod is assigned to a node.
async fn placed(api: &Api, name: &str, scheduler: &Process) -> Value {
    let path = format!("{PODS}/{name}");
    found(&format!("a node for {name}"), scheduler, async || {
        let pod = api.get(&path).await.unwrap().unwrap();
        pod["spec"]["nodeName"].is_string().then_some(pod)
    })
    .await
}

/// Waits until the lease is held by a holder other than `old`.
async fn next_holder(api: &Api, old: &str, scheduler: &Process) -> String {
    found("the next holder", scheduler, async || {
        let lease = api.get(LEASE).await.unwrap()?;
        let holder = lease["spec"]["holderIdentity"].as_str()?.to_owned();
        (!holder.is_empty() && holder != old).then_some(holder)
    })
    .await
}

async fn found<T>(what: &str, scheduler: &Process, mut ask: impl AsyncFnMut() -> Option<T>) -> T {
    let wait = async {
        loop {
            if let Some(answer) = ask().await {
                return answer;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    let waited = tokio::time::timeout(LIMIT, wait).await;
    waited.unwrap_or_else(|_| panic!("not in time: {what}\n{}", scheduler.transcript()))
}
