//! Candidates that are known: each candidate that announces itself keeps a small object, its member.
//!
//! A lock names only its holder. With [`Builder::announce`](crate::Builder::announce), a candidate also keeps a Lease
//! that describes it, and reads those of the others. Without it, an election sends no additional requests.
//!
//! Invariant: no failure of a request for a member affects the election, and no write is permitted because of a member.
//! Only an election with a [`Ranking`] uses members: to decide which candidate should lead.
//!
//! | file | content |
//! |---|---|
//! | `keeper.rs` | the task that keeps the member of this candidate, and deletes those of dead candidates |
//! | `ranking.rs` | ranks of the candidates, from their members |
//! | `roster.rs` | decides which members are alive |

mod keeper;
mod ranking;
mod roster;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tenure_core::LocalTime;
use tenure_lock::member::Member;
use tokio::sync::watch;

use crate::clock::Clock;
use crate::sync::lock;

pub(crate) use keeper::Keeper;
pub use ranking::Ranking;
use roster::Roster;

/// Longest and shortest time after which a member without a renewal counts as dead.
const LONGEST: Duration = Duration::from_secs(30);
const SHORTEST: Duration = Duration::from_secs(3);

/// Number of renewals within that time.
const RENEWALS: u32 = 3;

/// Age from which a list counts as out of date.
const STALE: Duration = Duration::from_secs(60);

/// Returns the time after which a member without a renewal counts as dead: two lease durations, within bounds.
fn duration_for(lease: Duration) -> Duration {
    (lease * 2).clamp(SHORTEST, LONGEST)
}

/// The candidates of an election that [announce](crate::Builder::announce) themselves, and the readiness of this one.
/// Cheap to clone.
#[derive(Clone, Debug)]
pub struct Membership {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    clock: Arc<dyn Clock>,
    /// Reason why this candidate is not ready.
    not_ready: watch::Sender<Option<String>>,
    /// Instant until which this candidate does not campaign after its last term.
    sits_out_until: watch::Sender<LocalTime>,
    leaving: watch::Sender<bool>,
    roster: Mutex<Roster>,
}

impl Membership {
    /// Creates the membership of a candidate with this lease duration.
    pub(crate) fn new(clock: Arc<dyn Clock>, lease: Duration) -> Self {
        let inner = Inner {
            clock,
            not_ready: watch::Sender::new(None),
            sits_out_until: watch::Sender::new(LocalTime::default()),
            leaving: watch::Sender::new(false),
            roster: Mutex::new(Roster::new(duration_for(lease))),
        };
        Self {
            inner: Arc::new(inner),
        }
    }

    /// Announces the reason why this candidate does not campaign; `None` if it is ready to lead, as at the start. It
    /// only informs others. This candidate still campaigns, unless the program prevents that.
    pub fn set_not_ready(&self, why: Option<String>) {
        self.inner.not_ready.send_if_modified(|now| {
            let is_new = *now != why;
            *now = why;
            is_new
        });
    }

    /// Returns the living candidates in the order of their identities, this one included, as last read.
    pub fn living(&self) -> Vec<Member> {
        lock(&self.inner.roster).living().cloned().collect()
    }

    /// Returns the time since the members were last read; `None` if they were not read yet, for example because the
    /// permission is missing.
    pub fn age(&self) -> Option<Duration> {
        let listed = lock(&self.inner.roster).listed()?;
        Some(self.now().since(listed))
    }

    /// Returns whether the members were read within the last minute.
    pub fn is_current(&self) -> bool {
        self.age().is_some_and(|age| age <= STALE)
    }

    /// Announces that this candidate does not campaign before this instant.
    pub(crate) fn sit_out(&self, until: LocalTime) {
        self.inner
            .sits_out_until
            .send_if_modified(|known| std::mem::replace(known, until) != until);
    }

    /// Ends the membership: the member is deleted.
    pub(crate) fn leave(&self) {
        self.inner.leaving.send_replace(true);
    }

    fn now(&self) -> LocalTime {
        self.inner.clock.now().local
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn member_lives_for_two_leases_within_bounds() {
        let seconds =
            [1, 2, 15, 60].map(|lease| duration_for(Duration::from_secs(lease)).as_secs());
        assert_eq!(seconds, [3, 4, 30, 30]);
    }
}
