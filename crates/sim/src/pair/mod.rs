//! A lock in two objects, and the migration for which it is used.
//!
//! Candidates of three kinds run the real core. Before the migration they lock the primary object alone, during it both
//! objects through [`tenure_core::pair`], and after it the secondary alone. Old and new candidates never run at the
//! same time, but candidates on both objects run alongside either. Every request of a write can be lost, late, answered
//! with an error, or cut off by a crash. The two objects are watched separately, so the states that a candidate knows
//! are never from the same instant. S1 and S2 must hold among all kinds, and L1 after the faults have ended.

mod candidate;
mod server;

use std::collections::BTreeMap;
use std::time::Duration;

use tenure_core::pair::{Rules, Side};
use tenure_core::{Command, Config, Election, Guard, Input, LocalTime, Observation, Timing};

use crate::caught::caught;
use crate::clock::Clock;
use crate::fault::Fault;
use crate::invariants::s1_guard_exclusion::GuardExclusion;
use crate::invariants::s2_token_order::TokenOrder;
use crate::invariants::{Invariant, Violation};
use crate::plan::nanos;
use crate::rng::Rng;
use crate::world::Report;
use candidate::{Kind, Lock, Next};
use server::{Call, Reply, Server};

/// The stages of a migration: the kinds that run in each.
const STAGES: [&[Kind]; 5] = [
    &[Kind::Old],
    &[Kind::Old, Kind::Both],
    &[Kind::Both],
    &[Kind::Both, Kind::New],
    &[Kind::New],
];

const SIDES: [Side; 2] = [Side::Primary, Side::Secondary];

/// Duration of the part after the faults, in leases.
const CALM: u64 = 12;

#[derive(Debug)]
enum Event {
    Tick(usize, u64),
    /// A request reaches the server. The fate of its response is already decided.
    Arrive(Box<Travel>),
    PairResponse(usize, u64, u64, Box<Reply>),
    Timeout(usize, u64, u64),
    Watch(usize, u64, Side, Box<Option<Observation>>),
    WorkEnded(usize, u64),
    Resume(usize),
    Restart(usize, u64),
    Strike,
    Calm,
    End,
}

#[derive(Debug)]
struct Travel {
    node: usize,
    incarnation: u64,
    id: u64,
    call: Call,
    answered: bool,
    error: bool,
}

#[derive(Debug)]
struct Node {
    election: Election,
    lock: Lock,
    clock: Clock,
    incarnation: u64,
    alive: bool,
    paused_until: u64,
    cut_until: u64,
    inbox: Vec<Letter>,
    tick: Option<(LocalTime, u64)>,
    guard: Option<Guard>,
    watches: bool,
    /// The watch of each object delivers changes in order: the next one not before this instant.
    tails: [u64; 2],
}

/// A message for a node, kept while the node cannot run.
#[derive(Debug)]
enum Letter {
    Input(Input),
    PairResponse(u64, Reply),
    Timeout(u64),
    Watch(Side, Option<Observation>),
}

struct World {
    rng: Rng,
    rules: Rules,
    now: u64,
    sequence: u64,
    queue: BTreeMap<(u64, u64), Event>,
    server: Server,
    nodes: Vec<Node>,
    timings: Vec<Timing>,
    incarnations: u64,
    stage: usize,
    /// Probability that a fault affects a request, in parts per million.
    faults: u64,
    latency: u64,
    lease: u64,
    calm: bool,
    guards: GuardExclusion,
    tokens: TokenOrder,
    report: Report,
    traced: bool,
}

