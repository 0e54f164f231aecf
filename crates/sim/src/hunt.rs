//! Searches for seeded bugs, because a simulator that has never found a bug proves little.

use std::collections::BTreeMap;

use tenure_core::{DeathMutant, LifeMutant, Mutant, PairMutant, ShardMutant, SlotMutant};

use crate::invariants::Invariant;
use crate::machine::Kind;
use crate::world::World;

/// Number of seeds within which every bug must be found.
pub const LIMIT: u64 = 200;

/// Result of the hunts for one bug.
#[derive(Clone, Debug)]
pub struct Catch {
    /// Name of the bug.
    pub name: &'static str,
    /// Number of seeds until it was found, for each hunt; [`None`] if it was not found within the limit.
    pub seeds: Vec<Option<u64>>,
    /// Number of violations of each invariant.
    pub broken: BTreeMap<Invariant, u64>,
    /// One of the findings, as an example.
    pub example: String,
}

impl Catch {
    /// Returns whether every hunt succeeded.
    pub fn is_caught(&self) -> bool {
        self.seeds.iter().all(Option::is_some)
    }

    /// Returns the median number of seeds.
    pub fn median(&self) -> u64 {
        let mut seeds: Vec<_> = self.seeds.iter().map(|s| s.unwrap_or(LIMIT)).collect();
        seeds.sort_unstable();
        seeds[seeds.len() / 2]
    }
}

/// Name of a bug, and the run that contains it.
pub type Quarry = (&'static str, Kind);

/// Returns every bug that must be found: the seeded ones, those outside the core, and client-go.
pub fn quarry() -> Vec<Quarry> {
    let mut all: Vec<_> = Mutant::ALL
        .iter()
        .map(|mutant| (mutant.name(), kind_of(*mutant)))
        .collect();
    all.extend(
        PairMutant::ALL
            .iter()
            .map(|mutant| (mutant.name(), Kind::PairMutant(*mutant))),
    );
    all.extend(
        DeathMutant::ALL
            .iter()
            .map(|mutant| (mutant.name(), Kind::DeathMutant(*mutant))),
    );
    all.extend(
        LifeMutant::ALL
            .iter()
            .map(|mutant| (mutant.name(), Kind::LifeMutant(*mutant))),
    );
    all.extend(
        ShardMutant::ALL
            .iter()
            .map(|mutant| (mutant.name(), Kind::ShardMutant(*mutant))),
    );
    all.extend(
        SlotMutant::ALL
            .iter()
            .map(|mutant| (mutant.name(), Kind::SlotMutant(*mutant))),
    );
    all.push(("V10 clock stops in suspend", Kind::StoppedClock));
    all.push(("server without compare-and-set", Kind::BlindServer));
    all.push(("client-go's control flow", Kind::ClientGo));
    all
}

/// Returns the kind of run that shows a seeded bug. Some bugs need client-go candidates or a controller in the same
/// run.
fn kind_of(mutant: Mutant) -> Kind {
    match mutant {
        Mutant::IgnoreMark | Mutant::BelieveStaleMark | Mutant::OverlookMark => {
            Kind::Mixed(Some(mutant))
        }
        Mutant::AssignedAtOnce | Mutant::KeepTransitions | Mutant::TakeUnassigned => {
            Kind::Coordinated(Some(mutant))
        }
        Mutant::ProofOfAnyVersion
        | Mutant::ProofOfAnybody
        | Mutant::ProofByIdentity
        | Mutant::ProofIgnored => Kind::Proofs(Some(mutant)),
        Mutant::PreferEqual
        | Mutant::PreferUnready
        | Mutant::PreferHastily
        | Mutant::PreferAcrossTerms
        | Mutant::PreferUnobserved
        | Mutant::PreferWhilePaused
        | Mutant::PreferUnnamed
        | Mutant::PreferNobody => Kind::Ranks(Some(mutant)),
        Mutant::IgnoreOldList => Kind::RestoreMutant(mutant),
        Mutant::ObeyEarlier => Kind::EditMutant(mutant),
        mutant => Kind::Mutant(mutant),
    }
}

/// Returns bugs that runs of the whole driver detect, at least one per invariant. The other bugs need faults that are
/// too rare for the few runs of the whole driver. The simulation of the core alone finds them.
pub fn stack_quarry() -> Vec<Quarry> {
    let bugs = [
        Mutant::ReleaseBeforeStop,
        Mutant::IgnoreForeign,
        Mutant::NoJoin,
        Mutant::NoClock,
        Mutant::ShortLease,
        Mutant::OwnName,
        Mutant::CreateAtOnce,
        Mutant::TokenFromTransitions,
        Mutant::TokenFromProcess,
        Mutant::HalfPatience,
        Mutant::KeepSince,
        Mutant::ReleaseOnOverrun,
        Mutant::GiveUp,
        Mutant::DroppedIsEnded,
    ];
    bugs.map(|bug| (bug.name(), Kind::StackMutant(bug)))
        .to_vec()
}

/// Hunts one bug, several times on different seeds.
pub fn hunt(name: &'static str, kind: Kind, hunts: u64) -> Catch {
    let mut found = Catch {
        name,
        seeds: Vec::new(),
        broken: BTreeMap::new(),
        example: String::new(),
    };
    for hunt in 0..hunts {
        let first = 1_000_000 * (hunt + 1);
        let mut took = None;
        for seed in first..first + LIMIT {
            // A bug that trips an assertion of the core counts as found, too.
            if let Some(violation) = World::run(seed, kind, false).violation {
                took = Some(seed - first + 1);
                *found.broken.entry(violation.invariant).or_default() += 1;
                found.example = format!("{}: {}", violation.invariant, violation.text);
                break;
            }
        }
        found.seeds.push(took);
    }
    found
}
