//! The random numbers of a campaign: one seed decides its whole schedule.

use std::ops::Range;
use std::time::Duration;

/// A small generator (SplitMix64). Not for secrets.
#[derive(Clone, Debug)]
pub struct Seeded(u64);

impl Seeded {
    /// Creates the sequence of this seed.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Returns the next number.
    pub fn number(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Returns a number below `bound`; 0 if `bound` is 0.
    pub fn below(&mut self, bound: usize) -> usize {
        let bound = u64::try_from(bound).unwrap_or(u64::MAX);
        usize::try_from(self.number().checked_rem(bound).unwrap_or(0)).unwrap_or(0)
    }

    /// Returns true with this probability, in percent.
    pub fn percent(&mut self, chance: usize) -> bool {
        self.below(100) < chance
    }

    /// Selects one of these values.
    ///
    /// # Panics
    ///
    /// Panics if there are none.
    pub fn pick<'a, T>(&mut self, from: &'a [T]) -> &'a T {
        &from[self.below(from.len())]
    }

    /// Returns a time in this range, in whole milliseconds.
    pub fn time(&mut self, range: Range<Duration>) -> Duration {
        let span = range.end.saturating_sub(range.start).as_millis();
        let extra = self.below(usize::try_from(span).unwrap_or(usize::MAX));
        range.start + Duration::from_millis(u64::try_from(extra).unwrap_or(0))
    }
}

/// Returns the seed of a run: `$TENURE_SEED`, or a new one. It is printed, so that a failing schedule can be repeated.
pub fn of_this_run() -> u64 {
    given().unwrap_or_else(|| Seeded::new(crate::clock::now().0.unsigned_abs()).number() >> 32)
}

/// Returns the seed of the tests: `$TENURE_SEED`, or a constant, so that a failure is caused by a change and not by
/// chance. Soak tests use new schedules.
pub fn of_tests() -> u64 {
    given().unwrap_or(1)
}

fn given() -> Option<u64> {
    std::env::var("TENURE_SEED").ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_seeds_give_equal_sequences() {
        let numbers = |seed| {
            let mut seeded = Seeded::new(seed);
            [seeded.number(), seeded.number(), seeded.number()]
        };
        assert_eq!(numbers(7), numbers(7));
        assert_ne!(numbers(7), numbers(8));
    }

    #[test]
    fn numbers_stay_within_their_range() {
        let mut seeded = Seeded::new(1);
        let range = Duration::from_millis(5)..Duration::from_millis(9);
        for _ in 0..200 {
            assert!(range.contains(&seeded.time(range.clone())));
            assert!(seeded.below(3) < 3);
        }
        assert_eq!(seeded.below(0), 0);
    }
}
