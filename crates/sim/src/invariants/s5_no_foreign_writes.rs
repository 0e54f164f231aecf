//! S5: an elector writes only over a version that it wrote itself in this incarnation, or that has no
//! holder, or that it has observed unchanged for its lease, or where there is no object.
//!
//! If its mark names another term, that one was released or waited out, too.
//!
//! Each node's sights are followed here a second time, apart from the core's own book-keeping.

use std::collections::VecDeque;

use tenure_core::Mark;

use crate::plan::nanos;
use crate::register::Object;

/// How many records a node's sights go back.
const REMEMBERED: usize = 128;

/// What one incarnation has seen of the object.
#[derive(Clone, Debug)]
pub struct Sights {
    /// Records and the local time of their first sight.
    first: [(u64, u64); REMEMBERED],
    next: usize,
    /// Marks and the local time of their first sight.
    marks: VecDeque<(Mark, u64)>,
    newest: u64,
    /// The local time at which the newest version was shown.
    newest_at: u64,
    /// If the newest version is held by a stranger: until when it is waited for.
    live_until: Option<u64>,
    /// Until when a live foreign term, seen before the object was deleted, is waited out (duty 8).
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
    /// A version was shown to `me` at this local time; it counts for `lease`.
    pub fn saw(&mut self, me: u64, object: &Object, lease: u64, local: u64) {
        let (record, news) = (object.seen.fingerprint, object.revision > self.newest);
        self.saw_mark(object, local);
        let known = self.first_sight(record);
        let since = known.unwrap_or(local);
        // A record that comes back takes a new place, or the next one would push it out.
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

    /// A write of our own was answered: older events of the watch are no news any more.
    pub fn wrote(&mut self, revision: u64) {
        if revision > self.newest {
            self.newest = revision;
            self.live_until = None;
            self.hold_until = 0;
        }
    }

    /// The object was shown to be gone, by the watch as of a revision.
    pub fn saw_nothing(&mut self, revision: Option<u64>) {
        if revision.is_some_and(|revision| revision <= self.newest) {
            return;
        }
        self.newest = self.newest.max(revision.unwrap_or_default());
        if let Some(until) = self.live_until.take() {
            self.hold_until = until;
        }
    }

    /// Whether the newest version was shown at this local time or later.
    pub fn is_news(&self, local: u64) -> bool {
        self.newest > 0 && self.newest_at >= local
    }

    /// Judges a write over a version.
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

    /// Judges a write that wins a term: the term that the mark names must be ours, released, or waited out.
    pub fn check_mark(&self, me: u64, base: &Object, local: u64) -> Option<String> {
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
        let (waited, lease) = (local.saturating_sub(*since), nanos(mark.lease_duration()));
        (waited < lease).then(|| {
            format!(
                "writes over revision {revision} {:.3} s after the first sight of a mark of {:.3} s",
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

    /// Judges a creation.
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
