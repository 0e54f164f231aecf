//! The controller of a coordinated election, as far as candidates can tell: it gives the lease to somebody
//! when nobody holds it or its holder has let it run out, by its own clock. Candidates never take it.

use tenure_core::{Record, WallTime};

use super::World;
use super::event::Event;
use crate::plan::nanos;

/// What Kubernetes implements.
const STRATEGY: &str = "OldestEmulationVersion";

impl World {
    /// One look at the object, and the next one planned.
    pub(super) fn assign(&mut self) {
        let (retry, _) = self.slowest();
        let next = retry / 2 + self.rng.below(retry);
        self.after(next, Event::Controller);
        let record = match self.register.current() {
            None => Record::default(),
            Some(object) => {
                let record = &object.seen.record;
                let run_out = self.register.written + nanos(record.lease_duration());
                if !record.is_free() && self.now < run_out {
                    return;
                }
                record.clone()
            }
        };
        let node = self.rng.below(self.nodes.len() as u64) as usize;
        let seconds = self.plan.longest_lease() / 1_000_000_000;
        let now = WallTime::from_micros((self.now / 1_000) as i64);
        let assigned = Record {
            holder: self.nodes[node].identity.clone(),
            lease_duration_seconds: u32::try_from(seconds).unwrap_or(u32::MAX),
            acquire_time: Some(now),
            renew_time: Some(now),
            transitions: record.transitions + 1,
            strategy: STRATEGY.to_owned(),
            preferred_holder: String::new(),
        };
        let object = self.register.edit(assigned, false);
        self.register.written = self.now;
        self.trace(|_| format!("the controller assigns {:?}", object.seen.record.holder));
        self.announce(&object);
    }
}
