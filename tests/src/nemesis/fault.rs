//! The kinds of faults, and the schedule of faults for a seed.

use std::time::Duration;

use super::seed::Seeded;

/// A kind of fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fault {
    /// Neither requests nor responses pass until the end of the fault. Then they arrive late.
    BlackHole,
    /// Requests do not pass until the end of the fault. Then they arrive late.
    RequestsHeld,
    /// Requests pass and are applied; responses arrive late.
    AnswersHeld,
    /// Like the black hole, but the held data are lost.
    Cut,
    /// Every piece of data is delayed.
    Slow,
    /// Its connections are reset.
    Resets,
    /// SIGSTOP, later SIGCONT.
    Stop,
    /// SIGKILL, and a new process.
    Kill,
    /// SIGTERM, and a new process.
    Terminate,
    /// The wall clock jumps forward.
    WallForward,
    /// The wall clock jumps back.
    WallBack,
    /// The leader's machine is suspended: the clock that includes suspend jumps.
    Suspend,
    /// The API server is killed and started again.
    ServerKill,
    /// The API server's store is killed and started again.
    StoreKill,
    /// The API server is stopped and continued.
    ServerStop,
    /// The API server's disk is full, then has space again.
    DiskFull,
    /// A person deletes the lock.
    Delete,
    /// A person clears the holder.
    EmptyHolder,
    /// A person writes another holder.
    ForeignHolder,
    /// A person shortens the lease in the record.
    ShortLease,
}

/// The target of a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Victim {
    /// The leader.
    Leader,
    /// A candidate by its number.
    Number(usize),
    /// All candidates.
    All,
}

/// Simultaneous faults for some time, and a pause after them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Round {
    /// The faults.
    pub strikes: Vec<(Fault, Victim)>,
    /// Duration of faults that last.
    pub hold: Duration,
    /// Duration of the pause.
    pub pause: Duration,
    /// A random number for other decisions: the size of a jump, the length of a delay.
    pub extra: u64,
}

impl Fault {
    /// All kinds of faults.
    pub const ALL: [Self; 20] = [
        Self::BlackHole,
        Self::RequestsHeld,
        Self::AnswersHeld,
        Self::Cut,
        Self::Slow,
        Self::Resets,
        Self::Stop,
        Self::Kill,
        Self::Terminate,
        Self::WallForward,
        Self::WallBack,
        Self::Suspend,
        Self::ServerKill,
        Self::StoreKill,
        Self::ServerStop,
        Self::DiskFull,
        Self::Delete,
        Self::EmptyHolder,
        Self::ForeignHolder,
        Self::ShortLease,
    ];

    /// Returns whether it is a manual edit of the lock object. After such an edit two candidates may lead until they
    /// observe it.
    pub fn is_by_hand(self) -> bool {
        matches!(
            self,
            Self::Delete | Self::EmptyHolder | Self::ForeignHolder | Self::ShortLease
        )
    }

    /// Returns whether it affects the server and therefore all candidates.
    pub fn is_of_the_server(self) -> bool {
        matches!(
            self,
            Self::ServerKill | Self::StoreKill | Self::ServerStop | Self::DiskFull
        )
    }

    /// Returns whether it moves a candidate's clocks.
    pub fn is_of_the_clocks(self) -> bool {
        matches!(self, Self::WallForward | Self::WallBack | Self::Suspend)
    }

    /// Returns whether it is a setting of a candidate's link. A link has one setting at a time.
    fn is_of_the_link(self) -> bool {
        matches!(
            self,
            Self::BlackHole | Self::RequestsHeld | Self::AnswersHeld | Self::Cut | Self::Slow
        )
    }
}

/// Returns whether two faults can occur at the same time. A manual edit must be the only fault, because the time until
/// it is observed must not depend on others. A candidate has one link setting and one way to end or stop, and the
/// server has one fault at a time.
fn is_pair(first: Fault, second: Fault) -> bool {
    let both = |is: fn(Fault) -> bool| is(first) && is(second);
    let ends = |fault| matches!(fault, Fault::Kill | Fault::Terminate);
    let sleeps = |fault| matches!(fault, Fault::Stop | Fault::Suspend);
    first != second
        && !first.is_by_hand()
        && !second.is_by_hand()
        && !both(Fault::is_of_the_link)
        && !both(Fault::is_of_the_server)
        && !both(ends)
        && !both(sleeps)
}

