//! How the candidates of a semaphore agree on the number of slots.
//!
//! A semaphore has one lease per slot, and a candidate holds at most one of them. The number of slots is stored on the
//! lease of the first slot. This module decides how a candidate reacts to that number, without I/O.
//!
//! Invariant: if the number is N from some instant on, at most N candidates use a slot that they were allowed to use
//! after that instant. Slots that a change removed may be used until their work ends.
//!
//! An election without slots of the same name has a lease of its own, so compare-and-set does not exclude its leader from
//! running alongside the holders of slots. Both kinds of candidates therefore write first and read afterwards:
//!
//! | candidate | writes | then reads, before its work starts |
//! |---|---|---|
//! | with slots | the number of slots, and the lease of its slot | the lease of the election without slots |
//! | without slots | the lease of the election | the number of slots |
//!
//! Reads are linearizable. If a candidate without slots does not read the number, its own write precedes the read of
//! every candidate that has written the number.
//!
//! Invariant: a holder of a slot and a leader without slots never use their terms at the same time.

use std::time::Duration;

use crate::input::Observation;
use crate::mutant::SlotMutant;
pub use crate::mutant::SlotRules as Rules;
use crate::time::{LocalTime, Now, WallTime};

/// Reaction of a candidate to the number of slots that it has read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// Campaign for the slots.
    Join,
    /// Write its own number over the version that it has read, and read again.
    Write,
    /// Give up: the other candidates use this number.
    Refuse(u32),
}

/// Whether a slot that was won may be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Start {
    /// The slot may be used.
    Yes,
    /// The slot may not be used, because there are now only this many slots.
    Gone(u32),
    /// The slot may not be used, because a candidate without slots leads the election.
    Led,
    /// The slot may not be used yet, because a candidate without slots may lead until this instant; read again then.
    Wait(LocalTime),
    /// The answer could not be read; try again.
    Unknown,
}

/// Whether a term that a candidate without slots has won may be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lead {
    /// The term may be used.
    Yes,
    /// The term may not be used, because other candidates use the election with this many slots.
    Slots(u32),
    /// The number could not be read; try again.
    Unknown,
}

/// Whether a candidate without slots leads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Led {
    /// No candidate leads.
    No,
    /// A candidate leads.
    Yes,
    /// A candidate may lead until this instant. If its lease is still unchanged then, no candidate leads.
    Perhaps(LocalTime),
}

/// The lease of the election without slots, as a candidate with slots observes it.
///
/// As in an election, a holder is alive because its record changes, and not because of the times in the record.
#[derive(Clone, Debug, Default)]
pub struct Whole {
    /// Fingerprint of the record that was last observed as held, and the time of its first observation.
    held: Option<(u64, LocalTime)>,
}

impl Whole {
    /// Records a read of the lease that was sent at `asked` and answered now; `None` if the lease does not exist. `own`
    /// is the lease duration of this candidate, which applies to a record that cannot be parsed.
    ///
    /// The wait begins when a record is first received. It ends with a read that is sent one lease duration later,
    /// because the holder may have renewed after an earlier read was served.
    ///
    /// A record that was renewed less than its lease duration ago by the wall clock counts as live immediately. With a
    /// wrong clock, this only refuses a start that would have been allowed later.
    pub fn observe(
        &mut self,
        (asked, now): (LocalTime, Now),
        lease: Option<&Observation>,
        own: Duration,
    ) -> Led {
        let held = |lease: &&Observation| !lease.record.is_free() || lease.unreadable;
        let Some(lease) = lease.filter(held) else {
            self.held = None;
            return Led::No;
        };
        let stated = lease.record.lease_duration();
        let patience = if lease.unreadable {
            stated.max(own)
        } else {
            stated.max(Duration::from_secs(1))
        };
        let live = match self.held {
            None => is_recent(lease.record.renew_time, now.wall, patience),
            Some((record, _)) => record != lease.fingerprint,
        };
        let since = match self.held {
            Some((record, since)) if record == lease.fingerprint => since,
            _ => now.local,
        };
        self.held = Some((lease.fingerprint, since));
        if live {
            Led::Yes
        } else if asked < since + patience {
            Led::Perhaps(since + patience)
        } else {
            Led::No
        }
    }
}

/// Returns whether a renewal was at most this long ago. A renewal in the future is recent only within the same limit, so
/// that a clock that is far ahead does not count as a sign of life for long.
fn is_recent(renewed: Option<WallTime>, now: WallTime, limit: Duration) -> bool {
    let micros = |time: WallTime| i128::from(time.as_micros());
    renewed.is_some_and(|renewed| {
        let apart = (micros(now) - micros(renewed)).unsigned_abs();
        apart <= limit.as_micros()
    })
}

