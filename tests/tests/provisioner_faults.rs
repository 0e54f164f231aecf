//! Leaders that go, drivers that go, claims that go: no volume is lost, and only one process acts.
#![allow(clippy::disallowed_methods, reason = "waits for other processes")]

use std::collections::BTreeSet;
use std::time::Duration;

use serde_json::{Value, json};
use tenure_csi::mock::{Method, MockConfig, MockDriver, Script};
use tenure_tests::storage::{Api, Provisioner, Rig};

const DRIVER: &str = "mock.csi.example";
const PATIENCE: Duration = Duration::from_secs(90);
const CLAIMS: &str = "/api/v1/namespaces/default/persistentvolumeclaims";
const VOLUMES: &str = "/api/v1/persistentvolumes";

async fn class(api: &Api, name: &str, script: Option<&str>) {
    let mut class = json!({ "metadata": { "name": name }, "provisioner": DRIVER });
    if let Some(script) = script {
        class["parameters"] = json!({ "script": script });
    }
    api.create("/apis/storage.k8s.io/v1/storageclasses", &class)
        .await
        .unwrap();
}

/// A claim as the binder hands it over; its uid.
async fn claim(api: &Api, name: &str, class: &str) -> String {
    let claim = json!({
        "metadata": {
            "name": name,
            "annotations": { "volume.kubernetes.io/storage-provisioner": DRIVER },
        },
        "spec": {
            "accessModes": ["ReadWriteOnce"],
            "resources": { "requests": { "storage": "1Gi" } },
            "storageClassName": class,
        },
    });
    let claim = api.create(CLAIMS, &claim).await.unwrap();
    claim["metadata"]["uid"].as_str().unwrap().to_owned()
}

async fn volume(api: &Api, uid: &str) -> Option<Value> {
    api.get(&format!("{VOLUMES}/pvc-{uid}")).await.unwrap()
}

/// What the binder does when the claim of a volume is gone.
async fn released(api: &Api, uid: &str) {
    let path = format!("{VOLUMES}/pvc-{uid}/status");
    api.merge(&path, &json!({ "status": { "phase": "Released" } }))
        .await
        .unwrap();
}

