//! Random classes and volumes of in-tree plugins, and of the drivers that replaced them.
//!
//! Most are valid. Keys with the same meaning are never generated together, because the library of Kubernetes then
//! depends on the order of a Go map.

use serde_json::{Map, Value, json};

use super::{Operation, Request};
use crate::nemesis::seed::Seeded;

/// The plugins, their drivers, and the key of the driver for zones.
const PLUGINS: [(&str, &str, &str); 8] = [
    (
        "kubernetes.io/aws-ebs",
        "ebs.csi.aws.com",
        "topology.ebs.csi.aws.com/zone",
    ),
    (
        "kubernetes.io/gce-pd",
        "pd.csi.storage.gke.io",
        "topology.gke.io/zone",
    ),
    (
        "kubernetes.io/azure-disk",
        "disk.csi.azure.com",
        "topology.disk.csi.azure.com/zone",
    ),
    (
        "kubernetes.io/azure-file",
        "file.csi.azure.com",
        "topology.file.csi.azure.com/zone",
    ),
    (
        "kubernetes.io/cinder",
        "cinder.csi.openstack.org",
        "topology.cinder.csi.openstack.org/zone",
    ),
    (
        "kubernetes.io/vsphere-volume",
        "csi.vsphere.vmware.com",
        "topology.csi.vmware.com/zone",
    ),
    (
        "kubernetes.io/portworx-volume",
        "pxd.portworx.com",
        "px.example/zone",
    ),
    (
        "kubernetes.io/none",
        "none.csi.example",
        "none.example/zone",
    ),
];

const TOPOLOGY: [&str; 6] = [
    "topology.kubernetes.io/zone",
    "topology.kubernetes.io/region",
    "failure-domain.beta.kubernetes.io/zone",
    "failure-domain.beta.kubernetes.io/region",
    "kubernetes.io/hostname",
    "topology.csi.vmware.com/region",
];

/// Groups of parameters with the same meaning; a class has at most one of each group.
const PARAMETERS: [&[&str]; 21] = [
    &["fstype", "csi.storage.k8s.io/fstype"],
    &["zone", "zones"],
    &["iopsPerGB", "allowAutoIOPSPerGBIncrease"],
    &["type"],
    &["encrypted"],
    &["replication-type"],
    &["kind"],
    &["storageaccounttype"],
    &["cachingMode"],
    &["skuName"],
    &["availability"],
    &["datastore"],
    &["diskformat"],
    &["storagePolicyName"],
    &["hostFailuresToTolerate"],
    &["cacheReservation"],
    &["diskStripes"],
    &["objectSpaceReservation"],
    &["iopsLimit"],
    &["forceProvisioning"],
    &["repl"],
];
const SECRETS: [&str; 2] = [
    "openstorage.io/auth-secret-name",
    "openstorage.io/auth-secret-namespace",
];

/// Returns a random request.
pub fn request(seeded: &mut Seeded) -> Request {
    let all = [Operation::Class, Operation::ToCsi, Operation::ToInTree];
    let operation = *seeded.pick(&all);
    let count = if seeded.percent(3) { 8 } else { 7 };
    let (plugin, driver, zone) = *seeded.pick(&PLUGINS[..count]);
    let object = match operation {
        Operation::Class => class(seeded, plugin, zone),
        Operation::ToCsi => volume(seeded, plugin, None, zone),
        Operation::ToInTree => volume(seeded, plugin, Some(driver), zone),
    };
    Request {
        operation,
        plugin,
        object,
    }
}

fn class(seeded: &mut Seeded, plugin: &str, zone: &'static str) -> Value {
    let mut parameters = Map::new();
    for group in PARAMETERS {
        if seeded.percent(12) {
            let name = text(seeded, group);
            let value = match name {
                "zone" | "zones" => zones(seeded, plugin, ","),
                _ => (*seeded.pick(&["", "true", "4", "ext4", "Managed", "thin"])).to_owned(),
            };
            parameters.insert(with_case(seeded, name), json!(value));
        }
    }
    for name in SECRETS {
        if seeded.percent(15) {
            let value = *seeded.pick(&["secret", "${pvc.namespace}", ""]);
            parameters.insert(with_case(seeded, name), json!(value));
        }
    }
    let mut class = json!({
        "metadata": { "name": "class" }, "provisioner": plugin, "parameters": parameters,
        "reclaimPolicy": "Delete", "mountOptions": ["noatime"], "volumeBindingMode": "Immediate",
    });
    if seeded.percent(40) {
        let terms = list(seeded, 3, |seeded| {
            let expressions = list(seeded, 2, |seeded| {
                let values = list(seeded, 3, |seeded| one_zone(seeded, plugin));
                json!({ "key": key(seeded, zone), "values": values })
            });
            json!({ "matchLabelExpressions": expressions })
        });
        class["allowedTopologies"] = json!(terms);
    }
    class
}

