//! `--node-deployment`: one provisioner per node.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};
use tenure_csi::ControllerCapability;
use tenure_csi::mock::{Method, MockDriver, Script};
use tenure_tests::storage::table::put;
use tenure_tests::storage::{Provisioner, Rig, handed_over, until};

use crate::provisioner_capacity::{DRIVER, ROOMS, claim, class, config, pod, start, until_rooms};
use crate::provisioner_sources::{PROTECTS_CLAIM, bound};

const CLAIMS: &str = "/api/v1/namespaces/default/persistentvolumeclaims";

async fn says(provisioner: &Provisioner, text: &str) {
    until(text, async || {
        let said = provisioner.process.transcript();
        said.contains(text).then_some(())
    })
    .await;
}

async fn until_volume(rig: &Rig, uid: &str) {
    until("a volume", async || {
        let path = format!("/api/v1/persistentvolumes/pvc-{uid}");
        rig.api.get(&path).await.unwrap()
    })
    .await;
}

fn made_by<'a>(drivers: &'a [(&'a str, &MockDriver)], uid: &str) -> Vec<&'a str> {
    let name = json!(format!("pvc-{uid}"));
    let mut found = Vec::new();
    for (node, driver) in drivers {
        let calls = driver.calls_of(Method::CreateVolume);
        if calls.iter().any(|call| call.request["name"] == name) {
            found.push(*node);
        }
    }
    found
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_node_has_its_own_provisioner() {
    let rig = Rig::start().await.unwrap();
    // The first node has little capacity.
    let first = rig.driver("s1", config(("node-1", "a"), 2)).unwrap();
    let second = rig.driver("s2", config(("node-2", "b"), 100)).unwrap();
    let drivers = [("node-1", &first), ("node-2", &second)];
    pod(&rig).await;
    class(&rig, "now", json!({})).await;
    class(
        &rig,
        "late",
        json!({ "volumeBindingMode": "WaitForFirstConsumer" }),
    )
    .await;
    let expression = json!([{ "key": "zone", "values": ["b"] }]);
    class(
        &rig,
        "only-b",
        json!({ "allowedTopologies": [{ "matchLabelExpressions": expression }] }),
    )
    .await;
    let in_a = json!({ "topology": [{ "zone": "a" }] }).to_string();
    class(
        &rig,
        "in-a",
        json!({ "volumeBindingMode": "WaitForFirstConsumer", "parameters": { "script": in_a } }),
    )
    .await;
    let flags = [
        "--node-deployment",
        "--node-deployment-base-delay=300ms",
        "--strict-topology",
        "--immediate-topology=false",
        "--enable-capacity",
        "--capacity-ownerref-level=0",
    ];
    let one = start(&rig, "s1", "node-1", &flags);
    let two = start(&rig, "s2", "node-2", &flags);

    let mut claims = Vec::new();
    for number in 0..6 {
        let name = format!("now-{number}");
        claims.push((
            name.clone(),
            claim(&rig, &name, "now", "1Gi", None).await,
            None,
        ));
    }
    for (name, class, size, node, by) in [
        ("late-1", "late", "1Gi", Some("node-1"), "node-1"),
        ("late-2", "late", "1Gi", Some("node-2"), "node-2"),
        ("large", "now", "5Gi", None, "node-2"),
        ("allowed", "only-b", "1Gi", None, "node-2"),
        ("here", "in-a", "1Gi", Some("node-1"), "node-1"),
    ] {
        let uid = claim(&rig, name, class, size, node).await;
        claims.push((name.to_owned(), uid, Some(by)));
    }
    for (name, uid, by) in &claims {
        until(&format!("a volume for {name}"), async || {
            rig.api
                .get(&format!("/api/v1/persistentvolumes/pvc-{uid}"))
                .await
                .unwrap()
        })
        .await;
        let found = made_by(&drivers, uid);
        assert_eq!(found.len(), 1, "{name}: {found:?}");
        let path = format!("/api/v1/namespaces/default/persistentvolumeclaims/{name}");
        let claim = rig.api.get(&path).await.unwrap().unwrap();
        let node = &claim["metadata"]["annotations"]["volume.kubernetes.io/selected-node"];
        assert_eq!(*node, json!(found[0]), "{name}");
        if let Some(by) = by {
            assert_eq!(found, [*by], "{name}");
        }
    }
    // Each provisioner publishes only the capacity of its own node.
    until("both publish", async || {
        let list = rig.api.get(ROOMS).await.unwrap()?;
        let label = |room: &Value| {
            let zone = &room["nodeTopology"]["matchLabels"]["zone"];
            let by = &room["metadata"]["labels"]["csi.storage.k8s.io/managed-by"];
            (zone.to_string(), by.to_string())
        };
        let found: BTreeSet<_> = list["items"].as_array()?.iter().map(label).collect();
        let own = |zone: &str, by: &str| (json!(zone).to_string(), json!(by).to_string());
        let wanted = [
            own("a", "external-provisioner-node-1"),
            own("b", "external-provisioner-node-2"),
        ];
        (found == wanted.into()).then_some(())
    })
    .await;
    // Storage is deleted on its own node.
    let (_, uid, _) = claims.last().unwrap();
    let path = format!("/api/v1/persistentvolumes/pvc-{uid}/status");
    rig.api
        .merge(&path, &json!({ "status": { "phase": "Released" } }))
        .await
        .unwrap();
    let id = format!("vol-pvc-{uid}");
    until("deleted", async || {
        (!first.volumes().contains_key(&id)).then_some(())
    })
    .await;
    assert_eq!(second.calls_of(Method::DeleteVolume).len(), 0);
    assert_eq!(one.stop().unwrap(), Some(0));
    assert_eq!(two.stop().unwrap(), Some(0));
}

/// A provisioner takes a claim if its node has capacity. The request for the capacity changes nothing and has a
/// timeout.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn capacity_check_changes_nothing() {
    let rig = Rig::start().await.unwrap();
    let mut able = config(("node-1", "a"), 2);
    able.controller.push(ControllerCapability::CloneVolume);
    let driver = rig.driver("s", able).unwrap();
    class(&rig, "now", json!({})).await;
    let changes = json!({ "spec": { "storageClassName": "now", "volumeName": "volume" } });
    let [mut source, mut volume] = bound(changes, json!({ "metadata": { "name": "volume" } }));
    source["metadata"]["namespace"] = json!("default");
    let uid = put(&rig.api, &source, "default").await.unwrap();
    volume["spec"]["claimRef"] = json!({ "namespace": "default", "name": "source", "uid": uid });
    put(&rig.api, &volume, "").await.unwrap();
    let flags = [
        "--node-deployment",
        "--node-deployment-base-delay=100ms",
        "--strict-topology",
        "--immediate-topology=false",
        "--timeout=1s",
    ];
    let provisioner = start(&rig, "s", "node-1", &flags);
    let protected = async || {
        let source = rig.api.get(&format!("{CLAIMS}/source")).await.unwrap();
        let finalizers = &source.unwrap()["metadata"]["finalizers"];
        finalizers.to_string().contains(PROTECTS_CLAIM)
    };

    let mut copy = handed_over("too-large", "now", DRIVER);
    copy["spec"]["resources"]["requests"]["storage"] = json!("5Gi");
    copy["spec"]["dataSource"] = json!({ "kind": "PersistentVolumeClaim", "name": "source" });
    put(&rig.api, &copy, "default").await.unwrap();
    says(&provisioner, "not enough capacity on this node").await;
    assert!(!protected().await, "no volume is cloned from it yet");
    let path = format!("{CLAIMS}/too-large");
    let left = rig.api.get(&path).await.unwrap().unwrap();
    let node = &left["metadata"]["annotations"]["volume.kubernetes.io/selected-node"];
    assert!(node.is_null(), "{left}");
    assert!(driver.calls_of(Method::CreateVolume).is_empty());

    // There is capacity for this claim, so the source is cloned.
    copy["metadata"]["name"] = json!("fits");
    copy["spec"]["resources"]["requests"]["storage"] = json!("1Gi");
    let uid = put(&rig.api, &copy, "default").await.unwrap();
    until_volume(&rig, &uid).await;
    assert!(protected().await);

    // The provisioner does not wait for a driver that does not respond; the creation itself then decides.
    let silent = Script {
        times: Some(1),
        delay_ms: 600_000,
        ..Script::default()
    };
    driver.script(Method::GetCapacity, silent);
    let uid = claim(&rig, "unanswered", "now", "1Gi", None).await;
    until_volume(&rig, &uid).await;
    says(&provisioner, "does not report its capacity").await;
    assert_eq!(provisioner.stop().unwrap(), Some(0));
}

/// The published segment of a node is the same as that of its volumes, regardless of the order of keys.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn volumes_change_the_capacity_of_a_node_with_many_keys() {
    let rig = Rig::start().await.unwrap();
    let segments = [
        ("zone", "a"),
        ("rack", "7"),
        ("aisle", "left"),
        ("unit", "1"),
    ];
    let segments: BTreeMap<String, String> = segments
        .map(|(key, value)| (key.to_owned(), value.to_owned()))
        .into();
    let mut placed = config(("node-1", "a"), 10);
    placed.node.1 = segments.clone();
    let driver = rig.driver("s", placed).unwrap();
    let here = json!({ "topology": [segments] }).to_string();
    class(&rig, "now", json!({ "parameters": { "script": here } })).await;
    // There are no periodic requests.
    let flags = [
        "--node-deployment",
        "--node-deployment-base-delay=100ms",
        "--enable-capacity",
        "--capacity-for-immediate-binding",
        "--capacity-ownerref-level=-1",
        "--capacity-poll-interval=1h",
    ];
    let provisioner = start(&rig, "s", "node-1", &flags);
    until_rooms(&rig, &[("a", "now", "10Gi")]).await;
    let list = rig.api.get(ROOMS).await.unwrap().unwrap();
    assert_eq!(
        list["items"][0]["nodeTopology"]["matchLabels"],
        json!(segments)
    );
    let set = |gigabytes: i64| {
        driver.clear_script(Method::GetCapacity);
        let script = Script {
            capacity: Some(gigabytes << 30),
            ..Script::default()
        };
        driver.script(Method::GetCapacity, script);
    };
    set(9);
    let uid = claim(&rig, "c", "now", "1Gi", None).await;
    until_rooms(&rig, &[("a", "now", "9Gi")]).await;
    set(10);
    let path = format!("/api/v1/persistentvolumes/pvc-{uid}/status");
    let released = json!({ "status": { "phase": "Released" } });
    rig.api.merge(&path, &released).await.unwrap();
    until_rooms(&rig, &[("a", "now", "10Gi")]).await;
    assert_eq!(provisioner.stop().unwrap(), Some(0));
}

/// csi-provisioner requires the node name even to print its version.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn version_is_printed_without_a_node_name() {
    let rig = Rig::start().await.unwrap();
    let run = |flags: &[&str]| {
        let mut command = rig.command("none", flags).unwrap();
        command.env_remove("NODE_NAME").output().unwrap()
    };
    let output = run(&["--node-deployment", "--version"]);
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(output.status.code(), Some(0), "{said}");
    assert!(said.contains(env!("CARGO_PKG_VERSION")), "{said}");
    let output = run(&["--node-deployment"]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("NODE_NAME"), "{said}");
}
