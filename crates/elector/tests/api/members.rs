//! Candidates that announce themselves.

use std::sync::Arc;
use std::time::Duration;

use tenure::clock::{Clock as _, SystemClock};
use tenure::{Announcement, Elector, Event, Member, Membership, MemoryLock, Problem, WallTime};
use tenure_apiserver::TestServer;
use tenure_apiserver::server::Fault;
use tenure_lock::member::{MEMBER_ANNOTATION, Members, member_name};

use crate::server::{
    LEASES, client, client_of, count, lead, lease, permit, quick, send, start, until, within,
};

/// Returns the living candidates with their readiness.
fn living(membership: &Membership) -> Vec<(String, bool)> {
    let members = membership.living();
    let pair = |member: Member| (member.is_ready(), member.identity);
    members
        .into_iter()
        .map(pair)
        .map(|(ready, who)| (who, ready))
        .collect()
}

/// Waits until these candidates are known.
async fn known(membership: &Membership, expected: &[(&str, bool)]) {
    let expected: Vec<(String, bool)> = expected
        .iter()
        .map(|(who, ready)| ((*who).to_owned(), *ready))
        .collect();
    until(async || {
        tokio::task::yield_now().await;
        living(membership) == expected
    })
    .await;
}

/// Shuts the candidate down and waits for its last event.
async fn finish(candidate: &mut tenure::Candidate) {
    candidate.shutdown();
    within(async { while !matches!(candidate.next().await, Some(Event::Finished) | None) {} })
        .await;
}

#[tokio::test]
async fn candidates_that_announce_themselves_are_known_until_they_end() {
    let server = TestServer::start().await.unwrap();
    let client = client(&server);
    let about = Announcement {
        zone: Some("zone-a".to_owned()),
        ..Announcement::default()
    };
    let announced = |id: &str| quick(client.clone(), "web", id).announce(about.clone());
    let mut a = announced("a").build().unwrap().start();
    let elector = announced("b").build().unwrap();
    let (of_a, of_b) = (a.handle(), elector.handle());
    let (of_a, of_b) = (of_a.membership().unwrap(), of_b.membership().unwrap());
    of_b.set_not_ready(Some("warming up".to_owned()));
    let mut b = elector.start();
    known(of_a, &[("a", true), ("b", false)]).await;
    let found = of_a.living().remove(1);
    assert_eq!(found.not_ready.as_deref(), Some("warming up"));
    assert_eq!(found.about, about);
    assert!(of_a.age().unwrap() < Duration::from_secs(30));
    of_b.set_not_ready(None);
    known(of_a, &[("a", true), ("b", true)]).await;
    finish(&mut b).await;
    let name = member_name("web", "b");
    assert_eq!(
        lease(&client, &name).await,
        None,
        "deleted before the last event"
    );
    known(of_a, &[("a", true)]).await;
    finish(&mut a).await;
    assert_eq!(lease(&client, &member_name("web", "a")).await, None);
}

#[tokio::test]
async fn member_of_a_dead_candidate_is_deleted_by_others() {
    let server = TestServer::start().await.unwrap();
    let client = client(&server);
    let members = Members::open(client.clone(), "default", "web").unwrap();
    let dead = Member {
        identity: "dead".to_owned(),
        ..Member::default()
    };
    // The clock of this member is far ahead, so its renew time alone would keep it alive.
    let future = WallTime::from_micros(4_000_000_000_000_000);
    let duration = Duration::from_secs(2);
    members.write(&dead, duration, future, None).await.unwrap();
    let lock = lease(&client, &member_name("web", "dead")).await.unwrap();
    let mut foreign = lock.clone();
    foreign["metadata"] = serde_json::json!({
        "name": "foreign", "namespace": "default", "labels": lock["metadata"]["labels"],
        "annotations": { MEMBER_ANNOTATION: lock["metadata"]["annotations"][MEMBER_ANNOTATION] },
    });
    send(&client, "POST", LEASES, &foreign).await;
    let a = quick(client.clone(), "web", "a").announce(Announcement::default());
    let a = a.build().unwrap().start();
    let handle = a.handle();
    let membership = handle.membership().unwrap();
    known(membership, &[("a", true), ("dead", true)]).await;
    known(membership, &[("a", true)]).await;
    until(async || lease(&client, &member_name("web", "dead")).await.is_none()).await;
    assert!(lease(&client, "foreign").await.is_some(), "not a member");
}

#[tokio::test]
async fn member_with_a_short_duration_is_deleted_by_candidates_that_read_less_often() {
    let server = TestServer::start().await.unwrap();
    let client = client(&server);
    let members = Members::open(client.clone(), "default", "web").unwrap();
    let dead = Member {
        identity: "dead".to_owned(),
        ..Member::default()
    };
    let (now, shortest) = (WallTime::from_micros(0), Duration::from_secs(1));
    members.write(&dead, shortest, now, None).await.unwrap();
    let a = quick(client.clone(), "web", "a").announce(Announcement::default());
    let _a = a.build().unwrap().start();
    until(async || lease(&client, &member_name("web", "dead")).await.is_none()).await;
}

