//! Ownership of one term.

use std::sync::Arc;
use std::time::Duration;

use tenure_core::{LocalTime, StopReason};

use crate::deadline::Watchdog;
use crate::shared::Link;
use crate::tenure::Tenure;

/// Ownership of one term, with the obligation to run its work. Dropping it ends the term. The lock is released when
/// every clone of its [`Tenure`] has been dropped as well, because parts of the work may run until then.
#[derive(Debug)]
#[must_use = "dropping it ends the term"]
pub struct Term {
    tenure: Tenure,
    dog: Arc<Watchdog>,
}

impl Term {
    pub(crate) fn new(dog: Arc<Watchdog>, link: Link) -> Self {
        dog.report_to(link);
        let tenure = Tenure::first(dog.clone());
        Self { tenure, dog }
    }

    /// Returns the handle for the work. Its clones are counted: the lock is not released while one exists.
    pub fn tenure(&self) -> &Tenure {
        &self.tenure
    }

    /// Returns the instant by which the work must have ended, as known now. It moves later with each renewal, and is
    /// fixed when the term is stopped.
    pub fn deadline(&self) -> LocalTime {
        self.dog.deadline()
    }

    /// Completes when the term has ended and unfinished work must be dropped, a little before the
    /// [`deadline`](Self::deadline).
    ///
    /// # Cancel safety
    ///
    /// Nothing is lost when the future is dropped.
    pub async fn drop_due(&self) {
        self.dog.drop_due().await;
    }

    /// Completes when no other handle of this term is left, so that dropping the `Term` releases the lock.
    ///
    /// # Cancel safety
    ///
    /// Nothing is lost when the future is dropped.
    pub async fn handles_gone(&self) {
        self.dog.one_handle_left().await;
    }

    /// Waits until `work` has completed and no other handle of this term is left. Returns false if unfinished work
    /// must be dropped first; see [`drop_due`](Self::drop_due).
    ///
    /// # Cancel safety
    ///
    /// Nothing of the term is lost when the future is dropped; `work` is dropped with it.
    pub async fn joined(&self, work: impl Future<Output = ()>) -> bool {
        tokio::select! {
            biased;
            () = self.all_ended(work) => true,
            () = self.drop_due() => false,
        }
    }

    /// Waits for work that was dropped or aborted. Returns false if `work` has not completed, or another handle of this
    /// term is left, after `limit` on the clock of the election. Such work blocks its thread, and only the
    /// [`Overrun`](crate::Overrun) policy can end it.
    pub async fn joined_within(&self, limit: Duration, work: impl Future<Output = ()>) -> bool {
        tokio::select! {
            biased;
            () = self.all_ended(work) => true,
            () = self.dog.pass(limit) => false,
        }
    }

    async fn all_ended(&self, work: impl Future<Output = ()>) {
        work.await;
        self.handles_gone().await;
    }
}

impl Drop for Term {
    fn drop(&mut self) {
        self.dog.cell.end(StopReason::WorkEnded);
        self.tenure.uncount();
        let handles = self.dog.drop_term();
        if handles > 0 {
            let lock = self.tenure.lock();
            tracing::info!(
                lock,
                handles,
                "parts of the work still run; keeping the lock until they end"
            );
        }
    }
}
