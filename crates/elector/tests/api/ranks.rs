//! Ranked candidates: hand-overs to better candidates, and combinations that have no effect.

use std::time::Duration;

use tenure::{
    Announcement, Builder, Coordinated, Elector, Event, Failback, Problem, Ranking, StopReason,
};
use tenure_apiserver::TestServer;

use crate::server::{client, lead, lease, quick, within};

fn announcement(priority: i32) -> Announcement {
    Announcement {
        priority,
        ..Announcement::default()
    }
}

fn auto() -> Ranking {
    Ranking {
        failback: Failback::Auto,
        failback_after: Duration::from_secs(1),
        ..Ranking::default()
    }
}

#[tokio::test]
async fn leader_hands_over_to_a_better_candidate_by_an_order_that_names_it() {
    let server = TestServer::start().await.unwrap();
    let client = client(&server);
    let ranked = |id: &str, priority| {
        let builder = quick(client.clone(), "web", id).announce(announcement(priority));
        builder.rank(auto()).build().unwrap().start()
    };
    let mut a = ranked("a", -1);
    let first = lead(&mut a).await;
    let mut b = ranked("b", 1);
    within(first.tenure().cancelled()).await;
    let reason = StopReason::PreferredHolder("b".to_owned());
    assert_eq!(first.tenure().reason(), Some(reason));
    let held = lease(&client, "web").await.unwrap();
    assert_eq!(
        held["spec"]["holderIdentity"], "a",
        "the work has not ended"
    );
    let token = first.tenure().token().clone();
    drop(first);
    let second = lead(&mut b).await;
    assert!(*second.tenure().token() > token);
    let held = lease(&client, "web").await.unwrap();
    let order = held["metadata"]["annotations"]["tenure.dev/step-down"].as_str();
    let order = order.unwrap_or_default();
    assert!(
        order.contains(r#""holder":"a""#) && order.contains(r#""to":"b""#),
        "{order}"
    );
    drop(second);
    for candidate in [&mut a, &mut b] {
        candidate.shutdown();
        within(async {
            while let Some(event) = candidate.next().await {
                if matches!(event, Event::Finished) {
                    break;
                }
            }
        })
        .await;
    }
}

#[tokio::test]
async fn ranks_without_effect_are_refused() {
    let server = TestServer::start().await.unwrap();
    let client = client(&server);
    let builder = || Elector::lease(client.clone(), "default", "web");
    let problems = |builder: Builder| builder.build().unwrap_err().problems;
    assert!(matches!(
        problems(builder().rank(auto()))[..],
        [Problem::RankWithoutAnnouncement]
    ));
    let ranked = || builder().announce(announcement(1)).rank(auto());
    let coordinated = Coordinated::oldest_emulation_version("1.0.0", "1.0.0");
    for refused in [ranked().for_life(true), ranked().coordinated(coordinated)] {
        assert!(matches!(
            problems(refused)[..],
            [Problem::RankWithoutChoice]
        ));
    }
    assert!(matches!(
        problems(ranked().release_on_cancel(false))[..],
        [Problem::FailbackWithoutRelease]
    ));
    let never = builder().announce(announcement(1)).rank(Ranking::default());
    assert!(never.release_on_cancel(false).build().is_ok());
    let hasty = Ranking {
        failback_after: Duration::ZERO,
        ..auto()
    };
    assert!(matches!(
        problems(ranked().rank(hasty))[..],
        [Problem::FailbackAfter(_)]
    ));
}
