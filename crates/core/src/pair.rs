//! Two objects as one lock, used to migrate an election from one kind of object to another.
//!
//! The primary object is of the old kind, and the secondary object is of the new kind. Clients of the old kind see only
//! the primary, clients of the new kind see only the secondary, and this lock uses both. A leader must hold both. The
//! combined meaning is decided here, without I/O. The lock crate sends the requests, and the simulator plays them
//! through.
//!
//! Invariant: a term begins and continues only while both objects contain its record. Each of the two writes replaced a
//! version that this candidate had observed and had waited for.

use std::cmp::Ordering;

use crate::input::{Observation, Orders, StepDownOrder, Version};
use crate::mutant::PairMutant;
pub use crate::mutant::PairRules as Rules;
use crate::record::Record;

/// The holder that is reported while the two objects name different holders. Nobody leads until neither object has
/// changed for a lease duration.
pub const UNKNOWN_HOLDER: &str = "leaderelection.k8s.io/unknown";

/// One of the two objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Side {
    /// The old kind: read and written first.
    Primary,
    /// The new kind.
    Secondary,
}

/// Observations of both objects.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Pair {
    /// The primary object.
    pub primary: Observation,
    /// The secondary object, if it exists.
    pub secondary: Option<Observation>,
}

impl Pair {
    /// Returns the combined observation. Without a secondary only the primary counts: its holder, if any, is a client
    /// that knows only the old kind.
    ///
    /// The version has the uid of the primary and the greater one of the two revisions, so that it changes with either
    /// object. After every write of this lock it is the revision of the secondary. Fencing tokens therefore stay in
    /// order when the election moves to the new kind alone.
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
            // The combined record has no known holder, but the holder of the readable object may still hold it for that
            // long.
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
        // A proof replaces both objects, so both must describe the same incarnation.
        seen.described = seen
            .described
            .filter(|described| second.described.as_ref() == Some(described));
        seen.orders = either(seen.orders, &second.orders, &seen.record);
        seen
    }

    /// Returns the combined version, as described at [`together`](Self::together).
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

    /// Combines a watch event of one side with this known state.
    pub fn shown(self, own: &Own, side: Side, object: Option<Observation>) -> PairChange {
        let known = match side {
            Side::Primary => Some(&self.primary),
            Side::Secondary => self.secondary.as_ref(),
        };
        if let Some(object) = &object
            && (own.is(side, object) || known.is_some_and(|known| !is_newer(object, known)))
        {
            return PairChange::Nothing;
        }
        let before = self.version();
        let changed = match (side, object) {
            (Side::Primary, None) => return PairChange::Absent,
            (Side::Primary, Some(primary)) => Self { primary, ..self },
            (Side::Secondary, secondary) => Self { secondary, ..self },
        };
        if changed.version() == before {
            return PairChange::Hidden;
        }
        PairChange::Changed(Box::new(changed))
    }
}

/// Meaning of a watch event of one side for both objects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PairChange {
    /// Nothing changed.
    Nothing,
    /// The lock object does not exist.
    Absent,
    /// Both objects are now in this state.
    Changed(Box<Pair>),
    /// One side changed before the other one, but its event arrived after it. The combined version was already
    /// evaluated without this change. Only a read can decide what the change means.
    Hidden,
}

/// The lock's own writes, remembered so that it recognizes them in the watch. The event of one half is ignored until
/// both halves are known to be written. Combined with the old other half, it would look like a write of another
/// candidate.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Own {
    /// There is no write.
    #[default]
    Nothing,
    /// A write of this record to both objects is in flight.
    UnderWay(Record),
    /// The last write created these two versions.
    Done([Version; 2]),
}

impl Own {
    /// Returns the state after a completed write.
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

/// A write of one record to both objects, request by request: write the primary, read the secondary, write the
/// secondary. It stops at the first failed write, and if the secondary differs from the observed one.
#[derive(Clone, Debug)]
pub struct Writing {
    rules: Rules,
    base: Option<Pair>,
    /// The primary as it was written.
    primary: Option<Observation>,
    looking: bool,
}

/// A request of a write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PairRequest {
    /// Create the object.
    Create(Side),
    /// Read the secondary object.
    Look,
    /// Replace the object in this version.
    Replace(Side, Version),
}

