//! Target owners of all shards: a pure function of data that every replica observes.

use std::collections::BTreeMap;

use super::hash::weight;

/// Assigns each shard to a member. The numbers of shards per member differ by at most one, with as few changes as
/// possible. `holders` are the current owners; an owner that is not a member is ignored. Returns nothing if there are
/// no members.
///
/// Members with the most shards keep the most, so that a round of hand-overs never has to be undone. Ties are broken by
/// rendezvous hashing, so that every replica breaks them in the same way.
pub(super) fn assign(members: &[&str], holders: &[Option<&str>]) -> Vec<Option<usize>> {
    let mut target: Vec<Option<usize>> = vec![None; holders.len()];
    if members.is_empty() {
        return target;
    }
    let place: BTreeMap<&str, usize> = members.iter().enumerate().map(|(i, m)| (*m, i)).collect();
    let mut owned: Vec<Vec<usize>> = vec![Vec::new(); members.len()];
    for (shard, holder) in holders.iter().enumerate() {
        if let Some(member) = holder.and_then(|holder| place.get(holder)) {
            owned[*member].push(shard);
        }
    }
    let wants = |member: usize, shard: usize| {
        let shard = u32::try_from(shard).unwrap_or(u32::MAX);
        (weight(members[member], shard), members[member])
    };

    // Members with the most shards get the larger quota.
    let (least, extra) = (holders.len() / members.len(), holders.len() % members.len());
    let mut order: Vec<usize> = (0..members.len()).collect();
    order.sort_by_key(|member| (usize::MAX - owned[*member].len(), members[*member]));
    let mut free = vec![least; members.len()];
    for member in order.into_iter().take(extra) {
        free[member] += 1;
    }

    // Every member keeps the shards that it owns and for which it has the highest weight.
    for (member, shards) in owned.iter_mut().enumerate() {
        shards.sort_by_key(|shard| wants(member, *shard));
        for shard in shards.iter().rev().take(free[member]) {
            target[*shard] = Some(member);
        }
        free[member] -= shards.len().min(free[member]);
    }
    // The remaining shards go to the member with the highest weight that has capacity.
    for (shard, target) in target.iter_mut().enumerate().filter(|(_, t)| t.is_none()) {
        let with_room = (0..members.len()).filter(|member| free[*member] > 0);
        *target = with_room.max_by_key(|member| wants(*member, shard));
        if let Some(member) = target {
            free[*member] -= 1;
        }
    }
    target
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAMES: [&str; 7] = ["a", "b", "c", "d", "e", "f", "g"];

    /// Applies an assignment immediately, and returns how many shards changed their owner.
    fn settle<'a>(members: &[&'a str], holders: &mut [Option<&'a str>]) -> usize {
        let target = assign(members, holders);
        let mut moved = 0;
        for (holder, target) in holders.iter_mut().zip(target) {
            let next = target.map(|member| members[member]);
            moved += usize::from(*holder != next);
            *holder = next;
        }
        moved
    }

    fn counts(members: &[&str], holders: &[Option<&str>]) -> Vec<usize> {
        let count = |member| holders.iter().filter(|h| **h == Some(member)).count();
        members.iter().map(|member| count(*member)).collect()
    }

    fn is_even(members: &[&str], holders: &[Option<&str>]) -> bool {
        let counts = counts(members, holders);
        counts.iter().max().unwrap() - counts.iter().min().unwrap() <= 1
    }

    #[test]
    fn change_from_one_to_five_to_three_members_moves_the_fewest_shards() {
        let mut holders = vec![None; 64];
        assert_eq!(settle(&NAMES[..1], &mut holders), 64);
        assert_eq!(
            settle(&NAMES[..5], &mut holders),
            51,
            "64 - 13 have to leave"
        );
        assert!(is_even(&NAMES[..5], &holders));
        let orphans = counts(&NAMES[..5], &holders)[3..].iter().sum::<usize>();
        assert_eq!(
            settle(&NAMES[..3], &mut holders),
            orphans,
            "only what was left behind"
        );
        assert!(is_even(&NAMES[..3], &holders));
    }

    #[test]
    fn any_change_of_members_ends_in_a_stable_even_assignment() {
        let mut random = 7u64;
        let mut holders = vec![None; 37];
        for _ in 0..500 {
            random = random
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            let members: Vec<&str> = NAMES
                .into_iter()
                .enumerate()
                .filter(|(i, _)| random >> (40 + i) & 1 == 1)
                .map(|(_, name)| name)
                .collect();
            settle(&members, &mut holders);
            if members.is_empty() {
                assert!(holders.iter().all(Option::is_none));
            } else {
                assert!(is_even(&members, &holders), "{members:?}");
                assert_eq!(settle(&members, &mut holders), 0, "it is stable");
            }
        }
    }

    #[test]
    fn interrupted_change_of_owners_is_continued() {
        let mut holders = vec![Some("a"); 64];
        let members = &NAMES[..5];
        let mut moved = 0;
        loop {
            let target = assign(members, &holders);
            // Move one shard at a time, like real owners.
            let Some(shard) = (0..64).find(|s| target[*s].map(|m| members[m]) != holders[*s])
            else {
                break;
            };
            holders[shard] = target[shard].map(|member| members[member]);
            moved += 1;
            assert!(moved <= 51, "nothing moves twice");
        }
        assert_eq!(moved, 51);
        assert!(is_even(members, &holders));
    }

    #[test]
    fn without_members_nobody_owns_anything() {
        assert_eq!(assign(&[], &[Some("a"), None]), [None, None]);
        assert!(assign(&["a"], &[]).is_empty());
    }
}
