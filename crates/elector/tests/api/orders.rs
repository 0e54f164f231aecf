//! Orders of operators through the lock object.

use std::collections::BTreeMap;

use serde_json::json;
use tenure::{Elector, StopReason};
use tenure_apiserver::TestServer;
use tenure_core::Record;
use tenure_lock::LockKind;
use tenure_lock::orders::{STEP_DOWN_ANNOTATION, pause_patch, resume_patch, step_down_patch};

use crate::server::{LEASES, client, count, lead, lease, send, until, within};

/// Reads the record of the Lease "x".
async fn record(client: &kube::Client) -> Record {
    let lock = LockKind::Leases.open(client.clone(), "default", "x", &BTreeMap::new());
    let seen = lock.unwrap().read().await.unwrap().unwrap();
    seen.observation().record.clone()
}

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
    let order = step_down_patch(&record(&client).await, Some("c"), None);
    send(&client, "PATCH", &format!("{LEASES}/x"), &order).await;
    within(term.tenure().cancelled()).await;
    assert_eq!(term.tenure().reason(), Some(StopReason::Ordered));
    drop(term);
    let next = tokio::select! {
        term = lead(&mut b) => term,
        term = lead(&mut c) => term,
    };
    assert_eq!(
        (next.tenure().identity(), next.tenure().transitions()),
        ("c", 1)
    );
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
    assert!(term.tenure().is_leading(), "the holder keeps its term");
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
    assert_eq!(lead(&mut b).await.tenure().identity(), "b");
}

/// A person has emptied the record, so that terms count from zero again. The order of an earlier first term is still on
/// the object.
#[tokio::test]
async fn an_order_of_an_earlier_term_with_the_same_number_is_not_obeyed() {
    let server = TestServer::start().await.unwrap();
    let client = client(&server);
    let order = r#"{"transitions":1,"holder":"a","acquireTime":"2026-01-02T03:04:05.000006Z"}"#;
    let emptied = json!({
        "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
        "metadata": { "name": "x", "annotations": { STEP_DOWN_ANNOTATION: order } },
    });
    send(&client, "POST", LEASES, &emptied).await;
    let elector = Elector::lease(client.clone(), "default", "x").identity("a");
    let mut a = elector.build().unwrap().start();
    let term = lead(&mut a).await;
    assert_eq!(term.tenure().transitions(), 1);
    let order = step_down_patch(&record(&client).await, None, None);
    send(&client, "PATCH", &format!("{LEASES}/x"), &order).await;
    within(term.tenure().cancelled()).await;
    assert_eq!(term.tenure().reason(), Some(StopReason::Ordered));
}
