//! Many seeds on all cores.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use crate::fault::FaultCounts;
use crate::invariants::Violation;
use crate::machine::Kind;
use crate::world::{Report, World};

/// What many seeds came to.
#[derive(Clone, Debug, Default)]
pub struct Sweep {
    /// How many seeds were run.
    pub seeds: u64,
    /// Simulated time, in seconds.
    pub seconds: f64,
    /// Faults by kind.
    pub faults: FaultCounts,
    /// Terms that began.
    pub terms: u64,
    /// Steps of elections.
    pub steps: u64,
    /// The longest overlap of guards where S1 is promised, in nanoseconds.
    pub longest_overlap: u64,
    /// The longest overlap where clocks are beyond what is tolerated.
    pub wild_overlap: u64,
    /// Stale effects that were refused.
    pub refused: u64,
    /// Effects that were accepted.
    pub accepted: u64,
    /// Fail-over times after a crash (true) or a release, in nanoseconds.
    pub failovers: Vec<(bool, u64)>,
    /// Seeds whose second run had another trace.
    pub unequal: Vec<u64>,
    /// How many seeds were run twice.
    pub repeated: u64,
    /// Broken promises by seed.
    pub violations: Vec<(u64, Violation)>,
}

impl Sweep {
    /// Adds one run.
    pub fn add(&mut self, seed: u64, report: Report) {
        self.seeds += 1;
        self.seconds += report.simulated as f64 / 1e9;
        self.faults += &report.faults;
        self.terms += report.terms;
        self.steps += report.steps;
        self.longest_overlap = self.longest_overlap.max(report.longest_overlap);
        self.wild_overlap = self.wild_overlap.max(report.wild_overlap);
        self.refused += report.refused;
        self.accepted += report.accepted;
        self.failovers.extend(report.failovers);
        self.violations.extend(report.violation.map(|v| (seed, v)));
    }

    fn merge(&mut self, other: Self) {
        self.seeds += other.seeds;
        self.seconds += other.seconds;
        self.faults += &other.faults;
        self.terms += other.terms;
        self.steps += other.steps;
        self.longest_overlap = self.longest_overlap.max(other.longest_overlap);
        self.wild_overlap = self.wild_overlap.max(other.wild_overlap);
        self.refused += other.refused;
        self.accepted += other.accepted;
        self.failovers.extend(other.failovers);
        self.unequal.extend(other.unequal);
        self.repeated += other.repeated;
        self.violations.extend(other.violations);
    }

    /// Simulated cluster-years.
    pub fn years(&self) -> f64 {
        self.seconds / (365.25 * 86_400.0)
    }
}

/// Every so many seeds one is run twice, to prove that a seed is a run.
const REPEAT_EVERY: u64 = 50;

/// Runs seeds from `first` on, until `enough` says so (asked after every seed) or the count is
/// reached. `progress` is called by one thread at a time.
pub fn sweep(
    first: u64,
    count: u64,
    threads: usize,
    enough: impl Fn() -> bool + Sync,
    progress: impl Fn(&Sweep) + Sync,
) -> Sweep {
    let next = AtomicU64::new(first);
    let total = Mutex::new(Sweep::default());
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        for _ in 0..threads.max(1) {
            scope.spawn(|| {
                let mut mine = Sweep::default();
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    let ended = seed >= first.saturating_add(count)
                        || stop.load(Ordering::Relaxed)
                        || enough();
                    if !ended {
                        let report = World::run(seed, Kind::Core, false);
                        if seed.is_multiple_of(REPEAT_EVERY) {
                            mine.repeated += 1;
                            if World::run(seed, Kind::Core, false).hash != report.hash {
                                mine.unequal.push(seed);
                            }
                        }
                        if report.violation.is_some() {
                            stop.store(true, Ordering::Relaxed);
                        }
                        mine.add(seed, report);
                    }
                    if ended || mine.seeds >= 64 {
                        let mut total = total.lock().unwrap_or_else(|e| e.into_inner());
                        total.merge(std::mem::take(&mut mine));
                        progress(&total);
                    }
                    if ended {
                        break;
                    }
                }
            });
        }
    });
    total.into_inner().unwrap_or_else(|e| e.into_inner())
}
