//! Semaphores: the differences from shards.
//!
//! Some processes use the election without slots. Holders of slots and a leader without slots must never work at the same
//! time.

use tenure_core::slots::Start;
use tenure_core::{Input, LocalTime};

use super::replica::Next;
use super::server::{Call, Reply, WHOLE};
use super::{For, Group, World};
use crate::invariants::Invariant;

/// Returns the number of slots in the response to a read; `None` if the read failed.
pub(super) fn number(reply: &Reply) -> Option<Option<u32>> {
    match reply {
        Reply::Agreement(agreed) => Some(agreed.as_ref().and_then(|agreed| agreed.shards)),
        _ => None,
    }
}

impl World {
    pub(super) fn is_semaphore(&self) -> bool {
        matches!(self.group, Group::Slots(_))
    }

    /// Returns whether a slot is the first one that a process has won. If so, its candidacies for the others end.
    /// Otherwise this candidacy ends.
    pub(super) fn is_first(&mut self, i: usize, slot: usize) -> bool {
        let elections = self.replicas[i].elections.iter().enumerate();
        let mut others = elections.filter(|(other, _)| *other != slot);
        let is_first = !others.any(|(_, owned)| owned.guard.is_some());
        let count = self.replicas[i].elections.len();
        for other in (0..count).filter(|other| (*other == slot) != is_first) {
            self.step(i, other, Input::Shutdown);
        }
        is_first
    }

    /// Reads the lease of the election without slots, for a slot that was won.
    pub(super) fn look_for_whole(&mut self, i: usize, slot: usize, term: u64) {
        let id = self.number();
        let asked_by = For::Whole(slot, term, self.local(i));
        self.send(i, asked_by, id, Call::Get(WHOLE), None);
    }

    /// Handles the end of that read. The number of slots is read next.
    pub(super) fn looked_for_whole(
        &mut self,
        i: usize,
        slot: usize,
        (term, asked): (u64, LocalTime),
        reply: &Reply,
    ) {
        let Group::Slots(rules) = self.group else {
            return;
        };
        let (own, replica) = (self.timing.lease(), &mut self.replicas[i]);
        let now = replica.clock.now(self.now);
        let led = match reply {
            Reply::Got(lease) => {
                let lease = lease.as_ref();
                Some(replica.whole.observe((asked, now), lease, own))
            }
            _ => None,
        };
        let owned = replica.elections.get(slot);
        if !owned.is_some_and(|owned| owned.term == term && owned.confirmed != term) {
            return;
        }
        // The number of slots is checked by a separate read, so no limit applies here.
        match rules.may_use(slot as u32, Some(None), led) {
            Start::Yes => self.read_number(i, slot, term),
            Start::Led | Start::Gone(_) => self.go_on(i, 0, Next::Leave),
            Start::Wait(_) | Start::Unknown => {}
        }
    }

    /// Checks that holders of slots and a leader without slots do not work at the same time, and that there is at most
    /// one such leader.
    fn check_shapes(&mut self) {
        let (mut whole, mut slots) = (0, 0);
        for replica in &self.replicas {
            let now = replica.clock.now(self.now);
            let count = (0..replica.elections.len())
                .filter(|slot| replica.owns(*slot, now).is_some())
                .count();
            if replica.without_slots {
                whole += count;
            } else {
                slots += count;
            }
        }
        if whole > 1 || (whole > 0 && slots > 0) {
            let text = format!("{whole} leaders without slots and {slots} holders of slots work");
            self.violate(Invariant::S1, text);
        }
    }

    /// Checks the invariant: the number of used slots is at most the greatest number of slots since the first of them
    /// was allowed.
    pub(super) fn check_slots(&mut self) {
        self.check_shapes();
        let used: Vec<u64> = self
            .replicas
            .iter()
            .filter(|replica| !replica.without_slots)
            .flat_map(|replica| {
                let now = replica.clock.now(self.now);
                let owned = replica.elections.iter().enumerate();
                owned.filter_map(move |(slot, owned)| replica.owns(slot, now).map(|_| owned.since))
            })
            .collect();
        let Some(first) = used.iter().min() else {
            return;
        };
        // The number at that time, and all later numbers.
        let at = self.numbers.partition_point(|(at, _)| at <= first);
        let numbers = &self.numbers[at.saturating_sub(1)..];
        let most = numbers.iter().map(|(_, number)| *number).max();
        if most.is_some_and(|most| used.len() > most as usize) {
            let text = format!("{} slots of {most:?} are used", used.len());
            self.violate(Invariant::S1, text);
        }
    }

    /// Returns whether any slot is used.
    pub(super) fn is_used(&self) -> bool {
        self.replicas.iter().any(|replica| {
            let now = replica.clock.now(self.now);
            (0..replica.elections.len()).any(|slot| replica.owns(slot, now).is_some())
        })
    }
}
