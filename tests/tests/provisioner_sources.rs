//! Volumes made from snapshots and from other volumes: what may be a source, what is refused, how sources
//! are protected meanwhile and let go of afterwards.
#![allow(
    clippy::needless_pass_by_value,
    reason = "cases are read more easily with values"
)]

use serde_json::{Value, json};
use tenure_csi::ControllerCapability;
use tenure_csi::mock::{Method, MockConfig, MockDriver, Script};
use tenure_tests::storage::table::{Trial, define_kinds, put, run, trial};
use tenure_tests::storage::{Provisioner, Rig, handed_over, until};

const DRIVER: &str = "mock.csi.example";
const PROTECTS_SNAPSHOT: &str =
    "provisioner.storage.kubernetes.io/volumesnapshot-as-source-protection";
const PROTECTS_CLAIM: &str = "provisioner.storage.kubernetes.io/cloning-protection";
const IN_USE: &str = "kubernetes.io/pvc-protection";

async fn stage(flags: &[&str]) -> (Rig, MockDriver, Provisioner) {
    let rig = Rig::start().await.unwrap();
    define_kinds(&rig.api).await.unwrap();
    let config = MockConfig {
        controller: vec![
            ControllerCapability::CreateDeleteVolume,
            ControllerCapability::CreateDeleteSnapshot,
            ControllerCapability::CloneVolume,
        ],
        ..MockConfig::default()
    };
    let driver = rig.driver("s", config).unwrap();
    let provisioner = rig.provisioner("s", flags).unwrap();
    (rig, driver, provisioner)
}

/// A snapshot `snap` and its content, ready to be restored but for these changes.
fn snapshot(changes: Value, content: Value) -> [Value; 2] {
    let mut snapshot = json!({
        "apiVersion": "snapshot.storage.k8s.io/v1",
        "kind": "VolumeSnapshot",
        "metadata": { "name": "snap" },
        "spec": { "source": { "persistentVolumeClaimName": "some" } },
        "status": {
            "boundVolumeSnapshotContentName": "<ns>-content",
            "readyToUse": true,
            "restoreSize": "1Gi",
        },
    });
    let mut its_content = json!({
        "apiVersion": "snapshot.storage.k8s.io/v1",
        "kind": "VolumeSnapshotContent",
        "metadata": { "name": "<ns>-content" },
        "spec": {
            "driver": DRIVER,
            "deletionPolicy": "Delete",
            "source": { "snapshotHandle": "handle" },
            "volumeSnapshotRef": { "name": "snap", "namespace": "<ns>", "uid": "<uid:snap>" },
        },
        "status": { "snapshotHandle": "handle" },
    });
    change(&mut snapshot, &changes);
    change(&mut its_content, &content);
    [snapshot, its_content]
}

fn ready() -> [Value; 2] {
    snapshot(json!({}), json!({}))
}

fn change(object: &mut Value, changes: &Value) {
    for (key, value) in changes.as_object().into_iter().flatten() {
        match value {
            Value::Object(_) if object[key].is_object() => change(&mut object[key], value),
            value => object[key] = value.clone(),
        }
    }
}

fn restore(name: &'static str) -> Trial {
    let source =
        json!({ "apiGroup": "snapshot.storage.k8s.io", "kind": "VolumeSnapshot", "name": "snap" });
    trial(name).spec(json!({ "dataSource": source }))
}

/// The volume is made from the snapshot, which is not protected any more.
fn restored(trial: Trial) -> Trial {
    let source = json!({ "snapshot": { "snapshot_id": "handle" } });
    trial
        .asks(json!({ "volume_content_source": source }))
        .gives(json!({ "spec": { "csi": { "volumeHandle": "vol-pvc-<uid>" } } }))
        .leaves_object(
            json!({ "kind": "VolumeSnapshot", "metadata": { "name": "snap", "finalizers": null } }),
        )
}

