//! Work that continues after its future has ended: the term is joined only when its last handle is dropped.

use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tenure::{Ended, MemoryLock, Overrun, StopReason, Tenure};

use crate::wire::{Wire, holder, pass, secs};

/// A place where work stores a handle for the test to drop. It represents a thread that continues to run.
type Left = Arc<Mutex<Option<Tenure>>>;

fn counting(overruns: &Arc<AtomicU32>) -> Overrun {
    let overruns = overruns.clone();
    Overrun::call(move |_| {
        overruns.fetch_add(1, SeqCst);
    })
}

#[tokio::test(start_paused = true)]
async fn a_term_is_not_released_while_a_clone_of_its_handle_lives() {
    let lock = MemoryLock::new("x");
    let wire = Wire::to(&lock);
    let left = Left::default();
    let work = {
        let left = left.clone();
        |tenure: Tenure| async move {
            *left.lock().unwrap() = Some(tenure.clone());
            tenure.cancelled().await;
        }
    };
    let elector = wire.elector("a").build().unwrap();
    let run = tokio::spawn(elector.run(pass(secs(5)), work));
    pass(secs(8)).await;
    assert!(!run.is_finished(), "a part of the work goes on");
    assert_eq!(holder(&lock).as_deref(), Some("a"));
    left.lock().unwrap().take();
    let Ended::Stopped { reason, output } = run.await.unwrap() else {
        panic!("it led")
    };
    assert_eq!((reason, output), (StopReason::Shutdown, Some(())));
    assert_eq!(holder(&lock).as_deref(), Some(""));
}

#[tokio::test(start_paused = true)]
async fn work_that_completes_ends_its_term_and_the_release_waits_for_its_threads() {
    let lock = MemoryLock::new("x");
    let wire = Wire::to(&lock);
    let left = Left::default();
    let work = {
        let left = left.clone();
        |tenure: Tenure| async move { *left.lock().unwrap() = Some(tenure) }
    };
    let elector = wire.elector("a").build().unwrap();
    let run = tokio::spawn(elector.run(std::future::pending::<()>(), work));
    pass(secs(3)).await;
    let thread = left.lock().unwrap().take().unwrap();
    assert!(!thread.is_leading(), "the term has ended");
    assert_eq!(thread.reason(), Some(StopReason::WorkEnded));
    assert!(!wire.requests().contains(&"release"));
    drop(thread);
    assert!(matches!(run.await.unwrap(), Ended::Completed(())));
    assert_eq!(wire.requests(), ["get", "release"]);
}

#[tokio::test(start_paused = true)]
async fn overrun_policy_applies_to_a_thread_that_continues_after_a_forced_drop() {
    let lock = MemoryLock::new("x");
    let wire = Wire::to(&lock);
    let overruns = Arc::new(AtomicU32::new(0));
    let left = Left::default();
    let work = {
        let left = left.clone();
        |tenure: Tenure| async move {
            *left.lock().unwrap() = Some(tenure);
            std::future::pending::<()>().await;
        }
    };
    let elector = wire.elector("a").on_overrun(counting(&overruns));
    let run = tokio::spawn(elector.build().unwrap().run(pass(secs(5)), work));
    pass(secs(60)).await;
    assert_eq!(overruns.load(SeqCst), 1, "the policy ends the process");
    left.lock().unwrap().take();
    assert!(matches!(
        run.await.unwrap(),
        Ended::Stopped { output: None, .. }
    ));
    assert!(!wire.requests().contains(&"release"));
    assert_eq!(holder(&lock).as_deref(), Some("a"), "it expires");
}

#[tokio::test(start_paused = true)]
async fn dropping_the_future_of_run_releases_only_after_the_last_handle() {
    let lock = MemoryLock::new("x");
    let wire = Wire::to(&lock);
    let left = Left::default();
    let work = {
        let left = left.clone();
        |tenure: Tenure| async move {
            *left.lock().unwrap() = Some(tenure.clone());
            tenure.cancelled().await;
        }
    };
    let elector = wire.elector("a").build().unwrap();
    let run = tokio::spawn(elector.run(std::future::pending::<()>(), work));
    pass(secs(5)).await;
    run.abort();
    pass(secs(2)).await;
    let thread = left.lock().unwrap().take().unwrap();
    assert!(!thread.is_leading());
    assert_eq!(holder(&lock).as_deref(), Some("a"), "not yet released");
    drop(thread);
    pass(Duration::from_millis(100)).await;
    assert_eq!(holder(&lock).as_deref(), Some(""));
}

#[tokio::test(start_paused = true)]
async fn overrun_policy_applies_to_a_thread_of_a_dropped_run() {
    let lock = MemoryLock::new("x");
    let wire = Wire::to(&lock);
    let overruns = Arc::new(AtomicU32::new(0));
    let left = Left::default();
    let work = {
        let left = left.clone();
        |tenure: Tenure| async move {
            *left.lock().unwrap() = Some(tenure);
            std::future::pending::<()>().await;
        }
    };
    let elector = wire.elector("a").on_overrun(counting(&overruns));
    let run = elector
        .build()
        .unwrap()
        .run(std::future::pending::<()>(), work);
    let run = tokio::spawn(run);
    pass(secs(5)).await;
    run.abort();
    pass(secs(60)).await;
    assert_eq!(overruns.load(SeqCst), 1);
    assert!(!wire.requests().contains(&"release"));
}

