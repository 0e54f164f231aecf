//! Watches end when their user loses the permission.

use std::time::Duration;

use serde_json::{Value, json};
use tenure_apiserver::TestServer;
use tenure_apiserver::auth::User;
use tenure_apiserver::server::Server;

use crate::support::{Answer, Stream, request};
use crate::{MAPS, map};

const BINDINGS: &str = "/apis/rbac.authorization.k8s.io/v1/namespaces/default/rolebindings";
const ACCOUNTS: &str = "/api/v1/namespaces/default/serviceaccounts";
/// Upper limit of all waits. The documented limit is ten seconds; the rest is for a busy machine.
const SOON: Duration = Duration::from_secs(60);

async fn send(server: &TestServer, token: &str, line: (&str, &str), body: &Value) -> Answer {
    let (_, address) = server.url().split_once("://").unwrap();
    let bearer = format!("Bearer {token}");
    let headers = [
        ("authorization", bearer.as_str()),
        ("content-type", "application/json"),
    ];
    let body = match body {
        Value::Null => Vec::new(),
        body => body.to_string().into_bytes(),
    };
    let address = address.parse().unwrap();
    Answer::of(request(address, line.0, line.1, &headers, body).await).await
}

async fn watch(server: &TestServer, headers: &[(&str, &str)]) -> Stream {
    let (_, address) = server.url().split_once("://").unwrap();
    let path = format!("{MAPS}?watch=1&allowWatchBookmarks=true");
    let address = address.parse().unwrap();
    let mut watch = Stream::of(request(address, "GET", &path, headers, Vec::new()).await);
    assert_eq!(watch.status, 200);
    watch.expect().await;
    watch
}

/// Creates an object and asserts success.
async fn make(server: &TestServer, path: &str, object: &Value) -> Value {
    let answer = send(server, server.token(), ("POST", path), object).await;
    assert_eq!(answer.status, 201, "{}", answer.json());
    answer.json()
}

async fn bind(server: &TestServer, name: &str, subject: Value) {
    let binding = json!({ "metadata": { "name": name }, "subjects": [subject],
        "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "view" } });
    make(server, BINDINGS, &binding).await;
}

async fn delete(server: &TestServer, path: &str) {
    let answer = send(server, server.token(), ("DELETE", path), &Value::Null).await;
    assert_eq!(answer.status, 200, "{}", answer.json());
}

fn user(name: &str) -> Value {
    json!({ "apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": name })
}

/// Asserts that the stream ends without an error event.
async fn expect_end(watch: &mut Stream, whose: &str) {
    let ended = tokio::time::timeout(SOON, async {
        while let Some(event) = watch.next().await {
            assert_eq!(event["type"], "ADDED", "{whose}: {event}");
        }
    });
    ended
        .await
        .unwrap_or_else(|_| panic!("the watch of {whose} did not end"));
}

#[tokio::test(flavor = "multi_thread")]
async fn watch_ends_soon_after_its_permission() {
    let builder = Server::builder()
        .no_tls()
        .token("annatoken", User::new("anna", []))
        .token("berttoken", User::new("bert", []));
    let server = TestServer::start_with(builder).await.unwrap();
    bind(&server, "anna", user("anna")).await;
    bind(&server, "bert", user("bert")).await;
    bind(&server, "jane", user("jane")).await;
    make(&server, ACCOUNTS, &json!({ "metadata": { "name": "app" } })).await;
    let account = json!({ "kind": "ServiceAccount", "name": "app", "namespace": "default" });
    bind(&server, "app", account).await;
    let asked = json!({ "spec": {} });
    let issued = make(&server, &format!("{ACCOUNTS}/app/token"), &asked).await;
    let token = issued["status"]["token"].as_str().unwrap().to_owned();

    let bearer = |token: &str| format!("Bearer {token}");
    let anna = bearer("annatoken");
    let mut anna = watch(&server, &[("authorization", &anna)]).await;
    let bert = bearer("berttoken");
    let mut bert = watch(&server, &[("authorization", &bert)]).await;
    let app = bearer(&token);
    let mut app = watch(&server, &[("authorization", &app)]).await;
    let admin = bearer(server.token());
    let headers = [
        ("authorization", admin.as_str()),
        ("impersonate-user", "jane"),
    ];
    let mut jane = watch(&server, &headers).await;

    delete(&server, &format!("{BINDINGS}/anna")).await;
    delete(&server, &format!("{BINDINGS}/jane")).await;
    delete(&server, &format!("{ACCOUNTS}/app")).await;
    expect_end(&mut anna, "anna").await;
    expect_end(&mut jane, "jane").await;
    expect_end(&mut app, "the service account").await;
    let list = send(&server, "annatoken", ("GET", MAPS), &Value::Null).await;
    assert_eq!(list.status, 403);
    let list = send(&server, &token, ("GET", MAPS), &Value::Null).await;
    assert_eq!(list.status, 401);

    // Watches of other users have received the same changes and continue.
    tokio::time::sleep(Duration::from_secs(11)).await;
    make(&server, MAPS, &map("m", "1")).await;
    assert_eq!(bert.expect().await["object"]["metadata"]["name"], "m");
}
