//! Storage on `tenure server`: all types of claims with our provisioner and a scripted driver, from their creation to
//! the end of their deletion.
#![allow(clippy::disallowed_methods, reason = "waits for other processes")]

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::{Value, json};
use tenure_csi::mock::{Method, MockConfig, MockDriver};
use tenure_csi::{ControllerCapability, PluginCapability};
use tenure_tests::storage::{Api, Served};

const LIMIT: Duration = Duration::from_secs(120);
const CLAIMS: &str = "/api/v1/namespaces/default/persistentvolumeclaims";
const VOLUMES: &str = "/api/v1/persistentvolumes";
const PODS: &str = "/api/v1/namespaces/default/pods";
pub(crate) const CLASSES: &str = "/apis/storage.k8s.io/v1/storageclasses";
pub(crate) const DRIVER: &str = "mock.csi.example";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn claims_are_provisioned_bound_cloned_and_deleted() {
    let served = Served::start(&[]).await.unwrap();
    let driver = served.driver(abilities()).unwrap();
    let provisioner = served.provisioner(&[]).unwrap();
    let found = outcomes(&served.api, &driver).await;
    assert_eq!(found["claims"]["made"]["status"]["phase"], "Bound");
    end(&served.api, &driver).await;
    assert_eq!(provisioner.stop().unwrap(), Some(0));
}

pub(crate) fn abilities() -> MockConfig {
    MockConfig {
        plugin: vec![PluginCapability::ControllerService],
        controller: vec![
            ControllerCapability::CreateDeleteVolume,
            ControllerCapability::CloneVolume,
        ],
        ..MockConfig::default()
    }
}

/// Creates all types of claims and volumes. Returns the resulting objects, without the values that differ between runs.
pub(crate) async fn outcomes(api: &Api, driver: &MockDriver) -> Value {
    let class = json!({ "metadata": { "name": "fast" }, "provisioner": DRIVER });
    api.create(CLASSES, &class).await.unwrap();
    let size = |size: &str| json!({ "capacity": { "storage": size } });
    let asks = |size: &str| json!({ "resources": { "requests": { "storage": size } } });
    let names = |claim: &str| json!({ "claimRef": { "namespace": "default", "name": claim } });

    for (name, class, spec) in [
        ("small", "sizes", size("1Gi")),
        ("large", "sizes", size("9Gi")),
        ("right", "sizes", size("5Gi")),
        ("reserved", "reserved", names("reserved")),
        ("asked", "asked", json!({})),
        ("kept", "kept", json!({})),
        (
            "nobody",
            "nobody",
            json!({ "persistentVolumeReclaimPolicy": "Delete" }),
        ),
        (
            "plugin",
            "plugin",
            json!({
                "persistentVolumeReclaimPolicy": "Delete",
                "csi": null,
                "nfs": { "server": "s", "path": "/" },
            }),
        ),
        ("alone", "alone", json!({})),
    ] {
        volume(api, name, class, spec).await;
    }
    for name in ["small", "large", "right", "alone"] {
        phase(api, VOLUMES, name, "Available").await;
    }
    for (name, class, spec) in [
        ("sizes", "sizes", asks("2Gi")),
        ("reserved", "reserved", json!({})),
        ("asked", "asked", json!({ "volumeName": "asked" })),
        ("kept", "kept", json!({})),
        ("nobody", "nobody", json!({})),
        ("plugin", "plugin", json!({})),
        ("missing", "missing", json!({})),
        ("waiting", "waiting", json!({ "volumeName": "not-there" })),
        ("made", "fast", json!({})),
    ] {
        claim(api, name, class, spec).await;
    }
    for name in [
        "sizes", "reserved", "asked", "kept", "nobody", "plugin", "made",
    ] {
        phase(api, CLAIMS, name, "Bound").await;
    }
    // A clone of a provisioned volume.
    let source = json!({ "kind": "PersistentVolumeClaim", "name": "made" });
    claim(api, "copy", "fast", json!({ "dataSource": source })).await;
    phase(api, CLAIMS, "copy", "Bound").await;
    let handles = driver.volumes().len();
    assert_eq!(handles, 2, "one made, one cloned");
    let creates = driver.calls_of(Method::CreateVolume);
    let cloned = creates.iter().filter(|call| {
        let source = &call.request["volume_content_source"];
        !source.is_null()
    });
    assert_eq!(cloned.count(), 1, "{creates:?}");

    // Their claims are deleted.
    for name in ["kept", "nobody", "plugin"] {
        api.delete(&format!("{CLAIMS}/{name}")).await.unwrap();
    }
    phase(api, VOLUMES, "kept", "Released").await;
    phase(api, VOLUMES, "nobody", "Released").await;
    phase(api, VOLUMES, "plugin", "Failed").await;
    // A claim in use is kept, and so is its volume.
    let source = json!({ "claimName": "made" });
    let pod = json!({
        "metadata": { "name": "user" },
        "spec": {
            "nodeName": "somewhere",
            "containers": [{ "name": "c", "image": "i" }],
            "volumes": [{ "name": "v", "persistentVolumeClaim": source }],
        },
    });
    api.create(PODS, &pod).await.unwrap();
    let made = format!("{CLAIMS}/made");
    api.delete(&made).await.unwrap();
    // The provisioner also protects it until it has seen that the clone is complete.
    until("only its use holds it", async || {
        let claim = api.get(&made).await.unwrap().expect("it is in use");
        claim["metadata"]["finalizers"] == json!(["kubernetes.io/pvc-protection"])
    })
    .await;

    json!({ "claims": masked(api, CLAIMS).await, "volumes": masked(api, VOLUMES).await })
}

