//! One term: how it begins, and how it ends.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::SeqCst};
use std::time::Duration;

use tenure::{Ended, Event, MemoryLock, Overrun, Status, StopReason};
use tokio::sync::oneshot;

use crate::wire::{Wire, holder, pass, secs};

#[tokio::test(start_paused = true)]
async fn completed_work_releases_the_lock_and_returns_its_output() {
    let lock = MemoryLock::new("x");
    let wire = Wire::to(&lock);
    let elector = wire.elector("a").build().unwrap();
    let ended = elector
        .run(std::future::pending::<()>(), |tenure| async move {
            assert!(tenure.is_leading());
            assert_eq!((tenure.identity(), tenure.transitions()), ("a", 0));
            tenure.token().to_string()
        })
        .await;
    let Ended::Completed(token) = ended else {
        panic!("{ended:?}")
    };
    assert_eq!(token, "1", "the version of the write that won");
    assert_eq!(holder(&lock).as_deref(), Some(""));
    assert_eq!(wire.requests(), ["get", "create", "get", "release"]);
}

#[tokio::test(start_paused = true)]
async fn shutdown_cancels_the_work_joins_it_and_only_then_releases() {
    let lock = MemoryLock::new("x");
    let wire = Wire::to(&lock);
    let (stop, stopped) = oneshot::channel::<()>();
    let seen = lock.clone();
    let run = wire
        .elector("a")
        .build()
        .unwrap()
        .run(stopped, |tenure| async move {
            tenure.cancelled().await;
            assert!(
                !tenure.is_leading(),
                "the guard is out before the work ends"
            );
            pass(secs(3)).await;
            assert_eq!(holder(&seen).as_deref(), Some("a"), "not yet released");
            "wound down"
        });
    let run = tokio::spawn(run);
    pass(secs(5)).await;
    stop.send(()).unwrap();
    let ended = run.await.unwrap();
    let Ended::Stopped { reason, output } = ended else {
        panic!("{ended:?}")
    };
    assert_eq!((reason, output), (StopReason::Shutdown, Some("wound down")));
    assert_eq!(holder(&lock).as_deref(), Some(""));
}

#[tokio::test(start_paused = true)]
async fn extra_1_partition_with_release_ends_the_term_before_another_can_lead() {
    let lock = MemoryLock::new("x");
    let (near, far) = (Wire::to(&lock), Wire::to(&lock));
    let leader = Arc::new(AtomicBool::new(false));
    let flag = leader.clone();
    let run = tokio::spawn(near.elector("a").build().unwrap().run(
        std::future::pending::<()>(),
        |tenure| async move {
            flag.store(true, SeqCst);
            tenure.cancelled().await;
            flag.store(false, SeqCst);
        },
    ));
    pass(secs(5)).await;
    let mut other = far.elector("b").build().unwrap().start();
    near.cut();
    near.requests();
    loop {
        if let Some(Event::Lead(term)) = other.next().await {
            assert!(!leader.load(SeqCst), "the work of a had ended");
            assert_eq!(term.tenure().transitions(), 1);
            break;
        }
    }
    let Ended::Stopped { reason, .. } = run.await.unwrap() else {
        panic!("it led")
    };
    assert_eq!(reason, StopReason::GuardExpired);
    assert!(
        !near.requests().contains(&"release"),
        "never once the guard is out"
    );
}

#[tokio::test(start_paused = true)]
async fn extra_2_a_foreign_holder_mid_term_stops_the_work_at_once() {
    let lock = MemoryLock::new("x");
    let wire = Wire::to(&lock);
    let mut candidate = wire.elector("a").build().unwrap().start();
    let term = lead(&mut candidate).await;
    pass(secs(1)).await;
    lock.edit(|object| object["spec"]["holderIdentity"] = "thief".into());
    let before = tokio::time::Instant::now();
    term.tenure().cancelled().await;
    assert_eq!(before.elapsed(), Duration::ZERO, "the watch told");
    assert_eq!(
        term.tenure().reason(),
        Some(StopReason::ForeignHolder("thief".into()))
    );
    wire.requests();
    drop(term);
    pass(secs(2)).await;
    assert!(!wire.requests().contains(&"release"));
    assert_eq!(holder(&lock).as_deref(), Some("thief"));
    let leader = "thief".to_owned();
    assert_eq!(candidate.handle().status(), Status::Follower { leader });
}

