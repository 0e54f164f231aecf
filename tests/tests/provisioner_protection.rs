//! Claims and snapshots that are sources of volumes: how long they are protected, and when the finalizer is removed.

use std::sync::Arc;

use serde_json::{Value, json};
use tenure_apiserver::server::{Fault, Faults, Server};
use tenure_csi::ControllerCapability;
use tenure_csi::mock::{Method, MockConfig, Script};
use tenure_tests::storage::table::{define_kinds, put};
use tenure_tests::storage::{Api, Provisioner, Rig, claim, handed_over, until};

use crate::provisioner_sources::{
    COPIES, DRIVER, PROTECTS_CLAIM, PROTECTS_SNAPSHOT, bound, equip, snapshot, stage,
};

const OTHER: &str = "example.com/other";
const FAR: &str = "far";

/// A claim that refers to a source: by which field, from which namespace, to which kind, in which phase.
struct User {
    field: &'static str,
    namespace: &'static str,
    kind: &'static str,
    phase: &'static str,
}

impl User {
    const fn pending(kind: &'static str) -> Self {
        Self {
            field: "dataSource",
            namespace: "default",
            kind,
            phase: "Pending",
        }
    }

    /// Creates a claim that refers to `name` in the namespace default.
    async fn create(&self, api: &Api, name: &str) {
        let mut source = json!({ "kind": self.kind, "name": name });
        if self.kind == "VolumeSnapshot" {
            source["apiGroup"] = json!("snapshot.storage.k8s.io");
        }
        // Only `dataSourceRef` can refer to another namespace; other references are to the namespace of the claim.
        if self.field == "dataSourceRef" && self.namespace != "default" {
            source["namespace"] = json!("default");
        }
        let mut user = claim(&format!("user-of-{name}"), "some-class");
        user["spec"][self.field] = source;
        if self.phase != "Pending" {
            user["spec"]["volumeName"] = json!("some-volume");
        }
        user["status"] = json!({ "phase": self.phase });
        put(api, &user, self.namespace).await.unwrap();
    }
}

fn claim_path(name: &str) -> String {
    format!("/api/v1/namespaces/default/persistentvolumeclaims/{name}")
}

fn snapshot_path(name: &str) -> String {
    format!("/apis/snapshot.storage.k8s.io/v1/namespaces/default/volumesnapshots/{name}")
}

/// Whether an object has a finalizer. A deleted object has none.
async fn has(api: &Api, path: &str, finalizer: &str) -> bool {
    let object = api.get(path).await.unwrap().unwrap_or_default();
    let finalizers = object["metadata"]["finalizers"].as_array();
    finalizers.is_some_and(|list| list.iter().any(|entry| entry == finalizer))
}

/// Creates a bound claim in its state during a clone.
async fn protected_claim(api: &Api, name: &str) {
    let mut source = bound(json!({}), json!({}))[0].clone();
    source["metadata"] = json!({ "name": name, "finalizers": [OTHER, PROTECTS_CLAIM] });
    source["spec"]["storageClassName"] = json!("some-class");
    source["spec"]["volumeName"] = json!(format!("volume-of-{name}"));
    put(api, &source, "default").await.unwrap();
}

async fn protected_snapshot(api: &Api, name: &str, finalizers: &[&str]) {
    let mut object = snapshot(json!({}), json!({}))[0].clone();
    object["metadata"] = json!({ "name": name, "finalizers": finalizers });
    put(api, &object, "default").await.unwrap();
}

async fn until_let_go(api: &Api, path: &str, finalizer: &str) {
    until(&format!("{path} without our finalizer"), async || {
        (!has(api, path, finalizer).await).then_some(())
    })
    .await;
}

async fn says(provisioner: &Provisioner, text: &str) {
    until(text, async || {
        let said = provisioner.process.transcript();
        said.contains(text).then_some(())
    })
    .await;
}

/// Marks the claim that refers to a source as bound.
async fn bind(api: &Api, namespace: &str, name: &str) {
    let path = format!("/api/v1/namespaces/{namespace}/persistentvolumeclaims/user-of-{name}");
    let bound = json!({ "spec": { "volumeName": "some-volume" } });
    api.merge(&path, &bound).await.unwrap();
    let bound = json!({ "status": { "phase": "Bound" } });
    api.merge(&format!("{path}/status"), &bound).await.unwrap();
}

