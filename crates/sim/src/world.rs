//! The event loop: N candidates, one object, a network, and all faults.
//!
//! All randomness comes from one seed and all state is in [`World`], so a seed determines a run. Real time is in
//! nanoseconds, and only the simulator can read it.

mod check;
mod controller;
mod crash;
mod event;
mod nemesis;
mod network;
mod proofs;
mod ranks;
mod refined;
mod work;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

use tenure_core::pair::Rules;
use tenure_core::{Config, Input, Outcome, ResourceVersion, Source, undertaker};

use crate::caught::caught;
use crate::clock::Clock;
use crate::fault::Fault;
use crate::invariants::l1_liveness::Calm;
use crate::invariants::s1_guard_exclusion::{GuardExclusion, check_prompt_stop};
use crate::invariants::s2_token_order::TokenOrder;
use crate::invariants::s3_effect_exclusion::FencedStore;
use crate::invariants::{Invariant, Violation};
use crate::life;
use crate::machine::{Kind, Machine};
use crate::node::{Letter, Node};
use crate::pair;
use crate::plan::Plan;
use crate::refine::Refinement;
use crate::register::Register;
use crate::rng::Rng;
use crate::shards::{self, Group};
use crate::stack;
use crate::totals::Totals;
use check::patience;
use controller::Controller;
use event::Entry;
pub(crate) use event::Event;
pub(crate) use ranks::{RankedNode, rank};

/// A single tick without effect is normal. A hundred consecutive ones are a busy loop.
const BUSY: u32 = 100;

/// Result of a run.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// Totals of the run.
    pub totals: Totals,
    /// Changes with every event: equal hashes mean equal runs.
    pub hash: u64,
    /// The first violation.
    pub violation: Option<Violation>,
    /// The first step that is not a step of the proved system.
    pub deviation: Option<String>,
    /// The last events, if requested.
    pub trace: Vec<String>,
}

/// One run.
pub struct World {
    pub(crate) plan: Plan,
    pub(crate) rng: Rng,
    pub(crate) now: u64,
    pub(crate) nodes: Vec<Node>,
    pub(crate) register: Register,
    pub(crate) calm: Option<Calm>,
    pub(crate) report: Report,
    kind: Kind,
    queue: BinaryHeap<Reverse<Entry>>,
    sequence: u64,
    incarnations: u64,
    guards: GuardExclusion,
    tokens: TokenOrder,
    store: FencedStore,
    controller: Controller,
    refinement: Refinement,
    /// Number of the current boot of each machine.
    boots: BTreeMap<usize, u64>,
    /// For each incarnation, the last of its terms that an operator ordered to end, as a number in the order of the store.
    ordered: BTreeMap<u64, u64>,
    /// The revision before the last pause of a run with restores.
    before_pause: Option<u64>,
    request_kinds: Vec<Fault>,
    watch_kinds: Vec<Fault>,
    nemesis_kinds: Vec<Fault>,
    traced: bool,
}

