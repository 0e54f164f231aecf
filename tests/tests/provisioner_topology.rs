//! Topology: where volumes must be accessible, and where the driver reports them to be.
#![allow(
    clippy::needless_pass_by_value,
    reason = "passing values keeps the cases short"
)]

use serde_json::{Value, json};
use tenure_csi::mock::MockConfig;
use tenure_csi::{ControllerCapability, PluginCapability};
use tenure_tests::storage::Rig;
use tenure_tests::storage::table::{Trial, put, run, trial};

const DRIVER: &str = "mock.csi.example";

/// Creates nodes in zones a, b and c, and some incorrect ones.
async fn fleet(rig: &Rig) {
    for (name, zone, keys) in [
        ("node-a", Some("a"), Some(vec!["zone"])),
        ("node-b", Some("b"), Some(vec!["zone"])),
        ("node-c", Some("c"), Some(vec!["zone"])),
        ("node-c2", Some("c"), Some(vec!["zone"])),
        // The driver is not registered on this node.
        ("unregistered", None, None),
        // The driver has no topology on this node.
        ("keyless", None, Some(vec![])),
        // The labels of this node are not set yet.
        ("unlabelled", None, Some(vec!["zone"])),
    ] {
        let labels = zone.map_or(json!({}), |zone| json!({ "zone": zone }));
        let node = json!({ "kind": "Node", "metadata": { "name": name, "labels": labels } });
        put(&rig.api, &node, "").await.unwrap();
        let Some(keys) = keys else { continue };
        let drivers = json!([{ "name": DRIVER, "nodeID": name, "topologyKeys": keys }]);
        let node = json!({ "kind": "CSINode", "metadata": { "name": name }, "spec": { "drivers": drivers } });
        put(&rig.api, &node, "").await.unwrap();
    }
}

fn zones(names: &str) -> Vec<Value> {
    let zone = |zone: char| json!({ "segments": { "zone": zone.to_string() } });
    names.chars().map(zone).collect()
}

fn required(requisite: &str, preferred: &str) -> Value {
    let (requisite, preferred) = (zones(requisite), zones(preferred));
    json!({ "accessibility_requirements": { "requisite": requisite, "preferred": preferred } })
}

fn allowed(values: &[&str]) -> Value {
    let expressions = json!([{ "key": "zone", "values": values }]);
    json!({ "allowedTopologies": [{ "matchLabelExpressions": expressions }] })
}

fn selected(name: &'static str, node: &str) -> Trial {
    trial(name)
        .class(json!({ "volumeBindingMode": "WaitForFirstConsumer" }))
        .annotations(json!({ "volume.kubernetes.io/selected-node": node }))
}

fn affinity(zones: &[&str]) -> Value {
    let term = |zone: &&str| json!({ "matchExpressions": [{ "key": "zone", "operator": "In", "values": [zone] }] });
    let terms: Vec<_> = zones.iter().map(term).collect();
    json!({ "spec": { "nodeAffinity": { "required": { "nodeSelectorTerms": terms } } } })
}

