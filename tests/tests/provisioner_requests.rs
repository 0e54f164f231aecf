//! From class and claim to the driver's request and the volume object: secrets, parameters, attribute classes. Also
//! invalid responses of drivers.
#![allow(
    clippy::needless_pass_by_value,
    reason = "passing values keeps the cases short"
)]

use serde_json::{Value, json};
use tenure_csi::ControllerCapability;
use tenure_csi::mock::MockConfig;
use tenure_tests::storage::table::{Trial, run, trial};
use tenure_tests::storage::{Rig, handed_over};

const DRIVER: &str = "mock.csi.example";

/// Returns parameters in which `~` is replaced by our prefix.
fn parameters(pairs: &[(&str, &str)]) -> Value {
    let pair = |(key, value): &(&str, &str)| {
        let key = key.replace('~', "csi.storage.k8s.io/");
        (key, Value::from(*value))
    };
    Value::Object(pairs.iter().map(pair).collect())
}

fn secret(name: &str) -> Value {
    // `user: me`
    json!({ "kind": "Secret", "metadata": { "name": name }, "data": { "user": "bWU=" } })
}

fn secrets() -> Vec<Trial> {
    let class = |name, pairs: &[(&str, &str)]| trial(name).parameters(parameters(pairs));
    let name = "~provisioner-secret-name";
    let namespace = "~provisioner-secret-namespace";
    let used = |trial: Trial, secret_name: &'static str| {
        trial
            .with(secret(secret_name))
            .asks(json!({ "secrets": { "user": "me" }, "parameters": null }))
            .gives(json!({ "metadata": { "annotations": {
                "volume.kubernetes.io/provisioner-deletion-secret-name": secret_name,
                "volume.kubernetes.io/provisioner-deletion-secret-namespace": "<ns>",
            } } }))
    };
    let reference = |name: &str| json!({ "name": name, "namespace": "<ns>" });
    let refused = |name, pairs: &[(&str, &str)], text| class(name, pairs).refused(text);
    vec![
        used(
            class("secret-plain", &[(name, "plain"), (namespace, "<ns>")]),
            "plain",
        ),
        used(
            class(
                "secret-claim",
                &[(name, "${pvc.name}-s"), (namespace, "${pvc.namespace}")],
            ),
            "claim-s",
        ),
        used(
            class(
                "secret-annotated",
                &[
                    (name, "${pvc.annotations['team/key']}"),
                    (namespace, "<ns>"),
                ],
            )
            .annotations(json!({ "team/key": "gold" })),
            "gold",
        ),
        used(
            class(
                "secret-ns-name",
                &[(name, "${pvc.namespace}-s"), (namespace, "<ns>")],
            ),
            "t-secret-ns-name-s",
        ),
        used(
            class(
                "secret-default",
                &[("~secret-name", "all"), ("~secret-namespace", "<ns>")],
            ),
            "all",
        ),
        used(
            class(
                "secret-both",
                &[
                    ("~secret-name", "all"),
                    ("~secret-namespace", "<ns>"),
                    (name, "own"),
                    (namespace, "<ns>"),
                ],
            ),
            "own",
        ),
        // Deprecated keys have the same meaning, and are passed to the driver as well.
        class(
            "secret-old",
            &[
                ("csiProvisionerSecretName", "old"),
                ("csiProvisionerSecretNamespace", "<ns>"),
            ],
        )
        .with(secret("old"))
        .asks(json!({
            "secrets": { "user": "me" },
            "parameters": { "csiProvisionerSecretName": "old" },
        }))
        .gives(json!({})),
        // Only other components read these secrets, so they need not exist.
        class(
            "secret-others",
            &[
                ("~controller-publish-secret-name", "a"),
                ("~controller-publish-secret-namespace", "<ns>"),
                ("~node-stage-secret-name", "b"),
                ("~node-stage-secret-namespace", "<ns>"),
                ("~node-publish-secret-name", "c-${pv.name}"),
                ("~node-publish-secret-namespace", "<ns>"),
                ("~controller-expand-secret-name", "d"),
                ("~controller-expand-secret-namespace", "<ns>"),
                ("~node-expand-secret-name", "e"),
                ("~node-expand-secret-namespace", "<ns>"),
                ("~controller-modify-secret-name", "f"),
                ("~controller-modify-secret-namespace", "<ns>"),
            ],
        )
        .asks(json!({ "secrets": null, "parameters": null }))
        .gives(json!({
            "metadata": { "annotations": {
                "volume.kubernetes.io/provisioner-deletion-secret-name": "",
                "volume.kubernetes.io/controller-modify-secret-name": "f",
                "volume.kubernetes.io/controller-modify-secret-namespace": "<ns>",
            } },
            "spec": { "csi": {
                "controllerPublishSecretRef": reference("a"),
                "nodeStageSecretRef": reference("b"),
                "nodePublishSecretRef": reference("c-pvc-<uid>"),
                "controllerExpandSecretRef": reference("d"),
                "nodeExpandSecretRef": reference("e"),
            } },
        })),
        class("secret-missing", &[(name, "none"), (namespace, "<ns>")])
            .refused("t-secret-missing/none"),
        refused("secret-no-namespace", &[(name, "s")], "is missing"),
        refused("secret-no-name", &[(namespace, "s")], "is missing"),
        refused(
            "secret-half-default",
            &[("~secret-name", "s")],
            "is missing",
        ),
        refused(
            "secret-empty",
            &[(name, ""), (namespace, "<ns>")],
            "is empty",
        ),
        refused(
            "secret-empty-ns",
            &[(name, "s"), (namespace, "")],
            "is empty",
        ),
        refused(
            "secret-twice",
            &[
                (name, "s"),
                (namespace, "<ns>"),
                ("csiProvisionerSecretName", "s"),
            ],
            "have the same meaning",
        ),
        refused(
            "secret-token",
            &[(name, "${pod.name}"), (namespace, "<ns>")],
            "unknown token \"pod.name\"",
        ),
        refused(
            "secret-token-ns",
            &[(name, "s"), (namespace, "${pvc.name}")],
            "unknown token \"pvc.name\"",
        ),
        refused(
            "secret-no-annotation",
            &[(name, "${pvc.annotations['none']}"), (namespace, "<ns>")],
            "unknown token",
        ),
        refused(
            "secret-name-case",
            &[(name, "Secret"), (namespace, "<ns>")],
            "not a valid secret name",
        ),
        refused(
            "secret-ns-dots",
            &[(name, "s"), (namespace, "a.b")],
            "not a valid namespace name",
        ),
        // An error in a secret that only other components use is reported as well.
        refused(
            "secret-other-mistake",
            &[
                ("~node-stage-secret-name", "${x}"),
                ("~node-stage-secret-namespace", "<ns>"),
            ],
            "unknown token",
        ),
    ]
}

