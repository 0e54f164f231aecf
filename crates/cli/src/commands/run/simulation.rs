//! A deterministic simulation of wrapper, watchdog and command: which process ends the command, by when, and whether the
//! watchdog may release the lease.
//!
//! The watchdog decides with the real [`time_left`]. The wrapper, the kernel and the faults are modelled in steps of
//! one millisecond. One seed decides everything. Each seeded bug must be found.

use super::watchdog::time_left;

const MILLI: u64 = 1_000_000;
/// Time from a renewal to the fence.
const FENCE: u64 = 3_700;
const RETRY: u64 = 300;
const HEARTBEAT: u64 = 200;
/// Maximum time that a runnable process waits for the CPU. The margin after the fence is longer.
const LATE: u64 = 100;
/// Maximum time until processes that were killed have ended.
const DYING: u64 = 60;
/// Interval at which the watchdog checks whether they have.
const ROUND: u64 = 20;
const LENGTH: u64 = 40_000;

/// A bug of an earlier version, or one that a change might introduce.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Bug {
    None,
    /// Deadlines go through a pipe of limited size, and a write to a full pipe blocks the wrapper.
    BlockingPipe,
    /// Deadlines go through such a pipe, and are dropped when it is full.
    LossyPipe,
    /// The kernel does not wake a stopped watchdog when the wrapper dies.
    NoWake,
    /// The wrapper continues the command after the death of the watchdog.
    GoesOnUnwatched,
    /// The watchdog reads the deadline only some time after the known deadline has passed.
    LooksTooLate,
    /// The watchdog releases the lease while processes that it has killed still end.
    ReleasesTooEarly,
    /// The watchdog releases the lease although the wrapper is alive.
    ReleasesForTheLiving,
}

const PIPE: usize = 4;

#[derive(Clone, Copy, Debug)]
struct Actor {
    alive: bool,
    stopped: bool,
    /// Blocked in a write forever.
    blocked: bool,
    /// Time of its next turn.
    wakes: u64,
    /// Time since which it could run.
    since: u64,
}

impl Actor {
    /// Returns whether no fault keeps it from running.
    fn runs(self) -> bool {
        self.alive && !self.stopped
    }

    fn takes_turn(self, now: u64) -> bool {
        self.runs() && !self.blocked && now >= self.wakes
    }

    fn go_on(&mut self, now: u64) {
        if std::mem::take(&mut self.stopped) {
            self.since = now;
        }
    }
}

struct World {
    bug: Bug,
    random: u64,
    now: u64,
    wrapper: Actor,
    watchdog: Actor,
    /// The fence of the last renewal.
    fence: u64,
    renews: u64,
    /// The deadline that the watchdog can read.
    shown: u64,
    pipe: Vec<u64>,
    /// Descendants of the command.
    tree: bool,
    /// Time at which the last process that the watchdog has killed ends.
    ends: Option<u64>,
    /// The watchdog has released the lease.
    released: bool,
    /// Time at which the first of both died.
    died: Option<u64>,
}

impl World {
    fn new(seed: u64, bug: Bug) -> Self {
        let actor = Actor {
            alive: true,
            stopped: false,
            blocked: false,
            wakes: 0,
            since: 0,
        };
        Self {
            bug,
            random: seed,
            now: 0,
            wrapper: actor,
            watchdog: actor,
            fence: FENCE,
            renews: RETRY,
            shown: FENCE,
            pipe: Vec::new(),
            tree: true,
            ends: None,
            released: false,
            died: None,
        }
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.random;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % bound
    }

    /// Returns the first violated guarantee, if any.
    fn run(mut self) -> Result<(), String> {
        while self.now < LENGTH && self.tree {
            if self.below(1_500) == 0 {
                self.fault();
            }
            if self.wrapper.takes_turn(self.now) {
                self.wrapper_turn();
            }
            if self.watchdog.takes_turn(self.now) {
                self.watchdog_turn();
            }
            self.check()?;
            self.now += 1;
        }
        Ok(())
    }

    fn fault(&mut self) {
        let now = self.now;
        match self.below(8) {
            // After a death, nothing is guaranteed for a second fault.
            0..=2 | 5 | 6 if self.died.is_some() => {}
            0 => self.wrapper.stopped = true,
            1 | 2 => self.watchdog.stopped = true,
            3 => self.wrapper.go_on(now),
            4 => self.watchdog.go_on(now),
            5 => {
                self.wrapper.alive = false;
                self.died = Some(now);
                self.watchdog.wakes = now + self.below(LATE);
                if self.bug != Bug::NoWake {
                    self.watchdog.go_on(now);
                }
            }
            6 => {
                self.watchdog.alive = false;
                self.died = Some(now);
                self.wrapper.wakes = now + self.below(LATE);
            }
            // The API server does not respond for some time.
            _ => self.renews = now + self.below(6_000),
        }
    }