#[tokio::test]
async fn reason_that_changes_often_does_not_cause_writes() {
    let server = TestServer::start().await.unwrap();
    let client = client(&server);
    // The member is renewed every 10 s.
    let slow = |id: &str| Elector::lease(client.clone(), "default", "web").identity(id);
    let a = slow("a").announce(Announcement::default()).build().unwrap();
    let handle = a.handle();
    let membership = handle.membership().unwrap();
    membership.set_not_ready(Some("last written 0 s ago".to_owned()));
    let _a = a.start();
    let name = member_name("web", "a");
    until(async || lease(&client, &name).await.is_some()).await;
    let updates = server.faults().add(
        Fault::latency(Duration::ZERO)
            .verb("update")
            .path(format!("{LEASES}/{name}")),
    );
    for second in 1..=3 {
        membership.set_not_ready(Some(format!("last written {second} s ago")));
        let later = SystemClock.now().local + Duration::from_millis(1_100);
        SystemClock.sleep_until(later).await;
    }
    assert_eq!(updates.hits(), 0);
    membership.set_not_ready(None);
    until(async || updates.hits() == 1).await;
}

#[tokio::test]
async fn candidate_that_stepped_down_is_not_ready_until_it_campaigns_again() {
    let server = TestServer::start().await.unwrap();
    let client = client(&server);
    let a = quick(client.clone(), "web", "a").announce(Announcement::default());
    let mut a = a.build().unwrap().start();
    let handle = a.handle();
    let membership = handle.membership().unwrap();
    let term = lead(&mut a).await;
    known(membership, &[("a", true)]).await;
    handle.step_down(Duration::from_secs(5));
    drop(term);
    known(membership, &[("a", false)]).await;
    known(membership, &[("a", true)]).await;
}

#[tokio::test]
async fn failed_lists_do_not_stop_renewals() {
    let server = TestServer::start().await.unwrap();
    let client = client(&server);
    let failed = Fault::answer(500).path(LEASES).verb("list");
    let lists = server.faults().add(failed);
    let a = quick(client.clone(), "web", "a").announce(Announcement::default());
    let mut a = a.build().unwrap().start();
    let _term = lead(&mut a).await;
    let renewals = Fault::latency(Duration::ZERO).verb("update");
    let renewals = renewals.path(format!("{LEASES}/{}", member_name("web", "a")));
    let renewals = server.faults().add(renewals);
    until(async || renewals.hits() == 4).await;
    assert!(lists.hits() > 0);
    assert_eq!(a.handle().membership().unwrap().age(), None);
}

#[tokio::test]
async fn member_of_two_candidates_with_one_identity_stays_until_both_end() {
    let server = TestServer::start().await.unwrap();
    let client = client(&server);
    let updates = count(&server, "update");
    let name = member_name("web", "same");
    let announced = || quick(client.clone(), "web", "same").announce(Announcement::default());
    let mut first = announced().build().unwrap().start();
    until(async || lease(&client, &name).await.is_some()).await;
    let since = async || {
        let member = lease(&client, &name).await.unwrap();
        member["spec"]["acquireTime"].clone()
    };
    let original = since().await;
    let mut second = announced().build().unwrap().start();
    until(async || since().await != original).await;
    assert!(updates.hits() > 0);
    finish(&mut first).await;
    until(async || lease(&client, &name).await.is_some()).await;
    finish(&mut second).await;
    assert_eq!(lease(&client, &name).await, None);
}

#[tokio::test]
async fn candidate_without_the_permission_leads_unannounced() {
    let server = start().await;
    permit(&server, &["web"]).await;
    let user = client_of(&server, "elector-token");
    let elector = quick(user, "web", "a").announce(Announcement::default());
    let mut candidate = elector.build().unwrap().start();
    let term = lead(&mut candidate).await;
    let member = member_name("web", "a");
    // The Role contains create, but neither list nor delete.
    until(async || lease(&client(&server), &member).await.is_some()).await;
    assert_eq!(candidate.handle().membership().unwrap().age(), None);
    drop(term);
    finish(&mut candidate).await;
}

#[tokio::test]
async fn candidate_is_not_announced_by_default() {
    let server = TestServer::start().await.unwrap();
    let client = client(&server);
    let (creates, deletes) = (count(&server, "create"), count(&server, "delete"));
    let mut candidate = quick(client.clone(), "web", "a").build().unwrap().start();
    let term = lead(&mut candidate).await;
    assert!(candidate.handle().membership().is_none());
    drop(term);
    finish(&mut candidate).await;
    assert_eq!((creates.hits(), deletes.hits()), (1, 0), "only the lock");
    assert_eq!(lease(&client, &member_name("web", "a")).await, None);
}

#[test]
fn candidate_of_a_lock_in_this_process_cannot_announce_itself() {
    let elector = Elector::builder(Arc::new(MemoryLock::new("web")));
    let error = elector
        .announce(Announcement::default())
        .build()
        .unwrap_err();
    assert!(matches!(
        error.problems[..],
        [Problem::AnnounceWithoutServer]
    ));
}
