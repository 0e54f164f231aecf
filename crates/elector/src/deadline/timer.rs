//! A timer for programs, on the deadline thread.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tenure_core::LocalTime;

use super::board::Watched;
use super::thread::{look_again, look_now, watch};
use crate::clock::{Clock, SystemClock};
use crate::sync::{Mutex, lock};

/// A function that the deadline thread calls at an instant. The instant can be moved. Dropping the `Deadline` cancels
/// the call.
///
/// ```
/// # use std::time::Duration;
/// use tenure::clock::{Clock, SystemClock};
/// use tenure::deadline::Deadline;
///
/// let far = SystemClock.now().local + Duration::from_secs(60);
/// let deadline = Deadline::new(far, || eprintln!("too late"));
/// deadline.move_to(far + Duration::from_secs(60));
/// drop(deadline); // never called
/// ```
#[must_use = "dropping it cancels the call"]
pub struct Deadline {
    pub(super) call: Arc<Call>,
}

pub(super) struct Call(pub(super) Mutex<Pending>);

pub(super) struct Pending {
    pub(super) at: LocalTime,
    act: Option<Box<dyn FnOnce() + Send>>,
}

impl Deadline {
    /// Calls `act` at the instant, on [`SystemClock`]. `act` must not block, because other deadlines wait for it.
    pub fn new(at: LocalTime, act: impl FnOnce() + Send + 'static) -> Self {
        let act: Option<Box<dyn FnOnce() + Send>> = Some(Box::new(act));
        let call = Arc::new(Call(Mutex::new(Pending { at, act })));
        watch(call.clone());
        Self { call }
    }

    /// Moves the instant, earlier or later. Does nothing if the call was already made.
    pub fn move_to(&self, at: LocalTime) {
        lock(&self.call.0).at = at;
        look_now();
    }
}

impl Drop for Deadline {
    fn drop(&mut self) {
        lock(&self.call.0).act = None;
        look_again();
    }
}

impl fmt::Debug for Deadline {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let pending = lock(&self.call.0);
        f.debug_struct("Deadline")
            .field("at", &pending.at)
            .field("called", &pending.act.is_none())
            .finish()
    }
}

impl Watched for Call {
    fn look(&self) -> Option<Duration> {
        let mut pending = lock(&self.0);
        pending.act.as_ref()?;
        let left = pending.at.since(SystemClock.now().local);
        if !left.is_zero() {
            return Some(left);
        }
        let act = pending.act.take();
        drop(pending);
        if let Some(act) = act {
            act();
        }
        None
    }

    fn on_system_clock(&self) -> bool {
        true
    }
}
