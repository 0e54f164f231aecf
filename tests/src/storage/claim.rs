//! The claims of all tests and benchmarks: one gibibyte, writable by one node.

use serde_json::{Value, json};

/// Returns a claim as a user creates it.
#[must_use]
pub fn claim(name: &str, class: &str) -> Value {
    json!({
        "kind": "PersistentVolumeClaim",
        "metadata": { "name": name, "annotations": {} },
        "spec": {
            "accessModes": ["ReadWriteOnce"],
            "resources": { "requests": { "storage": "1Gi" } },
            "storageClassName": class,
        },
    })
}

/// Returns the same in the form in which the volume binder passes it to the provisioner of a driver.
#[must_use]
pub fn handed_over(name: &str, class: &str, driver: &str) -> Value {
    let mut claim = claim(name, class);
    for key in [
        "volume.kubernetes.io/storage-provisioner",
        "volume.beta.kubernetes.io/storage-provisioner",
    ] {
        claim["metadata"]["annotations"][key] = json!(driver);
    }
    claim
}