impl World {
    /// Runs a seed. A panic during the run is a [violation](Invariant::Assertion) like any other.
    pub fn run(seed: u64, kind: Kind, traced: bool) -> Report {
        match kind {
            Kind::Pair => return pair::run(seed, Rules::default(), traced),
            Kind::PairMutant(mutant) => return pair::run(seed, Rules::mutated(mutant), traced),
            Kind::Life => return life::run(seed, undertaker::Rules::default(), traced),
            Kind::LifeMutant(mutant) => {
                return life::run(seed, undertaker::Rules::mutated(mutant), traced);
            }
            Kind::Shards => return shards::run(seed, Group::Shards(Default::default()), traced),
            Kind::ShardMutant(mutant) => {
                let rules = tenure_core::shards::Rules::mutated(mutant);
                return shards::run(seed, Group::Shards(rules), traced);
            }
            Kind::Slots => return shards::run(seed, Group::Slots(Default::default()), traced),
            Kind::SlotMutant(mutant) => {
                let rules = tenure_core::slots::Rules::mutated(mutant);
                return shards::run(seed, Group::Slots(rules), traced);
            }
            Kind::Stack => return stack::run(seed, None, traced),
            Kind::StackMutant(mutant) => return stack::run(seed, Some(mutant), traced),
            _ => {}
        }
        let mut rng = Rng::new(seed.wrapping_mul(0xD6E8_FEB8_6659_FD93) ^ 0x5EED);
        let mut plan = Plan::new(&mut rng);
        match kind {
            Kind::Mixed(_) => plan.mix(&mut rng),
            Kind::Coordinated(_) => plan.coordinate(&mut rng),
            Kind::RestoreMutant(_) => plan.restore(),
            Kind::EditMutant(_) => plan.edit(),
            Kind::Proofs(_) | Kind::DeathMutant(_) => plan.prove(&mut rng),
            Kind::Ranks(_) => plan.rank(&mut rng),
            _ => {}
        }
        let mut world = Self {
            request_kinds: plan.request_kinds(),
            watch_kinds: plan.watch_kinds(),
            nemesis_kinds: plan.nemesis_kinds(),
            refinement: refined::refinement(&plan),
            plan,
            rng,
            // The time does not start at zero, so that a wall clock can be set back.
            now: 1_000_000_000,
            nodes: Vec::new(),
            register: Register::default(),
            calm: None,
            report: Report::default(),
            kind,
            queue: BinaryHeap::new(),
            sequence: 0,
            incarnations: 0,
            guards: GuardExclusion::default(),
            tokens: TokenOrder::default(),
            store: FencedStore::default(),
            controller: Controller::default(),
            boots: BTreeMap::new(),
            ordered: BTreeMap::new(),
            before_pause: None,
            traced,
        };
        world.register.blind = kind == Kind::BlindServer;
        world.trace(|w| format!("{:?}", w.plan));
        if let Err(text) = caught(|| world.play()) {
            world.violate(Invariant::Assertion, text);
        }
        world.finish()
    }

    fn play(&mut self) {
        self.start();
        while self.report.violation.is_none() {
            let Some(Reverse(Entry(at, _, event))) = self.queue.pop() else {
                break;
            };
            debug_assert!(at >= self.now);
            self.now = at;
            self.happen(event);
            self.refine_event();
            if self.calm.as_ref().is_some_and(|calm| calm.is_over()) {
                break;
            }
        }
    }

    fn start(&mut self) {
        let time_of_day = self.rng.below(1 << 45) as i64;
        // Processes with the same name must be able to act within the same wall-clock second.
        let in_step = self.plan.one_name && self.plan.whole_seconds;
        self.controller.offset = self.skewed(time_of_day);
        for i in 0..self.plan.nodes {
            let offset = if self.plan.coordinated {
                self.skewed(time_of_day)
            } else {
                self.rng.below(1 << 45) as i64
            };
            let clock = Clock::new(
                self.rng.below(1 << 50),
                self.plan.rates_ppm[i],
                if in_step { time_of_day } else { offset },
            );
            let node = self.incarnate(i, clock);
            self.nodes.push(node);
        }
        for i in 0..self.plan.nodes {
            self.launch(i);
        }
        let first = self.now + self.rng.below(2 * self.plan.nemesis);
        self.at(first, Event::Nemesis);
        self.at(self.now + self.plan.horizon, Event::Calm);
    }

    /// Returns the time of day of one of several clocks, with a random offset within the skew of the plan.
    fn skewed(&mut self, time_of_day: i64) -> i64 {
        let skew = self.plan.skew;
        time_of_day + self.rng.below(2 * skew + 1) as i64 - skew as i64
    }

