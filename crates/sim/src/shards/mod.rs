//! Shard groups whose number of shards changes while they run.
//!
//! Replicas run the real rules of [`tenure_core::shards`] and, for each shard, the real core. They are updated one by
//! one from one number of shards to another and back. During the updates, requests are lost, late, answered with an
//! error or applied without a response. Processes crash and pause, clocks run at different rates, and people delete or
//! edit the agreement. S1 must hold for every key: at any instant at most one replica owns the shard of the key,
//! regardless of the number of shards. After the faults L1 must hold: every key has an owner.
//!
//! Semaphores run in the same world ([`Group::Slots`]). Each process campaigns for all slots and keeps the first one
//! that it wins. Its number of slots is compared by the rules of [`tenure_core::slots`]. Some processes use the election
//! without slots.

mod check;
mod elections;
mod nemesis;
mod network;
mod replica;
mod server;
mod slots;

use std::collections::BTreeMap;
use std::time::Duration;

use tenure_core::{Input, LocalTime, Timing};
use tenure_core::{shards, slots as slot_rules};

use crate::caught::caught;
use crate::clock::Clock;
use crate::invariants::s1_guard_exclusion::GuardExclusion;
use crate::invariants::{Invariant, Violation};
use crate::plan::nanos;
use crate::rng::Rng;
use crate::world::Report;
use replica::{Gate, Next, Replica, Standing};
use server::{Call, Reply, Server};

/// Type of the leases, and the rules by which processes agree on their number.
#[derive(Clone, Copy, Debug)]
pub enum Group {
    /// Shards; a process may own any number of them.
    Shards(shards::Rules),
    /// Slots; a process uses at most one of them.
    Slots(slot_rules::Rules),
}

/// The numbers of shards that a group uses, in order.
const NUMBERS: [u32; 3] = [2, 3, 1];

/// Number of keys, spread evenly. All numbers of shards divide it.
const KEYS: u32 = 6;

/// Duration of the part after the faults, in leases.
const CALM: u64 = 14;

#[derive(Debug)]
enum Event {
    Tick(usize, u64, usize, u64),
    /// The replica reads the agreement.
    Look(usize, u64),
    Arrive(Box<Travel>),
    Deliver(usize, u64, Letter),
    Resume(usize),
    Restart(usize, u64),
    Strike,
    Calm,
    End,
}

/// The part of a replica that sent a request and receives its response.
#[derive(Clone, Copy, Debug)]
enum For {
    Gate,
    Election(usize),
    /// Confirms this term of a shard, by a read that was served at this instant.
    Confirm(usize, u64, u64),
    /// Checks, for this term of a slot, that no candidate without slots leads. The read was sent at this instant.
    Whole(usize, u64, LocalTime),
}

#[derive(Debug)]
struct Travel {
    replica: usize,
    incarnation: u64,
    asked_by: For,
    id: u64,
    call: Call,
    answered: bool,
    error: bool,
}

/// A message for a replica, kept while the replica cannot run.
#[derive(Clone, Debug)]
enum Letter {
    Answer(For, u64, Box<Reply>),
    Timeout(For, u64),
    Tick(usize),
    WorkEnded(usize),
    Confirm(usize, u64),
    Leave,
}

struct World {
    rng: Rng,
    group: Group,
    now: u64,
    sequence: u64,
    queue: BTreeMap<(u64, u64), Event>,
    server: Server,
    replicas: Vec<Replica>,
    timing: Timing,
    incarnations: u64,
    /// Progress of the updates: new processes use this number of shards, or the next one.
    stage: usize,
    /// Percentage of new processes that use the next number.
    progress: u64,
    /// Semaphores: percentage of new processes that use the election without slots.
    without_slots: u64,
    /// Probability that a fault affects a request, in parts per million.
    faults: u64,
    latency: u64,
    lease: u64,
    calm: bool,
    guards: GuardExclusion,
    /// Each number that was agreed on, and since when.
    numbers: Vec<(u64, u32)>,
    report: Report,
    traced: bool,
}

/// Runs a seed.
pub fn run(seed: u64, group: Group, traced: bool) -> Report {
    let mut rng = Rng::new(seed.wrapping_mul(0xD6E8_FEB8_6659_FD93) ^ 0x54A2);
    let (lease, renew, retry) = *rng.pick(&[(15, 10, 2), (5, 3, 1)]);
    let timing = Timing::builder()
        .lease_duration(Duration::from_secs(lease))
        .renew_deadline(Duration::from_secs(renew))
        .retry_period(Duration::from_secs(retry))
        .client_go_compat(true)
        .build()
        .expect("the table holds valid timings");
    let mut world = World {
        group,
        now: 1_000_000_000,
        sequence: 0,
        queue: BTreeMap::new(),
        server: Server::default(),
        replicas: Vec::new(),
        lease: nanos(timing.lease()),
        timing,
        incarnations: 0,
        stage: rng.below(3) as usize,
        progress: 0,
        without_slots: match group {
            Group::Shards(_) => 0,
            Group::Slots(_) => *rng.pick(&[0, 0, 40, 100]),
        },
        faults: match group {
            Group::Shards(_) => *rng.pick(&[10_000, 60_000, 200_000]),
            Group::Slots(_) => *rng.pick(&[100_000, 300_000, 400_000]),
        },
        latency: rng.range(1_000_000, 30_000_000),
        calm: false,
        guards: GuardExclusion::default(),
        numbers: Vec::new(),
        report: Report::default(),
        traced,
        rng,
    };
    if let Err(text) = caught(|| world.play()) {
        world.violate(Invariant::Assertion, text);
    }
    world.report.totals.simulated = world.now.into();
    world.report.totals.longest_overlap = world.guards.longest_overlap;
    world.report
}