fn volume(seeded: &mut Seeded, plugin: &str, driver: Option<&str>, zone: &'static str) -> Value {
    let mut labels = Map::new();
    for key in &TOPOLOGY[..4] {
        if seeded.percent(25) {
            let separator = *seeded.pick(&["__", "__", ","]);
            labels.insert((*key).to_owned(), json!(zones(seeded, plugin, separator)));
        }
    }
    let mut annotations = Map::new();
    for key in [
        "kubernetes.io/azure-file-resource-group",
        SECRETS[0],
        SECRETS[1],
    ] {
        if seeded.percent(30) {
            annotations.insert(key.to_owned(), json!(seeded.pick(&["a", "b", ""])));
        }
    }
    let mut spec = json!({ "capacity": { "storage": "1Gi" }, "storageClassName": "class" });
    match driver {
        Some(driver) => spec["csi"] = csi(seeded, plugin, driver),
        None => {
            let (field, source) = in_tree(seeded, plugin);
            spec[field] = source;
        }
    }
    if seeded.percent(70) {
        let modes = [
            "ReadWriteOnce",
            "ReadOnlyMany",
            "ReadWriteMany",
            "ReadWriteOncePod",
        ];
        spec["accessModes"] = json!(list(seeded, 3, |seeded| json!(seeded.pick(&modes))));
    }
    if seeded.percent(70) {
        spec["claimRef"] = match seeded.percent(80) {
            true => json!({ "name": "claim", "namespace": "default", "uid": "1" }),
            false => json!({ "name": "claim", "uid": "1" }),
        };
    }
    if seeded.percent(60) {
        let terms = list(seeded, 2, |seeded| {
            let expressions = list(seeded, 3, |seeded| {
                let values = list(seeded, 3, |seeded| one_zone(seeded, plugin));
                json!({ "key": key(seeded, zone), "operator": "In", "values": values })
            });
            json!({ "matchExpressions": expressions })
        });
        spec["nodeAffinity"] = json!({ "required": { "nodeSelectorTerms": terms } });
    }
    json!({
        "metadata": { "name": "pv", "labels": labels, "annotations": annotations },
        "spec": spec,
    })
}

fn in_tree(seeded: &mut Seeded, plugin: &str) -> (&'static str, Value) {
    let mut source = Map::new();
    optional(seeded, &mut source, "fsType", &[json!("ext4"), json!("")]);
    optional(
        seeded,
        &mut source,
        "readOnly",
        &[json!(true), json!(false)],
    );
    let mut put = |key: &str, value: &str| source.insert(key.to_owned(), json!(value));
    let field = match plugin {
        "kubernetes.io/aws-ebs" => {
            put("volumeID", text(seeded, &AWS_IDS));
            "awsElasticBlockStore"
        }
        "kubernetes.io/gce-pd" => {
            put("pdName", text(seeded, &["disk", "a/b", ""]));
            "gcePersistentDisk"
        }
        "kubernetes.io/azure-disk" => {
            put("diskName", "disk");
            put("diskURI", text(seeded, &AZURE_DISKS));
            "azureDisk"
        }
        "kubernetes.io/azure-file" => {
            put("secretName", text(seeded, &AZURE_SECRETS));
            put("shareName", text(seeded, &["share", ""]));
            source.remove("fsType");
            let namespaces = [json!("kube-system"), json!("")];
            optional(seeded, &mut source, "secretNamespace", &namespaces);
            "azureFile"
        }
        "kubernetes.io/cinder" => {
            put("volumeID", text(seeded, &["0a1b", ""]));
            "cinder"
        }
        "kubernetes.io/vsphere-volume" => {
            put("volumePath", text(seeded, &["[ds] a.vmdk", ""]));
            source.remove("readOnly");
            for key in ["storagePolicyName", "storagePolicyID"] {
                optional(seeded, &mut source, key, &[json!("gold"), json!("")]);
            }
            "vsphereVolume"
        }
        "kubernetes.io/portworx-volume" => {
            put("volumeID", text(seeded, &["12", ""]));
            "portworxVolume"
        }
        _ => return ("hostPath", json!({ "path": "/data" })),
    };
    match field {
        "awsElasticBlockStore" | "gcePersistentDisk" => {
            let numbers = [json!(0), json!(1), json!(17), json!(-1)];
            optional(seeded, &mut source, "partition", &numbers);
        }
        "azureDisk" => {
            let kinds = ["Managed", "managed", "MANAGED", "Shared", "Dedicated", ""];
            optional(seeded, &mut source, "kind", &kinds.map(Value::from));
            let modes = ["None", "ReadOnly", "ReadWrite", ""].map(Value::from);
            optional(seeded, &mut source, "cachingMode", &modes);
        }
        _ => {}
    }
    (field, Value::Object(source))
}