    /// Creates a new process for a node.
    fn incarnate(&mut self, i: usize, clock: Clock) -> Node {
        self.incarnations += 1;
        let identity = if self.plan.one_name {
            "same".to_owned()
        } else {
            format!("n{i}-{}", self.incarnations)
        };
        let config = Config {
            identity,
            timing: self.plan.timings[i].clone(),
            release_on_cancel: self.plan.release,
            for_life: false,
            rejoin: true,
            coordinated: self.plan.coordinated,
            preference: self.preference(i),
            whole_seconds: self.plan.whole_seconds,
            seed: self.rng.bits(),
        };
        let identity = config.identity.clone();
        let foreign = self.plan.client_go[i];
        let machine = Machine::new(self.kind, config, foreign);
        Node {
            foreign,
            place: self.place(i),
            ..Node::new(machine, (clock, self.now), self.incarnations, identity)
        }
    }

    fn launch(&mut self, i: usize) {
        self.step(i, Letter::Other(Input::Start));
        self.learn_own_boot(i);
        self.begin_lists(i);
        let incarnation = self.nodes[i].incarnation;
        if self.plan.coordinated {
            let delay = self.one_way();
            self.after(
                delay,
                Event::Candidate {
                    node: i,
                    incarnation,
                },
            );
        }
        if self.plan.watches[i] {
            let delay = self.rng.below(self.plan.latency * 4);
            self.after(
                delay,
                Event::WatchUp {
                    node: i,
                    incarnation,
                },
            );
        }
    }

    /// Replaces a dead process by a new one.
    pub(crate) fn restart(&mut self, i: usize) {
        let mut clock = self.nodes[i].clock.clone();
        clock.go_on(self.now);
        self.nodes[i] = self.incarnate(i, clock);
        self.launch(i);
    }

    pub(crate) fn crash(&mut self, i: usize) {
        self.report_end(i);
        self.release_after_crash(i);
        self.refined(i, |check, actor| check.crash(actor.incarnation));
        let node = &mut self.nodes[i];
        node.alive = false;
        node.guard = None;
        node.work = None;
        node.watch = 0;
        node.inbox.clear();
    }

    fn happen(&mut self, event: Event) {
        self.mix(self.now);
        match event {
            Event::Tick { node, number } => {
                if self.nodes[node].alive && self.nodes[node].tick.is_some_and(|(_, n)| n == number)
                {
                    self.nodes[node].tick = None;
                    self.deliver(node, Letter::Other(Input::Tick));
                }
            }
            Event::Arrive(request) => self.arrive(&request),
            Event::CrashRelease(release) => self.crash_release(*release),
            Event::Letter {
                node,
                incarnation,
                letter,
            } => {
                if self.nodes[node].incarnation == incarnation {
                    self.deliver(node, *letter);
                }
            }
            Event::Answer {
                node,
                incarnation,
                id,
                letter,
            } => {
                self.answered(node, incarnation, id, *letter);
            }
            Event::Timeout {
                node,
                incarnation,
                id,
                write,
            } => {
                self.timed_out(node, incarnation, id, write);
            }
            Event::Watch {
                node,
                watch,
                letter,
            } => {
                if self.nodes[node].watch == watch && watch != 0 {
                    self.deliver(node, *letter);
                }
            }
            Event::WatchDown { node, watch } => {
                if self.nodes[node].watch == watch && watch != 0 {
                    self.nodes[node].watch = 0;
                    self.deliver(node, Letter::Other(Input::Watching(false)));
                }
            }
            Event::WatchUp { node, incarnation } => self.watch_up(node, incarnation),
            Event::WatchReopened { node, watch } => self.reopen_watch(node, watch),
            Event::WorkEnds {
                node,
                incarnation,
                number,
            } => {
                let this = &mut self.nodes[node];
                if this.incarnation == incarnation
                    && this.work.take_if(|w| w.number == number).is_some()
                {
                    self.refined(node, Refinement::end_work);
                    self.deliver(node, Letter::Other(Input::WorkEnded));
                }
            }
            Event::Effect { term, token } => {
                if let Some(text) = self.store.effect(term, token)
                    && self.plan.checks_tokens()
                {
                    self.violate(Invariant::S3, text);
                }
            }
            Event::Kill { node, incarnation } => self.killed(node, incarnation),
            Event::Resume { node, until } => self.resume(node, until),
            Event::Restart { node, incarnation } => {
                if !self.nodes[node].alive && self.nodes[node].incarnation == incarnation {
                    self.restart(node);
                }
            }
            Event::Members { node, incarnation } => self.read_members(node, incarnation),
            Event::Nemesis => self.strike(),
            Event::Controller { number } => self.reconcile(number),
            Event::Candidate { node, incarnation } => self.announce_candidate(node, incarnation),
            Event::Ping { node, incarnation } => self.renew_candidate(node, incarnation),
            Event::Calm => self.calm_down(),
        }
    }

