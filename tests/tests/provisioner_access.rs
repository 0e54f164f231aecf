//! `deploy/provisioner`: the roles are sufficient for all operations of a provisioner, and enforced.

use std::path::{Path, PathBuf};

use kube::config::Kubeconfig;
use serde_json::{Value, json};
use tenure_csi::mock::{Method, MockConfig};
use tenure_csi::{ControllerCapability, PluginCapability};
use tenure_tests::storage::table::{define_kinds, put};
use tenure_tests::storage::{Api, Rig, handed_over, until};

const DRIVER: &str = "mock.csi.example";
const CLAIMS: &str = "/api/v1/namespaces/default/persistentvolumeclaims";

/// Returns the objects of a file.
pub(crate) fn file(name: &str) -> Vec<Value> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/provisioner");
    let text = std::fs::read_to_string(folder.join(name)).unwrap();
    let documents = text.split("\n---\n");
    documents
        .map(|text| serde_saphyr::from_str(text).unwrap())
        .collect()
}

/// Returns the path at which an object is created.
pub(crate) fn place(object: &Value) -> String {
    let namespace = object["metadata"]["namespace"].as_str().unwrap_or_default();
    let rbac = "/apis/rbac.authorization.k8s.io/v1";
    match object["kind"].as_str().unwrap() {
        "ServiceAccount" => format!("/api/v1/namespaces/{namespace}/serviceaccounts"),
        "ClusterRole" => format!("{rbac}/clusterroles"),
        "ClusterRoleBinding" => format!("{rbac}/clusterrolebindings"),
        "Role" => format!("{rbac}/namespaces/{namespace}/roles"),
        "RoleBinding" => format!("{rbac}/namespaces/{namespace}/rolebindings"),
        "Deployment" => format!("/apis/apps/v1/namespaces/{namespace}/deployments"),
        other => panic!("{other}"),
    }
}

