//! Leaders that end, and their successors: only one process acts, and no volume is lost.
#![allow(clippy::disallowed_methods, reason = "waits for other processes")]

use std::collections::BTreeSet;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use tenure_csi::mock::{Method, MockConfig, MockDriver, Script};
use tenure_tests::nemesis::proxy::{Gate, Proxy};
use tenure_tests::storage::{Provisioner, Rig, until};

use crate::provisioner_faults::{PATIENCE, claim, class, elected, leaks, volume};

fn callers(driver: &MockDriver) -> BTreeSet<Option<i32>> {
    driver
        .calls_of(Method::CreateVolume)
        .iter()
        .map(|call| call.pid)
        .collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_of_three_replicas_acts_and_a_terminated_leader_hands_over() {
    let rig = Rig::start().await.unwrap();
    let driver = rig.driver("s", MockConfig::default()).unwrap();
    class(&rig.api, "fast", None).await;
    let mut replicas: Vec<_> = (0..3)
        .map(|_| elected(&rig, "s", &["--warm-standby"]))
        .collect();
    for round in 0..2 {
        let mut uids = Vec::new();
        for number in 0..5 {
            uids.push(claim(&rig.api, &format!("c{round}-{number}"), "fast").await);
        }
        for uid in &uids {
            until("a volume", async || volume(&rig.api, uid).await).await;
        }
        assert_eq!(callers(&driver).len(), round + 1, "one process at a time");
        let pid = driver
            .calls_of(Method::CreateVolume)
            .last()
            .and_then(|call| call.pid);
        let leads = |replica: &Provisioner| i32::try_from(replica.process.pid()).ok() == pid;
        let leader = replicas
            .iter()
            .position(leads)
            .expect("the caller is one of the replicas");
        assert_eq!(
            replicas.remove(leader).stop().unwrap(),
            Some(0),
            "it released the lease"
        );
    }
    let lease = "/apis/coordination.k8s.io/v1/namespaces/default/leases/mock-csi-example";
    assert!(
        rig.api.get(lease).await.unwrap().is_some(),
        "csi-lib-utils' name"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn successor_of_a_killed_leader_waits_for_its_lease() {
    const LEASE: Duration = Duration::from_secs(5);
    let rig = Rig::start().await.unwrap();
    let driver = rig.driver("s", MockConfig::default()).unwrap();
    class(&rig.api, "fast", None).await;
    let times = [
        "--leader-election-lease-duration=5s",
        "--leader-election-renew-deadline=3s",
        "--leader-election-retry-period=500ms",
    ];
    // The storage exists when the leader is killed, but no object refers to it.
    let late = Script {
        times: Some(1),
        answer_after_ms: 120_000,
        ..Script::default()
    };
    driver.script(Method::CreateVolume, late);
    let mut first = elected(&rig, "s", &times);
    let uid = claim(&rig.api, "c", "fast").await;
    until("storage", async || {
        (!driver.volumes().is_empty()).then_some(())
    })
    .await;
    let second = elected(&rig, "s", &times);
    until("a waiting candidate", async || {
        let said = second.process.transcript();
        said.contains("connected").then_some(())
    })
    .await;
    let lease = "/apis/coordination.k8s.io/v1/namespaces/default/leases/mock-csi-example";
    first.process.kill();
    let lease = rig.api.get(lease).await.unwrap().unwrap();
    let renewed: MicroTime = serde_json::from_value(lease["spec"]["renewTime"].clone()).unwrap();
    until("a volume object", async || volume(&rig.api, &uid).await).await;
    // The successor counts from its observation of the last renewal, which is not earlier than the write.
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    let renewed = Duration::from_micros(renewed.0.as_microsecond().try_into().unwrap());
    assert!(now >= renewed + LEASE, "{lease}");
    assert_eq!(callers(&driver).len(), 2);
    assert_eq!(leaks(&rig, &driver).await, [""; 0]);
    assert_eq!(second.stop().unwrap(), Some(0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn partitioned_leader_stops_before_another_begins() {
    let rig = Rig::start().await.unwrap();
    let driver = rig.driver("s", MockConfig::default()).unwrap();
    class(&rig.api, "fast", None).await;
    let start = || Proxy::start(&rig.server.kubeconfig()).unwrap();
    let proxy = tokio::task::block_in_place(start);
    let times = [
        "--leader-election",
        "--leader-election-namespace=default",
        "--leader-election-lease-duration=6s",
        "--leader-election-renew-deadline=4s",
        "--leader-election-retry-period=1s",
    ];
    let command = rig.command_as(&proxy.kubeconfig(), "s", &times).unwrap();
    let mut first = Rig::spawn("s", command).unwrap();
    let uid = claim(&rig.api, "one", "fast").await;
    until("a volume object", async || volume(&rig.api, &uid).await).await;
    let second = rig.provisioner("s", &times).unwrap();
    // The storage exists when the network fails; the first provisioner may never create the object.
    driver.script(
        Method::CreateVolume,
        Script {
            times: Some(1),
            answer_after_ms: 2_000,
            ..Script::default()
        },
    );
    let cut = claim(&rig.api, "two", "fast").await;
    let id = format!("vol-pvc-{cut}");
    until("storage", async || {
        driver.volumes().contains_key(&id).then_some(())
    })
    .await;
    proxy.set(Gate::Held, Gate::Held);
    let status = first.process.wait(PATIENCE).unwrap();
    assert_eq!(status.code(), Some(1), "another may lead");
    until("a volume object", async || volume(&rig.api, &cut).await).await;
    let more = claim(&rig.api, "three", "fast").await;
    until("a volume object", async || volume(&rig.api, &more).await).await;
    proxy.heal();
    // The processes call one after the other, never alternately.
    let mut pids: Vec<_> = driver
        .calls_of(Method::CreateVolume)
        .iter()
        .map(|call| call.pid)
        .collect();
    pids.dedup();
    assert_eq!(pids.len(), 2, "{pids:?}");
    assert_eq!(leaks(&rig, &driver).await, [""; 0]);
    assert_eq!(second.stop().unwrap(), Some(0));
}