impl World {
    fn play(&mut self) {
        let edge = (self.timing.tolerated_rate_error() * 990_000.0) as u64;
        let limit = if self.rng.percent(50) { 500 } else { edge };
        // There are more processes than slots.
        let more = u64::from(self.is_semaphore()) * 2;
        for i in 0..self.rng.range(2 + more, 5 + more) as usize {
            let rate = self.rng.below(2 * limit + 1) as i64 - limit as i64;
            let (local, wall) = (self.rng.below(1 << 50), self.rng.below(1 << 45) as i64);
            let replica = self.incarnate(Clock::new(local, rate, wall));
            self.replicas.push(replica);
            self.launch(i);
        }
        let horizon = self.now + self.lease * self.rng.range(20, 60);
        self.after(self.lease, Event::Strike);
        self.at(horizon, Event::Calm);
        self.at(horizon + CALM * self.lease, Event::End);
        while self.report.violation.is_none() {
            let Some(((at, _), event)) = self.queue.pop_first() else {
                break;
            };
            self.now = at;
            self.mix(at);
            if matches!(event, Event::End) {
                self.check_end();
                break;
            }
            self.happen(event);
        }
    }

    /// Creates a process with the current number of shards or the next one.
    fn incarnate(&mut self, clock: Clock) -> Replica {
        self.incarnations += 1;
        let ahead = usize::from(self.rng.percent(self.progress));
        let shards = NUMBERS[(self.stage + ahead) % NUMBERS.len()];
        let often = if self.is_semaphore() { 30 } else { 80 };
        let may_change = self.calm || self.rng.percent(often);
        let number = (shards, may_change);
        let mut replica = Replica::new(number, clock, self.incarnations, &self.timing, self.group);
        replica.without_slots =
            self.is_semaphore() && !self.calm && self.rng.percent(self.without_slots);
        replica
    }

    fn launch(&mut self, i: usize) {
        self.trace(|w| {
            let Replica {
                shards,
                may_change,
                without_slots,
                ..
            } = w.replicas[i];
            format!("r{i} starts: {shards} shards, may change: {may_change}, without slots: {without_slots}")
        });
        let incarnation = self.replicas[i].incarnation;
        self.after(0, Event::Look(i, incarnation));
    }

    fn happen(&mut self, event: Event) {
        let is_current = |w: &Self, i: usize, incarnation| {
            w.replicas[i].incarnation == incarnation && w.replicas[i].alive
        };
        match event {
            Event::Tick(i, incarnation, shard, number) => {
                if !is_current(self, i, incarnation) {
                    return;
                }
                let owned = self.replicas[i].elections.get_mut(shard);
                if let Some(owned) = owned
                    && owned.tick.is_some_and(|(_, n)| n == number)
                {
                    owned.tick = None;
                    self.deliver(i, Letter::Tick(shard));
                }
            }
            Event::Look(i, incarnation) => {
                if is_current(self, i, incarnation) {
                    self.look(i);
                }
            }
            Event::Arrive(travel) => self.arrive(&travel),
            Event::Deliver(i, incarnation, letter) => {
                if is_current(self, i, incarnation) {
                    self.deliver(i, letter);
                }
            }
            Event::Resume(i) => self.resume(i),
            Event::Restart(i, incarnation) => {
                if self.replicas[i].incarnation == incarnation {
                    self.restart(i);
                }
            }
            Event::Strike => self.strike(),
            Event::Calm => self.calm_down(),
            Event::End => {}
        }
    }

    /// Delivers a message to a replica, or keeps it until the replica can run.
    fn deliver(&mut self, i: usize, letter: Letter) {
        let replica = &mut self.replicas[i];
        if replica.paused_until > self.now {
            replica.inbox.push(letter);
        } else {
            self.open(i, letter);
        }
    }

    fn resume(&mut self, i: usize) {
        if self.replicas[i].paused_until > self.now || !self.replicas[i].alive {
            return;
        }
        self.check_owners();
        let letters = std::mem::take(&mut self.replicas[i].inbox);
        for letter in letters {
            self.open(i, letter);
        }
        for shard in 0..self.replicas[i].elections.len() {
            self.step(i, shard, Input::Tick);
        }
    }

