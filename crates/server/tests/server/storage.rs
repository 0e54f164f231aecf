//! Claims and volumes: binding, protection and reclaiming.

use k8s_openapi::api::core::v1::{Event, Node, PersistentVolume, PersistentVolumeClaim, Pod};
use k8s_openapi::api::storage::v1::StorageClass;
use k8s_openapi::serde::Serialize;
use k8s_openapi::serde::de::DeserializeOwned;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::core::NamespaceResourceScope;
use kube::{Api, Client, Resource, ResourceExt as _};
use serde_json::{Value, json};

use super::{Running, embedded, until};

const DRIVER: &str = "mock.csi.example";
const PROVISIONER: &str = "volume.kubernetes.io/storage-provisioner";
const PROVISIONER_BETA: &str = "volume.beta.kubernetes.io/storage-provisioner";
const SELECTED_NODE: &str = "volume.kubernetes.io/selected-node";
const BOUND_BY_CONTROLLER: &str = "pv.kubernetes.io/bound-by-controller";
const BIND_COMPLETED: &str = "pv.kubernetes.io/bind-completed";

/// A server, and its objects as JSON.
struct Rig {
    server: Running,
    client: Client,
}

impl Rig {
    async fn start() -> Self {
        Self::with(embedded()).await
    }

    async fn with(server: tenure_server::Server) -> Self {
        let server = Running::start(server).await;
        let client = server.client.clone();
        Self { server, client }
    }

    async fn create<K>(&self, api: Api<K>, object: Value) -> Value
    where
        K: Serialize + DeserializeOwned + Clone + std::fmt::Debug,
    {
        let object = serde_json::from_value(object).unwrap();
        let made = api.create(&PostParams::default(), &object).await.unwrap();
        serde_json::to_value(made).unwrap()
    }

    fn all<K: Resource<DynamicType = ()>>(&self) -> Api<K> {
        Api::all(self.client.clone())
    }

    fn here<K>(&self) -> Api<K>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope>,
    {
        Api::namespaced(self.client.clone(), "default")
    }

    async fn class(&self, name: &str, more: Value) {
        let mut class = json!({ "metadata": { "name": name }, "provisioner": DRIVER });
        merge(&mut class, more);
        self.create(self.all::<StorageClass>(), class).await;
    }

    async fn claim_of(&self, name: &str, class: &str, spec: Value) -> Value {
        let mut all = json!({
            "storageClassName": class,
            "accessModes": ["ReadWriteOnce"],
            "resources": { "requests": { "storage": "1Gi" } },
        });
        merge(&mut all, spec);
        let claim = json!({ "metadata": { "name": name }, "spec": all });
        self.create(self.here::<PersistentVolumeClaim>(), claim)
            .await
    }

    async fn volume_of(&self, name: &str, class: &str, spec: Value) -> Value {
        let csi = json!({ "driver": DRIVER, "volumeHandle": name });
        let mut all = json!({
            "storageClassName": class,
            "accessModes": ["ReadWriteOnce"],
            "capacity": { "storage": "1Gi" },
            "csi": csi,
        });
        merge(&mut all, spec);
        let mut volume = json!({ "metadata": { "name": name }, "spec": all });
        if let Some(annotations) = volume["spec"]
            .as_object_mut()
            .unwrap()
            .remove("annotations")
        {
            volume["metadata"]["annotations"] = annotations;
        }
        self.create(self.all::<PersistentVolume>(), volume).await
    }

    async fn pod_of(&self, name: &str, claim: &str, spec: Value) {
        let source = json!({ "claimName": claim });
        let mut all = json!({
            "containers": [{ "name": "c", "image": "i" }],
            "volumes": [{ "name": "v", "persistentVolumeClaim": source }],
        });
        merge(&mut all, spec);
        let pod = json!({ "metadata": { "name": name }, "spec": all });
        self.create(self.here::<Pod>(), pod).await;
    }

    async fn node(&self, name: &str, zone: &str) {
        let meta = json!({ "name": name, "labels": { "zone": zone } });
        self.create(self.all::<Node>(), json!({ "metadata": meta }))
            .await;
    }