/// Result of a request of a write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PairResponse {
    /// This object was written.
    Stored(Observation),
    /// The secondary object as read.
    Found(Option<Observation>),
    /// Any other result.
    Failed,
}

/// Next step of a write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Send this request.
    PairRequest(PairRequest),
    /// The write is complete: both objects contain the record.
    Done(Box<Pair>),
    /// The write failed, because its last request failed or because the secondary differs from the observed version.
    Failed,
}

impl Writing {
    /// Starts a write that replaces `base`, or creates the objects if it is `None`.
    pub fn begin(rules: Rules, base: Option<Pair>) -> (Self, PairRequest) {
        let first = match &base {
            None => PairRequest::Create(Side::Primary),
            Some(base) => PairRequest::Replace(Side::Primary, base.primary.version.clone()),
        };
        let begun = Self {
            rules,
            base,
            primary: None,
            looking: false,
        };
        (begun, first)
    }

    /// Returns whether the primary already contains the record. If the write fails after that, its result is unknown,
    /// regardless of the response for the secondary.
    pub fn is_half_done(&self) -> bool {
        self.primary.is_some()
    }

    /// Continues after a response.
    pub fn next(&mut self, answer: PairResponse) -> Step {
        let Some(primary) = &self.primary else {
            let PairResponse::Stored(primary) = answer else {
                return Step::Failed;
            };
            self.primary = Some(primary);
            self.looking = self.base.is_some();
            return Step::PairRequest(match self.looking {
                true => PairRequest::Look,
                false => PairRequest::Create(Side::Secondary),
            });
        };
        let seen = self.base.as_ref().and_then(|base| base.secondary.as_ref());
        let looked = std::mem::take(&mut self.looking);
        match (answer, seen) {
            (PairResponse::Stored(secondary), _) => Step::Done(Box::new(Pair {
                primary: primary.clone(),
                secondary: Some(secondary),
            })),
            (PairResponse::Found(None), _) => {
                Step::PairRequest(PairRequest::Create(Side::Secondary))
            }
            (PairResponse::Found(Some(found)), seen)
                if seen.is_some_and(|seen| seen.version == found.version)
                    || self.rules.is(PairMutant::BlindSecondary) =>
            {
                Step::PairRequest(PairRequest::Replace(Side::Secondary, found.version))
            }
            // If the read failed, write over the version that was last observed.
            (PairResponse::Failed, None) if looked => {
                Step::PairRequest(PairRequest::Create(Side::Secondary))
            }
            (PairResponse::Failed, Some(seen)) if looked => {
                Step::PairRequest(PairRequest::Replace(Side::Secondary, seen.version.clone()))
            }
            (_, seen) if self.rules.is(PairMutant::HalfIsEnough) => Step::Done(Box::new(Pair {
                primary: primary.clone(),
                secondary: seen.cloned(),
            })),
            _ => Step::Failed,
        }
    }
}

/// Returns the record that both objects represent. A renewal counts only once it is in both, because clients of the new
/// kind see only the second object.
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

/// Combines the orders of both objects. If both ask for a step-down, the order that names the term of this record takes
/// precedence, because orders of earlier terms stay on the objects. If both or neither name it, the order of the
/// primary object does.
fn either(first: Orders, second: &Orders, record: &Record) -> Orders {
    // A released record shows only the number of its term.
    let rank = |order: &Option<Box<StepDownOrder>>| {
        order.as_ref().map(|order| {
            let number = order.transitions == record.transitions;
            (order.names(record), number)
        })
    };
    let step_down = if rank(&second.step_down) > rank(&first.step_down) {
        second.step_down.clone()
    } else {
        first.step_down
    };
    Orders {
        paused: first.paused || second.paused,
        step_down,
    }
}

/// Combines two numbers into one that changes with either.
fn both(first: u64, second: u64) -> u64 {
    first
        .wrapping_mul(0x9E37_79B9_7F4A_7C15)
        .rotate_left(31)
        .wrapping_add(second)
        .wrapping_mul(0xD6E8_FEB8_6659_FD93)
}

