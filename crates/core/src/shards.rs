//! How the replicas of a shard group agree on the number of shards, and how that number changes.
//!
//! Leases `x-of-64` and `y-of-128` are unrelated, so two replicas with different numbers could own one key at the same
//! time. The group therefore stores an [`Agreement`] in one dedicated object. This module decides when a replica may
//! join ([`Joining::step`]) and when a shard that it has won may be used ([`Joining::confirms`]). It has no I/O and
//! takes time as an argument.
//!
//! Invariant: while a shard of one number has an owner with a valid guard, no shard of another number has one. Three
//! rules maintain it:
//!
//! 1. An owner uses a shard only after a read that was sent *after* the write that won the shard, and that shows that
//!    the group is open for its number. Each term needs such a read.
//! 2. The agreement is opened for a number only by compare-and-set over a version that names this number and is not
//!    open yet (draining).
//! 3. Between the read of that version and the opening, a list of all leases has shown that no shard of another number
//!    can have an owner. The lease of such a shard is free, or has not changed for its lease duration on the local
//!    clock.
//!
//! A shard that was won before the agreement changed is in that list (rule 3). A shard that was won later is not used
//! (rule 1). All reads and lists must be linearizable.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::input::Version;
use crate::mutant::ShardMutant;
pub use crate::mutant::ShardRules as Rules;
use crate::time::LocalTime;

/// Content of the group's object: the number of shards.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Agreement {
    /// The number of shards; `None` if it cannot be read.
    pub shards: Option<u32>,
    /// The number that the group is open for. It differs from [`shards`](Self::shards) while shards of another number
    /// may still have owners.
    pub open: Option<u32>,
    /// The version of the object, for compare-and-set.
    pub version: Version,
}

/// One lease of a group in a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    /// Its name.
    pub name: String,
    /// Number of shards of the set that it belongs to; `None` for the lease of a replica.
    pub of: Option<u32>,
    /// Whether the lease has a holder.
    pub held: bool,
    /// Its version.
    pub version: Version,
    /// Its lease duration.
    pub duration: Duration,
}

/// Next action of a replica.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    /// Join: the group is open for its number.
    Join,
    /// Write an agreement on its number that is not open, replacing this version; `None` creates the object.
    Claim(Option<Version>),
    /// Write the same agreement as open, replacing this version.
    Open(Version),
    /// Try again later.
    Wait(Obstacle),
    /// Give up: the group has agreed on this number, or uses it.
    Refuse(u32),
}

/// Reason why a replica cannot join yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Obstacle {
    /// The number that the group has agreed on.
    pub agreed: Option<u32>,
    /// Number of shards of another shard count that may have an owner.
    pub held: usize,
    /// Number of replicas that are members now.
    pub replicas: usize,
}

/// A lease that was observed as held.
#[derive(Clone, Debug)]
struct Known {
    of: Option<u32>,
    /// `None` once the object is gone.
    version: Option<Version>,
    /// Local time since which it was observed unchanged.
    since: LocalTime,
    duration: Duration,
    /// It was renewed or acquired between two lists.
    moved: bool,
}

impl Known {
    /// Returns whether the guard of its owner may still be valid when a list is requested.
    fn may_be_held(&self, asked: LocalTime, rules: Rules) -> bool {
        let patience = match rules.is(ShardMutant::HalfPatience) {
            true => self.duration / 2,
            false => self.duration,
        };
        asked.since(self.since) < patience
    }
}

/// A replica that wants to join a group, or is a member.
#[derive(Clone, Debug)]
pub struct Joining {
    shards: u32,
    may_change: bool,
    /// Minimum wait for leases that state a shorter duration.
    least: Duration,
    known: BTreeMap<String, Known>,
    rules: Rules,
}

impl Joining {
    /// Creates a replica with this number of shards and this lease duration. With `may_change` it waits until replicas
    /// with another number are gone, and then changes the number. Otherwise it gives up.
    pub fn new(shards: u32, may_change: bool, lease: Duration, rules: Rules) -> Self {
        Self {
            shards,
            may_change,
            least: lease,
            known: BTreeMap::new(),
            rules,
        }
    }

