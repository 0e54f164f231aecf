//! Recorded translations. `real_migration.rs` in `tests/` compares random ones with the library of Kubernetes.

use serde_json::{Value, json};

use super::*;

fn class(plugin: &str, class: Value) -> Result<Value, TranslationError> {
    let class: StorageClass = serde_json::from_value(class).unwrap();
    let class = class_to_csi(plugin, &class)?;
    Ok(json!({
        "provisioner": class.provisioner,
        "parameters": class.parameters,
        "allowedTopologies": class.allowed_topologies,
    }))
}

fn volume(value: Value) -> PersistentVolume {
    serde_json::from_value(value).unwrap()
}

#[test]
fn zones_of_parameters_become_allowed_topologies() {
    let plugin = "kubernetes.io/gce-pd";
    let found = class(
        plugin,
        json!({ "provisioner": plugin, "parameters": { "Zones": "a,b", "FSType": "xfs", "x": "y" } }),
    );
    let expression = json!({ "key": "topology.gke.io/zone", "values": ["a", "b"] });
    let wanted = json!({
        "provisioner": plugin,
        "parameters": { "csi.storage.k8s.io/fstype": "xfs", "x": "y" },
        "allowedTopologies": [{ "matchLabelExpressions": [expression] }],
    });
    assert_eq!(found, Ok(wanted));
    let twice = json!({
        "provisioner": plugin, "parameters": { "zone": "a" },
        "allowedTopologies": [{ "matchLabelExpressions": [expression] }],
    });
    assert_eq!(
        class(plugin, twice),
        Err(TranslationError::ZonesAndTopologies)
    );
    let unknown = class("kubernetes.io/nfs", json!({ "provisioner": "x" }));
    assert!(matches!(unknown, Err(TranslationError::UnknownPlugin(_))));
}

#[test]
fn fault_domains_of_azure_become_empty_zones() {
    let plugin = "kubernetes.io/azure-disk";
    let zone = json!({ "key": "topology.kubernetes.io/zone", "values": ["0", "westus-1"] });
    let found = class(
        plugin,
        json!({ "provisioner": plugin, "allowedTopologies": [{ "matchLabelExpressions": [zone] }] }),
    );
    let zone = json!({ "key": "topology.disk.csi.azure.com/zone", "values": ["", "westus-1"] });
    assert_eq!(
        found.unwrap()["allowedTopologies"],
        json!([{ "matchLabelExpressions": [zone] }])
    );
}

#[test]
fn regional_disk_of_gce_keeps_its_zones() {
    let in_tree = volume(json!({
        "metadata": { "name": "v", "labels": {
            "topology.kubernetes.io/region": "us-east1",
            "topology.kubernetes.io/zone": "us-east1-b__us-east1-c",
        } },
        "spec": {
            "gcePersistentDisk": { "pdName": "d", "fsType": "ext4" },
            "accessModes": ["ReadOnlyMany", "ReadWriteMany"],
        },
    }));
    let csi = volume_to_csi(&in_tree).unwrap();
    let spec = serde_json::to_value(&csi.spec).unwrap();
    assert_eq!(spec["gcePersistentDisk"], Value::Null);
    assert_eq!(
        spec["csi"],
        json!({
            "driver": "pd.csi.storage.gke.io", "fsType": "ext4",
            "volumeHandle": "projects/UNSPECIFIED/regions/us-east1/disks/d",
            "volumeAttributes": { "partition": "" },
        })
    );
    assert_eq!(spec["accessModes"], json!(["ReadWriteOnce"]));
    let zones = json!({
        "key": "topology.gke.io/zone", "operator": "In", "values": ["us-east1-b", "us-east1-c"],
    });
    let terms = json!([{ "matchExpressions": [zones] }]);
    assert_eq!(spec["nodeAffinity"]["required"]["nodeSelectorTerms"], terms);
    let back = volume_to_in_tree(&csi).unwrap();
    assert_eq!(back.metadata.labels, in_tree.metadata.labels);
    assert!(is_in_tree(&back) && !is_in_tree(&csi));
}

#[test]
fn sources_of_other_kinds_are_errors() {
    let local = volume(json!({ "spec": { "local": { "path": "/x" } } }));
    assert_eq!(volume_to_csi(&local), Err(TranslationError::UnknownSource));
    let other = volume(json!({ "spec": { "csi": { "driver": "d", "volumeHandle": "h" } } }));
    let unknown = TranslationError::UnknownDriver("d".to_owned());
    assert_eq!(volume_to_in_tree(&other), Err(unknown));
    for id in [
        "aws://z/vol-%4",
        "aws://z/i-1",
        "aws://a@z/vol-1",
        "aws://z",
    ] {
        let spec = json!({ "awsElasticBlockStore": { "volumeID": id } });
        let found = volume_to_csi(&volume(json!({ "spec": spec })));
        assert!(
            matches!(found, Err(TranslationError::Invalid { .. })),
            "{id}"
        );
    }
    let large = json!({
        "driver": "ebs.csi.aws.com", "volumeHandle": "h", "volumeAttributes": { "partition": "4294967297" },
    });
    let found = volume_to_in_tree(&volume(json!({ "spec": { "csi": large } })));
    assert!(
        matches!(found, Err(TranslationError::Invalid { .. })),
        "{found:?}"
    );
}

#[test]
fn every_driver_has_one_plugin() {
    for plugin in PLUGINS {
        let found = replaced_by(plugin.driver()).map(Plugin::in_tree_name);
        assert_eq!(found, Some(plugin.in_tree_name()));
    }
    assert!(replaced_by("mock.csi.example").is_none());
}
