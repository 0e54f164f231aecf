//! Seeded random numbers. SplitMix64 gives the same sequence for a seed on every machine.

use std::time::Duration;

/// A random sequence.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Random(u64);

impl Random {
    /// Creates the sequence of a seed.
    pub const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Returns the next 64 bits.
    pub const fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// Returns a uniformly random duration below `limit`.
    pub fn below(&mut self, limit: Duration) -> Duration {
        limit.mul_f64((self.bits() >> 11) as f64 / (1u64 << 53) as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_below_their_limit_and_follow_from_the_seed() {
        let limit = Duration::from_secs(1);
        let draw = |seed| {
            let mut random = Random::new(seed);
            [(); 20].map(|()| random.below(limit))
        };
        assert_eq!(draw(7), draw(7));
        assert_ne!(draw(7), draw(8));
        assert!(draw(7).iter().all(|delay| *delay < limit));
        assert!(draw(7).iter().any(|delay| *delay > limit / 2));
    }
}