    /// Returns whether a shard may be used, given an agreement that was read after the shard was won.
    pub fn confirms(&self, agreed: Option<&Agreement>) -> bool {
        self.is_open(agreed) || self.rules.is(ShardMutant::UncheckedWin)
    }

    fn is_open(&self, agreed: Option<&Agreement>) -> bool {
        let open = |agreed: &Agreement| self.is_mine(agreed) && agreed.open == agreed.shards;
        agreed.is_some_and(open) || self.rules.is(ShardMutant::NotCompared)
    }

    /// Returns whether a member must leave, because the group has agreed on another number.
    pub fn must_leave(&self, agreed: Option<&Agreement>) -> bool {
        let other = agreed.and_then(|agreed| agreed.shards);
        other.is_some_and(|other| other != self.shards) && !self.rules.is(ShardMutant::NotCompared)
    }

    /// Decides from a read of the agreement and a list of all leases. The list was requested at `asked`, after the
    /// response to the read, and received at `answered`.
    pub fn step(
        &mut self,
        asked: LocalTime,
        answered: LocalTime,
        agreed: Option<&Agreement>,
        leases: &[Listed],
    ) -> Decision {
        self.note(asked, answered, leases);
        if self.is_open(agreed) {
            return Decision::Join;
        }
        let may_be_held = |known: &&Known| known.may_be_held(asked, self.rules);
        let (members, shards): (Vec<&Known>, Vec<&Known>) = self
            .known
            .values()
            .filter(may_be_held)
            .partition(|known| known.of.is_none());
        let wait = Decision::Wait(Obstacle {
            agreed: agreed.and_then(|agreed| agreed.shards),
            held: shards.len(),
            replicas: members.len(),
        });
        if let Some(agreed) = agreed.filter(|agreed| self.is_mine(agreed)) {
            let free = shards.is_empty() || self.rules.is(ShardMutant::StartWithoutWaiting);
            return match free {
                true => Decision::Open(agreed.version.clone()),
                false => wait,
            };
        }
        let version = agreed.map(|agreed| agreed.version.clone());
        if let Some(other) = agreed.and_then(|agreed| agreed.shards) {
            return match (self.may_change, shards.is_empty() && members.is_empty()) {
                (false, _) => Decision::Refuse(other),
                (true, true) => Decision::Claim(version),
                (true, false) => wait,
            };
        }
        // There is no agreement: the group is new, is older than agreements, or its agreement was deleted. A renewed
        // lease shows which number the group uses. A lease that is not renewed may belong to a dead replica.
        let alive = shards.iter().find(|known| known.moved);
        if let Some(other) = alive.and_then(|known| known.of)
            && !self.may_change
        {
            return Decision::Refuse(other);
        }
        let ours = |lease: &Listed| lease.held && lease.of == Some(self.shards);
        let is_ours = leases.iter().any(ours);
        match shards.is_empty() && (members.is_empty() || is_ours) {
            true => Decision::Claim(version),
            false => wait,
        }
    }

    fn is_mine(&self, agreed: &Agreement) -> bool {
        agreed.shards == Some(self.shards)
    }

