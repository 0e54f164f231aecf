//! Deletion: finalizers, grace, namespaces, collections.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::support::Server;
use crate::{LEASES, MAPS, create, is, map};

/// Waits until a path returns 404.
async fn gone(server: &Server, path: &str) {
    let end = Instant::now() + Duration::from_secs(20);
    while server.call("GET", path, None).await.status != 404 {
        assert!(Instant::now() < end, "{path} stays");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test]
async fn deleting_a_namespace_deletes_its_content() {
    let server = Server::start().await;
    create(
        &server,
        "/api/v1/namespaces",
        json!({"metadata": {"name": "n"}}),
    )
    .await;
    let maps = "/api/v1/namespaces/n/configmaps";
    create(&server, maps, map("a", "1")).await;
    create(
        &server,
        "/apis/coordination.k8s.io/v1/namespaces/n/leases",
        json!({"metadata": {"name": "l"}}),
    )
    .await;
    let mut held = map("held", "1");
    held["metadata"]["finalizers"] = json!(["x.io/hold"]);
    create(&server, maps, held).await;

    let deleted = server
        .call("DELETE", "/api/v1/namespaces/n", None)
        .await
        .json();
    assert_eq!(deleted["status"]["phase"], "Terminating");
    assert_eq!(deleted["spec"]["finalizers"], json!(["kubernetes"]));
    gone(&server, &format!("{maps}/a")).await;
    gone(
        &server,
        "/apis/coordination.k8s.io/v1/namespaces/n/leases/l",
    )
    .await;
    let refused = server.call("POST", maps, Some(map("late", "1"))).await;
    is(&refused, 403, "Forbidden");
    assert_eq!(
        refused.json()["details"]["causes"][0]["reason"],
        "NamespaceTerminating"
    );
    let put = server
        .call(
            "PUT",
            "/apis/coordination.k8s.io/v1/namespaces/n/leases/late",
            Some(json!({"metadata": {"name": "late"}})),
        )
        .await;
    is(&put, 403, "Forbidden");
    assert_eq!(
        server
            .call("GET", "/api/v1/namespaces/n", None)
            .await
            .status,
        200
    );

    let release = json!({"metadata": {"finalizers": null}});
    server
        .call("PATCH", &format!("{maps}/held"), Some(release))
        .await;
    gone(&server, "/api/v1/namespaces/n").await;
    create(
        &server,
        "/api/v1/namespaces",
        json!({"metadata": {"name": "n"}}),
    )
    .await;
    let list = server.call("GET", maps, None).await.json();
    assert_eq!(list["items"], json!([]));
}

#[tokio::test]
async fn a_namespace_can_be_finalized_by_hand_and_by_a_new_server() {
    let server = Server::start().await;
    create(
        &server,
        "/api/v1/namespaces",
        json!({"metadata": {"name": "n"}}),
    )
    .await;
    let maps = "/api/v1/namespaces/n/configmaps";
    let mut held = map("held", "1");
    held["metadata"]["finalizers"] = json!(["x.io/hold"]);
    create(&server, maps, held).await;
    server.call("DELETE", "/api/v1/namespaces/n", None).await;
    let mut namespace = server
        .call("GET", "/api/v1/namespaces/n", None)
        .await
        .json();
    namespace["spec"]["finalizers"] = json!([]);
    // A write of the main resource keeps the finalizers; only the subresource removes them.
    let main = server
        .call("PUT", "/api/v1/namespaces/n", Some(namespace.clone()))
        .await
        .json();
    assert_eq!(main["spec"]["finalizers"], json!(["kubernetes"]));
    let done = server
        .call("PUT", "/api/v1/namespaces/n/finalize", Some(namespace))
        .await;
    assert_eq!(done.status, 200, "{}", done.json());
    gone(&server, "/api/v1/namespaces/n").await;
}

#[tokio::test]
async fn interrupted_purge_resumes_at_the_next_start() {
    let first = Server::start().await;
    create(
        &first,
        "/api/v1/namespaces",
        json!({"metadata": {"name": "n"}}),
    )
    .await;
    let key = |resource: &str, namespace: &str, name: &str| tenure_apiserver::store::Key {
        resource: resource.into(),
        namespace: namespace.into(),
        name: name.into(),
    };
    // The state after a crash between the mark and the purge.
    let stored = first
        .store
        .get(&key("/namespaces", "", "n"))
        .expect("there");
    let mut value: Value = serde_json::from_slice(&stored.json).expect("JSON");
    value["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
    let expected = tenure_apiserver::store::Expected::Revision(stored.revision);
    let change = tenure_apiserver::store::Change::Put(value.into());
    let write = tenure_apiserver::store::Write::new(stored.key.clone(), expected, change);
    create(&first, "/api/v1/namespaces/n/configmaps", map("a", "1")).await;
    first.store.write(write).await.expect("write");
    let second = Server::start_on(std::sync::Arc::clone(&first.store)).await;
    gone(&second, "/api/v1/namespaces/n").await;
    assert!(second.store.get(&key("/configmaps", "n", "a")).is_none());
}

#[tokio::test]
async fn permanent_namespaces_stay() {
    let server = Server::start().await;
    for name in ["default", "kube-system", "kube-public", "kube-node-lease"] {
        let path = format!("/api/v1/namespaces/{name}");
        assert_eq!(server.call("GET", &path, None).await.status, 200);
        is(&server.call("DELETE", &path, None).await, 403, "Forbidden");
    }
}

#[tokio::test]
async fn pods_are_removed_after_their_grace_period() {
    let server = Server::start().await;
    let pods = "/api/v1/namespaces/default/pods";
    let pod = |name: &str, node: &str| {
        json!({"metadata": {"name": name}, "spec": {"nodeName": node,
            "containers": [{"name": "c", "image": "i"}]}})
    };
    create(&server, pods, pod("nowhere", "")).await;
    let deleted = server
        .call("DELETE", &format!("{pods}/nowhere"), None)
        .await
        .json();
    assert_eq!(deleted["kind"], "Pod");
    gone(&server, &format!("{pods}/nowhere")).await;

    create(&server, pods, pod("running", "node")).await;
    let path = format!("{pods}/running");
    let marked = server.call("DELETE", &path, None).await.json();
    assert_eq!(marked["metadata"]["deletionGracePeriodSeconds"], 30);
    assert_eq!(marked["metadata"]["generation"], 2);
    let again = server.call("DELETE", &path, None).await.json();
    assert_eq!(
        again["metadata"]["resourceVersion"],
        marked["metadata"]["resourceVersion"]
    );
    let sooner = server
        .call("DELETE", &format!("{path}?gracePeriodSeconds=5"), None)
        .await
        .json();
    assert_eq!(sooner["metadata"]["deletionGracePeriodSeconds"], 5);
    let later = server
        .call("DELETE", &format!("{path}?gracePeriodSeconds=60"), None)
        .await
        .json();
    assert_eq!(later["metadata"]["deletionGracePeriodSeconds"], 5);
    let now = json!({"gracePeriodSeconds": 0});
    assert_eq!(server.call("DELETE", &path, Some(now)).await.status, 200);
    gone(&server, &path).await;
}

#[tokio::test]
async fn propagation_policy_sets_finalizers_for_a_collector() {
    let server = Server::start().await;
    create(&server, MAPS, map("a", "1")).await;
    let foreground = json!({"propagationPolicy": "Foreground"});
    let held = server
        .call("DELETE", &format!("{MAPS}/a"), Some(foreground))
        .await
        .json();
    assert_eq!(
        held["metadata"]["finalizers"],
        json!(["foregroundDeletion"])
    );
    let background = json!({"propagationPolicy": "Background"});
    let done = server
        .call("DELETE", &format!("{MAPS}/a"), Some(background))
        .await;
    assert_eq!(done.status, 200);
    gone(&server, &format!("{MAPS}/a")).await;
}

#[tokio::test]
async fn collections_are_deleted_by_selection() {
    let server = Server::start().await;
    for (name, label) in [("a", "1"), ("b", "2"), ("c", "1")] {
        let body = json!({"metadata": {"name": name, "labels": {"x": label}}});
        create(&server, LEASES, body).await;
    }
    let dry = server
        .call("DELETE", &format!("{LEASES}?dryRun=All"), None)
        .await
        .json();
    assert_eq!(dry["items"].as_array().map(Vec::len), Some(3));
    server
        .call("DELETE", &format!("{LEASES}?labelSelector=x%3D1"), None)
        .await;
    let left = server.call("GET", LEASES, None).await.json();
    assert_eq!(left["items"].as_array().map(Vec::len), Some(1));
    assert_eq!(left["items"][0]["metadata"]["name"], "b");
    is(
        &server.call("DELETE", "/api/v1/configmaps", None).await,
        405,
        "MethodNotAllowed",
    );
}
