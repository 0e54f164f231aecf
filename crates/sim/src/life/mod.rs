//! Leaders for life, their pods, and the candidates that free the locks of deleted pods.
//!
//! Candidates run the real core for life. The shipped rules of [`tenure_core::undertaker`] decide whether a process may
//! campaign under its name, and whether a record may be emptied. Pods are deleted (also by force), replaced under the
//! same or another name, fail, or lose their node. Processes restart in their pod, or use a host name as a wrong name
//! of their pod. Views of pods are stale. The garbage collector deletes the Lease of a deleted pod.
//!
//! S1 holds among all processes except those whose pod was deleted by force while they run. S2 holds, and L1 holds
//! after the faults have ended.

mod candidate;
mod cluster;
mod nemesis;
mod network;
mod server;

use std::collections::BTreeMap;
use std::time::Duration;

use tenure_core::undertaker::{PodId, Rules, verify_own_pod};
use tenure_core::{Command, Input, Outcome, Source, Timing};

use crate::caught::caught;
use crate::clock::Clock;
use crate::fault::Fault;
use crate::invariants::s1_guard_exclusion::GuardExclusion;
use crate::invariants::s2_token_order::TokenOrder;
use crate::invariants::{Invariant, Violation};
use crate::rng::Rng;
use crate::world::Report;
use candidate::{Candidate, Naming};
use cluster::{Cluster, Lease};
use network::Travel;
use server::{Call, Reply};

const SECOND: u64 = 1_000_000_000;

/// Lease duration of terms for life, in seconds. It is shorter than the shipped value, so that a run contains more
/// terms.
const LEASE_SECONDS: u32 = 600;

/// Interval at which an undertaker checks the pod of the leader.
const LOOK: u64 = 15 * SECOND;

/// Mean time between faults that are not tied to a request.
const STRIKE: u64 = 60 * SECOND;

/// Time after the faults, long enough for every earlier guard to expire.
const CALM: u64 = 3 * LEASE_SECONDS as u64 * SECOND;

#[derive(Debug)]
enum Event {
    Tick(usize, u64),
    Arrive(Box<Travel>),
    Answer(usize, u64, Box<Reply>),
    Timeout(usize, u64, u64),
    Watch(usize, u64, Box<WatchEvent>),
    WorkEnded(usize, u64),
    Look(usize, u64),
    /// The kubelet starts the process of a pod.
    Start(usize),
    /// The processes of a pod have ended, and the pod is deleted.
    Remove(usize),
    /// The node of a pod responds again.
    Heal(usize),
    /// A controller creates a pod with this name.
    Schedule(String),
    /// The garbage collector checks the Lease.
    Collect,
    Operate,
    Strike,
    Calm,
    End,
}

/// The Lease as delivered by a watch, or its deletion.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "few of them exist at a time")]
enum WatchEvent {
    Lease(Lease),
    Gone(tenure_core::ResourceVersion),
}

struct World {
    rng: Rng,
    rules: Rules,
    timing: Timing,
    now: u64,
    sequence: u64,
    queue: BTreeMap<(u64, u64), Event>,
    cluster: Cluster,
    /// Every pod that ever existed, with its process.
    candidates: Vec<Candidate>,
    incarnations: u64,
    names: u64,
    /// Probability that a fault affects a request, in parts per million.
    faults: u64,
    latency: u64,
    /// Percentage of pods that use a wrong host name as their own name.
    misnamed: u64,
    /// Whether re-created pods keep their name, like those of a StatefulSet.
    stateful: bool,
    calm: bool,
    guards: GuardExclusion,
    tokens: TokenOrder,
    report: Report,
    traced: bool,
}

