//! Who leads, as a value that can be watched.

use tenure_core::{FencingToken, LocalTime};

/// What this candidate knows about who leads.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Status {
    /// Nobody, or nobody knows: before the first look, after the end of a term, after a release.
    #[default]
    Unknown,
    /// Somebody else.
    Follower {
        /// Its identity.
        leader: String,
    },
    /// This candidate.
    Leader {
        /// The token of the term.
        token: FencingToken,
        /// Until when, if nothing is heard from the lock any more. Renewals move it without waking
        /// those who watch; [`Tenure::is_leading`](crate::Tenure::is_leading) compares it with the
        /// clock.
        until: LocalTime,
    },
}

impl Status {
    /// Whether a change from `self` to `next` is news for those who watch.
    pub(crate) fn differs(&self, next: &Self) -> bool {
        match (self, next) {
            (Self::Leader { token: a, .. }, Self::Leader { token: b, .. }) => a != b,
            (a, b) => a != b,
        }
    }
}