fn snapshots() -> Vec<Trial> {
    let with = |name, changes, content| restore(name).with_all(snapshot(changes, content));
    let status = |status: Value| json!({ "status": status });
    let spec = |spec: Value| json!({ "spec": spec });
    let none = || json!({});
    let block = || spec(json!({ "sourceVolumeMode": "Block" }));
    let allow = |value: &str| {
        let key = "snapshot.storage.kubernetes.io/allow-volume-mode-change";
        let mut changes = block();
        changes["metadata"] = json!({ "annotations": { key: value } });
        changes
    };
    let deleting = |finalizers: Value| {
        let time = "2026-01-01T00:00:00Z";
        json!({ "metadata": { "deletionTimestamp": time, "finalizers": finalizers } })
    };
    let reference = |source: Value| trial("snap-group").spec(json!({ "dataSourceRef": source }));
    vec![
        restored(restore("snap-plain").with_all(ready())),
        restored(
            trial("snap-ref")
                .with_all(ready())
                .spec(json!({ "dataSourceRef": {
                "apiGroup": "snapshot.storage.k8s.io", "kind": "VolumeSnapshot", "name": "snap"
            } })),
        ),
        restored(
            restore("snap-larger")
                .with_all(ready())
                .spec(json!({ "resources": { "requests": { "storage": "3Gi" } } })),
        ),
        restored(with(
            "snap-no-size",
            status(json!({ "restoreSize": null })),
            none(),
        )),
        restored(
            // The driver takes its time, and says so.
            restore("snap-slow")
                .with_all(ready())
                .script(json!({ "code": "DEADLINE_EXCEEDED", "times": 2 })),
        )
        .calls(3, 0),
        restored(with(
            "snap-mode-same",
            none(),
            spec(json!({ "sourceVolumeMode": "Filesystem" })),
        )),
        restored(with("snap-mode-allowed", none(), allow("true"))),
        with("snap-mode", none(), block()).refused("allow-volume-mode-change"),
        with("snap-mode-denied", none(), allow("false")).refused("allow-volume-mode-change"),
        with("snap-mode-garbled", none(), allow("yes!")).refused("allow-volume-mode-change"),
        restore("snap-missing").refused("not found"),
        with(
            "snap-unbound",
            status(json!({ "boundVolumeSnapshotContentName": null })),
            none(),
        )
        .refused("not bound"),
        restore("snap-no-content")
            .with(ready()[0].clone())
            .refused("not found"),
        with(
            "snap-other-uid",
            none(),
            spec(json!({ "volumeSnapshotRef": { "uid": "other" } })),
        )
        .refused("do not name each other"),
        with(
            "snap-other-name",
            none(),
            spec(json!({ "volumeSnapshotRef": { "name": "other" } })),
        )
        .refused("do not name each other"),
        with(
            "snap-other-ns",
            none(),
            spec(json!({ "volumeSnapshotRef": { "namespace": "x" } })),
        )
        .refused("do not name each other"),
        with(
            "snap-driver",
            none(),
            spec(json!({ "driver": "other.example" })),
        )
        .refused("other.example"),
        with(
            "snap-not-ready",
            status(json!({ "readyToUse": false })),
            none(),
        )
        .refused("not ready"),
        with(
            "snap-never-ready",
            status(json!({ "readyToUse": null })),
            none(),
        )
        .refused("not ready"),
        with(
            "snap-no-handle",
            none(),
            status(json!({ "snapshotHandle": null })),
        )
        .refused("no handle"),
        with(
            "snap-too-large",
            status(json!({ "restoreSize": "2Gi" })),
            none(),
        )
        .refused("less than the size"),
        with(
            "snap-odd-size",
            status(json!({ "restoreSize": "much" })),
            none(),
        )
        .refused("much"),
        with(
            "snap-deleting",
            deleting(json!(["example.com/other"])),
            none(),
        )
        .refused("being deleted"),
        // It was deleted after its restoring had begun.
        restore("snap-begun")
            .with_all(snapshot(
                deleting(json!(["example.com/other", PROTECTS_SNAPSHOT])),
                none(),
            ))
            .asks(json!({ "volume_content_source": { "snapshot": { "snapshot_id": "handle" } } }))
            .gives(json!({}))
            .leaves_object(json!({
                "kind": "VolumeSnapshot",
                "metadata": { "name": "snap", "finalizers": ["example.com/other"] },
            })),
        reference(json!({ "apiGroup": "other.example", "kind": "VolumeSnapshot", "name": "snap" }))
            .refused("other.example"),
        // Protected for as long as it is needed.
        restore("snap-failing")
            .with_all(ready())
            .script(json!({ "code": "INTERNAL" }))
            .fails("Internal")
            .calls(2, 0)
            .leaves_object(json!({
                "kind": "VolumeSnapshot",
                "metadata": { "name": "snap", "finalizers": [PROTECTS_SNAPSHOT] },
            })),
        // A volume that is not said to have the contents is not what was asked for.
        restore("snap-sourceless")
            .with_all(ready())
            .script(json!({ "omit_content_source": true }))
            .fails("content source missing")
            .calls(1, 1),
        trial("snap-elsewhere-gate")
            .spec(json!({ "dataSourceRef": {
                "apiGroup": "snapshot.storage.k8s.io", "kind": "VolumeSnapshot",
                "name": "snap", "namespace": "default",
            } }))
            .refused("CrossNamespaceVolumeDataSource"),
    ]
}

