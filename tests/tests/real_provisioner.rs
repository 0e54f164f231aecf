//! `tenure provision` in its target environment: kube-apiserver with RBAC and the roles of `deploy`,
//! kube-controller-manager for binding and protection, and a driver.
#![allow(clippy::disallowed_methods, reason = "waits for other processes")]

use std::collections::BTreeSet;
use std::os::unix::fs::symlink;
use std::process::Command;
use std::time::Duration;

use serde_json::{Value, json};
use tenure_csi::ControllerCapability;
use tenure_csi::mock::{Method, MockConfig, MockDriver};
use tenure_tests::process::Process;
use tenure_tests::real::{Cluster, Peer, available, build, own_cluster};
use tenure_tests::storage::{Api, claim, until};
use tenure_tests::{Skip, tools};

use crate::provisioner_access::{file, kubeconfig, place};

const DRIVER: &str = "mock.csi.example";
const CLAIMS: &str = "/api/v1/namespaces/default/persistentvolumeclaims";
const VOLUMES: &str = "/api/v1/persistentvolumes";
const LIMIT: Duration = Duration::from_secs(120);

/// Returns a field of every object in a list.
async fn all(api: &Api, path: &str, pointer: &str) -> BTreeSet<String> {
    let list = api.get(path).await.unwrap().unwrap_or_default();
    let items = list["items"].as_array().cloned().unwrap_or_default();
    let field = |item: &Value| item.pointer(pointer)?.as_str().map(str::to_owned);
    items.iter().filter_map(field).collect()
}

/// Creates a claim and waits until it is bound.
async fn bound(api: &Api, name: &str, source: Value) {
    let mut claim = claim(name, "fast");
    claim["spec"]["dataSource"] = source;
    api.create(CLAIMS, &claim).await.unwrap();
    until(&format!("{name} bound"), async || {
        let claim = api.get(&format!("{CLAIMS}/{name}")).await.unwrap()?;
        (claim["status"]["phase"] == "Bound").then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn real_provisioner_creates_and_deletes_a_volume_under_the_roles_of_deploy() {
    let peers = own_cluster().and_then(|()| available(&[Peer::KubeControllerManager]));
    let programs = peers.and(tools::tenure());
    let Some(tenure) = Skip::unless(programs) else {
        return;
    };
    // A separate cluster, because a binder would also act on the objects of other tests.
    let cluster = tokio::task::block_in_place(Cluster::start).unwrap();
    let admin = cluster.kubeconfig();
    let api = Api::open(&admin).await.unwrap();
    for object in file("rbac.yaml") {
        api.create(&place(&object), &object).await.unwrap();
    }
    let mut command = Command::new(build(Peer::KubeControllerManager).unwrap());
    command
        .arg(format!("--kubeconfig={}", admin.display()))
        .args(["--secure-port=0", "--leader-elect=false"])
        .arg("--pvclaimbinder-sync-period=1s")
        .arg(
            "--controllers=persistentvolume-binder-controller,\
             persistentvolumeclaim-protection-controller,persistentvolume-protection-controller",
        );
    let _manager = Process::spawn("kube-controller-manager", command).unwrap();

    let folder = tempfile::tempdir().unwrap();
    let deployment = file("deployment.yaml").remove(0);
    let pod = &deployment["spec"]["template"]["spec"];
    let account = pod["serviceAccountName"].as_str().unwrap();
    let config = MockConfig {
        controller: vec![
            ControllerCapability::CreateDeleteVolume,
            ControllerCapability::CloneVolume,
        ],
        ..MockConfig::default()
    };
    let socket = folder.path().join("csi.sock");
    let driver = MockDriver::start(config, &socket).unwrap();
    let class = json!({ "metadata": { "name": "fast" }, "provisioner": DRIVER });
    let classes = "/apis/storage.k8s.io/v1/storageclasses";
    api.create(classes, &class).await.unwrap();

    // The command line of the Deployment, with different addresses and paths.
    let args: Vec<&str> = pod["containers"][1]["args"]
        .as_array()
        .unwrap()
        .iter()
        .filter_map(Value::as_str)
        .filter(|arg| !arg.starts_with("--csi-address") && !arg.starts_with("--http-endpoint"))
        .collect();
    // The image starts the command under this name.
    let program = folder.path().join("csi-provisioner");
    symlink(tenure, &program).unwrap();
    let mut command = Command::new(program);
    command
        .args(args)
        .arg(format!("--csi-address={}", socket.display()))
        .arg("--kubeconfig")
        .arg(kubeconfig(&api, &admin, account, folder.path()).await)
        .arg("-v=5")
        .env("POD_NAMESPACE", "default")
        .env_remove("KUBECONFIG");
    let mut provisioner = Process::spawn("tenure provision", command).unwrap();

    for name in ["a", "b"] {
        bound(&api, name, Value::Null).await;
    }
    let copy = json!({ "kind": "PersistentVolumeClaim", "name": "a" });
    bound(&api, "copy", copy).await;
    let handles = all(&api, VOLUMES, "/spec/csi/volumeHandle").await;
    let storage: BTreeSet<String> = driver.volumes().into_keys().collect();
    assert_eq!(handles, storage, "objects, storage");
    assert_eq!(storage.len(), 3);
    let phases = all(&api, VOLUMES, "/status/phase").await;
    assert_eq!(phases, BTreeSet::from(["Bound".to_owned()]));
    let lease = "/apis/coordination.k8s.io/v1/namespaces/default/leases/mock-csi-example";
    assert!(api.get(lease).await.unwrap().is_some(), "it leads");

    for name in ["copy", "a", "b"] {
        api.delete(&format!("{CLAIMS}/{name}")).await.unwrap();
    }
    until("no claim, no volume, no storage", async || {
        let claims = all(&api, CLAIMS, "/metadata/name").await;
        let volumes = all(&api, VOLUMES, "/metadata/name").await;
        let gone = claims.is_empty() && volumes.is_empty() && driver.volumes().is_empty();
        gone.then_some(())
    })
    .await;
    assert_eq!(driver.calls_of(Method::DeleteVolume).len(), 3);
    let reasons = all(&api, "/api/v1/namespaces/default/events", "/reason").await;
    assert!(reasons.contains("ProvisioningSucceeded"), "{reasons:?}");
    assert!(!reasons.contains("VolumeFailedDelete"), "{reasons:?}");

    provisioner.terminate();
    let status = provisioner.wait(LIMIT).unwrap();
    let said = provisioner.transcript();
    assert_eq!(status.code(), Some(0), "{said}");
    let refused = said.contains("forbidden") || said.contains("status_code=403");
    assert!(!refused, "{said}");
    let lease = api.get(lease).await.unwrap().unwrap();
    let holder = lease["spec"]["holderIdentity"].as_str();
    assert_eq!(holder.unwrap_or_default(), "", "the lease was released");
}
