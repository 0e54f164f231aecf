//! Releases after a crash: the watchdog of a crashed process releases its term.
//!
//! The watchdog reads the object and replaces the version that it has read. Each step may be late, and other candidates
//! may have acquired the lock in the meantime.

use tenure_core::crash::{HeldTerm, Rules};
use tenure_core::{LocalTime, Record, WallTime, WriteKind};

use super::{Event, World};
use crate::machine::Kind;
use crate::register::Applied;

/// Number of attempts after a conflict.
const ATTEMPTS: u32 = 3;

/// A watchdog that releases the term of a crashed process.
#[derive(Clone, Debug)]
pub(crate) struct CrashRelease {
    node: usize,
    /// The crashed incarnation, and the local time of its crash.
    author: (u64, LocalTime),
    term: HeldTerm,
    attempts: u32,
    /// The release that is on its way, and its number; `None` before the read.
    write: Option<(u64, WriteKind, Record)>,
}

impl World {
    /// Starts the watchdog of a process that crashes during its term. Reads its last record from the object, because a
    /// watchdog exists only after the term has begun.
    pub(super) fn release_after_crash(&mut self, i: usize) {
        let node = &self.nodes[i];
        if !self.plan.proves[i] || !node.alive || node.work.is_none() || !self.rng.percent(50) {
            return;
        }
        let author = (node.incarnation, node.clock.now(self.now).local);
        let current = self.register.current();
        let current = current.filter(|object| object.author == Some(author.0));
        let whole_seconds = self.plan.whole_seconds;
        let term = current.and_then(|object| HeldTerm::of(&object.seen, whole_seconds));
        if let Some(term) = term {
            let release = CrashRelease {
                node: i,
                author,
                term,
                attempts: ATTEMPTS,
                write: None,
            };
            self.send_release(release);
        }
    }

    fn send_release(&mut self, release: CrashRelease) {
        let mut delay = self.one_way();
        if self.calm.is_none() && self.rng.percent(30) {
            delay += self.rng.below(2 * self.plan.longest_lease());
        }
        self.after(delay, Event::CrashRelease(Box::new(release)));
    }

    /// Handles a request of a watchdog that reaches the server.
    pub(super) fn crash_release(&mut self, mut release: CrashRelease) {
        let Some((id, kind, record)) = release.write.take() else {
            let rules = match self.kind {
                Kind::DeathMutant(mutant) => Rules::mutated(mutant),
                _ => Rules::default(),
            };
            let now = WallTime::from_micros(i64::try_from(self.now / 1000).unwrap_or(i64::MAX));
            let current = self.register.current().cloned();
            let write = current.and_then(|object| release.term.release(&object.seen, now, rules));
            if let Some((kind, record)) = write {
                let id = self.refine_crash_release(release.author, &kind);
                release.write = Some((id, kind, record));
                self.send_release(release);
            }
            return;
        };
        let marks = self.plan.proves[release.node];
        match self
            .register
            .write(release.author, &kind, &record, marks, None)
        {
            Applied::Yes(object) => {
                self.report.totals.crash_releases += 1;
                self.refine_applied((release.author.0, id), &kind, &object, marks);
                self.announce(&object);
            }
            Applied::No if release.attempts > 0 => {
                release.attempts -= 1;
                self.send_release(release);
            }
            Applied::No => {}
        }
    }
}