async fn until<T>(what: &str, mut look: impl AsyncFnMut() -> Option<T>) -> T {
    let end = tokio::time::Instant::now() + PATIENCE;
    loop {
        if let Some(found) = look().await {
            return found;
        }
        assert!(tokio::time::Instant::now() < end, "never: {what}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

fn elected(rig: &Rig, socket: &str, more: &[&str]) -> Provisioner {
    let mut flags = vec!["--leader-election", "--leader-election-namespace=default"];
    flags.extend(more);
    rig.provisioner(socket, &flags).unwrap()
}

fn callers(driver: &MockDriver) -> BTreeSet<Option<i32>> {
    driver
        .calls_of(Method::CreateVolume)
        .iter()
        .map(|call| call.pid)
        .collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_of_three_acts_and_a_terminated_leader_hands_over() {
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
        let leader = replicas.iter().position(leads).expect("one of ours");
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
async fn a_lost_driver_ends_the_process() {
    let rig = Rig::start().await.unwrap();
    let driver = rig.driver("s", MockConfig::default()).unwrap();
    let mut provisioner = rig.provisioner("s", &[]).unwrap();
    until("facts", async || {
        (!driver
            .calls_of(Method::ControllerGetCapabilities)
            .is_empty())
        .then_some(())
    })
    .await;
    drop(driver);
    let status = provisioner.process.wait(PATIENCE).unwrap();
    assert_eq!(status.code(), Some(1));
    let said = provisioner.process.transcript();
    assert!(said.contains("lost connection to CSI driver"), "{said}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_claim_deleted_while_the_driver_works_leaves_no_volume() {
    let rig = Rig::start().await.unwrap();
    let driver = rig.driver("s", MockConfig::default()).unwrap();
    // The volume is made, but the first answers say that it takes longer.
    let script = r#"{"code": "DEADLINE_EXCEEDED", "times": 3, "done_all_the_same": true}"#;
    class(&rig.api, "slow", Some(script)).await;
    let provisioner = rig.provisioner("s", &[]).unwrap();
    let uid = claim(&rig.api, "c", "slow").await;
    until("a call", async || {
        (!driver.calls_of(Method::CreateVolume).is_empty()).then_some(())
    })
    .await;
    rig.api.remove(&format!("{CLAIMS}/c")).await.unwrap();
    until("a volume object all the same", async || {
        volume(&rig.api, &uid).await
    })
    .await;
    released(&rig.api, &uid).await;
    until("no storage", async || {
        driver.volumes().is_empty().then_some(())
    })
    .await;
    assert_eq!(provisioner.stop().unwrap(), Some(0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_journal_survives_kill_9_between_storage_and_object() {
    let rig = Rig::start().await.unwrap();
    let driver = rig.driver("s", MockConfig::default()).unwrap();
    class(&rig.api, "fast", None).await;
    // The storage is there, the answer is not, and then the process is gone.
    let late = Script {
        times: Some(1),
        answer_after_ms: 60_000,
        ..Script::default()
    };
    driver.script(Method::CreateVolume, late);
    let mut first = rig
        .provisioner("s", &["--provision-journal", "--timeout=60s"])
        .unwrap();
    let uid = claim(&rig.api, "c", "fast").await;
    until("storage", async || {
        (!driver.volumes().is_empty()).then_some(())
    })
    .await;
    first.process.kill();
    assert!(volume(&rig.api, &uid).await.is_none());

    // The user gives up. The claim's own finalizers go, ours holds it.
    let path = format!("{CLAIMS}/c");
    let held = json!({ "metadata": { "finalizers": ["tenure.dev/provisioning"] } });
    rig.api.merge(&path, &held).await.unwrap();
    rig.api.delete(&path).await.unwrap();
    assert!(
        rig.api.get(&path).await.unwrap().is_some(),
        "held by the journal"
    );

    let second = rig.provisioner("s", &["--provision-journal"]).unwrap();
    until("a volume object", async || volume(&rig.api, &uid).await).await;
    until("the claim gone", async || {
        rig.api.get(&path).await.unwrap().is_none().then_some(())
    })
    .await;
    released(&rig.api, &uid).await;
    until("no storage", async || {
        driver.volumes().is_empty().then_some(())
    })
    .await;
    assert_eq!(second.stop().unwrap(), Some(0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restarted_provisioner_finds_what_it_had_begun() {
    let rig = Rig::start().await.unwrap();
    let driver = rig.driver("s", MockConfig::default()).unwrap();
    class(&rig.api, "fast", None).await;
    let late = Script {
        times: Some(1),
        answer_after_ms: 60_000,
        ..Script::default()
    };
    driver.script(Method::CreateVolume, late);
    let mut first = rig.provisioner("s", &["--timeout=60s"]).unwrap();
    let uid = claim(&rig.api, "c", "fast").await;
    until("storage", async || {
        (!driver.volumes().is_empty()).then_some(())
    })
    .await;
    first.process.kill();
    let second = rig
        .provisioner("s", &["--fencing-token-annotation"])
        .unwrap();
    until("a volume object", async || volume(&rig.api, &uid).await).await;
    assert_eq!(driver.volumes().len(), 1, "the same one");
    assert_eq!(second.stop().unwrap(), Some(0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn wrong_flags_are_said_at_once() {
    let rig = Rig::start().await.unwrap();
    for (flags, code, text) in [
        (&["--provisioner=x"][..], 1, "was removed"),
        (&["--enable-capacity"], 1, "not supported yet"),
        (
            &["--metrics-address=:1", "--http-endpoint=:2"],
            1,
            "only one of",
        ),
        (
            &["--leader-election-type=configmaps"],
            1,
            "only leases and endpoints",
        ),
        (&["--csi-address=localhost:1"], 1, "no unix socket"),
        (&["--no-such-flag"], 2, "--no-such-flag"),
    ] {
        let output = rig.command("none", flags).unwrap().output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(code), "{flags:?}: {said}");
        assert!(said.contains(text), "{flags:?}: {said}");
    }
}
