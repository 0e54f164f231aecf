//! client-go's callbacks, in order and paired.

use std::fmt;

use tenure_core::StopReason;
use tenure_lock::BoxFuture;

use crate::guard::Tenure;

/// client-go's `LeaderCallbacks`, with its gaps closed: `on_stopped_leading` is called only after
/// `on_started_leading` was, when its future has ended, and before the lock is given back; and
/// `on_new_leader` is called in the order of the changes. All are called by the task that runs the
/// elector.
pub struct Callbacks {
    started: Box<dyn FnMut(Tenure) -> BoxFuture<'static, ()> + Send>,
    stopped: Box<dyn FnMut(&StopReason) + Send>,
    new_leader: Box<dyn FnMut(&str) + Send>,
}

impl Callbacks {
    /// The two callbacks that client-go requires.
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

    /// Called with each new holder, also with this candidate, and with an empty name when the lock was
    /// released and nobody has followed yet.
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