#[tokio::test(start_paused = true)]
async fn extra_5_a_deleted_lock_ends_the_term_and_is_won_anew_with_a_greater_token() {
    let lock = MemoryLock::new("x");
    let wire = Wire::to(&lock);
    let mut candidate = wire.elector("a").build().unwrap().start();
    let first = lead(&mut candidate).await;
    lock.delete();
    first.tenure().cancelled().await;
    assert_eq!(first.tenure().reason(), Some(StopReason::Deleted));
    let old = first.tenure().token().clone();
    drop(first);
    let second = lead(&mut candidate).await;
    assert!(*second.tenure().token() > old);
}

#[tokio::test(start_paused = true)]
async fn extra_4_release_racing_a_take_over_leaves_the_successor_alone() {
    let lock = MemoryLock::new("x");
    let wire = Wire::to(&lock).unwatched();
    let mut candidate = wire.elector("a").build().unwrap().start_once();
    let term = lead(&mut candidate).await;
    candidate.shutdown();
    pass(Duration::from_millis(1)).await;
    lock.edit(|object| object["spec"]["holderIdentity"] = "b".into());
    drop(term);
    while !matches!(candidate.next().await, Some(Event::Finished) | None) {}
    assert_eq!(holder(&lock).as_deref(), Some("b"));
}

#[tokio::test(start_paused = true)]
async fn work_that_ignores_cancel_is_dropped_before_its_deadline() {
    let lock = MemoryLock::new("x");
    let wire = Wire::to(&lock);
    let overruns = Arc::new(AtomicU32::new(0));
    let count = overruns.clone();
    let elector = wire
        .elector("a")
        .on_overrun(Overrun::call(move |_| {
            count.fetch_add(1, SeqCst);
        }))
        .build()
        .unwrap();
    let ended = elector
        .run(pass(secs(5)), |_| std::future::pending::<()>())
        .await;
    let Ended::Stopped { reason, output } = ended else {
        panic!("{ended:?}")
    };
    assert_eq!((reason, output), (StopReason::Shutdown, None));
    assert_eq!(overruns.load(SeqCst), 0, "it could be dropped");
}

#[tokio::test(start_paused = true)]
async fn overrun_policy_applies_to_work_that_cannot_be_dropped_and_nothing_is_released() {
    let lock = MemoryLock::new("x");
    let wire = Wire::to(&lock);
    let overruns = Arc::new(AtomicU32::new(0));
    let count = overruns.clone();
    let mut candidate = wire
        .elector("a")
        .on_overrun(Overrun::call(move |_| {
            count.fetch_add(1, SeqCst);
        }))
        .build()
        .unwrap()
        .start();
    let term = lead(&mut candidate).await;
    candidate.shutdown();
    pass(secs(60)).await;
    assert_eq!(overruns.load(SeqCst), 1);
    drop(term);
    while !matches!(candidate.next().await, Some(Event::Finished) | None) {}
    assert!(!wire.requests().contains(&"release"));
    assert_eq!(holder(&lock).as_deref(), Some("a"), "it runs out by itself");
}

#[tokio::test(start_paused = true)]
async fn panicking_work_is_caught_and_ends_the_term() {
    let lock = MemoryLock::new("x");
    let wire = Wire::to(&lock);
    let ended = wire
        .elector("a")
        .build()
        .unwrap()
        .run(std::future::pending::<()>(), |_| async { panic!("ouch") })
        .await;
    let Ended::<()>::Panicked(payload) = ended else {
        panic!("{ended:?}")
    };
    assert_eq!(payload.downcast_ref(), Some(&"ouch"));
    assert_eq!(holder(&lock).as_deref(), Some(""), "released after its end");
}

#[tokio::test(start_paused = true)]
async fn campaign_continues_after_a_panic_and_after_a_loss() {
    let lock = MemoryLock::new("x");
    let wire = Wire::to(&lock);
    let mut turn = 0;
    let terms = wire
        .elector("a")
        .build()
        .unwrap()
        .campaign(pass(secs(60)), |tenure| {
            turn += 1;
            let (turn, lock) = (turn, lock.clone());
            async move {
                match turn {
                    1 => panic!("first"),
                    2 => lock.edit(|object| object["spec"]["holderIdentity"] = "".into()),
                    _ => {}
                }
                tenure.cancelled().await;
            }
        })
        .await;
    assert_eq!(terms, 3);
    assert_eq!(holder(&lock).as_deref(), Some(""));
}

