//! Writes that are conditional on a lease.

use serde_json::json;

use crate::support::{Answer, Server};
use crate::{LEASES, MAPS, create, is, map};

/// A server with a Lease, the fence of its current holder, and that of the previous one.
async fn fenced() -> (Server, String, String) {
    let server = Server::start().await;
    let held = json!({"metadata": {"name": "l"},
        "spec": {"holderIdentity": "a", "leaseDurationSeconds": 15}});
    let mut lease = create(&server, LEASES, held).await.json();
    let old = lease["metadata"]["resourceVersion"].clone();
    lease["spec"]["holderIdentity"] = json!("b");
    let path = format!("{LEASES}/l");
    let lease = server.call("PUT", &path, Some(lease)).await;
    let fence = |holder: &str, token: &str| format!("default/l; holder={holder}; token={token}");
    let old = fence("a", old.as_str().expect("a version"));
    let good = fence("b", &lease.version().to_string());
    (server, good, old)
}

/// Asserts a 409 because of the token.
fn is_stale(answer: &Answer, what: &str) {
    assert_eq!(answer.status, 409, "{what}: {}", answer.json());
    let cause = &answer.json()["details"]["causes"][0];
    assert_eq!(cause["reason"], "StaleFencingToken", "{what}: {cause}");
}

#[tokio::test]
async fn every_way_to_write_is_fenced() {
    const JSON: &str = "application/json";
    const MERGE: &str = "application/merge-patch+json";
    const APPLY: &str = "application/apply-patch+yaml";
    let (server, good, old) = fenced().await;
    let web = "/apis/apps/v1/namespaces/default/deployments/web";
    let pods = "/api/v1/namespaces/default/pods";
    let containers = json!([{"name": "c", "image": "i"}]);
    let deployment = json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web"},
        "spec": {"replicas": 1, "selector": {"matchLabels": {"app": "w"}}, "template": {
            "metadata": {"labels": {"app": "w"}}, "spec": {"containers": containers}}}});
    let pod = json!({"metadata": {"name": "p"}, "spec": {"containers": containers}});
    create(&server, pods, pod).await;
    create(&server, MAPS, map("one", "1")).await;
    let scale = json!({"apiVersion": "autoscaling/v1", "kind": "Scale",
        "metadata": {"name": "web", "namespace": "default"}, "spec": {"replicas": 3}});
    let binding = json!({"metadata": {"name": "p"}, "target": {"kind": "Node", "name": "n"}});
    let eviction = json!({"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "p"},
        "deleteOptions": {"gracePeriodSeconds": 0}});
    let status = json!({"status": {"observedGeneration": 7}});
    let accounts = "/api/v1/namespaces/default/serviceaccounts";
    create(&server, accounts, json!({"metadata": {"name": "sa"}})).await;
    for (method, path, kind, body) in [
        ("PATCH", format!("{web}?fieldManager=t"), APPLY, deployment),
        ("PUT", format!("{web}/scale"), JSON, scale),
        (
            "PATCH",
            format!("{web}/scale"),
            MERGE,
            json!({"spec": {"replicas": 4}}),
        ),
        ("PATCH", format!("{web}/status"), MERGE, status),
        ("POST", format!("{pods}/p/binding"), JSON, binding),
        ("POST", format!("{pods}/p/eviction"), JSON, eviction),
        ("POST", format!("{accounts}/sa/token"), JSON, json!({})),
        ("DELETE", MAPS.to_owned(), JSON, json!({})),
        // The collection is already empty, and the response is the same.
        ("DELETE", MAPS.to_owned(), JSON, json!({})),
    ] {
        let what = format!("{method} {path}");
        let before = server.store.revision();
        let send = async |fence: &str| {
            let headers = [("tenure-fence", fence), ("content-type", kind)];
            let body = body.to_string().into_bytes();
            server.send(method, &path, &headers, body).await
        };
        is_stale(&send(&old).await, &what);
        assert_eq!(server.store.revision(), before, "{what} wrote something");
        let done = send(&good).await;
        assert!(matches!(done.status, 200 | 201), "{what}: {}", done.json());
    }
    let left = server.call("GET", MAPS, None).await.json();
    assert_eq!(left["items"], json!([]));
    let web = server.call("GET", web, None).await.json();
    assert_eq!(web["spec"]["replicas"], 4);
    assert_eq!(web["status"]["observedGeneration"], 7);
}