/// The first faults of a schedule, in reverse order.
const OPENING: [Fault; 2] = [Fault::BlackHole, Fault::Stop];

/// Faults that sometimes accompany another fault.
const COMPANIONS: [Fault; 5] = [
    Fault::Stop,
    Fault::Kill,
    Fault::Slow,
    Fault::AnswersHeld,
    Fault::Resets,
];

/// The endless schedule of a seed. It starts with the two faults under which every elector without a guard fails: a
/// stop, and a black hole longer than the lease. Even a short run therefore distinguishes electors with and without a
/// guard. Every kind occurs once before any occurs again, so that a run of some length covers all.
#[derive(Clone, Debug)]
pub struct Schedule {
    seeded: Seeded,
    lease: Duration,
    size: usize,
    opening: Vec<Fault>,
    bag: Vec<Fault>,
    pairs: bool,
}

impl Schedule {
    /// Creates rounds for fleets of this size with leases of this length.
    pub fn new(seed: u64, lease: Duration, size: usize) -> Self {
        Self {
            seeded: Seeded::new(seed),
            lease,
            size,
            opening: OPENING.to_vec(),
            bag: others(&OPENING),
            pairs: false,
        }
    }

    /// Creates rounds of two simultaneous faults, for fleets of this size with leases of this length.
    pub fn of_pairs(seed: u64, lease: Duration, size: usize) -> Self {
        Self {
            opening: Vec::new(),
            bag: pairable(),
            pairs: true,
            ..Self::new(seed, lease, size)
        }
    }

    /// Returns the kinds of faults that occur, each once before any occurs again.
    pub fn kinds(&self) -> Vec<Fault> {
        match self.pairs {
            true => pairable(),
            false => Fault::ALL.to_vec(),
        }
    }

    /// Schedules a fault again that was impossible at its turn.
    pub fn again(&mut self, fault: Fault) {
        self.bag.push(fault);
    }

    fn draw(&mut self) -> Fault {
        if self.bag.is_empty() {
            self.bag = self.kinds();
        }
        let index = self.seeded.below(self.bag.len());
        self.bag.swap_remove(index)
    }

    /// Selects a fault that can accompany the first, from those that have not occurred yet.
    fn companion(&mut self, first: Fault) -> Option<Fault> {
        let fits = |fault: &Fault| {
            COMPANIONS.contains(fault) && !(fault.is_of_the_link() && first.is_of_the_link())
        };
        let fitting: Vec<Fault> = self.bag.iter().copied().filter(fits).collect();
        if fitting.is_empty() {
            return None;
        }
        let second = *self.seeded.pick(&fitting);
        self.bag.retain(|fault| *fault != second);
        Some(second)
    }

    /// Selects the other fault of a pair: one that has not occurred yet, or otherwise any that fits.
    fn partner(&mut self, first: Fault) -> Fault {
        let fits = |fault: &Fault| is_pair(first, *fault);
        let mut fitting: Vec<Fault> = self.bag.iter().copied().filter(fits).collect();
        if fitting.is_empty() {
            fitting = Fault::ALL.into_iter().filter(fits).collect();
        }
        let second = *self.seeded.pick(&fitting);
        self.bag.retain(|fault| *fault != second);
        second
    }

    fn victim(&mut self, fault: Fault) -> Victim {
        match self.seeded.below(10) {
            _ if fault == Fault::Suspend => Victim::Leader,
            0..6 => Victim::Leader,
            6..9 => Victim::Number(self.seeded.below(self.size)),
            _ => Victim::All,
        }
    }
}

impl Iterator for Schedule {
    type Item = Round;

