//! client-go's callbacks, in a defined order and always paired.

use std::fmt;

use tenure_core::StopReason;
use tenure_lock::BoxFuture;

use crate::tenure::Tenure;

/// client-go's `LeaderCallbacks` with stricter guarantees. `on_stopped_leading` is called only after
/// `on_started_leading` was called and its future has ended, and before the lock is released. `on_new_leader` is called
/// in the order of the changes. The task that runs the elector calls all of them.
pub struct Callbacks {
    started: Box<dyn FnMut(Tenure) -> BoxFuture<'static, ()> + Send>,
    stopped: Box<dyn FnMut(&StopReason) + Send>,
    new_leader: Box<dyn FnMut(&str) + Send>,
}

impl Callbacks {
    /// Creates the two callbacks that client-go requires.
    pub fn new<W>(
        mut on_started_leading: impl FnMut(Tenure) -> W + Send + 'static,
        on_stopped_leading: impl FnMut(&StopReason) + Send + 'static,
    ) -> Self
    where
        W: Future<Output = ()> + Send + 'static,
    {
        Self {
            started: Box::new(move |tenure| Box::pin(on_started_leading(tenure))),
            stopped: Box::new(on_stopped_leading),
            new_leader: Box::new(|_| {}),
        }
    }

    /// Sets a callback for each new holder, including this candidate. The name is empty if the lock was released and
    /// has no new holder yet.
    #[must_use]
    pub fn on_new_leader(mut self, call: impl FnMut(&str) + Send + 'static) -> Self {
        self.new_leader = Box::new(call);
        self
    }

    pub(crate) fn started_leading(&mut self, tenure: Tenure) -> BoxFuture<'static, ()> {
        (self.started)(tenure)
    }

    pub(crate) fn stopped_leading(&mut self, reason: &StopReason) {
        (self.stopped)(reason);
    }

    pub(crate) fn new_leader(&mut self, holder: &str) {
        (self.new_leader)(holder);
    }
}

impl fmt::Debug for Callbacks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Callbacks").finish_non_exhaustive()
    }
}
