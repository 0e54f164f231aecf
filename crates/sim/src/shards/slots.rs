//! Semaphores: the differences from shards.

use tenure_core::Input;
use tenure_core::slots::{Rules, Start};

use super::server::Reply;
use super::{Group, World};
use crate::invariants::Invariant;

/// Returns whether a slot may be used, given the response to a read.
pub(super) fn may_start(rules: Rules, slot: u32, reply: &Reply) -> Start {
    let read = match reply {
        Reply::Agreement(agreed) => Some(agreed.as_ref().and_then(|agreed| agreed.shards)),
        _ => None,
    };
    rules.may_start(slot, read)
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

    /// Checks the invariant: the number of used slots is at most the greatest number of slots since the first of them
    /// was allowed.
    pub(super) fn check_slots(&mut self) {
        let used: Vec<u64> = self
            .replicas
            .iter()
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
