//! `--enable-capacity`: the published capacity.
#![allow(
    clippy::needless_pass_by_value,
    reason = "passing values keeps the cases short"
)]

use std::collections::BTreeMap;
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};

use serde_json::{Value, json};
use tenure_csi::mock::{Method, MockConfig, Script};
use tenure_csi::{ControllerCapability, PluginCapability};
use tenure_tests::storage::table::put;
use tenure_tests::storage::{Provisioner, Rig, handed_over, until};

pub(crate) const DRIVER: &str = "mock.csi.example";
pub(crate) const ROOMS: &str = "/apis/storage.k8s.io/v1/namespaces/default/csistoragecapacities";

pub(crate) fn config(node: (&str, &str), gigabytes: i64) -> MockConfig {
    let segments = BTreeMap::from([("zone".to_owned(), node.1.to_owned())]);
    MockConfig {
        plugin: vec![
            PluginCapability::ControllerService,
            PluginCapability::VolumeAccessibilityConstraints,
        ],
        controller: vec![
            ControllerCapability::CreateDeleteVolume,
            ControllerCapability::GetCapacity,
        ],
        node: (node.0.to_owned(), segments),
        capacity: gigabytes << 30,
        ..MockConfig::default()
    }
}

async fn node(rig: &Rig, name: &str, zone: &str) {
    let node = json!({ "kind": "Node", "metadata": { "name": name, "labels": { "zone": zone } } });
    put(&rig.api, &node, "").await.unwrap();
    let drivers = json!([{ "name": DRIVER, "nodeID": name, "topologyKeys": ["zone"] }]);
    let node =
        json!({ "kind": "CSINode", "metadata": { "name": name }, "spec": { "drivers": drivers } });
    put(&rig.api, &node, "").await.unwrap();
}

pub(crate) async fn class(rig: &Rig, name: &str, changes: Value) {
    let mut class = json!({
        "kind": "StorageClass",
        "metadata": { "name": name },
        "provisioner": DRIVER,
        "parameters": { "kind": "fast", "csi.storage.k8s.io/fstype": "xfs" },
    });
    for (key, value) in changes.as_object().into_iter().flatten() {
        class[key] = value.clone();
    }
    put(&rig.api, &class, "").await.unwrap();
}

/// Creates a pod with a controller. The references contain its name and uid.
pub(crate) async fn pod(rig: &Rig) {
    pod_of(rig, "DaemonSet", "plugin").await;
}

/// Returns a reference to a controlling object.
fn controller(kind: &str, name: &str) -> Value {
    json!([{
        "apiVersion": "apps/v1", "kind": kind, "name": name, "uid": format!("uid-of-{name}"),
        "controller": true, "blockOwnerDeletion": true,
    }])
}

async fn pod_of(rig: &Rig, kind: &str, name: &str) {
    let owner = controller(kind, name);
    let pod = json!({
        "metadata": { "name": "plugin-x", "ownerReferences": owner },
        "spec": { "containers": [{ "name": "c", "image": "i" }] },
    });
    rig.api
        .create("/api/v1/namespaces/default/pods", &pod)
        .await
        .unwrap();
}

pub(crate) fn start(rig: &Rig, socket: &str, node: &str, flags: &[&str]) -> Provisioner {
    let mut all = vec![
        "--kube-api-capacity-qps=1000",
        "--kube-api-capacity-burst=1000",
        "--capacity-poll-interval=300ms",
    ];
    all.extend(flags);
    let mut command = rig.command(socket, &all).unwrap();
    command
        .env("NAMESPACE", "default")
        .env("POD_NAME", "plugin-x")
        .env("NODE_NAME", node);
    Rig::spawn(socket, command).unwrap()
}

/// Returns zone, class and size of every object, sorted.
async fn rooms(rig: &Rig) -> Vec<(String, String, String)> {
    let list = rig.api.get(ROOMS).await.unwrap().unwrap();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let room = |room: &Value| {
        (
            text(&room["nodeTopology"]["matchLabels"]["zone"]),
            text(&room["storageClassName"]),
            text(&room["capacity"]),
        )
    };
    let mut rooms: Vec<_> = list["items"].as_array().unwrap().iter().map(room).collect();
    rooms.sort();
    rooms
}

