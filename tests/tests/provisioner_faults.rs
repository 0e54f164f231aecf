//! Drivers that exit, claims that are deleted, unreachable API servers: no volume is lost.
#![allow(clippy::disallowed_methods, reason = "waits for other processes")]

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tenure_apiserver::server::{Fault, Faults, Server};
use tenure_csi::mock::{Method, MockConfig, MockDriver, Script};
use tenure_tests::nemesis::proxy::{Gate, Proxy};
use tenure_tests::storage::{Api, Provisioner, Rig, handed_over, until};

const DRIVER: &str = "mock.csi.example";
pub(crate) const PATIENCE: Duration = Duration::from_secs(90);
const CLAIMS: &str = "/api/v1/namespaces/default/persistentvolumeclaims";
const VOLUMES: &str = "/api/v1/persistentvolumes";
const EVENTS: &str = "/api/v1/namespaces/default/events";

pub(crate) async fn class(api: &Api, name: &str, script: Option<&str>) {
    let mut class = json!({ "metadata": { "name": name }, "provisioner": DRIVER });
    if let Some(script) = script {
        class["parameters"] = json!({ "script": script });
    }
    api.create("/apis/storage.k8s.io/v1/storageclasses", &class)
        .await
        .unwrap();
}

/// Creates a claim with the annotations of the binder. Returns its uid.
pub(crate) async fn claim(api: &Api, name: &str, class: &str) -> String {
    let claim = handed_over(name, class, DRIVER);
    let claim = api.create(CLAIMS, &claim).await.unwrap();
    claim["metadata"]["uid"].as_str().unwrap().to_owned()
}

pub(crate) async fn volume(api: &Api, uid: &str) -> Option<Value> {
    api.get(&format!("{VOLUMES}/pvc-{uid}")).await.unwrap()
}

/// Sets the phase that the binder sets when the claim of a volume is gone.
async fn released(api: &Api, uid: &str) {
    let path = format!("{VOLUMES}/pvc-{uid}/status");
    api.merge(&path, &json!({ "status": { "phase": "Released" } }))
        .await
        .unwrap();
}