/// Deletes everything, and waits until nothing is left on the server and with the driver.
pub(crate) async fn end(api: &Api, driver: &MockDriver) {
    assert!(
        api.get(&format!("{CLAIMS}/made")).await.unwrap().is_some(),
        "it is in use"
    );
    api.delete(&format!("{PODS}/user?gracePeriodSeconds=0"))
        .await
        .unwrap();
    for path in [CLAIMS, VOLUMES] {
        for name in list(api, path).await.keys() {
            // The provisioner deletes volumes of its driver.
            if !name.starts_with("pvc-") {
                api.delete(&format!("{path}/{name}")).await.unwrap();
            }
        }
    }
    until("nothing is left", async || {
        list(api, CLAIMS).await.is_empty()
            && list(api, VOLUMES).await.is_empty()
            && driver.volumes().is_empty()
    })
    .await;
}

pub(crate) async fn claim(api: &Api, name: &str, class: &str, spec: Value) {
    let mut claim = tenure_tests::storage::claim(name, class);
    merge(&mut claim["spec"], spec);
    api.create(CLAIMS, &claim).await.unwrap();
}

async fn volume(api: &Api, name: &str, class: &str, spec: Value) {
    let csi = json!({ "driver": "other.example", "volumeHandle": name });
    let mut all = json!({
        "storageClassName": class,
        "accessModes": ["ReadWriteOnce"],
        "capacity": { "storage": "1Gi" },
        "csi": csi,
    });
    merge(&mut all, spec);
    let volume = json!({ "metadata": { "name": name }, "spec": all });
    api.create(VOLUMES, &volume).await.unwrap();
}

fn merge(into: &mut Value, from: Value) {
    let Value::Object(from) = from else {
        unreachable!("members")
    };
    for (key, value) in from {
        into[key] = value;
    }
}

pub(crate) async fn claim_phase(api: &Api, name: &str, wanted: &str) {
    phase(api, CLAIMS, name, wanted).await;
}

async fn phase(api: &Api, path: &str, name: &str, wanted: &str) {
    let path = format!("{path}/{name}");
    until(&format!("{path} is {wanted}"), async || {
        let object = api.get(&path).await.unwrap();
        object.is_some_and(|object| object["status"]["phase"] == wanted)
    })
    .await;
}

pub(crate) async fn until(what: &str, mut so: impl AsyncFnMut() -> bool) {
    let wait = async {
        while !so().await {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let waited = tokio::time::timeout(LIMIT, wait).await;
    assert!(waited.is_ok(), "not in time: {what}");
}

async fn list(api: &Api, path: &str) -> BTreeMap<String, Value> {
    let list = api.get(path).await.unwrap().unwrap();
    let items = list["items"].as_array().unwrap().clone();
    let name = |item: &Value| item["metadata"]["name"].as_str().unwrap().to_owned();
    items.into_iter().map(|item| (name(&item), item)).collect()
}

/// Returns objects by name without uids and times. Provisioned volumes are named after their claim.
async fn masked(api: &Api, path: &str) -> BTreeMap<String, Value> {
    let claims = list(api, CLAIMS).await;
    let rename = |text: String| {
        claims.iter().fold(text, |text, (name, claim)| {
            text.replace(claim["metadata"]["uid"].as_str().unwrap(), name)
        })
    };
    let objects = list(api, path).await.into_iter().map(|(name, object)| {
        let mut object: Value = serde_json::from_str(&rename(object.to_string())).unwrap();
        let meta = object["metadata"].as_object_mut().unwrap();
        for member in [
            "uid",
            "resourceVersion",
            "creationTimestamp",
            "managedFields",
        ] {
            meta.remove(member);
        }
        if meta.contains_key("deletionTimestamp") {
            meta["deletionTimestamp"] = json!("some");
        }
        if let Some(status) = object.pointer_mut("/status").and_then(Value::as_object_mut) {
            status.remove("lastPhaseTransitionTime");
        }
        if let Some(named) = object
            .pointer_mut("/spec/claimRef")
            .and_then(Value::as_object_mut)
        {
            for member in ["resourceVersion", "uid"] {
                // References to deleted claims.
                if let Some(value) = named.get_mut(member) {
                    *value = json!("some");
                }
            }
        }
        if let Some(csi) = object
            .pointer_mut("/spec/csi")
            .and_then(Value::as_object_mut)
        {
            // The identity of the provisioner differs between runs.
            csi.remove("volumeAttributes");
        }
        (rename(name), object)
    });
    objects.collect()
}