/// Returns whether a watch event is newer than the known state.
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
    use std::sync::Arc;
    use std::time::Duration;

    use crate::fence::ResourceVersion;
    use crate::incarnation::{Incarnation, Place};

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
            described: None,
            orders: Orders::default(),
        }
    }

    fn pair(primary: Observation, secondary: Option<Observation>) -> Pair {
        Pair { primary, secondary }
    }

    fn begin(base: Pair) -> Writing {
        let (mut writing, first) = Writing::begin(Rules::default(), Some(base));
        assert!(matches!(first, PairRequest::Replace(Side::Primary, _)));
        let look = writing.next(PairResponse::Stored(seen("me", "7")));
        assert_eq!(look, Step::PairRequest(PairRequest::Look));
        writing
    }

    #[test]
    fn nothing_is_done_before_the_primary_is_written() {
        let (mut writing, first) = Writing::begin(Rules::default(), None);
        assert_eq!(first, PairRequest::Create(Side::Primary));
        assert_eq!(writing.next(PairResponse::Failed), Step::Failed);
        assert!(!writing.is_half_done());
    }

    #[test]
    fn secondary_is_replaced_only_in_the_observed_version() {
        let known = || pair(seen("a", "1"), Some(seen("a", "2")));
        let replace = Step::PairRequest(PairRequest::Replace(
            Side::Secondary,
            seen("a", "2").version,
        ));
        assert_eq!(
            begin(known()).next(PairResponse::Found(Some(seen("a", "2")))),
            replace
        );
        assert_eq!(
            begin(known()).next(PairResponse::Failed),
            replace,
            "no answer says nothing"
        );
        let mut writing = begin(known());
        let found = PairResponse::Found(Some(seen("b", "3")));
        assert_eq!(writing.next(found), Step::Failed);
        assert!(writing.is_half_done(), "in doubt, not refused");
    }

    #[test]
    fn a_missing_secondary_is_created() {
        let mut writing = begin(pair(seen("a", "1"), None));
        let create = Step::PairRequest(PairRequest::Create(Side::Secondary));
        assert_eq!(writing.next(PairResponse::Found(None)), create);
        let done = pair(seen("me", "7"), Some(seen("me", "8")));
        assert_eq!(
            writing.next(PairResponse::Stored(seen("me", "8"))),
            Step::Done(Box::new(done))
        );
    }

    #[test]
    fn two_holders_count_as_unknown_and_the_version_is_the_newer_one() {
        let together = pair(seen("a", "9"), Some(seen("b", "10"))).together(Rules::default());
        assert_eq!(together.record.holder, UNKNOWN_HOLDER);
        assert_eq!(together.version.revision.as_str(), "10");
    }

    #[test]
    fn one_holder_of_both_is_the_holder() {
        let together = pair(seen("a", "9"), Some(seen("a", "10"))).together(Rules::default());
        assert_eq!(together.record.holder, "a");
    }

    /// A proof replaces both objects.
    #[test]
    fn holder_is_described_only_if_both_objects_describe_it() {
        let described = |holder: &str| {
            let mut seen = seen(holder, "5");
            let incarnation = Incarnation::of(&seen.record, Place::default());
            seen.described = Some(Arc::new(incarnation));
            seen
        };
        let together = |first, second| pair(first, Some(second)).together(Rules::default());
        let both = together(described("a"), described("a"));
        assert_eq!(both.described, described("a").described);
        assert_eq!(together(described("a"), seen("a", "5")).described, None);
        assert_eq!(together(described("a"), described("b")).described, None);
    }

    #[test]
    fn half_of_an_own_write_is_ignored() {
        let known = || pair(seen("a", "1"), Some(seen("a", "2")));
        let under_way = Own::UnderWay(seen("me", "3").record);
        let shown = known().shown(&under_way, Side::Primary, Some(seen("me", "3")));
        assert_eq!(shown, PairChange::Nothing);
        let shown = known().shown(&Own::Nothing, Side::Primary, Some(seen("me", "3")));
        assert!(matches!(shown, PairChange::Changed(_)));
        let stale = known().shown(&Own::Nothing, Side::Secondary, Some(seen("b", "1")));
        assert_eq!(stale, PairChange::Nothing);
        let gone = known().shown(&Own::Nothing, Side::Primary, None);
        assert_eq!(gone, PairChange::Absent);
    }

    #[test]
    fn event_hidden_by_a_newer_half_causes_a_read() {
        // The primary at revision 7 was delivered first. An earlier change of the secondary arrives later.
        let known = pair(seen("a", "7"), Some(seen("a", "5")));
        let shown = known.shown(&Own::Nothing, Side::Secondary, Some(seen("b", "6")));
        assert_eq!(shown, PairChange::Hidden);
        let known = pair(seen("a", "3"), Some(seen("a", "5")));
        let shown = known.shown(&Own::Nothing, Side::Primary, Some(seen("a", "4")));
        assert_eq!(shown, PairChange::Hidden, "an order, say");
    }

    #[test]
    fn order_that_names_the_term_is_not_hidden_by_an_order_of_an_earlier_term() {
        let order = |transitions, holder: &str| StepDownOrder {
            transitions,
            holder: Some(holder.to_owned()),
            acquire_time: None,
            to: None,
            sit_out: Duration::ZERO,
        };
        let (current, earlier) = (order(0, "a"), order(7, "a"));
        let namesake = order(0, "b");
        let also_current = StepDownOrder {
            to: Some("b".to_owned()),
            ..current.clone()
        };
        for (first, second, expected) in [
            (Some(&current), Some(&also_current), &current),
            (Some(&also_current), Some(&current), &also_current),
            (Some(&earlier), Some(&current), &current),
            (Some(&current), Some(&earlier), &current),
            (Some(&namesake), Some(&current), &current),
            (Some(&earlier), Some(&namesake), &namesake),
            (Some(&earlier), None, &earlier),
            (None, Some(&earlier), &earlier),
        ] {
            let (mut primary, mut secondary) = (seen("a", "1"), seen("a", "2"));
            primary.orders.step_down = first.cloned().map(Box::new);
            secondary.orders.step_down = second.cloned().map(Box::new);
            let together = pair(primary, Some(secondary)).together(Rules::default());
            assert_eq!(together.orders.step_down.as_deref(), Some(expected));
        }
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
    fn invalid_records_in_both_objects_are_unreadable() {
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
            assert_eq!(shown, PairChange::Nothing, "{side:?}");
            let shown = older().shown(&own, side, Some(seen("me", "9")));
            assert!(matches!(shown, PairChange::Changed(_)), "{side:?}");
        }
        let alone = pair(seen("me", "7"), None);
        assert_eq!(Own::done(&alone), Own::Nothing);
    }

    #[test]
    fn invalid_record_is_never_half_of_an_own_write() {
        let under_way = Own::UnderWay(seen("me", "3").record);
        let mut garbage = seen("me", "3");
        garbage.unreadable = true;
        let known = pair(seen("a", "1"), Some(seen("a", "2")));
        let shown = known.shown(&under_way, Side::Primary, Some(garbage));
        assert!(matches!(shown, PairChange::Changed(_)));
    }

    #[test]
    fn secondary_whose_write_fails_is_not_tried_again() {
        let mut writing = begin(pair(seen("a", "1"), Some(seen("a", "2"))));
        let replace = writing.next(PairResponse::Failed);
        assert!(matches!(
            replace,
            Step::PairRequest(PairRequest::Replace(..))
        ));
        assert_eq!(writing.next(PairResponse::Failed), Step::Failed);
        let mut writing = begin(pair(seen("a", "1"), None));
        let create = writing.next(PairResponse::Failed);
        assert_eq!(
            create,
            Step::PairRequest(PairRequest::Create(Side::Secondary))
        );
        assert_eq!(writing.next(PairResponse::Failed), Step::Failed);
    }

    #[test]
    fn unreadable_half_keeps_the_longer_duration() {
        let (mut first, mut second) = (seen("a", "1"), seen("b", "2"));
        first.unreadable = true;
        second.record.lease_duration_seconds = 60;
        let together = pair(first, Some(second)).together(Rules::default());
        assert!(together.unreadable && together.record.holder.is_empty());
        assert_eq!(together.record.lease_duration_seconds, 60);
    }
}