pub(crate) fn elected(rig: &Rig, socket: &str, more: &[&str]) -> Provisioner {
    let mut flags = vec!["--leader-election", "--leader-election-namespace=default"];
    flags.extend(more);
    rig.provisioner(socket, &flags).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_driver_ends_the_process() {
    let rig = Rig::start().await.unwrap();
    let driver = rig.driver("s", MockConfig::default()).unwrap();
    let mut provisioner = rig.provisioner("s", &[]).unwrap();
    until("work", async || {
        let said = provisioner.process.transcript();
        said.contains("provisioning").then_some(())
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
    // The driver creates the volume, but its first responses report a timeout.
    let script = r#"{"code": "DEADLINE_EXCEEDED", "times": 3, "applied_despite_code": true}"#;
    class(&rig.api, "slow", Some(script)).await;
    let provisioner = rig.provisioner("s", &[]).unwrap();
    let uid = claim(&rig.api, "c", "slow").await;
    until("a call", async || {
        (!driver.calls_of(Method::CreateVolume).is_empty()).then_some(())
    })
    .await;
    rig.api.remove(&format!("{CLAIMS}/c")).await.unwrap();
    until("a volume object despite the errors", async || {
        volume(&rig.api, &uid).await
    })
    .await;
    assert_eq!(leaks(&rig, &driver).await, [""; 0]);
    released(&rig.api, &uid).await;
    until("nothing is left", async || {
        let gone = driver.volumes().is_empty() && leaks(&rig, &driver).await.is_empty();
        gone.then_some(())
    })
    .await;
    assert_eq!(provisioner.stop().unwrap(), Some(0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_journal_survives_kill_9_between_storage_and_object() {
    let rig = Rig::start().await.unwrap();
    let driver = rig.driver("s", MockConfig::default()).unwrap();
    class(&rig.api, "fast", None).await;
    // The storage is created, but the process is killed before the response arrives.
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

    // The user deletes the claim. Its other finalizers are removed, and ours keeps it.
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
    assert_eq!(leaks(&rig, &driver).await, [""; 0]);
    released(&rig.api, &uid).await;
    until("nothing is left", async || {
        let gone = driver.volumes().is_empty() && leaks(&rig, &driver).await.is_empty();
        gone.then_some(())
    })
    .await;
    assert_eq!(second.stop().unwrap(), Some(0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn restarted_provisioner_completes_unfinished_volumes() {
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
    assert_eq!(leaks(&rig, &driver).await, [""; 0]);
    assert_eq!(second.stop().unwrap(), Some(0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn invalid_flags_are_reported_immediately() {
    let rig = Rig::start().await.unwrap();
    for (flags, code, text) in [
        (&["--provisioner=x"][..], 1, "was removed"),
        (
            &["--metrics-address=:1", "--http-endpoint=:2"],
            1,
            "only one of",
        ),
        (
            &["--leader-election-type=configmaps"],
            1,
            "only leases, endpoints and endpointsleases",
        ),
        (&["--csi-address=localhost:1"], 1, "not a unix socket"),
        (&["--no-such-flag"], 2, "--no-such-flag"),
    ] {
        let output = rig.command("none", flags).unwrap().output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(code), "{flags:?}: {said}");
        assert!(said.contains(text), "{flags:?}: {said}");
    }
}

/// Starts a server with fault injection and a driver, and creates a class without a script.
async fn faulty() -> (Rig, Arc<Faults>, MockDriver) {
    let faults = Arc::new(Faults::default());
    let server = Server::builder().faults(faults.clone());
    let rig = Rig::start_with(server).await.unwrap();
    let driver = rig.driver("s", MockConfig::default()).unwrap();
    class(&rig.api, "fast", None).await;
    (rig, faults, driver)
}

/// Returns storage without an object, and objects without storage. Objects that are being deleted do not count, because
/// no controller here removes the finalizers of Kubernetes.
pub(crate) async fn leaks(rig: &Rig, driver: &MockDriver) -> Vec<String> {
    let list = rig.api.get(VOLUMES).await.unwrap().unwrap_or_default();
    let objects: BTreeSet<String> = list["items"]
        .as_array()
        .into_iter()
        .flatten()
        .filter(|volume| volume["metadata"]["deletionTimestamp"].is_null())
        .filter_map(|volume| volume["spec"]["csi"]["volumeHandle"].as_str())
        .map(str::to_owned)
        .collect();
    let storage: BTreeSet<String> = driver.volumes().into_keys().collect();
    storage.symmetric_difference(&objects).cloned().collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn objects_that_cannot_be_posted_for_a_while_are_posted_in_the_end() {
    let (rig, faults, driver) = faulty().await;
    let refused = faults.add(Fault::answer(500).path(VOLUMES).verb("create"));
    let provisioner = rig.provisioner("s", &[]).unwrap();
    let kept = claim(&rig.api, "kept", "fast").await;
    let gone = claim(&rig.api, "gone", "fast").await;
    until("both tried more than once", async || {
        (driver.volumes().len() == 2 && refused.hits() > 4).then_some(())
    })
    .await;
    // One claim is deleted, but its storage exists.
    rig.api.remove(&format!("{CLAIMS}/gone")).await.unwrap();
    refused.remove();
    for uid in [&kept, &gone] {
        until("a volume object", async || volume(&rig.api, uid).await).await;
    }
    assert_eq!(driver.calls_of(Method::CreateVolume).len(), 2, "made once");
    released(&rig.api, &gone).await;
    until("its storage gone", async || {
        (driver.volumes().len() == 1).then_some(())
    })
    .await;
    assert!(driver.volumes().contains_key(&format!("vol-pvc-{kept}")));

    // The object is created, the response is lost, and the next attempt is rejected: the storage must not be deleted.
    let post = |fault: Fault| faults.add(fault.path(VOLUMES).verb("create").times(1));
    let (lost, invalid) = (post(Fault::drop_answer()), post(Fault::answer(422)));
    let uid = claim(&rig.api, "lost", "fast").await;
    until("an event that reports success", async || {
        let events = rig.api.get(EVENTS).await;
        let said = format!("Successfully provisioned volume pvc-{uid}");
        events.unwrap()?.to_string().contains(&said).then_some(())
    })
    .await;
    assert_eq!((lost.hits(), invalid.hits()), (1, 1));
    assert!(driver.volumes().contains_key(&format!("vol-pvc-{uid}")));
    assert!(volume(&rig.api, &uid).await.is_some());
    until("an object for every volume", async || {
        leaks(&rig, &driver).await.is_empty().then_some(())
    })
    .await;
    assert_eq!(provisioner.stop().unwrap(), Some(0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unposted_volumes_are_posted_before_the_exit() {
    let (rig, faults, driver) = faulty().await;
    let refused = faults.add(Fault::answer(503).path(VOLUMES).verb("create"));
    let mut provisioner = rig.provisioner("s", &[]).unwrap();
    let uid = claim(&rig.api, "c", "fast").await;
    // After this many attempts the next one is far in the future.
    until("tries", async || (refused.hits() > 8).then_some(())).await;
    rig.api.remove(&format!("{CLAIMS}/c")).await.unwrap();
    refused.remove();
    provisioner.process.terminate();
    let status = provisioner.process.wait(PATIENCE).unwrap();
    assert_eq!(status.code(), Some(0));
    assert!(
        volume(&rig.api, &uid).await.is_some(),
        "otherwise the storage would be orphaned"
    );
    assert_eq!(leaks(&rig, &driver).await, [""; 0]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kill_9_at_every_step_leaves_nothing_behind() {
    let (rig, faults, driver) = faulty().await;
    let slow = Duration::from_secs(120);
    let hung = || Script {
        times: Some(1),
        answer_after_ms: 120_000,
        ..Script::default()
    };
    let before = || Script {
        times: Some(1),
        delay_ms: 120_000,
        ..Script::default()
    };
    let latency = |verb: &str| Fault::latency(slow).path(VOLUMES).verb(verb).times(1);
    for step in 0..7 {
        let name = format!("step-{step}");
        let mut first = rig.provisioner("s", &["--timeout=120s"]).unwrap();
        // Creation: before the storage exists, before the response, and before the object exists.
        let mut added = None;
        match step {
            0 => driver.script(Method::CreateVolume, before()),
            1 => driver.script(Method::CreateVolume, hung()),
            2 => added = Some(faults.add(latency("create"))),
            // After the creation, before the event is recorded.
            6 => drop(faults.add(Fault::latency(slow).path(EVENTS).verb("create"))),
            _ => {}
        }
        let calls = driver.calls_of(Method::CreateVolume).len();
        let uid = claim(&rig.api, &name, "fast").await;
        let id = format!("vol-pvc-{uid}");
        if step < 3 {
            until(&format!("making, {name}"), async || {
                let there = driver.volumes().contains_key(&id);
                match &added {
                    Some(added) => added.hits() > 0,
                    None => {
                        driver.calls_of(Method::CreateVolume).len() > calls && (step == 0 || there)
                    }
                }
                .then_some(())
            })
            .await;
            first.process.kill();
            first = rig.provisioner("s", &[]).unwrap();
        }
        until(&format!("a volume, {name}"), async || {
            volume(&rig.api, &uid).await
        })
        .await;
        if step == 6 {
            let events = rig.api.get(EVENTS).await.unwrap().unwrap_or_default();
            assert!(!events.to_string().contains(&uid), "{events}");
            first.process.kill();
            faults.clear();
            first = rig.provisioner("s", &[]).unwrap();
        }
        // Deletion: before the storage is deleted, before the response, and before the object is deleted.
        added = None;
        match step {
            3 => driver.script(Method::DeleteVolume, before()),
            4 => driver.script(Method::DeleteVolume, hung()),
            5 => added = Some(faults.add(latency("delete"))),
            _ => {}
        }
        let calls = driver.calls_of(Method::DeleteVolume).len();
        rig.api.remove(&format!("{CLAIMS}/{name}")).await.unwrap();
        released(&rig.api, &uid).await;
        if (3..6).contains(&step) {
            until(&format!("deleting, {name}"), async || {
                let there = driver.volumes().contains_key(&id);
                match &added {
                    Some(added) => added.hits() > 0,
                    None => {
                        driver.calls_of(Method::DeleteVolume).len() > calls && (step == 3 || !there)
                    }
                }
                .then_some(())
            })
            .await;
            first.process.kill();
            first = rig.provisioner("s", &[]).unwrap();
        }
        until(&format!("no storage, {name}"), async || {
            driver.volumes().is_empty().then_some(())
        })
        .await;
        until(&format!("no finalizer of ours, {name}"), async || {
            let Some(volume) = volume(&rig.api, &uid).await else {
                return Some(());
            };
            let meta = &volume["metadata"];
            let held = meta["finalizers"]
                .to_string()
                .contains("external-provisioner");
            (meta["deletionTimestamp"].is_string() && !held).then_some(())
        })
        .await;
        faults.clear();
        // No controller here removes the remaining finalizers.
        rig.api
            .remove(&format!("{VOLUMES}/pvc-{uid}"))
            .await
            .unwrap();
        first.process.kill();
    }
    assert_eq!(leaks(&rig, &driver).await, [""; 0]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_driver_that_restarts_keeps_its_volumes_and_gets_a_new_provisioner() {
    let rig = Rig::start().await.unwrap();
    let driver = rig.driver("s", MockConfig::default()).unwrap();
    class(&rig.api, "fast", None).await;
    driver.script(
        Method::CreateVolume,
        Script {
            times: Some(1),
            answer_after_ms: 120_000,
            ..Script::default()
        },
    );
    let mut first = rig.provisioner("s", &["--timeout=120s"]).unwrap();
    let uid = claim(&rig.api, "c", "fast").await;
    until("storage", async || {
        (!driver.volumes().is_empty()).then_some(())
    })
    .await;
    let volumes = driver.keep_volumes();
    drop(driver);
    assert_eq!(first.process.wait(PATIENCE).unwrap().code(), Some(1));
    let socket = rig.socket("s");
    let driver = MockDriver::restart(MockConfig::default(), socket, volumes).unwrap();
    let second = rig.provisioner("s", &[]).unwrap();
    until("a volume object", async || volume(&rig.api, &uid).await).await;
    assert_eq!(leaks(&rig, &driver).await, [""; 0]);
    assert_eq!(second.stop().unwrap(), Some(0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn changes_during_a_partition_are_processed_afterwards() {
    let rig = Rig::start().await.unwrap();
    let driver = rig.driver("s", MockConfig::default()).unwrap();
    class(&rig.api, "slow", Some(r#"{"answer_after_ms": 2000}"#)).await;
    let start = || Proxy::start(&rig.server.kubeconfig()).unwrap();
    let proxy = tokio::task::block_in_place(start);
    let command = rig.command_as(&proxy.kubeconfig(), "s", &[]).unwrap();
    let provisioner = Rig::spawn("s", command).unwrap();
    let mut uids = Vec::new();
    for number in 0..6 {
        uids.push(claim(&rig.api, &format!("c{number}"), "slow").await);
    }
    until("storage for all", async || {
        (driver.volumes().len() == 6).then_some(())
    })
    .await;
    // The driver has created everything. Its responses arrive while the API server is unreachable, and half of the
    // claims are deleted in the meantime.
    proxy.set(Gate::Held, Gate::Held);
    for number in 0..3 {
        let path = format!("{CLAIMS}/c{number}");
        rig.api.remove(&path).await.unwrap();
    }
    tokio::time::sleep(Duration::from_secs(3)).await;
    proxy.heal();
    for uid in &uids {
        until("a volume object", async || volume(&rig.api, uid).await).await;
    }
    assert_eq!(leaks(&rig, &driver).await, [""; 0]);
    for uid in &uids[..3] {
        released(&rig.api, uid).await;
    }
    until("half of the storage", async || {
        let half = driver.volumes().len() == 3 && leaks(&rig, &driver).await.is_empty();
        half.then_some(())
    })
    .await;
    assert_eq!(provisioner.stop().unwrap(), Some(0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn storage_whose_name_was_taken_is_deleted_with_its_secret() {
    let rig = Rig::start().await.unwrap();
    let driver = rig.driver("s", MockConfig::default()).unwrap();
    let secret = json!({ "metadata": { "name": "s" }, "data": { "user": "bWU=" } });
    rig.api
        .create("/api/v1/namespaces/default/secrets", &secret)
        .await
        .unwrap();
    let class = json!({
        "metadata": { "name": "fast" },
        "provisioner": DRIVER,
        "parameters": {
            "csi.storage.k8s.io/provisioner-secret-name": "s",
            "csi.storage.k8s.io/provisioner-secret-namespace": "default",
        },
    });
    rig.api
        .create("/apis/storage.k8s.io/v1/storageclasses", &class)
        .await
        .unwrap();
    driver.script(
        Method::CreateVolume,
        Script {
            times: Some(1),
            answer_after_ms: 3_000,
            ..Script::default()
        },
    );
    // The deletion fails twice as well.
    driver.script(Method::DeleteVolume, Script::fail("INTERNAL", 2));
    let provisioner = rig.provisioner("s", &[]).unwrap();
    let uid = claim(&rig.api, "c", "fast").await;
    until("storage", async || {
        (!driver.volumes().is_empty()).then_some(())
    })
    .await;
    let other = json!({
        "metadata": { "name": format!("pvc-{uid}") },
        "spec": {
            "accessModes": ["ReadWriteOnce"],
            "capacity": { "storage": "1Gi" },
            "csi": { "driver": "other.example", "volumeHandle": "theirs" },
        },
    });
    rig.api.create(VOLUMES, &other).await.unwrap();
    until("no storage", async || {
        driver.volumes().is_empty().then_some(())
    })
    .await;
    let calls = driver.calls_of(Method::DeleteVolume);
    assert_eq!(calls.len(), 3);
    for call in calls {
        assert_eq!(call.request["secrets"], json!({ "user": "me" }));
    }
    let kept = volume(&rig.api, &uid).await.unwrap();
    assert_eq!(kept["spec"]["csi"]["volumeHandle"], "theirs");
    assert_eq!(provisioner.stop().unwrap(), Some(0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stopping_provisioner_starts_no_new_work() {
    const CLAIMS: usize = 60;
    let rig = Rig::start().await.unwrap();
    let driver = rig.driver("s", MockConfig::default()).unwrap();
    class(&rig.api, "slow", Some(r#"{"delay_ms": 1000}"#)).await;
    for number in 0..CLAIMS {
        claim(&rig.api, &format!("c{number}"), "slow").await;
    }
    let provisioner = rig.provisioner("s", &["--worker-threads=2"]).unwrap();
    until("work", async || {
        (!driver.calls_of(Method::CreateVolume).is_empty()).then_some(())
    })
    .await;
    assert_eq!(provisioner.stop().unwrap(), Some(0));
    let calls = driver.calls_of(Method::CreateVolume).len();
    assert!(calls < CLAIMS, "{calls} calls");
    assert_eq!(
        leaks(&rig, &driver).await,
        [""; 0],
        "started work is completed"
    );
}
