//! Lost responses, and busy servers.

use std::time::Duration;

use tenure::StopReason;
use tenure_apiserver::TestServer;
use tenure_apiserver::server::Fault;

use crate::server::{LEASES, client, count, lead, lease, quick, until, within};

#[tokio::test]
async fn lost_answers_and_busy_servers_do_not_end_a_term() {
    let server = TestServer::start().await.unwrap();
    let client = client(&server);
    let elector = quick(client, "x", "a").lease_duration(Duration::from_secs(10));
    let mut candidate = elector
        .renew_deadline(Duration::from_secs(8))
        .build()
        .unwrap()
        .start();
    let term = lead(&mut candidate).await;
    for fault in [
        Fault::drop_answer(),
        Fault::answer(503),
        Fault::answer(429),
        Fault::answer(504),
        Fault::answer(409),
    ] {
        let fault = fault.path(LEASES).verb("update").times(2);
        let added = server.faults().add(fault);
        until(|| async { added.hits() == 2 }).await;
    }
    let updates = count(&server, "update");
    until(|| async { updates.hits() > 2 }).await;
    assert!(term.tenure().is_leading());
    assert_eq!(term.tenure().reason(), None);
}

#[tokio::test]
async fn a_server_that_stops_answering_ends_the_term_by_the_clock() {
    let server = TestServer::start().await.unwrap();
    let client = client(&server);
    let mut candidate = quick(client.clone(), "x", "a").build().unwrap().start();
    let term = lead(&mut candidate).await;
    let hang = Fault::latency(Duration::from_secs(3600)).path(LEASES);
    let hung = server.faults().add(hang);
    within(term.tenure().cancelled()).await;
    assert_eq!(term.tenure().reason(), Some(StopReason::GuardExpired));
    hung.remove();
    drop(term);
    let term = lead(&mut candidate).await;
    assert!(
        term.tenure().is_leading(),
        "its own lease, after it ran out"
    );
}

#[tokio::test]
async fn a_winning_write_whose_answer_was_lost_is_recognised() {
    let server = TestServer::start().await.unwrap();
    let client = client(&server);
    let lost = Fault::drop_answer().path(LEASES).verb("create").times(1);
    let lost = server.faults().add(lost);
    let mut candidate = quick(client.clone(), "x", "a").build().unwrap().start();
    let term = lead(&mut candidate).await;
    assert_eq!(lost.hits(), 1);
    let object = lease(&client, "x").await.unwrap();
    assert_eq!(object["spec"]["holderIdentity"], "a");
    assert!(term.tenure().is_leading());
}