impl Rules {
    /// Decides what a candidate that expects `slots` slots does. `agreed` is the number that it has read, or `None` if
    /// no number is stored. With `resize` the candidate changes a number that differs from its own.
    pub fn decide(self, agreed: Option<u32>, slots: u32, resize: bool) -> Decision {
        match agreed {
            Some(agreed) if agreed == slots => Decision::Join,
            Some(_) if self.is(SlotMutant::NotCompared) => Decision::Join,
            Some(agreed) if !resize => Decision::Refuse(agreed),
            Some(_) | None => Decision::Write,
        }
    }

    /// Decides whether a slot may be used. `read` is the result of a read of the number that was sent after the slot
    /// was won. `None` means that the read failed. `Some(None)` means that no number is stored, so every slot may be
    /// used.
    pub fn may_start(self, slot: u32, read: Option<Option<u32>>) -> Start {
        match read {
            _ if self.is(SlotMutant::UncheckedWin) => Start::Yes,
            None if self.is(SlotMutant::SilenceIsConsent) => Start::Yes,
            None => Start::Unknown,
            Some(Some(agreed)) if slot >= agreed && !self.is(SlotMutant::NotCompared) => {
                Start::Gone(agreed)
            }
            Some(_) => Start::Yes,
        }
    }

    /// Decides like [`may_start`](Self::may_start), and also considers the lease of the election without slots. That
    /// lease must have been read after the slot was won; `None` means that this read failed.
    pub fn may_use(self, slot: u32, read: Option<Option<u32>>, led: Option<Led>) -> Start {
        match (self.may_start(slot, read), led) {
            (Start::Yes, _) if self.is(SlotMutant::WholeUnchecked) => Start::Yes,
            (Start::Yes, None) => Start::Unknown,
            (Start::Yes, Some(Led::Yes)) => Start::Led,
            (Start::Yes, Some(Led::Perhaps(until))) => Start::Wait(until),
            (start, _) => start,
        }
    }

