//! Random numbers, events and selections from one seed.

use tenure_core::Random;

/// A random sequence.
#[derive(Clone, Debug)]
pub struct Rng(Random);

impl Rng {
    /// Creates the sequence of a seed.
    pub const fn new(seed: u64) -> Self {
        Self(Random::new(seed))
    }

    /// Returns the next 64 bits.
    pub const fn bits(&mut self) -> u64 {
        self.0.bits()
    }

    /// Returns a number below `limit`; 0 if the limit is 0.
    pub const fn below(&mut self, limit: u64) -> u64 {
        ((self.bits() as u128 * limit as u128) >> 64) as u64
    }

    /// Returns a number from `low` up to but not including `high`.
    pub const fn range(&mut self, low: u64, high: u64) -> u64 {
        low + self.below(high.saturating_sub(low))
    }

    /// Returns true with a probability of `parts` per million.
    pub const fn chance(&mut self, parts: u64) -> bool {
        self.below(1_000_000) < parts
    }

    /// Returns true with a probability of `percent` per cent.
    pub const fn percent(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    /// Selects one of several values.
    pub fn pick<'a, T>(&mut self, from: &'a [T]) -> &'a T {
        &from[self.below(from.len() as u64) as usize]
    }
}