fn claims() -> Vec<Trial> {
    let mode = |name, mode: &str| trial(name).spec(json!({ "accessModes": [mode] }));
    let asked = |mode: &str| json!({ "volume_capabilities": [{ "access_mode": { "mode": mode }, "mount": {} }] });
    let beta = "volume.beta.kubernetes.io/storage-provisioner";
    let newer = "volume.kubernetes.io/storage-provisioner";
    vec![
        mode("mode-rwo", "ReadWriteOnce").asks(asked("SINGLE_NODE_MULTI_WRITER")).gives(json!({})),
        mode("mode-rwop", "ReadWriteOncePod").asks(asked("SINGLE_NODE_SINGLE_WRITER")).gives(json!({})),
        mode("mode-rox", "ReadOnlyMany")
            .asks(asked("MULTI_NODE_READER_ONLY"))
            .gives(json!({ "spec": { "csi": { "readOnly": null } } })),
        mode("mode-rwx", "ReadWriteMany").asks(asked("MULTI_NODE_MULTI_WRITER")).gives(json!({})),
        trial("only-beta").annotations(json!({ newer: null })).gives(json!({})),
        trial("only-newer").annotations(json!({ beta: null })).gives(json!({})),
        trial("nobodys").annotations(json!({ newer: null, beta: null })).ignored(),
        trial("anothers").annotations(json!({ newer: "other.example" })).ignored(),
        trial("migrated-not")
            .annotations(json!({ newer: "in.tree", beta: "in.tree", "pv.kubernetes.io/migrated-to": "other" }))
            .ignored(),
        trial("bound-already").spec(json!({ "volumeName": "some" })).ignored(),
        trial("class-of-another").class(json!({ "provisioner": "other.example" })).ignored(),
        trial("waits").class(json!({ "volumeBindingMode": "WaitForFirstConsumer" })).ignored(),
        trial("waited")
            .class(json!({ "volumeBindingMode": "WaitForFirstConsumer" }))
            .annotations(json!({ "volume.kubernetes.io/selected-node": "n" }))
            .gives(json!({ "spec": { "nodeAffinity": null } })),
        trial("waited-alpha")
            .class(json!({ "volumeBindingMode": "WaitForFirstConsumer" }))
            .annotations(json!({ "volume.alpha.kubernetes.io/selected-node": "n" }))
            // The annotation of older schedulers.
            .gives(json!({})),
        trial("waited-empty")
            .class(json!({ "volumeBindingMode": "WaitForFirstConsumer" }))
            .annotations(json!({ "volume.kubernetes.io/selected-node": "" }))
            .ignored(),
        trial("class-by-annotation")
            .spec(json!({ "storageClassName": null }))
            .annotations(json!({ "volume.beta.kubernetes.io/storage-class": "<ns>" }))
            .gives(json!({ "spec": { "storageClassName": "<ns>" } })),
        trial("selector").spec(json!({ "selector": { "matchLabels": { "a": "b" } } })).refused("Selector"),
        trial("reserved").parameters(parameters(&[("~no-such-key", "x")])).refused("no-such-key"),
        trial("fstype-two").parameters(parameters(&[("fstype", "xfs"), ("~fstype", "ext4")])).refused("fstype"),
        trial("fstype-case")
            .parameters(parameters(&[("FsType", "xfs"), ("x", "y")]))
            .asks(json!({
                "parameters": { "FsType": "xfs", "x": "y" },
                "volume_capabilities": [{ "mount": { "fs_type": "xfs" } }],
            }))
            .gives(json!({ "spec": { "csi": { "fsType": "xfs" } } })),
        trial("fstype-default")
            .asks(json!({ "volume_capabilities": [{ "mount": { "fs_type": "ext9" } }] }))
            .gives(json!({ "spec": { "csi": { "fsType": "ext9" } } })),
        trial("fstype-block")
            .spec(json!({ "volumeMode": "Block" }))
            .asks(json!({ "volume_capabilities": [{ "block": {}, "mount": null }] }))
            .gives(json!({ "spec": { "csi": { "fsType": null }, "volumeMode": "Block" } })),
        trial("populated")
            .spec(json!({ "dataSourceRef": { "apiGroup": "x.example", "kind": "Thing", "name": "t" } }))
            .event("Provisioning")
            .ignored(),
        trial("no-snapshots")
            .spec(json!({ "dataSource": {
                "apiGroup": "snapshot.storage.k8s.io", "kind": "VolumeSnapshot", "name": "s",
            } }))
            .refused("CREATE_DELETE_SNAPSHOT"),
        trial("no-clones")
            .spec(json!({ "dataSource": { "kind": "PersistentVolumeClaim", "name": "s" } }))
            .refused("CLONE_VOLUME"),
        trial("retained")
            .class(json!({ "reclaimPolicy": "Retain" }))
            .gives(json!({
                "metadata": { "finalizers": ["kubernetes.io/pv-protection"] },
                "spec": { "persistentVolumeReclaimPolicy": "Retain" },
            })),
        trial("odd-size")
            .spec(json!({ "resources": { "requests": { "storage": "1500m" } } }))
            .asks(json!({ "capacity_range": { "required_bytes": "2" } }))
            .gives(json!({ "spec": { "capacity": { "storage": "2" } } })),
        trial("options")
            .class(json!({ "mountOptions": ["ro", "noatime"] }))
            .asks(json!({ "volume_capabilities": [{ "mount": { "mount_flags": ["ro", "noatime"] } }] }))
            .gives(json!({ "spec": { "mountOptions": ["ro", "noatime"] } })),
    ]
}

