//! Tests of the refinement check: shipped runs take every step of the proved system and no other, and seeded bugs deviate.

use tenure_core::{DeathMutant, Mutant};

use super::step::Step;
use crate::machine::Kind;
use crate::totals::Totals;
use crate::world::World;

/// Returns the deviations of the first seed that has one.
fn deviation(kind: Kind) -> Option<String> {
    (0..200).find_map(|seed| World::run(seed, kind, false).deviation)
}

#[test]
fn shipped_runs_take_every_step_of_the_proved_system_and_no_other() {
    let mut totals = Totals::default();
    let kinds = [
        Kind::Core,
        Kind::Mixed(None),
        Kind::Coordinated(None),
        Kind::Proofs(None),
    ];
    for kind in kinds {
        for seed in 0..150 {
            let report = World::run(seed, kind, false);
            assert_eq!(report.deviation, None, "seed {seed} of {kind:?}");
            totals.add(report.totals);
        }
    }
    let steps = Step::ALL.iter().zip(totals.refined);
    let missing: Vec<_> = steps
        .filter(|(_, taken)| *taken == 0)
        .map(|(step, _)| step.name())
        .collect();
    assert!(missing.is_empty(), "never taken: {missing:?}");
}

#[test]
fn seeded_bugs_of_the_proved_rules_deviate() {
    let bugs = [
        (Kind::Mutant(Mutant::GuardFromAnswer), ": guard_holds"),
        (Kind::Mutant(Mutant::ReleaseBeforeStop), ": follows"),
        (Kind::Mutant(Mutant::ReleaseUnchecked), ": may_empty"),
        (Kind::Mutant(Mutant::NoJoin), ": may_release"),
        (Kind::Mutant(Mutant::NoClock), ": guard_holds"),
        (Kind::Mutant(Mutant::OwnName), ": may_replace"),
        (Kind::Mutant(Mutant::ClaimByTimes), ": may_replace"),
        (Kind::Mutant(Mutant::CreateAtOnce), ": may_create"),
        (Kind::Mutant(Mutant::TokenFromTransitions), ": applied"),
        (Kind::Mutant(Mutant::TokenFromProcess), ": applied"),
        (Kind::Mutant(Mutant::UnknownExtends), ": applied"),
        (Kind::Mutant(Mutant::WatchExtends), ": applied"),
        (Kind::Mutant(Mutant::HalfPatience), ": may_replace"),
        (Kind::Mutant(Mutant::OwnPatience), ": may_replace"),
        (Kind::Mutant(Mutant::NoLockDelay), ": may_replace"),
        (Kind::Mutant(Mutant::KeepSince), ": may_replace"),
        (Kind::Mutant(Mutant::DroppedIsEnded), ": may_release"),
        (Kind::Mixed(Some(Mutant::IgnoreMark)), ": may_replace"),
        (Kind::Mixed(Some(Mutant::BelieveStaleMark)), ": may_replace"),
        (Kind::Mixed(Some(Mutant::OverlookMark)), ": may_replace"),
        (
            Kind::Coordinated(Some(Mutant::AssignedAtOnce)),
            ": may_replace",
        ),
        (
            Kind::Proofs(Some(Mutant::ProofOfAnyVersion)),
            ": may_replace",
        ),
        (Kind::Proofs(Some(Mutant::ProofOfAnybody)), ": may_replace"),
        (Kind::Proofs(Some(Mutant::ProofByIdentity)), ": may_replace"),
        (Kind::DeathMutant(DeathMutant::PidAlone), ": true"),
        (
            Kind::DeathMutant(DeathMutant::ReleaseAnyTerm),
            ": may_empty",
        ),
        (Kind::BlindServer, "apply of"),
    ];
    let other: Vec<_> = bugs
        .into_iter()
        .map(|(kind, expected)| (kind, expected, deviation(kind)))
        .filter(|(_, expected, found)| found.as_ref().is_none_or(|text| !text.contains(expected)))
        .collect();
    assert!(other.is_empty(), "{other:#?}");
}
