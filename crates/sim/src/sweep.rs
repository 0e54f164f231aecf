//! Runs many seeds on all cores.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use crate::invariants::Violation;
use crate::machine::Kind;
use crate::totals::Totals;
use crate::world::{Report, World};

/// Result of many seeds.
#[derive(Clone, Debug, Default)]
pub struct Sweep {
    /// Number of seeds that were run.
    pub seeds: u64,
    /// Totals of these seeds.
    pub totals: Totals,
    /// Seeds whose second run had a different trace.
    pub unequal: Vec<u64>,
    /// Number of seeds that were run twice.
    pub repeated: u64,
    /// Violations by seed.
    pub violations: Vec<(u64, Violation)>,
}

impl Sweep {
    /// Adds one run.
    pub fn add(&mut self, seed: u64, report: Report) {
        self.seeds += 1;
        self.totals.add(report.totals);
        self.violations.extend(report.violation.map(|v| (seed, v)));
    }

    fn merge(&mut self, other: Self) {
        self.seeds += other.seeds;
        self.totals.add(other.totals);
        self.unequal.extend(other.unequal);
        self.repeated += other.repeated;
        self.violations.extend(other.violations);
    }
}

/// One in this many seeds is run twice, to prove that a seed determines a run.
const REPEAT_EVERY: u64 = 50;

/// Runs seeds, starting with `first`, until `enough` returns true (checked after every seed) or the count is reached.
/// `progress` is called by one thread at a time.
pub fn sweep(
    kind: Kind,
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
                        let report = World::run(seed, kind, false);
                        if seed.is_multiple_of(REPEAT_EVERY) {
                            mine.repeated += 1;
                            if World::run(seed, kind, false).hash != report.hash {
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
