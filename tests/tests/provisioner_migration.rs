//! CSI migration: classes and volumes of in-tree plugins with the drivers that replaced the plugins.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use tenure_csi::mock::{Method, MockConfig, MockDriver, Script};
use tenure_csi::{ControllerCapability, PluginCapability};
use tenure_tests::storage::table::put;
use tenure_tests::storage::{Rig, Served, claim, handed_over, until};

const FINALIZER: &str = "external-provisioner.volume.kubernetes.io/finalizer";
const BY: &str = "pv.kubernetes.io/provisioned-by";
const MIGRATED_TO: &str = "pv.kubernetes.io/migrated-to";
const ZONE: &str = "topology.kubernetes.io/zone";
const REGION: &str = "topology.kubernetes.io/region";
const CLAIMS: &str = "/api/v1/namespaces/default/persistentvolumeclaims";
const EVENTS: &str = "/api/v1/namespaces/default/events";

fn config(driver: &str) -> MockConfig {
    MockConfig {
        name: driver.to_owned(),
        plugin: vec![
            PluginCapability::ControllerService,
            PluginCapability::VolumeAccessibilityConstraints,
        ],
        controller: vec![
            ControllerCapability::CreateDeleteVolume,
            ControllerCapability::CloneVolume,
        ],
        ..MockConfig::default()
    }
}

/// Returns a claim in the form in which the volume binder passes it on for a class of an in-tree plugin.
fn migrated(name: &str, class: &str, driver: &str) -> Value {
    let mut claim = handed_over(name, class, driver);
    claim["kind"] = json!("PersistentVolumeClaim");
    claim["metadata"]["annotations"][MIGRATED_TO] = json!(driver);
    claim
}

fn class(name: &str, plugin: &str, parameters: &Value) -> Value {
    json!({
        "kind": "StorageClass", "metadata": { "name": name }, "provisioner": plugin,
        "parameters": parameters, "reclaimPolicy": "Delete", "mountOptions": ["noatime"],
    })
}

fn path(volume: &str) -> String {
    format!("/api/v1/persistentvolumes/{volume}")
}

/// Waits for the volume object of a claim.
async fn volume_of(rig: &Rig, uid: &str) -> Value {
    until("a volume object", async || {
        rig.api.get(&path(&format!("pvc-{uid}"))).await.unwrap()
    })
    .await
}

/// Releases a volume as the volume binder does, and waits until its object is gone.
async fn release(rig: &Rig, name: &str) {
    let released = json!({ "status": { "phase": "Released" } });
    let status = format!("{}/status", path(name));
    rig.api.merge(&status, &released).await.unwrap();
    gone(rig, name).await;
}

async fn gone(rig: &Rig, name: &str) {
    until(&format!("{name} gone"), async || {
        let Some(volume) = rig.api.get(&path(name)).await.unwrap() else {
            return Some(());
        };
        let meta = &volume["metadata"];
        let left = json!(["kubernetes.io/pv-protection"]);
        (meta["deletionTimestamp"].is_string() && meta["finalizers"] == left).then_some(())
    })
    .await;
}

fn deleted(driver: &MockDriver) -> Vec<Value> {
    let calls = driver.calls_of(Method::DeleteVolume).into_iter();
    calls
        .map(|call| call.request["volume_id"].clone())
        .collect()
}

