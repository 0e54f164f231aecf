//! What one seed decides before anything happens: the cluster, its clocks, and which faults may
//! strike (swarm testing: each seed enables a random subset, so rare combinations get their turn).

use std::time::Duration;

use tenure_core::Timing;

use crate::fault::{Fault, FaultSet};
use crate::rng::Rng;

/// How well the clocks behave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Clocks {
    /// Rates differ by at most 500 ppm, as on Linux.
    Good,
    /// Rates differ by up to 1 %: deadlines of work still hold.
    Fair,
    /// Rates differ by almost as much as the timing tolerates.
    Edge,
    /// Beyond what is tolerated: S1 is void, S2, S3, S4 and S5 are not.
    Wild,
}

/// Who breaks assumption A1, that only electors write the object and nothing is rolled back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outsiders {
    /// Nobody.
    None,
    /// Humans edit and delete.
    Humans,
    /// The store is restored, with its revision moved ahead.
    RestoresAhead,
    /// The store is restored, with its revision moved back.
    RestoresBack,
}

/// The parameters of one run.
#[derive(Clone, Debug)]
pub struct Plan {
    /// How many candidates.
    pub nodes: usize,
    /// The durations of each.
    pub timings: Vec<Timing>,
    /// Which candidates watch; the others poll.
    pub watches: Vec<bool>,
    /// How much too fast each clock runs, in parts per million.
    pub rates_ppm: Vec<i64>,
    /// Which class of clocks that is.
    pub clocks: Clocks,
    /// Who breaks A1.
    pub outsiders: Outsiders,
    /// Whether terms are given back.
    pub release: bool,
    /// Whether the lock stores whole seconds.
    pub whole_seconds: bool,
    /// Whether a controller assigns the lease.
    pub coordinated: bool,
    /// How far the wall clocks of a coordinated election are set wrong at most, in nanoseconds.
    pub skew: u64,
    /// Which candidates run client-go next to others that do not.
    pub client_go: Vec<bool>,
    /// Whether all incarnations share one name.
    pub one_name: bool,
    /// Whether answers still reach the election after their time is up.
    pub late_answers: bool,
    /// The kinds that may strike.
    pub faults: FaultSet,
    /// How often a request is struck, in a million.
    pub request_faults: u64,
    /// How often a watch event is struck, in a million.
    pub watch_faults: u64,
    /// How often a timer is late, in a million.
    pub timer_faults: u64,
    /// The mean time between faults that strike by themselves.
    pub nemesis: u64,
    /// How long the network takes one way.
    pub latency: u64,
    /// How long faults last in all.
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

/// How far wall clocks are set wrong, in nanoseconds.
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
    /// The plan of a seed.
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
            // A clock that stops is told from the wall clock; both wrong is more than is promised.
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
            // Namesakes on a lock of whole seconds write the same text in the same second.
            whole_seconds: !coordinated
                && lease >= 5_000_000_000
                && rng.percent(if one_name { 50 } else { 10 }),
            coordinated,
            skew: *rng.pick(SKEWS),
            client_go: vec![false; nodes],
            one_name,
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

    /// Makes it a fleet in which some candidates run client-go. The faults are those that make client-go
    /// release what it no longer holds; A1 holds but for that.
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

    /// Makes it a coordinated election.
    pub fn coordinate(&mut self, rng: &mut Rng) {
        self.keep_outsiders_away();
        self.coordinated = true;
        self.one_name = false;
        self.whole_seconds = false;
        self.faults.add(Fault::Preferred);
        self.request_faults = *rng.pick(&[5_000, 50_000, 200_000]);
    }

    /// Makes it an election in which everybody watches and the store is restored to older revisions.
    pub fn restore(&mut self) {
        self.keep_outsiders_away();
        self.outsiders = Outsiders::RestoresBack;
        self.coordinated = false;
        self.faults.remove(Fault::Preferred);
        self.faults.add(Fault::Restore);
        self.watches.fill(true);
    }

    fn keep_outsiders_away(&mut self) {
        self.outsiders = Outsiders::None;
        for fault in [HUMANS, &[Fault::Restore, Fault::RestoreBumped]].concat() {
            self.faults.remove(fault);
        }
    }

    /// Whether some candidates, and not all, run client-go.
    pub fn is_mixed(&self) -> bool {
        self.client_go.contains(&true)
    }

    /// The kinds that strike requests.
    pub fn request_kinds(&self) -> Vec<Fault> {
        enabled(REQUESTS, self.faults)
    }

    /// The kinds that strike watch events.
    pub fn watch_kinds(&self) -> Vec<Fault> {
        enabled(WATCHES, self.faults)
    }

    /// The kinds that strike by themselves.
    pub fn nemesis_kinds(&self) -> Vec<Fault> {
        let others = [Fault::Restore, Fault::RestoreBumped, Fault::Preferred];
        let others = [HUMANS, &others].concat();
        [enabled(NEMESIS, self.faults), enabled(&others, self.faults)].concat()
    }

    /// The longest lease of any candidate, in nanoseconds.
    pub fn longest_lease(&self) -> u64 {
        self.timings
            .iter()
            .map(|t| nanos(t.lease()))
            .max()
            .unwrap_or_default()
    }

    /// Whether a controller must find a leader: only with wall clocks that agree with its own.
    pub fn checks_coordination(&self) -> bool {
        let wrong = [Fault::WallForward, Fault::WallBack, Fault::MachinePause];
        self.skew <= 1_000_000_000
            && matches!(self.clocks, Clocks::Good | Clocks::Fair)
            && !wrong.iter().any(|f| self.faults.has(*f))
    }

    /// S1 needs A1 and A2.
    pub fn checks_guards(&self) -> bool {
        self.outsiders == Outsiders::None && self.clocks != Clocks::Wild
    }

    /// S2, S3 and S5 need revisions that never go back.
    pub fn checks_tokens(&self) -> bool {
        self.outsiders != Outsiders::RestoresBack
    }

    /// Deadlines of work need, besides A1, timers that fire and clocks within the margin.
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

/// A duration in nanoseconds.
pub fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

fn enabled(kinds: &[Fault], set: FaultSet) -> Vec<Fault> {
    kinds.iter().copied().filter(|f| set.has(*f)).collect()
}

fn timings(rng: &mut Rng, nodes: usize) -> Vec<Timing> {
    let build = |(lease, renew, retry): (u64, u64, u64)| {
        Timing::builder()
            .lease_duration(Duration::from_millis(lease))
            .renew_deadline(Duration::from_millis(renew))
            .retry_period(Duration::from_millis(retry))
            .client_go_compat(true)
            .build()
            .expect("the table holds valid timings")
    };
    let first = match rng.below(12) {
        // No margin at all, as csi-lib-utils has it.
        0 => (15_000, 10_000, 5_000),
        _ => *rng.pick(&TIMINGS),
    };
    let mixed = rng.percent(15);
    (0..nodes)
        .map(|i| {
            let (lease, renew, retry) = first;
            // A fleet in the middle of a change of its settings.
            let factor = if mixed && i > 0 { rng.range(1, 4) } else { 1 };
            build((lease * factor, renew * factor, retry * factor))
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
            // Extremes are where it hurts.
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
