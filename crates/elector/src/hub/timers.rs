//! One deadline per election, in order, and the sleep until the next one.

use std::collections::{BTreeSet, HashMap};

use tenure_core::LocalTime;
use tenure_lock::BoxFuture;

use crate::clock::Clock;

/// The due time and the latest wake-up time of each election. The alarm fires when the first election reaches its
/// latest time, and all elections that are due by then are woken with it. An election that ends leaves no entry.
#[derive(Debug, Default)]
pub(super) struct Timers {
    due: BTreeSet<(LocalTime, u64)>,
    latest: BTreeSet<(LocalTime, u64)>,
    armed: HashMap<u64, (LocalTime, LocalTime)>,
}

impl Timers {
    /// Sets, moves or (with `None`) removes the timer of one election: its due time and its latest time.
    pub(super) fn set(&mut self, id: u64, times: Option<(LocalTime, LocalTime)>) {
        let before = match times {
            Some(times) => self.armed.insert(id, times),
            None => self.armed.remove(&id),
        };
        if before == times {
            return;
        }
        if let Some((due, latest)) = before {
            self.due.remove(&(due, id));
            self.latest.remove(&(latest, id));
        }
        if let Some((due, latest)) = times {
            self.due.insert((due, id));
            self.latest.insert((latest, id));
        }
    }

    /// Returns when the first election reaches its latest time.
    pub(super) fn next(&self) -> Option<LocalTime> {
        self.latest.first().map(|(at, _)| *at)
    }

    /// Returns whether an election has reached its latest time. No election is woken before that, even if there are
    /// other events. Responses arrive continuously, so elections with leeway would otherwise never be woken together.
    pub(super) fn rings(&self, now: LocalTime) -> bool {
        self.next().is_some_and(|latest| latest <= now)
    }

    /// Removes the timer of one due election, and returns the election.
    pub(super) fn pop_due(&mut self, now: LocalTime) -> Option<u64> {
        let (_, id) = self.due.first().filter(|(at, _)| *at <= now).copied()?;
        self.set(id, None);
        Some(id)
    }

    #[cfg(test)]
    fn len(&self) -> usize {
        assert_eq!(self.due.len(), self.armed.len());
        assert_eq!(self.latest.len(), self.armed.len());
        self.due.len()
    }
}

/// One sleep that is kept between iterations, because most iterations do not change the next deadline.
#[derive(Default)]
pub(super) struct Alarm {
    at: Option<LocalTime>,
    sleep: Option<BoxFuture<'static, ()>>,
}

impl Alarm {
    /// Sets the alarm. It fires at the instant or earlier; an alarm that fires too early is set again.
    pub(super) fn set(&mut self, clock: &dyn Clock, at: LocalTime) {
        if self.at.is_none_or(|set| at < set) {
            self.at = Some(at);
            self.sleep = Some(clock.sleep_until(at));
        }
    }

    /// Completes when the alarm fires; never if it is not set. Cancel safe.
    pub(super) async fn rings(&mut self) {
        match &mut self.sleep {
            Some(sleep) => sleep.await,
            None => std::future::pending().await,
        }
        *self = Self::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(nanos: u64) -> LocalTime {
        LocalTime::from_nanos(nanos)
    }

    fn sharp(nanos: u64) -> Option<(LocalTime, LocalTime)> {
        Some((at(nanos), at(nanos)))
    }

    #[test]
    fn each_election_has_one_timer_and_the_earliest_comes_first() {
        let mut timers = Timers::default();
        timers.set(1, sharp(30));
        timers.set(2, sharp(20));
        timers.set(1, sharp(10));
        timers.set(3, sharp(20));
        assert_eq!(timers.len(), 3);
        assert_eq!(timers.next(), Some(at(10)));
        assert_eq!(timers.pop_due(at(9)), None);
        assert_eq!(timers.pop_due(at(20)), Some(1));
        assert_eq!(timers.pop_due(at(20)), Some(2));
        assert_eq!(timers.pop_due(at(20)), Some(3));
        assert_eq!(timers.len(), 0);
    }

    #[test]
    fn elections_with_leeway_are_woken_with_the_first_without() {
        let mut timers = Timers::default();
        timers.set(1, Some((at(10), at(40))));
        timers.set(2, Some((at(20), at(50))));
        assert_eq!(timers.next(), Some(at(40)));
        timers.set(3, sharp(25));
        timers.set(4, Some((at(30), at(60))));
        assert_eq!(timers.next(), Some(at(25)));
        assert!(!timers.rings(at(24)) && timers.rings(at(25)));
        let woken: Vec<_> = std::iter::from_fn(|| timers.pop_due(at(25))).collect();
        assert_eq!(woken, [1, 2, 3]);
        assert_eq!(timers.next(), Some(at(60)));
    }

    #[test]
    fn moved_timers_leave_no_stale_entries() {
        let mut timers = Timers::default();
        for renewal in 0..50 {
            for election in 0..200 {
                timers.set(election, sharp(1_000 * renewal + election));
            }
            assert_eq!(timers.len(), 200);
        }
        assert_eq!(timers.next(), Some(at(49_000)));
    }

    #[test]
    fn disarmed_timer_leaves_no_entry() {
        let mut timers = Timers::default();
        timers.set(1, sharp(30));
        timers.set(1, None);
        timers.set(2, None);
        assert_eq!((timers.len(), timers.next()), (0, None));
    }
}