    fn wrapper_turn(&mut self) {
        let unwatched = !self.watchdog.alive && self.bug != Bug::GoesOnUnwatched;
        if unwatched || self.now >= self.fence {
            self.tree = false;
            return;
        }
        if self.now >= self.renews {
            self.renews = self.now + RETRY;
            self.fence = self.now + FENCE;
            self.show();
        }
        let next = (self.now + HEARTBEAT).min(self.fence).min(self.renews);
        self.wrapper.wakes = next.max(self.now + 1) + self.below(LATE / 2);
    }

    fn show(&mut self) {
        match self.bug {
            Bug::BlockingPipe if self.pipe.len() >= PIPE => self.wrapper.blocked = true,
            Bug::LossyPipe if self.pipe.len() >= PIPE => {}
            Bug::BlockingPipe | Bug::LossyPipe => self.pipe.push(self.fence),
            _ => self.shown = self.fence,
        }
    }

    fn watchdog_turn(&mut self) {
        if let Some(newest) = self.pipe.drain(..).next_back() {
            self.shown = newest;
        }
        let wait = time_left(self.shown * MILLI, self.now * MILLI);
        let Some(wait) = wait.filter(|_| self.wrapper.alive) else {
            self.end_everything();
            return;
        };
        let wait = u64::try_from(wait.tv_sec * 1_000 + wait.tv_nsec / 1_000_000).unwrap_or(0);
        let wait = if self.bug == Bug::LooksTooLate {
            wait.max(1_000)
        } else {
            wait
        };
        self.watchdog.wakes = self.now + wait + self.below(LATE / 2);
    }

    fn end_everything(&mut self) {
        let dying = self.below(DYING);
        let ends = *self.ends.get_or_insert(self.now + dying);
        self.tree = self.now < ends;
        self.watchdog.wakes = self.now + ROUND;
        let ended = !self.tree || self.bug == Bug::ReleasesTooEarly;
        let crashed = !self.wrapper.alive || self.bug == Bug::ReleasesForTheLiving;
        self.released = ended && crashed;
    }

    fn check(&self) -> Result<(), String> {
        let (now, wrapper, watchdog) = (self.now, self.wrapper, self.watchdog);
        let early = self.released && (self.tree || wrapper.alive);
        broken(early, "the lease was released too early", self)?;
        if !self.tree {
            let reason = self.died.is_some() || now >= self.fence;
            return broken(!reason, "the command ended without a reason", self);
        }
        for actor in [wrapper, watchdog] {
            let overdue = now > self.fence.max(actor.since) + LATE + DYING + ROUND;
            broken(
                actor.runs() && overdue,
                "the command runs on after the fence",
                self,
            )?;
        }
        let overdue = |since: u64| {
            self.died
                .is_some_and(|died| now > died.max(since) + LATE + DYING + ROUND)
        };
        // The kernel wakes the watchdog, so its time counts from the death of the wrapper.
        let orphan = !wrapper.alive && overdue(0);
        broken(orphan, "the command outlives the wrapper", self)?;
        let unwatched = !watchdog.alive && wrapper.runs() && overdue(wrapper.since);
        broken(unwatched, "the command outlives the watchdog", self)?;
        let late = now > self.renews.max(wrapper.since) + HEARTBEAT + LATE;
        broken(wrapper.runs() && late, "a renewal is late", self)
    }
}

fn broken(broken: bool, promise: &str, world: &World) -> Result<(), String> {
    if broken {
        return Err(format!("{promise} at {} ms", world.now));
    }
    Ok(())
}

fn first_violation(bug: Bug, seeds: u64) -> Option<(u64, String)> {
    (0..seeds).find_map(|seed| Some((seed, World::new(seed, bug).run().err()?)))
}

#[test]
fn command_never_outlives_its_keepers() {
    assert_eq!(first_violation(Bug::None, 2_000), None);
}

#[test]
fn every_seeded_bug_is_found() {
    let bugs = [
        (Bug::BlockingPipe, "a renewal is late"),
        (Bug::LossyPipe, "the command ended without a reason"),
        (Bug::NoWake, "the command outlives the wrapper"),
        (Bug::GoesOnUnwatched, "the command outlives the watchdog"),
        (Bug::LooksTooLate, "the command runs on after the fence"),
        (Bug::ReleasesTooEarly, "the lease was released too early"),
        (
            Bug::ReleasesForTheLiving,
            "the lease was released too early",
        ),
    ];
    for (bug, promise) in bugs {
        let found = first_violation(bug, 500);
        let found = found.unwrap_or_else(|| panic!("{bug:?} was not found"));
        assert!(found.1.starts_with(promise), "{bug:?}: {found:?}");
    }
}