    /// Delivers a message to a node, or keeps it until the node can run.
    pub(crate) fn deliver(&mut self, i: usize, letter: Letter) {
        let node = &mut self.nodes[i];
        if !node.alive {
            return;
        }
        if node.paused_until > self.now {
            node.inbox.push(letter);
            return;
        }
        self.step(i, letter);
    }

    fn resume(&mut self, i: usize, until: u64) {
        let now = self.now;
        let node = &mut self.nodes[i];
        if !node.alive || node.paused_until != until {
            return;
        }
        node.paused_until = 0;
        node.clock.go_on(now);
        node.tick = None;
        let letters = std::mem::take(&mut node.inbox);
        self.check_guards();
        if self.rng.percent(50) {
            self.step(i, Letter::Other(Input::Tick));
        }
        for letter in letters {
            // A crash in between ends the process.
            if self.nodes[i].alive {
                self.step(i, letter);
            }
        }
        if self.nodes[i].alive {
            self.step(i, Letter::Other(Input::Tick));
        }
    }

    /// Performs one step of an election, and executes its commands.
    pub(crate) fn step(&mut self, i: usize, letter: Letter) {
        if self.report.violation.is_some() {
            return;
        }
        let now = self.now;
        let local = self.nodes[i].clock.now(now);
        self.trace(|_| format!("n{i} {letter:?}"));
        self.refined(i, |check, actor| check.pass_time(actor, now));
        let mut present = None;
        let mut ordered = false;
        let mut ticked = false;
        let ended = letter.answers();
        let input = match letter {
            Letter::Shown(source, object) => {
                let patience = patience(&object, &self.plan.timings[i]);
                let node = &mut self.nodes[i];
                if node.heeds(source) {
                    let (me, local) = (node.incarnation, local.local.as_nanos());
                    node.sights.saw(me, &object, patience, local);
                    self.refined(i, |check, actor| check.observe(actor, &object));
                }
                present = self.foreign_present(i, source, Some(&object));
                ordered = self.is_ordered(i, source, &object);
                Input::Observed(source, object.seen.clone())
            }
            Letter::Gone(source, revision) => {
                if self.nodes[i].heeds(source) {
                    self.nodes[i].sights.saw_nothing(revision);
                }
                let news = revision.is_none_or(|r| r == self.register.revision());
                present = self.foreign_present(i, source, None).filter(|_| news);
                let revision = revision.map(|r| ResourceVersion::new(r.to_string()));
                Input::Absent(source, revision)
            }
            Letter::Evidence(evidence) => {
                self.nodes[i].note_evidence(evidence);
                Input::Tick
            }
            Letter::Other(input) => {
                if let Input::Written(_, Outcome::Applied(version)) = &input {
                    let revision = version.revision.as_str().parse().unwrap_or_default();
                    self.nodes[i].sights.wrote(revision);
                }
                if let Input::Dead(version) = &input {
                    self.refined(i, |check, actor| check.prove(actor, version));
                }
                if let Input::Candidates(list) = &input {
                    self.note_list(i, list, local.local);
                }
                ticked = matches!(input, Input::Tick);
                input
            }
        };
        self.report.totals.steps += 1;
        let commands = self.nodes[i].machine.step(local, input);
        self.mix(i as u64 + 16 * commands.len() as u64);
        self.nodes[i].idle_ticks = if ticked && commands.is_empty() {
            self.nodes[i].idle_ticks + 1
        } else {
            0
        };
        if self.nodes[i].idle_ticks > BUSY {
            self.violate(Invariant::L1, format!("node {i} runs in a busy loop"));
        }
        self.nodes[i].close_request(ended, local.local);
        for command in commands {
            self.trace(|_| format!("n{i}   -> {command:?}"));
            self.refine_command(i, &command);
            self.obey(i, command);
        }
        if let Some(shown) = present
            && !self.nodes[i].foreign
            && let Some(text) = check_prompt_stop(shown, self.nodes[i].leads(now))
        {
            self.violate(Invariant::S1, format!("node {i} {text}"));
        }
        if ordered && !self.nodes[i].foreign && self.nodes[i].leads(now) {
            let text = format!("node {i} still leads although it was ordered to step down");
            self.violate(Invariant::L1, text);
        }
        self.schedule_tick(i);
        self.prove(i);
    }

