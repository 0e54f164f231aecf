//! Writes that are conditional on a lease.

use serde_json::json;

use crate::support::Server;
use crate::{LEASES, MAPS, create, is, map};

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

    // A renewal keeps the term, a new holder begins another.
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
    // Also where nothing would be written: a dry run, and a change that is none.
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
