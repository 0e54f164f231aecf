//! Decisions that a seed makes before a run: the cluster, its clocks, and the possible faults. Each seed enables a
//! random subset of faults (swarm testing), so that rare combinations occur.

use std::time::Duration;

use tenure_core::{Rank, Timing};

use crate::fault::{Fault, FaultSet};
use crate::rng::Rng;
use crate::world::rank;

/// Accuracy of the clocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Clocks {
    /// Rates differ by at most 500 ppm, as on Linux.
    Good,
    /// Rates differ by up to 1 %. Deadlines of work still hold.
    Fair,
    /// Rates differ by almost as much as the timing tolerates.
    Edge,
    /// Rates differ more than tolerated. S1 does not hold, but S2, S3, S4 and S5 do.
    Wild,
}

/// Violations of assumption A1, that only electors write the object and nothing is rolled back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outsiders {
    /// A1 holds.
    None,
    /// People edit and delete the object.
    Humans,
    /// The store is restored, with its revision moved ahead.
    RestoresAhead,
    /// The store is restored, with its revision moved back.
    RestoresBack,
}

/// The parameters of one run.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Number of candidates.
    pub nodes: usize,
    /// Durations of each candidate.
    pub timings: Vec<Timing>,
    /// Which candidates watch; the others poll.
    pub watches: Vec<bool>,
    /// Rate error of each clock, in parts per million; positive is too fast.
    pub rates_ppm: Vec<i64>,
    /// Class of these clocks.
    pub clocks: Clocks,
    /// How A1 is violated.
    pub outsiders: Outsiders,
    /// Whether terms are released.
    pub release: bool,
    /// Whether the lock stores whole seconds.
    pub whole_seconds: bool,
    /// Whether a controller assigns the lease.
    pub coordinated: bool,
    /// Maximum offset of the wall clocks in a coordinated election, in nanoseconds.
    pub skew: u64,
    /// Which candidates of a mixed fleet run client-go.
    pub client_go: Vec<bool>,
    /// Whether all incarnations share one name.
    pub one_name: bool,
    /// Which candidates describe themselves and use proofs that holders are dead.
    pub proves: Vec<bool>,
    /// Whether these candidates know the id of their container.
    pub container_ids: bool,
    /// Rank of each candidate; empty if the candidates are not ranked.
    pub ranks: Vec<Rank>,
    /// Time for which a leader observes a better candidate before it hands over.
    pub failback_after: Duration,
    /// Whether responses still reach the election after the request timed out.
    pub late_answers: bool,
    /// The kinds of faults that may occur.
    pub faults: FaultSet,
    /// Probability that a fault affects a request, in parts per million.
    pub request_faults: u64,
    /// Probability that a fault affects a watch event, in parts per million.
    pub watch_faults: u64,
    /// Probability that a timer is late, in parts per million.
    pub timer_faults: u64,
    /// Mean time between faults that are not tied to a request.
    pub nemesis: u64,
    /// One-way network latency.
    pub latency: u64,
    /// Total time with faults.
    pub horizon: u64,
}

const TIMINGS: [(u64, u64, u64); 9] = [
    (15_000, 10_000, 2_000),
    (15_000, 10_000, 2_000),
    (3_000, 1_500, 400),
    (5_000, 3_000, 500),
    (30_000, 20_000, 5_000),
    (45_000, 30_000, 2_000),
    (120_000, 80_000, 20_000),
    (900_000, 600_000, 120_000),
    (3_600_000, 2_400_000, 600_000),
];

/// Possible offsets of wall clocks, in nanoseconds.
const SKEWS: &[u64] = &[0, 1_000_000_000, 3_000_000_000, 10_000_000_000];

const REQUESTS: &[Fault] = &[
    Fault::RequestLost,
    Fault::AnswerLost,
    Fault::RequestLate,
    Fault::AnswerLate,
    Fault::ErrorNotApplied,
    Fault::ErrorApplied,
    Fault::ErrorAppliedLater,
    Fault::Throttled,
    Fault::Forbidden,
    Fault::Duplicate,
    Fault::OwnConflict,
    Fault::StaleRead,
];

const WATCHES: &[Fault] = &[
    Fault::WatchLost,
    Fault::WatchLate,
    Fault::WatchTwice,
    Fault::WatchOld,
];

