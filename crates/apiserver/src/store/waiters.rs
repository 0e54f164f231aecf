//! Tasks that wait for a revision to be published.
//!
//! A writer on a shared store waits until its own write is published here. Each task waits for its own revision and is
//! woken once, by the publication that reaches it.

use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::oneshot;

/// The published revision and the tasks that wait for a later one.
#[derive(Debug)]
pub(super) struct Waiters(Mutex<Waiting>);

#[derive(Debug)]
struct Waiting {
    published: u64,
    list: Vec<(u64, oneshot::Sender<()>)>,
}

impl Waiters {
    pub(super) fn new(published: u64) -> Self {
        let list = Vec::new();
        Self(Mutex::new(Waiting { published, list }))
    }

    /// Returns a receiver that resolves when the revision is published; `None` if it is already published.
    pub(super) fn wait(&self, revision: u64) -> Option<oneshot::Receiver<()>> {
        let mut waiting = self.lock();
        if waiting.published >= revision {
            return None;
        }
        let list = &mut waiting.list;
        if list.len() == list.capacity() {
            // Removes cancelled waiters before the list grows.
            list.retain(|(_, waiter)| !waiter.is_closed());
        }
        let (waiter, reached) = oneshot::channel();
        list.push((revision, waiter));
        Some(reached)
    }

    /// Wakes all tasks that wait for this revision or an earlier one.
    pub(super) fn publish(&self, revision: u64) {
        let mut waiting = self.lock();
        waiting.published = revision.max(waiting.published);
        let published = waiting.published;
        let due: Vec<_> = waiting
            .list
            .extract_if(.., |(wanted, _)| *wanted <= published)
            .collect();
        drop(waiting);
        for (_, waiter) in due {
            // The waiter may have been cancelled.
            let _ = waiter.send(());
        }
    }

    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn publication_wakes_all_tasks_up_to_its_revision() {
        let waiters = Waiters::new(5);
        assert!(waiters.wait(5).is_none());
        let mut seven = waiters.wait(7).expect("the revision is not published yet");
        let mut nine = waiters.wait(9).expect("the revision is not published yet");
        waiters.publish(6);
        assert!(seven.try_recv().is_err());
        waiters.publish(8);
        assert_eq!(seven.try_recv(), Ok(()));
        assert!(nine.try_recv().is_err());
        waiters.publish(7);
        assert!(waiters.wait(8).is_none(), "the revision must not decrease");
        waiters.publish(9);
        assert_eq!(nine.try_recv(), Ok(()));
    }

    #[test]
    fn cancelled_waiters_are_removed() {
        let waiters = Waiters::new(0);
        let kept = waiters.wait(1).expect("the revision is not published yet");
        for _ in 0..10_000 {
            drop(waiters.wait(1));
        }
        assert!(waiters.lock().list.capacity() < 100);
        waiters.publish(1);
        assert_eq!(kept.blocking_recv(), Ok(()));
    }
}
