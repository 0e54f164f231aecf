//! A replica's view of a shard group: the leases of its members and of its shards.
//!
//! Changes of its lease and the local clock alone decide whether a member is alive. Times in leases are never compared
//! with any clock.

use std::collections::BTreeMap;
use std::time::Duration;

use k8s_openapi::api::coordination::v1::Lease;
use kube::ResourceExt as _;
use kube::runtime::watcher::Event;
use tenure_core::LocalTime;

use super::Shard;

/// The label of all leases of a group.
pub(super) const GROUP_LABEL: &str = "tenure.dev/shard-group";

/// Returns the name of a shard's lease, in Knative's form.
pub(super) fn shard_lease(group: &str, shard: Shard) -> String {
    format!("{group}.{shard}")
}

/// Returns the name of a member's lease.
pub(super) fn member_lease(group: &str, identity: &str) -> String {
    format!("{group}.member-{:016x}", super::hash::weight(identity, 0))
}

/// Returns the name of the lease with the number of shards.
pub(super) fn agreement_lease(group: &str) -> String {
    format!("{group}.shards")
}

/// Returns the number of shards in the name of a shard's lease; `Some(None)` for a member's lease, nothing for any
/// other lease.
pub(super) fn of_shard_lease(group: &str, name: &str) -> Option<Option<u32>> {
    let rest = name.strip_prefix(group)?.strip_prefix('.')?;
    if rest.starts_with("member-") {
        return Some(None);
    }
    let (index, of) = rest.split_once("-of-")?;
    let (index, of): (u32, u32) = (index.parse().ok()?, of.parse().ok()?);
    (index < of).then_some(Some(of))
}

/// All leases of a group, as last observed.
#[derive(Debug)]
pub(super) struct View {
    group: String,
    of: u32,
    leases: BTreeMap<String, MemberLease>,
    /// The incomplete list after a break of the watch.
    listing: Option<BTreeMap<String, MemberLease>>,
    synced: bool,
}

#[derive(Clone, Debug)]
struct MemberLease {
    holder: String,
    version: String,
    uid: String,
    since: LocalTime,
}

/// A member's lease that has not changed for a long time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Stale {
    pub(super) name: String,
    pub(super) uid: String,
    pub(super) version: String,
}

impl View {
    pub(super) fn new(group: &str, of: u32) -> Self {
        Self {
            group: group.to_owned(),
            of,
            leases: BTreeMap::new(),
            listing: None,
            synced: false,
        }
    }

    /// Returns whether the first list is complete.
    pub(super) fn is_synced(&self) -> bool {
        self.synced
    }

    /// Applies an event. Returns true if a holder changed; renewals do not count.
    pub(super) fn apply(&mut self, event: Event<Lease>, now: LocalTime) -> bool {
        match event {
            Event::Init => {
                self.listing = Some(BTreeMap::new());
                false
            }
            Event::InitApply(lease) => {
                let (name, seen) = self.look(&lease, now);
                self.listing.get_or_insert_default().insert(name, seen);
                false
            }
            Event::InitDone => {
                self.leases = self.listing.take().unwrap_or_default();
                self.synced = true;
                true
            }
            Event::Apply(lease) => {
                let (name, seen) = self.look(&lease, now);
                let holder = seen.holder.clone();
                let before = self.leases.insert(name, seen);
                before.is_none_or(|before| before.holder != holder)
            }
            Event::Delete(lease) => self.leases.remove(&lease.name_any()).is_some(),
        }
    }

    fn look(&self, lease: &Lease, now: LocalTime) -> (String, MemberLease) {
        let name = lease.name_any();
        let spec = lease.spec.as_ref();
        let version = lease.resource_version().unwrap_or_default();
        let before = self.leases.get(&name);
        let same = before.filter(|seen| seen.version == version);
        let holder = spec.and_then(|spec| spec.holder_identity.clone());
        let seen = MemberLease {
            holder: holder.unwrap_or_default(),
            uid: lease.uid().unwrap_or_default(),
            since: same.map_or(now, |seen| seen.since),
            version,
        };
        (name, seen)
    }