const NEMESIS: &[Fault] = &[
    Fault::Partition,
    Fault::PartitionRequests,
    Fault::PartitionAnswers,
    Fault::Crash,
    Fault::Pause,
    Fault::Suspend,
    Fault::MachinePause,
    Fault::WallForward,
    Fault::WallBack,
    Fault::WatchBreak,
    Fault::LabelEdit,
    Fault::Order,
    Fault::OrderPause,
    Fault::WorkEnds,
    Fault::StepDown,
    Fault::Shutdown,
];

const PROOFS: &[Fault] = &[
    Fault::Reboot,
    Fault::EvidenceReusedPid,
    Fault::EvidenceOtherBoot,
    Fault::EvidenceOneProcess,
    Fault::EvidenceOldRun,
    Fault::EvidenceLaterRun,
    Fault::EvidenceClockSetBack,
    Fault::EvidenceOtherContainer,
    Fault::EvidencePodGone,
    Fault::ProofOfOldVersion,
    Fault::ProofOfUndescribed,
];

/// The first one is not tied to a list of the members.
const RANKS: &[Fault] = &[
    Fault::MemberFlaps,
    Fault::MemberStale,
    Fault::MemberWrong,
    Fault::MembersUnread,
];

const SWITCHES: &[Fault] = &[
    Fault::HeldTraffic,
    Fault::TimerLate,
    Fault::WorkSlow,
    Fault::WorkStuck,
];

const HUMANS: &[Fault] = &[
    Fault::HumanDelete,
    Fault::HumanClear,
    Fault::HumanRename,
    Fault::HumanDuration,
    Fault::HumanGarbage,
];

impl Plan {
    /// Creates the plan of a seed.
    pub fn new(rng: &mut Rng) -> Self {
        let nodes = rng.range(2, 5) as usize;
        let clocks = match rng.below(20) {
            0..8 => Clocks::Good,
            8..13 => Clocks::Fair,
            13..19 => Clocks::Edge,
            _ => Clocks::Wild,
        };
        let outsiders = match rng.below(20) {
            0..14 => Outsiders::None,
            14..18 => Outsiders::Humans,
            18 => Outsiders::RestoresAhead,
            _ => Outsiders::RestoresBack,
        };
        let timings = timings(rng, nodes);
        let rates_ppm = rates(rng, &timings, clocks);
        let polls_only = rng.percent(20);
        let watches = (0..nodes).map(|_| !polls_only && rng.percent(90)).collect();
        let mut faults = FaultSet::default();
        let share = *rng.pick(&[15, 40, 70]);
        for fault in [REQUESTS, WATCHES, NEMESIS, SWITCHES].concat() {
            if rng.percent(share) {
                faults.add(fault);
            }
        }
        match outsiders {
            Outsiders::None => {}
            Outsiders::Humans => HUMANS.iter().for_each(|f| {
                if rng.percent(60) {
                    faults.add(*f);
                }
            }),
            Outsiders::RestoresAhead => faults.add(Fault::RestoreBumped),
            Outsiders::RestoresBack => faults.add(Fault::Restore),
        }
        if faults.has(Fault::MachinePause) {
            // A stopped clock is detected with the wall clock. Nothing is guaranteed if both are wrong.
            faults.remove(Fault::WallBack);
        }
        let retry = nanos(timings[0].retry_period());
        let lease = nanos(timings[0].lease());
        let one_name = rng.percent(10);
        let coordinated = !one_name
            && match outsiders {
                Outsiders::None => rng.percent(10),
                Outsiders::RestoresBack => rng.percent(30),
                Outsiders::Humans | Outsiders::RestoresAhead => false,
            };
        if coordinated {
            faults.add(Fault::Preferred);
        }
        Self {
            nodes,
            watches,
            rates_ppm,
            clocks,
            outsiders,
            release: rng.percent(75),
            // Processes with the same name on a lock with whole seconds write the same text in the same second.
            whole_seconds: !coordinated
                && lease >= 5_000_000_000
                && rng.percent(if one_name { 50 } else { 10 }),
            coordinated,
            skew: *rng.pick(SKEWS),
            client_go: vec![false; nodes],
            one_name,
            proves: vec![false; nodes],
            container_ids: true,
            ranks: Vec::new(),
            failback_after: Duration::ZERO,
            late_answers: rng.percent(60),
            faults,
            request_faults: *rng.pick(&[50_000, 200_000, 400_000, 700_000]),
            watch_faults: *rng.pick(&[0, 50_000, 200_000, 500_000]),
            timer_faults: *rng.pick(&[0, 20_000, 150_000, 300_000]),
            nemesis: lease / 8 * rng.range(1, 16),
            latency: rng.range(100_000, (retry / 30).min(20_000_000)),
            horizon: retry * rng.range(300, 1_200),
            timings,
        }
    }

