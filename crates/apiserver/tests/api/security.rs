//! Operations that users cannot perform with any request.

use serde_json::{Value, json};

use crate::support::{Answer, Server, request};
use crate::{LEASES, MAPS, create, map};

const RBAC: &str = "/apis/rbac.authorization.k8s.io/v1";
const MERGE: (&str, &str) = ("content-type", "application/merge-patch+json");
const JSON: (&str, &str) = ("content-type", "application/json");

/// Sends a request as one of the users of the test server.
async fn send_as(
    server: &Server,
    user: &str,
    (method, path): (&str, &str),
    headers: &[(&str, &str)],
    body: &Value,
) -> Answer {
    let bearer = format!("Bearer {user}token");
    let mut all = vec![("authorization", bearer.as_str())];
    all.extend_from_slice(headers);
    let body = body.to_string().into_bytes();
    Answer::of(request(server.address, method, path, &all, body).await).await
}

/// Grants a user a permission in all namespaces.
async fn allow(server: &Server, user: &str, name: &str, rules: &Value) {
    let role = json!({ "metadata": { "name": name }, "rules": rules });
    create(server, &format!("{RBAC}/clusterroles"), role).await;
    bind(server, user, name).await;
}

async fn bind(server: &Server, user: &str, role: &str) {
    let binding = json!({ "metadata": { "name": format!("{user}-{role}") },
        "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role },
        "subjects": [{ "apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": user }] });
    create(server, &format!("{RBAC}/clusterrolebindings"), binding).await;
}

fn rule(group: &str, resource: &str, verbs: &[&str]) -> Value {
    json!({ "apiGroups": [group], "resources": [resource], "verbs": verbs })
}

#[tokio::test]
async fn aggregation_label_needs_every_permission_of_the_role() {
    let server = Server::start().await;
    let verbs = ["get", "list", "create", "update", "patch"];
    let write = rule("rbac.authorization.k8s.io", "clusterroles", &verbs);
    allow(
        &server,
        "alice",
        "writer",
        &json!([write, rule("", "pods", &["get"])]),
    )
    .await;
    bind(&server, "bob", "view").await;
    let secrets = "/api/v1/namespaces/default/secrets";
    let reads = async || {
        send_as(&server, "bob", ("GET", secrets), &[], &Value::Null)
            .await
            .status
    };
    assert_eq!(reads().await, 403);

    let label = "rbac.authorization.k8s.io/aggregate-to-view";
    let admin = format!("{RBAC}/clusterroles/cluster-admin");
    let patch = json!({ "metadata": { "labels": { label: "true" } } });
    let done = send_as(&server, "alice", ("PATCH", &admin), &[MERGE], &patch).await;
    assert_eq!(done.status, 403, "{}", done.json());
    let operations = json!([{ "op": "add", "path": "/metadata/labels",
        "value": { label: "true" } }]);
    let kind = ("content-type", "application/json-patch+json");
    let done = send_as(&server, "alice", ("PATCH", &admin), &[kind], &operations).await;
    assert_eq!(done.status, 403, "{}", done.json());
    let mut whole = server.call("GET", &admin, None).await.json();
    whole["metadata"]["labels"] = json!({ label: "true" });
    let done = send_as(&server, "alice", ("PUT", &admin), &[JSON], &whole).await;
    assert_eq!(done.status, 403, "{}", done.json());
    let apply = ("content-type", "application/apply-patch+yaml");
    let stated = json!({ "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole",
        "metadata": { "name": "cluster-admin", "labels": { label: "true" } } });
    let path = format!("{admin}?fieldManager=t&force=true");
    let done = send_as(&server, "alice", ("PATCH", &path), &[apply], &stated).await;
    assert_eq!(done.status, 403, "{}", done.json());
    assert_eq!(reads().await, 403);

    // A user may label a role for aggregation if she has all its permissions.
    let small = json!({ "metadata": { "name": "small" }, "rules": [rule("", "pods", &["get"])] });
    create(&server, &format!("{RBAC}/clusterroles"), small).await;
    let path = format!("{RBAC}/clusterroles/small");
    let done = send_as(&server, "alice", ("PATCH", &path), &[MERGE], &patch).await;
    assert_eq!(done.status, 200, "{}", done.json());
    // Objects that grant nothing need no check.
    let note = json!({ "metadata": { "annotations": { "note": "x" } } });
    let done = send_as(&server, "alice", ("PATCH", &admin), &[MERGE], &note).await;
    assert_eq!(done.status, 200, "{}", done.json());
}