    fn schedule_tick(&mut self, i: usize) {
        let node = &self.nodes[i];
        if !node.alive {
            return;
        }
        let Some(deadline) = node.machine.deadline() else {
            self.nodes[i].tick = None;
            return;
        };
        if node.tick.is_some_and(|(at, _)| at == deadline) {
            return;
        }
        let mut at = node.clock.real_at(deadline, self.now);
        at += self.rng.below(1_000_000);
        if self.plan.timer_faults > 0
            && self.calm.is_none()
            && self.plan.faults.has(Fault::TimerLate)
            && self.rng.chance(self.plan.timer_faults)
        {
            self.report.totals.faults.count(Fault::TimerLate);
            at += self.rng.below(self.plan.longest_lease());
        }
        self.sequence += 1;
        let number = self.sequence;
        self.nodes[i].tick = Some((deadline, number));
        self.at(at, Event::Tick { node: i, number });
    }

    pub(crate) fn at(&mut self, at: u64, event: Event) {
        self.sequence += 1;
        self.queue
            .push(Reverse(Entry(at.max(self.now), self.sequence, event)));
    }

    pub(crate) fn after(&mut self, delay: u64, event: Event) {
        self.at(self.now + delay, event);
    }

    pub(crate) fn violate(&mut self, invariant: Invariant, text: String) {
        self.trace(|_| format!("VIOLATION {invariant}: {text}"));
        let at = self.now;
        self.report.violation.get_or_insert(Violation {
            invariant,
            at,
            text,
        });
    }

    pub(crate) fn trace(&mut self, text: impl FnOnce(&Self) -> String) {
        if self.traced {
            let line = format!("{:>14.6} {}", self.now as f64 / 1e9, text(self));
            self.report.trace.push(line);
        }
    }

    fn mix(&mut self, value: u64) {
        self.report.hash = (self.report.hash ^ value).wrapping_mul(0x0000_0100_0000_01B3)
            ^ (self.report.hash >> 29);
    }

    fn finish(mut self) -> Report {
        self.report.totals.simulated = self.now.into();
        self.report.totals.refined = self.refinement.taken();
        self.report.totals.longest_overlap = self.guards.longest_overlap;
        self.report.totals.refused = self.store.refused;
        self.report.totals.accepted = self.store.accepted;
        self.report
    }
}

/// Returns a message with the current state.
pub(crate) fn present(register: &Register, source: Source) -> Letter {
    match register.current() {
        Some(object) => Letter::Shown(source, object.clone()),
        None => {
            let revision = (source == Source::Watch).then_some(register.revision());
            Letter::Gone(source, revision)
        }
    }
}