fn attributes() -> Vec<Trial> {
    let class = |name: &str, driver: &str| {
        json!({
            "kind": "VolumeAttributesClass",
            "metadata": { "name": name },
            "driverName": driver,
            "parameters": { "iops": "100" },
        })
    };
    let named = |name, class: &str| trial(name).spec(json!({ "volumeAttributesClassName": class }));
    vec![
        named("vac", "<ns>-gold")
            .with(class("<ns>-gold", DRIVER))
            .parameters(json!({ "kind": "fast" }))
            .asks(json!({ "mutable_parameters": { "iops": "100" }, "parameters": { "kind": "fast" } }))
            .gives(json!({ "spec": { "volumeAttributesClassName": "<ns>-gold" } })),
        named("vac-missing", "none").refused("not found"),
        named("vac-driver", "<ns>-other")
            .with(class("<ns>-other", "other.example"))
            .refused("other.example"),
        trial("vac-none")
            .asks(json!({ "mutable_parameters": null }))
            .gives(json!({ "spec": { "volumeAttributesClassName": null } })),
    ]
}

/// Invalid responses of a driver: they result in an event, and storage that is deleted or found again, not in a crash.
fn nonsense() -> Vec<Trial> {
    let zone = |key: &str, value: &str| json!({ "topology": [{ key: value }] });
    vec![
        trial("answer-small")
            .script(json!({ "capacity": 1 }))
            .fails("less than requested")
            .calls(2, 2),
        trial("answer-negative")
            .script(json!({ "capacity": -5 }))
            .fails("less than requested")
            .calls(2, 2),
        trial("answer-zero")
            .script(json!({ "capacity": 0 }))
            .gives(json!({ "spec": { "capacity": { "storage": "1Gi" } } })),
        trial("answer-larger")
            .script(json!({ "capacity": 3_221_225_472_u64 }))
            .gives(json!({ "spec": { "capacity": { "storage": "3Gi" } } })),
        trial("answer-nothing")
            .script(json!({ "omit_volume": true }))
            .fails("no volume")
            .calls(2, 0),
        trial("answer-no-id")
            .script(json!({ "volume_id": "" }))
            .fails("no volume id")
            .calls(2, 0),
        trial("answer-context")
            .script(json!({ "context": { "a": "b" } }))
            .gives(json!({ "spec": { "csi": { "volumeAttributes": { "a": "b" } } } })),
        // The driver does not support topology, so the topology in its response is ignored.
        trial("answer-topology")
            .script(zone("zone", "a"))
            .gives(json!({ "spec": { "nodeAffinity": null } })),
        trial("script-garbled")
            .parameters(json!({ "script": "{" }))
            .fails("infeasible"),
    ]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn classes_and_claims_give_the_expected_requests_volumes_and_events() {
    let rig = Rig::start().await.unwrap();
    let config = MockConfig {
        controller: vec![
            ControllerCapability::CreateDeleteVolume,
            ControllerCapability::SingleNodeMultiWriter,
            ControllerCapability::ModifyVolume,
        ],
        ..MockConfig::default()
    };
    let driver = rig.driver("s", config).unwrap();
    let provisioner = rig.provisioner("s", &["--default-fstype=ext9"]).unwrap();
    let tables = [secrets(), claims(), attributes(), nonsense()];
    let found = run(&rig.api, &driver, &tables.concat()).await.unwrap();
    assert!(found.is_empty(), "{}", found.join("\n"));
    assert_eq!(provisioner.stop().unwrap(), Some(0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn driver_without_create_volume_is_reported() {
    let rig = Rig::start().await.unwrap();
    let config = MockConfig {
        controller: Vec::new(),
        ..MockConfig::default()
    };
    let driver = rig.driver("s", config).unwrap();
    let provisioner = rig.provisioner("s", &[]).unwrap();
    let class =
        json!({ "kind": "StorageClass", "metadata": { "name": "c" }, "provisioner": DRIVER });
    tenure_tests::storage::table::put(&rig.api, &class, "")
        .await
        .unwrap();
    let claim = handed_over("c", "c", DRIVER);
    tenure_tests::storage::table::put(&rig.api, &claim, "default")
        .await
        .unwrap();
    tenure_tests::storage::until("an event with the reason", async || {
        let events = rig
            .api
            .get("/api/v1/namespaces/default/events")
            .await
            .unwrap();
        events?
            .to_string()
            .contains("CREATE_DELETE_VOLUME")
            .then_some(())
    })
    .await;
    assert!(driver.volumes().is_empty());
    assert_eq!(provisioner.stop().unwrap(), Some(0));
}
