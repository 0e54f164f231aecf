//! Shard groups whose number of shards changes while they run.
//!
//! Replicas run the real rules of [`tenure_core::shards`] and, for each shard, the real core. They are updated one by
//! one from one number of shards to another and back, while requests are lost, late, answered with an error or applied
//! without an answer, processes crash and pause, clocks run at different rates, and people delete or edit the
//! agreement. S1 must hold for every key: at any instant at most one replica owns the shard of the key, whatever the
//! number of shards. After the faults L1 must hold: every key has an owner.

mod replica;
mod server;

use std::collections::BTreeMap;
use std::time::Duration;

pub use tenure_core::shards::Rules;
use tenure_core::{Command, Input, LocalTime, Outcome, Source, Timing};

use crate::caught::caught;
use crate::clock::Clock;
use crate::fault::Fault;
use crate::invariants::s1_guard_exclusion::GuardExclusion;
use crate::invariants::{Invariant, Violation};
use crate::plan::nanos;
use crate::rng::Rng;
use crate::world::Report;
use replica::{Gate, Next, Replica, Standing};
use server::{Call, Reply, Server};

/// The numbers of shards, in the order in which a group has them.
const NUMBERS: [u32; 3] = [2, 3, 1];

/// Keys, spread evenly: as many as all numbers divide.
const KEYS: u32 = 6;

/// After the faults, in leases.
const CALM: u64 = 14;

#[derive(Debug)]
enum Event {
    Tick(usize, u64, usize, u64),
    /// The replica looks at the agreement.
    Look(usize, u64),
    Arrive(Box<Travel>),
    Deliver(usize, u64, Letter),
    Resume(usize),
    Restart(usize, u64),
    Strike,
    Calm,
    End,
}