    /// Changes the plan to a fleet in which some candidates run client-go. The faults are those that make client-go
    /// release a lock that it no longer holds. Otherwise A1 holds.
    pub fn mix(&mut self, rng: &mut Rng) {
        self.keep_outsiders_away();
        self.coordinated = false;
        self.one_name = false;
        self.faults.remove(Fault::Preferred);
        self.release = true;
        for i in 0..self.nodes {
            self.client_go[i] = i == 0 || (i > 2 && rng.percent(30));
            self.watches[i] &= !self.client_go[i];
        }
        self.faults.add(Fault::Partition);
        self.request_faults = *rng.pick(&[5_000, 50_000, 200_000]);
    }

    /// Changes the plan to a coordinated election.
    pub fn coordinate(&mut self, rng: &mut Rng) {
        self.keep_outsiders_away();
        self.coordinated = true;
        self.one_name = false;
        self.whole_seconds = false;
        self.faults.add(Fault::Preferred);
        self.request_faults = *rng.pick(&[5_000, 50_000, 200_000]);
    }

    /// Changes the plan to an election in which every candidate watches and the store is restored to older revisions.
    pub fn restore(&mut self) {
        self.keep_outsiders_away();
        self.outsiders = Outsiders::RestoresBack;
        self.coordinated = false;
        self.faults.remove(Fault::Preferred);
        self.faults.add(Fault::Restore);
        self.watches.fill(true);
    }

    /// Changes the plan to an election in which operators order step-downs and people make the record unreadable, which
    /// resets the number of transitions.
    pub fn edit(&mut self) {
        self.keep_outsiders_away();
        self.outsiders = Outsiders::Humans;
        self.coordinated = false;
        for fault in NEMESIS {
            self.faults.remove(*fault);
        }
        self.faults.remove(Fault::Preferred);
        self.faults.add(Fault::Order);
        self.faults.add(Fault::HumanGarbage);
    }

    /// Changes the plan to an election whose candidates learn that holders are dead. Some candidates neither describe
    /// themselves nor use proofs, like older versions.
    pub fn prove(&mut self, rng: &mut Rng) {
        self.keep_outsiders_away();
        self.coordinated = false;
        self.faults.remove(Fault::Preferred);
        self.one_name = rng.percent(30);
        let all = rng.percent(50);
        for i in 0..self.nodes {
            self.proves[i] = all || i == 0 || rng.percent(60);
        }
        self.container_ids = rng.percent(50);
        if !self.container_ids {
            // Only the clock of the node then distinguishes the runs of a container.
            self.faults.remove(Fault::WallBack);
            let lease = self.timings.iter().map(|timing| timing.lease().as_secs());
            self.whole_seconds = lease.min() >= Some(5) && rng.percent(50);
        }
        self.faults.add(Fault::Crash);
        for fault in PROOFS {
            if rng.percent(50) {
                self.faults.add(*fault);
            }
        }
    }

    /// Changes the plan to an election whose candidates are ranked.
    pub fn rank(&mut self, rng: &mut Rng) {
        self.keep_outsiders_away();
        self.coordinated = false;
        self.one_name = false;
        self.release = true;
        self.faults.remove(Fault::Preferred);
        self.ranks = (0..self.nodes).map(|_| rank(rng.below(6))).collect();
        self.failback_after = Duration::from_secs(*rng.pick(&[10, 30, 30, 60]));
        // A term must often last longer than the time before a failback.
        self.nemesis = self
            .nemesis
            .max(nanos(self.failback_after) / rng.range(1, 8));
        self.request_faults = *rng.pick(&[1_000, 5_000, 50_000, 200_000]);
        // Members are read every ten seconds, even if leases last an hour.
        self.horizon = self.horizon.min(7_200_000_000_000);
        for fault in RANKS {
            if rng.percent(50) {
                self.faults.add(*fault);
            }
        }
    }

    /// Returns whether the candidates are ranked.
    pub fn has_ranks(&self) -> bool {
        !self.ranks.is_empty()
    }

    /// Returns whether candidates learn that holders are dead.
    pub fn has_proofs(&self) -> bool {
        self.proves.contains(&true)
    }

    fn keep_outsiders_away(&mut self) {
        self.outsiders = Outsiders::None;
        for fault in [HUMANS, &[Fault::Restore, Fault::RestoreBumped]].concat() {
            self.faults.remove(fault);
        }
    }

    /// Returns whether some, but not all, candidates run client-go.
    pub fn is_mixed(&self) -> bool {
        self.client_go.contains(&true)
    }

