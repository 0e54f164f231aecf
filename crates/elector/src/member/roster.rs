//! Decides which members of an election are alive.
//!
//! A member is alive as long as its object changes. The duration in the object is measured on the local clock, from the
//! list that first contained the present version. Times in members come from other clocks. They are never compared with
//! any clock, because a member on a machine with a wrong clock is alive too.
//!
//! Members are read periodically, so their state is known only at the instant of a list. A member with a shorter duration
//! than this candidate gets the duration of this candidate, because a shorter one contains too few lists. If two lists are
//! half of that duration apart, for example after an outage, this candidate observed nothing in between. The duration of
//! every member then starts again, so that each living one has the time to renew.
//!
//! A crashed candidate therefore stays a living member for up to its duration, or longer after an outage. Ranks use only
//! the members that have renewed recently ([`Roster::recent`]).

use std::collections::BTreeMap;
use std::time::Duration;

use tenure_core::{LocalTime, Version};
use tenure_lock::member::{Member, MemberSnapshot};

/// Shortest gap between two lists that restarts the durations of all members. It is not shorter, because a slow server
/// must not keep dead members alive.
const SHORTEST_GAP: Duration = Duration::from_secs(3);

/// The members as last read.
#[derive(Debug)]
pub(super) struct Roster {
    /// The duration of this candidate. It reads the members three times within it.
    own: Duration,
    /// By the name of the object. Its size is limited by the list.
    known: BTreeMap<String, Known>,
    listed: Option<LocalTime>,
}

#[derive(Debug)]
struct Known {
    snapshot: MemberSnapshot,
    /// The list that first contained this version, or the first one after a gap.
    since: LocalTime,
    /// The list that first contained this version.
    changed: LocalTime,
}

impl Roster {
    pub(super) fn new(own: Duration) -> Self {
        Self {
            own,
            known: BTreeMap::new(),
            listed: None,
        }
    }

    /// Replaces the members by a complete list that was read now.
    pub(super) fn apply(&mut self, list: Vec<MemberSnapshot>, now: LocalTime) {
        let mut before = std::mem::take(&mut self.known);
        let gap = (self.own / 2).max(SHORTEST_GAP);
        let listed = self.listed.replace(now);
        let observed = listed.is_some_and(|at| now.since(at) < gap);
        for snapshot in list {
            let unchanged = before
                .remove(&snapshot.name)
                .filter(|known| known.snapshot.version == snapshot.version);
            let changed = unchanged.as_ref().map_or(now, |known| known.changed);
            let since = unchanged
                .filter(|_| observed)
                .map_or(now, |known| known.since);
            let known = Known {
                snapshot,
                since,
                changed,
            };
            self.known.insert(known.snapshot.name.clone(), known);
        }
    }

    /// Returns the instant of the last list.
    pub(super) fn listed(&self) -> Option<LocalTime> {
        self.listed
    }

    /// Returns the members that were alive at the last list.
    pub(super) fn living(&self) -> impl Iterator<Item = &Member> {
        let living = self.known.values().filter(|known| !self.is_dead(known));
        let mut living: Vec<&Member> = living.map(|known| &known.snapshot.member).collect();
        living.sort_unstable_by(|a, b| a.identity.cmp(&b.identity));
        living.into_iter()
    }

    /// Returns the members that had renewed recently at the last list: within two thirds of the time after which they count
    /// as dead. A living member renews three times within that time, so that at most one list in a row shows it unchanged.
    pub(super) fn recent(&self) -> impl Iterator<Item = &Member> {
        let recent = self.known.values().filter(|known| {
            let unchanged = self.listed.unwrap_or_default().since(known.changed);
            unchanged < self.lifetime(known) * 2 / 3
        });
        recent.map(|known| &known.snapshot.member)
    }

    /// Returns names and versions of the members that were dead at the last list.
    pub(super) fn dead(&self) -> impl Iterator<Item = (&str, &Version)> {
        let dead = self.known.values().filter(|known| self.is_dead(known));
        dead.map(|known| (known.snapshot.name.as_str(), &known.snapshot.version))
    }

    fn is_dead(&self, known: &Known) -> bool {
        let listed = self.listed.unwrap_or_default();
        listed.since(known.since) >= self.lifetime(known)
    }

    /// Returns the time without a change after which a member counts as dead.
    fn lifetime(&self, known: &Known) -> Duration {
        known.snapshot.duration.max(self.own)
    }
}

#[cfg(test)]
mod tests {
    use tenure_core::{ResourceVersion, WallTime};

