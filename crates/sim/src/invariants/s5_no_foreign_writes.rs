//! S5: an elector creates the object only if it does not exist, and replaces a version only in one of these cases:
//!
//! - It wrote that version in this incarnation.
//! - The version has no holder.
//! - It has observed the version unchanged for the lease duration of the version and its own lock delay.
//!
//! If the mark of the version names another term, that term was released, or the elector has waited for it too.
//!
//! The observations of each node are tracked here a second time, independently of the core.

use std::collections::VecDeque;

use tenure_core::Mark;

use crate::plan::nanos;
use crate::register::Object;

/// Number of records that are remembered per node.
const REMEMBERED: usize = 128;

/// The observations of one incarnation.
#[derive(Clone, Debug)]
pub struct Sights {
    /// Records, with the local time of their first observation.
    first: [(u64, u64); REMEMBERED],
    next: usize,
    /// Marks, with the local time of their first observation.
    marks: VecDeque<(Mark, u64)>,
    newest: u64,
    /// The local time at which the newest version was observed.
    newest_at: u64,
    /// If another candidate holds the newest version: the time until which this incarnation waits for it.
    live_until: Option<u64>,
    /// Time until which this incarnation waits for a live term of another candidate, which it observed before the
    /// object was deleted (duty 8).
    hold_until: u64,
}

impl Default for Sights {
    fn default() -> Self {
        Self {
            first: [(0, 0); REMEMBERED],
            next: 0,
            marks: VecDeque::new(),
            newest: 0,
            newest_at: 0,
            live_until: None,
            hold_until: 0,
        }
    }
}

impl Sights {
    /// Records that `me` observed a version at this local time. The version is valid for `lease`.
    pub fn saw(&mut self, me: u64, object: &Object, lease: u64, local: u64) {
        let (record, news) = (object.seen.fingerprint, object.revision > self.newest);
        self.saw_mark(object, local);
        let known = self.first_sight(record);
        let since = known.unwrap_or(local);
        // A record that reappears gets a new position. Otherwise the next record would evict it.
        if known.is_none() || news {
            self.first[self.next] = (record, since);
            self.next = (self.next + 1) % REMEMBERED;
        }
        if news {
            self.newest = object.revision;
            self.newest_at = local;
            self.hold_until = 0;
            let foreign = object.author != Some(me) && !is_free(object);
            self.live_until = foreign.then_some(since + lease);
        }
    }

    /// Records the response to a write of this incarnation. Older watch events are stale from now on.
    pub fn wrote(&mut self, revision: u64) {
        if revision > self.newest {
            self.newest = revision;
            self.live_until = None;
            self.hold_until = 0;
        }
    }

    /// Records that the object is absent. The revision is that of the watch event, if any.
    pub fn saw_nothing(&mut self, revision: Option<u64>) {
        if revision.is_some_and(|revision| revision <= self.newest) {
            return;
        }
        self.newest = self.newest.max(revision.unwrap_or_default());
        if let Some(until) = self.live_until.take() {
            self.hold_until = until;
        }
    }

    /// Returns whether the newest version was observed at this local time or later.
    pub fn is_news(&self, local: u64) -> bool {
        self.newest > 0 && self.newest_at >= local
    }

    /// Checks a write that replaces a version.
    pub fn check_write(&self, me: u64, base: &Object, lease: u64, local: u64) -> Option<String> {
        if base.author == Some(me) || is_free(base) {
            return None;
        }
        let revision = base.revision;
        let Some(since) = self.first_sight(base.seen.fingerprint) else {
            return Some(format!(
                "writes over revision {revision} without having seen it"
            ));
        };
        let waited = local.saturating_sub(since);
        (waited < lease).then(|| {
            format!(
                "writes over revision {revision}, held by {:?}, after {:.3} s of {:.3} s",
                base.seen.record.holder,
                waited as f64 / 1e9,
                lease as f64 / 1e9,
            )
        })
    }

    /// Checks a write that wins a term: the term that the mark names must be our own, released, or waited for. The wait
    /// includes the lock delay.
    pub fn check_mark(&self, me: u64, base: &Object, delay: u64, local: u64) -> Option<String> {
        let mark = base.seen.mark.filter(|mark| !mark.is_release())?;
        if base.marked_by == Some(me) {
            return None;
        }
        let revision = base.revision;
        let Some((_, since)) = self.marks.iter().find(|(known, _)| known.is(&mark)) else {
            return Some(format!(
                "writes over revision {revision} without having seen its mark"
            ));
        };
        let waited = local.saturating_sub(*since);
        let lease = nanos(mark.lease_duration()) + delay;
        (waited < lease).then(|| {
            format!(
                "writes over revision {revision} {:.3} s after it first observed the mark, instead of {:.3} s",
                waited as f64 / 1e9,
                lease as f64 / 1e9,
            )
        })
    }

    fn saw_mark(&mut self, object: &Object, local: u64) {
        if let Some(mark) = object.seen.mark
            && !self.marks.iter().any(|(known, _)| known.is(&mark))
        {
            if self.marks.len() == REMEMBERED {
                self.marks.pop_back();
            }
            self.marks.push_front((mark, local));
        }
    }

    /// Checks a creation.
    pub fn check_create(&self, local: u64) -> Option<String> {
        (local < self.hold_until).then(|| {
            format!(
                "creates {:.3} s before the lease of a deleted term is over",
                (self.hold_until - local) as f64 / 1e9
            )
        })
    }

    fn first_sight(&self, record: u64) -> Option<u64> {
        let found = self.first.iter().find(|(number, _)| *number == record);
        found.map(|(_, since)| *since)
    }
}

fn is_free(object: &Object) -> bool {
    object.seen.record.is_free() && !object.seen.unreadable
}
