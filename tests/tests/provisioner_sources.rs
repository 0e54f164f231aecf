//! Volumes from snapshots and from other volumes: valid and rejected sources.
#![allow(
    clippy::needless_pass_by_value,
    reason = "passing values keeps the cases short"
)]

use serde_json::{Value, json};
use tenure_csi::ControllerCapability;
use tenure_csi::mock::{MockConfig, MockDriver};
use tenure_tests::storage::table::{Trial, define_kinds, run, trial};
use tenure_tests::storage::{Provisioner, Rig};

pub(crate) const DRIVER: &str = "mock.csi.example";
pub(crate) const PROTECTS_SNAPSHOT: &str =
    "provisioner.storage.kubernetes.io/volumesnapshot-as-source-protection";
pub(crate) const PROTECTS_CLAIM: &str = "provisioner.storage.kubernetes.io/cloning-protection";
const IN_USE: &str = "kubernetes.io/pvc-protection";

/// Capabilities of a driver that restores snapshots and clones volumes.
pub(crate) const COPIES: [ControllerCapability; 2] = [
    ControllerCapability::CreateDeleteSnapshot,
    ControllerCapability::CloneVolume,
];

/// Starts a server with all kinds, and a driver with these capabilities.
pub(crate) async fn equip(abilities: &[ControllerCapability]) -> (Rig, MockDriver) {
    let rig = Rig::start().await.unwrap();
    define_kinds(&rig.api).await.unwrap();
    let mut controller = vec![ControllerCapability::CreateDeleteVolume];
    controller.extend(abilities);
    let config = MockConfig {
        controller,
        ..MockConfig::default()
    };
    let driver = rig.driver("s", config).unwrap();
    (rig, driver)
}

pub(crate) async fn stage(flags: &[&str]) -> (Rig, MockDriver, Provisioner) {
    let (rig, driver) = equip(&COPIES).await;
    let provisioner = rig.provisioner("s", flags).unwrap();
    (rig, driver, provisioner)
}

/// Returns a snapshot `snap` and its content, ready to be restored, with these changes.
pub(crate) fn snapshot(changes: Value, content: Value) -> [Value; 2] {
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

/// The volume is created from the snapshot, which is no longer protected.
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
            // The driver reports that it needs more time.
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
        // The snapshot was deleted after its restore had started.
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
        // A volume without the requested content source in the response is rejected.
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

/// Returns a claim `source` with its volume, with these changes.
pub(crate) fn bound(changes: Value, volume: Value) -> [Value; 2] {
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

/// The volume is cloned from the other one, which stays protected until it is deleted.
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
    let source = || json!({ "kind": "PersistentVolumeClaim", "name": "source" });
    let finalizers = |finalizers: Value| json!({ "metadata": { "finalizers": finalizers } });
    let old_class = "volume.beta.kubernetes.io/storage-class";
    vec![
        copied(with("clone-plain", none(), none())),
        copied(
            copy("clone-both")
                .with_all(bound(none(), none()))
                .spec(json!({ "dataSourceRef": source() })),
        ),
        copied(
            with("clone-into-larger", none(), none())
                .spec(json!({ "resources": { "requests": { "storage": "3Gi" } } })),
        ),
        // The source already has the finalizer, because of another clone in progress.
        copied(with(
            "clone-protected",
            finalizers(json!([IN_USE, PROTECTS_CLAIM])),
            none(),
        )),
        copied(
            // The default mode is `Filesystem`.
            with("clone-mode-unnamed", none(), none()).spec(json!({ "volumeMode": "Filesystem" })),
        ),
        copied(
            with("clone-slow", none(), none())
                .script(json!({ "code": "DEADLINE_EXCEEDED", "times": 2 })),
        )
        .calls(3, 0),
        // Protected for as long as it is needed.
        with("clone-failing", none(), none())
            .script(json!({ "code": "INTERNAL" }))
            .fails("Internal")
            .calls(2, 0)
            .leaves_object(json!({
                "kind": "PersistentVolumeClaim",
                "metadata": { "name": "source", "finalizers": [IN_USE, PROTECTS_CLAIM] },
            })),
        with(
            "clone-classless-source",
            spec(json!({ "storageClassName": null })),
            none(),
        )
        .refused("both need a storageClassName"),
        with("clone-classless", none(), none())
            .annotations(json!({ old_class: "<ns>" }))
            .spec(json!({ "storageClassName": null }))
            .refused("both need a storageClassName"),
        with("clone-mode-block", none(), none())
            .spec(json!({ "volumeMode": "Block" }))
            .refused("mode"),
        with(
            "clone-other-ns",
            none(),
            spec(json!({ "claimRef": { "namespace": "other" } })),
        )
        .refused("not bound to claim"),
        with("clone-nobodys", none(), spec(json!({ "claimRef": null })))
            .refused("not bound to claim"),
        with("clone-available", none(), status("Available")).refused("not bound to claim"),
        with("clone-failed", none(), status("Failed")).refused("not bound to claim"),
        // The kind has the same name but belongs to another group: a volume populator handles it.
        trial("clone-other-group")
            .spec(json!({ "dataSourceRef": {
                "apiGroup": "example.com", "kind": "PersistentVolumeClaim", "name": "source",
            } }))
            .ignored()
            .event("Provisioning"),
        trial("clone-elsewhere-gate")
            .spec(json!({ "dataSourceRef": {
                "kind": "PersistentVolumeClaim", "name": "source", "namespace": "default",
            } }))
            .refused("CrossNamespaceVolumeDataSource"),
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
async fn sources_are_checked_protected_and_unprotected() {
    // The snapshot of a case exists before its claim, so no sweep may run in between.
    let (rig, driver, provisioner) = stage(&["--snapshot-orphan-sweep-interval=0s"]).await;
    let trials: Vec<_> = snapshots().into_iter().chain(clones()).collect();
    let found = run(&rig.api, &driver, &trials).await.unwrap();
    assert!(found.is_empty(), "{}", found.join("\n"));
    assert_eq!(provisioner.stop().unwrap(), Some(0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn driver_without_cloning_gets_no_requests_with_sources() {
    let (rig, driver) = equip(&[]).await;
    let provisioner = rig.provisioner("s", &[]).unwrap();
    let [source, volume] = bound(json!({}), json!({}));
    let untouched = json!({
        "kind": "PersistentVolumeClaim",
        "metadata": { "name": "source", "finalizers": [IN_USE] },
    });
    let trials = [
        copy("clone-unable")
            .with_all([source, volume])
            .refused("CLONE_VOLUME")
            .leaves_object(untouched),
        restore("snap-unable")
            .with_all(ready())
            .refused("CREATE_DELETE_SNAPSHOT")
            .leaves_object(json!({
                "kind": "VolumeSnapshot",
                "metadata": { "name": "snap", "finalizers": null },
            })),
    ];
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
async fn sources_in_other_namespaces_need_a_grant() {
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