/// A claim `source` with its volume, but for these changes.
fn bound(changes: Value, volume: Value) -> [Value; 2] {
    let mut claim = json!({
        "kind": "PersistentVolumeClaim",
        "metadata": { "name": "source" },
        "spec": {
            "accessModes": ["ReadWriteOnce"],
            "resources": { "requests": { "storage": "1Gi" } },
            "storageClassName": "<ns>",
            "volumeName": "<ns>-volume",
        },
        "status": { "phase": "Bound" },
    });
    let mut its_volume = json!({
        "kind": "PersistentVolume",
        "metadata": { "name": "<ns>-volume" },
        "spec": {
            "accessModes": ["ReadWriteOnce"],
            "capacity": { "storage": "1Gi" },
            "persistentVolumeReclaimPolicy": "Retain",
            "csi": { "driver": DRIVER, "volumeHandle": "source-handle" },
            "claimRef": { "namespace": "<ns>", "name": "source", "uid": "<uid:source>" },
        },
        "status": { "phase": "Bound" },
    });
    change(&mut claim, &changes);
    change(&mut its_volume, &volume);
    [claim, its_volume]
}

fn copy(name: &'static str) -> Trial {
    trial(name).spec(json!({ "dataSource": { "kind": "PersistentVolumeClaim", "name": "source" } }))
}

/// The volume is made from the other, which stays protected until somebody deletes it.
fn copied(trial: Trial) -> Trial {
    trial
        .asks(json!({ "volume_content_source": { "volume": { "volume_id": "source-handle" } } }))
        .gives(json!({}))
        .leaves_object(json!({
            "kind": "PersistentVolumeClaim",
            "metadata": { "name": "source", "finalizers": [IN_USE, PROTECTS_CLAIM] },
        }))
}

