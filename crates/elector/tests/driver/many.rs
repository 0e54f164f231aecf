//! Thousands of elections in one process.

use std::sync::Arc;

use tenure::{Elector, Event, Hub, MemoryLock};

use crate::term::lead;
use crate::wire::{clock, holder, pass, secs};

const MANY: usize = 2_000;

fn tasks() -> usize {
    tokio::runtime::Handle::current()
        .metrics()
        .num_alive_tasks()
}

#[tokio::test(start_paused = true)]
async fn two_thousand_elections_start_and_end_on_one_task_and_leave_none() {
    let before = tasks();
    let hub = Hub::with_clock(None, clock());
    let locks: Vec<_> = (0..MANY)
        .map(|i| MemoryLock::new(&format!("s{i}")))
        .collect();
    let mut held = Vec::new();
    for lock in &locks {
        let elector = Elector::builder(Arc::new(lock.clone()))
            .hub(&hub)
            .identity("a");
        held.push((elector.build().unwrap().start(), None));
    }
    for (candidate, term) in &mut held {
        *term = Some(lead(candidate).await);
    }
    assert_eq!(tasks(), before + 1, "the hub");
    pass(secs(10)).await;
    for (_, term) in &held {
        assert!(term.as_ref().unwrap().tenure().is_leading());
    }
    // Half of them are dropped, the others are shut down gracefully.
    let second = held.split_off(MANY / 2);
    drop(held);
    for (mut candidate, term) in second {
        candidate.shutdown();
        drop(term);
        while !matches!(candidate.next().await, Some(Event::Finished) | None) {}
    }
    pass(secs(1)).await;
    for lock in &locks {
        assert_eq!(holder(lock).as_deref(), Some(""), "released");
    }
    assert_eq!(tasks(), before + 1, "the hub waits for more");
    drop(hub);
    pass(secs(1)).await;
    assert_eq!(tasks(), before);
}

#[tokio::test(start_paused = true)]
async fn an_elector_that_is_dropped_while_it_follows_leaves_no_task() {
    let lock = MemoryLock::new("x");
    let before = tasks();
    let builder = || {
        Elector::builder(Arc::new(lock.clone()))
            .identity("a")
            .clock(clock())
    };
    let mut leader = builder().identity("a").build().unwrap().start();
    let term = lead(&mut leader).await;
    let follower = builder().identity("b").build().unwrap();
    let follower = tokio::spawn(follower.campaign(std::future::pending::<()>(), |_| async {}));
    pass(secs(30)).await;
    follower.abort();
    pass(secs(1)).await;
    assert_eq!(tasks(), before + 1, "the leader's");
    drop((leader, term));
    pass(secs(1)).await;
    assert_eq!(tasks(), before);
}

/// User code panics where the hub calls it.
#[tokio::test(start_paused = true)]
async fn a_hook_that_panics_ends_no_other_election_of_its_hub() {
    let hub = Hub::with_clock(None, clock());
    let locks = ["a", "b"].map(MemoryLock::new);
    let mut candidates = locks.each_ref().map(|lock| {
        let elector = Elector::builder(Arc::new(lock.clone())).hub(&hub);
        elector.identity("me").build().unwrap().start()
    });
    let first = lead(&mut candidates[0]).await;
    let second = lead(&mut candidates[1]).await;
    first.tenure().at_end(|_| panic!("a hook"));
    candidates[0].handle().step_down(secs(1));
    first.tenure().cancelled().await;
    drop(first);
    pass(secs(30)).await;
    assert!(second.tenure().is_leading(), "it was renewed all the while");
    let again = lead(&mut candidates[0]).await;
    assert_eq!(
        again.tenure().transitions(),
        1,
        "its own election goes on, too"
    );
}
