//! What can go wrong, and the schedule of it that a seed decides.

use std::time::Duration;

use super::seed::Seeded;

/// One thing that goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fault {
    /// Neither requests nor answers pass, until they do, late.
    BlackHole,
    /// Requests do not pass, until they do, late.
    RequestsHeld,
    /// Requests pass and are applied; answers come late.
    AnswersHeld,
    /// As the black hole, and what it held is lost.
    Cut,
    /// Every piece takes its time.
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
    /// The leader's machine sleeps: the clock that counts it jumps.
    Suspend,
    /// The API server is killed and started again.
    ServerKill,
    /// The API server's store is killed and started again.
    StoreKill,
    /// The API server is stopped and goes on.
    ServerStop,
    /// The API server's disk is full, then has room again.
    DiskFull,
    /// Somebody deletes the lock.
    Delete,
    /// Somebody empties the holder.
    EmptyHolder,
    /// Somebody writes another holder.
    ForeignHolder,
    /// Somebody shortens the lease in the record.
    ShortLease,
}

/// Who is hit by a fault that has a victim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Victim {
    /// Whoever leads.
    Leader,
    /// A candidate by its number.
    Number(usize),
    /// Everybody.
    All,
}

/// Some faults at once, for a while, and a pause after them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Round {
    /// The faults.
    pub strikes: Vec<(Fault, Victim)>,
    /// How long those last that last.
    pub hold: Duration,
    /// How long nothing happens afterwards.
    pub pause: Duration,
    /// A number for what is still to choose: the size of a jump, the length of a delay.
    pub extra: u64,
}

impl Fault {
    /// All of them.
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

    /// Whether it is somebody's hand on the lock object: then two may lead until they see it.
    pub fn is_by_hand(self) -> bool {
        matches!(
            self,
            Self::Delete | Self::EmptyHolder | Self::ForeignHolder | Self::ShortLease
        )
    }

    /// Whether it hits the server and so everybody.
    pub fn is_of_the_server(self) -> bool {
        matches!(
            self,
            Self::ServerKill | Self::StoreKill | Self::ServerStop | Self::DiskFull
        )
    }

    /// Whether it moves a candidate's clocks.
    pub fn is_of_the_clocks(self) -> bool {
        matches!(self, Self::WallForward | Self::WallBack | Self::Suspend)
    }

    /// Whether it is a setting of a candidate's link, of which there is one at a time.
    fn is_of_the_link(self) -> bool {
        matches!(
            self,
            Self::BlackHole | Self::RequestsHeld | Self::AnswersHeld | Self::Cut | Self::Slow
        )
    }
}

/// Whether two faults can strike at the same time. An edit by hand comes alone, because how soon it is seen must
/// depend on nothing else. A candidate has one setting of its link and one way to end or to sleep, and the server has one
/// fault at a time.
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

/// What a schedule opens with, the last one first.
const OPENING: [Fault; 2] = [Fault::BlackHole, Fault::Stop];

/// What comes along with another fault now and then.
const COMPANIONS: [Fault; 5] = [
    Fault::Stop,
    Fault::Kill,
    Fault::Slow,
    Fault::AnswersHeld,
    Fault::Resets,
];

/// The schedule of a seed: it never ends. It opens with the two faults that every elector without a guard
/// fails under, a stop and a black hole past the lease, so that even a short run tells one from the other. Every
/// kind comes once before any comes again, so that a run of some length has seen all.
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
    /// Rounds for squads of this size with leases of this length.
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

    /// Rounds of two faults at the same time, for squads of this size with leases of this length.
    pub fn of_pairs(seed: u64, lease: Duration, size: usize) -> Self {
        Self {
            opening: Vec::new(),
            bag: pairable(),
            pairs: true,
            ..Self::new(seed, lease, size)
        }
    }

    /// The kinds of faults that come, each once before any comes again.
    pub fn kinds(&self) -> Vec<Fault> {
        match self.pairs {
            true => pairable(),
            false => Fault::ALL.to_vec(),
        }
    }

    /// Puts a fault back that could not be done when it came.
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

    /// One that goes with the first, out of those that are still to come.
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

    /// The other one of a pair: one that is still to come, or else any that fits.
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
        // A hand on the lock is apart from everything else: how soon it is seen must depend on nothing.
        if self.pairs {
            let second = self.partner(first);
            strikes.push((second, self.victim(second)));
        } else if !first.is_by_hand() && self.seeded.percent(30) {
            let second = self.companion(first);
            strikes.extend(second.map(|second| (second, self.victim(second))));
        }
        let tenth = self.lease / 10;
        // Shorter than a guard, about as long as one, and longer than a lease.
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

/// The faults that can be one of a pair.
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
    fn a_seed_is_a_schedule() {
        let rounds = |seed| {
            let schedule = Schedule::new(seed, Duration::from_secs(5), 3);
            schedule.take(30).collect::<Vec<_>>()
        };
        assert_eq!(rounds(1), rounds(1));
        assert_ne!(rounds(1), rounds(2));
    }

    #[test]
    fn every_kind_strikes_once_before_any_strikes_twice() {
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
    fn what_could_not_be_done_comes_again() {
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
    fn schedule_of_pairs_strikes_with_two_faults_that_go_together() {
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
    fn edits_by_hand_come_alone() {
        let mut rounds = Schedule::new(3, Duration::from_secs(5), 3).take(500);
        let mixed = |round: &Round| {
            round.strikes.len() > 1 && round.strikes.iter().any(|strike| strike.0.is_by_hand())
        };
        assert!(!rounds.any(|round| mixed(&round)));
    }
}
