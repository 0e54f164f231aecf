//! The two hashes: keys to shards, and shards to replicas. Replicas of different versions must agree on both, so the
//! functions are defined here and tested by value.

/// Returns the shard of a key among `of` shards; zero if `of` is zero.
pub fn shard_of(key: &str, of: u32) -> u32 {
    let hash = hash(&[key.as_bytes()]);
    // Scaling the upper bits needs no division and has no bias.
    let scaled = (u128::from(hash) * u128::from(of)) >> 64;
    u32::try_from(scaled).unwrap_or_default()
}

/// Returns the weight of a replica for a shard (rendezvous hashing).
pub(super) fn weight(member: &str, shard: u32) -> u64 {
    hash(&[member.as_bytes(), &[0], &shard.to_be_bytes()])
}

/// FNV-1a with a finalizer that mixes the bits, because FNV alone mixes short keys badly.
fn hash(parts: &[&[u8]]) -> u64 {
    let mut hash: u64 = 0xcbf2_9ce4_8422_2325;
    for byte in parts.iter().copied().flatten() {
        hash = (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    }
    hash = (hash ^ (hash >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd);
    hash = (hash ^ (hash >> 33)).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    hash ^ (hash >> 33)
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
