//! The event loop: N candidates, one object, a network, and everything that goes wrong.
//!
//! All randomness comes from one seed and all state is in [`World`], so a seed is a run. Real time is
//! nanoseconds that only the simulator sees.

mod nemesis;
mod network;

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::rc::Rc;

use tenure_core::{
    Command, Config, Guard, Input, Outcome, ResourceVersion, Source, StopReason, Timing, WriteKind,
};

use crate::clock::Clock;
use crate::fault::{Fault, FaultCounts};
use crate::invariants::l1_liveness::Calm;
use crate::invariants::s1_guard_exclusion::{GuardExclusion, check_prompt_stop};
use crate::invariants::s2_token_order::TokenOrder;
use crate::invariants::s3_effect_exclusion::FencedStore;
use crate::invariants::s4_ordered_departure::{Departure, check_release, check_work};
use crate::invariants::{Invariant, Violation};
use crate::machine::{Kind, Machine};
use crate::node::{Letter, Node, Work};
use crate::plan::{Clocks, Outsiders, Plan, nanos};
use crate::register::{Object, Register};
use crate::rng::Rng;
use network::Request;

/// A tick that leads to nothing is normal, a hundred in a row are a busy loop.
const BUSY: u32 = 100;

/// What happens next.
#[derive(Debug)]
pub(crate) enum Event {
    Tick {
        node: usize,
        number: u64,
    },
    Arrive(Box<Request>),
    Letter {
        node: usize,
        incarnation: u64,
        letter: Box<Letter>,
    },
    Answer {
        node: usize,
        incarnation: u64,
        id: u64,
        letter: Box<Letter>,
    },
    Timeout {
        node: usize,
        incarnation: u64,
        id: u64,
        write: bool,
    },
    Watch {
        node: usize,
        watch: u64,
        letter: Box<Letter>,
    },
    WatchDown {
        node: usize,
        watch: u64,
    },
    WatchUp {
        node: usize,
        incarnation: u64,
    },
    WorkEnds {
        node: usize,
        incarnation: u64,
        number: u64,
    },
    Effect {
        term: u64,
        token: u64,
    },
    Resume {
        node: usize,
        until: u64,
    },
    Restart {
        node: usize,
        incarnation: u64,
    },
    Nemesis,
    Calm,
}

struct Entry(u64, u64, Event);

impl PartialEq for Entry {
    fn eq(&self, other: &Self) -> bool {
        (self.0, self.1) == (other.0, other.1)
    }
}
impl Eq for Entry {}
impl PartialOrd for Entry {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Entry {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.0, self.1).cmp(&(other.0, other.1))
    }
}

/// What a run came to.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// Simulated time, in nanoseconds.
    pub simulated: u64,
    /// Faults by kind.
    pub faults: FaultCounts,
    /// Terms that began.
    pub terms: u64,
    /// Steps of elections.
    pub steps: u64,
    /// The longest time that two guards were true together although S1 was promised.
    pub longest_overlap: u64,
    /// The same in runs whose clocks are beyond what is tolerated.
    pub wild_overlap: u64,
    /// Effects of former leaders that the fenced store refused.
    pub refused: u64,
    /// Effects that it accepted.
    pub accepted: u64,
    /// Fail-over times after a crash and after a step-down, for 15 s / 10 s / 2 s with watches.
    pub failovers: Vec<(bool, u64)>,
    /// Changes with every event: equal hashes mean equal runs.
    pub hash: u64,
    /// The first broken promise.
    pub violation: Option<Violation>,
    /// The last events, if they were asked for.
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
    request_kinds: Vec<Fault>,
    watch_kinds: Vec<Fault>,
    nemesis_kinds: Vec<Fault>,
    traced: bool,
}

impl World {
    /// Runs a seed.
    pub fn run(seed: u64, kind: Kind, traced: bool) -> Report {
        let mut rng = Rng::new(seed.wrapping_mul(0xD6E8_FEB8_6659_FD93) ^ 0x5EED);
        let plan = Plan::new(&mut rng);
        let mut world = Self {
            request_kinds: plan.request_kinds(),
            watch_kinds: plan.watch_kinds(),
            nemesis_kinds: plan.nemesis_kinds(),
            plan,
            rng,
            // Not zero, so that a wall clock can be set back.
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
            traced,
        };
        world.register.blind = kind == Kind::BlindServer;
        world.trace(|w| format!("{:?}", w.plan));
        world.start();
        while world.report.violation.is_none() {
            let Some(Reverse(Entry(at, _, event))) = world.queue.pop() else {
                break;
            };
            debug_assert!(at >= world.now);
            world.now = at;
            world.happen(event);
            if world.calm.as_ref().is_some_and(|calm| calm.is_over()) {
                break;
            }
        }
        world.finish()
    }

