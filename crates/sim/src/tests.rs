//! The simulator's own tests: a small sweep, and the proof that it detects bugs. `cargo xtask sim` runs the long
//! simulations.

use crate::cli::hunt_parallel;
use crate::fault::Fault;
use crate::hunt::quarry;
use crate::machine::Kind;
use crate::sweep::sweep;
use crate::world::World;

#[test]
fn invariants_hold_for_a_few_hundred_seeds() {
    let total = sweep(Kind::Core, 0, 400, 2, || false, |_| {});
    let (seed, text) = total
        .violations
        .first()
        .map(|(seed, v)| (*seed, format!("{}: {}", v.invariant, v.text)))
        .unwrap_or_default();
    assert!(
        total.violations.is_empty(),
        "{text}\nreplay: cargo xtask sim --seed {seed}"
    );
    assert_eq!(total.unequal, [0; 0], "equal seeds give equal runs");
    assert_eq!(total.totals.longest_overlap, 0);
    // The run must not succeed because nothing happened.
    assert!(total.totals.terms > 1_000, "{} terms", total.totals.terms);
    assert!(total.totals.refused > 0, "no stale effect was rejected");
    let unused: Vec<_> = Fault::ALL
        .iter()
        .filter(|f| {
            total.totals.faults.of(**f) == 0
                && !f.is_for_life()
                && !f.is_of_proofs()
                && !f.is_of_ranks()
        })
        .collect();
    assert!(unused.is_empty(), "never injected: {unused:?}");
}

#[test]
fn invariants_hold_for_leaders_for_life() {
    let total = sweep(Kind::Life, 0, 400, 2, || false, |_| {});
    let (seed, text) = total
        .violations
        .first()
        .map(|(seed, v)| (*seed, format!("{}: {}", v.invariant, v.text)))
        .unwrap_or_default();
    assert!(
        total.violations.is_empty(),
        "{text}\nreplay: cargo xtask sim --life --seed {seed}"
    );
    assert_eq!(total.unequal, [0; 0], "equal seeds give equal runs");
    // The run must not succeed because nothing happened.
    assert!(total.totals.terms > 1_000, "{} terms", total.totals.terms);
    let unused: Vec<_> = Fault::ALL
        .iter()
        .filter(|f| f.is_for_life() && total.totals.faults.of(**f) == 0)
        .collect();
    assert!(unused.is_empty(), "never injected: {unused:?}");
}

#[test]
fn invariants_hold_for_migrations_through_two_objects() {
    let total = sweep(Kind::Pair, 0, 400, 2, || false, |_| {});
    let (seed, text) = total
        .violations
        .first()
        .map(|(seed, v)| (*seed, format!("{}: {}", v.invariant, v.text)))
        .unwrap_or_default();
    assert!(
        total.violations.is_empty(),
        "{text}\nreplay: cargo xtask sim --pair --seed {seed}"
    );
    assert_eq!(total.unequal, [0; 0], "equal seeds give equal runs");
    // The run must not succeed because nothing happened.
    assert!(total.totals.terms > 1_000, "{} terms", total.totals.terms);
}

#[test]
fn invariants_hold_for_mixed_fleets_and_coordinated_elections() {
    for kind in [Kind::Mixed(None), Kind::Coordinated(None)] {
        let total = sweep(kind, 0, 150, 2, || false, |_| {});
        let first = total.violations.first();
        let text = first.map(|(seed, v)| format!("{seed}: {}: {}", v.invariant, v.text));
        assert_eq!(text, None, "{kind:?}");
        assert_eq!(total.unequal, [0; 0], "equal seeds give equal runs");
        // The run must not succeed because nothing happened.
        assert!(total.totals.terms > 1_000, "{} terms", total.totals.terms);
    }
}

#[test]
fn invariants_hold_with_proofs_that_holders_are_dead() {
    let total = sweep(Kind::Proofs(None), 0, 400, 2, || false, |_| {});
    let (seed, text) = total
        .violations
        .first()
        .map(|(seed, v)| (*seed, format!("{}: {}", v.invariant, v.text)))
        .unwrap_or_default();
    assert!(
        total.violations.is_empty(),
        "{text}\nreplay: cargo xtask sim --proofs --seed {seed}"
    );
    assert_eq!(total.unequal, [0; 0], "equal seeds give equal runs");
    // The run must not succeed because nothing happened.
    assert!(total.totals.terms > 1_000, "{} terms", total.totals.terms);
    assert!(
        total.totals.proofs > 1_000,
        "{} proofs",
        total.totals.proofs
    );
    let releases = total.totals.crash_releases;
    assert!(releases > 100, "{releases} releases after a crash");
    let unused: Vec<_> = Fault::ALL
        .iter()
        .filter(|f| f.is_of_proofs() && total.totals.faults.of(**f) == 0)
        .collect();
    assert!(unused.is_empty(), "never injected: {unused:?}");
}