async fn event(rig: &Rig, reason: &str, about: &str, text: &str) {
    until(&format!("{reason} about {about}: {text}"), async || {
        let events = rig.api.get(EVENTS).await.unwrap()?;
        let mut events = events["items"].as_array()?.iter();
        events
            .any(|event| {
                event["reason"] == reason
                    && event["involvedObject"]["name"] == about
                    && event["message"].to_string().contains(text)
            })
            .then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn claim_of_in_tree_class_gets_volume_with_in_tree_source() {
    let rig = Rig::start().await.unwrap();
    let driver = rig.driver("ebs", config("ebs.csi.aws.com")).unwrap();
    let zone = |zone: &str| {
        BTreeMap::from([("topology.ebs.csi.aws.com/zone".to_owned(), zone.to_owned())])
    };
    driver.script(
        Method::CreateVolume,
        Script {
            topology: Some(vec![zone("us-east-1a")]),
            ..Script::default()
        },
    );
    let parameters = json!({
        "type": "io1", "iopsPerGB": "10", "fsType": "xfs", "zones": "us-east-1a,us-east-1b",
    });
    let gce = "kubernetes.io/gce-pd";
    for class in [
        class("old", "kubernetes.io/aws-ebs", &parameters),
        class("new", "ebs.csi.aws.com", &json!({})),
        class("gce", gce, &json!({})),
        class("elsewhere", "kubernetes.io/aws-ebs", &json!({})),
    ] {
        put(&rig.api, &class, "").await.unwrap();
    }
    // A claim for another driver, and a claim of a cluster that has not migrated the plugin.
    for claim in [
        migrated("gce", "gce", "pd.csi.storage.gke.io"),
        handed_over("elsewhere", "elsewhere", "kubernetes.io/aws-ebs"),
    ] {
        rig.api.create(CLAIMS, &claim).await.unwrap();
    }
    let flags = ["--immediate-topology=false"];
    let provisioner = rig.provisioner("ebs", &flags).unwrap();
    // Older binders write the name of the plugin into the annotation, not the name of the driver.
    let mut by_plugin = migrated("by-plugin", "old", "kubernetes.io/aws-ebs");
    by_plugin["metadata"]["annotations"][MIGRATED_TO] = json!("ebs.csi.aws.com");
    for (name, claim) in [
        ("old", migrated("old", "old", "ebs.csi.aws.com")),
        ("by-plugin", by_plugin),
    ] {
        let uid = put(&rig.api, &claim, "default").await.unwrap();
        let volume = volume_of(&rig, &uid).await;
        let handle = format!("vol-pvc-{uid}");
        let spec = &volume["spec"];
        let source = json!({ "volumeID": handle, "fsType": "xfs" });
        assert_eq!(spec["awsElasticBlockStore"], source, "{volume}");
        assert_eq!(spec["csi"], Value::Null);
        assert_eq!(spec["claimRef"]["name"], name);
        assert_eq!(spec["mountOptions"], json!(["noatime"]));
        assert_eq!(spec["storageClassName"], "old");
        let within =
            |key: &str, value: &str| json!({ "key": key, "operator": "In", "values": [value] });
        let expressions = json!([within(ZONE, "us-east-1a"), within(REGION, "us-east-1")]);
        let terms = &spec["nodeAffinity"]["required"]["nodeSelectorTerms"];
        assert_eq!(*terms, json!([{ "matchExpressions": expressions }]));
        let meta = &volume["metadata"];
        assert_eq!(meta["annotations"][BY], "kubernetes.io/aws-ebs");
        assert_eq!(meta["annotations"][MIGRATED_TO], Value::Null);
        assert_eq!(
            meta["labels"],
            json!({ ZONE: "us-east-1a", REGION: "us-east-1" })
        );
        assert!(meta["finalizers"].to_string().contains(FINALIZER), "{meta}");
        let calls = driver.calls_of(Method::CreateVolume);
        let request = &calls.last().unwrap().request;
        let parameters = json!({
            "type": "io1", "iopsPerGB": "10", "allowautoiopspergbincrease": "true",
        });
        assert_eq!(request["parameters"], parameters);
        let mount = &request["volume_capabilities"][0]["mount"];
        assert_eq!(mount["fs_type"], "xfs");
        let requisite = &request["accessibility_requirements"]["requisite"];
        let segments = [zone("us-east-1a"), zone("us-east-1b")];
        let segments = segments.map(|segments| json!({ "segments": segments }));
        assert_eq!(*requisite, json!(segments));
        release(&rig, &format!("pvc-{uid}")).await;
        assert_eq!(*deleted(&driver).last().unwrap(), handle);
    }
    // Classes of the driver itself work as before, and claims for others were ignored.
    let claim = handed_over("new", "new", "ebs.csi.aws.com");
    let uid = put(&rig.api, &claim, "default").await.unwrap();
    let volume = volume_of(&rig, &uid).await;
    assert_eq!(volume["spec"]["csi"]["driver"], "ebs.csi.aws.com");
    assert_eq!(volume["metadata"]["annotations"][BY], "ebs.csi.aws.com");
    assert_eq!(driver.calls_of(Method::CreateVolume).len(), 3);
    assert_eq!(provisioner.stop().unwrap(), Some(0));
}

/// A plugin, and one volume of it from the class to its deletion.
struct Case {
    plugin: &'static str,
    driver: &'static str,
    parameters: Value,
    script: Script,
    /// The parameters that the driver gets.
    asked: Value,
    /// The in-tree source of the volume object.
    source: Value,
    /// The handle with which the driver is asked to delete the volume.
    handle: String,
}

fn cases() -> Vec<Case> {
    let script = |id: &str, context: &[(&str, &str)]| {
        let owned = |(key, value): &(&str, &str)| ((*key).to_owned(), (*value).to_owned());
        Script {
            volume_id: Some(id.to_owned()),
            context: context.iter().map(owned).collect(),
            ..Script::default()
        }
    };
    let disk = "/subscriptions/s/resourceGroups/g/providers/Microsoft.Compute/disks/d";
    vec![
        Case {
            plugin: "kubernetes.io/aws-ebs",
            driver: "ebs.csi.aws.com",
            parameters: json!({ "type": "gp3", "fstype": "ext4" }),
            script: script("vol-1", &[]),
            asked: json!({ "type": "gp3" }),
            source: json!({ "awsElasticBlockStore": { "volumeID": "vol-1", "fsType": "ext4" } }),
            handle: "vol-1".to_owned(),
        },
        Case {
            plugin: "kubernetes.io/gce-pd",
            driver: "pd.csi.storage.gke.io",
            parameters: json!({ "type": "pd-ssd", "fstype": "ext4" }),
            script: script("projects/p/zones/us-east1-b/disks/d", &[]),
            asked: json!({ "type": "pd-ssd" }),
            source: json!({ "gcePersistentDisk": { "pdName": "d", "fsType": "ext4" } }),
            handle: "projects/UNSPECIFIED/zones/UNSPECIFIED/disks/d".to_owned(),
        },
        Case {
            plugin: "kubernetes.io/azure-disk",
            driver: "disk.csi.azure.com",
            parameters: json!({ "kind": "Managed", "skuName": "Premium_LRS" }),
            script: script(disk, &[("cachingMode", "ReadOnly")]),
            asked: json!({ "kind": "Managed", "skuName": "Premium_LRS" }),
            source: json!({ "azureDisk": {
                "diskName": "d", "diskURI": disk, "kind": "Managed", "cachingMode": "ReadOnly",
            } }),
            handle: disk.to_owned(),
        },
        Case {
            plugin: "kubernetes.io/azure-file",
            driver: "file.csi.azure.com",
            parameters: json!({ "skuName": "Standard_LRS" }),
            script: script("g#account#share#", &[]),
            asked: json!({ "skuName": "Standard_LRS" }),
            source: json!({ "azureFile": {
                "secretName": "azure-storage-account-account-secret", "secretNamespace": "default",
                "shareName": "share",
            } }),
            handle: "g#account#share#<volume>#default".to_owned(),
        },
        Case {
            plugin: "kubernetes.io/cinder",
            driver: "cinder.csi.openstack.org",
            parameters: json!({ "availability": "nova", "fsType": "ext4" }),
            script: script("0a1b", &[]),
            asked: json!({ "availability": "nova" }),
            source: json!({ "cinder": { "volumeID": "0a1b", "fsType": "ext4" } }),
            handle: "0a1b".to_owned(),
        },
        Case {
            plugin: "kubernetes.io/vsphere-volume",
            driver: "csi.vsphere.vmware.com",
            parameters: json!({ "diskformat": "thin", "unknown": "x" }),
            script: script("uid", &[("initialvolumefilepath", "[ds] d.vmdk")]),
            asked: json!({ "diskformat-migrationparam": "thin", "csimigration": "true" }),
            source: json!({ "vsphereVolume": { "volumePath": "[ds] d.vmdk" } }),
            handle: "[ds] d.vmdk".to_owned(),
        },
        Case {
            plugin: "kubernetes.io/portworx-volume",
            driver: "pxd.portworx.com",
            parameters: json!({ "repl": "2" }),
            script: script("12", &[]),
            asked: json!({ "repl": "2" }),
            source: json!({ "portworxVolume": { "volumeID": "12" } }),
            handle: "12".to_owned(),
        },
    ]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_replaced_plugin_has_its_volumes_created_and_deleted_by_the_driver() {
    let rig = Rig::start().await.unwrap();
    for (number, case) in cases().into_iter().enumerate() {
        let name = format!("c{number}");
        let driver = rig.driver(&name, config(case.driver)).unwrap();
        driver.script(Method::CreateVolume, case.script);
        let class = class(&name, case.plugin, &case.parameters);
        put(&rig.api, &class, "").await.unwrap();
        let flags = ["--immediate-topology=false"];
        let provisioner = rig.provisioner(&name, &flags).unwrap();
        let claim = migrated(&name, &name, case.driver);
        let uid = put(&rig.api, &claim, "default").await.unwrap();
        let volume = volume_of(&rig, &uid).await;
        let plugin = case.plugin;
        let calls = driver.calls_of(Method::CreateVolume);
        assert_eq!(calls[0].request["parameters"], case.asked, "{plugin}");
        for (field, source) in case.source.as_object().unwrap() {
            for (key, value) in source.as_object().unwrap() {
                assert_eq!(volume["spec"][field][key], *value, "{plugin}: {volume}");
            }
        }
        assert_eq!(volume["spec"]["csi"], Value::Null, "{plugin}");
        assert_eq!(volume["metadata"]["annotations"][BY], plugin);
        let volume = format!("pvc-{uid}");
        release(&rig, &volume).await;
        let handle = case.handle.replace("<volume>", &volume);
        assert_eq!(deleted(&driver), [json!(handle)], "{plugin}");
        assert_eq!(provisioner.stop().unwrap(), Some(0));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn volumes_from_before_the_migration_are_deleted_by_the_driver() {
    let rig = Rig::start().await.unwrap();
    let driver = rig.driver("ebs", config("ebs.csi.aws.com")).unwrap();
    let ebs = |id: &str| json!({ "awsElasticBlockStore": { "volumeID": id } });
    let gce = json!({ "gcePersistentDisk": { "pdName": "d" } });
    let marked = |by: &str| json!({ BY: by, MIGRATED_TO: "ebs.csi.aws.com" });
    for (name, annotations, source) in [
        (
            "url",
            marked("kubernetes.io/aws-ebs"),
            ebs("aws://us-east-1a/vol-1"),
        ),
        (
            "plain",
            json!({ BY: "kubernetes.io/aws-ebs" }),
            ebs("vol-2"),
        ),
        (
            "static",
            json!({ MIGRATED_TO: "ebs.csi.aws.com" }),
            ebs("vol-3"),
        ),
        ("unmarked", json!({}), ebs("vol-4")),
        ("other", json!({ BY: "kubernetes.io/gce-pd" }), gce.clone()),
        ("wrong", marked("kubernetes.io/aws-ebs"), gce),
        (
            "invalid",
            marked("kubernetes.io/aws-ebs"),
            ebs("aws://us-east-1a/i-1"),
        ),
    ] {
        let mut volume = json!({
            "kind": "PersistentVolume",
            "metadata": { "name": name, "annotations": annotations, "finalizers": [FINALIZER] },
            "spec": {
                "accessModes": ["ReadWriteOnce"],
                "capacity": { "storage": "1Gi" },
                "persistentVolumeReclaimPolicy": "Delete",
                "storageClassName": "old",
                "claimRef": { "namespace": "default", "name": "gone", "uid": "gone" },
            },
            "status": { "phase": "Released" },
        });
        for (field, value) in source.as_object().unwrap() {
            volume["spec"][field] = value.clone();
        }
        put(&rig.api, &volume, "").await.unwrap();
    }
    let provisioner = rig
        .provisioner("ebs", &["--retry-interval-max=1s"])
        .unwrap();
    for name in ["url", "plain", "static"] {
        gone(&rig, name).await;
    }
    let why = "expected aws://ZONE/vol-ID";
    event(&rig, "VolumeFailedDelete", "invalid", why).await;
    event(&rig, "VolumeFailedDelete", "wrong", "invalid CSI PV").await;
    let mut found: Vec<_> = deleted(&driver);
    found.sort_by_key(ToString::to_string);
    assert_eq!(found, [json!("vol-1"), json!("vol-2"), json!("vol-3")]);
    for name in ["unmarked", "other", "wrong", "invalid"] {
        let volume = rig.api.get(&path(name)).await.unwrap().unwrap();
        assert!(volume["metadata"]["deletionTimestamp"].is_null(), "{name}");
    }
    assert_eq!(provisioner.stop().unwrap(), Some(0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn untranslatable_objects_are_reported_and_leave_no_storage() {
    let rig = Rig::start().await.unwrap();
    let driver = rig.driver("ebs", config("ebs.csi.aws.com")).unwrap();
    // A zone from which the region cannot be derived.
    let key = "topology.ebs.csi.aws.com/zone".to_owned();
    driver.script(
        Method::CreateVolume,
        Script {
            topology: Some(vec![BTreeMap::from([(key, "nowhere".to_owned())])]),
            ..Script::default()
        },
    );
    let plugin = "kubernetes.io/aws-ebs";
    let mut twice = class("twice", plugin, &json!({ "zone": "us-east-1a" }));
    let zone = json!({ "key": ZONE, "values": ["us-east-1a"] });
    twice["allowedTopologies"] = json!([{ "matchLabelExpressions": [zone] }]);
    let zones = json!({ "zone": "us-east-1a" });
    for class in [twice, class("region", plugin, &zones)] {
        put(&rig.api, &class, "").await.unwrap();
    }
    let provisioner = rig
        .provisioner("ebs", &["--retry-interval-max=1s"])
        .unwrap();
    let claim = migrated("twice", "twice", "ebs.csi.aws.com");
    put(&rig.api, &claim, "default").await.unwrap();
    let why = "zone and zones exclude allowedTopologies";
    event(&rig, "ProvisioningFailed", "twice", why).await;
    assert!(driver.calls_of(Method::CreateVolume).is_empty());

    let claim = migrated("region", "region", "ebs.csi.aws.com");
    let uid = put(&rig.api, &claim, "default").await.unwrap();
    event(&rig, "ProvisioningFailed", "region", "form of an AWS zone").await;
    assert_eq!(deleted(&driver)[0], json!(format!("vol-pvc-{uid}")));
    assert_eq!(
        rig.api.get(&path(&format!("pvc-{uid}"))).await.unwrap(),
        None
    );
    assert_eq!(provisioner.stop().unwrap(), Some(0));
}

/// With the built-in controllers in place of the volume binder.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tenure_server_passes_in_tree_classes_and_volumes_to_the_driver() {
    let served = Served::start(&[]).await.unwrap();
    let driver = served.driver(config("ebs.csi.aws.com")).unwrap();
    let provisioner = served.provisioner(&["--immediate-topology=false"]).unwrap();
    let class = class("old", "kubernetes.io/aws-ebs", &json!({}));
    put(&served.api, &class, "").await.unwrap();
    let bound = async |name: &str| {
        until("the claim bound", async || {
            let path = format!("{CLAIMS}/{name}");
            let claim = served.api.get(&path).await.unwrap()?;
            (claim["status"]["phase"] == "Bound").then_some(())
        })
        .await;
    };
    let data = claim("data", "old");
    let uid = put(&served.api, &data, "default").await.unwrap();
    bound("data").await;
    let volume = path(&format!("pvc-{uid}"));
    let object = until("the volume marked as migrated", async || {
        let volume = served.api.get(&volume).await.unwrap()?;
        let driver = &volume["metadata"]["annotations"][MIGRATED_TO];
        (driver == "ebs.csi.aws.com").then_some(volume)
    })
    .await;
    let handle = format!("vol-pvc-{uid}");
    assert_eq!(object["spec"]["awsElasticBlockStore"]["volumeID"], handle);
    // A clone: the source is translated too.
    let mut copy = claim("copy", "old");
    copy["spec"]["dataSource"] = json!({ "kind": "PersistentVolumeClaim", "name": "data" });
    put(&served.api, &copy, "default").await.unwrap();
    bound("copy").await;
    let calls = driver.calls_of(Method::CreateVolume);
    let source = calls.last().unwrap().request["volume_content_source"].to_string();
    assert!(source.contains(&handle), "{source}");
    for name in ["data", "copy"] {
        let claim = format!("{CLAIMS}/{name}");
        served.api.delete(&claim).await.unwrap();
    }
    until("no volumes", async || {
        let volumes = served.api.get("/api/v1/persistentvolumes").await.unwrap()?;
        volumes["items"].as_array()?.is_empty().then_some(())
    })
    .await;
    assert!(deleted(&driver).contains(&json!(handle)));
    assert!(driver.volumes().is_empty());
    assert_eq!(provisioner.stop().unwrap(), Some(0));
}
