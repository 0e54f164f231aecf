//! Release after a crash: decides whether a process other than the holder may release a term.
//!
//! The watchdog of `tenure run` outlives its wrapper. Once the wrapper and all processes of the work have ended, nobody
//! acts in the term any more, so the watchdog may release it (S4). It does not know the last version that the wrapper
//! wrote, because the response may have been lost. It reads the object, and this module compares the object with the term.
//! Rules:
//!
//! - The object must show exactly that term: the same uid, identity, acquire time and number of transitions. An equal
//!   identity proves nothing, because another process may have it. Times in whole seconds do not distinguish two such
//!   processes, so a term of a lock with such times is never released.
//! - The mark must name the record. Otherwise another writer has replaced the record, and the term of the mark is waited
//!   for.
//! - The release replaces exactly the version that was compared. A renewal that the wrapper sent before it died then
//!   fails, or makes the release fail.

use crate::command::WriteKind;
pub use crate::death::Rules;
use crate::input::Observation;
use crate::mutant::DeathMutant;
use crate::record::Record;
use crate::time::WallTime;

/// A term, as a process that outlives its holder remembers it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct HeldTerm {
    /// `metadata.uid` of the lock object.
    pub uid: String,
    /// Identity of the holder.
    pub identity: String,
    /// Time at which the term was acquired.
    pub acquire_time: WallTime,
    /// Number of transitions.
    pub transitions: u32,
}

impl HeldTerm {
    /// Returns the term that an observation shows, if its mark names the record, and the times of the lock distinguish
    /// its writers.
    pub fn of(seen: &Observation, whole_seconds: bool) -> Option<Self> {
        if whole_seconds {
            return None;
        }
        Self::shown(seen)
    }

    fn shown(seen: &Observation) -> Option<Self> {
        let record = Some(&seen.record).filter(|record| !record.is_free() && seen.is_marked())?;
        Some(Self {
            uid: seen.version.uid.to_string(),
            identity: record.holder.clone(),
            acquire_time: record.acquire_time?,
            transitions: record.transitions,
        })
    }

    /// Returns the write that releases this term. The caller must know that the holder and its work have ended. Returns
    /// `None` if the object does not show this term.
    pub fn release(
        &self,
        seen: &Observation,
        now: WallTime,
        rules: Rules,
    ) -> Option<(WriteKind, Record)> {
        let shown = Self::shown(seen)?;
        let own = shown == *self
            || rules.is(DeathMutant::ReleaseAnyTerm)
            || (rules.is(DeathMutant::ReleaseByIdentity) && shown.identity == self.identity);
        own.then(|| {
            let renewed = seen.record.renew_time.unwrap_or(self.acquire_time);
            let next = WallTime::from_micros(renewed.as_micros().saturating_add(1));
            let base = seen.version.clone();
            (
                WriteKind::Release(base, None),
                seen.record.released(now.max(next)),
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::fence::ResourceVersion;
    use crate::input::{Orders, Version};
    use crate::mark::Mark;

    fn record() -> Record {
        Record {
            holder: "a".to_owned(),
            lease_duration_seconds: 15,
            acquire_time: Some(WallTime::from_micros(10)),
            renew_time: Some(WallTime::from_micros(20)),
            transitions: 3,
            ..Record::default()
        }
    }

    fn shown(uid: &str, record: Record) -> Observation {
        Observation {
            version: Version {
                uid: Arc::from(uid),
                revision: ResourceVersion::new("7"),
            },
            mark: Some(Mark::of(&record)),
            record,
            fingerprint: 1,
            unreadable: false,
            described: None,
            orders: Orders::default(),
        }
    }

    fn release(seen: &Observation, now: i64) -> Option<(WriteKind, Record)> {
        let term = HeldTerm::of(&shown("u", record()), false).unwrap();
        term.release(seen, WallTime::from_micros(now), Rules::default())
    }

    #[test]
    fn the_own_term_is_released_also_after_a_later_renewal() {
        let renewed = Record {
            renew_time: Some(WallTime::from_micros(40)),
            ..record()
        };
        for (record, now, at) in [(record(), 50, 50), (renewed, 30, 41)] {
            let seen = shown("u", record);
            let (kind, released) = release(&seen, now).unwrap();
            assert_eq!(kind, WriteKind::Release(seen.version.clone(), None));
            assert!(released.is_free());
            assert_eq!(released.transitions, 3);
            let at = Some(WallTime::from_micros(at));
            assert_eq!((released.acquire_time, released.renew_time), (at, at));
        }
    }

    #[test]
    fn another_term_is_not_released() {
        let changed: [fn(&mut Record); 5] = [
            |record| record.holder = "b".to_owned(),
            |record| record.holder.clear(),
            |record| record.acquire_time = Some(WallTime::from_micros(11)),
            |record| record.acquire_time = None,
            |record| record.transitions = 4,
        ];
        for (number, change) in changed.iter().enumerate() {
            let mut other = record();
            change(&mut other);
            assert_eq!(release(&shown("u", other), 50), None, "change {number}");
        }
        assert_eq!(release(&shown("v", record()), 50), None, "another object");
    }

    #[test]
    fn times_in_whole_seconds_do_not_identify_a_term() {
        assert_eq!(HeldTerm::of(&shown("u", record()), true), None);
    }

    #[test]
    fn record_without_its_mark_is_not_released() {
        let mut seen = shown("u", record());
        seen.mark = None;
        assert_eq!(release(&seen, 50), None);
        seen.mark = Some(Mark::new("b", None, 15));
        assert_eq!(release(&seen, 50), None);
        let mut seen = shown("u", record());
        seen.unreadable = true;
        assert_eq!(release(&seen, 50), None);
    }
}
