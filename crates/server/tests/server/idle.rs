//! A server without changes sends itself no requests, regardless of its objects.

use std::time::Duration;

use kube::Client;
use serde_json::{Value, json};

use super::{Running, embedded, until};

/// Longer than the delay of everything that is retried at least once a minute.
const QUIET: Duration = Duration::from_secs(35);

/// Maximum number of seconds in which a server may process new objects before it is idle.
const SETTLED_WITHIN: u32 = 90;

/// Number of seconds without a request after which it counts as idle. Discovery runs up to ten seconds after a change
/// of a definition. Leases are listed fifteen seconds after an object was removed.
const SETTLED: u32 = 17;

/// Objects in a namespace, with references that resolve to nothing or form a ring.
struct Api<'a>(&'a Client);

impl Api<'_> {
    async fn send(&self, method: &str, path: &str, body: &Value) -> Value {
        let kind = match method {
            "PATCH" => "application/merge-patch+json",
            _ => "application/json",
        };
        let request = http::Request::builder().method(method).uri(path);
        let request = request.header("content-type", kind);
        let request = request.body(body.to_string().into_bytes()).unwrap();
        let sent = self.0.request::<Value>(request).await;
        sent.unwrap_or_else(|error| panic!("{method} {path}: {error}"))
    }

    /// Creates an object and returns its uid.
    async fn make(&self, path: &str, metadata: Value, rest: Value) -> String {
        let mut body = rest;
        body["metadata"] = metadata;
        let made = self.send("POST", path, &body).await;
        made["metadata"]["uid"].as_str().unwrap().to_owned()
    }

    async fn foreground(&self, path: &str) {
        let options = json!({ "propagationPolicy": "Foreground" });
        self.send("DELETE", path, &options).await;
    }

    /// Returns the number of requests that the server has answered, without this one.
    async fn answered(&self) -> u64 {
        let request = http::Request::get("/metrics").body(Vec::new()).unwrap();
        let text = self.0.request_text(request).await.unwrap();
        let counts = text
            .lines()
            .filter(|line| line.starts_with("apiserver_request_total"));
        counts
            .filter_map(|line| line.rsplit(' ').next()?.parse::<u64>().ok())
            .sum()
    }
}

fn owner(kind: &str, name: &str, uid: &str) -> Value {
    json!({ "apiVersion": "v1", "kind": kind, "name": name, "uid": uid, "blockOwnerDeletion": true })
}

const MAPS: &str = "/api/v1/namespaces/odd/configmaps";

/// Creates a ring. If `held`, it cannot be deleted because of a finalizer that nobody removes.
async fn ring(api: &Api<'_>, names: [&str; 3], held: bool) {
    let mut uids = Vec::new();
    for name in names {
        uids.push(api.make(MAPS, json!({ "name": name }), json!({})).await);
    }
    for at in 0..3 {
        let before = (at + 2) % 3;
        let mut metadata =
            json!({ "ownerReferences": [owner("ConfigMap", names[before], &uids[before])] });
        if held {
            metadata["finalizers"] = json!(["x.io/held"]);
        }
        let path = format!("{MAPS}/{}", names[at]);
        api.send("PATCH", &path, &json!({ "metadata": metadata }))
            .await;
    }
}