async fn far(api: &Api) {
    let namespace = json!({ "kind": "Namespace", "metadata": { "name": FAR } });
    put(api, &namespace, "").await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn deleted_claims_lose_the_finalizer_when_no_clone_copies_them() {
    let (rig, driver) = equip(&COPIES).await;
    let api = &rig.api;
    far(api).await;
    let user = || User::pending("PersistentVolumeClaim");
    let kept = [
        ("awaited", user()),
        (
            "awaited-ref",
            User {
                field: "dataSourceRef",
                ..user()
            },
        ),
        (
            "awaited-far",
            User {
                field: "dataSourceRef",
                namespace: FAR,
                ..user()
            },
        ),
    ];
    let freed = [
        ("unused", None),
        (
            "copied",
            Some(User {
                phase: "Bound",
                ..user()
            }),
        ),
        (
            "copy-lost",
            Some(User {
                phase: "Lost",
                ..user()
            }),
        ),
        // The source of this claim is in its own namespace.
        (
            "namesake-far",
            Some(User {
                namespace: FAR,
                ..user()
            }),
        ),
        ("namesake-kind", Some(User::pending("VolumeSnapshot"))),
    ];
    let users = kept.iter().map(|(name, user)| (*name, Some(user)));
    let users = users.chain(freed.iter().map(|(name, user)| (*name, user.as_ref())));
    for (name, user) in users {
        protected_claim(api, name).await;
        if let Some(user) = user {
            user.create(api, name).await;
        }
        api.delete(&claim_path(name)).await.unwrap();
    }
    protected_claim(api, "not-deleted").await;

    let provisioner = rig.provisioner("s", &["--retry-interval-max=1s"]).unwrap();
    for (name, _) in &freed {
        until_let_go(api, &claim_path(name), PROTECTS_CLAIM).await;
        let others = has(api, &claim_path(name), OTHER).await;
        assert!(others, "{name}: finalizers of others are kept");
    }
    for (name, user) in &kept {
        let why = format!(
            "claim {}/user-of-{name} is being cloned from it",
            user.namespace
        );
        says(&provisioner, &why).await;
        assert!(has(api, &claim_path(name), PROTECTS_CLAIM).await, "{name}");
    }
    // One clone completes; the other claims are deleted.
    bind(api, "default", "awaited").await;
    for (namespace, name) in [("default", "awaited-ref"), (FAR, "awaited-far")] {
        let path = format!("/api/v1/namespaces/{namespace}/persistentvolumeclaims/user-of-{name}");
        api.remove(&path).await.unwrap();
    }
    for (name, _) in &kept {
        until_let_go(api, &claim_path(name), PROTECTS_CLAIM).await;
    }
    let path = claim_path("not-deleted");
    assert!(
        has(api, &path, PROTECTS_CLAIM).await,
        "protected until the clone is complete"
    );
    api.delete(&path).await.unwrap();
    until_let_go(api, &path, PROTECTS_CLAIM).await;
    assert!(driver.calls_of(Method::CreateVolume).is_empty());
    assert_eq!(provisioner.stop().unwrap(), Some(0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn source_of_a_clone_loses_the_finalizer_when_no_clone_needs_it() {
    let (rig, driver, provisioner) = stage(&[]).await;
    // The clone never completes.
    driver.script(Method::CreateVolume, Script::fail("ABORTED", u32::MAX));
    for object in bound(json!({}), json!({})) {
        let text = object.to_string().replace("<ns>", "default");
        let claim = rig
            .api
            .get("/api/v1/namespaces/default/persistentvolumeclaims/source")
            .await;
        let uid = claim.unwrap().unwrap_or_default()["metadata"]["uid"].clone();
        let text = text.replace("<uid:source>", uid.as_str().unwrap_or_default());
        let object: Value = serde_json::from_str(&text).unwrap();
        put(&rig.api, &object, "default").await.unwrap();
    }
    let class =
        json!({ "kind": "StorageClass", "metadata": { "name": "default" }, "provisioner": DRIVER });
    put(&rig.api, &class, "").await.unwrap();
    let mut copy = handed_over("copy", "default", DRIVER);
    copy["spec"]["dataSource"] = json!({ "kind": "PersistentVolumeClaim", "name": "source" });
    copy["status"] = json!({ "phase": "Pending" });
    put(&rig.api, &copy, "default").await.unwrap();
    let source = "/api/v1/namespaces/default/persistentvolumeclaims/source";
    let protected = async || {
        let claim = rig.api.get(source).await.unwrap()?;
        let finalizers = claim["metadata"]["finalizers"].to_string();
        finalizers.contains(PROTECTS_CLAIM).then_some(())
    };
    until("the source protected", protected).await;
    until("tries", async || {
        (driver.calls_of(Method::CreateVolume).len() > 1).then_some(())
    })
    .await;
    rig.api.delete(source).await.unwrap();
    let before = driver.calls_of(Method::CreateVolume).len();
    until("more tries", async || {
        (driver.calls_of(Method::CreateVolume).len() > before + 1).then_some(())
    })
    .await;
    assert!(protected().await.is_some(), "it is being copied");
    // The user deletes the claim, but the driver may still be working.
    let path = "/api/v1/namespaces/default/persistentvolumeclaims/copy";
    rig.api.remove(path).await.unwrap();
    let before = driver.calls_of(Method::CreateVolume).len();
    until("retries for a deleted claim", async || {
        (driver.calls_of(Method::CreateVolume).len() > before).then_some(())
    })
    .await;
    assert!(protected().await.is_some(), "it may be being copied");
    driver.clear_script(Method::CreateVolume);
    driver.script(Method::CreateVolume, Script::fail("INTERNAL", 1));
    until("the source without our finalizer", async || {
        protected().await.is_none().then_some(())
    })
    .await;
    assert!(driver.volumes().is_empty());
    assert_eq!(provisioner.stop().unwrap(), Some(0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn driver_without_cloning_removes_no_finalizers() {
    let (rig, _driver) = equip(&[]).await;
    let api = &rig.api;
    protected_claim(api, "source").await;
    api.delete(&claim_path("source")).await.unwrap();
    protected_snapshot(api, "left", &[PROTECTS_SNAPSHOT]).await;
    let flags = ["--snapshot-orphan-sweep-interval=100ms"];
    let provisioner = rig.provisioner("s", &flags).unwrap();
    let class =
        json!({ "kind": "StorageClass", "metadata": { "name": "class" }, "provisioner": DRIVER });
    put(api, &class, "").await.unwrap();
    for number in 0..3 {
        served(api, &format!("claim-{number}")).await;
    }
    assert!(has(api, &claim_path("source"), PROTECTS_CLAIM).await);
    assert!(has(api, &snapshot_path("left"), PROTECTS_SNAPSHOT).await);
    assert_eq!(provisioner.stop().unwrap(), Some(0));
}

/// Asserts that a claim of the class `class` gets its volume.
async fn served(api: &Api, name: &str) {
    let claim = handed_over(name, "class", DRIVER);
    let uid = put(api, &claim, "default").await.unwrap();
    until(&format!("a volume for {name}"), async || {
        let path = format!("/api/v1/persistentvolumes/pvc-{uid}");
        api.get(&path).await.unwrap()
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn finalizers_that_were_left_on_snapshots_are_swept() {
    let (rig, driver) = equip(&COPIES).await;
    let api = &rig.api;
    far(api).await;
    let user = || User::pending("VolumeSnapshot");
    let kept = [
        ("awaited", user()),
        (
            "awaited-ref",
            User {
                field: "dataSourceRef",
                ..user()
            },
        ),
        (
            "awaited-far",
            User {
                field: "dataSourceRef",
                namespace: FAR,
                ..user()
            },
        ),
    ];
    let swept = [
        ("left", None),
        (
            "restored",
            Some(User {
                phase: "Bound",
                ..user()
            }),
        ),
        (
            "namesake-far",
            Some(User {
                namespace: FAR,
                ..user()
            }),
        ),
        (
            "namesake-kind",
            Some(User::pending("PersistentVolumeClaim")),
        ),
    ];
    let users = kept.iter().map(|(name, user)| (*name, Some(user)));
    let users = users.chain(swept.iter().map(|(name, user)| (*name, user.as_ref())));
    for (name, user) in users {
        protected_snapshot(api, name, &[OTHER, PROTECTS_SNAPSHOT]).await;
        if let Some(user) = user {
            user.create(api, name).await;
        }
    }
    // A snapshot that a pending claim of this driver refers to, and one without our finalizer.
    protected_snapshot(api, "ours", &[PROTECTS_SNAPSHOT]).await;
    let class =
        json!({ "kind": "StorageClass", "metadata": { "name": "class" }, "provisioner": DRIVER });
    put(api, &class, "").await.unwrap();
    let mut ours = handed_over("ours", "class", DRIVER);
    ours["spec"]["dataSource"] = json!({
        "apiGroup": "snapshot.storage.k8s.io", "kind": "VolumeSnapshot", "name": "ours",
    });
    put(api, &ours, "default").await.unwrap();
    protected_snapshot(api, "others", &[OTHER]).await;
    // A snapshot whose deletion waits only for our finalizer.
    protected_snapshot(api, "deleted", &[PROTECTS_SNAPSHOT]).await;
    api.delete(&snapshot_path("deleted")).await.unwrap();

    let flags = [
        "--snapshot-orphan-sweep-interval=500ms",
        "--retry-interval-max=1s",
    ];
    let provisioner = rig.provisioner("s", &flags).unwrap();
    for (name, _) in &swept {
        until_let_go(api, &snapshot_path(name), PROTECTS_SNAPSHOT).await;
        assert!(has(api, &snapshot_path(name), OTHER).await, "{name}");
    }
    until("the deleted one gone", async || {
        let left = api.get(&snapshot_path("deleted")).await.unwrap();
        left.is_none().then_some(())
    })
    .await;
    // After a complete further sweep.
    let again = json!({ "metadata": { "finalizers": [OTHER, PROTECTS_SNAPSHOT] } });
    api.merge(&snapshot_path("left"), &again).await.unwrap();
    until_let_go(api, &snapshot_path("left"), PROTECTS_SNAPSHOT).await;
    for name in kept.iter().map(|(name, _)| *name).chain(["ours"]) {
        let path = snapshot_path(name);
        assert!(has(api, &path, PROTECTS_SNAPSHOT).await, "{name}");
    }
    let others = api.get(&snapshot_path("others")).await.unwrap().unwrap();
    assert_eq!(others["metadata"]["finalizers"], json!([OTHER]));

    bind(api, "default", "awaited").await;
    api.remove(&claim_path("user-of-awaited-ref"))
        .await
        .unwrap();
    let path = format!("/api/v1/namespaces/{FAR}/persistentvolumeclaims/user-of-awaited-far");
    api.remove(&path).await.unwrap();
    api.remove(&claim_path("ours")).await.unwrap();
    for name in kept.iter().map(|(name, _)| *name).chain(["ours"]) {
        until_let_go(api, &snapshot_path(name), PROTECTS_SNAPSHOT).await;
    }
    assert!(driver.calls_of(Method::CreateVolume).is_empty());
    assert_eq!(provisioner.stop().unwrap(), Some(0));
}

/// Starts a server that can reject requests, and a driver with snapshots.
async fn refusing() -> (Rig, Arc<Faults>) {
    let faults = Arc::new(Faults::default());
    let rig = Rig::start_with(Server::builder().faults(faults.clone()));
    let rig = rig.await.unwrap();
    define_kinds(&rig.api).await.unwrap();
    protected_snapshot(&rig.api, "left", &[PROTECTS_SNAPSHOT]).await;
    let class =
        json!({ "kind": "StorageClass", "metadata": { "name": "class" }, "provisioner": DRIVER });
    put(&rig.api, &class, "").await.unwrap();
    (rig, faults)
}

fn restores() -> MockConfig {
    MockConfig {
        controller: vec![
            ControllerCapability::CreateDeleteVolume,
            ControllerCapability::CreateDeleteSnapshot,
        ],
        ..MockConfig::default()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn failed_sweep_is_retried() {
    let (rig, faults) = refusing().await;
    let _driver = rig.driver("s", restores()).unwrap();
    let snapshots = snapshot_path("left");
    // More conflicts than one sweep retries.
    let conflicts = faults.add(Fault::answer(409).path(&snapshots).verb("update").times(7));
    let flags = ["--snapshot-orphan-sweep-interval=200ms"];
    let provisioner = rig.provisioner("s", &flags).unwrap();
    says(&provisioner, "cannot remove the finalizer of the snapshot").await;
    until("no finalizer after the next sweep", async || {
        (!has(&rig.api, &snapshots, PROTECTS_SNAPSHOT).await).then_some(())
    })
    .await;
    assert_eq!(conflicts.hits(), 7);
    assert_eq!(provisioner.stop().unwrap(), Some(0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sweep_is_skipped_without_permission_to_list_snapshots() {
    let (rig, faults) = refusing().await;
    let _driver = rig.driver("s", restores()).unwrap();
    let list = "/apis/snapshot.storage.k8s.io/v1/volumesnapshots";
    let forbidden = faults.add(Fault::answer(403).path(list).verb("list"));
    let flags = ["--snapshot-orphan-sweep-interval=100ms"];
    let provisioner = rig.provisioner("s", &flags).unwrap();
    says(&provisioner, "skipping snapshot cleanup").await;
    served(&rig.api, "claim").await;
    assert_eq!(forbidden.hits(), 1, "asked once");
    let path = snapshot_path("left");
    assert!(has(&rig.api, &path, PROTECTS_SNAPSHOT).await);
    assert_eq!(provisioner.stop().unwrap(), Some(0));
}
