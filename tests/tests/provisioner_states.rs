//! The effect of each driver response on a claim: every code, with and without topology, with and without a selected
//! node. Observable effects are whether the claim goes back to the scheduler, and whether it is retried after its
//! deletion.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use tenure_csi::mock::{Method, MockConfig, MockDriver};
use tenure_csi::{ControllerCapability, PluginCapability};
use tenure_tests::storage::table::put;
use tenure_tests::storage::{Api, Rig, handed_over, until};

const DRIVER: &str = "mock.csi.example";
const CODES: [&str; 16] = [
    "CANCELLED",
    "UNKNOWN",
    "INVALID_ARGUMENT",
    "DEADLINE_EXCEEDED",
    "NOT_FOUND",
    "ALREADY_EXISTS",
    "PERMISSION_DENIED",
    "RESOURCE_EXHAUSTED",
    "FAILED_PRECONDITION",
    "ABORTED",
    "OUT_OF_RANGE",
    "UNIMPLEMENTED",
    "INTERNAL",
    "UNAVAILABLE",
    "DATA_LOSS",
    "UNAUTHENTICATED",
];

/// After these codes the driver may still be working.
const UNDECIDED: [&str; 4] = ["CANCELLED", "DEADLINE_EXCEEDED", "ABORTED", "UNAVAILABLE"];

/// A claim whose driver always returns one code.
struct Claim {
    code: &'static str,
    selected: bool,
    path: String,
    uid: String,
}

impl Claim {
    async fn new(api: &Api, code: &'static str, selected: bool) -> Self {
        let low = code.to_lowercase().replace('_', "-");
        let name = format!("{low}-{}", if selected { "late" } else { "now" });
        let binding = match selected {
            true => "WaitForFirstConsumer",
            false => "Immediate",
        };
        let class = json!({
            "kind": "StorageClass",
            "metadata": { "name": name },
            "provisioner": DRIVER,
            "volumeBindingMode": binding,
            "parameters": { "script": json!({ "code": code }).to_string() },
        });
        put(api, &class, "").await.unwrap();
        let mut claim = handed_over(&name, &name, DRIVER);
        if selected {
            claim["metadata"]["annotations"]["volume.kubernetes.io/selected-node"] =
                json!("node-1");
        }
        let uid = put(api, &claim, "default").await.unwrap();
        Self {
            code,
            selected,
            path: format!("/api/v1/namespaces/default/persistentvolumeclaims/{name}"),
            uid,
        }
    }

    fn calls(&self, counts: &BTreeMap<String, usize>) -> usize {
        counts
            .get(&format!("pvc-{}", self.uid))
            .copied()
            .unwrap_or_default()
    }
}

/// Number of CreateVolume calls by name.
fn counts(driver: &MockDriver) -> BTreeMap<String, usize> {
    let mut counts = BTreeMap::new();
    for call in driver.calls_of(Method::CreateVolume) {
        let name = call.request["name"].as_str().unwrap_or_default();
        *counts.entry(name.to_owned()).or_default() += 1;
    }
    counts
}

async fn table(topology: bool) {
    let rig = Rig::start().await.unwrap();
    let mut plugin = vec![PluginCapability::ControllerService];
    if topology {
        plugin.push(PluginCapability::VolumeAccessibilityConstraints);
    }
    let config = MockConfig {
        plugin,
        controller: vec![ControllerCapability::CreateDeleteVolume],
        ..MockConfig::default()
    };
    let driver = rig.driver("s", config).unwrap();
    let node =
        json!({ "kind": "Node", "metadata": { "name": "node-1", "labels": { "zone": "a" } } });
    put(&rig.api, &node, "").await.unwrap();
    let drivers = json!([{ "name": DRIVER, "nodeID": "node-1", "topologyKeys": ["zone"] }]);
    let node = json!({ "kind": "CSINode", "metadata": { "name": "node-1" }, "spec": { "drivers": drivers } });
    put(&rig.api, &node, "").await.unwrap();
    let provisioner = rig.provisioner("s", &["--retry-interval-max=1s"]).unwrap();
    let mut claims = Vec::new();
    for code in CODES {
        for selected in [false, true] {
            claims.push(Claim::new(&rig.api, code, selected).await);
        }
    }
    let moves = |claim: &Claim| topology && claim.selected && claim.code == "RESOURCE_EXHAUSTED";

    // Every claim is tried. Claims that go back to the scheduler are not retried, all others are.
    for claim in &claims {
        let least = if moves(claim) { 1 } else { 2 };
        until(&format!("{least} tries of {}", claim.path), async || {
            (claim.calls(&counts(&driver)) >= least).then_some(())
        })
        .await;
    }
    until(
        "an event that InvalidArgument is retried less often",
        async || {
            let events = rig.api.get("/api/v1/namespaces/default/events").await;
            events
                .unwrap()?
                .to_string()
                .contains("infeasible")
                .then_some(())
        },
    )
    .await;
    for claim in &claims {
        let selected = async || {
            let claim = rig.api.get(&claim.path).await.unwrap().unwrap();
            let node = &claim["metadata"]["annotations"]["volume.kubernetes.io/selected-node"];
            node.is_string()
        };
        if moves(claim) {
            until("a claim that goes back", async || {
                (!selected().await).then_some(())
            })
            .await;
        } else {
            assert_eq!(selected().await, claim.selected, "{}", claim.path);
        }
    }

    // If the driver may still be creating the volume, the creation continues after the claim is deleted.
    for claim in &claims {
        rig.api.remove(&claim.path).await.unwrap();
    }
    until("all gone", async || {
        let path = "/api/v1/namespaces/default/persistentvolumeclaims";
        let list: Value = rig.api.get(path).await.unwrap()?;
        list["items"].as_array()?.is_empty().then_some(())
    })
    .await;
    let undecided = |claim: &&Claim| UNDECIDED.contains(&claim.code);
    // The others are not retried once the provisioner has received their deletion.
    let mut before = counts(&driver);
    until(
        "retries only of volumes that the driver may be creating",
        async || {
            for claim in claims.iter().filter(undecided) {
                let least = claim.calls(&before) + 3;
                until(&format!("more retries of {}", claim.path), async || {
                    (claim.calls(&counts(&driver)) >= least).then_some(())
                })
                .await;
            }
            let after = counts(&driver);
            let mut others = claims.iter().filter(|claim| !undecided(claim));
            let quiet = others.all(|claim| claim.calls(&before) == claim.calls(&after));
            before = after;
            quiet.then_some(())
        },
    )
    .await;
    assert_eq!(provisioner.stop().unwrap(), Some(0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_code_without_topology_has_the_expected_effect() {
    table(false).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_code_with_topology_has_the_expected_effect() {
    table(true).await;
}
