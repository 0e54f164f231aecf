//! One deadline per election, in order.

use std::collections::{BTreeSet, HashMap};

use tenure_core::LocalTime;

/// When each election wants to be woken. An election that ends leaves nothing behind.
#[derive(Debug, Default)]
pub(super) struct Timers {
    order: BTreeSet<(LocalTime, u64)>,
    armed: HashMap<u64, LocalTime>,
}

impl Timers {
    /// Arms, moves or (with `None`) disarms the timer of one election.
    pub(super) fn set(&mut self, id: u64, at: Option<LocalTime>) {
        let before = match at {
            Some(at) => self.armed.insert(id, at),
            None => self.armed.remove(&id),
        };
        if before == at {
            return;
        }
        if let Some(before) = before {
            self.order.remove(&(before, id));
        }
        if let Some(at) = at {
            self.order.insert((at, id));
        }
    }

    /// The earliest deadline.
    pub(super) fn next(&self) -> Option<LocalTime> {
        self.order.first().map(|(at, _)| *at)
    }

    /// Disarms and returns one election whose time has come.
    pub(super) fn pop_due(&mut self, now: LocalTime) -> Option<u64> {
        let (_, id) = self.order.first().filter(|(at, _)| *at <= now).copied()?;
        self.set(id, None);
        Some(id)
    }

    #[cfg(test)]
    fn len(&self) -> usize {
        assert_eq!(self.order.len(), self.armed.len());
        self.order.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(nanos: u64) -> LocalTime {
        LocalTime::from_nanos(nanos)
    }

    #[test]
    fn each_election_has_one_timer_and_the_earliest_comes_first() {
        let mut timers = Timers::default();
        timers.set(1, Some(at(30)));
        timers.set(2, Some(at(20)));
        timers.set(1, Some(at(10)));
        timers.set(3, Some(at(20)));
        assert_eq!(timers.len(), 3);
        assert_eq!(timers.next(), Some(at(10)));
        assert_eq!(timers.pop_due(at(9)), None);
        assert_eq!(timers.pop_due(at(20)), Some(1));
        assert_eq!(timers.pop_due(at(20)), Some(2));
        assert_eq!(timers.pop_due(at(20)), Some(3));
        assert_eq!(timers.len(), 0);
    }

    #[test]
    fn renewals_leave_nothing_stale_behind() {
        let mut timers = Timers::default();
        for renewal in 0..50 {
            for election in 0..200 {
                timers.set(election, Some(at(1_000 * renewal + election)));
            }
            assert_eq!(timers.len(), 200);
        }
        assert_eq!(timers.next(), Some(at(49_000)));
    }

    #[test]
    fn a_disarmed_timer_leaves_nothing_behind() {
        let mut timers = Timers::default();
        timers.set(1, Some(at(30)));
        timers.set(1, None);
        timers.set(2, None);
        assert_eq!((timers.len(), timers.next()), (0, None));
    }
}