/// Runs a seed.
pub fn run(seed: u64, rules: Rules, traced: bool) -> Report {
    let mut rng = Rng::new(seed.wrapping_mul(0xD6E8_FEB8_6659_FD93) ^ 0x9A12);
    let count = rng.range(2, 5) as usize;
    let timings = timings(&mut rng, count);
    let lease = timings.iter().map(|t| nanos(t.lease())).max();
    // Stages with two kinds are the most error-prone.
    let stage = *rng.pick(&[0, 1, 1, 2, 3, 3, 4]);
    let faults = *rng.pick(&[20_000, 100_000, 250_000]);
    let mut world = World {
        rules,
        now: 1_000_000_000,
        sequence: 0,
        queue: BTreeMap::new(),
        server: Server::default(),
        nodes: Vec::new(),
        incarnations: 0,
        stage,
        faults,
        latency: rng.range(1_000_000, 30_000_000),
        lease: lease.unwrap_or_default(),
        calm: false,
        guards: GuardExclusion::default(),
        tokens: TokenOrder::default(),
        report: Report::default(),
        traced,
        timings,
        rng,
    };
    if let Err(text) = caught(|| world.play()) {
        world.violate(Invariant::Assertion, text);
    }
    world.report.totals.simulated = world.now.into();
    world.report.totals.longest_overlap = world.guards.longest_overlap;
    world.report
}

fn timings(rng: &mut Rng, count: usize) -> Vec<Timing> {
    let (lease, renew, retry) = *rng.pick(&[(15, 10, 2), (15, 10, 2), (5, 3, 1), (30, 20, 5)]);
    let mixed = rng.percent(25);
    let timing = |factor: u64| {
        Timing::builder()
            .lease_duration(Duration::from_secs(lease * factor))
            .renew_deadline(Duration::from_secs(renew * factor))
            .retry_period(Duration::from_secs(retry * factor))
            .client_go_compat(true)
            .build()
            .expect("the table holds valid timings")
    };
    (0..count)
        .map(|_| timing(if mixed { rng.range(1, 4) } else { 1 }))
        .collect()
}

impl World {
    fn play(&mut self) {
        let tolerated = self.timings.iter().map(Timing::tolerated_rate_error);
        let edge = (tolerated.fold(f64::MAX, f64::min) * 990_000.0) as u64;
        let limit = if self.rng.percent(50) { 500 } else { edge };
        for i in 0..self.timings.len() {
            let rate = self.rng.below(2 * limit + 1) as i64 - limit as i64;
            let clock = Clock::new(
                self.rng.below(1 << 50),
                rate,
                self.rng.below(1 << 45) as i64,
            );
            let node = self.incarnate(i, clock);
            self.nodes.push(node);
        }
        for i in 0..self.nodes.len() {
            self.launch(i);
        }
        let horizon = self.now + self.lease * self.rng.range(20, 80);
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

    /// Creates a new process for a node, of a kind that this stage allows.
    fn incarnate(&mut self, i: usize, clock: Clock) -> Node {
        self.incarnations += 1;
        let kind = *self.rng.pick(STAGES[self.stage]);
        let config = Config {
            identity: format!("n{i}-{}-{kind:?}", self.incarnations),
            timing: self.timings[i].clone(),
            release_on_cancel: self.rng.percent(75),
            for_life: false,
            rejoin: true,
            coordinated: false,
            preference: None,
            whole_seconds: kind != Kind::New,
            seed: self.rng.bits(),
        };
        Node {
            election: Election::new(config),
            lock: Lock::new(kind, self.rules),
            clock,
            incarnation: self.incarnations,
            alive: true,
            paused_until: 0,
            cut_until: 0,
            inbox: Vec::new(),
            tick: None,
            guard: None,
            watches: self.rng.percent(80),
            tails: [0; 2],
        }
    }

    fn launch(&mut self, i: usize) {
        self.trace(|w| format!("n{i} starts: {:?}", w.nodes[i].lock.kind));
        self.step(i, Letter::Input(Input::Start));
        if self.nodes[i].watches {
            self.list(i);
        }
    }

    /// Delivers the current state, and then reports that the watch works.
    fn list(&mut self, i: usize) {
        for side in SIDES {
            if self.nodes[i].lock.kind.watches(side) {
                let object = self.server.get(side).cloned();
                self.step(i, Letter::Watch(side, object));
            }
        }
        self.step(i, Letter::Input(Input::Watching(true)));
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Tick(i, number) => {
                if self.nodes[i].tick.is_some_and(|(_, n)| n == number) {
                    self.nodes[i].tick = None;
                    self.deliver(i, Letter::Input(Input::Tick));
                }
            }
            Event::Arrive(travel) => self.arrive(&travel),
            Event::PairResponse(i, incarnation, id, reply) => {
                if self.nodes[i].incarnation == incarnation {
                    self.deliver(i, Letter::PairResponse(id, *reply));
                }
            }
            Event::Timeout(i, incarnation, id) => {
                if self.nodes[i].incarnation == incarnation {
                    self.deliver(i, Letter::Timeout(id));
                }
            }
            Event::Watch(i, incarnation, side, object) => {
                if self.nodes[i].incarnation == incarnation {
                    self.deliver(i, Letter::Watch(side, *object));
                }
            }
            Event::WorkEnded(i, incarnation) => {
                if self.nodes[i].incarnation == incarnation {
                    self.deliver(i, Letter::Input(Input::WorkEnded));
                }
            }
            Event::Resume(i) => self.resume(i),
            Event::Restart(i, incarnation) => {
                if self.nodes[i].incarnation == incarnation {
                    self.restart(i);
                }
            }
            Event::Strike => self.strike(),
            Event::Calm => self.calm_down(),
            Event::End => {}
        }
    }