    async fn claim(&self, name: &str) -> Option<PersistentVolumeClaim> {
        self.here().get_opt(name).await.unwrap()
    }

    async fn volume(&self, name: &str) -> Option<PersistentVolume> {
        self.all().get_opt(name).await.unwrap()
    }

    async fn claim_phase(&self, name: &str) -> String {
        let claim = self.claim(name).await.and_then(|c| c.status);
        claim.and_then(|s| s.phase).unwrap_or_default()
    }

    async fn volume_phase(&self, name: &str) -> String {
        let volume = self.volume(name).await.and_then(|v| v.status);
        volume.and_then(|s| s.phase).unwrap_or_default()
    }

    async fn phases(&self, claim: &str, volume: &str, wanted: (&str, &str)) {
        until(&format!("{claim}, {volume}: {wanted:?}"), async || {
            self.claim_phase(claim).await == wanted.0 && self.volume_phase(volume).await == wanted.1
        })
        .await;
    }

    async fn annotated(&self, claim: &str, key: &str, value: &str) {
        until(&format!("{claim}: {key}={value}"), async || {
            let claim = self.claim(claim).await.unwrap();
            claim.annotations().get(key).is_some_and(|is| is == value)
        })
        .await;
    }

    async fn told(&self, about: &str, reason: &str) -> String {
        let mut message = String::new();
        until(&format!("{about}: {reason}"), async || {
            let events: Api<Event> = self.here();
            let events = events.list(&ListParams::default()).await.unwrap();
            let found = events.items.into_iter().find(|event| {
                event.involved_object.name.as_deref() == Some(about)
                    && event.reason.as_deref() == Some(reason)
            });
            message = found.and_then(|event| event.message).unwrap_or_default();
            !message.is_empty()
        })
        .await;
        message
    }

    async fn delete_claim(&self, name: &str) {
        let claims: Api<PersistentVolumeClaim> = self.here();
        claims.delete(name, &DeleteParams::default()).await.unwrap();
    }

    async fn delete_volume(&self, name: &str) {
        let volumes: Api<PersistentVolume> = self.all();
        volumes
            .delete(name, &DeleteParams::default())
            .await
            .unwrap();
    }

    async fn patch_volume(&self, name: &str, patch: Value) {
        let volumes: Api<PersistentVolume> = self.all();
        let patch = Patch::Merge(patch);
        volumes
            .patch(name, &PatchParams::default(), &patch)
            .await
            .unwrap();
    }

    /// Waits until everything created before was processed: a volume created now becomes available.
    async fn settled(&self, mark: &str) {
        self.volume_of(mark, "mark", json!({})).await;
        until("the mark is available", async || {
            self.volume_phase(mark).await == "Available"
        })
        .await;
    }
}

fn merge(into: &mut Value, from: Value) {
    let Value::Object(from) = from else {
        unreachable!("members")
    };
    for (key, value) in from {
        into[key] = value;
    }
}

