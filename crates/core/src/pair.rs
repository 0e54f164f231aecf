//! Two objects as one lock, to move an election from one kind of object to another.
//!
//! The primary object is of the old kind, the secondary one of the new. Clients of the old kind see the
//! primary, clients of the new kind the secondary, and this lock both: whoever wants to lead must hold
//! both. What that means is decided here, without I/O; the lock crate sends the requests, and the
//! simulator plays them through.
//!
//! The invariant: a term begins, and goes on, only when both objects have its record, each written over
//! the version that was seen and waited out.

use std::cmp::Ordering;

use crate::input::{Observation, Orders, Version};
use crate::mutant::PairMutant;
use crate::record::Record;

/// The holder reported while the two objects name different ones. Nobody leads then, until neither
/// has changed for a lease duration.
pub const UNKNOWN_HOLDER: &str = "leaderelection.k8s.io/unknown";

/// One object of the two.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Side {
    /// The old kind: read and written first.
    Primary,
    /// The new kind.
    Secondary,
}

/// What both objects say, each by itself.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Pair {
    /// The primary one.
    pub primary: Observation,
    /// The secondary one, if it exists.
    pub secondary: Option<Observation>,
}

impl Pair {
    /// What both say together. Without a secondary the primary counts alone: it is held, if at all, by a
    /// client that knows the old kind alone.
    ///
    /// The version has the uid of the primary and the greater revision of the two, so that it moves with
    /// either. After every write of this lock it is the revision of the secondary, which keeps fencing
    /// tokens in order when the election moves on to the new kind alone.
    pub fn together(&self, rules: Rules) -> Observation {
        let mut seen = self.primary.clone();
        let Some(second) = &self.secondary else {
            return seen;
        };
        seen.version = self.version();
        if rules.is(PairMutant::PrimaryCounts) {
            return seen;
        }
        seen.fingerprint = both(seen.fingerprint, second.fingerprint);
        seen.unreadable |= second.unreadable;
        let record = agreed(seen.record, &second.record, rules);
        seen.record = if seen.unreadable {
            // Nobody's, but whoever can be read may still hold it for that long.
            Record {
                lease_duration_seconds: record.lease_duration_seconds,
                ..Record::default()
            }
        } else {
            record
        };
        seen.mark = match (seen.mark, second.mark) {
            (Some(first), Some(second)) => Some(first.both(second)),
            (first, second) => first.or(second),
        };
        seen.orders = either(seen.orders, &second.orders);
        seen
    }

    /// The version of both, as [`together`](Self::together) has it.
    fn version(&self) -> Version {
        let mut version = self.primary.version.clone();
        if let Some(second) = &self.secondary {
            let newer = &second.version.revision;
            if newer.order(&version.revision) == Some(Ordering::Greater) {
                version.revision = newer.clone();
            }
        }
        version
    }

    /// What a watch shows of one side, after this was known.
    pub fn shown(self, own: &Own, side: Side, object: Option<Observation>) -> Shown {
        let known = match side {
            Side::Primary => Some(&self.primary),
            Side::Secondary => self.secondary.as_ref(),
        };
        if let Some(object) = &object
            && (own.is(side, object) || known.is_some_and(|known| !is_newer(object, known)))
        {
            return Shown::Nothing;
        }
        let before = self.version();
        let changed = match (side, object) {
            (Side::Primary, None) => return Shown::Absent,
            (Side::Primary, Some(primary)) => Self { primary, ..self },
            (Side::Secondary, secondary) => Self { secondary, ..self },
        };
        if changed.version() == before {
            return Shown::Hidden;
        }
        Shown::Changed(Box::new(changed))
    }
}

/// What news of one side means for both.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Shown {
    /// No news.
    Nothing,
    /// There is no lock object.
    Absent,
    /// Both are in this state now.
    Changed(Box<Pair>),
    /// One side changed before the other did, and was shown after it: the version of both is one that was
    /// judged already, without this. Only a read tells what it means.
    Hidden,
}

/// What a lock remembers of its own writes, to know them in the watch. One half is no news before both
/// are known to be written: with the old other half it looks as if somebody had come between.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Own {
    /// Nothing.
    #[default]
    Nothing,
    /// A write of this record is on its way to both objects.
    UnderWay(Record),
    /// The last write made these two.
    Done([Version; 2]),
}

impl Own {
    /// The last write is done, and made this.
    pub fn done(written: &Pair) -> Self {
        match &written.secondary {
            Some(second) => Self::Done([written.primary.version.clone(), second.version.clone()]),
            None => Self::Nothing,
        }
    }