/// Returns the administrator's kubeconfig with the token of a service account.
pub(crate) async fn kubeconfig(api: &Api, admin: &Path, account: &str, folder: &Path) -> PathBuf {
    let path = format!("/api/v1/namespaces/default/serviceaccounts/{account}/token");
    let request = json!({
        "apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {},
    });
    let answer = api.create(&path, &request).await.unwrap();
    let token = &answer["status"]["token"];
    assert!(token.is_string(), "{answer}");
    let admin = Kubeconfig::read_from(admin).unwrap();
    let mut config = serde_json::to_value(admin).unwrap();
    config["users"][0]["user"] = json!({ "token": token });
    let path = folder.join("kubeconfig");
    std::fs::write(&path, config.to_string()).unwrap();
    path
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn provisioner_roles_in_deploy_are_sufficient_and_minimal() {
    let rig = Rig::start().await.unwrap();
    define_kinds(&rig.api).await.unwrap();
    let objects = [file("rbac.yaml"), file("deployment.yaml")].concat();
    for object in &objects {
        rig.api.create(&place(object), object).await.unwrap();
    }
    let deployment = objects.last().unwrap();
    let pod = &deployment["spec"]["template"]["spec"];
    let account = pod["serviceAccountName"].as_str().unwrap();
    let sockets: Vec<_> = pod["containers"]
        .as_array()
        .unwrap()
        .iter()
        .map(|container| &container["volumeMounts"][0])
        .collect();
    assert_eq!(sockets[0], sockets[1], "one socket for both");

    let config = MockConfig {
        plugin: vec![
            PluginCapability::ControllerService,
            PluginCapability::VolumeAccessibilityConstraints,
        ],
        controller: vec![
            ControllerCapability::CreateDeleteVolume,
            ControllerCapability::PublishUnpublishVolume,
            ControllerCapability::CreateDeleteSnapshot,
            ControllerCapability::CloneVolume,
            ControllerCapability::ModifyVolume,
            ControllerCapability::GetCapacity,
        ],
        ..MockConfig::default()
    };
    let driver = rig.driver("s", config).unwrap();
    let node = json!({ "kind": "Node", "metadata": { "name": "n", "labels": { "zone": "a" } } });
    put(&rig.api, &node, "").await.unwrap();
    let drivers = json!([{ "name": DRIVER, "nodeID": "n", "topologyKeys": ["zone"] }]);
    let node =
        json!({ "kind": "CSINode", "metadata": { "name": "n" }, "spec": { "drivers": drivers } });
    put(&rig.api, &node, "").await.unwrap();
    let secret =
        json!({ "kind": "Secret", "metadata": { "name": "s" }, "data": { "user": "bWU=" } });
    put(&rig.api, &secret, "default").await.unwrap();
    let gold = json!({
        "kind": "VolumeAttributesClass", "metadata": { "name": "gold" },
        "driverName": DRIVER, "parameters": { "iops": "1" },
    });
    put(&rig.api, &gold, "").await.unwrap();
    let class = json!({
        "kind": "StorageClass",
        "metadata": { "name": "c" },
        "provisioner": DRIVER,
        "volumeBindingMode": "WaitForFirstConsumer",
        "parameters": {
            "csi.storage.k8s.io/provisioner-secret-name": "s",
            "csi.storage.k8s.io/provisioner-secret-namespace": "default",
        },
    });
    put(&rig.api, &class, "").await.unwrap();
    let snapshots = "snapshot.storage.k8s.io/v1";
    let snapshot = json!({
        "apiVersion": snapshots, "kind": "VolumeSnapshot", "metadata": { "name": "snap" }, "spec": {},
        "status": { "boundVolumeSnapshotContentName": "content", "readyToUse": true },
    });
    let uid = put(&rig.api, &snapshot, "default").await.unwrap();
    let content = json!({
        "apiVersion": snapshots, "kind": "VolumeSnapshotContent", "metadata": { "name": "content" },
        "spec": {
            "driver": DRIVER,
            "volumeSnapshotRef": { "name": "snap", "namespace": "default", "uid": uid },
        },
        "status": { "snapshotHandle": "handle" },
    });
    put(&rig.api, &content, "").await.unwrap();

    let folder = tempfile::tempdir().unwrap();
    let admin = rig.server.kubeconfig();
    let file = kubeconfig(&rig.api, &admin, account, folder.path()).await;
    let flags = [
        "--leader-election",
        "--leader-election-namespace=default",
        "--provision-journal",
        "--enable-capacity",
        "--capacity-ownerref-level=-1",
        "--kube-api-capacity-qps=100",
        "--capacity-poll-interval=500ms",
        "--snapshot-orphan-sweep-interval=500ms",
    ];
    let mut command = rig.command_as(&file, "s", &flags).unwrap();
    command.env("NAMESPACE", "default");
    let mut provisioner = Rig::spawn("s", command).unwrap();
    let restore =
        json!({ "apiGroup": "snapshot.storage.k8s.io", "kind": "VolumeSnapshot", "name": "snap" });
    let copy = json!({ "kind": "PersistentVolumeClaim", "name": "plain" });
    let mut uids = Vec::new();
    for (name, source) in [
        ("plain", Value::Null),
        ("restored", restore),
        ("copied", copy),
    ] {
        let mut claim = handed_over(name, "c", DRIVER);
        claim["metadata"]["annotations"]["volume.kubernetes.io/selected-node"] = json!("n");
        claim["spec"]["dataSource"] = source;
        claim["spec"]["volumeAttributesClassName"] = json!("gold");
        let uid = put(&rig.api, &claim, "default").await.unwrap();
        let path = format!("/api/v1/persistentvolumes/pvc-{uid}");
        until(&format!("a volume for {name}"), async || {
            rig.api.get(&path).await.unwrap()
        })
        .await;
        // Binds the claim as the binder does.
        let claim = format!("{CLAIMS}/{name}");
        let bound = json!({ "status": { "phase": "Bound" } });
        let named = json!({ "spec": { "volumeName": format!("pvc-{uid}") } });
        rig.api.merge(&claim, &named).await.unwrap();
        rig.api
            .merge(&format!("{claim}/status"), &bound)
            .await
            .unwrap();
        rig.api
            .merge(&format!("{path}/status"), &bound)
            .await
            .unwrap();
        uids.push(uid);
    }
    until("capacity", async || {
        let path = "/apis/storage.k8s.io/v1/namespaces/default/csistoragecapacities";
        let list = rig.api.get(path).await.unwrap()?;
        (!list["items"].as_array()?.is_empty()).then_some(())
    })
    .await;
    // The source of a clone can be deleted, and all storage is deleted.
    for name in ["copied", "restored", "plain"] {
        rig.api.delete(&format!("{CLAIMS}/{name}")).await.unwrap();
    }
    until("our finalizers gone from the source", async || {
        let claim = rig.api.get(&format!("{CLAIMS}/plain")).await.unwrap()?;
        let finalizers = claim["metadata"]["finalizers"].to_string();
        (!finalizers.contains("cloning") && !finalizers.contains("tenure")).then_some(())
    })
    .await;
    for uid in &uids {
        let path = format!("/api/v1/persistentvolumes/pvc-{uid}/status");
        rig.api
            .merge(&path, &json!({ "status": { "phase": "Released" } }))
            .await
            .unwrap();
    }
    until("no storage", async || {
        driver.volumes().is_empty().then_some(())
    })
    .await;
    for call in driver.calls_of(Method::DeleteVolume) {
        assert_eq!(call.request["secrets"], json!({ "user": "me" }));
    }
    until("events", async || {
        let events = rig
            .api
            .get("/api/v1/namespaces/default/events")
            .await
            .unwrap()?;
        events
            .to_string()
            .contains("ProvisioningSucceeded")
            .then_some(())
    })
    .await;
    // No request was denied, and a request outside the roles would be.
    let said = provisioner.process.text().join("\n");
    assert!(
        !said.contains("forbidden") && !said.contains("status_code=403"),
        "{said}"
    );
    let as_account = Api::open(&file).await.unwrap();
    let refused = as_account
        .delete("/apis/storage.k8s.io/v1/storageclasses/c")
        .await;
    assert!(format!("{:#}", refused.unwrap_err()).contains("forbidden"));
    let refused = as_account
        .get("/api/v1/namespaces/default/configmaps")
        .await;
    assert!(format!("{:#}", refused.unwrap_err()).contains("forbidden"));
    provisioner.process.terminate();
    let status = provisioner
        .process
        .wait(std::time::Duration::from_secs(60))
        .unwrap();
    assert_eq!(status.code(), Some(0));
}
