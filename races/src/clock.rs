//! A clock that stands still until a model moves it.

use std::any::Any;
use std::cell::RefCell;
use std::fmt;
use std::pin::Pin;
use std::rc::Rc;
use std::time::Duration;

use loom::sync::atomic::{AtomicU64, Ordering};
use tenure_core::{LocalTime, Now, WallTime};

/// Time at which a run begins, in milliseconds.
const START: u64 = 1_000_000;

thread_local! {
    static MILLIS: RefCell<Option<Rc<AtomicU64>>> = const { RefCell::new(None) };
}

pub(crate) fn reset() {
    MILLIS.set(Some(Rc::new(AtomicU64::new(START))));
}

pub(crate) fn advance(time: Duration) {
    let millis = u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
    add(millis);
}

/// Relaxed ordering: every read gets the latest value, as from the clock of a machine, but orders no other memory
/// access.
fn add(millis: u64) -> u64 {
    let clock = MILLIS.with_borrow(Clone::clone).expect("a model runs");
    clock.fetch_add(millis, Ordering::Relaxed)
}

/// Copy of the trait in the library, which the models do not link.
pub(crate) trait Clock: Any + fmt::Debug + Send + Sync {
    fn now(&self) -> Now;
    fn sleep_until(&self, at: LocalTime) -> Pin<Box<dyn Future<Output = ()> + Send>>;
    fn is_real(&self) -> bool;
}

/// Replaces the clock of the machine.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> Now {
        let millis = add(0);
        Now {
            local: LocalTime::from_nanos(millis * 1_000_000),
            wall: WallTime::from_micros(i64::try_from(millis).unwrap_or(i64::MAX) * 1_000),
        }
    }

    fn sleep_until(&self, _: LocalTime) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        Box::pin(std::future::ready(()))
    }

    fn is_real(&self) -> bool {
        true
    }
}