    fn is(&self, side: Side, object: &Observation) -> bool {
        match self {
            Self::Nothing => false,
            Self::UnderWay(record) => !object.unreadable && object.record.same_write(record),
            Self::Done([primary, secondary]) => match side {
                Side::Primary => object.version == *primary,
                Side::Secondary => object.version == *secondary,
            },
        }
    }
}

/// A write of one record to both objects, request by request: the primary, a look at the secondary, the
/// secondary. It ends at the first write that fails, and where the secondary is not the one that was seen.
#[derive(Clone, Debug)]
pub struct Writing {
    rules: Rules,
    base: Option<Pair>,
    /// As it was written.
    primary: Option<Observation>,
    looking: bool,
}

/// A request of a write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ask {
    /// Create the object.
    Create(Side),
    /// Read the secondary.
    Look,
    /// Replace the object in this version.
    Replace(Side, Version),
}

/// How a request of a write ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// This was written.
    Stored(Observation),
    /// The secondary is this.
    Found(Option<Observation>),
    /// Anything else.
    Failed,
}

/// What a write needs next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// This request.
    Ask(Ask),
    /// Nothing: both objects have the record.
    Done(Box<Pair>),
    /// Nothing: it failed as its last request did, or because the secondary is not the version that was
    /// seen.
    Failed,
}

impl Writing {
    /// Begins to write over this, or with `None` to create.
    pub fn begin(rules: Rules, base: Option<Pair>) -> (Self, Ask) {
        let first = match &base {
            None => Ask::Create(Side::Primary),
            Some(base) => Ask::Replace(Side::Primary, base.primary.version.clone()),
        };
        let begun = Self {
            rules,
            base,
            primary: None,
            looking: false,
        };
        (begun, first)
    }

    /// Whether the primary has the record by now. A write that fails then is in doubt, whatever the
    /// secondary answers.
    pub fn is_half_done(&self) -> bool {
        self.primary.is_some()
    }

    /// Goes on after an answer.
    pub fn next(&mut self, answer: Answer) -> Step {
        let Some(primary) = &self.primary else {
            let Answer::Stored(primary) = answer else {
                return Step::Failed;
            };
            self.primary = Some(primary);
            self.looking = self.base.is_some();
            return Step::Ask(match self.looking {
                true => Ask::Look,
                false => Ask::Create(Side::Secondary),
            });
        };
        let seen = self.base.as_ref().and_then(|base| base.secondary.as_ref());
        let looked = std::mem::take(&mut self.looking);
        match (answer, seen) {
            (Answer::Stored(secondary), _) => Step::Done(Box::new(Pair {
                primary: primary.clone(),
                secondary: Some(secondary),
            })),
            (Answer::Found(None), _) => Step::Ask(Ask::Create(Side::Secondary)),
            (Answer::Found(Some(found)), seen)
                if seen.is_some_and(|seen| seen.version == found.version)
                    || self.rules.is(PairMutant::BlindSecondary) =>
            {
                Step::Ask(Ask::Replace(Side::Secondary, found.version))
            }
            // Without an answer the version that was seen still decides.
            (Answer::Failed, None) if looked => Step::Ask(Ask::Create(Side::Secondary)),
            (Answer::Failed, Some(seen)) if looked => {
                Step::Ask(Ask::Replace(Side::Secondary, seen.version.clone()))
            }
            (_, seen) if self.rules.is(PairMutant::HalfIsEnough) => Step::Done(Box::new(Pair {
                primary: primary.clone(),
                secondary: seen.cloned(),
            })),
            _ => Step::Failed,
        }
    }
}

/// The rules as they are shipped, or with a seeded bug for the simulator to find.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rules {
    #[cfg(feature = "mutants")]
    mutant: Option<PairMutant>,
}

impl Rules {
    /// Seeds a bug.
    #[cfg(feature = "mutants")]
    #[doc(hidden)]
    pub fn mutated(mutant: PairMutant) -> Self {
        Self {
            mutant: Some(mutant),
        }
    }

    #[cfg(feature = "mutants")]
    fn is(self, mutant: PairMutant) -> bool {
        self.mutant == Some(mutant)
    }

    #[cfg(not(feature = "mutants"))]
    #[expect(
        clippy::unused_self,
        reason = "the same signature with and without the feature"
    )]
    const fn is(self, _: PairMutant) -> bool {
        false
    }
}

/// The record that both stand for. The renewal counts only once it is in both: clients of the new kind
/// see nothing but the second.
fn agreed(first: Record, second: &Record, rules: Rules) -> Record {
    let same_holder = first.holder == second.holder || rules.is(PairMutant::IgnoreMismatch);
    let duration = first
        .lease_duration_seconds
        .max(second.lease_duration_seconds);
    Record {
        holder: if same_holder {
            first.holder
        } else {
            UNKNOWN_HOLDER.to_owned()
        },
        lease_duration_seconds: duration,
        renew_time: first.renew_time.min(second.renew_time),
        ..first
    }
}