    /// Delivers a message to a node, or keeps it until the node can run.
    fn deliver(&mut self, i: usize, letter: Letter) {
        let node = &mut self.nodes[i];
        if node.alive && node.paused_until > self.now {
            node.inbox.push(letter);
        } else if node.alive {
            self.step(i, letter);
        }
    }

    fn resume(&mut self, i: usize) {
        if self.nodes[i].paused_until > self.now {
            return;
        }
        self.check_guards();
        let letters = std::mem::take(&mut self.nodes[i].inbox);
        for letter in letters {
            self.step(i, letter);
        }
        self.step(i, Letter::Input(Input::Tick));
    }

    fn step(&mut self, i: usize, letter: Letter) {
        self.trace(|_| format!("n{i} {letter:?}"));
        let node = &mut self.nodes[i];
        let next = match letter {
            Letter::Input(input) => Some(Next::Tell(input, None)),
            Letter::PairResponse(id, reply) => node.lock.answered(id, reply),
            Letter::Timeout(id) => node.lock.timed_out(id).map(|input| Next::Tell(input, None)),
            Letter::Watch(side, object) => Some(node.lock.watched(side, object)),
        };
        match next {
            Some(Next::Call(call)) => self.call(i, call),
            Some(Next::Tell(input, shown)) => {
                let now = node.clock.now(self.now);
                let commands = node.election.step(now, input);
                node.lock.keep(node.election.version(), shown);
                self.report.totals.steps += 1;
                for command in commands {
                    self.trace(|_| format!("n{i}   -> {command:?}"));
                    self.obey(i, command);
                }
            }
            None => {}
        }
        self.schedule_tick(i);
    }

    fn obey(&mut self, i: usize, command: Command) {
        let incarnation = self.nodes[i].incarnation;
        match command {
            Command::Read { id, timeout } => {
                let call = self.nodes[i].lock.read(id);
                self.expire(i, id, timeout);
                self.call(i, call);
            }
            Command::Write {
                id,
                kind,
                record,
                timeout,
            } => match self.nodes[i].lock.write(id, &kind, record) {
                Next::Call(call) => {
                    self.expire(i, id, timeout);
                    self.call(i, call);
                }
                Next::Tell(input, _) => self.step(i, Letter::Input(input)),
            },
            Command::Lead { token, guard, .. } => {
                self.nodes[i].guard = Some(guard);
                self.report.totals.terms += 1;
                let token = token.as_str().parse().unwrap_or_default();
                if let Some(text) = self.tokens.begin(self.report.totals.terms, token) {
                    self.violate(Invariant::S2, text);
                }
                self.check_guards();
            }
            Command::Extend { guard } => {
                self.nodes[i].guard = Some(guard);
                self.check_guards();
            }
            Command::Stop { .. } => {
                self.nodes[i].guard = None;
                let delay = self.rng.below(500_000_000);
                self.after(delay, Event::WorkEnded(i, incarnation));
            }
            Command::Drain { .. }
            | Command::Overrun
            | Command::NewLeader { .. }
            | Command::Released
            | Command::Finished => {}
        }
    }

