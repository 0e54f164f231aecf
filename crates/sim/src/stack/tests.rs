//! Some runs, and the proof that they detect bugs. `cargo xtask sim --stack` runs more.

use super::*;
use crate::cli::hunt_parallel;
use crate::hunt::stack_quarry;
use crate::machine::Kind;
use crate::sweep::sweep;

#[test]
fn invariants_hold_for_the_driver_over_a_faulty_network() {
    let total = sweep(Kind::Stack, 0, 20, 2, || false, |_| {});
    let text = total
        .violations
        .iter()
        .map(|(seed, v)| {
            format!(
                "{}: {}\nreplay: cargo xtask sim --stack --seed {seed}",
                v.invariant, v.text
            )
        })
        .collect::<Vec<_>>();
    assert_eq!(text, [""; 0]);
    assert_eq!(total.unequal, [0; 0], "equal seeds give equal runs");
    // The run must not succeed because nothing happened.
    let totals = &total.totals;
    assert!(totals.terms > 100, "{} terms", totals.terms);
    assert!(totals.refused > 0, "no stale effect was rejected");
    let unused: Vec<_> = every()
        .filter(|fault| totals.faults.of(*fault) == 0)
        .collect();
    assert!(unused.is_empty(), "never injected: {unused:?}");
}

#[test]
fn equal_seeds_give_equal_runs() {
    for seed in 100..103 {
        let (first, second) = (run(seed, None, true), run(seed, None, true));
        let unequal = first.trace.iter().zip(&second.trace).find(|(a, b)| a != b);
        assert_eq!(unequal, None, "seed {seed}");
        assert_eq!(first.hash, second.hash, "seed {seed}");
    }
    assert_ne!(run(100, None, false).hash, run(101, None, false).hash);
}

/// The checks work: drivers with a bug in their core are detected.
#[test]
fn seeded_bugs_in_the_whole_driver_are_detected() {
    let found = hunt_parallel(&stack_quarry(), 2, 1);
    let missed: Vec<_> = found
        .iter()
        .filter(|found| !found.is_caught())
        .map(|found| found.name)
        .collect();
    assert!(missed.is_empty(), "not found: {missed:?}");
    let mut broken: Vec<_> = found.iter().flat_map(|found| found.broken.keys()).collect();
    broken.sort();
    broken.dedup();
    for promise in [
        Invariant::S1,
        Invariant::S2,
        Invariant::S4,
        Invariant::S5,
        Invariant::L1,
    ] {
        assert!(
            broken.contains(&&promise),
            "no violation of {promise} was detected"
        );
    }
}

/// Returns every kind of fault that a run may have.
fn every() -> impl Iterator<Item = Fault> {
    let others = [
        Fault::WatchLate,
        Fault::WorkStuck,
        Fault::WorkOutlives,
        Fault::SlowKill,
    ];
    let named = [OF_REQUESTS, nemesis::ALWAYS, nemesis::BY_HAND].concat();
    named.into_iter().chain(others)
}

/// The checks work: clocks that run 50 % faster than others violate S1, and this is detected.
#[test]
fn clocks_beyond_the_tolerated_rate_violate_s1() {
    let broken = (0..60).find_map(|seed| simulate(seed, 600, None, false).violation);
    let broken = broken.expect("no overlap was seen");
    assert_eq!(broken.invariant, Invariant::S1, "{}", broken.text);
}