async fn make_odd_objects(api: &Api<'_>) {
    api.make("/api/v1/namespaces", json!({ "name": "odd" }), json!({}))
        .await;
    // Rings: one that can be deleted, one that cannot, and one that nobody deletes.
    ring(api, ["a", "b", "c"], false).await;
    ring(api, ["d", "e", "f"], true).await;
    ring(api, ["g", "h", "i"], false).await;
    api.foreground(&format!("{MAPS}/a")).await;
    api.foreground(&format!("{MAPS}/d")).await;
    // Owners that are missing, of an unknown kind, with another uid, or impossible.
    let missing = json!({ "name": "missing", "ownerReferences": [owner("Secret", "x", "1")],
        "finalizers": ["x.io/held"] });
    api.make(MAPS, missing, json!({})).await;
    for n in 0..5 {
        let unknown = json!({ "name": format!("unknown-{n}"),
            "ownerReferences": [{ "apiVersion": "y.io/v1", "kind": "Nonsense", "name": "x",
                "uid": "2" }] });
        api.make(MAPS, unknown, json!({})).await;
    }
    let other = json!({ "name": "other", "ownerReferences": [owner("ConfigMap", "g", "3")],
        "finalizers": ["x.io/held"] });
    api.make(MAPS, other, json!({})).await;
    let cluster = json!({ "name": "cluster", "ownerReferences": [owner("ConfigMap", "g", "4")] });
    api.make(
        "/apis/rbac.authorization.k8s.io/v1/clusterroles",
        cluster,
        json!({ "rules": [] }),
    )
    .await;
    // An owner that waits for a dependent that stays.
    let uid = api.make(MAPS, json!({ "name": "waits" }), json!({})).await;
    let held = json!({ "name": "waits-held", "finalizers": ["x.io/held"],
        "ownerReferences": [owner("ConfigMap", "waits", &uid)] });
    api.make(MAPS, held, json!({})).await;
    api.foreground(&format!("{MAPS}/waits")).await;
    // Storage: claims without a class, volume or pod, and pods without their claims.
    let claim = json!({ "spec": { "accessModes": ["ReadWriteOnce"], "storageClassName": "nothing",
        "volumeName": "nowhere", "resources": { "requests": { "storage": "1Gi" } } } });
    let claims = "/api/v1/namespaces/odd/persistentvolumeclaims";
    api.make(claims, json!({ "name": "claim" }), claim).await;
    let volume = json!({ "spec": { "capacity": { "storage": "1Gi" }, "accessModes": ["ReadWriteOnce"],
        "claimRef": { "namespace": "odd", "name": "claim", "uid": "5" },
        "hostPath": { "path": "/tmp" }, "persistentVolumeReclaimPolicy": "Retain" } });
    api.make(
        "/api/v1/persistentvolumes",
        json!({ "name": "volume" }),
        volume,
    )
    .await;
    let pod = json!({ "spec": { "containers": [{ "name": "c", "image": "i" }],
        "volumes": [{ "name": "v", "persistentVolumeClaim": { "claimName": "absent" } }] } });
    api.make("/api/v1/namespaces/odd/pods", json!({ "name": "pod" }), pod)
        .await;
    // A kind that existed for a moment.
    let names = json!({ "plural": "things", "singular": "thing", "kind": "Thing", "listKind": "ThingList" });
    let schema = json!({ "openAPIV3Schema": { "type": "object" } });
    let definition = json!({ "spec": { "group": "x.io", "scope": "Namespaced", "names": names,
        "versions": [{ "name": "v1", "served": true, "storage": true, "schema": schema }] } });
    let definitions = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
    api.make(definitions, json!({ "name": "things.x.io" }), definition)
        .await;
    // Namespaces that cannot be deleted: because of their content, and because of their finalizers.
    for (name, finalizers) in [("content", json!([])), ("finalizers", json!(["x.io/held"]))] {
        let metadata = json!({ "name": name, "finalizers": finalizers });
        api.make("/api/v1/namespaces", metadata, json!({})).await;
        let held = json!({ "name": "held", "finalizers": ["x.io/held"] });
        if name == "content" {
            api.make(
                &format!("/api/v1/namespaces/{name}/secrets"),
                held,
                json!({}),
            )
            .await;
        }
        api.send("DELETE", &format!("/api/v1/namespaces/{name}"), &json!({}))
            .await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn idle_server_with_odd_objects_sends_itself_no_requests() {
    let server = Running::start(embedded()).await;
    let api = Api(&server.client);
    make_odd_objects(&api).await;
    let maps: kube::Api<k8s_openapi::api::core::v1::ConfigMap> =
        kube::Api::namespaced(server.client.clone(), "odd");
    until("the ring without finalizers is gone", async || {
        let mut gone = 0;
        for name in ["a", "b", "c"] {
            gone += usize::from(maps.get_opt(name).await.unwrap().is_none());
        }
        gone == 3
    })
    .await;
    let definition = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/things.x.io";
    api.send("DELETE", definition, &json!({})).await;

    // The server is idle if only the query itself is counted.
    let mut before = api.answered().await;
    let mut seconds = 0;
    let mut quiet = 0;
    while quiet < SETTLED {
        assert!(seconds < SETTLED_WITHIN, "not settled: {before} requests");
        tokio::time::sleep(Duration::from_secs(1)).await;
        let now = api.answered().await;
        quiet = if now - before == 1 { quiet + 1 } else { 0 };
        (before, seconds) = (now, seconds + 1);
    }
    tokio::time::sleep(QUIET).await;
    let sent = api.answered().await - before - 1;
    assert_eq!(sent, 0, "requests in {QUIET:?} after {seconds} s");

    // The server still reacts to changes: the kind of an owner appears, and that owner does not exist.
    let names = json!({ "plural": "nonsenses", "singular": "nonsense", "kind": "Nonsense",
        "listKind": "NonsenseList" });
    let schema = json!({ "openAPIV3Schema": { "type": "object" } });
    let definition = json!({ "spec": { "group": "y.io", "scope": "Namespaced", "names": names,
        "versions": [{ "name": "v1", "served": true, "storage": true, "schema": schema }] } });
    let definitions = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
    let metadata = json!({ "name": "nonsenses.y.io" });
    api.make(definitions, metadata, definition).await;
    until("the dependents of the new kind are gone", async || {
        maps.get_opt("unknown-0").await.unwrap().is_none()
    })
    .await;
    assert!(maps.get_opt("waits").await.unwrap().is_some());
    server.stop().await;
}
