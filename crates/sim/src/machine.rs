//! The election code of a node: the real core, or client-go's control flow as a reference.

use tenure_core::{Command, Config, Election, Input, LocalTime, Now, Version};

use crate::client_go::ClientGo;

/// The election code that the nodes of a run use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Kind {
    /// The core as shipped.
    #[default]
    Core,
    /// The core with one seeded bug.
    Mutant(tenure_core::Mutant),
    /// The core on a clock that stops during suspend.
    StoppedClock,
    /// The core on a server without compare-and-set.
    BlindServer,
    /// client-go's control flow.
    ClientGo,
    /// The core on locks in one object and in two, during a migration.
    Pair,
    /// The same with one seeded bug in the lock.
    PairMutant(tenure_core::PairMutant),
    /// The core as used for the shards of a group. The number of shards changes during the run.
    Shards,
    /// The same with one seeded bug in how the group agrees on the number.
    ShardMutant(tenure_core::ShardMutant),
    /// The core as used for the slots of a semaphore. The number of slots changes during the run.
    Slots,
    /// The same with one seeded bug in how candidates agree on the number.
    SlotMutant(tenure_core::SlotMutant),
    /// The whole driver: elector, lock, watch and client.
    Stack,
    /// The same with one seeded bug in its core.
    StackMutant(tenure_core::Mutant),
    /// The core, optionally with one seeded bug, and client-go on one lock.
    Mixed(Option<tenure_core::Mutant>),
    /// The core, optionally with one seeded bug, in a coordinated election.
    Coordinated(Option<tenure_core::Mutant>),
    /// The core with one seeded bug, on a store that is restored to older revisions.
    RestoreMutant(tenure_core::Mutant),
    /// The core with one seeded bug, on an object that people edit while orders stay on it.
    EditMutant(tenure_core::Mutant),
    /// The core, optionally with one seeded bug, with proofs that holders are dead.
    Proofs(Option<tenure_core::Mutant>),
    /// The same with one seeded bug in the decision whether an incarnation is dead.
    DeathMutant(tenure_core::DeathMutant),
    /// The core, optionally with one seeded bug, with ranked candidates.
    Ranks(Option<tenure_core::Mutant>),
    /// Leaders for life, their pods, and the candidates that free the locks of deleted pods.
    Life,
    /// The same with one seeded bug in the decision whether a pod is gone.
    LifeMutant(tenure_core::LifeMutant),
    /// Code that fails an assertion after some time.
    #[cfg(test)]
    Panics,
}

impl Kind {
    /// Returns whether the run has no seeded bug, and its candidates run the core.
    pub const fn is_shipped(self) -> bool {
        matches!(
            self,
            Self::Core | Self::Mixed(None) | Self::Coordinated(None) | Self::Proofs(None)
        )
    }
}

/// A candidate.
#[derive(Debug)]
pub(crate) enum Machine {
    Core(Box<Election>),
    ClientGo(Box<ClientGo>),
    #[cfg(test)]
    Panics(Box<Election>),
}

impl Machine {
    pub(crate) fn new(kind: Kind, config: Config, client_go: bool) -> Self {
        match kind {
            _ if client_go => Self::ClientGo(Box::new(ClientGo::new(config))),
            Kind::Core
            | Kind::Mixed(None)
            | Kind::Coordinated(None)
            | Kind::Proofs(None)
            | Kind::Ranks(None)
            | Kind::DeathMutant(_)
            | Kind::StoppedClock
            | Kind::BlindServer
            | Kind::Pair
            | Kind::PairMutant(_)
            | Kind::Life
            | Kind::LifeMutant(_)
            | Kind::Shards
            | Kind::ShardMutant(_)
            | Kind::Slots
            | Kind::SlotMutant(_)
            | Kind::Stack
            | Kind::StackMutant(_) => Self::Core(Box::new(Election::new(config))),
            Kind::Mutant(mutant)
            | Kind::RestoreMutant(mutant)
            | Kind::EditMutant(mutant)
            | Kind::Mixed(Some(mutant))
            | Kind::Proofs(Some(mutant))
            | Kind::Ranks(Some(mutant))
            | Kind::Coordinated(Some(mutant)) => {
                let mut election = Election::new(config);
                election.mutate(mutant);
                Self::Core(Box::new(election))
            }
            Kind::ClientGo => Self::ClientGo(Box::new(ClientGo::new(config))),
            #[cfg(test)]
            Kind::Panics => Self::Panics(Box::new(Election::new(config))),
        }
    }

    pub(crate) fn step(&mut self, now: Now, input: Input) -> Vec<Command> {
        match self {
            Self::Core(election) => election.step(now, input),
            Self::ClientGo(elector) => elector.step(now, input),
            #[cfg(test)]
            Self::Panics(election) => {
                let commands = election.step(now, input);
                assert!(election.token().is_none(), "S5: an assertion for this test");
                commands
            }
        }
    }

    /// Returns the version that the candidate knows, unless it runs client-go.
    pub(crate) fn version(&self) -> Option<&Version> {
        match self {
            Self::Core(election) => election.version(),
            Self::ClientGo(_) => None,
            #[cfg(test)]
            Self::Panics(election) => election.version(),
        }
    }

    pub(crate) fn deadline(&self) -> Option<LocalTime> {
        match self {
            Self::Core(election) => election.deadline(),
            Self::ClientGo(elector) => elector.deadline(),
            #[cfg(test)]
            Self::Panics(election) => election.deadline(),
        }
    }
}
