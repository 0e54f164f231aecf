//! Several API servers on one etcd behave like one server.

use std::time::Duration;

use super::harness::{Etcd, Way, until};
use super::support::{Answer, Server};
use super::*;

const MAPS: &str = "/api/v1/namespaces/default/configmaps";

const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";

/// Returns the definition of a kind.
fn boats() -> Value {
    let schema = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
    json!({"metadata": {"name": "boats.example.com"}, "spec": {
        "group": "example.com", "scope": "Namespaced",
        "names": {"plural": "boats", "singular": "boat", "kind": "Boat", "listKind": "BoatList"},
        "versions": [{"name": "v1", "served": true, "storage": true,
            "schema": {"openAPIV3Schema": schema}}]}})
}

fn map(name: &str, text: &str) -> Value {
    json!({"metadata": {"name": name}, "data": {"k": text}})
}

async fn pair(etcd: &Etcd) -> [Server; 2] {
    let (one, two) = (etcd.store().await, etcd.store().await);
    let (one, two) = tokio::join!(Server::start_on(one), Server::start_on(two));
    [one, two]
}

fn ok(answer: &Answer) -> Value {
    assert!(answer.status < 300, "{}", answer.json());
    answer.json()
}

#[tokio::test(flavor = "multi_thread")]
async fn write_acknowledged_by_one_server_is_read_on_the_other() {
    let Some(etcd) = Etcd::start().await else {
        return;
    };
    let servers = pair(&etcd).await;
    for n in 0..40 {
        let (here, there) = (&servers[n % 2], &servers[(n + 1) % 2]);
        let (name, namespace) = (format!("x{n}"), format!("ns{n}"));
        let path = format!("{MAPS}/{name}");
        ok(&here.call("POST", MAPS, Some(map(&name, "1"))).await);
        // Reads, replaces with a version from the other server, patches, and patches without a change.
        let mut read = ok(&there.call("GET", &path, None).await);
        read["data"]["k"] = json!("2");
        let replaced = ok(&there.call("PUT", &path, Some(read.clone())).await);
        let again = here.call("PUT", &path, Some(read)).await;
        assert_eq!(again.status, 409, "the version must be outdated");
        let patch = json!({"data": {"k": "1"}});
        ok(&here.call("PATCH", &path, Some(patch.clone())).await);
        let back = json!({"data": {"k": "2"}});
        ok(&there.call("PATCH", &path, Some(back)).await);
        let last = ok(&here.call("PATCH", &path, Some(patch)).await);
        assert_eq!(last["data"]["k"], "1");
        assert_ne!(
            last["metadata"]["resourceVersion"],
            replaced["metadata"]["resourceVersion"]
        );
        let seen = ok(&there.call("GET", &path, None).await);
        assert_eq!(seen, last);
        let list = ok(&there.call("GET", MAPS, None).await);
        let mut items = list["items"].as_array().unwrap().iter();
        assert!(items.any(|item| item["metadata"]["name"] == name));
        // A deleted object is gone everywhere, and its name can be used again.
        ok(&here.call("DELETE", &path, None).await);
        assert_eq!(there.call("GET", &path, None).await.status, 404);
        ok(&there.call("POST", MAPS, Some(map(&name, "3"))).await);
        let exists = here.call("POST", MAPS, Some(map(&name, "4"))).await;
        assert_eq!(exists.status, 409);
        ok(&here.call("DELETE", &path, None).await);
        assert_eq!(there.call("DELETE", &path, None).await.status, 404);
        // A namespace that one server created can be used immediately at the other.
        let body = json!({"metadata": {"name": namespace}});
        ok(&here.call("POST", "/api/v1/namespaces", Some(body)).await);
        let maps = format!("/api/v1/namespaces/{namespace}/configmaps");
        ok(&there.call("POST", &maps, Some(map("y", "1"))).await);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn watch_of_one_server_delivers_writes_of_the_other() {
    let Some(etcd) = Etcd::start().await else {
        return;
    };
    let [here, there] = pair(&etcd).await;
    let made = here.call("POST", MAPS, Some(map("x", "0"))).await;
    let from = made.version();
    let mut watch = there
        .watch(&format!("{MAPS}?watch=1&resourceVersion={from}"))
        .await;
    for n in 1..=20 {
        let patch = json!({"data": {"k": n.to_string()}});
        let path = format!("{MAPS}/x");
        let made = here.call("PATCH", &path, Some(patch)).await;
        let event = watch.expect().await;
        assert_eq!(event["type"], "MODIFIED");
        assert_eq!(event["object"]["data"]["k"], n.to_string());
        let version = made.version().to_string();
        assert_eq!(event["object"]["metadata"]["resourceVersion"], version);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn deleted_definitions_and_namespaces_disappear_on_all_servers() {
    let Some(etcd) = Etcd::start().await else {
        return;
    };
    let [here, there] = pair(&etcd).await;
    ok(&here.call("POST", DEFINITIONS, Some(boats())).await);
    let boats = "/apis/example.com/v1/namespaces/default/boats";
    until("the other server serves it", async || {
        there.call("GET", boats, None).await.status == 200
    })
    .await;
    let boat = json!({"apiVersion": "example.com/v1", "kind": "Boat", "metadata": {"name": "b"}});
    ok(&there.call("POST", boats, Some(boat)).await);
    ok(&here
        .call("DELETE", &format!("{DEFINITIONS}/boats.example.com"), None)
        .await);
    until("every server has deleted it", async || {
        there.call("GET", boats, None).await.status == 404
    })
    .await;

    let body = json!({"metadata": {"name": "ends"}});
    ok(&here.call("POST", "/api/v1/namespaces", Some(body)).await);
    let maps = "/api/v1/namespaces/ends/configmaps";
    ok(&there.call("POST", maps, Some(map("x", "1"))).await);
    ok(&here.call("DELETE", "/api/v1/namespaces/ends", None).await);
    let refused = there.call("POST", maps, Some(map("y", "1"))).await;
    assert!(matches!(refused.status, 403 | 404), "{}", refused.json());
    until("every server has deleted it", async || {
        there
            .call("GET", "/api/v1/namespaces/ends", None)
            .await
            .status
            == 404
    })
    .await;
    let left = ok(&there.call("GET", maps, None).await);
    assert_eq!(left["items"], json!([]));
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_without_etcd_fail_with_an_error_that_names_it() {
    let Some(etcd) = Etcd::start().await else {
        return;
    };
    let server = Server::start_on(etcd.store().await).await;
    ok(&server.call("POST", MAPS, Some(map("x", "1"))).await);
    etcd.signal(rustix::process::Signal::STOP);
    let refused = server.call("POST", MAPS, Some(map("y", "1"))).await;
    assert!(matches!(refused.status, 503 | 504), "{}", refused.json());
    let why = refused.json()["message"].as_str().unwrap().to_owned();
    assert!(why.contains("etcd"), "{why}");
    until("it is not ready", async || {
        server.call("GET", "/readyz", None).await.status == 500
    })
    .await;
    assert_eq!(server.call("GET", "/livez", None).await.status, 200);
    let present = server.call("GET", &format!("{MAPS}/x"), None).await;
    assert_eq!(present.status, 503, "a current read must fail without etcd");
    let past = format!("{MAPS}/x?resourceVersion=0");
    let past = server.call("GET", &past, None).await;
    assert_eq!(past.status, 200, "a stale read must succeed without etcd");
    etcd.signal(rustix::process::Signal::CONT);
    until("it is ready", async || {
        server.call("GET", "/readyz", None).await.status == 200
    })
    .await;
    ok(&server.call("GET", &format!("{MAPS}/x"), None).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn object_too_large_for_etcd_is_a_permanent_error() {
    let Some(etcd) = Etcd::start().await else {
        return;
    };
    let server = Server::start_on(etcd.store().await).await;
    let leases = "/apis/coordination.k8s.io/v1/namespaces/default/leases";
    // One size exceeds the request limit of etcd, the other exceeds the limit of what it reads.
    for size in [1_700_000, 2_500_000] {
        let holder = "x".repeat(size);
        let lease = json!({"metadata": {"name": "x"}, "spec": {"holderIdentity": holder}});
        let refused = server.call("POST", leases, Some(lease)).await;
        assert_eq!(refused.status, 413, "{}", refused.json());
        assert_eq!(refused.json()["reason"], "RequestEntityTooLarge");
    }
    let lease = json!({"metadata": {"name": "x"}});
    ok(&server.call("POST", leases, Some(lease)).await);
}

/// A server, and another one whose events can be held back.
async fn pair_with_way(etcd: &Etcd) -> (Server, Server, Way) {
    let way = Way::to(etcd.port()).await;
    let (one, two) = (etcd.store().await, etcd.store_by(&way).await);
    let (one, two) = tokio::join!(Server::start_on(one), Server::start_on(two));
    (one, two, way)
}

/// Sends a POST to a server whose events are released only after the call has started.
async fn behind(server: &Server, way: &Way, path: &str, body: &Value) -> Answer {
    let call = server.call("POST", path, Some(body.clone()));
    let let_go = async {
        tokio::time::sleep(Duration::from_millis(300)).await;
        way.let_go();
    };
    tokio::join!(call, let_go).0
}

#[tokio::test(flavor = "multi_thread")]
async fn create_fails_in_namespace_or_kind_that_another_server_deletes() {
    let Some(etcd) = Etcd::start().await else {
        return;
    };
    let (here, there, way) = pair_with_way(&etcd).await;
    ok(&here.call("POST", DEFINITIONS, Some(boats())).await);
    for name in ["named", "ends", "gone"] {
        let body = json!({"metadata": {"name": name}});
        ok(&here.call("POST", "/api/v1/namespaces", Some(body)).await);
    }
    let boats = "/apis/example.com/v1/namespaces/default/boats";
    until("the other server serves it", async || {
        there.call("GET", boats, None).await.status == 200
    })
    .await;
    let maps = |namespace: &str| format!("/api/v1/namespaces/{namespace}/configmaps");

    // After an unrelated change of the namespace the request is evaluated again and succeeds.
    way.hold();
    let label = json!({"metadata": {"labels": {"a": "b"}}});
    ok(&here
        .call("PATCH", "/api/v1/namespaces/named", Some(label))
        .await);
    ok(&behind(&there, &way, &maps("named"), &map("x", "1")).await);

    // A namespace that is being deleted, and one that is already gone.
    ok(&here.call("POST", &maps("ends"), Some(held("x"))).await);
    for (namespace, status) in [("ends", 403), ("gone", 404)] {
        let path = format!("/api/v1/namespaces/{namespace}");
        way.hold();
        ok(&here.call("DELETE", &path, None).await);
        until("it has ended as far as it can", async || {
            let left = here.call("GET", &path, None).await;
            left.status == if namespace == "ends" { 200 } else { 404 }
        })
        .await;
        let refused = behind(&there, &way, &maps(namespace), &map("y", "1")).await;
        assert_eq!(refused.status, status, "{}", refused.json());
    }

    // A dry run is rejected as well.
    let body = json!({"metadata": {"name": "other"}});
    ok(&here.call("POST", "/api/v1/namespaces", Some(body)).await);
    ok(&there.call("GET", &maps("other"), None).await);
    way.hold();
    ok(&here.call("DELETE", "/api/v1/namespaces/other", None).await);
    let dry = format!("{}?dryRun=All", maps("other"));
    let refused = behind(&there, &way, &dry, &map("y", "1")).await;
    assert!(matches!(refused.status, 403 | 404), "{}", refused.json());

    // A kind whose definition has changed, and one whose definition is being deleted.
    let boat = |name: &str| {
        json!({"apiVersion": "example.com/v1", "kind": "Boat",
            "metadata": {"name": name, "finalizers": ["example.com/anchor"]}})
    };
    let definition = format!("{DEFINITIONS}/boats.example.com");
    way.hold();
    let kept = json!({"spec": {"names": {"shortNames": ["bt"]}}});
    ok(&here.call("PATCH", &definition, Some(kept)).await);
    let refused = behind(&there, &way, boats, &boat("a")).await;
    assert_eq!(refused.status, 429, "{}", refused.json());
    ok(&there.call("POST", boats, Some(boat("a"))).await);
    way.hold();
    ok(&here.call("DELETE", &definition, None).await);
    let refused = behind(&there, &way, boats, &boat("b")).await;
    assert_eq!(refused.status, 405, "{}", refused.json());
}

/// Returns a ConfigMap with a finalizer.
fn held(name: &str) -> Value {
    json!({"metadata": {"name": name, "finalizers": ["example.com/held"]}})
}

#[tokio::test(flavor = "multi_thread")]
async fn account_of_one_server_is_found_by_a_lagging_server() {
    let Some(etcd) = Etcd::start().await else {
        return;
    };
    let (here, there, way) = pair_with_way(&etcd).await;
    let accounts = "/api/v1/namespaces/default/serviceaccounts";
    let account = |name: &str| json!({"metadata": {"name": name}});
    let ask = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}});

    way.hold();
    ok(&here.call("POST", accounts, Some(account("a"))).await);
    ok(&behind(&there, &way, &format!("{accounts}/a/token"), &ask).await);

    way.hold();
    ok(&here.call("POST", accounts, Some(account("c"))).await);
    let dry = format!("{accounts}?dryRun=All");
    let exists = behind(&there, &way, &dry, &account("c")).await;
    assert_eq!(exists.status, 409, "{}", exists.json());
}
