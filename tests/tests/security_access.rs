//! Escalation attempts against `tenure server` as a process: labels of aggregated roles, fences, subresources, and
//! watches whose account is deleted.

use std::time::Duration;

use http_body_util::BodyExt as _;
use serde_json::{Value, json};
use tenure_tests::attack::client::{Client, JSON, JSON_PATCH, MERGE};
use tenure_tests::attack::server::{AttackedServer, rule};
use tenure_tests::attack::{MAPS, RBAC};

/// A watch ends within ten seconds after its right; the rest is for a busy machine.
const SOON: Duration = Duration::from_secs(60);
const SECRETS: &str = "/api/v1/namespaces/default/secrets";

fn start() -> AttackedServer {
    let users = ["mallory", "bob"].map(str::to_owned);
    AttackedServer::start(&users, &["--store=memory"])
}

async fn patch(client: &Client, path: &str, kind: &str, body: &Value) -> (u16, Value) {
    let method = if kind == JSON { "PUT" } else { "PATCH" };
    let headers = [("content-type", kind)];
    let done = client
        .send_with(method, path, &headers, body)
        .await
        .unwrap();
    (done.status, done.json())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn security_label_of_an_aggregated_role_does_not_escalate() {
    let server = start();
    let verbs = ["get", "list", "create", "update", "patch"];
    let roles = rule("rbac.authorization.k8s.io", "clusterroles", &verbs);
    let own = json!([roles, rule("", "pods", &["get"])]);
    server.allow("mallory", "writer", &own).await;
    server.bind("bob", "view").await;
    let (mallory, bob) = (server.client("mallory"), server.client("bob"));
    let admin = format!("{RBAC}/clusterroles/cluster-admin");
    let labels = json!({ "rbac.authorization.k8s.io/aggregate-to-view": "true" });
    let mut whole = server
        .admin()
        .send("GET", &admin, &Value::Null)
        .await
        .unwrap()
        .json();
    whole["metadata"]["labels"] = labels.clone();
    let stated = json!({ "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole",
        "metadata": { "name": "cluster-admin", "labels": labels } });
    let applied = format!("{admin}?fieldManager=t&force=true");
    let attempts = [
        (&admin, MERGE, json!({ "metadata": { "labels": labels } })),
        (
            &admin,
            JSON_PATCH,
            json!([{ "op": "add", "path": "/metadata/labels", "value": labels }]),
        ),
        (
            &admin,
            "application/strategic-merge-patch+json",
            json!({ "metadata": { "labels": labels } }),
        ),
        (&admin, JSON, whole),
        (&applied, "application/apply-patch+yaml", stated),
    ];
    for (path, kind, body) in attempts {
        let (status, answer) = patch(&mallory, path, kind, &body).await;
        assert_eq!(status, 403, "{kind}: {answer}");
    }
    // A new role with the label, and the removal of the restriction from an aggregated role, need the same rights.
    let made = json!({ "metadata": { "name": "m", "labels": labels },
        "rules": [rule("", "secrets", &["get", "list"])] });
    let created = mallory
        .send("POST", &format!("{RBAC}/clusterroles"), &made)
        .await
        .unwrap();
    assert_eq!(created.status, 403, "{}", created.json());
    let everything = json!({ "aggregationRule": { "clusterRoleSelectors": [{ "matchExpressions":
        [{ "key": "x", "operator": "DoesNotExist" }] }] } });
    let view = format!("{RBAC}/clusterroles/view");
    let (status, answer) = patch(&mallory, &view, MERGE, &everything).await;
    assert_eq!(status, 403, "{answer}");
    let read = bob.send("GET", SECRETS, &Value::Null).await.unwrap();
    assert_eq!(read.status, 403, "{}", read.json());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn security_fence_does_not_read_a_lease_of_another_namespace() {
    let server = start();
    let namespace = json!({ "metadata": { "name": "theirs" } });
    server.create("/api/v1/namespaces", &namespace).await;
    let leases = "/apis/coordination.k8s.io/v1/namespaces/theirs/leases";
    let held = json!({ "metadata": { "name": "l" },
        "spec": { "holderIdentity": "the-holder", "leaseDurationSeconds": 15 } });
    let held = server.create(leases, &held).await;
    let token = held["metadata"]["resourceVersion"].as_str().unwrap();
    let rules = json!([rule(
        "",
        "configmaps",
        &["create", "update", "patch", "delete"]
    )]);
    server.allow("mallory", "maps", &rules).await;
    server.fill(1, 1).await;
    let mallory = server.client("mallory");
    let one = format!("{MAPS}/m-0?dryRun=All");
    let new = format!("{MAPS}?dryRun=All");
    let map = json!({ "metadata": { "name": "m-0" }, "data": { "k": "2" } });
    for (method, path) in [
        ("POST", &new),
        ("PUT", &one),
        ("PATCH", &one),
        ("DELETE", &one),
    ] {
        for holder in ["guess", "the-holder"] {
            for token in ["1", token] {
                let mut answers = Vec::new();
                for lease in ["l", "x"] {
                    let fence = format!("theirs/{lease}; holder={holder}; token={token}");
                    let kind = if method == "PATCH" { MERGE } else { JSON };
                    let headers = [("tenure-fence", fence.as_str()), ("content-type", kind)];
                    let body = if method == "DELETE" {
                        json!({})
                    } else {
                        map.clone()
                    };
                    let answer = mallory
                        .send_with(method, path, &headers, &body)
                        .await
                        .unwrap();
                    assert_eq!(answer.status, 409, "{method} {fence}: {}", answer.json());
                    let text = answer.json().to_string();
                    answers.push(text.replace(&format!("theirs/{lease}"), "LEASE"));
                }
                assert_eq!(
                    answers[0], answers[1],
                    "{method}: the answer shows whether the Lease exists"
                );
                assert!(!answers[0].contains("is held by"), "{}", answers[0]);
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn security_subresources_do_not_change_labels() {
    let server = start();
    let pods = "/api/v1/namespaces/default/pods";
    let pod = json!({ "metadata": { "name": "p", "labels": { "app": "a" } },
        "spec": { "containers": [{ "name": "c", "image": "i" }] } });
    server.create(pods, &pod).await;
    let rules = json!([
        rule("", "pods/status", &["get", "update", "patch"]),
        rule("", "pods/ephemeralcontainers", &["get", "update", "patch"]),
        rule("", "pods", &["get"]),
    ]);
    server.allow("mallory", "status", &rules).await;
    let mallory = server.client("mallory");
    let one = format!("{pods}/p");
    let read = async || {
        mallory
            .send("GET", &one, &Value::Null)
            .await
            .unwrap()
            .json()
    };
    let before = read().await;
    let metadata = json!({ "labels": { "app": "b" }, "annotations": { "a": "b" },
        "finalizers": ["x.io/f"],
        "ownerReferences": [{ "apiVersion": "v1", "kind": "Pod", "name": "o", "uid": "1" }] });
    for part in ["status", "ephemeralcontainers"] {
        let path = format!("{one}/{part}");
        let change = json!({ "metadata": metadata, "status": { "message": "m" } });
        let (status, answer) = patch(&mallory, &path, MERGE, &change).await;
        assert_eq!(status, 200, "{part}: {answer}");
        let operations = json!([{ "op": "replace", "path": "/metadata/labels/app", "value": "b" }]);
        let (status, answer) = patch(&mallory, &path, JSON_PATCH, &operations).await;
        assert_eq!(status, 200, "{part}: {answer}");
        let mut whole = read().await;
        whole["metadata"]["labels"] = json!({ "app": "b" });
        let (status, answer) = patch(&mallory, &path, JSON, &whole).await;
        assert_eq!(status, 200, "{part}: {answer}");
        let after = read().await;
        for member in ["labels", "finalizers", "ownerReferences"] {
            let (was, is) = (&before["metadata"][member], &after["metadata"][member]);
            assert_eq!(was, is, "{part} {member}");
        }
    }
    // The object itself stays out of reach.
    let change = json!({ "metadata": { "labels": { "app": "b" } } });
    assert_eq!(patch(&mallory, &one, MERGE, &change).await.0, 403);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn security_watch_ends_after_its_account_is_deleted() {
    let server = start();
    let accounts = "/api/v1/namespaces/default/serviceaccounts";
    server
        .create(accounts, &json!({ "metadata": { "name": "app" } }))
        .await;
    let account = "system:serviceaccount:default:app";
    let binding = json!({ "metadata": { "name": "app" },
        "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "view" },
        "subjects": [{ "kind": "ServiceAccount", "name": "app", "namespace": "default" }] });
    server
        .create(&format!("{RBAC}/clusterrolebindings"), &binding)
        .await;
    let issued = server
        .create(&format!("{accounts}/app/token"), &json!({ "spec": {} }))
        .await;
    let app = server.client_with(issued["status"]["token"].as_str().unwrap());
    let path = format!("{MAPS}?watch=true");
    let (status, mut ended) = app.watch(&path).await.unwrap();
    assert_eq!(status, 200, "{account}");
    let (status, mut other) = server.admin().watch(&path).await.unwrap();
    assert_eq!(status, 200);
    let path = format!("{accounts}/app");
    let gone = server.admin().send("DELETE", &path, &Value::Null).await;
    assert_eq!(gone.unwrap().status, 200);
    let end = async { while ended.frame().await.is_some_and(|frame| frame.is_ok()) {} };
    tokio::time::timeout(SOON, end)
        .await
        .expect("the watch ends");
    let refused = app.send("GET", MAPS, &Value::Null).await.unwrap();
    assert_eq!(refused.status, 401, "{}", refused.json());
    // Events after the deletion are sent only to watchers that still have permission.
    let secret = json!({ "metadata": { "name": "later" } });
    server.create(MAPS, &secret).await;
    let seen = async {
        let mut text = String::new();
        while !text.contains("\"later\"") {
            let frame = other.frame().await.expect("the stream goes on").unwrap();
            let data = frame.into_data().unwrap_or_default();
            text.push_str(&String::from_utf8_lossy(&data));
        }
    };
    tokio::time::timeout(SOON, seen).await.expect("an event");
}
