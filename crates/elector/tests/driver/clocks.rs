//! Clocks that jump, and a blocked runtime.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering::SeqCst};
use std::time::Duration;

use tenure::clock::{Clock, SystemClock, TokioClock};
use tenure::{Elector, Event, MemoryLock, Overrun, StopReason};
use tenure_core::{LocalTime, Now, WallTime};
use tenure_lock::BoxFuture;

use crate::term::lead;
use crate::wire::{Wire, pass, secs};

/// A clock whose wall clock can be set.
#[derive(Debug, Default)]
struct Jumpy<C> {
    clock: C,
    ahead: AtomicI64,
}

impl<C: Clock> Clock for Jumpy<C> {
    fn now(&self) -> Now {
        let now = self.clock.now();
        let wall = now.wall.as_micros() + self.ahead.load(SeqCst);
        Now {
            wall: WallTime::from_micros(wall),
            ..now
        }
    }

    fn sleep_until(&self, at: LocalTime) -> BoxFuture<'static, ()> {
        self.clock.sleep_until(at)
    }

    fn is_real(&self) -> bool {
        self.clock.is_real()
    }
}

#[tokio::test(start_paused = true)]
async fn a_wall_clock_that_jumps_forward_ends_the_term_and_one_set_back_does_not() {
    let lock = MemoryLock::new("x");
    let clock = Arc::new(Jumpy::<TokioClock>::default());
    let elector = Wire::to(&lock).elector("a").clock(clock.clone());
    let mut candidate = elector.build().unwrap().start();
    let term = lead(&mut candidate).await;
    clock.ahead.store(-3_600_000_000, SeqCst);
    pass(secs(60)).await;
    assert!(term.tenure().is_leading());
    clock.ahead.store(0, SeqCst);
    assert!(!term.tenure().is_leading(), "an hour seems to have passed");
    term.tenure().cancelled().await;
    assert_eq!(term.tenure().reason(), Some(StopReason::GuardExpired));
    let old = term.tenure().token().clone();
    drop(term);
    let again = lead(&mut candidate).await;
    assert!(*again.tenure().token() > old);
}

/// Uses the real clock, because the deadline thread does. Waits for the event, about half a second.
#[test]
fn a_stuck_runtime_does_not_keep_the_term_alive() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let (send, ended) = std::sync::mpsc::channel();
        let overran = send.clone();
        let mut candidate = Elector::builder(Arc::new(MemoryLock::new("x")))
            .lease_duration(secs(1))
            .renew_deadline(Duration::from_millis(400))
            .retry_period(Duration::from_millis(100))
            .on_overrun(Overrun::call(move |_| overran.send("overrun").unwrap()))
            .build()
            .unwrap()
            .start();
        let term = lead(&mut candidate).await;
        let handle = candidate.handle();
        term.tenure()
            .at_end(move |reason| send.send(reason.as_str()).unwrap());
        // This blocks the only thread of the runtime, and with it the driver.
        assert_eq!(ended.recv(), Ok("guard-expired"));
        assert!(!term.tenure().is_leading());
        assert!(!handle.is_leading());
        assert_eq!(ended.recv(), Ok("overrun"), "the work has still not ended");
    });
}

/// Uses the real clock, like the test above. Waits for events only.
#[test]
fn jump_of_the_wall_clock_unseen_by_the_driver_is_reported_to_it() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let clock = Arc::new(Jumpy::<SystemClock>::default());
        let lock = Arc::new(MemoryLock::new("x"));
        let elector = Elector::builder(lock).clock(clock.clone());
        let mut candidate = elector.build().unwrap().start();
        let term = lead(&mut candidate).await;
        let (send, ended) = std::sync::mpsc::channel();
        term.tenure()
            .at_end(move |reason| send.send(reason.as_str()).unwrap());
        clock.ahead.store(3_600_000_000, SeqCst);
        // This blocks the only thread of the runtime, so the driver reads no clock in the meantime.
        assert_eq!(ended.recv(), Ok("guard-expired"));
        clock.ahead.store(0, SeqCst);
        loop {
            match candidate.next().await {
                Some(Event::Stop(reason)) => break assert_eq!(reason, StopReason::GuardExpired),
                Some(Event::NewLeader(_)) => {}
                other => panic!("{other:?} instead of the end of the term"),
            }
        }
        assert!(!term.tenure().is_leading());
    });
}