#[tokio::test(start_paused = true)]
async fn the_next_term_of_a_campaign_waits_for_the_threads_of_the_last() {
    let lock = MemoryLock::new("x");
    let wire = Wire::to(&lock);
    let left = Left::default();
    let terms = Arc::new(AtomicU32::new(0));
    let work = {
        let (left, terms) = (left.clone(), terms.clone());
        move |tenure: Tenure| {
            let (left, number) = (left.clone(), terms.fetch_add(1, SeqCst));
            async move {
                if number == 0 {
                    *left.lock().unwrap() = Some(tenure);
                } else {
                    tenure.cancelled().await;
                }
            }
        }
    };
    let elector = wire.elector("a").on_overrun(Overrun::Log).build().unwrap();
    let run = tokio::spawn(elector.campaign(pass(secs(120)), work));
    pass(secs(60)).await;
    assert_eq!(terms.load(SeqCst), 1, "its thread goes on");
    left.lock().unwrap().take();
    assert_eq!(run.await.unwrap(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_spawned_task_is_joined_before_the_release() {
    let lock = MemoryLock::new("x");
    let wire = Wire::to(&lock);
    let seen = Arc::new(Mutex::new(None));
    let work = {
        let (seen, lock) = (seen.clone(), lock.clone());
        |tenure: Tenure| async move {
            let end = tenure.observer();
            tenure.spawn(async move {
                end.cancelled().await;
                pass(secs(3)).await;
                *seen.lock().unwrap() = holder(&lock);
            });
            tenure.cancelled().await;
        }
    };
    let elector = wire.elector("a").build().unwrap();
    elector.run(pass(secs(5)), work).await;
    assert_eq!(seen.lock().unwrap().as_deref(), Some("a"));
    assert_eq!(holder(&lock).as_deref(), Some(""));
}

#[tokio::test(start_paused = true)]
async fn a_spawned_task_that_ignores_the_end_is_dropped_before_the_deadline() {
    let lock = MemoryLock::new("x");
    let wire = Wire::to(&lock);
    let overruns = Arc::new(AtomicU32::new(0));
    let task = Arc::new(Mutex::new(None));
    let work = {
        let task = task.clone();
        |tenure: Tenure| async move {
            let spawned = tenure.spawn(std::future::pending::<()>());
            *task.lock().unwrap() = Some(spawned);
        }
    };
    let elector = wire.elector("a").on_overrun(counting(&overruns));
    let pending = std::future::pending::<()>();
    let ended = elector.build().unwrap().run(pending, work).await;
    assert!(matches!(ended, Ended::Completed(())));
    let task = task.lock().unwrap().take().unwrap();
    assert_eq!(task.await.unwrap(), None, "it was dropped");
    assert_eq!(overruns.load(SeqCst), 0);
}

#[tokio::test(start_paused = true)]
async fn a_blocking_call_keeps_the_lock_until_it_returns() {
    let lock = MemoryLock::new("x");
    let wire = Wire::to(&lock);
    let (release, released) = std::sync::mpsc::channel::<()>();
    let work = |tenure: Tenure| async move {
        // Blocks until the other end is dropped.
        drop(tenure.spawn_blocking(move || released.recv()));
    };
    let elector = wire.elector("a").build().unwrap();
    let run = tokio::spawn(elector.run(std::future::pending::<()>(), work));
    // Time does not advance by itself while a thread blocks.
    for _ in 0..40 {
        tokio::time::advance(Duration::from_millis(100)).await;
    }
    assert!(!run.is_finished());
    assert_eq!(holder(&lock).as_deref(), Some("a"));
    drop(release);
    assert!(matches!(run.await.unwrap(), Ended::Completed(())));
    assert_eq!(holder(&lock).as_deref(), Some(""));
}

#[tokio::test(start_paused = true)]
async fn a_set_of_tasks_is_joined() {
    let lock = MemoryLock::new("x");
    let elector = Wire::to(&lock).elector("a").build().unwrap();
    let ended = elector.run(std::future::pending::<()>(), |tenure| async move {
        let mut tasks = tenure::TaskSet::new(&tenure);
        for number in 0..4 {
            tasks.spawn(async move {
                pass(secs(number)).await;
                number
            });
        }
        assert_eq!((tasks.len(), tasks.is_empty()), (4, false));
        let results = tasks.join_all().await.into_iter();
        results.map(|result| result.unwrap()).collect::<Vec<_>>()
    });
    let Ended::Completed(results) = ended.await else {
        panic!("it led")
    };
    assert_eq!(results, [Some(0), Some(1), Some(2), Some(3)]);
}