#[test]
fn invariants_hold_for_ranked_candidates() {
    let total = sweep(Kind::Ranks(None), 0, 300, 2, || false, |_| {});
    let (seed, text) = total
        .violations
        .first()
        .map(|(seed, v)| (*seed, format!("{}: {}", v.invariant, v.text)))
        .unwrap_or_default();
    assert!(
        total.violations.is_empty(),
        "{text}\nreplay: cargo xtask sim --ranks --seed {seed}"
    );
    assert_eq!(total.unequal, [0; 0], "equal seeds give equal runs");
    // The run must not succeed because nothing happened.
    let (terms, hand_overs) = (total.totals.terms, total.totals.hand_overs);
    assert!(
        terms > 1_000 && hand_overs > 200,
        "{terms} terms, {hand_overs} hand-overs"
    );
    let unused: Vec<_> = Fault::ALL
        .iter()
        .filter(|f| f.is_of_ranks() && total.totals.faults.of(**f) == 0)
        .collect();
    assert!(unused.is_empty(), "never injected: {unused:?}");
}

#[test]
fn every_key_has_one_owner_while_the_number_of_shards_changes() {
    let total = sweep(Kind::Shards, 0, 300, 2, || false, |_| {});
    let (seed, text) = total
        .violations
        .first()
        .map(|(seed, v)| (*seed, format!("{}: {}", v.invariant, v.text)))
        .unwrap_or_default();
    assert!(
        total.violations.is_empty(),
        "{text}\nreplay: cargo xtask sim --shards --seed {seed}"
    );
    assert_eq!(total.unequal, [0; 0], "equal seeds give equal runs");
    // The run must not succeed because nothing happened.
    assert!(total.totals.terms > 1_000, "{} terms", total.totals.terms);
}

#[test]
fn used_slots_stay_within_the_limit_while_it_changes() {
    let total = sweep(Kind::Slots, 0, 300, 2, || false, |_| {});
    let (seed, text) = total
        .violations
        .first()
        .map(|(seed, v)| (*seed, format!("{}: {}", v.invariant, v.text)))
        .unwrap_or_default();
    assert!(
        total.violations.is_empty(),
        "{text}\nreplay: cargo xtask sim --slots --seed {seed}"
    );
    assert_eq!(total.unequal, [0; 0], "equal seeds give equal runs");
    assert!(total.totals.terms > 1_000, "{} terms", total.totals.terms);
}

#[test]
fn seeds_that_failed_before_pass() {
    // Seed 25432: an invalid record that reappeared was evicted from the checker's memory (S5). Seed 67581: a late
    // renewal of an overrun term was released at shutdown (S4). Seed 9922: the write with which an overrun term had
    // begun was also released, after an observation that went back in time (S4).
    for seed in [25_432, 67_581, 9_922] {
        let report = World::run(seed, Kind::Core, false);
        let violation = report
            .violation
            .map(|v| format!("{}: {}", v.invariant, v.text));
        assert_eq!(violation, None, "replay: cargo xtask sim --seed {seed}");
    }
}

#[test]
fn equal_seeds_give_equal_runs() {
    for seed in 0..40 {
        let first = World::run(seed, Kind::Core, false);
        let second = World::run(seed, Kind::Core, true);
        assert_eq!(first.hash, second.hash, "seed {seed}");
        assert_eq!(
            first.totals.simulated, second.totals.simulated,
            "seed {seed}"
        );
    }
    assert_ne!(
        World::run(1, Kind::Core, false).hash,
        World::run(2, Kind::Core, false).hash
    );
}

#[test]
fn every_seeded_bug_is_found_within_200_seeds() {
    let missed: Vec<_> = hunt_parallel(&quarry(), 2, 1)
        .into_iter()
        .filter(|found| !found.is_caught())
        .map(|found| found.name)
        .collect();
    assert!(missed.is_empty(), "not found: {missed:?}");
}