/// Whom an answer is for.
#[derive(Clone, Copy, Debug)]
enum For {
    Gate,
    Election(usize),
    /// Confirms this term of a shard.
    Confirm(usize, u64),
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

/// Something for a replica, kept while it cannot run.
#[derive(Clone, Debug)]
enum Letter {
    Answer(For, u64, Reply),
    Timeout(For, u64),
    Tick(usize),
    WorkEnded(usize),
    Confirm(usize, u64),
}

struct World {
    rng: Rng,
    rules: Rules,
    now: u64,
    sequence: u64,
    queue: BTreeMap<(u64, u64), Event>,
    server: Server,
    replicas: Vec<Replica>,
    timing: Timing,
    incarnations: u64,
    /// How far updates have come: new processes have this number of shards, or the next.
    stage: usize,
    /// How many in a hundred new processes have the next number.
    progress: u64,
    /// How often a request is struck, in a million.
    faults: u64,
    latency: u64,
    lease: u64,
    calm: bool,
    guards: GuardExclusion,
    report: Report,
    traced: bool,
}

/// Runs a seed.
pub fn run(seed: u64, rules: Rules, traced: bool) -> Report {
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
        rules,
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
        faults: *rng.pick(&[10_000, 60_000, 200_000]),
        latency: rng.range(1_000_000, 30_000_000),
        calm: false,
        guards: GuardExclusion::default(),
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
        for i in 0..self.rng.range(2, 5) as usize {
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

    /// A new process, of the present number of shards or of the next.
    fn incarnate(&mut self, clock: Clock) -> Replica {
        self.incarnations += 1;
        let ahead = usize::from(self.rng.percent(self.progress));
        let shards = NUMBERS[(self.stage + ahead) % NUMBERS.len()];
        let may_change = self.calm || self.rng.percent(80);
        let number = (shards, may_change);
        Replica::new(number, clock, self.incarnations, &self.timing, self.rules)
    }

    fn launch(&mut self, i: usize) {
        self.trace(|w| {
            let Replica {
                shards, may_change, ..
            } = w.replicas[i];
            format!("r{i} starts: {shards} shards, may change: {may_change}")
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

    /// Hands something to a replica, or keeps it until the replica can run.
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
                if let Some(next) = self.replicas[i].answered(id, now, reply) {
                    self.go_on(i, id, next);
                }
            }
            Letter::Timeout(For::Gate, id) => {
                let now = self.local(i);
                if let Some(next) = self.replicas[i].answered(id, now, Reply::Error) {
                    self.go_on(i, id, next);
                }
            }
            Letter::Answer(For::Confirm(shard, term), _, reply) => {
                self.confirmed(i, shard, term, &reply);
            }
            Letter::Timeout(For::Confirm(..), _) => {}
            Letter::Answer(For::Election(shard), id, reply) => self.written(i, shard, id, reply),
            Letter::Timeout(For::Election(shard), id) => self.written(i, shard, id, Reply::Error),
        }
    }

    /// Looks at the agreement, unless that is under way.
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

    /// The process ends, and another takes its place later.
    fn end(&mut self, i: usize) {
        let replica = &mut self.replicas[i];
        replica.alive = false;
        let incarnation = replica.incarnation;
        let span = self.rng.below(self.lease);
        self.after(span, Event::Restart(i, incarnation));
    }

    fn step(&mut self, i: usize, shard: usize, input: Input) {
        let now = self.replicas[i].clock.now(self.now);
        let Some(owned) = self.replicas[i].elections.get_mut(shard) else {
            return;
        };
        if owned.finished {
            return;
        }
        self.report.totals.steps += 1;
        for command in owned.election.step(now, input) {
            self.trace(|_| format!("r{i}.{shard}   -> {command:?}"));
            self.obey(i, shard, command);
        }
        self.schedule_tick(i, shard);
    }

    fn obey(&mut self, i: usize, shard: usize, command: Command) {
        let place = (shard as u32, self.replicas[i].shards);
        let incarnation = self.replicas[i].incarnation;
        let owned = &mut self.replicas[i].elections[shard];
        match command {
            Command::Read { id, timeout } => {
                owned.request = Some((id, false));
                let asked_by = For::Election(shard);
                self.send(i, asked_by, id, Call::Get(place), Some(timeout));
            }
            Command::Write {
                id,
                kind,
                record,
                timeout,
            } => {
                owned.request = Some((id, true));
                let call = match kind.base() {
                    None => Call::Create(place, record),
                    Some(base) => Call::Replace(place, base.clone(), record),
                };
                self.send(i, For::Election(shard), id, call, Some(timeout));
            }
            Command::Lead { guard, .. } => {
                owned.guard = Some(guard);
                owned.term += 1;
                let term = owned.term;
                self.report.totals.terms += 1;
                self.confirm(i, shard, term);
            }
            Command::Extend { guard } => {
                owned.guard = Some(guard);
                self.check_owners();
            }
            Command::Stop { .. } => {
                owned.guard = None;
                let delay = self.rng.below(500_000_000);
                self.after(
                    delay,
                    Event::Deliver(i, incarnation, Letter::WorkEnded(shard)),
                );
            }
            Command::Finished => {
                owned.finished = true;
                owned.guard = None;
                let left = self.replicas[i]
                    .elections
                    .iter()
                    .all(|owned| owned.finished);
                if left && self.replicas[i].may_change {
                    // It waits like a new process, and remembers what it saw.
                    self.replicas[i].standing = Standing::Joining;
                    self.replicas[i].elections.clear();
                } else if left {
                    self.end(i);
                }
            }
            Command::Drain { .. }
            | Command::Overrun
            | Command::NewLeader { .. }
            | Command::Released => {}
        }
    }

    /// Reads the agreement for a term that has begun.
    fn confirm(&mut self, i: usize, shard: usize, term: u64) {
        let owned = self.replicas[i].elections.get(shard);
        if owned.is_some_and(|owned| owned.term == term && owned.guard.is_some()) {
            let id = self.number();
            self.send(i, For::Confirm(shard, term), id, Call::ReadAgreement, None);
            // Without an answer it asks again.
            let (incarnation, period) = (self.replicas[i].incarnation, self.period());
            let again = Event::Deliver(i, incarnation, Letter::Confirm(shard, term));
            self.after(period, again);
        }
    }

    fn confirmed(&mut self, i: usize, shard: usize, term: u64, reply: &Reply) {
        let Reply::Agreement(agreed) = reply else {
            return;
        };
        let confirms = self.replicas[i].confirms(agreed.as_ref());
        let owned = self.replicas[i].elections.get_mut(shard);
        if let Some(owned) = owned.filter(|owned| owned.term == term && confirms) {
            owned.confirmed = term;
            self.check_owners();
        }
    }

    /// A request of an election has ended.
    fn written(&mut self, i: usize, shard: usize, id: u64, reply: Reply) {
        let Some(owned) = self.replicas[i].elections.get_mut(shard) else {
            return;
        };
        let Some((_, writes)) = owned.request.take_if(|(under_way, _)| *under_way == id) else {
            return;
        };
        let input = match (writes, reply) {
            (true, Reply::Stored(version)) => Input::Written(id, Outcome::Applied(version)),
            (true, Reply::Refused) => Input::Written(id, Outcome::Refused),
            (true, _) => Input::Written(id, Outcome::Unknown),
            (false, Reply::Got(Some(lease))) => Input::Observed(Source::Read(id), lease),
            (false, Reply::Got(None)) => Input::Absent(Source::Read(id), None),
            (false, _) => Input::ReadFailed(id),
        };
        self.step(i, shard, input);
    }

    /// Sends a request, with a time limit of its own or that of the agreement's.
    fn send(&mut self, i: usize, asked_by: For, id: u64, call: Call, limit: Option<Duration>) {
        let replica = &self.replicas[i];
        let incarnation = replica.incarnation;
        let limit = limit.unwrap_or(Duration::from_secs(10));
        let end = replica.clock.now(self.now).local + limit;
        let end = replica.clock.real_at(end, self.now);
        self.at(
            end,
            Event::Deliver(i, incarnation, Letter::Timeout(asked_by, id)),
        );
        if self.replicas[i].cut_until > self.now {
            return;
        }
        let mut delay = self.one_way();
        let mut travel = Travel {
            replica: i,
            incarnation,
            asked_by,
            id,
            call,
            answered: true,
            error: false,
        };
        if !self.calm && self.rng.chance(self.faults) {
            let faults = [
                Fault::RequestLost,
                Fault::AnswerLost,
                Fault::AnswerLate,
                Fault::RequestLate,
                Fault::ErrorApplied,
                Fault::ErrorNotApplied,
            ];
            let fault = *self.rng.pick(&faults);
            self.report.totals.faults.count(fault);
            self.trace(|_| format!("r{i}   !! {} ({id})", fault.name()));
            match fault {
                Fault::RequestLost => return,
                Fault::AnswerLost => travel.answered = false,
                Fault::RequestLate => delay += self.rng.below(2 * self.lease),
                Fault::ErrorApplied => travel.error = true,
                Fault::AnswerLate => {
                    // Applied now, and the answer is as old as it is late.
                    let reply = self.server.serve(&travel.call);
                    let late = self.rng.below(self.lease);
                    let answer = Letter::Answer(asked_by, id, reply);
                    return self.after(late, Event::Deliver(i, incarnation, answer));
                }
                _ => {
                    let answer = Letter::Answer(asked_by, id, Reply::Error);
                    return self.after(delay, Event::Deliver(i, incarnation, answer));
                }
            }
        }
        self.after(delay, Event::Arrive(Box::new(travel)));
    }

    fn arrive(&mut self, travel: &Travel) {
        let mut reply = self.server.serve(&travel.call);
        self.trace(|_| {
            let Travel {
                replica, id, call, ..
            } = travel;
            format!("   server: r{replica} {id} {call:?}")
        });
        if travel.error {
            reply = Reply::Error;
        }
        if travel.answered && self.replicas[travel.replica].cut_until <= self.now {
            let delay = self.one_way();
            let answer = Letter::Answer(travel.asked_by, travel.id, reply);
            let event = Event::Deliver(travel.replica, travel.incarnation, answer);
            self.after(delay, event);
        }
    }

    fn strike(&mut self) {
        if self.calm {
            return;
        }
        let next = self.rng.below(self.lease);
        self.after(next, Event::Strike);
        self.update();
        let i = self.rng.below(self.replicas.len() as u64) as usize;
        let span = match self.rng.below(2) {
            0 => self.rng.below(self.lease / 4),
            _ => self.rng.below(3 * self.lease),
        };
        let faults = [
            Fault::Crash,
            Fault::Crash,
            Fault::Shutdown,
            Fault::Pause,
            Fault::Partition,
            Fault::HumanDelete,
            Fault::HumanGarbage,
            Fault::StepDown,
        ];
        let fault = *self.rng.pick(&faults);
        self.report.totals.faults.count(fault);
        self.trace(|_| format!("r{i} !! {}", fault.name()));
        let replica = &mut self.replicas[i];
        match fault {
            Fault::Crash if replica.alive => {
                replica.alive = false;
                let incarnation = replica.incarnation;
                self.after(span, Event::Restart(i, incarnation));
            }
            // It gives its shards back, and the next process comes as after a crash.
            Fault::Shutdown if replica.alive && replica.paused_until <= self.now => {
                replica.may_change = false;
                if replica.standing == Standing::Member {
                    self.go_on(i, 0, Next::Leave);
                }
            }
            Fault::Pause if replica.alive && replica.paused_until <= self.now => {
                replica.paused_until = self.now + span;
                self.after(span, Event::Resume(i));
            }
            Fault::Partition => replica.cut_until = self.now + span,
            Fault::HumanDelete if self.rng.percent(50) => self.server.delete_free(),
            Fault::HumanDelete => _ = self.server.delete_agreement(),
            Fault::HumanGarbage => {
                let number = *self.rng.pick(&[None, Some(2), Some(3), Some(1)]);
                self.server.edit_agreement(number);
            }
            Fault::StepDown if replica.alive && replica.paused_until <= self.now => {
                let sit_out = Duration::from_nanos(span / 4);
                for shard in 0..replica.elections.len() {
                    self.step(i, shard, Input::StepDown(sit_out));
                }
            }
            _ => {}
        }
    }

    /// The update goes on: more new processes have the next number of shards.
    fn update(&mut self) {
        if !self.rng.percent(30) {
            return;
        }
        self.progress += self.rng.range(20, 60);
        if self.progress > 120 {
            self.progress = 0;
            self.stage += 1;
        }
    }

    fn restart(&mut self, i: usize) {
        let clock = self.replicas[i].clock.clone();
        self.replicas[i] = self.incarnate(clock);
        self.launch(i);
    }

    /// The faults end, and the update with them: every process has the present number of shards.
    fn calm_down(&mut self) {
        self.calm = true;
        self.progress = 0;
        let shards = NUMBERS[self.stage % NUMBERS.len()];
        for i in 0..self.replicas.len() {
            let replica = &mut self.replicas[i];
            replica.cut_until = 0;
            if !replica.alive || replica.shards != shards || !replica.may_change {
                self.restart(i);
                continue;
            }
            replica.paused_until = 0;
            self.resume(i);
        }
    }

    /// S1 for every key, at an instant at which a replica may have become its owner.
    fn check_owners(&mut self) {
        for key in 0..KEYS {
            let mut guards = self.guards;
            let text = guards.check(self.now, self.owners(key));
            self.guards = guards;
            if let Some(text) = text {
                return self.violate(Invariant::S1, format!("key {key}: {text}"));
            }
        }
    }

    /// The replicas that own a key, and until when.
    fn owners(&self, key: u32) -> impl Iterator<Item = (usize, u64)> {
        let replicas = self.replicas.iter().enumerate();
        replicas.filter_map(move |(i, replica)| {
            let index = (key * replica.shards / KEYS) as usize;
            let until = replica.owns(index, replica.clock.now(self.now))?;
            Some((i, replica.clock.real_at(until, self.now)))
        })
    }

    /// L1: long after the faults every key has an owner.
    fn check_end(&mut self) {
        let lost: Vec<u32> = (0..KEYS)
            .filter(|key| self.owners(*key).next().is_none())
            .collect();
        if !lost.is_empty() {
            self.violate(Invariant::L1, format!("nobody owns the keys {lost:?}"));
        }
    }

    fn schedule_tick(&mut self, i: usize, shard: usize) {
        let replica = &self.replicas[i];
        let Some(owned) = replica.elections.get(shard) else {
            return;
        };
        let Some(deadline) = owned.election.deadline().filter(|_| replica.alive) else {
            self.replicas[i].elections[shard].tick = None;
            return;
        };
        if owned.tick.is_some_and(|(at, _)| at == deadline) {
            return;
        }
        let incarnation = replica.incarnation;
        let at = replica.clock.real_at(deadline, self.now) + self.rng.below(1_000_000);
        let number = self.number();
        self.replicas[i].elections[shard].tick = Some((deadline, number));
        self.at(at, Event::Tick(i, incarnation, shard, number));
    }

    /// Until a replica looks at the agreement again.
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