    /// Decides whether a candidate without slots may start, given a read of the number. A term may be used only after a
    /// read that was sent after the term was won. `None` means that the read failed, and `Some(None)` that no number is
    /// stored.
    pub fn may_lead(self, read: Option<Option<u32>>) -> Lead {
        match read {
            _ if self.is(SlotMutant::UncheckedTerm) => Lead::Yes,
            None => Lead::Unknown,
            Some(None) => Lead::Yes,
            Some(Some(slots)) => Lead::Slots(slots),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::input::{Orders, Version};
    use crate::{Record, ResourceVersion};

    const OWN: Duration = Duration::from_secs(30);

    fn at(seconds: u64, wall: i64) -> Now {
        Now {
            local: LocalTime::default() + Duration::from_secs(seconds),
            wall: WallTime::from_micros(wall * 1_000_000),
        }
    }

    /// A lease of ten seconds that was renewed at this wall time; the fingerprint is that time.
    fn lease(holder: &str, renewed: i64) -> Observation {
        Observation {
            version: Version {
                uid: "u".into(),
                revision: ResourceVersion::new("1"),
            },
            record: Record {
                holder: holder.to_owned(),
                lease_duration_seconds: 10,
                renew_time: Some(WallTime::from_micros(renewed * 1_000_000)),
                ..Record::default()
            },
            fingerprint: renewed.unsigned_abs(),
            unreadable: false,
            mark: None,
            described: None,
            orders: Orders::default(),
        }
    }

    fn observe(whole: &mut Whole, now: Now, lease: Option<&Observation>) -> Led {
        whole.observe((now.local, now), lease, OWN)
    }

    #[test]
    fn election_without_a_lease_or_a_holder_is_not_led() {
        let mut whole = Whole::default();
        assert_eq!(observe(&mut whole, at(1, 0), None), Led::No);
        assert_eq!(observe(&mut whole, at(2, 0), Some(&lease("", 0))), Led::No);
    }

    #[test]
    fn recent_renewal_is_a_sign_of_life_on_either_side_of_the_clock() {
        for (renewed, live) in [(990, true), (989, false), (1010, true), (1011, false)] {
            let led = observe(
                &mut Whole::default(),
                at(5, 1000),
                Some(&lease("u", renewed)),
            );
            assert_eq!(led == Led::Yes, live, "{renewed}");
        }
    }

    #[test]
    fn old_record_counts_as_gone_after_one_lease_duration_without_a_change() {
        let (mut whole, old) = (Whole::default(), lease("u", 0));
        let until = at(15, 0).local;
        assert_eq!(
            observe(&mut whole, at(5, 1000), Some(&old)),
            Led::Perhaps(until)
        );
        assert_eq!(
            observe(&mut whole, at(14, 1009), Some(&old)),
            Led::Perhaps(until)
        );
        assert_eq!(observe(&mut whole, at(15, 1010), Some(&old)), Led::No);
    }

    #[test]
    fn read_that_was_sent_before_the_end_of_the_wait_does_not_end_it() {
        let (mut whole, old) = (Whole::default(), lease("u", 0));
        observe(&mut whole, at(5, 1000), Some(&old));
        let late = (at(14, 0).local, at(20, 1015));
        let led = whole.observe(late, Some(&old), OWN);
        assert_eq!(led, Led::Perhaps(at(15, 0).local));
    }

    #[test]
    fn record_that_changes_is_live_regardless_of_its_time() {
        let mut whole = Whole::default();
        observe(&mut whole, at(5, 1000), Some(&lease("u", 0)));
        assert_eq!(
            observe(&mut whole, at(7, 1002), Some(&lease("u", 2))),
            Led::Yes
        );
        // The wait starts again with the record that was observed last.
        let until = at(17, 0).local;
        let led = observe(&mut whole, at(16, 1011), Some(&lease("u", 2)));
        assert_eq!(led, Led::Perhaps(until));
    }

    #[test]
    fn released_lease_is_forgotten() {
        let mut whole = Whole::default();
        observe(&mut whole, at(5, 1000), Some(&lease("u", 0)));
        assert_eq!(
            observe(&mut whole, at(6, 1001), Some(&lease("", 1))),
            Led::No
        );
        let until = at(30, 0).local;
        let led = observe(&mut whole, at(20, 1015), Some(&lease("u", 0)));
        assert_eq!(led, Led::Perhaps(until));
    }

    #[test]
    fn unreadable_record_is_held_for_the_own_lease_duration_and_a_short_one_for_a_second() {
        let mut garbage = lease("", 0);
        garbage.unreadable = true;
        let led = observe(&mut Whole::default(), at(5, 1000), Some(&garbage));
        assert_eq!(led, Led::Perhaps(at(35, 0).local));
        let mut short = lease("u", 0);
        short.record.lease_duration_seconds = 0;
        let led = observe(&mut Whole::default(), at(5, 1000), Some(&short));
        assert_eq!(led, Led::Perhaps(at(6, 0).local));
    }

    #[test]
    fn slot_is_used_only_if_no_candidate_without_slots_leads() {
        let rules = Rules::default();
        let until = at(9, 0).local;
        let asked = |led| rules.may_use(2, Some(Some(3)), led);
        assert_eq!(asked(Some(Led::No)), Start::Yes);
        assert_eq!(asked(Some(Led::Yes)), Start::Led);
        assert_eq!(asked(Some(Led::Perhaps(until))), Start::Wait(until));
        assert_eq!(asked(None), Start::Unknown);
        // The number decides first.
        assert_eq!(
            rules.may_use(3, Some(Some(3)), Some(Led::Yes)),
            Start::Gone(3)
        );
        assert_eq!(rules.may_use(0, None, Some(Led::No)), Start::Unknown);
    }

    #[test]
    fn term_without_slots_is_used_only_if_there_is_no_number() {
        let rules = Rules::default();
        assert_eq!(rules.may_lead(Some(None)), Lead::Yes);
        assert_eq!(rules.may_lead(Some(Some(2))), Lead::Slots(2));
        assert_eq!(rules.may_lead(None), Lead::Unknown);
    }

    #[test]
    fn other_number_is_refused_unless_it_is_a_resize() {
        let rules = Rules::default();
        assert_eq!(rules.decide(None, 3, false), Decision::Write);
        assert_eq!(rules.decide(Some(3), 3, false), Decision::Join);
        assert_eq!(rules.decide(Some(4), 3, false), Decision::Refuse(4));
        assert_eq!(rules.decide(Some(4), 3, true), Decision::Write);
    }

    #[test]
    fn slot_is_used_only_after_an_answer_that_has_it() {
        let rules = Rules::default();
        assert_eq!(rules.may_start(2, Some(Some(3))), Start::Yes);
        assert_eq!(rules.may_start(3, Some(Some(3))), Start::Gone(3));
        assert_eq!(rules.may_start(3, Some(None)), Start::Yes);
        assert_eq!(rules.may_start(0, None), Start::Unknown);
    }
}