#[tokio::test]
async fn fence_on_an_unreadable_lease_gets_the_same_response_as_on_no_lease() {
    let server = Server::start().await;
    create(
        &server,
        "/api/v1/namespaces",
        json!({ "metadata": { "name": "theirs" } }),
    )
    .await;
    let theirs = "/apis/coordination.k8s.io/v1/namespaces/theirs/leases";
    let held = json!({ "metadata": { "name": "l" },
        "spec": { "holderIdentity": "the-holder", "leaseDurationSeconds": 15 } });
    let token = create(&server, theirs, held).await.version();
    allow(
        &server,
        "alice",
        "maps",
        &json!([rule("", "configmaps", &["create", "patch", "delete"])]),
    )
    .await;
    create(&server, MAPS, map("there", "1")).await;

    let ask = async |method: &str, path: &str, fence: &str| {
        let kind = if method == "PATCH" { MERGE } else { JSON };
        let headers = [("tenure-fence", fence), kind];
        let body = if method == "DELETE" {
            json!({})
        } else {
            map("there", "2")
        };
        send_as(&server, "alice", (method, path), &headers, &body).await
    };
    let one = format!("{MAPS}/there?dryRun=All");
    let new = format!("{MAPS}?dryRun=All");
    for (method, path) in [("POST", &new), ("PATCH", &one), ("DELETE", &one)] {
        for who in ["guess", "the-holder"] {
            let mut answers = Vec::new();
            for lease in ["l", "x"] {
                let fence = format!("theirs/{lease}; holder={who}; token={token}");
                let answer = ask(method, path, &fence).await;
                assert_eq!(answer.status, 409, "{method} {fence}");
                let text = answer.json().to_string();
                assert!(!text.contains("is held by"), "{text}");
                answers.push(text.replace(&format!("theirs/{lease}"), "LEASE"));
            }
            assert_eq!(answers[0], answers[1], "{method} {path} {who}");
        }
    }
    // A user who may read the Lease gets a more detailed error, and the current holder can write.
    allow(
        &server,
        "alice",
        "leases",
        &json!([rule("coordination.k8s.io", "leases", &["get"])]),
    )
    .await;
    let stale = ask(
        "PATCH",
        &one,
        &format!("theirs/l; holder=guess; token={token}"),
    )
    .await;
    assert!(
        stale.json().to_string().contains("the-holder"),
        "{}",
        stale.json()
    );
    let good = ask(
        "PATCH",
        &one,
        &format!("theirs/l; holder=the-holder; token={token}"),
    )
    .await;
    assert_eq!(good.status, 200, "{}", good.json());
}

#[tokio::test]
async fn repeated_fence_header_is_rejected() {
    let server = Server::start().await;
    let held = json!({ "metadata": { "name": "l" },
        "spec": { "holderIdentity": "a", "leaseDurationSeconds": 15 } });
    let token = create(&server, LEASES, held).await.version();
    let good = format!("default/l; holder=a; token={token}");
    let stale = "default/l; holder=a; token=1".to_owned();
    let body = || map("m", "1").to_string().into_bytes();
    for pair in [[&good, &stale], [&stale, &good], [&good, &good]] {
        let headers = [
            ("tenure-fence", pair[0].as_str()),
            ("tenure-fence", pair[1]),
            JSON,
        ];
        let answer = server.send("POST", MAPS, &headers, body()).await;
        assert_eq!(answer.status, 400, "{pair:?}: {}", answer.json());
    }
    for doubled in [
        format!("{good}; token=1"),
        format!("{stale}; token={token}"),
        format!("{good}; holder=a"),
    ] {
        let headers = [("tenure-fence", doubled.as_str()), JSON];
        let answer = server.send("POST", MAPS, &headers, body()).await;
        assert_eq!(answer.status, 400, "{doubled}: {}", answer.json());
    }
    let headers = [("tenure-fence", good.as_str()), JSON];
    assert_eq!(
        server.send("POST", MAPS, &headers, body()).await.status,
        201
    );
}