fn named(claim: &Value) -> Value {
    json!({
        "apiVersion": "v1", "kind": "PersistentVolumeClaim", "namespace": "default",
        "name": claim["metadata"]["name"], "uid": claim["metadata"]["uid"],
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn claim_is_passed_to_its_provisioner_and_bound_to_the_created_volume() {
    let rig = Rig::start().await;
    // The class is created after the claim.
    let claim = rig.claim_of("data", "fast", json!({})).await;
    let message = rig.told("data", "ProvisioningFailed").await;
    assert_eq!(message, "storageclass.storage.k8s.io \"fast\" not found");
    rig.class("fast", json!({})).await;
    rig.annotated("data", PROVISIONER, DRIVER).await;
    rig.annotated("data", PROVISIONER_BETA, DRIVER).await;
    let message = rig.told("data", "ExternalProvisioning").await;
    assert!(
        message.contains("external provisioner 'mock.csi.example'"),
        "{message}"
    );
    assert_eq!(rig.claim_phase("data").await, "Pending");

    // Acts like a provisioner.
    let spec = json!({
        "claimRef": named(&claim),
        "capacity": { "storage": "2Gi" },
        "persistentVolumeReclaimPolicy": "Delete",
        "annotations": { "pv.kubernetes.io/provisioned-by": DRIVER },
    });
    rig.volume_of("made", "fast", spec).await;
    rig.phases("data", "made", ("Bound", "Bound")).await;
    let claim = rig.claim("data").await.unwrap();
    assert_eq!(claim.annotations()[BIND_COMPLETED], "yes");
    assert_eq!(claim.annotations()[BOUND_BY_CONTROLLER], "yes");
    assert_eq!(claim.spec.unwrap().volume_name.as_deref(), Some("made"));
    let status = claim.status.unwrap();
    assert_eq!(status.capacity.unwrap()["storage"].0, "2Gi");
    assert_eq!(status.access_modes.unwrap(), ["ReadWriteOnce"]);
    let volume = rig.volume("made").await.unwrap();
    assert!(
        !volume.annotations().contains_key(BOUND_BY_CONTROLLER),
        "it named the claim itself"
    );

    // After the deletion of the claim, the volume is released and left to the provisioner.
    rig.delete_claim("data").await;
    until("released", async || {
        rig.volume_phase("made").await == "Released"
    })
    .await;
    assert!(rig.claim("data").await.is_none());
    rig.settled("mark").await;
    assert_eq!(rig.volume_phase("made").await, "Released");
    rig.delete_volume("made").await;
    until("gone", async || rig.volume("made").await.is_none()).await;
    rig.server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn classes_of_replaced_plugins_are_passed_to_their_drivers_and_others_are_not() {
    let rig = Rig::start().await;
    rig.class("old", json!({ "provisioner": "kubernetes.io/aws-ebs" }))
        .await;
    rig.class(
        "none",
        json!({ "provisioner": "kubernetes.io/no-provisioner" }),
    )
    .await;
    rig.claim_of("old", "old", json!({})).await;
    rig.annotated("old", PROVISIONER, "ebs.csi.aws.com").await;
    rig.annotated("old", "pv.kubernetes.io/migrated-to", "ebs.csi.aws.com")
        .await;
    rig.claim_of("none", "none", json!({})).await;
    let message = rig.told("none", "ProvisioningFailed").await;
    assert_eq!(
        message,
        "no volume plugin matched name: kubernetes.io/no-provisioner"
    );
    assert!(rig.claim("none").await.unwrap().annotations().is_empty());
    rig.server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn volume_of_replaced_plugin_names_its_driver_and_is_left_to_the_provisioner() {
    let rig = Rig::start().await;
    let spec = json!({
        "annotations": { "pv.kubernetes.io/provisioned-by": "kubernetes.io/aws-ebs" },
        "csi": null,
        "awsElasticBlockStore": { "volumeID": "vol-1" },
        "persistentVolumeReclaimPolicy": "Delete",
        "claimRef": { "namespace": "default", "name": "gone", "uid": "gone" },
    });
    rig.volume_of("old", "c", spec).await;
    until("released", async || {
        rig.volume_phase("old").await == "Released"
    })
    .await;
    let volume = rig.volume("old").await.unwrap();
    let driver = volume.annotations().get("pv.kubernetes.io/migrated-to");
    assert_eq!(driver.map(String::as_str), Some("ebs.csi.aws.com"));
    rig.server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn existing_volumes_are_bound_once_and_only_to_matching_claims() {
    let rig = Rig::start().await;
    rig.claim_of("early", "", json!({})).await;
    let message = rig.told("early", "FailedBinding").await;
    assert!(
        message.starts_with("no persistent volumes available"),
        "{message}"
    );
    let size = |size: &str| json!({ "capacity": { "storage": size } });
    rig.volume_of("other-class", "slow", json!({})).await;
    rig.volume_of("too-small", "", size("900Mi")).await;
    until("both are available", async || {
        rig.volume_phase("other-class").await == "Available"
            && rig.volume_phase("too-small").await == "Available"
    })
    .await;
    assert_eq!(rig.claim_phase("early").await, "Pending");
    // A volume that is created later is bound to the waiting claim.
    rig.volume_of("first", "", size("5Gi")).await;
    rig.phases("early", "first", ("Bound", "Bound")).await;
    let volume = rig.volume("first").await.unwrap();
    assert_eq!(volume.annotations()[BOUND_BY_CONTROLLER], "yes");
    let named = volume.spec.unwrap().claim_ref.unwrap();
    assert_eq!(named.uid, rig.claim("early").await.unwrap().metadata.uid);
    assert_eq!(named.kind.as_deref(), Some("PersistentVolumeClaim"));

    // As many claims as volumes are created together, and each claim gets a different volume.
    for n in 0..8 {
        rig.volume_of(&format!("many-{n}"), "many", json!({})).await;
    }
    for n in 0..8 {
        rig.claim_of(&format!("many-{n}"), "many", json!({})).await;
    }
    let mut got = Vec::new();
    for n in 0..8 {
        let claim = format!("many-{n}");
        until("it is bound", async || {
            rig.claim_phase(&claim).await == "Bound"
        })
        .await;
        got.push(rig.claim(&claim).await.unwrap().spec.unwrap().volume_name);
    }
    got.sort();
    got.dedup();
    assert_eq!(got.len(), 8, "{got:?}");
    rig.server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn manual_reference_of_claim_or_volume_is_respected() {
    let rig = Rig::start().await;
    // A volume that is reserved for a later claim; no other claim gets it.
    let mut reserved = named(&json!({ "metadata": { "name": "mine" } }));
    reserved.as_object_mut().unwrap().remove("uid");
    rig.volume_of("reserved", "", json!({ "claimRef": reserved }))
        .await;
    until("available", async || {
        rig.volume_phase("reserved").await == "Available"
    })
    .await;
    rig.claim_of("greedy", "", json!({})).await;
    rig.told("greedy", "FailedBinding").await;
    let mine = rig.claim_of("mine", "", json!({})).await;
    rig.phases("mine", "reserved", ("Bound", "Bound")).await;
    assert_eq!(rig.claim_phase("greedy").await, "Pending");
    let volume = rig.volume("reserved").await.unwrap();
    assert!(!volume.annotations().contains_key(BOUND_BY_CONTROLLER));
    let uid = volume.spec.unwrap().claim_ref.unwrap().uid;
    assert_eq!(uid.as_deref(), mine["metadata"]["uid"].as_str());
    // This claim would take any volume without a reference to a claim, including those of the claims below.
    rig.delete_claim("greedy").await;
    until("gone", async || rig.claim("greedy").await.is_none()).await;

    // Two claims name a volume that is created later. It is too small for the second claim, and the first takes it.
    rig.claim_of("late", "", json!({ "volumeName": "wanted" }))
        .await;
    rig.claim_of(
        "large",
        "",
        json!({
            "volumeName": "wanted", "resources": { "requests": { "storage": "9Gi" } },
        }),
    )
    .await;
    rig.volume_of("wanted", "", json!({})).await;
    rig.phases("late", "wanted", ("Bound", "Bound")).await;
    let claim = rig.claim("late").await.unwrap();
    assert!(!claim.annotations().contains_key(BOUND_BY_CONTROLLER));
    assert_eq!(claim.annotations()[BIND_COMPLETED], "yes");
    let message = rig.told("large", "FailedBinding").await;
    assert_eq!(
        message,
        "volume \"wanted\" already bound to a different claim."
    );
    rig.volume_of("small", "", json!({ "claimRef": null }))
        .await;
    rig.claim_of(
        "mismatch",
        "",
        json!({ "volumeName": "mark", "volumeMode": "Block" }),
    )
    .await;
    rig.volume_of("mark", "", json!({})).await;
    let message = rig.told("mismatch", "VolumeMismatch").await;
    assert_eq!(
        message,
        "Cannot bind to requested volume \"mark\": incompatible volumeMode"
    );
    rig.server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn volume_of_a_deleted_claim_follows_its_reclaim_policy() {
    let rig = Rig::start().await;
    for policy in ["Retain", "Recycle", "Delete"] {
        let name = policy.to_lowercase();
        let mut spec = json!({ "persistentVolumeReclaimPolicy": policy });
        if policy != "Retain" {
            // Volumes of drivers are left to their provisioners.
            merge(
                &mut spec,
                json!({ "csi": null, "nfs": { "server": "s", "path": "/" } }),
            );
        }
        rig.volume_of(&name, &name, spec).await;
        rig.claim_of(&name, &name, json!({})).await;
        rig.phases(&name, &name, ("Bound", "Bound")).await;
        rig.delete_claim(&name).await;
    }
    until("retained", async || {
        rig.volume_phase("retain").await == "Released"
    })
    .await;
    for (name, why) in [
        ("recycle", "No recycler plugin"),
        ("delete", "error getting deleter"),
    ] {
        until("failed", async || rig.volume_phase(name).await == "Failed").await;
        let message = rig
            .volume(name)
            .await
            .unwrap()
            .status
            .unwrap()
            .message
            .unwrap();
        assert!(message.starts_with(why), "{message}");
    }
    // A new claim of the same name is a different claim.
    rig.claim_of("retain", "retain", json!({})).await;
    rig.told("retain", "ProvisioningFailed").await;
    assert_eq!(rig.volume_phase("retain").await, "Released");
    // After its reference is removed by hand, it is available for the new claim.
    rig.patch_volume("retain", json!({ "spec": { "claimRef": null } }))
        .await;
    rig.phases("retain", "retain", ("Bound", "Bound")).await;
    rig.server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_bound_claim_without_its_volume_is_lost() {
    let rig = Rig::start().await;
    rig.volume_of("v", "", json!({})).await;
    rig.claim_of("c", "", json!({})).await;
    rig.phases("c", "v", ("Bound", "Bound")).await;
    // A bound volume stays, even if its deletion is requested.
    rig.delete_volume("v").await;
    rig.settled("mark").await;
    let volume = rig.volume("v").await.unwrap();
    assert!(volume.metadata.deletion_timestamp.is_some());
    assert_eq!(volume.finalizers(), ["kubernetes.io/pv-protection"]);
    // The protection is removed by force.
    rig.patch_volume("v", json!({ "metadata": { "finalizers": null } }))
        .await;
    until("lost", async || rig.claim_phase("c").await == "Lost").await;
    let claim = rig.claim("c").await.unwrap();
    assert_eq!(claim.status.unwrap().capacity, None);
    let message = rig.told("c", "ClaimLost").await;
    assert!(message.contains("lost its PersistentVolume"), "{message}");
    rig.server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn volume_for_a_claim_with_another_volume_is_freed_or_left_to_its_provisioner() {
    let rig = Rig::start().await;
    rig.volume_of("taken", "", json!({})).await;
    let claim = rig.claim_of("c", "", json!({})).await;
    rig.phases("c", "taken", ("Bound", "Bound")).await;
    let by = |key: &str| json!({ key: "yes" });
    let spec = json!({ "claimRef": named(&claim), "annotations": by(BOUND_BY_CONTROLLER) });
    rig.volume_of("chosen", "", spec).await;
    rig.volume_of("asked", "", json!({ "claimRef": named(&claim) }))
        .await;
    let spec = json!({
        "claimRef": named(&claim),
        "persistentVolumeReclaimPolicy": "Delete",
        "annotations": { "pv.kubernetes.io/provisioned-by": DRIVER },
    });
    rig.volume_of("made", "", spec).await;
    for (name, phase) in [
        ("chosen", "Available"),
        ("asked", "Available"),
        ("made", "Released"),
    ] {
        until(name, async || rig.volume_phase(name).await == phase).await;
    }
    let claim_ref = async |name: &str| rig.volume(name).await.unwrap().spec.unwrap().claim_ref;
    assert_eq!(claim_ref("chosen").await, None);
    let asked = claim_ref("asked").await.unwrap();
    assert_eq!(
        (asked.name.as_deref(), asked.uid.as_deref()),
        (Some("c"), None)
    );
    rig.server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_claim_stays_while_a_pod_on_a_node_uses_it() {
    let rig = Rig::start().await;
    rig.claim_of("used", "", json!({})).await;
    rig.claim_of("waiting", "", json!({})).await;
    rig.node("n", "a").await;
    rig.pod_of("runs", "used", json!({ "nodeName": "n" })).await;
    rig.pod_of("waits", "waiting", json!({})).await;
    rig.delete_claim("used").await;
    rig.delete_claim("waiting").await;
    until("no pod with a node uses it", async || {
        rig.claim("waiting").await.is_none()
    })
    .await;
    rig.settled("mark").await;
    assert!(rig.claim("used").await.is_some());
    let pods: Api<Pod> = rig.here();
    let now = DeleteParams::default().grace_period(0);
    pods.delete("runs", &now).await.unwrap();
    until("the pod is gone", async || {
        rig.claim("used").await.is_none()
    })
    .await;

    // A claim that lost its protection gets it back.
    rig.claim_of("bare", "", json!({})).await;
    let claims: Api<PersistentVolumeClaim> = rig.here();
    let bare = Patch::Merge(json!({ "metadata": { "finalizers": null } }));
    claims
        .patch("bare", &PatchParams::default(), &bare)
        .await
        .unwrap();
    until("it is back", async || {
        rig.claim("bare").await.unwrap().finalizers() == ["kubernetes.io/pvc-protection"]
    })
    .await;
    rig.server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn first_pod_decides_the_node_of_its_claims() {
    let rig = Rig::start().await;
    let waits = json!({ "volumeBindingMode": "WaitForFirstConsumer" });
    rig.class("late", waits.clone()).await;
    for (node, zone) in [("a", "one"), ("b", "two"), ("c", "two")] {
        rig.node(node, zone).await;
    }
    rig.claim_of("data", "late", json!({})).await;
    rig.told("data", "WaitForFirstConsumer").await;
    let claim = rig.claim("data").await.unwrap();
    assert!(claim.annotations().is_empty(), "{:?}", claim.annotations());

    rig.pod_of(
        "wrong",
        "data",
        json!({ "nodeSelector": { "zone": "none" } }),
    )
    .await;
    rig.pod_of(
        "right",
        "data",
        json!({ "nodeSelector": { "zone": "one" } }),
    )
    .await;
    rig.annotated("data", SELECTED_NODE, "a").await;
    rig.annotated("data", PROVISIONER, DRIVER).await;

    // The provisioner gave up, so another node is selected.
    rig.class(
        "any",
        json!({ "provisioner": "x.example", "volumeBindingMode": "WaitForFirstConsumer" }),
    )
    .await;
    rig.claim_of("again", "any", json!({})).await;
    rig.pod_of(
        "again",
        "again",
        json!({ "nodeSelector": { "zone": "two" } }),
    )
    .await;
    rig.annotated("again", PROVISIONER, "x.example").await;
    let first = rig.claim("again").await.unwrap().annotations()[SELECTED_NODE].clone();
    let claims: Api<PersistentVolumeClaim> = rig.here();
    let given_up = Patch::Merge(json!({ "metadata": { "annotations": { SELECTED_NODE: null } } }));
    claims
        .patch("again", &PatchParams::default(), &given_up)
        .await
        .unwrap();
    until("another node", async || {
        let claim = rig.claim("again").await.unwrap();
        claim
            .annotations()
            .get(SELECTED_NODE)
            .is_some_and(|node| *node != first)
    })
    .await;

    // Existing volumes, each on its node.
    rig.class("local", json!({ "provisioner": "kubernetes.io/no-provisioner", "volumeBindingMode": "WaitForFirstConsumer" })).await;
    for node in ["a", "b"] {
        let term = json!({ "key": "metadata.name", "operator": "In", "values": [node] });
        let required = json!({ "nodeSelectorTerms": [{ "matchFields": [term] }] });
        let spec = json!({ "nodeAffinity": { "required": required } });
        rig.volume_of(&format!("on-{node}"), "local", spec).await;
    }
    rig.claim_of("local", "local", json!({})).await;
    rig.told("local", "WaitForFirstConsumer").await;
    assert_eq!(rig.claim_phase("local").await, "Pending");
    rig.pod_of(
        "local",
        "local",
        json!({ "nodeSelector": { "zone": "two" } }),
    )
    .await;
    rig.phases("local", "on-b", ("Bound", "Bound")).await;
    assert_eq!(rig.volume_phase("on-a").await, "Available");
    rig.server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_claim_with_a_node_gets_no_volume_that_the_node_does_not_reach() {
    // A scheduler selects the node, as on other clusters.
    let rig = Rig::with(embedded().disable("first-consumer")).await;
    rig.class(
        "late",
        json!({ "volumeBindingMode": "WaitForFirstConsumer" }),
    )
    .await;
    let in_zone = |zone: &str| {
        let term = json!({ "key": "zone", "operator": "In", "values": [zone] });
        let required = json!({ "nodeSelectorTerms": [{ "matchExpressions": [term] }] });
        json!({ "nodeAffinity": { "required": required } })
    };
    rig.node("a", "one").await;
    rig.volume_of("in-two", "late", in_zone("two")).await;
    until("the volume is free", async || {
        rig.volume_phase("in-two").await == "Available"
    })
    .await;
    for (claim, node) in [("here", "a"), ("unknown", "b"), ("nowhere", "")] {
        let claim = json!({
            "metadata": { "name": claim, "annotations": { SELECTED_NODE: node } },
            "spec": {
                "storageClassName": "late",
                "accessModes": ["ReadWriteOnce"],
                "resources": { "requests": { "storage": "1Gi" } },
            },
        });
        rig.create(rig.here::<PersistentVolumeClaim>(), claim).await;
    }
    rig.annotated("here", PROVISIONER, DRIVER).await;
    rig.annotated("unknown", PROVISIONER, DRIVER).await;
    rig.told("nowhere", "WaitForFirstConsumer").await;
    for claim in ["here", "unknown", "nowhere"] {
        assert_eq!(rig.claim_phase(claim).await, "Pending", "{claim}");
    }

    rig.volume_of("in-one", "late", in_zone("one")).await;
    rig.phases("here", "in-one", ("Bound", "Bound")).await;
    assert_eq!(rig.volume_phase("in-two").await, "Available");
    rig.node("b", "two").await;
    rig.phases("unknown", "in-two", ("Bound", "Bound")).await;

    // A volume that names the claim has precedence.
    let claim_ref = json!({ "namespace": "default", "name": "nowhere" });
    rig.volume_of("named", "late", json!({ "claimRef": claim_ref }))
        .await;
    rig.phases("nowhere", "named", ("Bound", "Bound")).await;
    rig.server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_storage_controller_can_be_disabled() {
    let rig = Rig::with(embedded().disable("persistentvolume-binder")).await;
    rig.volume_of("v", "", json!({})).await;
    rig.claim_of("c", "", json!({})).await;
    rig.delete_claim("c").await;
    until("protection works", async || rig.claim("c").await.is_none()).await;
    assert_eq!(rig.volume_phase("v").await, "Pending");
    rig.server.stop().await;

    let server = embedded()
        .disable("pvc-protection")
        .disable("pv-protection");
    let rig = Rig::with(server.disable("first-consumer")).await;
    rig.class(
        "late",
        json!({ "volumeBindingMode": "WaitForFirstConsumer" }),
    )
    .await;
    rig.node("n", "a").await;
    rig.claim_of("late", "late", json!({})).await;
    rig.pod_of("p", "late", json!({})).await;
    rig.volume_of("v", "", json!({})).await;
    rig.claim_of("c", "", json!({})).await;
    rig.phases("c", "v", ("Bound", "Bound")).await;
    rig.delete_claim("c").await;
    rig.settled("mark").await;
    assert!(
        rig.claim("c").await.is_some(),
        "nobody takes its protection away"
    );
    let late = rig.claim("late").await.unwrap();
    assert!(
        !late.annotations().contains_key(SELECTED_NODE),
        "nobody chooses"
    );
    rig.server.stop().await;
}