    fn start(&mut self) {
        let time_of_day = self.rng.below(1 << 45) as i64;
        // Namesakes must be able to act in the same second of the day.
        let in_step = self.plan.one_name && self.plan.whole_seconds;
        for i in 0..self.plan.nodes {
            let offset = self.rng.below(1 << 45) as i64;
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

    /// A new process in a node's place.
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
            rejoin: true,
            coordinated: false,
            whole_seconds: self.plan.whole_seconds,
            seed: self.rng.bits(),
        };
        Node::new(Machine::new(self.kind, config), clock, self.incarnations)
    }

    fn launch(&mut self, i: usize) {
        self.step(i, Letter::Other(Input::Start));
        if self.plan.watches[i] {
            let incarnation = self.nodes[i].incarnation;
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
            Event::WorkEnds {
                node,
                incarnation,
                number,
            } => {
                let this = &mut self.nodes[node];
                if this.incarnation == incarnation
                    && this.work.take_if(|w| w.number == number).is_some()
                {
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
            Event::Resume { node, until } => self.resume(node, until),
            Event::Restart { node, incarnation } => {
                if !self.nodes[node].alive && self.nodes[node].incarnation == incarnation {
                    self.restart(node);
                }
            }
            Event::Nemesis => self.strike(),
            Event::Calm => self.calm_down(),
        }
    }

    /// Hands something to a node, or keeps it until the node can run.
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
            // A crash in between ends it.
            if self.nodes[i].alive {
                self.step(i, letter);
            }
        }
        if self.nodes[i].alive {
            self.step(i, Letter::Other(Input::Tick));
        }
    }

    /// One step of an election, and everything it asks for.
    pub(crate) fn step(&mut self, i: usize, letter: Letter) {
        if self.report.violation.is_some() {
            return;
        }
        let (now, lease) = (self.now, nanos(self.plan.timings[i].lease()));
        let local = self.nodes[i].clock.now(now);
        self.trace(|_| format!("n{i} {letter:?}"));
        let mut present = None;
        let mut ticked = false;
        let ended = letter.answers();
        let input = match letter {
            Letter::Shown(source, object) => {
                let patience = patience(&object, lease);
                let node = &mut self.nodes[i];
                if node.heeds(source) {
                    let (me, local) = (node.incarnation, local.local.as_nanos());
                    node.sights.saw(me, &object, patience, local);
                }
                present = self.foreign_present(i, source, Some(&object));
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
            Letter::Other(input) => {
                if let Input::Written(_, Outcome::Applied(version)) = &input {
                    let revision = version.revision.as_str().parse().unwrap_or_default();
                    self.nodes[i].sights.wrote(revision);
                }
                ticked = matches!(input, Input::Tick);
                input
            }
        };
        self.report.steps += 1;
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
            self.obey(i, command);
        }
        if let Some(shown) = present
            && let Some(text) = check_prompt_stop(shown, self.nodes[i].leads(now))
        {
            self.violate(Invariant::S1, format!("node {i} {text}"));
        }
        self.schedule_tick(i);
    }

