//! The requests that elections send to the API server.

use std::time::Duration;

use tenure::MemoryLock;

use crate::term::lead;
use crate::wire::{Wire, pass, secs};

#[tokio::test(start_paused = true)]
async fn an_idle_follower_sends_nothing_and_a_leader_one_write_per_retry_period() {
    let lock = MemoryLock::new("x");
    let (near, far) = (Wire::to(&lock), Wire::to(&lock));
    let mut leader = near.elector("a").build().unwrap().start();
    let term = lead(&mut leader).await;
    let _follower = far.elector("b").build().unwrap().start();
    pass(secs(1)).await;
    near.requests();
    far.requests();
    pass(secs(600)).await;
    let sent = near.requests();
    assert!(sent.iter().all(|request| *request == "renew"), "no reads");
    assert_eq!(sent.len(), 300);
    assert_eq!(far.requests(), Vec::<&str>::new());
    assert!(term.tenure().is_leading());
}

#[tokio::test(start_paused = true)]
async fn case_18_until_the_second_renewal_there_are_four_requests() {
    let lock = MemoryLock::new("x");
    let wire = Wire::to(&lock).unwatched();
    let mut candidate = wire.elector("a").build().unwrap().start();
    let _term = lead(&mut candidate).await;
    let mut sent = Vec::new();
    until_renewals(&wire, 2, &mut sent).await;
    assert_eq!(sent, ["get", "create", "renew", "renew"]);
}

#[tokio::test(start_paused = true)]
async fn case_19_after_a_conflict_the_leader_reads_and_renews_again() {
    let lock = MemoryLock::new("x");
    let wire = Wire::to(&lock).unwatched();
    let mut candidate = wire.elector("a").build().unwrap().start();
    let term = lead(&mut candidate).await;
    let mut sent = Vec::new();
    until_renewals(&wire, 1, &mut sent).await;
    lock.edit(|object| object["metadata"]["labels"] = serde_json::json!({ "by": "somebody" }));
    until_renewals(&wire, 4, &mut sent).await;
    assert_eq!(
        sent,
        ["get", "create", "renew", "renew", "get", "renew", "renew"]
    );
    assert!(term.tenure().is_leading(), "a label is no reason to stop");
    let object = lock.object().unwrap();
    assert_eq!(
        object["metadata"]["labels"]["by"], "somebody",
        "and is kept"
    );
}

/// Collects requests until this many of them are renewals.
async fn until_renewals(wire: &Wire, count: usize, sent: &mut Vec<&'static str>) {
    let renewals = |sent: &[&str]| sent.iter().filter(|request| **request == "renew").count();
    while renewals(sent) < count {
        pass(Duration::from_millis(10)).await;
        sent.extend(wire.requests());
    }
}

#[tokio::test(start_paused = true)]
async fn a_follower_that_cannot_watch_polls_between_one_and_2_2_retry_periods() {
    let lock = MemoryLock::new("x");
    let (near, far) = (Wire::to(&lock), Wire::to(&lock).unwatched());
    let mut leader = near.elector("a").build().unwrap().start();
    let _term = lead(&mut leader).await;
    let _follower = far.elector("b").build().unwrap().start();
    pass(secs(1)).await;
    far.requests();
    pass(secs(1_000)).await;
    let polls = far.requests();
    assert!(polls.iter().all(|request| *request == "get"));
    assert!((227..=500).contains(&polls.len()), "{}", polls.len());
}