#[tokio::test]
async fn only_the_present_holder_writes() {
    let server = Server::start().await;
    let held = |holder: &str| json!({"metadata": {"name": "l"}, "spec": {"holderIdentity": holder, "leaseDurationSeconds": 15}});
    let first = create(&server, LEASES, held("a")).await.version();
    let fence = |holder: &str, token: u64| format!("default/l; holder={holder}; token={token}");
    let write = async |name: &str, fence: String| {
        let body = map(name, "1").to_string().into_bytes();
        let headers = [
            ("tenure-fence", fence.as_str()),
            ("content-type", "application/json"),
        ];
        server.send("POST", MAPS, &headers, body).await
    };
    assert_eq!(write("one", fence("a", first)).await.status, 201);
    is(&write("two", fence("b", first)).await, 409, "Conflict");

    // A renewal keeps the token; a new holder gets a new one.
    let mut lease = server
        .call("GET", &format!("{LEASES}/l"), None)
        .await
        .json();
    lease["spec"]["renewTime"] = json!("2026-01-02T03:04:05.000006Z");
    let lease = server
        .call("PUT", &format!("{LEASES}/l"), Some(lease))
        .await;
    assert_eq!(lease.status, 200);
    assert_eq!(write("three", fence("a", first)).await.status, 201);
    let mut lease = lease.json();
    lease["spec"]["holderIdentity"] = json!("b");
    lease["spec"]["leaseTransitions"] = json!(1);
    let second = server
        .call("PUT", &format!("{LEASES}/l"), Some(lease))
        .await
        .version();

    let stale = write("four", fence("a", first)).await;
    is(&stale, 409, "Conflict");
    let cause = &stale.json()["details"]["causes"][0];
    assert_eq!(cause["reason"], "StaleFencingToken", "{cause}");
    assert_eq!(
        server
            .call("GET", &format!("{MAPS}/four"), None)
            .await
            .status,
        404
    );
    assert_eq!(write("five", fence("b", second)).await.status, 201);

    let path = format!("{MAPS}/five");
    for method in ["PUT", "PATCH", "DELETE"] {
        let fence = fence("a", first);
        let kind = if method == "PATCH" {
            "application/merge-patch+json"
        } else {
            "application/json"
        };
        let headers = [("tenure-fence", fence.as_str()), ("content-type", kind)];
        let body = map("five", "1").to_string().into_bytes();
        let body = if method == "DELETE" { Vec::new() } else { body };
        is(
            &server.send(method, &path, &headers, body).await,
            409,
            "Conflict",
        );
    }
    // Requests that write nothing are checked as well: a dry run and a patch without changes.
    let present = server.call("GET", &path, None).await;
    for (method, query) in [
        ("PUT", ""),
        ("PUT", "?dryRun=All"),
        ("DELETE", "?dryRun=All"),
    ] {
        for (token, holder, code) in [(first, "a", 409), (second, "b", 200)] {
            let fence = fence(holder, token);
            let headers = [
                ("tenure-fence", fence.as_str()),
                ("content-type", "application/json"),
            ];
            let body = if method == "DELETE" {
                Vec::new()
            } else {
                present.bytes.to_vec()
            };
            let path = format!("{path}{query}");
            let answer = server.send(method, &path, &headers, body).await;
            assert_eq!(answer.status, code, "{method} {path}: {}", answer.json());
        }
    }
    let after = server.call("GET", &path, None).await;
    assert_eq!(after.version(), present.version(), "nothing was written");
    let fence = fence("a", first);
    let headers = [
        ("tenure-fence", fence.as_str()),
        ("content-type", "application/json"),
    ];
    let body = map("six", "1").to_string().into_bytes();
    let dry = format!("{MAPS}?dryRun=All");
    is(
        &server.send("POST", &dry, &headers, body).await,
        409,
        "Conflict",
    );
    let bad = server
        .send(
            "POST",
            MAPS,
            &[("tenure-fence", "nonsense")],
            b"{}".to_vec(),
        )
        .await;
    is(&bad, 400, "BadRequest");
}
