//! client-go's callbacks: paired, joined, in order.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tenure::{Callbacks, HealthAdaptor, MemoryLock, StopReason};

use crate::wire::{Wire, holder, pass, secs};

type Log = Arc<Mutex<Vec<String>>>;

/// Callbacks that record each call and the holder of the lock at that time.
fn recording(lock: &MemoryLock) -> (Callbacks, Log) {
    let log = Log::default();
    let note = {
        let (log, lock) = (log.clone(), lock.clone());
        move |what: &str| {
            let holder = holder(&lock).unwrap_or_default();
            log.lock().unwrap().push(format!("{what} [{holder}]"));
        }
    };
    let (started, stopped, seen) = (note.clone(), note.clone(), note);
    let callbacks = Callbacks::new(
        move |tenure| {
            let note = started.clone();
            async move {
                note("started");
                tenure.cancelled().await;
                pass(secs(1)).await;
                note("wound down");
            }
        },
        move |reason| stopped(&format!("stopped {}", reason.as_str())),
    )
    .on_new_leader(move |leader| seen(&format!("leader {leader:?}")));
    (callbacks, log)
}

#[tokio::test(start_paused = true)]
async fn extra_9_callback_order_started_stopping_stopped_and_only_then_released() {
    let lock = MemoryLock::new("x");
    let (callbacks, log) = recording(&lock);
    let elector = Wire::to(&lock).elector("a").build().unwrap();
    let reason = elector.run_callbacks(pass(secs(5)), callbacks).await;
    assert_eq!(reason, Some(StopReason::Shutdown));
    assert_eq!(holder(&lock).as_deref(), Some(""));
    let log = log.lock().unwrap();
    assert_eq!(
        *log,
        [
            "leader \"a\" [a]",
            "started [a]",
            "wound down [a]",
            "stopped shutdown [a]",
            "leader \"\" []",
        ],
    );
}

#[tokio::test(start_paused = true)]
async fn stopped_callback_is_not_called_without_a_term() {
    let lock = MemoryLock::new("x");
    let mut other = Wire::to(&lock).elector("other").build().unwrap().start();
    let term = crate::term::lead(&mut other).await;
    let (callbacks, log) = recording(&lock);
    let elector = Wire::to(&lock).elector("a").build().unwrap();
    assert_eq!(elector.run_callbacks(pass(secs(20)), callbacks).await, None);
    assert_eq!(*log.lock().unwrap(), ["leader \"other\" [other]"]);
    drop(term);
}

#[tokio::test(start_paused = true)]
async fn new_leaders_are_reported_in_order() {
    let lock = MemoryLock::new("x");
    let (callbacks, log) = recording(&lock);
    let elector = Wire::to(&lock).elector("a").build().unwrap();
    let run = tokio::spawn(elector.run_callbacks(pass(secs(60)), callbacks));
    pass(secs(3)).await;
    for name in ["b", "c", "d"] {
        lock.edit(|object| object["spec"]["holderIdentity"] = name.into());
        pass(Duration::from_millis(100)).await;
    }
    assert_eq!(
        run.await.unwrap(),
        Some(StopReason::ForeignHolder("b".into()))
    );
    let log = log.lock().unwrap();
    let leaders: Vec<_> = log.iter().filter(|l| l.starts_with("leader")).collect();
    assert_eq!(leaders.len(), 4, "{leaders:?}");
    for (line, name) in leaders.iter().zip(["a", "b", "c", "d"]) {
        assert!(line.starts_with(&format!("leader {name:?}")), "{leaders:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn work_that_returns_early_keeps_the_lock_as_in_client_go() {
    let lock = MemoryLock::new("x");
    let callbacks = Callbacks::new(|_| async {}, |_| {});
    let elector = Wire::to(&lock).elector("a").build().unwrap();
    let run = tokio::spawn(elector.run_callbacks(pass(secs(30)), callbacks));
    pass(secs(29)).await;
    assert_eq!(holder(&lock).as_deref(), Some("a"));
    assert_eq!(run.await.unwrap(), Some(StopReason::Shutdown));
}

#[tokio::test(start_paused = true)]
async fn run_or_die_attaches_the_watchdog_and_runs_one_term() {
    let lock = MemoryLock::new("x");
    let adaptor = Arc::new(HealthAdaptor::new(secs(20)));
    let (callbacks, log) = recording(&lock);
    let builder = Wire::to(&lock).elector("a").watchdog(&adaptor);
    builder.run_or_die(pass(secs(5)), callbacks).await;
    assert_eq!(log.lock().unwrap().len(), 5);
    pass(secs(3600)).await;
    assert_eq!(adaptor.check(), Ok(()), "it let go of the lock");
}

#[tokio::test(start_paused = true)]
#[should_panic(expected = "the identity is empty")]
async fn run_or_die_panics_on_an_invalid_configuration() {
    let lock = MemoryLock::new("x");
    let callbacks = Callbacks::new(|_| async {}, |_| {});
    let builder = Wire::to(&lock).elector("");
    builder.run_or_die(pass(secs(5)), callbacks).await;
}