    fn expire(&mut self, i: usize, id: u64, timeout: Duration) {
        let node = &self.nodes[i];
        let deadline = node.clock.now(self.now).local + timeout;
        let (at, incarnation) = (node.clock.real_at(deadline, self.now), node.incarnation);
        self.at(at, Event::Timeout(i, incarnation, id));
    }

    /// Sends one request of the operation in progress.
    fn call(&mut self, i: usize, call: Call) {
        let Some(id) = self.nodes[i].lock.under_way() else {
            return;
        };
        let mut travel = Travel {
            node: i,
            incarnation: self.nodes[i].incarnation,
            id,
            call,
            answered: true,
            error: false,
        };
        let mut delay = self.one_way();
        if self.nodes[i].cut_until > self.now {
            return;
        }
        if !self.calm && self.rng.chance(self.faults) {
            let faults = [
                Fault::RequestLost,
                Fault::AnswerLost,
                Fault::RequestLate,
                Fault::ErrorApplied,
                Fault::ErrorNotApplied,
            ];
            let fault = *self.rng.pick(&faults);
            self.report.totals.faults.count(fault);
            self.trace(|_| format!("n{i}   !! {} ({id})", fault.name()));
            match fault {
                Fault::RequestLost => return,
                Fault::AnswerLost => travel.answered = false,
                Fault::RequestLate => delay += self.rng.below(2 * self.lease),
                Fault::ErrorApplied => travel.error = true,
                _ => {
                    let answer =
                        Event::PairResponse(i, travel.incarnation, id, Box::new(Reply::Error));
                    return self.after(delay, answer);
                }
            }
        }
        self.after(delay, Event::Arrive(Box::new(travel)));
    }

    fn arrive(&mut self, travel: &Travel) {
        let Travel {
            node,
            incarnation,
            id,
            ..
        } = *travel;
        let mut reply = self.server.serve(&travel.call);
        if let Reply::Stored(side, object) = &reply {
            let (side, object) = (*side, object.clone());
            self.trace(|_| format!("   server: n{node} {id} made {side:?} {object:?}"));
            self.announce(side, &object);
        }
        if travel.error {
            reply = Reply::Error;
        }
        if travel.answered && self.nodes[node].cut_until <= self.now {
            let delay = self.one_way();
            self.after(
                delay,
                Event::PairResponse(node, incarnation, id, Box::new(reply)),
            );
        }
    }

    fn announce(&mut self, side: Side, object: &Observation) {
        for i in 0..self.nodes.len() {
            let mut delay = self.one_way();
            if !self.calm && self.rng.chance(self.faults / 4) {
                self.report.totals.faults.count(Fault::WatchLate);
                delay += self.rng.below(self.lease);
            }
            let node = &mut self.nodes[i];
            if !node.watches || !node.lock.kind.watches(side) || node.cut_until > self.now {
                continue;
            }
            let at = (self.now + delay).max(node.tails[side as usize]);
            node.tails[side as usize] = at;
            let (incarnation, object) = (node.incarnation, Box::new(Some(object.clone())));
            self.at(at, Event::Watch(i, incarnation, side, object));
        }
    }