fn csi(seeded: &mut Seeded, plugin: &str, driver: &str) -> Value {
    let mut attributes = Map::new();
    for (key, values) in [
        (
            "partition",
            &["1", "0", "", "x", "-3", "+2", " 1", "007"][..],
        ),
        ("cachingMode", &["None", "ReadWrite", ""]),
        ("fsType", &["xfs", ""]),
        ("kind", &["Managed", "Dedicated"]),
        ("shareName", &["share", ""]),
        ("secretName", &["secret", ""]),
        ("secretNamespace", &["kube-system", ""]),
        ("initialvolumefilepath", &["[ds] b.vmdk", ""]),
        ("storage.kubernetes.io/csiProvisionerIdentity", &["1-2-d"]),
    ] {
        if seeded.percent(25) {
            let exact = key == "partition" || key == "initialvolumefilepath";
            let key = match exact && seeded.percent(90) {
                true => key.to_owned(),
                false => with_case(seeded, key),
            };
            attributes.insert(key, json!(seeded.pick(values)));
        }
    }
    let handles: &[&str] = match plugin {
        "kubernetes.io/gce-pd" => &GCE_HANDLES,
        "kubernetes.io/azure-disk" => &AZURE_DISKS,
        "kubernetes.io/azure-file" => &AZURE_FILES,
        _ => &["vol-1", "a/b", ""],
    };
    let mut source = Map::new();
    source.insert("driver".to_owned(), json!(driver));
    source.insert("volumeHandle".to_owned(), json!(seeded.pick(handles)));
    source.insert("volumeAttributes".to_owned(), Value::Object(attributes));
    optional(seeded, &mut source, "fsType", &[json!("ext4"), json!("")]);
    optional(
        seeded,
        &mut source,
        "readOnly",
        &[json!(true), json!(false)],
    );
    let secrets = [
        json!({ "name": "stage", "namespace": "default" }),
        json!({ "name": "stage" }),
        json!({ "namespace": "default" }),
    ];
    optional(seeded, &mut source, "nodeStageSecretRef", &secrets);
    Value::Object(source)
}

const AWS_IDS: [&str; 24] = [
    "vol-1234",
    "vol-0a1b2c3d4e5f",
    "aws://us-east-1a/vol-1234",
    "aws:///vol-1234",
    "aws://us-east-1a/vol-1234/",
    "aws://us-east-1a//vol-1234",
    "aws://us-east-1a/vol-1/x",
    "aws://us-east-1a/i-1234",
    "aws://us-east-1a/vol-%41%2f",
    "aws://us-east-1a/vol-%4",
    "aws://us-east-1a/vol-%zz",
    "aws://us-east-1a/vol-%c3%a9é",
    "aws://us-east-1a/vol-1?zone=%",
    "aws://us-east-1a/vol-1?",
    "aws://us-east-1a/vol-1#%",
    "aws://us-east-1a/vol-1#a",
    "aws://us-east-1a:80/vol-1",
    "aws://us-east-1a:/vol-1",
    "aws://us-east-1a:x/vol-1",
    "aws://us east/vol-1",
    "aws://us-east-1a/vol-1\u{7f}",
    "aws://",
    "AWS://us-east-1a/vol-1",
    "",
];

const GCE_HANDLES: [&str; 6] = [
    "projects/p/zones/us-east1-b/disks/d",
    "projects/UNSPECIFIED/regions/us-east1/disks/d",
    "projects/p/zones/z/disks/d/more",
    "projects/p/zones/z/disks",
    "a/b/c/d/e/",
    "",
];

