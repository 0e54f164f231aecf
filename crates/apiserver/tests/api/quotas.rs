//! Quotas limit and count the objects of a namespace.

use std::time::Duration;

use futures_util::future::join_all;
use serde_json::{Value, json};

use crate::networking::cells;
use crate::support::{Answer, Server};
use crate::{MAPS, create, is, map};

const QUOTAS: &str = "/api/v1/namespaces/default/resourcequotas";
const PODS: &str = "/api/v1/namespaces/default/pods";
const SERVICES: &str = "/api/v1/namespaces/default/services";
/// Limit of the waits for a count in the background.
const PATIENCE: usize = 500;

async fn limit(server: &Server, hard: Value) -> Answer {
    let quota = json!({"metadata": {"name": "q"}, "spec": {"hard": hard}});
    create(server, QUOTAS, quota).await
}

async fn used(server: &Server) -> Value {
    let path = format!("{QUOTAS}/q");
    server.call("GET", &path, None).await.json()["status"]["used"].clone()
}

/// Waits until the quota shows this usage.
async fn expect_used(server: &Server, wanted: Value) {
    for _ in 0..PATIENCE {
        if used(server).await == wanted {
            return;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(used(server).await, wanted);
}

fn pod(name: &str, cpu: &str) -> Value {
    json!({"metadata": {"name": name}, "spec": {"containers": [{"name": "c", "image": "i",
        "resources": {"requests": {"cpu": cpu}}}]}})
}

async fn patch(server: &Server, path: &str, patch: Value) -> Answer {
    let kind = [("content-type", "application/merge-patch+json")];
    server
        .send("PATCH", path, &kind, patch.to_string().into_bytes())
        .await
}

#[tokio::test]
async fn quota_counts_existing_objects_and_refuses_the_next() {
    let server = Server::start().await;
    create(&server, MAPS, map("a", "1")).await;
    let made = limit(&server, json!({"configmaps": "2", "count/secrets": "5"})).await;
    assert_eq!(made.json()["status"], json!({}));
    expect_used(&server, json!({"configmaps": "1", "count/secrets": "0"})).await;
    create(&server, MAPS, map("b", "1")).await;
    assert_eq!(used(&server).await["configmaps"], "2");
    let refused = server.call("POST", MAPS, Some(map("c", "1"))).await;
    is(&refused, 403, "Forbidden");
    assert_eq!(
        refused.json()["message"],
        "configmaps \"c\" is forbidden: exceeded quota: q, requested: configmaps=1, used: \
         configmaps=2, limited: configmaps=2"
    );
    let row = cells(&server, QUOTAS).await;
    assert_eq!(row[..3], ["q", "configmaps: 2/2, count/secrets: 0/5", ""]);

    // A removal releases its unit before it is answered.
    server.call("DELETE", &format!("{MAPS}/a"), None).await;
    assert_eq!(used(&server).await["configmaps"], "1");
    create(&server, MAPS, map("c", "1")).await;
}

#[tokio::test]
async fn failed_and_dry_requests_use_nothing() {
    let server = Server::start().await;
    limit(&server, json!({"configmaps": "2"})).await;
    create(&server, MAPS, map("a", "1")).await;
    let again = server.call("POST", MAPS, Some(map("a", "1"))).await;
    is(&again, 409, "AlreadyExists");
    create(&server, &format!("{MAPS}?dryRun=All"), map("b", "1")).await;
    assert_eq!(used(&server).await["configmaps"], "1");
    create(&server, MAPS, map("b", "1")).await;
    let dry = server
        .call("POST", &format!("{MAPS}?dryRun=All"), Some(map("c", "1")))
        .await;
    is(&dry, 403, "Forbidden");
}

#[tokio::test]
async fn concurrent_creates_do_not_share_the_last_unit() {
    let server = Server::start().await;
    limit(&server, json!({"configmaps": "5", "count/configmaps": "7"})).await;
    let names: Vec<String> = (0..24).map(|number| format!("m{number}")).collect();
    let calls = names
        .iter()
        .map(|name| server.call("POST", MAPS, Some(map(name, "1"))));
    let codes: Vec<u16> = join_all(calls)
        .await
        .iter()
        .map(|answer| answer.status)
        .collect();
    let made = codes.iter().filter(|code| **code == 201).count();
    assert_eq!(made, 5, "{codes:?}");
    assert_eq!(
        codes.iter().filter(|code| **code == 403).count(),
        19,
        "{codes:?}"
    );
    let list = server.call("GET", MAPS, None).await.json();
    assert_eq!(list["items"].as_array().expect("list").len(), 5);
    assert_eq!(
        used(&server).await,
        json!({"configmaps": "5", "count/configmaps": "5"})
    );
    let deletions = names.iter().map(async |name| {
        server.call("DELETE", &format!("{MAPS}/{name}"), None).await;
    });
    join_all(deletions).await;
    assert_eq!(
        used(&server).await,
        json!({"configmaps": "0", "count/configmaps": "0"})
    );
}

#[tokio::test]
async fn pods_use_their_requests_until_they_end() {
    let server = Server::start().await;
    limit(&server, json!({"requests.cpu": "1", "pods": "5"})).await;
    let bare = json!({"metadata": {"name": "bare"}, "spec": {"containers": [{"name": "c", "image": "i"}]}});
    let refused = server.call("POST", PODS, Some(bare)).await;
    is(&refused, 403, "Forbidden");
    assert_eq!(
        refused.json()["message"],
        "pods \"bare\" is forbidden: failed quota: q: must specify requests.cpu for: c"
    );
    create(&server, PODS, pod("a", "600m")).await;
    is(
        &server.call("POST", PODS, Some(pod("b", "600m"))).await,
        403,
        "Forbidden",
    );
    assert_eq!(
        used(&server).await,
        json!({"requests.cpu": "600m", "pods": "1"})
    );
    let ended = patch(
        &server,
        &format!("{PODS}/a/status"),
        json!({"status": {"phase": "Succeeded"}}),
    )
    .await;
    assert_eq!(ended.status, 200, "{}", ended.json());
    assert_eq!(
        used(&server).await,
        json!({"requests.cpu": "0", "pods": "0"})
    );
    create(&server, PODS, pod("b", "600m")).await;
    let now = json!({"gracePeriodSeconds": 0});
    for name in ["a", "b"] {
        server
            .call("DELETE", &format!("{PODS}/{name}"), Some(now.clone()))
            .await;
    }
    assert_eq!(
        used(&server).await,
        json!({"requests.cpu": "0", "pods": "0"})
    );
}

#[tokio::test]
async fn update_of_a_service_is_limited_too() {
    let server = Server::start().await;
    limit(
        &server,
        json!({"services.loadbalancers": "0", "services": "1"}),
    )
    .await;
    let service = json!({"metadata": {"name": "s"}, "spec": {"ports": [{"port": 80}]}});
    create(&server, SERVICES, service).await;
    let path = format!("{SERVICES}/s");
    let changed = patch(&server, &path, json!({"spec": {"type": "LoadBalancer"}})).await;
    is(&changed, 403, "Forbidden");
    let dry = format!("{path}?dryRun=All");
    let changed = patch(&server, &dry, json!({"spec": {"type": "LoadBalancer"}})).await;
    is(&changed, 403, "Forbidden");
    let raise = json!({"spec": {"hard": {"services.loadbalancers": "1"}}});
    patch(&server, &format!("{QUOTAS}/q"), raise).await;
    let changed = patch(&server, &path, json!({"spec": {"type": "LoadBalancer"}})).await;
    assert_eq!(changed.status, 200, "{}", changed.json());
    assert_eq!(
        used(&server).await,
        json!({"services.loadbalancers": "1", "services": "1"})
    );
    patch(&server, &path, json!({"spec": {"type": "ClusterIP"}})).await;
    assert_eq!(used(&server).await["services.loadbalancers"], "0");
}

#[tokio::test]
async fn status_follows_the_hard_limits() {
    let server = Server::start().await;
    create(&server, MAPS, map("a", "1")).await;
    limit(&server, json!({"configmaps": "1"})).await;
    expect_used(&server, json!({"configmaps": "1"})).await;
    let more = json!({"spec": {"hard": {"configmaps": "9", "secrets": "1"}}});
    patch(&server, &format!("{QUOTAS}/q"), more).await;
    expect_used(&server, json!({"configmaps": "1", "secrets": "0"})).await;
    let status = server
        .call("GET", &format!("{QUOTAS}/q"), None)
        .await
        .json();
    assert_eq!(
        status["status"]["hard"],
        json!({"configmaps": "9", "secrets": "1"})
    );
    // A namespace without quotas is not limited.
    create(
        &server,
        "/api/v1/namespaces",
        json!({"metadata": {"name": "free"}}),
    )
    .await;
    create(&server, "/api/v1/namespaces/free/configmaps", map("a", "1")).await;
    let scopes = json!({"spec": {"scopes": ["BestEffort"]}});
    is(
        &patch(&server, &format!("{QUOTAS}/q"), scopes).await,
        422,
        "Invalid",
    );
}

#[tokio::test]
async fn namespace_has_a_bounded_number_of_quotas() {
    let server = Server::start().await;
    let quota = |number: usize| json!({"metadata": {"name": format!("q{number}")}, "spec": {}});
    for number in 0..100 {
        create(&server, QUOTAS, quota(number)).await;
    }
    is(
        &server.call("POST", QUOTAS, Some(quota(100))).await,
        403,
        "Forbidden",
    );
    server.call("DELETE", &format!("{QUOTAS}/q0"), None).await;
    create(&server, QUOTAS, quota(100)).await;
}

#[tokio::test]
async fn scope_limits_only_the_pods_that_it_selects() {
    let server = Server::start().await;
    let quota = json!({"metadata": {"name": "q"}, "spec": {"hard": {"pods": "0"}, "scopes": ["Terminating"]}});
    create(&server, QUOTAS, quota).await;
    create(&server, PODS, pod("a", "1")).await;
    let mut timed = pod("b", "1");
    timed["spec"]["activeDeadlineSeconds"] = json!(5);
    is(
        &server.call("POST", PODS, Some(timed)).await,
        403,
        "Forbidden",
    );
}
