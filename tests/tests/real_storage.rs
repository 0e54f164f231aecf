//! kube-controller-manager on `tenure server`, instead of the built-in controllers. Both give the same results for the same
//! claims and volumes.
#![allow(clippy::disallowed_methods, reason = "waits for other processes")]

use std::process::Command;

use serde_json::{Value, json};
use tenure_tests::Skip;
use tenure_tests::process::Process;
use tenure_tests::real::{Peer, available, build};
use tenure_tests::storage::{Api, STORAGE_CONTROLLERS, Served};

use crate::server_storage::{CLASSES, DRIVER, abilities, claim, claim_phase, end, outcomes, until};

const NODES: &str = "/api/v1/nodes";
const PODS: &str = "/api/v1/namespaces/default/pods";
const MAPS: &str = "/api/v1/namespaces/default/configmaps";
const CLAIMS: &str = "/api/v1/namespaces/default/persistentvolumeclaims";

fn start(peer: Peer, served: &Served, flags: &[&str]) -> Process {
    let mut command = Command::new(build(peer).unwrap());
    command
        .arg(format!("--kubeconfig={}", served.kubeconfig().display()))
        .args(["--secure-port=0", "--leader-elect=true"])
        .args(flags);
    Process::spawn(peer.name(), command).unwrap()
}

fn controller_manager(served: &Served) -> Process {
    let controllers = "--controllers=persistentvolume-binder-controller,\
                       persistentvolumeclaim-protection-controller,\
                       persistentvolume-protection-controller,\
                       namespace-controller,garbage-collector-controller";
    let flags = [controllers, "--pvclaimbinder-sync-period=1s"];
    start(Peer::KubeControllerManager, served, &flags)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn real_binder_and_built_in_binder_give_the_same_result() {
    if Skip::unless(available(&[Peer::KubeControllerManager])).is_none() {
        return;
    }
    let ours = run(&[], |_| None).await;
    let disable = format!("--disable={STORAGE_CONTROLLERS},garbage-collector");
    let theirs = run(&[&disable], |served| Some(controller_manager(served))).await;
    for kind in ["claims", "volumes"] {
        let (ours, theirs) = (&ours[kind], &theirs[kind]);
        let names = |objects: &Value| -> Vec<String> {
            objects.as_object().unwrap().keys().cloned().collect()
        };
        assert_eq!(names(ours), names(theirs));
        for name in names(ours) {
            let text = |of: &Value| serde_json::to_string_pretty(&of[&name]).unwrap();
            assert_eq!(text(ours), text(theirs), "{kind} {name}: ours, theirs");
        }
    }
}

/// Runs the same claims and volumes from creation to deletion.
async fn run(flags: &[&str], beside: impl Fn(&Served) -> Option<Process>) -> Value {
    let served = Served::start(flags).await.unwrap();
    let _beside = beside(&served);
    let driver = served.driver(abilities()).unwrap();
    let _provisioner = served.provisioner(&[]).unwrap();
    let found = outcomes(&served.api, &driver).await;
    end(&served.api, &driver).await;
    found
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kube_controller_manager_takes_over() {
    if Skip::unless(available(&[Peer::KubeControllerManager])).is_none() {
        return;
    }
    // kube-scheduler selects nodes, so the built-in controller stays enabled for that.
    let disable = "--disable=persistentvolume-binder,pvc-protection,pv-protection,\
                   garbage-collector,namespace-purge";
    let served = Served::start(&[disable]).await.unwrap();
    let api = &served.api;
    let _manager = controller_manager(&served);
    let driver = served.driver(abilities()).unwrap();
    let _provisioner = served.provisioner(&[]).unwrap();

    // It acquires its own lease.
    let path = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/kube-controller-manager";
    until("it leads", async || {
        let lease = api.get(path).await.unwrap().unwrap_or_default();
        let holder = lease["spec"]["holderIdentity"].as_str();
        holder.is_some_and(|holder| !holder.is_empty())
    })
    .await;

    // A node is selected for a waiting claim. The binder then requests the volume and binds it.
    let labels = json!({ "kubernetes.io/hostname": "worker" });
    let node = json!({ "metadata": { "name": "worker", "labels": labels } });
    api.create(NODES, &node).await.unwrap();
    let class = json!({
        "metadata": { "name": "late" },
        "provisioner": DRIVER,
        "volumeBindingMode": "WaitForFirstConsumer",
    });
    api.create(CLASSES, &class).await.unwrap();
    claim(api, "data", "late", json!({})).await;
    let source = json!({ "claimName": "data" });
    let pod = json!({
        "metadata": { "name": "user" },
        "spec": {
            "containers": [{ "name": "c", "image": "i" }],
            "volumes": [{ "name": "v", "persistentVolumeClaim": source }],
        },
    });
    api.create(PODS, &pod).await.unwrap();
    claim_phase(api, "data", "Bound").await;
    let data = api.get(&format!("{CLAIMS}/data")).await.unwrap().unwrap();
    let selected = &data["metadata"]["annotations"]["volume.kubernetes.io/selected-node"];
    assert_eq!(selected, "worker", "{data}");

    // The garbage collector deletes dependents of a deleted owner.
    let owner = json!({ "metadata": { "name": "owner" } });
    let owner = api.create(MAPS, &owner).await.unwrap();
    let reference = json!({
        "apiVersion": "v1", "kind": "ConfigMap", "name": "owner", "uid": owner["metadata"]["uid"],
    });
    let meta = json!({ "name": "owned", "ownerReferences": [reference] });
    api.create(MAPS, &json!({ "metadata": meta }))
        .await
        .unwrap();
    api.delete(&format!("{MAPS}/owner")).await.unwrap();
    gone(api, &format!("{MAPS}/owned")).await;

    // Namespaces are deleted, and claims and volumes after their users.
    let namespace = json!({ "metadata": { "name": "short" } });
    api.create("/api/v1/namespaces", &namespace).await.unwrap();
    let map = json!({ "metadata": { "name": "m" } });
    api.create("/api/v1/namespaces/short/configmaps", &map)
        .await
        .unwrap();
    api.delete("/api/v1/namespaces/short").await.unwrap();
    gone(api, "/api/v1/namespaces/short").await;
    api.delete(&format!("{CLAIMS}/data")).await.unwrap();
    api.delete(&format!("{PODS}/user?gracePeriodSeconds=0"))
        .await
        .unwrap();
    gone(api, &format!("{CLAIMS}/data")).await;
    until("the driver deletes the volume", async || {
        driver.volumes().is_empty()
    })
    .await;
}

async fn gone(api: &Api, path: &str) {
    until(&format!("{path} is gone"), async || {
        api.get(path).await.unwrap().is_none()
    })
    .await;
}