const AZURE_DISKS: [&str; 13] = [
    "/subscriptions/s/resourceGroups/g/providers/Microsoft.Compute/disks/d",
    "/subscriptions/s/resourceGroups/g/providers/MicrosoftéCompute/disks/d",
    "x/subscriptions/s/resourceGroups/g/providers/Microsoft.Compute/disks/a/providers/Microsoft.Compute/disks/b",
    "/subscriptions/s/resourceGroups/g/providers/Microsoft.Compute/disks/a/providers/Microsoft.Compute/disks/",
    "/subscriptions//resourceGroups//providers/Microsoft.Compute/disks/d",
    "/subscriptions/resourceGroups/g/providers/Microsoft.Compute/disks/d",
    "/resourceGroups/g/subscriptions/s/providers/Microsoft.Compute/disks/d",
    "/subscriptions/s/resourcegroups/g/providers/Microsoft.Compute/disks/d",
    "a\n/subscriptions/s/resourceGroups/g/providers/Microsoft.Compute/disks/d\nb",
    "https://account.blob.core.windows.net/vhds/disk.vhd",
    "HTTP://account.blob.core.windows.net/vhds/disk.vhd",
    "http:///vhds/a/vhds/b",
    "",
];

const AZURE_FILES: [&str; 6] = [
    "group#account#share#disk.vhd#namespace",
    "#account#share",
    "group#account#",
    "##",
    "group#account",
    "",
];

const AZURE_SECRETS: [&str; 8] = [
    "azure-storage-account-name-secret",
    "azure-storage-account--secret",
    "azure-storage-account-a-secret-secret-x",
    "x-azure-storage-account-azure-storage-account-a-secret",
    "azure-storage-account-\nazure-storage-account-b-secret",
    "azure-storage-account-a",
    "secret",
    "",
];

fn optional(seeded: &mut Seeded, into: &mut Map<String, Value>, key: &str, values: &[Value]) {
    if seeded.percent(60) {
        into.insert(key.to_owned(), seeded.pick(values).clone());
    }
}

fn list(
    seeded: &mut Seeded,
    most: usize,
    mut item: impl FnMut(&mut Seeded) -> Value,
) -> Vec<Value> {
    // Rarely empty.
    let count = match seeded.percent(7) {
        true => 0,
        false => 1 + seeded.below(most),
    };
    (0..count).map(|_| item(seeded)).collect()
}

fn text(seeded: &mut Seeded, from: &[&'static str]) -> &'static str {
    seeded.pick::<&'static str>(from)
}

/// Returns the zone key of the driver in half of the cases, and otherwise any topology key.
fn key(seeded: &mut Seeded, zone: &'static str) -> &'static str {
    match seeded.percent(50) {
        true => zone,
        false => text(seeded, &TOPOLOGY),
    }
}

fn one_zone(seeded: &mut Seeded, plugin: &str) -> Value {
    json!(zone(seeded, plugin))
}

fn zones(seeded: &mut Seeded, plugin: &str, separator: &str) -> String {
    let zones = list(seeded, 3, |seeded| one_zone(seeded, plugin));
    let zones: Vec<_> = zones.iter().filter_map(Value::as_str).collect();
    zones.join(separator)
}

fn zone(seeded: &mut Seeded, plugin: &str) -> &'static str {
    let usual: &[&str] = match plugin {
        "kubernetes.io/aws-ebs" => &["us-east-1a", "us-east-1b"],
        "kubernetes.io/gce-pd" => &["us-east1-b", "us-east1-c"],
        _ => &["nova", "0", "12", "zone-1"],
    };
    match seeded.percent(80) {
        true => text(seeded, usual),
        false => text(
            seeded,
            &[
                "us-gov-east-1a",
                "us-west-2-lax-1a",
                "us-east-1-wl1-bos-wlz-1",
                "europe-west1-d",
                "us-east-1",
                "a-b-c-d-e-f",
                "weird",
                "",
                " ",
                " us-east-1a ",
                "1x",
            ],
        ),
    }
}

/// Returns a name in another case.
fn with_case(seeded: &mut Seeded, name: &str) -> String {
    match seeded.below(3) {
        0 => name.to_owned(),
        1 => name.to_lowercase(),
        _ => {
            let flip = |c: char| match seeded.percent(30) {
                true => c.to_ascii_uppercase(),
                false => c,
            };
            name.chars().map(flip).collect()
        }
    }
}