#[tokio::test(start_paused = true)]
async fn case_15_a_release_follows_a_renewal_whose_answer_was_lost() {
    let lock = MemoryLock::new("x");
    let wire = Wire::to(&lock).unwatched();
    let mut candidate = wire.elector("a").build().unwrap().start();
    let term = lead(&mut candidate).await;
    wire.lose_answers(true);
    pass(secs(3)).await;
    candidate.shutdown();
    drop(term);
    pass(Duration::from_millis(500)).await;
    wire.lose_answers(false);
    while !matches!(candidate.next().await, Some(Event::Finished) | None) {}
    assert_eq!(holder(&lock).as_deref(), Some(""));
}

#[tokio::test(start_paused = true)]
async fn case_16_a_release_follows_a_read_whose_answer_was_lost() {
    let lock = MemoryLock::new("x");
    let wire = Wire::to(&lock).unwatched();
    let mut candidate = wire.elector("a").build().unwrap().start();
    let term = lead(&mut candidate).await;
    wire.requests();
    // After a conflict the candidate reads, and the response to that read is lost.
    lock.edit(|object| object["metadata"]["labels"] = serde_json::json!({ "by": "somebody" }));
    wire.lose_reads(true);
    while wire.requests().last() != Some(&"get") {
        pass(Duration::from_millis(10)).await;
    }
    candidate.shutdown();
    drop(term);
    pass(Duration::from_millis(500)).await;
    wire.lose_reads(false);
    while !matches!(candidate.next().await, Some(Event::Finished) | None) {}
    assert_eq!(holder(&lock).as_deref(), Some(""));
}

#[tokio::test(start_paused = true)]
async fn dropping_the_candidate_steps_down_and_releases() {
    let lock = MemoryLock::new("x");
    let wire = Wire::to(&lock);
    let mut candidate = wire.elector("a").build().unwrap().start();
    let term = lead(&mut candidate).await;
    let handle = candidate.handle();
    assert!(handle.is_leading());
    drop(candidate);
    term.tenure().cancelled().await;
    assert!(!handle.is_leading());
    drop(term);
    pass(secs(1)).await;
    assert_eq!(holder(&lock).as_deref(), Some(""));
    assert_eq!(handle.status(), Status::Unknown);
}

#[tokio::test(start_paused = true)]
async fn stepping_down_lets_another_lead_at_once() {
    let lock = MemoryLock::new("x");
    let (one, two) = (Wire::to(&lock), Wire::to(&lock));
    let mut a = one.elector("a").build().unwrap().start();
    let term = lead(&mut a).await;
    let mut b = two.elector("b").build().unwrap().start();
    pass(secs(3)).await;
    a.handle().step_down(secs(60));
    term.tenure().cancelled().await;
    assert_eq!(term.tenure().reason(), Some(StopReason::StepDown));
    let before = tokio::time::Instant::now();
    drop(term);
    let term = lead(&mut b).await;
    assert!(
        before.elapsed() <= Duration::from_millis(60),
        "by the watch"
    );
    assert_eq!(
        (term.tenure().identity(), term.tenure().transitions()),
        ("b", 1)
    );
}

/// Waits until the candidate leads.
pub(crate) async fn lead(candidate: &mut tenure::Candidate) -> tenure::Term {
    loop {
        match candidate.next().await {
            Some(Event::Lead(term)) => return term,
            Some(_) => {}
            None => panic!("it will never lead"),
        }
    }
}

#[tokio::test(start_paused = true)]
async fn aborted_work_that_keeps_a_handle_is_not_joined_within_the_limit() {
    let lock = MemoryLock::new("x");
    let elector = Wire::to(&lock).elector("a").build().unwrap();
    let mut candidate = elector.start();
    let term = loop {
        if let Some(Event::Lead(term)) = candidate.next().await {
            break term;
        }
    };
    // This is shorter than the time between the drop and the deadline. At the deadline, the process would be aborted.
    let limit = Duration::from_millis(100);
    let handle = term.tenure().clone();
    candidate.shutdown();
    let began = tokio::time::Instant::now();
    assert!(!term.joined(async {}).await, "a handle is left");
    let dropped = began.elapsed();
    assert!(dropped > secs(1), "work has time to stop: {dropped:?}");
    assert!(!term.joined_within(limit, async {}).await);
    assert_eq!(began.elapsed() - dropped, limit);
    drop(handle);
    assert!(term.joined_within(limit, async {}).await);
}
