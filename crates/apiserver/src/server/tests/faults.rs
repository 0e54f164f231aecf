//! Effects of injected faults on clients.

use std::time::Duration;

use futures_util::{StreamExt as _, TryStreamExt as _};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{Api, PostParams, WatchEvent, WatchParams};
use serde_json::json;

use super::{LEASES, get, post};
use crate::TestServer;
use crate::server::{Fault, Requests};

fn named<T: serde::de::DeserializeOwned>(name: &str) -> T {
    serde_json::from_value(serde_json::json!({ "metadata": { "name": name } })).unwrap()
}

fn code(error: &kube::Error) -> Option<u16> {
    match error {
        kube::Error::Api(status) => Some(status.code),
        _ => None,
    }
}

#[tokio::test]
async fn a_dropped_answer_still_took_effect() {
    let server = TestServer::start().await.unwrap();
    let leases: Api<Lease> = Api::namespaced(server.client().unwrap(), "default");
    let fault = server
        .faults()
        .add(Fault::drop_answer().path(LEASES).verb("create").times(1));
    let error = leases
        .create(&PostParams::default(), &named("l"))
        .await
        .unwrap_err();
    assert_eq!(code(&error), None, "expected no response: {error}");
    assert_eq!(fault.hits(), 1);
    leases.get("l").await.unwrap();
}

/// Does not use kube, whose client retries 429, 503 and 504.
#[tokio::test]
async fn a_refused_request_took_no_effect() {
    let server = TestServer::start().await.unwrap();
    let lease = json!({ "metadata": { "name": "l" } });
    let get_it = async || get(server.url(), &format!("{LEASES}/l"), server.token()).await;
    for (code, reason) in [
        (409, "Conflict"),
        (410, "Expired"),
        (429, "TooManyRequests"),
        (500, "InternalError"),
        (503, "ServiceUnavailable"),
    ] {
        server
            .faults()
            .add(Fault::answer(code).verb("create").times(1));
        let refused = post(server.url(), LEASES, server.token(), &lease).await;
        assert_eq!(refused.code, code);
        assert_eq!(refused.body["reason"], reason);
        assert_eq!(get_it().await.code, 404);
    }
    let created = post(server.url(), LEASES, server.token(), &lease).await;
    assert_eq!(created.code, 201);
}

#[tokio::test]
async fn faults_affect_only_matching_users() {
    let server = TestServer::start().await.unwrap();
    let list = async || get(server.url(), LEASES, server.token()).await.code;
    server
        .faults()
        .add(Fault::answer(503).user("somebody-else"));
    assert_eq!(list().await, 200);
    server
        .faults()
        .add(Fault::answer(503).user("kubernetes-admin"));
    assert_eq!(list().await, 503);
    server.faults().clear();
    assert_eq!(list().await, 200);
}

#[tokio::test]
async fn watches_are_cut_on_demand_and_after_a_while() {
    let server = TestServer::start().await.unwrap();
    let maps: Api<ConfigMap> = Api::namespaced(server.client().unwrap(), "default");
    maps.create(&PostParams::default(), &named("m"))
        .await
        .unwrap();
    let mut watch = maps
        .watch(&WatchParams::default(), "0")
        .await
        .unwrap()
        .boxed();
    assert!(matches!(
        watch.try_next().await.unwrap(),
        Some(WatchEvent::Added(_))
    ));
    server.faults().cut_watches(&Requests {
        path: LEASES.into(),
        ..Requests::default()
    });
    // The fault concerns other requests.
    maps.create(&PostParams::default(), &named("n"))
        .await
        .unwrap();
    let added = loop {
        match watch.try_next().await.unwrap() {
            Some(WatchEvent::Bookmark(_)) => {}
            Some(WatchEvent::Added(map)) => break map,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(added.metadata.name.as_deref(), Some("n"));
    server.faults().cut_watches(&Requests::default());
    while watch.try_next().await.unwrap().is_some() {}

    server
        .faults()
        .add(Fault::cut_watch(Duration::from_millis(50)).times(1));
    let mut watch = maps
        .watch(&WatchParams::default(), "0")
        .await
        .unwrap()
        .boxed();
    while watch.try_next().await.unwrap().is_some() {}
}

#[tokio::test]
async fn a_jump_of_the_revision_expires_running_watches() {
    let server = TestServer::start().await.unwrap();
    let maps: Api<ConfigMap> = Api::namespaced(server.client().unwrap(), "default");
    let before = maps
        .create(&PostParams::default(), &named("m"))
        .await
        .unwrap();
    let version = before.metadata.resource_version.unwrap();
    let mut watch = maps
        .watch(&WatchParams::default(), &version)
        .await
        .unwrap()
        .boxed();
    let now = server.jump_revision(1000).await.unwrap();
    assert!(now >= version.parse::<u64>().unwrap() + 1000);
    let event = watch.try_next().await.unwrap();
    assert!(
        matches!(&event, Some(WatchEvent::Error(e)) if e.code == 410),
        "{event:?}"
    );
}