/// The orders of either object. The primary's come first where both ask for a step down.
fn either(first: Orders, second: &Orders) -> Orders {
    Orders {
        paused: first.paused || second.paused,
        step_down: first.step_down.or_else(|| second.step_down.clone()),
    }
}

/// A number that changes with either.
fn both(first: u64, second: u64) -> u64 {
    first
        .wrapping_mul(0x9E37_79B9_7F4A_7C15)
        .rotate_left(31)
        .wrapping_add(second)
        .wrapping_mul(0xD6E8_FEB8_6659_FD93)
}

/// Whether a watch shows more than is known already.
fn is_newer(object: &Observation, known: &Observation) -> bool {
    let (object, known) = (&object.version, &known.version);
    let behind = matches!(
        object.revision.order(&known.revision),
        Some(Ordering::Less | Ordering::Equal)
    );
    object.uid != known.uid || (object != known && !behind)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fence::ResourceVersion;

    fn seen(holder: &str, revision: &str) -> Observation {
        Observation {
            version: Version {
                uid: "u".into(),
                revision: ResourceVersion::new(revision),
            },
            record: Record {
                holder: holder.to_owned(),
                ..Record::default()
            },
            fingerprint: revision.len() as u64,
            unreadable: false,
            mark: None,
            orders: Orders::default(),
        }
    }

    fn pair(primary: Observation, secondary: Option<Observation>) -> Pair {
        Pair { primary, secondary }
    }

    fn begin(base: Pair) -> Writing {
        let (mut writing, first) = Writing::begin(Rules::default(), Some(base));
        assert!(matches!(first, Ask::Replace(Side::Primary, _)));
        let look = writing.next(Answer::Stored(seen("me", "7")));
        assert_eq!(look, Step::Ask(Ask::Look));
        writing
    }

    #[test]
    fn nothing_is_done_before_the_primary_is_written() {
        let (mut writing, first) = Writing::begin(Rules::default(), None);
        assert_eq!(first, Ask::Create(Side::Primary));
        assert_eq!(writing.next(Answer::Failed), Step::Failed);
        assert!(!writing.is_half_done());
    }

    #[test]
    fn the_secondary_is_replaced_only_as_it_was_seen() {
        let known = || pair(seen("a", "1"), Some(seen("a", "2")));
        let replace = Step::Ask(Ask::Replace(Side::Secondary, seen("a", "2").version));
        assert_eq!(
            begin(known()).next(Answer::Found(Some(seen("a", "2")))),
            replace
        );
        assert_eq!(
            begin(known()).next(Answer::Failed),
            replace,
            "no answer says nothing"
        );
        let mut writing = begin(known());
        let found = Answer::Found(Some(seen("b", "3")));
        assert_eq!(writing.next(found), Step::Failed);
        assert!(writing.is_half_done(), "in doubt, not refused");
    }

    #[test]
    fn a_missing_secondary_is_created() {
        let mut writing = begin(pair(seen("a", "1"), None));
        let create = Step::Ask(Ask::Create(Side::Secondary));
        assert_eq!(writing.next(Answer::Found(None)), create);
        let done = pair(seen("me", "7"), Some(seen("me", "8")));
        assert_eq!(
            writing.next(Answer::Stored(seen("me", "8"))),
            Step::Done(Box::new(done))
        );
    }

    #[test]
    fn two_holders_are_nobody_and_the_version_is_the_newer_one() {
        let together = pair(seen("a", "9"), Some(seen("b", "10"))).together(Rules::default());
        assert_eq!(together.record.holder, UNKNOWN_HOLDER);
        assert_eq!(together.version.revision.as_str(), "10");
    }

    #[test]
    fn one_holder_of_both_is_the_holder() {
        let together = pair(seen("a", "9"), Some(seen("a", "10"))).together(Rules::default());
        assert_eq!(together.record.holder, "a");
    }

    #[test]
    fn half_of_an_own_write_is_no_news() {
        let known = || pair(seen("a", "1"), Some(seen("a", "2")));
        let under_way = Own::UnderWay(seen("me", "3").record);
        let shown = known().shown(&under_way, Side::Primary, Some(seen("me", "3")));
        assert_eq!(shown, Shown::Nothing);
        let shown = known().shown(&Own::Nothing, Side::Primary, Some(seen("me", "3")));
        assert!(matches!(shown, Shown::Changed(_)));
        let stale = known().shown(&Own::Nothing, Side::Secondary, Some(seen("b", "1")));
        assert_eq!(stale, Shown::Nothing);
        let gone = known().shown(&Own::Nothing, Side::Primary, None);
        assert_eq!(gone, Shown::Absent);
    }

    #[test]
    fn what_the_newer_half_hid_has_to_be_read() {
        // The primary at 7 was shown first; what happened to the secondary before that comes later.
        let known = pair(seen("a", "7"), Some(seen("a", "5")));
        let shown = known.shown(&Own::Nothing, Side::Secondary, Some(seen("b", "6")));
        assert_eq!(shown, Shown::Hidden);
        let known = pair(seen("a", "3"), Some(seen("a", "5")));
        let shown = known.shown(&Own::Nothing, Side::Primary, Some(seen("a", "4")));
        assert_eq!(shown, Shown::Hidden, "an order, say");
    }

    #[test]
    fn orders_of_either_object_count() {
        for (first, second) in [(true, false), (false, true), (true, true), (false, false)] {
            let (mut primary, mut secondary) = (seen("a", "1"), seen("a", "2"));
            primary.orders.paused = first;
            secondary.orders.paused = second;
            let together = pair(primary, Some(secondary)).together(Rules::default());
            assert_eq!(together.orders.paused, first || second);
        }
    }

    #[test]
    fn fingerprint_changes_with_either_object() {
        let fingerprint = |first: u64, second: u64| {
            let (mut primary, mut secondary) = (seen("a", "1"), seen("a", "2"));
            (primary.fingerprint, secondary.fingerprint) = (first, second);
            let together = pair(primary, Some(secondary)).together(Rules::default());
            together.fingerprint
        };
        assert_eq!(fingerprint(3, 4), fingerprint(3, 4));
        assert_ne!(fingerprint(3, 4), fingerprint(3, 5));
        assert_ne!(fingerprint(3, 4), fingerprint(4, 4));
        assert_ne!(fingerprint(3, 4), fingerprint(4, 3));
    }

    #[test]
    fn garbage_in_both_objects_is_unreadable() {
        let (mut first, mut second) = (seen("a", "1"), seen("a", "2"));
        (first.unreadable, second.unreadable) = (true, true);
        let together = pair(first, Some(second)).together(Rules::default());
        assert!(together.unreadable);
    }

    #[test]
    fn both_halves_of_the_last_write_are_recognised() {
        let written = pair(seen("me", "7"), Some(seen("me", "8")));
        let own = Own::done(&written);
        let older = || pair(seen("a", "1"), Some(seen("a", "2")));
        for (side, revision) in [(Side::Primary, "7"), (Side::Secondary, "8")] {
            let shown = older().shown(&own, side, Some(seen("me", revision)));
            assert_eq!(shown, Shown::Nothing, "{side:?}");
            let shown = older().shown(&own, side, Some(seen("me", "9")));
            assert!(matches!(shown, Shown::Changed(_)), "{side:?}");
        }
        let alone = pair(seen("me", "7"), None);
        assert_eq!(Own::done(&alone), Own::Nothing);
    }

    #[test]
    fn garbage_is_never_half_of_an_own_write() {
        let under_way = Own::UnderWay(seen("me", "3").record);
        let mut garbage = seen("me", "3");
        garbage.unreadable = true;
        let known = pair(seen("a", "1"), Some(seen("a", "2")));
        let shown = known.shown(&under_way, Side::Primary, Some(garbage));
        assert!(matches!(shown, Shown::Changed(_)));
    }

    #[test]
    fn secondary_whose_write_fails_is_not_tried_again() {
        let mut writing = begin(pair(seen("a", "1"), Some(seen("a", "2"))));
        let replace = writing.next(Answer::Failed);
        assert!(matches!(replace, Step::Ask(Ask::Replace(..))));
        assert_eq!(writing.next(Answer::Failed), Step::Failed);
        let mut writing = begin(pair(seen("a", "1"), None));
        let create = writing.next(Answer::Failed);
        assert_eq!(create, Step::Ask(Ask::Create(Side::Secondary)));
        assert_eq!(writing.next(Answer::Failed), Step::Failed);
    }

    #[test]
    fn half_of_it_unreadable_keeps_the_longer_duration() {
        let (mut first, mut second) = (seen("a", "1"), seen("b", "2"));
        first.unreadable = true;
        second.record.lease_duration_seconds = 60;
        let together = pair(first, Some(second)).together(Rules::default());
        assert!(together.unreadable && together.record.holder.is_empty());
        assert_eq!(together.record.lease_duration_seconds, 60);
    }
}