    use super::*;

    const OWN: Duration = Duration::from_secs(30);

    fn member(identity: &str, revision: &str) -> MemberSnapshot {
        MemberSnapshot {
            name: format!("web.member.{identity}"),
            election: "web".to_owned(),
            member: Member {
                identity: identity.to_owned(),
                ..Member::default()
            },
            duration: Duration::from_secs(30),
            renew_time: None,
            version: Version {
                uid: "u".into(),
                revision: ResourceVersion::new(revision),
            },
        }
    }

    fn at(seconds: u64) -> LocalTime {
        LocalTime::from_nanos(seconds * 1_000_000_000)
    }

    fn living(roster: &Roster) -> Vec<&str> {
        roster.living().map(|member| &*member.identity).collect()
    }

    fn dead(roster: &Roster) -> Vec<&str> {
        roster.dead().map(|(name, _)| name).collect()
    }

    #[test]
    fn member_lives_until_it_was_unchanged_for_its_duration() {
        let mut roster = Roster::new(OWN);
        for now in [100, 110, 120, 129] {
            roster.apply(vec![member("b", "1"), member("a", "7")], at(now));
            assert_eq!(living(&roster), ["a", "b"], "{now}");
        }
        roster.apply(vec![member("b", "2"), member("a", "7")], at(130));
        assert_eq!(
            (living(&roster), dead(&roster)),
            (vec!["b"], vec!["web.member.a"])
        );
        roster.apply(vec![member("b", "2"), member("a", "8")], at(131));
        assert_eq!(living(&roster), ["a", "b"], "it renewed after all");
        roster.apply(vec![member("b", "2")], at(132));
        assert_eq!(
            (living(&roster), dead(&roster)),
            (vec!["b"], vec![]),
            "deleted"
        );
    }

    #[test]
    fn member_that_has_not_renewed_recently_is_living_but_not_recent() {
        let mut roster = Roster::new(OWN);
        let recent = |roster: &Roster| roster.recent().count();
        for (now, revision, expected) in [
            (100, "1", 1),
            (111, "1", 1),
            (119, "1", 1),
            (120, "1", 0),
            (129, "2", 1),
            // No list was answered for a minute, in which it did not renew either.
            (189, "2", 0),
            (199, "3", 1),
        ] {
            roster.apply(vec![member("a", revision)], at(now));
            assert_eq!(living(&roster), ["a"], "{now}");
            assert_eq!(recent(&roster), expected, "{now}");
        }
    }

    #[test]
    fn clock_of_the_member_does_not_matter() {
        let mut roster = Roster::new(OWN);
        for (now, revision) in [(100, "1"), (110, "2"), (120, "3"), (130, "4"), (144, "5")] {
            let mut skewed = member("a", revision);
            skewed.renew_time = Some(WallTime::from_micros(-1));
            roster.apply(vec![skewed], at(now));
            assert_eq!(dead(&roster), [""; 0], "{now}");
        }
    }

    #[test]
    fn unobserved_time_does_not_count() {
        let mut roster = Roster::new(OWN);
        for now in [100, 110, 120] {
            roster.apply(vec![member("a", "1")], at(now));
        }
        // No list was answered for 20 s and for ten minutes, so no candidate could renew either.
        for now in [140, 150, 160, 760, 770, 780] {
            roster.apply(vec![member("a", "1")], at(now));
            assert_eq!(living(&roster), ["a"], "{now}");
        }
        roster.apply(vec![member("a", "1")], at(790));
        assert_eq!(dead(&roster), ["web.member.a"]);
    }

    #[test]
    fn member_with_a_shorter_duration_than_the_reader_dies() {
        let mut roster = Roster::new(OWN);
        for now in [100, 110, 120, 129] {
            let mut short = member("a", "1");
            short.duration = Duration::from_secs(1);
            roster.apply(vec![short], at(now));
            assert_eq!(living(&roster), ["a"], "{now}");
        }
        let mut short = member("a", "1");
        short.duration = Duration::from_secs(1);
        roster.apply(vec![short], at(131));
        assert_eq!(dead(&roster), ["web.member.a"]);
    }

    #[test]
    fn recreated_member_is_another_one() {
        let mut roster = Roster::new(OWN);
        for now in [100, 110, 120] {
            roster.apply(vec![member("a", "1")], at(now));
        }
        let mut recreated = member("a", "1");
        recreated.version.uid = "v".into();
        roster.apply(vec![recreated], at(130));
        assert_eq!(living(&roster), ["a"]);
    }
}
