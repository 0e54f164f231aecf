//! Deletion of volumes: which are deleted, with which secrets, and which are kept.

use serde_json::{Value, json};
use tenure_csi::ControllerCapability;
use tenure_csi::mock::{Method, MockConfig, MockDriver, Script};
use tenure_tests::storage::table::put;
use tenure_tests::storage::{Rig, until};

const DRIVER: &str = "mock.csi.example";
const FINALIZER: &str = "external-provisioner.volume.kubernetes.io/finalizer";
const BY: &str = "pv.kubernetes.io/provisioned-by";
const SECRET: &str = "volume.kubernetes.io/provisioner-deletion-secret-name";
const SECRET_NAMESPACE: &str = "volume.kubernetes.io/provisioner-deletion-secret-namespace";

/// The expected result for a volume.
enum Fate {
    /// It is deleted, with these secrets.
    Deleted(Value),
    /// It is kept.
    Kept,
    /// It is kept, and an event gives the reason.
    Event(&'static str),
}

/// Returns a released volume of the driver, with these changes.
fn volume(name: &str, changes: &Value) -> Value {
    let mut volume = json!({
        "kind": "PersistentVolume",
        "metadata": {
            "name": name,
            "annotations": { BY: DRIVER },
            "finalizers": [FINALIZER],
        },
        "spec": {
            "accessModes": ["ReadWriteOnce"],
            "capacity": { "storage": "1Gi" },
            "persistentVolumeReclaimPolicy": "Delete",
            "storageClassName": "plain",
            "csi": { "driver": DRIVER, "volumeHandle": format!("h-{name}") },
            "claimRef": { "namespace": "default", "name": "gone", "uid": "gone" },
        },
        "status": { "phase": "Released" },
    });
    change(&mut volume, changes);
    volume
}

fn change(object: &mut Value, changes: &Value) {
    for (key, value) in changes.as_object().into_iter().flatten() {
        match value {
            Value::Object(_) if object[key].is_object() => change(&mut object[key], value),
            Value::Null => {
                object.as_object_mut().unwrap().remove(key);
            }
            value => object[key] = value.clone(),
        }
    }
}

fn deletions(driver: &MockDriver, name: &str) -> Vec<Value> {
    let id = json!(format!("h-{name}"));
    let calls = driver.calls_of(Method::DeleteVolume).into_iter();
    calls
        .map(|call| call.request)
        .filter(|request| request["volume_id"] == id)
        .collect()
}

fn path(name: &str) -> String {
    format!("/api/v1/persistentvolumes/{name}")
}

/// Whether the volume is gone, or only the finalizer of the binder is left.
async fn is_gone(rig: &Rig, name: &str) -> bool {
    let Some(volume) = rig.api.get(&path(name)).await.unwrap() else {
        return true;
    };
    let meta = &volume["metadata"];
    meta["deletionTimestamp"].is_string()
        && meta["finalizers"] == json!(["kubernetes.io/pv-protection"])
}

async fn stage(controller: &[ControllerCapability]) -> (Rig, MockDriver) {
    let rig = Rig::start().await.unwrap();
    let mut abilities = vec![ControllerCapability::CreateDeleteVolume];
    abilities.extend(controller);
    let config = MockConfig {
        controller: abilities,
        ..MockConfig::default()
    };
    let driver = rig.driver("s", config).unwrap();
    let secret =
        json!({ "kind": "Secret", "metadata": { "name": "s" }, "data": { "user": "bWU=" } });
    put(&rig.api, &secret, "default").await.unwrap();
    for (name, secret) in [
        ("plain", json!({})),
        (
            "old",
            json!({ "secret-name": "s", "secret-namespace": "${pvc.namespace}" }),
        ),
        (
            "annotated",
            json!({ "secret-name": "${pvc.annotations['a']}", "secret-namespace": "default" }),
        ),
    ] {
        let prefixed =
            |(key, value): (&String, &Value)| (format!("csi.storage.k8s.io/{key}"), value.clone());
        let parameters: serde_json::Map<_, _> = secret
            .as_object()
            .into_iter()
            .flatten()
            .map(prefixed)
            .collect();
        let class = json!({
            "kind": "StorageClass", "metadata": { "name": name }, "provisioner": DRIVER, "parameters": parameters,
        });
        put(&rig.api, &class, "").await.unwrap();
    }
    (rig, driver)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn released_volumes_are_deleted_or_kept_with_the_expected_event() {
    let (rig, driver) = stage(&[ControllerCapability::PublishUnpublishVolume]).await;
    let me = || json!({ "user": "me" });
    let none = || Value::Null;
    let annotated = |name: &str, namespace: &str| json!({ "metadata": { "annotations": { SECRET: name, SECRET_NAMESPACE: namespace } } });
    let spec = |spec: Value| json!({ "spec": spec });
    let phase = |phase: &str| json!({ "status": { "phase": phase } });
    let by = |by: Value| json!({ "metadata": { "annotations": { BY: by } } });
    let cases = [
        ("plain", json!({}), Fate::Deleted(none())),
        ("secret", annotated("s", "default"), Fate::Deleted(me())),
        (
            "secret-gone",
            annotated("none", "default"),
            Fate::Deleted(none()),
        ),
        ("secret-empty", annotated("", ""), Fate::Deleted(none())),
        (
            "old",
            spec(json!({ "storageClassName": "old" })),
            Fate::Deleted(me()),
        ),
        (
            "old-no-claim",
            spec(json!({ "storageClassName": "old", "claimRef": null })),
            Fate::Deleted(none()),
        ),
        (
            "old-class-gone",
            spec(json!({ "storageClassName": "none" })),
            Fate::Deleted(none()),
        ),
        (
            "old-template",
            spec(json!({ "storageClassName": "annotated" })),
            Fate::Event("unknown token"),
        ),
        ("static", by(Value::Null), Fate::Deleted(none())),
        (
            "no-finalizer",
            json!({ "metadata": { "finalizers": null } }),
            Fate::Deleted(none()),
        ),
        (
            "deleted-already",
            json!({ "metadata": { "deletionTimestamp": "2026-01-01T00:00:00Z" } }),
            Fate::Deleted(none()),
        ),
        (
            "retained",
            spec(json!({ "persistentVolumeReclaimPolicy": "Retain" })),
            Fate::Kept,
        ),
        ("bound", phase("Bound"), Fate::Kept),
        ("available", phase("Available"), Fate::Kept),
        ("failed", phase("Failed"), Fate::Kept),
        ("others", by(json!("other.example")), Fate::Kept),
        (
            "other-driver",
            json!({
                "metadata": { "annotations": { BY: null } }, "spec": { "csi": { "driver": "other.example" } },
            }),
            Fate::Kept,
        ),
        (
            "not-csi",
            spec(json!({ "csi": null, "hostPath": { "path": "/x" } })),
            Fate::Event("invalid CSI PV"),
        ),
        (
            "attached",
            json!({}),
            Fate::Event("still attached to node n"),
        ),
    ];
    let attachment = json!({
        "kind": "VolumeAttachment",
        "metadata": { "name": "attachment" },
        "spec": { "attacher": DRIVER, "nodeName": "n", "source": { "persistentVolumeName": "attached" } },
    });
    put(&rig.api, &attachment, "").await.unwrap();
    for (name, changes, _) in &cases {
        put(&rig.api, &volume(name, changes), "").await.unwrap();
    }
    let provisioner = rig.provisioner("s", &["--retry-interval-max=1s"]).unwrap();
    for (name, _, fate) in &cases {
        match fate {
            Fate::Deleted(secrets) => {
                until(&format!("{name} gone"), async || {
                    is_gone(&rig, name).await.then_some(())
                })
                .await;
                let calls = deletions(&driver, name);
                assert_eq!(calls.len(), 1, "{name}");
                assert_eq!(calls[0]["secrets"], *secrets, "{name}");
            }
            Fate::Event(text) => {
                until(&format!("{name}: an event with {text}"), async || {
                    let events = rig.api.get("/api/v1/namespaces/default/events").await;
                    let events = events.unwrap()?;
                    let about = |event: &&Value| {
                        event["involvedObject"]["name"] == *name
                            && event["reason"] == "VolumeFailedDelete"
                    };
                    let mut about = events["items"].as_array()?.iter().filter(about);
                    about
                        .any(|event| event["message"].to_string().contains(text))
                        .then_some(())
                })
                .await;
                assert!(!is_gone(&rig, name).await, "{name}");
                assert!(deletions(&driver, name).is_empty(), "{name}");
            }
            Fate::Kept => {}
        }
    }
    for (name, _, fate) in &cases {
        if matches!(fate, Fate::Kept) {
            assert!(!is_gone(&rig, name).await, "{name}");
            assert!(deletions(&driver, name).is_empty(), "{name}");
        }
    }
    // The finalizer depends on the reclaim policy.
    let finalizers = async |name: &str| {
        let volume = rig.api.get(&path(name)).await.unwrap().unwrap();
        volume["metadata"]["finalizers"]
            .to_string()
            .contains(FINALIZER)
    };
    until("a retained volume without our finalizer", async || {
        (!finalizers("retained").await).then_some(())
    })
    .await;
    assert!(finalizers("bound").await);
    // A user deletes a volume that is in use, and later its claim.
    rig.api.delete(&path("bound")).await.unwrap();
    rig.api
        .merge(&format!("{}/status", path("bound")), &phase("Released"))
        .await
        .unwrap();
    // A volume that is no longer attached.
    rig.api
        .remove("/apis/storage.k8s.io/v1/volumeattachments/attachment")
        .await
        .unwrap();
    for name in ["bound", "attached"] {
        until(&format!("{name} gone"), async || {
            is_gone(&rig, name).await.then_some(())
        })
        .await;
        assert_eq!(deletions(&driver, name).len(), 1, "{name}");
    }
    assert_eq!(provisioner.stop().unwrap(), Some(0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn failed_deletion_is_retried() {
    let (rig, driver) = stage(&[]).await;
    let provisioner = rig.provisioner("s", &["--retry-interval-max=1s"]).unwrap();
    // An error `NOT_FOUND` does not count as deleted: a driver has to return success.
    for code in ["INTERNAL", "UNAVAILABLE", "NOT_FOUND"] {
        driver.script(Method::DeleteVolume, Script::fail(code, 1));
        // A volume without a finalizer gets one while it is bound.
        let name = code.to_lowercase().replace('_', "-");
        let bound = json!({ "metadata": { "finalizers": null }, "status": { "phase": "Bound" } });
        put(&rig.api, &volume(&name, &bound), "").await.unwrap();
        until("a finalizer", async || {
            let volume = rig.api.get(&path(&name)).await.unwrap()?;
            volume["metadata"]["finalizers"]
                .to_string()
                .contains(FINALIZER)
                .then_some(())
        })
        .await;
        let released = json!({ "status": { "phase": "Released" } });
        rig.api
            .merge(&format!("{}/status", path(&name)), &released)
            .await
            .unwrap();
        until(&format!("{name} gone"), async || {
            is_gone(&rig, &name).await.then_some(())
        })
        .await;
        assert_eq!(deletions(&driver, &name).len(), 2, "{name}");
    }
    assert_eq!(provisioner.stop().unwrap(), Some(0));
}

/// Another client deletes the object while its storage is being deleted. This is the wanted result, not a failure.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn object_that_is_already_deleted_is_not_retried() {
    let (rig, driver) = stage(&[]).await;
    put(&rig.api, &volume("taken", &json!({})), "")
        .await
        .unwrap();
    let slow = Script {
        times: Some(1),
        answer_after_ms: 3_000,
        ..Script::default()
    };
    driver.script(Method::DeleteVolume, slow);
    let provisioner = rig.provisioner("s", &[]).unwrap();
    until("a deletion under way", async || {
        (!deletions(&driver, "taken").is_empty()).then_some(())
    })
    .await;
    rig.api.remove(&path("taken")).await.unwrap();
    assert!(rig.api.get(&path("taken")).await.unwrap().is_none());
    let lines = async || provisioner.process.text();
    until("the end of it", async || {
        let lines = lines().await;
        let mut about = lines.iter().filter(|line| line.contains("taken"));
        about.any(|line| line.contains("deleted")).then_some(())
    })
    .await;
    let said = lines().await.join("\n");
    assert!(
        !said.contains("cannot process the volume; retrying"),
        "{said}"
    );
    assert_eq!(deletions(&driver, "taken").len(), 1);
    assert_eq!(provisioner.stop().unwrap(), Some(0));
}
