//! A hash that never changes.
//!
//! Replicas of different versions must compute the same value for the same bytes, for example to assign shards and to
//! name objects. The function is therefore defined here and tested by value. It does not resist an attacker who searches
//! for collisions.

/// Returns the hash of the concatenated parts. Callers separate parts of variable length themselves.
///
/// FNV-1a with a finalizer that mixes the bits, because FNV alone mixes short keys badly.
pub fn stable(parts: &[&[u8]]) -> u64 {
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
    use super::stable;

    #[test]
    fn hash_of_the_same_bytes_never_changes() {
        assert_eq!(stable(&[]), 0xefd0_1f60_ba99_2926);
        assert_eq!(stable(&[b"web", b"-1"]), stable(&[b"web-1"]));
        assert_ne!(stable(&[b"web-1"]), stable(&[b"web-2"]));
    }
}