    fn strike(&mut self) {
        if self.calm {
            return;
        }
        let next = self.rng.below(self.lease);
        self.after(next, Event::Strike);
        self.migrate();
        let leader = self.nodes.iter().position(|node| self.leads(node));
        let i = match leader {
            Some(leader) if self.rng.percent(60) => leader,
            _ => self.rng.below(self.nodes.len() as u64) as usize,
        };
        let span = match self.rng.below(2) {
            0 => self.rng.below(self.lease / 4),
            _ => self.rng.below(3 * self.lease),
        };
        let faults = [
            Fault::Crash,
            Fault::Pause,
            Fault::Partition,
            Fault::StepDown,
        ];
        let fault = *self.rng.pick(&faults);
        self.report.totals.faults.count(fault);
        self.trace(|_| format!("n{i} !! {}", fault.name()));
        let node = &mut self.nodes[i];
        match fault {
            Fault::Crash if node.alive => {
                node.alive = false;
                node.guard = None;
                let incarnation = node.incarnation;
                self.after(span, Event::Restart(i, incarnation));
            }
            Fault::Pause if node.alive && node.paused_until <= self.now => {
                node.paused_until = self.now + span;
                self.after(span, Event::Resume(i));
            }
            Fault::Partition => node.cut_until = self.now + span,
            Fault::StepDown => {
                let sit_out = Duration::from_nanos(span / 4);
                self.deliver(i, Letter::Input(Input::StepDown(sit_out)));
            }
            _ => {}
        }
    }

    /// Advances the migration once no process is left that the next stage forbids.
    fn migrate(&mut self) {
        let next = (self.stage + 1).min(STAGES.len() - 1);
        let allowed = |node: &Node| !node.alive || STAGES[next].contains(&node.lock.kind);
        if self.rng.percent(30) && self.nodes.iter().all(allowed) {
            self.stage = next;
        }
    }

    fn restart(&mut self, i: usize) {
        let clock = self.nodes[i].clock.clone();
        self.nodes[i] = self.incarnate(i, clock);
        self.launch(i);
    }

    /// Ends the faults: everything heals.
    fn calm_down(&mut self) {
        self.calm = true;
        for i in 0..self.nodes.len() {
            let node = &mut self.nodes[i];
            node.cut_until = 0;
            if !node.alive {
                self.restart(i);
                continue;
            }
            node.paused_until = 0;
            self.resume(i);
            if self.nodes[i].watches {
                // Messages that a partition dropped are covered by the next list.
                self.list(i);
            }
        }
    }

    fn leads(&self, node: &Node) -> bool {
        let now = node.clock.now(self.now);
        node.alive && node.guard.is_some_and(|guard| guard.holds(now))
    }

    /// Checks S1 at an instant at which a guard may have become valid.
    fn check_guards(&mut self) {
        let mut guards = self.guards;
        let leading = self.nodes.iter().enumerate().filter_map(|(i, node)| {
            let guard = node.guard.filter(|_| self.leads(node))?;
            Some((i, node.clock.real_at(guard.until(), self.now)))
        });
        let text = guards.check(self.now, leading);
        self.guards = guards;
        if let Some(text) = text {
            self.violate(Invariant::S1, text);
        }
    }

    /// Checks L1: long after the faults, a candidate leads.
    fn check_end(&mut self) {
        if !self.nodes.iter().any(|node| self.leads(node)) {
            self.violate(Invariant::L1, "nobody leads".to_owned());
        }
    }

    fn schedule_tick(&mut self, i: usize) {
        let node = &self.nodes[i];
        let Some(deadline) = node.election.deadline().filter(|_| node.alive) else {
            self.nodes[i].tick = None;
            return;
        };
        if node.tick.is_some_and(|(at, _)| at == deadline) {
            return;
        }
        let at = node.clock.real_at(deadline, self.now) + self.rng.below(1_000_000);
        let number = self.sequence;
        self.nodes[i].tick = Some((deadline, number));
        self.at(at, Event::Tick(i, number));
    }

    fn one_way(&mut self) -> u64 {
        self.latency / 2 + self.rng.below(self.latency)
    }

    fn after(&mut self, delay: u64, event: Event) {
        self.at(self.now + delay, event);
    }

    fn at(&mut self, at: u64, event: Event) {
        self.sequence += 1;
        self.queue.insert((at, self.sequence), event);
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
