//! Tests of watches: which watch each election uses, and that a watch without polling is sufficient.

use std::time::Duration;

use tenure::{Elector, Hub, StopReason};
use tenure_apiserver::TestServer;
use tenure_apiserver::server::Fault;

use crate::server::{
    LEASES, client, client_of, count, get, lead, lease, permit, quick, send, start, until, within,
};

#[tokio::test]
async fn release_is_observed_by_the_watch_and_recorded_in_events() {
    let server = TestServer::start().await.unwrap();
    let client = client(&server);
    let (gets, watches) = (count(&server, "get"), count(&server, "watch"));
    // With client-go's durations, a hand-over without the watch would take seconds.
    let elector = |id: &str| {
        Elector::lease(client.clone(), "default", "x")
            .identity(id)
            .label("app", "test")
            .build()
            .unwrap()
    };
    let mut a = elector("a").start();
    let term = lead(&mut a).await;
    let mut b = elector("b").start();
    until(|| async { watches.hits() == 2 }).await;
    let handle = a.handle();
    handle.step_down(Duration::from_secs(60));
    within(term.tenure().cancelled()).await;
    let first = term.tenure().token().clone();
    drop(term);
    let term = lead(&mut b).await;
    assert_eq!(
        (term.tenure().identity(), term.tenure().transitions()),
        ("b", 1)
    );
    assert!(*term.tenure().token() > first);
    assert_eq!(gets.hits(), 1, "only before the release");
    let object = lease(&client, "x").await.unwrap();
    assert_eq!(object["metadata"]["labels"]["app"], "test");

    let path = "/api/v1/namespaces/default/events";
    let messages = async || -> Vec<String> {
        let events = get(&client, path).await.unwrap();
        let items = events["items"].as_array().unwrap().clone();
        let text = |event: serde_json::Value| event["message"].as_str().unwrap().to_owned();
        items.into_iter().map(text).collect()
    };
    until(async || messages().await.len() >= 3).await;
    let messages = messages().await;
    for message in ["a became leader", "a stopped leading", "b became leader"] {
        assert!(messages.iter().any(|m| m == message), "{messages:?}");
    }
}

#[tokio::test]
async fn many_elections_in_a_namespace_share_one_watch_and_need_no_reads() {
    let server = TestServer::start().await.unwrap();
    let client = client(&server);
    let verbs = ["watch", "list", "get", "create"].map(|verb| count(&server, verb));
    let hub = Hub::new(client.clone());
    let mut candidates: Vec<_> = (0..300)
        .map(|i| {
            // The durations are long enough for a slow machine, because a request that times out is followed by a read.
            let elector = Elector::lease(client.clone(), "default", &format!("s{i}"))
                .lease_duration(Duration::from_secs(900))
                .renew_deadline(Duration::from_secs(600));
            elector.hub(&hub).identity("a").build().unwrap().start()
        })
        .collect();
    let mut terms = Vec::new();
    for candidate in &mut candidates {
        terms.push(lead(candidate).await);
    }
    assert_eq!(verbs.each_ref().map(|verb| verb.hits()), [1, 1, 0, 300]);
    // The shared watch delivers the events of each lease to the election of that lease.
    let path = format!("{LEASES}/s7");
    let theft = serde_json::json!({ "spec": { "holderIdentity": "thief" } });
    send(&client, "PATCH", &path, &theft).await;
    within(terms[7].tenure().cancelled()).await;
    let thief = StopReason::ForeignHolder("thief".into());
    assert_eq!(terms[7].tenure().reason(), Some(thief));
    assert!(terms[6].tenure().is_leading() && terms[8].tenure().is_leading());
}

#[tokio::test]
async fn permissions_limited_to_resource_names_suffice_for_one_and_for_several() {
    let server = start().await;
    permit(&server, &["x", "y"]).await;
    let client = client_of(&server, "elector-token");
    let hub = Hub::new(client.clone());
    let builder = |name: &str, id: &str| {
        let elector = Elector::lease(client.clone(), "default", name);
        elector.hub(&hub).identity(id).events(false)
    };
    let mut x = builder("x", "a").build().unwrap().start();
    let term = lead(&mut x).await;
    let watches = count(&server, "watch");
    // Watching all leases is forbidden, so each of the two gets its own watch.
    let mut y = builder("y", "a").build().unwrap().start();
    let _other = lead(&mut y).await;
    until(|| async { watches.hits() >= 2 }).await;
    let path = format!("{LEASES}/x");
    let theft = serde_json::json!({ "spec": { "holderIdentity": "thief" } });
    send(&client_of(&server, server.token()), "PATCH", &path, &theft).await;
    within(term.tenure().cancelled()).await;
}

#[tokio::test]
async fn a_forbidden_watch_is_replaced_by_polling() {
    let server = TestServer::start().await.unwrap();
    let client = client(&server);
    server.faults().add(Fault::answer(403).verb("watch"));
    let mut a = quick(client.clone(), "x", "a").build().unwrap().start();
    let term = lead(&mut a).await;
    let follower = quick(client.clone(), "x", "b").build().unwrap();
    let mut b = follower.start();
    let gets = count(&server, "get");
    until(|| async { gets.hits() > 3 }).await;
    drop((a, term));
    let term = lead(&mut b).await;
    assert_eq!(term.tenure().transitions(), 1);
}

#[tokio::test]
async fn missing_permission_is_named_in_the_health() {
    let server = start().await;
    let client = client_of(&server, "elector-token");
    let elector = quick(client, "x", "a").build().unwrap();
    let health = elector.handle().health();
    let _candidate = elector.start();
    until(|| async {
        health
            .trouble()
            .is_some_and(|trouble| trouble.error.contains("the permission to get"))
    })
    .await;
    let trouble = health.trouble().unwrap().to_string();
    assert!(trouble.contains("leases.coordination.k8s.io"), "{trouble}");
}

#[tokio::test]
async fn expired_watch_starts_again() {
    let server = TestServer::start().await.unwrap();
    let client = client(&server);
    let lists = count(&server, "list");
    let expired = server
        .faults()
        .add(Fault::answer(410).verb("watch").times(1));
    let mut a = quick(client.clone(), "x", "a").build().unwrap().start();
    let term = lead(&mut a).await;
    assert_eq!(expired.hits(), 1);
    until(|| async { lists.hits() == 2 }).await;
    let path = format!("{LEASES}/x");
    let request = http::Request::delete(&path).body(Vec::new()).unwrap();
    client.request_text(request).await.unwrap();
    within(term.tenure().cancelled()).await;
}