async fn check(flags: &[&str], trials: &[Trial]) {
    let rig = Rig::start().await.unwrap();
    fleet(&rig).await;
    let config = MockConfig {
        plugin: vec![
            PluginCapability::ControllerService,
            PluginCapability::VolumeAccessibilityConstraints,
        ],
        controller: vec![ControllerCapability::CreateDeleteVolume],
        ..MockConfig::default()
    };
    let driver = rig.driver("s", config).unwrap();
    let provisioner = rig.provisioner("s", flags).unwrap();
    let found = run(&rig.api, &driver, trials).await.unwrap();
    assert!(found.is_empty(), "{}", found.join("\n"));
    assert_eq!(provisioner.stop().unwrap(), Some(0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn topology_requirements_and_node_affinities_are_as_expected() {
    let none = json!({ "accessibility_requirements": null });
    let answers = |name, topology: Value| trial(name).script(json!({ "topology": topology }));
    let node = "volume.kubernetes.io/selected-node";
    let kept = |node_name: &str| json!({ "metadata": { "annotations": { node: node_name } } });
    let trials = [
        // The hash of the claim's name determines which zone comes first.
        trial("now")
            .asks(required("abc", FIRST_OF_THREE))
            .gives(json!({})),
        trial("now-allowed")
            .class(allowed(&["b", "a"]))
            .asks(required("ab", FIRST_OF_TWO))
            .gives(json!({})),
        trial("now-one")
            .class(allowed(&["c"]))
            .asks(required("c", "c"))
            .gives(json!({})),
        trial("now-unknown")
            .class(allowed(&["x"]))
            .asks(required("x", "x"))
            .gives(json!({})),
        selected("late", "node-b")
            .asks(required("abc", "bca"))
            .gives(json!({})),
        selected("late-allowed", "node-b")
            .class(allowed(&["c", "b"]))
            .asks(required("bc", "bc"))
            .gives(json!({})),
        selected("late-last", "node-c2")
            .class(allowed(&["a", "c"]))
            .asks(required("ac", "ca"))
            .gives(json!({})),
        selected("late-excluded", "node-b")
            .class(allowed(&["a", "c"]))
            .refused("not in the requisite")
            .leaves(kept("node-b")),
        // Neither the driver nor the claim is at fault: the scheduler has to select another node.
        selected("late-unregistered", "unregistered")
            .refused("csinode.storage.k8s.io \"unregistered\" not found")
            .leaves(json!({ "metadata": { "annotations": { node: null } } })),
        selected("late-gone", "no-such-node")
            .refused("not found")
            .leaves(json!({ "metadata": { "annotations": { node: null } } })),
        selected("late-keyless", "keyless")
            .refused("no topology key")
            .leaves(kept("keyless")),
        selected("late-unlabelled", "unlabelled")
            .refused("no label")
            .leaves(kept("unlabelled")),
        // Topology in the response of the driver.
        answers("in-one", json!([{ "zone": "a" }])).gives(affinity(&["a"])),
        answers("in-two", json!([{ "zone": "a" }, { "zone": "b" }])).gives(affinity(&["a", "b"])),
        answers("anywhere", json!([])).gives(json!({ "spec": { "nodeAffinity": null } })),
        answers("empty", json!([{}])).gives(json!({ "spec": { "nodeAffinity": null } })),
        answers("half-empty", json!([{}, { "zone": "b" }])).gives(affinity(&["b"])),
        // The API server rejects the object, so the storage is deleted.
        answers("no-label", json!([{ "no such label!": "a" }]))
            .fails("refuses the volume object")
            .calls(2, 2),
        answers("no-value", json!([{ "zone": "no value!" }])).gives(json!({})),
        // The request contained no topology, so the driver decides.
        answers("other-zone", json!([{ "zone": "z" }])).gives(affinity(&["z"])),
    ];
    check(&[], &trials).await;
    let trials = [
        selected("strict", "node-b")
            .asks(required("b", "b"))
            .gives(json!({})),
        selected("strict-allowed", "node-b")
            .class(allowed(&["b", "c"]))
            .asks(required("b", "b"))
            .gives(json!({})),
        selected("strict-excluded", "node-b")
            .class(allowed(&["c"]))
            .refused("not in the allowed"),
        trial("strict-now").asks(none.clone()).gives(json!({})),
        trial("strict-now-allowed")
            .class(allowed(&["a"]))
            .asks(required("a", "a"))
            .gives(json!({})),
    ];
    check(
        &["--strict-topology", "--immediate-topology=false"],
        &trials,
    )
    .await;
    let trials = [trial("gate").asks(none).gives(json!({}))];
    check(&["--feature-gates=Topology=false"], &trials).await;
}

const FIRST_OF_THREE: &str = "cab";
const FIRST_OF_TWO: &str = "ba";