    /// Returns the members whose leases changed within `late`, and this one.
    pub(super) fn members<'a>(
        &'a self,
        me: &'a str,
        now: LocalTime,
        late: Duration,
    ) -> Vec<&'a str> {
        let alive = |seen: &&MemberLease| !seen.holder.is_empty() && now.since(seen.since) < late;
        let others = self.member_leases().map(|(_, seen)| seen).filter(alive);
        let mut members: Vec<&str> = others.map(|seen| seen.holder.as_str()).collect();
        members.push(me);
        members.sort_unstable();
        members.dedup();
        members
    }

    /// Returns the current owner of each shard.
    pub(super) fn holders(&self) -> Vec<Option<&str>> {
        let shards = (0..self.of).map(|index| Shard { index, of: self.of });
        shards
            .map(|shard| {
                let seen = self.leases.get(&shard_lease(&self.group, shard))?;
                Some(seen.holder.as_str()).filter(|holder| !holder.is_empty())
            })
            .collect()
    }

    /// Returns the leases of dead members.
    pub(super) fn stale(&self, now: LocalTime, after: Duration) -> Vec<Stale> {
        self.member_leases()
            .filter(|(_, seen)| now.since(seen.since) >= after)
            .map(|(name, seen)| Stale {
                name: name.clone(),
                uid: seen.uid.clone(),
                version: seen.version.clone(),
            })
            .collect()
    }

    fn member_leases(&self) -> impl Iterator<Item = (&String, &MemberLease)> {
        let prefix = format!("{}.member-", self.group);
        let leases = self.leases.iter();
        leases.filter(move |(name, _)| name.starts_with(&prefix))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::api::coordination::v1::LeaseSpec;

    const LATE: Duration = Duration::from_secs(5);

    fn lease(name: &str, holder: &str, version: &str) -> Lease {
        let mut lease = Lease::default();
        lease.metadata.name = Some(name.to_owned());
        lease.metadata.resource_version = Some(version.to_owned());
        lease.spec = Some(LeaseSpec {
            holder_identity: Some(holder.to_owned()),
            ..LeaseSpec::default()
        });
        lease
    }

    fn at(seconds: u64) -> LocalTime {
        LocalTime::from_nanos(seconds * 1_000_000_000)
    }

    #[test]
    fn lease_names_identify_shards_members_and_agreements() {
        let shard = Shard { index: 3, of: 64 };
        let of = |name: &str| of_shard_lease("g.h", name);
        assert_eq!(of(&shard_lease("g.h", shard)), Some(Some(64)));
        assert_eq!(of(&member_lease("g.h", "a")), Some(None));
        assert_eq!(of(&agreement_lease("g.h")), None);
        for other in ["g.h", "g.3-of-64", "g.h.64-of-64", "g.h.a-of-b", "g.h."] {
            assert_eq!(of(other), None, "{other}");
        }
    }

    #[test]
    fn member_is_alive_as_long_as_its_lease_changes() {
        let mut view = View::new("g", 2);
        view.apply(Event::Apply(lease("g.member-1", "a", "1")), at(10));
        assert_eq!(view.members("me", at(14), LATE), ["a", "me"]);
        assert_eq!(view.members("me", at(15), LATE), ["me"]);
        view.apply(Event::Apply(lease("g.member-1", "a", "1")), at(15));
        assert_eq!(view.members("me", at(15), LATE), ["me"], "nothing changed");
        view.apply(Event::Apply(lease("g.member-1", "a", "2")), at(16));
        assert_eq!(view.members("me", at(16), LATE), ["a", "me"]);
        view.apply(Event::Apply(lease("g.member-1", "", "3")), at(17));
        assert_eq!(view.members("me", at(17), LATE), ["me"], "it left");
    }

    #[test]
    fn new_list_removes_missing_leases_and_keeps_the_times_of_others() {
        let mut view = View::new("g", 2);
        assert!(!view.is_synced());
        view.apply(Event::Apply(lease("g.member-1", "a", "1")), at(10));
        view.apply(Event::Apply(lease("g.00-of-02", "a", "2")), at(10));
        assert_eq!(view.holders(), [Some("a"), None]);
        view.apply(Event::Init, at(12));
        view.apply(Event::InitApply(lease("g.member-1", "a", "1")), at(12));
        assert_eq!(
            view.holders(),
            [Some("a"), None],
            "the old list until the new one is complete"
        );
        view.apply(Event::InitDone, at(12));
        assert!(view.is_synced());
        assert_eq!(view.holders(), [None, None]);
        assert_eq!(view.members("me", at(15), LATE), ["me"], "since 10, not 12");
        assert_eq!(view.stale(at(15), LATE).len(), 1);
    }
}