    fn open(&mut self, i: usize, letter: Letter) {
        self.trace(|_| format!("r{i} {letter:?}"));
        match letter {
            Letter::Tick(shard) => self.step(i, shard, Input::Tick),
            Letter::WorkEnded(shard) => self.step(i, shard, Input::WorkEnded),
            Letter::Confirm(shard, term) => self.confirm(i, shard, term),
            Letter::Answer(For::Gate, id, reply) => {
                let now = self.local(i);
                if let Some(next) = self.replicas[i].answered(id, now, *reply) {
                    self.go_on(i, id, next);
                }
            }
            Letter::Timeout(For::Gate, id) => {
                let now = self.local(i);
                if let Some(next) = self.replicas[i].answered(id, now, Reply::Error) {
                    self.go_on(i, id, next);
                }
            }
            Letter::Leave => self.go_on(i, 0, Next::Leave),
            Letter::Answer(For::Confirm(shard, term, served), _, reply) => {
                self.confirmed(i, shard, (term, served), &reply);
            }
            Letter::Timeout(For::Confirm(shard, term, _), _) => {
                self.confirmed(i, shard, (term, self.now), &Reply::Error);
            }
            Letter::Answer(For::Whole(slot, term, asked), _, reply) => {
                self.looked_for_whole(i, slot, (term, asked), &reply);
            }
            Letter::Timeout(For::Whole(slot, term, asked), _) => {
                self.looked_for_whole(i, slot, (term, asked), &Reply::Error);
            }
            Letter::Answer(For::Election(shard), id, reply) => self.written(i, shard, id, *reply),
            Letter::Timeout(For::Election(shard), id) => self.written(i, shard, id, Reply::Error),
        }
    }

    /// Reads the agreement, unless a read is in flight.
    fn look(&mut self, i: usize) {
        let (incarnation, period) = (self.replicas[i].incarnation, self.period());
        self.after(period, Event::Look(i, incarnation));
        let can_run = self.replicas[i].paused_until <= self.now;
        if can_run && matches!(self.replicas[i].gate, Gate::Idle) {
            self.ask(i);
        }
    }

    fn ask(&mut self, i: usize) {
        let id = self.number();
        self.replicas[i].gate = Gate::Reading(id);
        self.send(i, For::Gate, id, Call::ReadAgreement, None);
    }

    fn go_on(&mut self, i: usize, id: u64, next: Next) {
        self.trace(|_| format!("r{i}   -> {next:?}"));
        match next {
            Next::Call(call) => self.send(i, For::Gate, id, call, None),
            Next::Again => self.ask(i),
            Next::Later => {}
            Next::Join => {
                let (timing, rng) = (&self.timing, &mut self.rng);
                self.replicas[i].campaign(timing, rng);
                for shard in 0..self.replicas[i].elections.len() {
                    self.step(i, shard, Input::Start);
                }
            }
            Next::Leave => {
                self.replicas[i].standing = Standing::Leaving;
                for shard in 0..self.replicas[i].elections.len() {
                    self.step(i, shard, Input::Shutdown);
                }
            }
            Next::Refused => self.end(i),
        }
    }

    /// Ends the process; another one replaces it later.
    fn end(&mut self, i: usize) {
        let replica = &mut self.replicas[i];
        replica.alive = false;
        let incarnation = replica.incarnation;
        let span = self.rng.below(self.lease);
        self.after(span, Event::Restart(i, incarnation));
    }

    /// Returns the time until a replica reads the agreement again.
    fn period(&mut self) -> u64 {
        let retry = nanos(self.timing.retry_period());
        retry / 2 + self.rng.below(retry)
    }

    fn local(&self, i: usize) -> LocalTime {
        self.replicas[i].clock.now(self.now).local
    }

    fn number(&mut self) -> u64 {
        self.sequence += 1;
        self.sequence
    }

    fn one_way(&mut self) -> u64 {
        self.latency / 2 + self.rng.below(self.latency)
    }

    fn after(&mut self, delay: u64, event: Event) {
        self.at(self.now + delay, event);
    }

    fn at(&mut self, at: u64, event: Event) {
        let number = self.number();
        self.queue.insert((at, number), event);
    }

    fn violate(&mut self, invariant: Invariant, text: String) {
        self.trace(|_| format!("VIOLATION {invariant}: {text}"));
        let at = self.now;
        self.report.violation.get_or_insert(Violation {
            invariant,
            at,
            text,
        });
    }

    fn trace(&mut self, text: impl FnOnce(&Self) -> String) {
        if self.traced {
            let line = format!("{:>14.6} {}", self.now as f64 / 1e9, text(self));
            self.report.trace.push(line);
        }
    }

    fn mix(&mut self, value: u64) {
        self.report.hash = (self.report.hash ^ value).wrapping_mul(0x0000_0100_0000_01B3)
            ^ (self.report.hash >> 29);
    }
}
