//! The leader, as a value that can be watched.

use std::sync::{Mutex, OnceLock};

use tenure_core::{FencingToken, LocalTime};
use tokio::sync::watch;

use crate::sync::lock;

/// The leader, as far as this candidate knows it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Status {
    /// The leader is unknown: before the first observation, after the end of a term, or after a release.
    #[default]
    Unknown,
    /// Another candidate leads.
    Follower {
        /// Identity of the leader.
        leader: String,
    },
    /// This candidate leads.
    Leader {
        /// Token of the term.
        token: FencingToken,
        /// Instant until which this candidate leads if no further renewal succeeds. Renewals move it without notifying
        /// watchers; [`Tenure::is_leading`](crate::Tenure::is_leading) compares it with the clock.
        until: LocalTime,
    },
}

impl Status {
    /// Returns whether watchers are notified of a change from `self` to `next`.
    pub(crate) fn differs(&self, next: &Self) -> bool {
        match (self, next) {
            (Self::Leader { token: a, .. }, Self::Leader { token: b, .. }) => a != b,
            (a, b) => a != b,
        }
    }
}

/// The current status, and its watchers.
#[derive(Debug, Default)]
pub(crate) struct Board {
    present: Mutex<Status>,
    /// Created for the first watcher, because a channel is many times larger than its content here.
    channel: OnceLock<watch::Sender<Status>>,
}

impl Board {
    pub(crate) fn get(&self) -> Status {
        lock(&self.present).clone()
    }

    pub(crate) fn leads(&self) -> bool {
        matches!(*lock(&self.present), Status::Leader { .. })
    }

    pub(crate) fn subscribe(&self) -> watch::Receiver<Status> {
        // Holds the lock, so that nothing is published between the read and the subscription.
        let present = lock(&self.present);
        let channel = self
            .channel
            .get_or_init(|| watch::Sender::new(present.clone()));
        channel.subscribe()
    }

    pub(crate) fn publish(&self, next: Status) {
        let mut present = lock(&self.present);
        if let Some(channel) = self.channel.get() {
            channel.send_if_modified(|shown| {
                let news = shown.differs(&next);
                shown.clone_from(&next);
                news
            });
        }
        *present = next;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn follower(leader: &str) -> Status {
        Status::Follower {
            leader: leader.to_owned(),
        }
    }

    #[test]
    fn late_subscriber_gets_the_current_and_later_statuses() {
        let board = Board::default();
        board.publish(follower("a"));
        let mut watcher = board.subscribe();
        assert_eq!(*watcher.borrow_and_update(), follower("a"));
        assert!(!watcher.has_changed().unwrap());
        board.publish(follower("a"));
        assert!(!watcher.has_changed().unwrap(), "no news");
        board.publish(follower("b"));
        assert!(watcher.has_changed().unwrap());
        assert_eq!(*watcher.borrow_and_update(), board.get());
    }
}