    /// Returns the kinds of faults that affect requests.
    pub fn request_kinds(&self) -> Vec<Fault> {
        enabled(REQUESTS, self.faults)
    }

    /// Returns the kinds of faults that affect watch events.
    pub fn watch_kinds(&self) -> Vec<Fault> {
        enabled(WATCHES, self.faults)
    }

    /// Returns the kinds of faults that are not tied to a request.
    pub fn nemesis_kinds(&self) -> Vec<Fault> {
        let others = [Fault::Restore, Fault::RestoreBumped, Fault::Preferred];
        let others = [HUMANS, PROOFS, &RANKS[..1], &others].concat();
        [enabled(NEMESIS, self.faults), enabled(&others, self.faults)].concat()
    }

    /// Returns the longest lease of any candidate including its lock delay, in nanoseconds.
    pub fn longest_lease(&self) -> u64 {
        self.timings
            .iter()
            .map(|t| nanos(t.lease() + t.lock_delay()))
            .max()
            .unwrap_or_default()
    }

    /// Returns whether L1 is checked in a coordinated election: only if the wall clocks of the candidates agree with
    /// the controller's.
    pub fn checks_coordination(&self) -> bool {
        let wrong = [Fault::WallForward, Fault::WallBack, Fault::MachinePause];
        self.skew <= 1_000_000_000
            && matches!(self.clocks, Clocks::Good | Clocks::Fair)
            && !wrong.iter().any(|f| self.faults.has(*f))
    }

    /// Returns whether S1 is checked, which needs A1 and A2.
    pub fn checks_guards(&self) -> bool {
        self.outsiders == Outsiders::None && self.clocks != Clocks::Wild
    }

    /// Returns whether S2, S3 and S5 are checked, which need revisions that never go back.
    pub fn checks_tokens(&self) -> bool {
        self.outsiders != Outsiders::RestoresBack
    }

    /// Returns whether deadlines of work are checked. They need A1, timers that fire in time, and clocks within the
    /// margin.
    pub fn checks_work(&self) -> bool {
        let late = [
            Fault::Pause,
            Fault::Suspend,
            Fault::MachinePause,
            Fault::TimerLate,
        ];
        self.outsiders == Outsiders::None
            && matches!(self.clocks, Clocks::Good | Clocks::Fair)
            && !late.iter().any(|f| self.faults.has(*f))
    }
}

/// Returns a duration in nanoseconds.
pub fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

fn enabled(kinds: &[Fault], set: FaultSet) -> Vec<Fault> {
    kinds.iter().copied().filter(|f| set.has(*f)).collect()
}

fn timings(rng: &mut Rng, nodes: usize) -> Vec<Timing> {
    let build = |(lease, renew, retry): (u64, u64, u64), delay| {
        Timing::builder()
            .lease_duration(Duration::from_millis(lease))
            .renew_deadline(Duration::from_millis(renew))
            .retry_period(Duration::from_millis(retry))
            .lock_delay(Duration::from_millis(delay))
            .client_go_compat(true)
            .build()
            .expect("the table holds valid timings")
    };
    let first = match rng.below(12) {
        // No margin at all, like csi-lib-utils.
        0 => (15_000, 10_000, 5_000),
        _ => *rng.pick(&TIMINGS),
    };
    let mixed = rng.percent(15);
    let delay = if rng.percent(10) { first.0 / 2 } else { 0 };
    (0..nodes)
        .map(|i| {
            let (lease, renew, retry) = first;
            // A fleet during a change of its settings.
            let factor = if mixed && i > 0 { rng.range(1, 4) } else { 1 };
            build((lease * factor, renew * factor, retry * factor), delay)
        })
        .collect()
}

fn rates(rng: &mut Rng, timings: &[Timing], clocks: Clocks) -> Vec<i64> {
    let tolerated = timings
        .iter()
        .map(Timing::tolerated_rate_error)
        .fold(f64::MAX, f64::min);
    let limit = match clocks {
        Clocks::Good => 500,
        Clocks::Fair => 5_000,
        Clocks::Edge => (tolerated * 990_000.0) as u64,
        Clocks::Wild => 600_000,
    };
    timings
        .iter()
        .map(|_| {
            // Extreme values are the most error-prone.
            let size = if rng.percent(50) {
                limit
            } else {
                rng.below(limit + 1)
            };
            let size = i64::try_from(size).unwrap_or_default();
            if rng.percent(50) { size } else { -size }
        })
        .collect()
}