fn clones() -> Vec<Trial> {
    let with = |name, changes, volume| copy(name).with_all(bound(changes, volume));
    let none = || json!({});
    let spec = |spec: Value| json!({ "spec": spec });
    let status = |phase: &str| json!({ "status": { "phase": phase } });
    let size = |size: &str| spec(json!({ "resources": { "requests": { "storage": size } } }));
    vec![
        copied(with("clone-plain", none(), none())),
        copied(trial("clone-ref").with_all(bound(none(), none())).spec(
            json!({ "dataSourceRef": { "kind": "PersistentVolumeClaim", "name": "source" } }),
        )),
        copied(with(
            "clone-other-class",
            spec(json!({ "storageClassName": "other" })),
            none(),
        )),
        copied(with("clone-smaller", size("512Mi"), none())),
        copied(
            with(
                "clone-block",
                spec(json!({ "volumeMode": "Block" })),
                none(),
            )
            .spec(json!({ "volumeMode": "Block" })),
        ),
        with("clone-larger", size("2Gi"), none()).refused("less than the size"),
        copy("clone-missing").refused("not found"),
        with("clone-pending", status("Pending"), none()).refused("not bound"),
        with("clone-lost", status("Lost"), none()).refused("not bound"),
        with(
            "clone-deleting",
            json!({ "metadata": {
                "deletionTimestamp": "2026-01-01T00:00:00Z", "finalizers": ["example.com/other"],
            } }),
            none(),
        )
        .refused("being deleted"),
        with(
            "clone-no-volume",
            spec(json!({ "volumeName": null })),
            none(),
        )
        .refused("has no volume"),
        with("clone-mode", spec(json!({ "volumeMode": "Block" })), none()).refused("mode"),
        copy("clone-volume-missing")
            .with(bound(none(), none())[0].clone())
            .refused("not found"),
        with(
            "clone-not-csi",
            none(),
            spec(json!({ "csi": null, "hostPath": { "path": "/x" } })),
        )
        .refused("not a CSI volume"),
        with(
            "clone-driver",
            none(),
            spec(json!({ "csi": { "driver": "other.example" } })),
        )
        .refused("other.example"),
        with(
            "clone-other-uid",
            none(),
            spec(json!({ "claimRef": { "uid": "other" } })),
        )
        .refused("not bound to claim"),
        with(
            "clone-other-name",
            none(),
            spec(json!({ "claimRef": { "name": "other" } })),
        )
        .refused("not bound to claim"),
        with("clone-released", none(), status("Released")).refused("not bound to claim"),
        with("clone-sourceless", none(), none())
            .script(json!({ "omit_content_source": true }))
            .fails("content source missing")
            .calls(1, 1),
    ]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sources_are_checked_protected_and_let_go_of() {
    // A case's snapshot is there before its claim: nothing must be swept in between.
    let (rig, driver, provisioner) = stage(&["--snapshot-orphan-sweep-interval=0s"]).await;
    let trials: Vec<_> = snapshots().into_iter().chain(clones()).collect();
    let found = run(&rig.api, &driver, &trials).await.unwrap();
    assert!(found.is_empty(), "{}", found.join("\n"));
    assert_eq!(provisioner.stop().unwrap(), Some(0));
}

fn elsewhere(name: &'static str, kind: &str, grant: Option<Value>) -> Trial {
    let (group, source) = match kind {
        "VolumeSnapshot" => (json!("snapshot.storage.k8s.io"), "snap"),
        _ => (Value::Null, "source"),
    };
    let there = |mut object: Value| {
        if object["kind"] == "VolumeSnapshot" || object["kind"] == "PersistentVolumeClaim" {
            object["metadata"]["namespace"] = json!("<ns>-there");
        }
        object
    };
    let reference = json!({ "spec": { "volumeSnapshotRef": { "namespace": "<ns>-there" } } });
    let claim = json!({ "spec": { "claimRef": { "namespace": "<ns>-there" } } });
    let namespace = json!({ "kind": "Namespace", "metadata": { "name": "<ns>-there" } });
    let objects = match kind {
        "VolumeSnapshot" => snapshot(json!({}), reference),
        _ => bound(json!({}), claim),
    };
    let grant = grant.map(|spec| {
        json!({
            "apiVersion": "gateway.networking.k8s.io/v1beta1",
            "kind": "ReferenceGrant",
            "metadata": { "name": "grant", "namespace": "<ns>-there" },
            "spec": spec,
        })
    });
    trial(name)
        .with(namespace)
        .with_all(objects.map(there))
        .with_all(grant)
        .spec(json!({ "dataSourceRef": {
            "apiGroup": group, "kind": kind, "name": source, "namespace": "<ns>-there",
        } }))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sources_in_other_namespaces_take_a_grant() {
    let (rig, driver, provisioner) =
        stage(&["--feature-gates=CrossNamespaceVolumeDataSource=true"]).await;
    let from = |namespace: &str| json!([{ "group": "", "kind": "PersistentVolumeClaim", "namespace": namespace }]);
    let snapshots = || json!([{ "group": "snapshot.storage.k8s.io", "kind": "VolumeSnapshot" }]);
    let claims =
        |name: &str| json!([{ "group": "", "kind": "PersistentVolumeClaim", "name": name }]);
    let grant = |from: Value, to: Value| Some(json!({ "from": from, "to": to }));
    let (snap, claim) = ("VolumeSnapshot", "PersistentVolumeClaim");
    let made = |trial: Trial| trial.gives(json!({})).calls(1, 0);
    let trials = [
        made(elsewhere(
            "far-snap",
            snap,
            grant(from("<ns>"), snapshots()),
        ))
        .leaves_object(json!({
            "kind": "VolumeSnapshot",
            "metadata": { "name": "snap", "namespace": "<ns>-there", "finalizers": null },
        })),
        made(elsewhere(
            "far-clone",
            claim,
            grant(from("<ns>"), claims("")),
        ))
        .leaves_object(json!({
            "kind": "PersistentVolumeClaim",
            "metadata": {
                "name": "source", "namespace": "<ns>-there", "finalizers": [IN_USE, PROTECTS_CLAIM],
            },
        })),
        made(elsewhere(
            "far-named",
            claim,
            grant(from("<ns>"), claims("source")),
        )),
        elsewhere("far-no-grant", snap, None).refused("no ReferenceGrant"),
        elsewhere("far-other-from", snap, grant(from("other"), snapshots()))
            .refused("no ReferenceGrant"),
        elsewhere("far-other-kind", snap, grant(from("<ns>"), claims("")))
            .refused("no ReferenceGrant"),
        elsewhere(
            "far-other-name",
            claim,
            grant(from("<ns>"), claims("other")),
        )
        .refused("no ReferenceGrant"),
    ];
    let found = run(&rig.api, &driver, &trials).await.unwrap();
    assert!(found.is_empty(), "{}", found.join("\n"));
    assert_eq!(provisioner.stop().unwrap(), Some(0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_source_of_a_clone_goes_when_nobody_copies_it() {
    let (rig, driver, provisioner) = stage(&[]).await;
    // The copy is never finished.
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
    // The user gives up: the driver may be at work all the same.
    let path = "/api/v1/namespaces/default/persistentvolumeclaims/copy";
    rig.api.remove(path).await.unwrap();
    let before = driver.calls_of(Method::CreateVolume).len();
    until("tries for a claim that is gone", async || {
        (driver.calls_of(Method::CreateVolume).len() > before).then_some(())
    })
    .await;
    assert!(protected().await.is_some(), "it may be being copied");
    driver.clear_script(Method::CreateVolume);
    driver.script(Method::CreateVolume, Script::fail("INTERNAL", 1));
    until("the source let go of", async || {
        protected().await.is_none().then_some(())
    })
    .await;
    assert!(driver.volumes().is_empty());
    assert_eq!(provisioner.stop().unwrap(), Some(0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn finalizers_that_were_left_on_snapshots_are_swept() {
    let (rig, _driver, provisioner) = stage(&["--snapshot-orphan-sweep-interval=500ms"]).await;
    let api = &rig.api;
    let class =
        json!({ "kind": "StorageClass", "metadata": { "name": "class" }, "provisioner": DRIVER });
    put(api, &class, "").await.unwrap();
    let mut claim = handed_over("claim", "class", DRIVER);
    claim["spec"]["dataSource"] = json!({
        "apiGroup": "snapshot.storage.k8s.io", "kind": "VolumeSnapshot", "name": "awaited",
    });
    put(api, &claim, "default").await.unwrap();
    until("the claim seen", async || {
        let events = api.get("/api/v1/namespaces/default/events").await.unwrap();
        events?
            .to_string()
            .contains("ProvisioningFailed")
            .then_some(())
    })
    .await;
    let protected =
        json!({ "metadata": { "finalizers": ["example.com/other", PROTECTS_SNAPSHOT] } });
    let path = |name: &str| {
        format!("/apis/snapshot.storage.k8s.io/v1/namespaces/default/volumesnapshots/{name}")
    };
    for name in ["awaited", "left"] {
        let mut snapshot = snapshot(protected.clone(), json!({}))[0].clone();
        snapshot["metadata"]["name"] = json!(name);
        put(api, &snapshot, "default").await.unwrap();
    }
    let finalizers = async |name: &str| {
        let snapshot = api.get(&path(name)).await.unwrap().unwrap_or_default();
        snapshot["metadata"]["finalizers"].clone()
    };
    until("the one that nobody waits for let go of", async || {
        (finalizers("left").await == json!(["example.com/other"])).then_some(())
    })
    .await;
    // A whole sweep later.
    api.merge(&path("left"), &protected).await.unwrap();
    until("the next sweep", async || {
        (finalizers("left").await == json!(["example.com/other"])).then_some(())
    })
    .await;
    assert_eq!(
        finalizers("awaited").await,
        protected["metadata"]["finalizers"]
    );
    assert_eq!(provisioner.stop().unwrap(), Some(0));
}