    /// Whether what a node is shown is the present state of the object, and not its own.
    fn foreign_present(
        &self,
        i: usize,
        source: Source,
        shown: Option<&Rc<Object>>,
    ) -> Option<&'static str> {
        // "Absent" has no revision: if the watch brought news meanwhile, it is asked for again.
        let heeded = self.nodes[i].heeds(source) && (source == Source::Watch || shown.is_some());
        if !heeded || self.plan.outsiders == Outsiders::RestoresBack {
            return None;
        }
        match (shown, self.register.current()) {
            (None, None) => Some("the object is gone"),
            (Some(shown), Some(current)) if Rc::ptr_eq(shown, current) => {
                (shown.author != Some(self.nodes[i].incarnation)).then_some("it is held by another")
            }
            _ => None,
        }
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
            self.report.faults.count(Fault::TimerLate);
            at += self.rng.below(self.plan.longest_lease());
        }
        self.sequence += 1;
        let number = self.sequence;
        self.nodes[i].tick = Some((deadline, number));
        self.at(at, Event::Tick { node: i, number });
    }

    fn obey(&mut self, i: usize, command: Command) {
        match command {
            Command::Read { id, timeout } => self.send_read(i, id, nanos(timeout)),
            Command::Write {
                id,
                kind,
                record,
                timeout,
            } => {
                self.check_write(i, &kind);
                self.send_write(i, id, nanos(timeout), kind, record);
            }
            Command::Lead { token, guard, .. } => {
                let token = token.as_str().parse().unwrap_or_default();
                self.lead(i, token, guard);
            }
            Command::Extend { guard } => {
                self.nodes[i].guard = Some(guard);
                self.check_guards();
                if self.rng.percent(12) {
                    self.emit_effect(i);
                }
            }
            Command::Stop { reason, .. } => {
                self.nodes[i].guard = None;
                self.check_blame(i, &reason);
                if let Some(calm) = &self.calm
                    && let Some(text) = calm.stopped(i, &reason)
                {
                    self.violate(Invariant::L1, text);
                }
                if self.rng.percent(25) {
                    // Work that checked its guard just before, and is slow.
                    self.emit_effect(i);
                }
                self.end_work(i);
            }
            Command::Overrun => {
                self.nodes[i].overran = true;
                self.overrun(i);
            }
            Command::Finished => {
                self.crash(i);
                let incarnation = self.nodes[i].incarnation;
                let delay = self.rng.below(self.plan.longest_lease());
                self.after(
                    delay,
                    Event::Restart {
                        node: i,
                        incarnation,
                    },
                );
            }
            Command::Drain { .. } | Command::NewLeader { .. } | Command::Released => {}
        }
    }

    fn lead(&mut self, i: usize, token: u64, guard: Guard) {
        let me = self.nodes[i].incarnation;
        let term = (0..16)
            .map_while(|back| self.register.past(back))
            .find(|o| o.author == Some(me) && o.revision == token)
            .or_else(|| self.register.past(0))
            .map_or(0, |o| o.term);
        self.report.terms += 1;
        if self.plan.checks_work() {
            let working = self.nodes.iter().enumerate();
            let working = working.filter(|(_, n)| n.work.is_some()).map(|(j, _)| j);
            if let Some(text) = check_work(i, working) {
                self.violate(Invariant::S4, text);
            }
        }
        self.sequence += 1;
        let number = self.sequence;
        let node = &mut self.nodes[i];
        node.guard = Some(guard);
        node.overran = false;
        node.work = Some(Work {
            term,
            token,
            number,
            ending: false,
        });
        if let Some(text) = self.tokens.begin(term, token)
            && self.plan.checks_tokens()
        {
            self.violate(Invariant::S2, text);
        }
        self.check_guards();
        self.emit_effect(i);
        let classic = self.plan.timings.iter().all(|t| *t == Timing::default());
        if classic
            && self.plan.release
            && matches!(self.plan.clocks, Clocks::Good | Clocks::Fair)
            && self.plan.watches.iter().all(|w| *w)
            && let Some(failover) = self.calm.as_ref().and_then(|calm| calm.led(self.now))
        {
            self.report.failovers.push(failover);
        }
    }

    /// S1, at an instant at which a guard may have become true.
    pub(crate) fn check_guards(&mut self) {
        let now = self.now;
        let leading = self.nodes.iter().enumerate().filter_map(|(i, node)| {
            let stopped = node.paused_until > now && self.plan.faults.has(Fault::MachinePause);
            let guard = node.guard.filter(|_| node.leads(now) && !stopped)?;
            Some((i, node.clock.real_at(guard.until(), now)))
        });
        let mut guards = self.guards;
        let text = guards.check(now, leading);
        if self.plan.checks_guards() {
            self.guards = guards;
            if let Some(text) = text {
                self.violate(Invariant::S1, text);
            }
        } else if self.plan.clocks == Clocks::Wild && self.plan.outsiders == Outsiders::None {
            self.report.wild_overlap = self.report.wild_overlap.max(guards.longest_overlap);
        }
    }

    /// S4 and S5, as a write leaves.
    fn check_write(&mut self, i: usize, kind: &WriteKind) {
        let node = &self.nodes[i];
        let now = node.clock.now(self.now);
        if let WriteKind::Release(base) = kind {
            let length = self.plan.timings[i].guard();
            let base = self.register.find(base);
            let departure = Departure {
                guard_holds: node.leads(self.now),
                works: node.work.is_some(),
                overran: node.overran,
                guard_ran_out: base.is_some_and(|base| {
                    base.author == Some(node.incarnation) && now.local >= base.sent + length
                }),
            };
            if let Some(text) = check_release(departure) {
                return self.violate(Invariant::S4, format!("node {i} {text}"));
            }
        }
        if !self.plan.checks_tokens() {
            return;
        }
        let local = now.local.as_nanos();
        let text = match kind.base() {
            // A stale read may hide the term that should be waited out.
            None if self.plan.faults.has(Fault::StaleRead) => None,
            None => node.sights.check_create(local),
            Some(version) => self.register.find(version).and_then(|base| {
                let lease = patience(base, nanos(self.plan.timings[i].lease()));
                node.sights
                    .check_write(node.incarnation, base, lease, local)
            }),
        };
        if let Some(text) = text {
            self.violate(Invariant::S5, format!("node {i} {text}"));
        }
    }

    /// Whoever blames others for a loss is right: where nobody but electors writes, and reads are
    /// never stale, a record of ours is not edited, deleted or rolled back by anybody.
    fn check_blame(&mut self, i: usize, reason: &StopReason) {
        let blames = matches!(
            reason,
            StopReason::Edited
                | StopReason::Emptied
                | StopReason::Deleted
                | StopReason::Recreated
                | StopReason::WentBack
        );
        if blames
            && self.plan.outsiders == Outsiders::None
            && !self.plan.faults.has(Fault::StaleRead)
            // A stranger with our own name looks like an edit.
            && !self.plan.one_name
        {
            let reason = reason.as_str();
            self.violate(Invariant::L1, format!("node {i} stops, wrongly: {reason}"));
        }
    }

    /// Work does something that reaches the fenced store now or later.
    fn emit_effect(&mut self, i: usize) {
        let Some(Work { term, token, .. }) = self.nodes[i].work else {
            return;
        };
        let delay = if self.rng.percent(30) {
            self.rng.below(2 * self.plan.longest_lease())
        } else {
            self.rng.below(self.plan.latency * 2)
        };
        self.after(delay, Event::Effect { term, token });
    }

    /// The work was told to stop.
    fn end_work(&mut self, i: usize) {
        let calm = self.calm.is_some();
        let (incarnation, faults) = (self.nodes[i].incarnation, self.plan.faults);
        let Some(work) = self.nodes[i].work.as_mut().filter(|work| !work.ending) else {
            // It had ended by itself.
            return;
        };
        work.ending = true;
        let number = work.number;
        let delay = if !calm && faults.has(Fault::WorkStuck) && self.rng.percent(30) {
            self.report.faults.count(Fault::WorkStuck);
            return;
        } else if !calm && faults.has(Fault::WorkSlow) && self.rng.percent(30) {
            self.report.faults.count(Fault::WorkSlow);
            self.rng.below(2 * self.plan.longest_lease())
        } else {
            self.rng.below(self.plan.latency * 8)
        };
        self.after(
            delay,
            Event::WorkEnds {
                node: i,
                incarnation,
                number,
            },
        );
    }

    /// The work did not end in time: the process, or the child that does the work, is ended.
    fn overrun(&mut self, i: usize) {
        let incarnation = self.nodes[i].incarnation;
        if self.rng.percent(50) {
            self.crash(i);
            let delay = self.rng.below(self.plan.longest_lease());
            self.after(
                delay,
                Event::Restart {
                    node: i,
                    incarnation,
                },
            );
        } else if self.nodes[i].work.take().is_some() {
            let letter = Box::new(Letter::Other(Input::WorkEnded));
            self.after(
                1_000,
                Event::Letter {
                    node: i,
                    incarnation,
                    letter,
                },
            );
        }
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

    /// Forgets everything that is still under way late.
    pub(crate) fn drop_late_traffic(&mut self) {
        self.queue
            .retain(|Reverse(Entry(_, _, event))| match event {
                Event::Arrive(request) => !request.late,
                Event::Watch { .. } | Event::Nemesis => false,
                _ => true,
            });
    }

    fn mix(&mut self, value: u64) {
        self.report.hash = (self.report.hash ^ value).wrapping_mul(0x0000_0100_0000_01B3)
            ^ (self.report.hash >> 29);
    }

    fn finish(mut self) -> Report {
        self.report.simulated = self.now;
        self.report.longest_overlap = self.guards.longest_overlap;
        self.report.refused = self.store.refused;
        self.report.accepted = self.store.accepted;
        self.report
    }
}

/// How long a record must be left alone, in nanoseconds.
fn patience(object: &Object, own_lease: u64) -> u64 {
    if object.seen.unreadable {
        own_lease
    } else {
        nanos(object.seen.record.lease_duration()).max(1_000_000_000)
    }
}

/// A letter that shows the present state.
pub(crate) fn present(register: &Register, source: Source) -> Letter {
    match register.current() {
        Some(object) => Letter::Shown(source, object.clone()),
        None => {
            let revision = (source == Source::Watch).then_some(register.revision());
            Letter::Gone(source, revision)
        }
    }
}