pub(crate) async fn until_rooms(rig: &Rig, wanted: &[(&str, &str, &str)]) {
    let own = |(a, b, c): &(&str, &str, &str)| ((*a).to_owned(), (*b).to_owned(), (*c).to_owned());
    let wanted: Vec<_> = wanted.iter().map(own).collect();
    until(&format!("{wanted:?}"), async || {
        (rooms(rig).await == wanted).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn capacity_is_published_for_every_segment_and_class() {
    let rig = Rig::start().await.unwrap();
    let driver = rig.driver("s", config(("", ""), 10)).unwrap();
    pod(&rig).await;
    node(&rig, "node-a", "a").await;
    node(&rig, "node-b", "b").await;
    node(&rig, "node-b2", "b").await;
    let late = || json!({ "volumeBindingMode": "WaitForFirstConsumer" });
    class(&rig, "late", late()).await;
    class(&rig, "now", json!({})).await;
    let others =
        json!({ "provisioner": "other.example", "volumeBindingMode": "WaitForFirstConsumer" });
    class(&rig, "others", others).await;
    let free = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = free.local_addr().unwrap();
    drop(free);
    let http = format!("--http-endpoint={address}");
    let provisioner = start(&rig, "s", "", &["--enable-capacity", &http]);
    until_rooms(&rig, &[("a", "late", "10Gi"), ("b", "late", "10Gi")]).await;
    let list = rig.api.get(ROOMS).await.unwrap().unwrap();
    let first = list["items"][0].clone();
    let meta = &first["metadata"];
    assert!(
        meta["name"].as_str().unwrap().starts_with("csisc-"),
        "{meta}"
    );
    assert_eq!(
        meta["labels"],
        json!({
            "csi.storage.k8s.io/drivername": DRIVER,
            "csi.storage.k8s.io/managed-by": "external-provisioner",
        })
    );
    let owner = &meta["ownerReferences"][0];
    assert_eq!(
        (&owner["kind"], &owner["name"]),
        (&json!("DaemonSet"), &json!("plugin"))
    );
    // The driver gets the parameters unchanged.
    let asked = driver.calls_of(Method::GetCapacity);
    assert_eq!(
        asked[0].request["parameters"]["csi.storage.k8s.io/fstype"],
        "xfs"
    );

    // Surplus objects, and missing ones.
    let mut copy = first.clone();
    copy["metadata"] = json!({ "name": "csisc-copy", "labels": meta["labels"], "ownerReferences": meta["ownerReferences"] });
    rig.api.create(ROOMS, &copy).await.unwrap();
    copy["metadata"]["name"] = json!("csisc-old");
    copy["nodeTopology"] = json!({ "matchLabels": { "zone": "x" } });
    rig.api.create(ROOMS, &copy).await.unwrap();
    copy["metadata"] = json!({ "name": "of-somebody-else" });
    rig.api.create(ROOMS, &copy).await.unwrap();
    let name = meta["name"].as_str().unwrap();
    rig.api.delete(&format!("{ROOMS}/{name}")).await.unwrap();
    let theirs = ("x", "late", "10Gi");
    until_rooms(
        &rig,
        &[("a", "late", "10Gi"), ("b", "late", "10Gi"), theirs],
    )
    .await;

    // Nodes and classes are added and removed.
    node(&rig, "node-c", "c").await;
    class(&rig, "more", late()).await;
    rig.api
        .delete("/apis/storage.k8s.io/v1/csinodes/node-a")
        .await
        .unwrap();
    let size = "10Gi";
    let wanted = [
        ("b", "late", size),
        ("b", "more", size),
        ("c", "late", size),
        ("c", "more", size),
        theirs,
    ];
    until_rooms(&rig, &wanted).await;
    rig.api
        .delete("/apis/storage.k8s.io/v1/storageclasses/more")
        .await
        .unwrap();

    // The driver fails, then reports less capacity.
    driver.script(Method::GetCapacity, Script::fail("INTERNAL", 2));
    let less = Script {
        capacity: Some(5 << 30),
        ..Script::default()
    };
    driver.script(Method::GetCapacity, less);
    until_rooms(&rig, &[("b", "late", "5Gi"), ("c", "late", "5Gi"), theirs]).await;

    // Everything is requested repeatedly; the queue contains each item only once.
    driver.clear_script(Method::GetCapacity);
    let slow = Script {
        delay_ms: 1_000,
        ..Script::default()
    };
    driver.script(Method::GetCapacity, slow);
    let calls = driver.calls_of(Method::GetCapacity).len();
    until("a while", async || {
        (driver.calls_of(Method::GetCapacity).len() > calls + 4).then_some(())
    })
    .await;
    let mut stream = TcpStream::connect(address).unwrap();
    write!(
        stream,
        "GET /metrics HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"
    )
    .unwrap();
    let mut metrics = String::new();
    stream.read_to_string(&mut metrics).unwrap();
    let depth = metrics
        .lines()
        .find(|line| line.starts_with("workqueue_depth") && line.contains("csistoragecapacity"))
        .and_then(|line| line.rsplit_once(' ')?.1.parse::<f64>().ok());
    assert!(depth.is_some_and(|depth| depth <= 2.0), "{depth:?}");
    assert!(
        metrics.contains("csistoragecapacities_desired_goal 2"),
        "{metrics}"
    );
    assert_eq!(provisioner.stop().unwrap(), Some(0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn capacity_is_updated_after_changes_of_volumes_and_nodes() {
    let rig = Rig::start().await.unwrap();
    let driver = rig.driver("s", config(("", ""), 10)).unwrap();
    pod_of(&rig, "ReplicaSet", "plugin-1").await;
    let replicas = json!({
        "metadata": { "name": "plugin-1", "ownerReferences": controller("Deployment", "plugin") },
        "spec": {
            "selector": { "matchLabels": { "a": "b" } },
            "template": {
                "metadata": { "labels": { "a": "b" } },
                "spec": { "containers": [{ "name": "c", "image": "i" }] },
            },
        },
    });
    let path = "/apis/apps/v1/namespaces/default/replicasets";
    rig.api.create(path, &replicas).await.unwrap();
    node(&rig, "node-a", "a").await;
    // A driver without topology keys has one segment without keys. The location of the drivers below is unknown.
    let plain = json!({ "kind": "Node", "metadata": { "name": "unlabelled" } });
    put(&rig.api, &plain, "").await.unwrap();
    for (name, driver, keys) in [
        ("unlabelled", DRIVER, json!(["zone"])),
        ("no-node", DRIVER, json!(["zone"])),
        ("others", "other.example", json!(["zone"])),
    ] {
        let drivers = json!([{ "name": driver, "nodeID": name, "topologyKeys": keys }]);
        let node = json!({ "kind": "CSINode", "metadata": { "name": name }, "spec": { "drivers": drivers } });
        put(&rig.api, &node, "").await.unwrap();
    }
    class(&rig, "now", json!({})).await;
    // There are no periodic requests.
    let flags = [
        "--enable-capacity",
        "--capacity-for-immediate-binding",
        "--capacity-ownerref-level=2",
        "--capacity-poll-interval=1h",
    ];
    let provisioner = start(&rig, "s", "", &flags);
    until_rooms(&rig, &[("a", "now", "10Gi")]).await;
    let only = async || {
        let list = rig.api.get(ROOMS).await.unwrap()?;
        Some(list["items"][0].clone())
    };
    let room = only().await.unwrap();
    let owner = &room["metadata"]["ownerReferences"][0];
    assert_eq!(
        (&owner["kind"], &owner["name"]),
        (&json!("Deployment"), &json!("plugin"))
    );
    assert!(room["maximumVolumeSize"].is_null(), "{room}");

    // A new volume reduces the capacity and the maximum volume size.
    let set = |gigabytes: i64, largest: Option<i64>| {
        driver.clear_script(Method::GetCapacity);
        let script = Script {
            capacity: Some(gigabytes << 30),
            largest: largest.map(|gigabytes| gigabytes << 30),
            ..Script::default()
        };
        driver.script(Method::GetCapacity, script);
    };
    set(9, Some(4));
    let uid = claim(&rig, "c", "now", "1Gi", None).await;
    until_rooms(&rig, &[("a", "now", "9Gi")]).await;
    assert_eq!(only().await.unwrap()["maximumVolumeSize"], "4Gi");
    // The volume is deleted.
    set(10, None);
    let path = format!("/api/v1/persistentvolumes/pvc-{uid}/status");
    let released = json!({ "status": { "phase": "Released" } });
    rig.api.merge(&path, &released).await.unwrap();
    until_rooms(&rig, &[("a", "now", "10Gi")]).await;
    assert!(only().await.unwrap()["maximumVolumeSize"].is_null());
    // A failed creation also shows that something has changed; a capacity of zero is also published.
    set(0, None);
    driver.script(Method::CreateVolume, Script::fail("RESOURCE_EXHAUSTED", 1));
    claim(&rig, "too-many", "now", "1Gi", None).await;
    until_rooms(&rig, &[("a", "now", "0")]).await;

    // A client removes the owner of the object.
    let name = only().await.unwrap()["metadata"]["name"].clone();
    let path = format!("{ROOMS}/{}", name.as_str().unwrap());
    let taken = json!({ "metadata": { "ownerReferences": null } });
    rig.api.merge(&path, &taken).await.unwrap();
    until("its owner back", async || {
        let owner = &only().await?["metadata"]["ownerReferences"][0]["name"];
        (*owner == "plugin").then_some(())
    })
    .await;
    // One node moves to another zone, and one gets its label.
    for (node, zone) in [("node-a", "d"), ("unlabelled", "e")] {
        let moved = json!({ "metadata": { "labels": { "zone": zone } } });
        let path = format!("/api/v1/nodes/{node}");
        rig.api.merge(&path, &moved).await.unwrap();
    }
    until_rooms(&rig, &[("d", "now", "0"), ("e", "now", "0")]).await;
    // A registration without keys: one segment for the whole cluster.
    let drivers = json!([{ "name": DRIVER, "nodeID": "node-f", "topologyKeys": [] }]);
    let node = json!({ "kind": "Node", "metadata": { "name": "node-f" } });
    put(&rig.api, &node, "").await.unwrap();
    let node = json!({ "kind": "CSINode", "metadata": { "name": "node-f" }, "spec": { "drivers": drivers } });
    put(&rig.api, &node, "").await.unwrap();
    until_rooms(
        &rig,
        &[("", "now", "0"), ("d", "now", "0"), ("e", "now", "0")],
    )
    .await;
    assert_eq!(provisioner.stop().unwrap(), Some(0));
}

/// csi-provisioner's client for the lock is limited to the same rate as the one for capacity.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn capacity_rate_limit_does_not_apply_to_other_requests() {
    const ZONES: [&str; 4] = ["a", "b", "c", "d"];
    let rig = Rig::start().await.unwrap();
    let _driver = rig.driver("s", config(("", ""), 10)).unwrap();
    for zone in ZONES {
        node(&rig, &format!("node-{zone}"), zone).await;
    }
    let late = json!({ "volumeBindingMode": "WaitForFirstConsumer" });
    class(&rig, "late", late).await;
    class(&rig, "now", json!({})).await;
    // One request to list existing objects, two to create some, and then none for a quarter of an hour.
    let flags = [
        "--enable-capacity",
        "--capacity-ownerref-level=-1",
        "--kube-api-capacity-qps=0.001",
        "--kube-api-capacity-burst=3",
        "--leader-election",
        "--leader-election-namespace=default",
        "--leader-election-retry-period=200ms",
    ];
    let provisioner = start(&rig, "s", "", &flags);
    until("some", async || {
        (rooms(&rig).await.len() == 2).then_some(())
    })
    .await;
    let lease = async || {
        let path = "/apis/coordination.k8s.io/v1/namespaces/default/leases/mock-csi-example";
        rig.api.get(path).await.unwrap().unwrap()["spec"].clone()
    };
    let first = lease().await;
    let mut renewals = std::collections::BTreeSet::new();
    until("renewals", async || {
        renewals.insert(lease().await["renewTime"].to_string());
        (renewals.len() > 10).then_some(())
    })
    .await;
    let uid = claim(&rig, "c", "now", "1Gi", None).await;
    until("a volume", async || {
        let path = format!("/api/v1/persistentvolumes/pvc-{uid}");
        rig.api.get(&path).await.unwrap()
    })
    .await;
    let last = lease().await;
    for key in ["holderIdentity", "leaseTransitions", "acquireTime"] {
        assert_eq!(first[key], last[key], "{key}");
    }
    assert_eq!(
        rooms(&rig).await.len(),
        2,
        "requests for capacity stay limited"
    );
    assert_eq!(provisioner.stop().unwrap(), Some(0));
}

pub(crate) async fn claim(
    rig: &Rig,
    name: &str,
    class: &str,
    size: &str,
    node: Option<&str>,
) -> String {
    let mut claim = handed_over(name, class, DRIVER);
    claim["spec"]["resources"]["requests"]["storage"] = json!(size);
    if let Some(node) = node {
        claim["metadata"]["annotations"]["volume.kubernetes.io/selected-node"] = json!(node);
    }
    put(&rig.api, &claim, "default").await.unwrap()
}