/// Runs a seed.
pub(crate) fn run(seed: u64, rules: Rules, traced: bool) -> Report {
    let mut rng = Rng::new(seed.wrapping_mul(0xD6E8_FEB8_6659_FD93) ^ 0x11FE);
    let lease = Duration::from_secs(LEASE_SECONDS.into());
    let timing = Timing::builder()
        .lease_duration(lease)
        .renew_deadline(lease * 5 / 6)
        .retry_period(Duration::from_secs(10))
        .request_timeout(Duration::from_secs(10))
        .build()
        .expect("these durations are valid");
    let mut world = World {
        rules,
        timing,
        now: SECOND,
        sequence: 0,
        queue: BTreeMap::new(),
        cluster: Cluster::default(),
        candidates: Vec::new(),
        incarnations: 0,
        names: 0,
        faults: *rng.pick(&[10_000, 50_000, 150_000]),
        latency: rng.range(1_000_000, 30_000_000),
        misnamed: *rng.pick(&[0, 20, 40]),
        stateful: rng.percent(50),
        calm: false,
        guards: GuardExclusion::default(),
        tokens: TokenOrder::default(),
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
        for _ in 0..self.rng.range(2, 5) {
            let name = self.next_name();
            self.schedule(&name);
        }
        let horizon = self.now + STRIKE * self.rng.range(20, 60);
        self.after(STRIKE / 4, Event::Strike);
        self.at(horizon, Event::Calm);
        self.at(horizon + CALM, Event::End);
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

    fn happen(&mut self, event: Event) {
        match event {
            Event::Tick(i, number) => {
                if self.candidates[i].tick.is_some_and(|(_, n)| n == number) {
                    self.candidates[i].tick = None;
                    self.step(i, Input::Tick);
                }
            }
            Event::Arrive(travel) => self.arrive(*travel),
            Event::Answer(i, incarnation, reply) if self.is(i, incarnation) => {
                self.answered(i, *reply);
            }
            Event::Timeout(i, incarnation, id) if self.is(i, incarnation) => {
                let request = &mut self.candidates[i].request;
                match request.take_if(|(under_way, _)| *under_way == id) {
                    Some((_, true)) => self.step(i, Input::Written(id, Outcome::Unknown)),
                    Some((_, false)) => self.step(i, Input::ReadFailed(id)),
                    None => {}
                }
            }
            Event::Watch(i, incarnation, event) if self.is(i, incarnation) => {
                self.watched(i, *event);
            }
            Event::WorkEnded(i, incarnation) if self.is(i, incarnation) => {
                self.step(i, Input::WorkEnded);
            }
            Event::Look(i, incarnation) if self.is(i, incarnation) => {
                let call = self.candidates[i].look(self.rules, LEASE_SECONDS);
                if let Some(call) = call {
                    self.call(i, call);
                }
                self.after(LOOK, Event::Look(i, incarnation));
            }
            Event::Start(i) => self.start(i),
            Event::Remove(i) => self.remove(i),
            Event::Heal(i) => self.heal(i),
            Event::Schedule(name) => self.schedule(&name),
            Event::Collect => self.collect(),
            Event::Operate => self.operate(),
            Event::Strike => self.strike(),
            Event::Calm => self.calm_down(),
            Event::End
            | Event::Answer(..)
            | Event::Timeout(..)
            | Event::Watch(..)
            | Event::WorkEnded(..)
            | Event::Look(..) => {}
        }
    }

    /// Returns whether this incarnation runs.
    fn is(&self, i: usize, incarnation: u64) -> bool {
        let candidate = &self.candidates[i];
        candidate.alive && candidate.incarnation == incarnation
    }

    /// Creates a pod like a controller; its process starts a little later.
    fn schedule(&mut self, name: &str) {
        let uid = self.cluster.create_pod(name);
        let name = name.to_owned();
        let pod = PodId { name, uid };
        let naming = match self.rng.below(100) {
            percent if self.calm || percent >= self.misnamed => Naming::Right,
            percent if percent % 2 == 0 => Naming::Wrong,
            _ => Naming::Unchecked,
        };
        let mut named = pod.clone();
        if naming != Naming::Right {
            self.report.totals.faults.count(Fault::PodMisnamed);
            // A host name may equal the name of another pod.
            let others = self.cluster.names();
            named.name = match self.rng.percent(50) {
                true => self.rng.pick(&others).clone(),
                false => format!("node-{}", self.rng.below(3)),
            };
        }
        let limit = 50_000;
        let rate = self.rng.below(2 * limit + 1) as i64 - limit as i64;
        let (local, wall) = (self.rng.below(1 << 50), self.rng.below(1 << 45));
        let clock = Clock::new(local, rate, wall as i64);
        let config = Candidate::config(&named, &self.timing, &mut self.rng);
        self.trace(|_| {
            format!(
                "pod {} is made, its process is {}",
                pod.identity(),
                named.identity()
            )
        });
        let i = self.candidates.len();
        self.candidates
            .push(Candidate::new(pod, named, naming, clock, config));
        let delay = self.rng.below(5 * SECOND);
        self.after(delay, Event::Start(i));
    }

    /// Starts the process of a pod, which reads its own pod first.
    fn start(&mut self, i: usize) {
        let PodId { name, uid } = &self.candidates[i].pod;
        let candidate = &self.candidates[i];
        if candidate.alive || candidate.ended || !self.cluster.has_pod(name, uid) {
            return;
        }
        self.incarnations += 1;
        let named = self.candidates[i].named.clone();
        let config = Candidate::config(&named, &self.timing, &mut self.rng);
        self.candidates[i].restart(self.incarnations, config);
        match self.candidates[i].naming {
            Naming::Unchecked => self.campaign(i),
            Naming::Right | Naming::Wrong => self.call(i, Call::Own(named.name)),
        }
    }

    fn campaign(&mut self, i: usize) {
        self.trace(|w| format!("{} campaigns", w.candidates[i].named.identity()));
        let incarnation = self.candidates[i].incarnation;
        self.step(i, Input::Start);
        self.list_lease(i);
        self.step(i, Input::Watching(true));
        let delay = self.rng.below(LOOK);
        self.after(delay, Event::Look(i, incarnation));
    }

    /// Delivers the current Lease.
    fn list_lease(&mut self, i: usize) {
        match self.cluster.lease.clone() {
            Some(lease) => self.watched(i, WatchEvent::Lease(lease)),
            None => self.step(i, Input::Absent(Source::Watch, None)),
        }
    }

    fn watched(&mut self, i: usize, event: WatchEvent) {
        match event {
            WatchEvent::Lease(lease) => {
                self.candidates[i].observe_lease(Some(&lease));
                self.step(i, Input::Observed(Source::Watch, lease.seen));
            }
            WatchEvent::Gone(revision) => {
                self.candidates[i].observe_lease(None);
                self.step(i, Input::Absent(Source::Watch, Some(revision)));
            }
        }
    }

    fn answered(&mut self, i: usize, reply: Reply) {
        self.trace(|w| format!("{} receives {reply:?}", w.candidates[i].named.identity()));
        if let Some(call) = self.candidates[i].attend(&reply, LEASE_SECONDS) {
            self.call(i, call);
        }
        let candidate = &mut self.candidates[i];
        let mut pending = |id: u64| candidate.request.take_if(|(r, _)| *r == id).is_some();
        match reply {
            Reply::Got(id, lease) if pending(id) => {
                self.candidates[i].observe_lease(lease.as_ref());
                let source = Source::Read(id);
                self.step(
                    i,
                    match lease {
                        Some(lease) => Input::Observed(source, lease.seen),
                        None => Input::Absent(source, None),
                    },
                );
            }
            Reply::Stored(id, lease) if pending(id) => {
                self.candidates[i].observe_lease(Some(&lease));
                self.step(i, Input::Written(id, Outcome::Applied(lease.seen.version)));
            }
            Reply::Refused(id) if pending(id) => {
                self.step(i, Input::Written(id, Outcome::Refused));
            }
            Reply::Error(call) => match call {
                Call::Get(id) if pending(id) => self.step(i, Input::ReadFailed(id)),
                Call::Write(id, ..) if pending(id) => {
                    self.step(i, Input::Written(id, Outcome::Unknown));
                }
                Call::Own(_) => self.call(i, call),
                _ => {}
            },
            Reply::Own(view) => {
                let named = &self.candidates[i].named;
                match verify_own_pod(named, view.pod.as_ref(), self.rules) {
                    Ok(()) => self.campaign(i),
                    Err(why) => {
                        self.trace(|_| format!("refused: {why}"));
                        self.candidates[i].die();
                        let delay = self.rng.range(SECOND, 60 * SECOND);
                        self.after(delay, Event::Start(i));
                    }
                }
            }
            Reply::Got(..)
            | Reply::Stored(..)
            | Reply::Refused(_)
            | Reply::Pods(..)
            | Reply::Fetched(_) => {}
        }
    }

    fn step(&mut self, i: usize, input: Input) {
        let candidate = &mut self.candidates[i];
        if !candidate.alive {
            return;
        }
        let now = candidate.clock.now(self.now);
        let commands = candidate.election.step(now, input);
        self.report.totals.steps += 1;
        for command in commands {
            self.trace(|w| format!("{} -> {command:?}", w.candidates[i].named.identity()));
            self.obey(i, command);
        }
        self.schedule_tick(i);
    }

    fn obey(&mut self, i: usize, command: Command) {
        let incarnation = self.candidates[i].incarnation;
        match command {
            Command::Read { id, timeout } => self.request(i, Call::Get(id), id, timeout),
            Command::Write {
                id,
                kind,
                record,
                timeout,
            } => {
                let call = Call::Write(id, kind.base().cloned(), record);
                self.request(i, call, id, timeout);
            }
            Command::Lead { token, guard, .. } => {
                self.candidates[i].guard = Some(guard);
                self.report.totals.terms += 1;
                let token = token.as_str().parse().unwrap_or_default();
                if let Some(text) = self.tokens.begin(self.report.totals.terms, token) {
                    self.violate(Invariant::S2, text);
                }
                self.check_guards();
            }
            Command::Extend { guard } => {
                self.candidates[i].guard = Some(guard);
                self.check_guards();
            }
            Command::Stop { .. } => {
                self.candidates[i].guard = None;
                let delay = self.rng.below(SECOND / 2);
                self.after(delay, Event::WorkEnded(i, incarnation));
            }
            Command::Finished => self.candidates[i].die(),
            Command::Drain { .. }
            | Command::Overrun
            | Command::NewLeader { .. }
            | Command::Released => {}
        }
    }

    fn leads(&self, i: usize) -> bool {
        let candidate = &self.candidates[i];
        let now = candidate.clock.now(self.now);
        candidate.alive && candidate.guard.is_some_and(|guard| guard.holds(now))
    }

    /// Checks S1 at an instant at which a guard may have become valid.
    fn check_guards(&mut self) {
        let mut guards = self.guards;
        let leading = (0..self.candidates.len()).filter_map(|i| {
            let candidate = &self.candidates[i];
            let guard = candidate
                .guard
                .filter(|_| self.leads(i) && !candidate.disowned)?;
            Some((i, candidate.clock.real_at(guard.until(), self.now)))
        });
        let text = guards.check(self.now, leading);
        self.guards = guards;
        if let Some(text) = text {
            self.violate(Invariant::S1, text);
        }
    }

    /// Checks L1: long after the faults, a candidate leads.
    fn check_end(&mut self) {
        if !(0..self.candidates.len()).any(|i| self.leads(i)) {
            self.violate(Invariant::L1, "nobody leads".to_owned());
        }
    }

    fn schedule_tick(&mut self, i: usize) {
        let candidate = &self.candidates[i];
        let Some(deadline) = candidate.election.deadline().filter(|_| candidate.alive) else {
            self.candidates[i].tick = None;
            return;
        };
        if candidate.tick.is_some_and(|(at, _)| at == deadline) {
            return;
        }
        let at = candidate.clock.real_at(deadline, self.now) + self.rng.below(1_000_000);
        let number = self.sequence;
        self.candidates[i].tick = Some((deadline, number));
        self.at(at, Event::Tick(i, number));
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
