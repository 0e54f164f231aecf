//! Totals of one run or of many.

use crate::fault::FaultCounts;
use crate::refine::step::Step;

/// Sums and maximums of one run or of many.
#[derive(Clone, Debug, Default)]
pub struct Totals {
    /// Simulated time, in nanoseconds.
    pub simulated: u128,
    /// Faults by kind.
    pub faults: FaultCounts,
    /// Terms that began.
    pub terms: u64,
    /// Holders that a candidate proved dead.
    pub proofs: u64,
    /// Terms that were released after a crash of their holder.
    pub crash_releases: u64,
    /// Terms that ended for a better candidate.
    pub hand_overs: u64,
    /// Steps of elections.
    pub steps: u64,
    /// Steps of the proved system that were checked.
    pub refined: [u64; Step::ALL.len()],
    /// Longest time during which two guards were valid together although S1 was guaranteed, in nanoseconds.
    pub longest_overlap: u64,
    /// The same in runs whose clocks exceed the tolerated error.
    pub wild_overlap: u64,
    /// Effects of former leaders that the fenced store rejected.
    pub refused: u64,
    /// Effects that it accepted.
    pub accepted: u64,
    /// Fail-over times after a crash (true) and after a step-down, for 15 s / 10 s / 2 s with watches.
    pub failovers: Vec<(bool, u64)>,
}

impl Totals {
    /// Adds the totals of other runs.
    pub fn add(&mut self, other: Self) {
        self.simulated += other.simulated;
        self.faults += &other.faults;
        self.terms += other.terms;
        self.proofs += other.proofs;
        self.crash_releases += other.crash_releases;
        self.hand_overs += other.hand_overs;
        self.steps += other.steps;
        for (mine, theirs) in self.refined.iter_mut().zip(other.refined) {
            *mine += theirs;
        }
        self.longest_overlap = self.longest_overlap.max(other.longest_overlap);
        self.wild_overlap = self.wild_overlap.max(other.wild_overlap);
        self.refused += other.refused;
        self.accepted += other.accepted;
        self.failovers.extend(other.failovers);
    }

    /// Returns the simulated time in seconds.
    pub fn seconds(&self) -> f64 {
        self.simulated as f64 / 1e9
    }

    /// Returns the simulated cluster-years.
    pub fn years(&self) -> f64 {
        self.seconds() / (365.25 * 86_400.0)
    }
}
