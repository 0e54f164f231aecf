//! The two hashes: keys to shards, and shards to replicas. Replicas of different versions must agree on both, so they
//! use a hash that never changes, and are tested by value.

use tenure_core::hash::stable;

/// Returns the shard of a key among `of` shards; zero if `of` is zero.
pub fn shard_of(key: &str, of: u32) -> u32 {
    let hash = stable(&[key.as_bytes()]);
    // Scaling the upper bits needs no division and has no bias.
    let scaled = (u128::from(hash) * u128::from(of)) >> 64;
    u32::try_from(scaled).unwrap_or_default()
}

/// Returns the weight of a replica for a shard (rendezvous hashing).
pub(super) fn weight(member: &str, shard: u32) -> u64 {
    stable(&[member.as_bytes(), &[0], &shard.to_be_bytes()])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shard_of_a_key_never_changes() {
        let shards: Vec<u32> = ["", "default/a", "default/b", "kube-system/x"]
            .map(|key| shard_of(key, 64))
            .to_vec();
        assert_eq!(shards, [59, 34, 19, 26]);
        assert_eq!((shard_of("a", 1), shard_of("a", 0)), (0, 0));
    }

    #[test]
    fn keys_spread_evenly() {
        let mut counts = [0u32; 64];
        for n in 0..64_000 {
            counts[shard_of(&format!("default/object-{n}"), 64) as usize] += 1;
        }
        let (least, most) = (counts.iter().min(), counts.iter().max());
        assert!(least > Some(&850) && most < Some(&1150), "{counts:?}");
    }
}
