//! Checks: at most one owner for every key, and after the faults an owner for each.

use super::{KEYS, World};
use crate::invariants::Invariant;

impl World {
    /// Checks S1 for every key, at an instant at which a replica may have become its owner.
    pub(super) fn check_owners(&mut self) {
        if self.is_semaphore() {
            return self.check_slots();
        }
        for key in 0..KEYS {
            let mut guards = self.guards;
            let text = guards.check(self.now, self.owners(key));
            self.guards = guards;
            if let Some(text) = text {
                return self.violate(Invariant::S1, format!("key {key}: {text}"));
            }
        }
    }

    /// Returns the replicas that own a key, and until when.
    fn owners(&self, key: u32) -> impl Iterator<Item = (usize, u64)> {
        let replicas = self.replicas.iter().enumerate();
        replicas.filter_map(move |(i, replica)| {
            let index = (key * replica.shards / KEYS) as usize;
            let until = replica.owns(index, replica.clock.now(self.now))?;
            Some((i, replica.clock.real_at(until, self.now)))
        })
    }

    /// Checks L1: long after the faults, every key has an owner.
    pub(super) fn check_end(&mut self) {
        if self.is_semaphore() {
            if !self.is_used() {
                self.violate(Invariant::L1, "nobody uses a slot".to_owned());
            }
            return;
        }
        let lost: Vec<u32> = (0..KEYS)
            .filter(|key| self.owners(*key).next().is_none())
            .collect();
        if !lost.is_empty() {
            self.violate(Invariant::L1, format!("nobody owns the keys {lost:?}"));
        }
    }
}
