//! Orders of operators through the lock object.

use tenure::lock::orders::{pause_patch, resume_patch, step_down_patch};
use tenure::{Elector, StopReason};
use tenure_apiserver::TestServer;

use crate::server::{LEASES, client, count, lead, lease, send, until, within};

#[tokio::test]
async fn an_order_to_step_down_is_obeyed_and_the_named_successor_goes_first() {
    let server = TestServer::start().await.unwrap();
    let client = client(&server);
    let start = |id: &str| {
        let elector = Elector::lease(client.clone(), "default", "x").identity(id);
        elector.build().unwrap().start()
    };
    let mut a = start("a");
    let term = lead(&mut a).await;
    let watches = count(&server, "watch");
    let (mut b, mut c) = (start("b"), start("c"));
    until(|| async { watches.hits() == 2 }).await;
    let order = step_down_patch(term.transitions(), Some("c"), None);
    send(&client, "PATCH", &format!("{LEASES}/x"), &order).await;
    within(term.cancelled()).await;
    assert_eq!(term.reason(), Some(StopReason::Ordered));
    drop(term);
    let next = tokio::select! {
        term = lead(&mut b) => term,
        term = lead(&mut c) => term,
    };
    assert_eq!((next.identity(), next.transitions()), ("c", 1));
}

#[tokio::test]
async fn nobody_acquires_a_paused_election_until_it_is_resumed() {
    let server = TestServer::start().await.unwrap();
    let client = client(&server);
    let start = |id: &str| {
        let elector = Elector::lease(client.clone(), "default", "x").identity(id);
        elector.build().unwrap().start()
    };
    let mut a = start("a");
    let term = lead(&mut a).await;
    let mut b = start("b");
    let path = format!("{LEASES}/x");
    send(&client, "PATCH", &path, &pause_patch()).await;
    assert!(term.is_leading(), "the holder keeps its term");
    drop((a, term));
    until(async || {
        let object = lease(&client, "x").await.unwrap();
        object["spec"]["holderIdentity"] == ""
    })
    .await;
    let updates = count(&server, "update");
    for _ in 0..50 {
        assert!(lease(&client, "x").await.is_some());
    }
    assert_eq!(updates.hits(), 0);
    send(&client, "PATCH", &path, &resume_patch()).await;
    assert_eq!(lead(&mut b).await.identity(), "b");
}