#[tokio::test]
async fn subresources_change_only_their_own_fields() {
    let server = Server::start().await;
    let pods = "/api/v1/namespaces/default/pods";
    let containers = json!([{ "name": "c", "image": "i" }]);
    let pod = json!({ "metadata": { "name": "p", "labels": { "app": "a" }, "finalizers": ["x.io/f"] },
        "spec": { "containers": containers } });
    create(&server, pods, pod).await;
    let owner = json!({ "apiVersion": "v1", "kind": "Pod", "name": "o", "uid": "1" });
    let metadata = json!({ "labels": { "app": "b", "more": "x" }, "finalizers": null,
        "ownerReferences": [owner] });
    let debug = json!([{ "name": "d", "image": "i" }]);
    let mut changes = vec![
        (
            "ephemeralcontainers",
            json!({ "metadata": metadata, "status": { "phase": "Failed" },
            "spec": { "ephemeralContainers": debug, "nodeName": "n" } }),
        ),
        (
            "status",
            json!({ "metadata": metadata, "status": { "message": "m" },
            "spec": { "nodeName": "n" } }),
        ),
    ];
    changes[0].1["metadata"]["annotations"] = json!({ "a": "b" });
    let read = async || server.call("GET", &format!("{pods}/p"), None).await.json();
    for (part, change) in changes {
        let before = read().await;
        let path = format!("{pods}/p/{part}");
        let done = server.call("PATCH", &path, Some(change)).await;
        assert_eq!(done.status, 200, "{part}: {}", done.json());
        let after = read().await;
        for member in ["labels", "finalizers", "ownerReferences", "annotations"] {
            assert_eq!(
                after["metadata"][member], before["metadata"][member],
                "{part} {member}"
            );
        }
        assert_eq!(
            after["spec"]["nodeName"], before["spec"]["nodeName"],
            "{part}"
        );
        let own = if part == "status" { "status" } else { "spec" };
        let other = if part == "status" { "spec" } else { "status" };
        assert_eq!(after[other], before[other], "{part}");
        assert_ne!(after[own], before[own], "{part}");
    }
    // Ephemeral containers can be added, but not changed or removed.
    let path = format!("{pods}/p/ephemeralcontainers");
    for list in [json!([]), json!([{ "name": "d", "image": "other" }])] {
        let mut whole = read().await;
        whole["spec"]["ephemeralContainers"] = list;
        let done = server.call("PUT", &path, Some(whole)).await;
        assert_eq!(done.status, 422, "{}", done.json());
    }
    // `finalize` changes only the finalizers in the spec of a namespace.
    let namespaces = "/api/v1/namespaces";
    let made = create(&server, namespaces, json!({ "metadata": { "name": "n" } })).await;
    let mut namespace = made.json();
    namespace["metadata"]["labels"] = json!({ "pod-security.kubernetes.io/enforce": "privileged" });
    namespace["spec"]["finalizers"] = json!(["kubernetes", "x.io/f"]);
    let path = format!("{namespaces}/n/finalize");
    let done = server.call("PUT", &path, Some(namespace)).await;
    assert_eq!(done.status, 200, "{}", done.json());
    let after = server
        .call("GET", &format!("{namespaces}/n"), None)
        .await
        .json();
    assert_eq!(
        after["metadata"]["labels"],
        made.json()["metadata"]["labels"]
    );
    assert_eq!(after["spec"]["finalizers"], json!(["kubernetes", "x.io/f"]));
}

/// These lists stand for billions of combinations.
#[tokio::test]
async fn wide_role_is_refused_with_a_short_answer() {
    let server = Server::start().await;
    let write = rule("rbac.authorization.k8s.io", "roles", &["create"]);
    allow(
        &server,
        "alice",
        "writer",
        &json!([write, rule("", "pods", &["get"])]),
    )
    .await;
    let roles = format!("{RBAC}/namespaces/default/roles");
    for width in [20, 100, 1_000] {
        let list = |prefix: &str| {
            (0..width)
                .map(|n| format!("{prefix}{n}"))
                .collect::<Vec<_>>()
        };
        let role = json!({ "metadata": { "name": "wide" }, "rules": [{ "verbs": list("v"),
            "apiGroups": list("g"), "resources": list("r"), "resourceNames": list("n") }] });
        let answer = send_as(&server, "alice", ("POST", &roles), &[JSON], &role).await;
        assert_eq!(answer.status, 403);
        let message = answer.json()["message"]
            .as_str()
            .unwrap_or_default()
            .to_owned();
        assert_eq!(message.matches("APIGroups").count(), 20, "{message}");
        assert!(message.ends_with("\n... and more"), "{message}");
        assert!(answer.bytes.len() < 8_192, "{}", answer.bytes.len());
        // The administrator has all permissions.
        let path = format!("{roles}?dryRun=All");
        assert_eq!(server.call("POST", &path, Some(role)).await.status, 201);
    }
}