    fn next(&mut self) -> Option<Round> {
        if let Some(fault) = self.opening.pop() {
            return Some(Round {
                strikes: vec![(fault, Victim::Leader)],
                hold: self.lease * 16 / 10,
                pause: self.lease / 2,
                extra: 0,
            });
        }
        let first = self.draw();
        let mut strikes = vec![(first, self.victim(first))];
        // A manual edit must be the only fault, because the time until it is observed must not depend on others.
        if self.pairs {
            let second = self.partner(first);
            strikes.push((second, self.victim(second)));
        } else if !first.is_by_hand() && self.seeded.percent(30) {
            let second = self.companion(first);
            strikes.extend(second.map(|second| (second, self.victim(second))));
        }
        let tenth = self.lease / 10;
        // Shorter than a guard, about as long as one, or longer than a lease.
        let hold = match self.seeded.below(3) {
            0 => self.seeded.time(tenth..tenth * 5),
            1 => self.seeded.time(tenth * 5..tenth * 10),
            _ => self.seeded.time(tenth * 10..tenth * 16),
        };
        Some(Round {
            strikes,
            hold,
            pause: self.seeded.time(tenth..tenth * 4),
            extra: self.seeded.number(),
        })
    }
}

/// Returns the faults that can be part of a pair.
fn pairable() -> Vec<Fault> {
    let mut all = Fault::ALL.to_vec();
    all.retain(|fault| !fault.is_by_hand());
    all
}

fn others(than: &[Fault]) -> Vec<Fault> {
    let mut all = Fault::ALL.to_vec();
    all.retain(|fault| !than.contains(fault));
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_seeds_give_equal_schedules() {
        let rounds = |seed| {
            let schedule = Schedule::new(seed, Duration::from_secs(5), 3);
            schedule.take(30).collect::<Vec<_>>()
        };
        assert_eq!(rounds(1), rounds(1));
        assert_ne!(rounds(1), rounds(2));
    }

    #[test]
    fn every_kind_occurs_once_before_any_occurs_twice() {
        let mut all = Fault::ALL.to_vec();
        all.sort();
        for seed in 0..200 {
            let schedule = Schedule::new(seed, Duration::from_secs(5), 3);
            let strikes = schedule.flat_map(|round| round.strikes);
            let faults: Vec<Fault> = strikes
                .map(|(fault, _)| fault)
                .take(3 * all.len())
                .collect();
            for cycle in faults.chunks(all.len()) {
                let mut cycle = cycle.to_vec();
                cycle.sort();
                assert_eq!(cycle, all, "seed {seed}");
            }
        }
    }

    #[test]
    fn impossible_fault_is_scheduled_again() {
        let mut schedule = Schedule::new(1, Duration::from_secs(5), 3);
        let mut rounds = 0;
        while !schedule.bag.is_empty() {
            schedule.next();
            rounds += 1;
        }
        assert!(rounds > 10, "{rounds} rounds");
        schedule.again(Fault::Kill);
        let next = schedule.next().map(|round| round.strikes[0].0);
        assert_eq!(next, Some(Fault::Kill));
    }

    #[test]
    fn schedule_of_pairs_has_two_compatible_faults_per_round() {
        for seed in 0..100 {
            let schedule = Schedule::of_pairs(seed, Duration::from_secs(5), 3);
            let kinds = schedule.kinds();
            assert_eq!(kinds.len(), 16);
            let rounds: Vec<Round> = schedule.take(3 * kinds.len()).collect();
            for round in &rounds {
                let [(first, _), (second, _)] = round.strikes[..] else {
                    panic!("{round:?} is not a pair");
                };
                assert!(is_pair(first, second), "seed {seed}: {round:?}");
            }
            let strikes = rounds.iter().flat_map(|round| &round.strikes);
            let struck: Vec<Fault> = strikes.map(|(fault, _)| *fault).collect();
            let missing = kinds.iter().find(|kind| !struck.contains(kind));
            assert_eq!(missing, None, "seed {seed}");
        }
        let pairs = |seed| {
            let schedule = Schedule::of_pairs(seed, Duration::from_secs(5), 3);
            schedule.take(30).collect::<Vec<_>>()
        };
        assert_eq!(pairs(1), pairs(1));
        assert_ne!(pairs(1), pairs(2));
    }

    #[test]
    fn manual_edit_is_the_only_fault_of_its_round() {
        let mut rounds = Schedule::new(3, Duration::from_secs(5), 3).take(500);
        let mixed = |round: &Round| {
            round.strikes.len() > 1 && round.strikes.iter().any(|strike| strike.0.is_by_hand())
        };
        assert!(!rounds.any(|round| mixed(&round)));
    }
}