    /// Records the time since which each held lease is unchanged. Only the leases of replicas and of shards of other
    /// numbers matter.
    fn note(&mut self, asked: LocalTime, answered: LocalTime, leases: &[Listed]) {
        let mut before = std::mem::take(&mut self.known);
        for lease in leases {
            let known = before.remove(&lease.name);
            if !lease.held || lease.of == Some(self.shards) {
                continue;
            }
            let same = known
                .as_ref()
                .filter(|k| k.version.as_ref() == Some(&lease.version));
            let now = Known {
                of: lease.of,
                version: Some(lease.version.clone()),
                since: same.map_or(answered, |same| same.since),
                duration: lease.duration.max(self.least),
                moved: known.as_ref().is_some_and(|k| k.moved || same.is_none()),
            };
            self.known.insert(lease.name.clone(), now);
        }
        // A deleted lease of a shard does not prove that its owner is gone, because the owner's guard may still be
        // valid. The leases of replicas are deleted when the replicas leave.
        for (name, mut known) in before.into_iter().filter(|(_, known)| known.of.is_some()) {
            if known.version.take().is_some() {
                known.since = answered;
            }
            if known.may_be_held(asked, self.rules) {
                self.known.insert(name, known);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fence::ResourceVersion;

    const LEASE: Duration = Duration::from_secs(15);

    fn version(revision: u64) -> Version {
        Version {
            uid: "u".into(),
            revision: ResourceVersion::new(revision.to_string()),
        }
    }

    fn agreed(shards: u32, open: Option<u32>) -> Agreement {
        Agreement {
            shards: Some(shards),
            open,
            version: version(1),
        }
    }

    fn shard(of: u32, held: bool, revision: u64) -> Listed {
        Listed {
            name: format!("g.00-of-{of}"),
            of: Some(of),
            held,
            version: version(revision),
            duration: LEASE,
        }
    }

    fn member(revision: u64) -> Listed {
        Listed {
            name: "g.member-1".to_owned(),
            of: None,
            ..shard(0, true, revision)
        }
    }

    fn joining(may_change: bool) -> Joining {
        Joining::new(128, may_change, LEASE, Rules::default())
    }

    /// Performs one step in which request and response happen at the same instant.
    fn step(
        joining: &mut Joining,
        seconds: u64,
        agreed: Option<&Agreement>,
        leases: &[Listed],
    ) -> Decision {
        let at = LocalTime::from_nanos(seconds * 1_000_000_000);
        joining.step(at, at, agreed, leases)
    }

    fn waits(decision: &Decision) -> bool {
        matches!(decision, Decision::Wait(_))
    }

    #[test]
    fn empty_group_is_claimed_then_opened_then_joined() {
        let mut joining = joining(false);
        assert_eq!(step(&mut joining, 1, None, &[]), Decision::Claim(None));
        let draining = agreed(128, None);
        assert!(!joining.confirms(Some(&draining)));
        let open = Decision::Open(version(1));
        assert_eq!(step(&mut joining, 2, Some(&draining), &[]), open);
        let agreed = agreed(128, Some(128));
        assert_eq!(step(&mut joining, 3, Some(&agreed), &[]), Decision::Join);
        assert!(joining.confirms(Some(&agreed)) && !joining.confirms(None));
    }

    #[test]
    fn other_number_is_refused_unless_it_may_change() {
        let sixty_four = agreed(64, Some(64));
        let refused = step(&mut joining(false), 1, Some(&sixty_four), &[]);
        assert_eq!(refused, Decision::Refuse(64));
        let claimed = step(&mut joining(true), 1, Some(&sixty_four), &[]);
        assert_eq!(claimed, Decision::Claim(Some(version(1))));
    }

    #[test]
    fn change_waits_for_replicas_and_held_shards() {
        let mut joining = joining(true);
        let sixty_four = agreed(64, Some(64));
        let member_alone = [shard(64, false, 5), member(6)];
        assert!(waits(&step(
            &mut joining,
            1,
            Some(&sixty_four),
            &member_alone
        )));
        let held = [shard(64, true, 7)];
        assert!(waits(&step(&mut joining, 2, Some(&sixty_four), &held)));
        let free = [shard(64, false, 8)];
        let claim = Decision::Claim(Some(version(1)));
        assert_eq!(step(&mut joining, 3, Some(&sixty_four), &free), claim);
    }

    #[test]
    fn held_shard_is_waited_for_until_a_list_after_its_lease_shows_it_unchanged() {
        let mut joining = joining(true);
        let draining = agreed(128, Some(64));
        assert!(waits(&step(
            &mut joining,
            1,
            Some(&draining),
            &[shard(64, true, 7)]
        )));
        assert!(waits(&step(
            &mut joining,
            15,
            Some(&draining),
            &[shard(64, true, 7)]
        )));
        // The lease was renewed in between, so the wait starts again.
        assert!(waits(&step(
            &mut joining,
            16,
            Some(&draining),
            &[shard(64, true, 9)]
        )));
        assert!(waits(&step(
            &mut joining,
            30,
            Some(&draining),
            &[shard(64, true, 9)]
        )));
        let opened = step(&mut joining, 31, Some(&draining), &[shard(64, true, 9)]);
        assert_eq!(opened, Decision::Open(version(1)));
    }

    #[test]
    fn slow_list_counts_from_its_answer_and_up_to_its_request() {
        let mut joining = joining(true);
        let draining = agreed(128, Some(64));
        let at = |seconds: u64| LocalTime::from_nanos(seconds * 1_000_000_000);
        let held = [shard(64, true, 7)];
        assert!(waits(&joining.step(at(1), at(5), Some(&draining), &held)));
        assert!(waits(&joining.step(at(19), at(25), Some(&draining), &held)));
        let opened = joining.step(at(20), at(21), Some(&draining), &held);
        assert_eq!(opened, Decision::Open(version(1)));
    }

    #[test]
    fn deleted_lease_of_a_held_shard_is_waited_out() {
        let mut joining = joining(true);
        let draining = agreed(128, None);
        assert!(waits(&step(
            &mut joining,
            1,
            Some(&draining),
            &[shard(64, true, 7)]
        )));
        assert!(waits(&step(&mut joining, 10, Some(&draining), &[])));
        assert!(waits(&step(&mut joining, 24, Some(&draining), &[])));
        let opened = step(&mut joining, 25, Some(&draining), &[]);
        assert_eq!(opened, Decision::Open(version(1)));
    }

    #[test]
    fn missing_agreement_is_not_created_next_to_shards_of_another_number() {
        let mut joining = joining(false);
        assert!(waits(&step(&mut joining, 1, None, &[shard(64, true, 7)])));
        let refused = step(&mut joining, 3, None, &[shard(64, true, 8)]);
        assert_eq!(refused, Decision::Refuse(64));
    }

    #[test]
    fn missing_agreement_of_a_dead_group_is_created_after_its_leases() {
        let mut joining = joining(false);
        assert!(waits(&step(&mut joining, 1, None, &[shard(64, true, 7)])));
        let claimed = step(&mut joining, 16, None, &[shard(64, true, 7)]);
        assert_eq!(claimed, Decision::Claim(None));
    }

    #[test]
    fn group_without_an_agreement_continues_with_its_number() {
        let leases = [shard(128, true, 7), member(8)];
        let claimed = step(&mut joining(false), 1, None, &leases);
        assert_eq!(claimed, Decision::Claim(None));
    }

    #[test]
    fn replicas_without_shards_of_our_number_are_waited_for() {
        for leases in [vec![member(8)], vec![shard(128, false, 7), member(8)]] {
            assert!(waits(&step(&mut joining(false), 1, None, &leases)));
        }
    }

    #[test]
    fn unreadable_agreement_is_replaced_in_its_version() {
        let unreadable = Agreement {
            shards: None,
            ..agreed(0, Some(64))
        };
        let mut joining = joining(false);
        assert!(!joining.confirms(Some(&unreadable)) && !joining.must_leave(Some(&unreadable)));
        let claimed = step(&mut joining, 1, Some(&unreadable), &[]);
        assert_eq!(claimed, Decision::Claim(Some(version(1))));
    }

    #[test]
    fn number_edited_by_hand_is_not_open() {
        let edited = agreed(128, Some(64));
        assert!(!joining(true).confirms(Some(&edited)));
        let old = Joining::new(64, false, LEASE, Rules::default());
        assert!(old.must_leave(Some(&edited)) && !old.confirms(Some(&edited)));
    }
}
