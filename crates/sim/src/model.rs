//! Model check of the same core with stateright. It explores every order of events and every placement of a few faults,
//! for a few candidates and a short time.
//!
//! Time is a small integer. Messages are delivered in any order, and timers fire before time advances. Every other
//! deviation costs one unit of a fault budget:
//!
//! - A message is lost, repeated or delayed arbitrarily.
//! - A process is paused, crashed or asked to step down.
//! - A clock gains a tick.
//!
//! Delayed messages and paused processes resume at any later instant.

use std::fmt;
use std::time::Duration;

use crate::caught::caught;
use stateright::{Checker, Model, Property};
use tenure_core::{
    Command, Config, Election, Guard, Input, LocalTime, Mark, Now, Observation, Orders, Outcome,
    Record, ResourceVersion, Source, Timing, Version, WallTime, WriteKind,
};

/// One tick of the model's time.
const TICK: Duration = Duration::from_millis(250);

/// Clocks do not start at zero.
const ORIGIN: u64 = 1_000;

/// Size of the explored state space.
#[derive(Clone, Debug)]
pub struct Scope {
    /// Number of candidates.
    pub candidates: usize,
    /// Number of faults.
    pub faults: u8,
    /// Number of ticks of a quarter of a second; the lease lasts eight.
    pub ticks: u8,
    /// Whether candidates watch.
    pub watch: bool,
    /// Maximum number of states, if the search is not complete before.
    pub states: usize,
    /// Time limit in seconds.
    pub seconds: u64,
}

impl Scope {
    /// Returns the scope for unit tests, small enough for a complete search.
    pub fn quick() -> Self {
        Self {
            candidates: 2,
            faults: 1,
            ticks: 13,
            watch: false,
            states: 1_000_000,
            seconds: 300,
        }
    }

    /// Returns the same scope for candidates that watch.
    pub fn quick_watching() -> Self {
        Self {
            watch: true,
            ..Self::quick()
        }
    }

    /// Returns the scopes for `cargo xtask sim`: two polling candidates with two faults, and two watching and three
    /// polling candidates with one fault. Watching adds so many possible steps that a search with two faults would end
    /// before any state can be stale.
    pub fn full() -> [Self; 3] {
        let pair = Self {
            candidates: 2,
            faults: 2,
            ticks: 14,
            watch: false,
            states: 3_000_000,
            seconds: 90,
        };
        let three = Self {
            candidates: 3,
            faults: 1,
            states: 1_500_000,
            ..pair.clone()
        };
        let watching = Self {
            candidates: 2,
            watch: true,
            ..three.clone()
        };
        [pair, watching, three]
    }
}

/// Result of a check.
#[derive(Clone, Debug)]
pub struct Checked {
    scope: Scope,
    /// Number of different states.
    pub states: usize,
    /// Number of steps.
    pub steps: usize,
    /// Length of the longest path.
    pub depth: usize,
    /// Whether the whole scope was explored.
    pub complete: bool,
    /// Violated invariants, each with the path to the violation.
    pub broken: Vec<String>,
    /// Conditions that must be reachable but were not reached.
    pub never: Vec<&'static str>,
}

impl Checked {
    /// Returns whether all invariants hold and all required conditions were reached.
    pub fn holds(&self) -> bool {
        self.broken.is_empty() && self.never.is_empty()
    }
}

impl fmt::Display for Checked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Scope {
            candidates,
            faults,
            ticks,
            watch,
            ..
        } = self.scope;
        let watch = if watch { "watching" } else { "polling" };
        let complete = if self.complete { "complete" } else { "cut off" };
        writeln!(
            f,
            "model check: {candidates} candidates {watch}, {faults} faults, {ticks} ticks"
        )?;
        writeln!(
            f,
            "  different states              {:>14}  {complete}",
            self.states
        )?;
        writeln!(f, "  steps                         {:>14}", self.steps)?;
        writeln!(f, "  depth                         {:>14}", self.depth)?;
        writeln!(
            f,
            "  invariants violated           {:>14}",
            self.broken.len()
        )?;
        for broken in &self.broken {
            writeln!(f, "{broken}")?;
        }
        for never in &self.never {
            writeln!(f, "  never seen: {never}")?;
        }
        Ok(())
    }
}

/// Explores a scope.
#[expect(
    clippy::disallowed_methods,
    reason = "real time only decides how much is explored"
)]
pub fn check(scope: &Scope, threads: usize) -> Checked {
    let started = std::time::Instant::now();
    let limit = Duration::from_secs(scope.seconds);
    let checker = Elections(scope.clone())
        .checker()
        .threads(threads)
        .target_state_count(scope.states)
        .timeout(limit)
        .spawn_bfs()
        .join();
    let found = checker.discoveries();
    let broken = found
        .iter()
        .filter(|(name, _)| name.starts_with('S'))
        .map(|(name, path)| {
            let path: Vec<String> = path
                .clone()
                .into_actions()
                .iter()
                .map(|action| format!("{action:?}"))
                .collect();
            format!("  {name} broken after {}", path.join(", "))
        })
        .collect();
    let never = [SECOND, STALE]
        .into_iter()
        .filter(|name| !found.contains_key(name));
    Checked {
        scope: scope.clone(),
        states: checker.unique_state_count(),
        steps: checker.state_count(),
        depth: checker.max_depth(),
        complete: checker.state_count() < scope.states && started.elapsed() < limit,
        broken,
        never: never.collect(),
    }
}

const SOUND: &str = "Sound: no assertion of the core fails";
const SECOND: &str = "a second leader is elected";
const STALE: &str = "a stale token is refused";

/// The model.
#[derive(Clone, Debug)]
struct Elections(Scope);

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct State {
    ticks: u8,
    faults_left: u8,
    candidates: Vec<Candidate>,
    object: Option<Object>,
    revision: u64,
    network: Vec<Message>,
    terms: u8,
    last_token: u64,
    /// The fenced store: the greatest token accepted.
    accepted: u64,
    refused: bool,
    broken: Option<&'static str>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Candidate {
    election: Election,
    incarnation: u8,
    gained: u8,
    paused: bool,
    guard: Option<Guard>,
    token: Option<u64>,
    /// `None`: no work. Otherwise whether it was cancelled.
    work: Option<bool>,
    /// The last observed record, and the time of its first observation.
    seen: (u64, u64),
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Object {
    seen: Observation,
    author: u8,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Address {
    to_server: bool,
    candidate: usize,
    incarnation: u8,
    id: u64,
    copy: u8,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Message {
    address: Address,
    held: bool,
    body: Body,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Body {
    Read,
    Write(WriteKind, Record),
    Input(Input, u64),
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Action {
    TimePasses,
    Wake(usize),
    Deliver(usize),
    WorkEnds(usize),
    Effect(usize),
    Resume(usize),
    Lose(usize),
    Repeat(usize),
    Hold(usize),
    Pause(usize),
    Crash(usize),
    StepDown(usize),
    GainTick(usize),
}

impl Model for Elections {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let mut state = State {
            ticks: 0,
            faults_left: self.0.faults,
            candidates: Vec::new(),
            object: None,
            revision: 10,
            network: Vec::new(),
            terms: 0,
            last_token: 0,
            accepted: 0,
            refused: false,
            broken: None,
        };
        for i in 0..self.0.candidates {
            state.candidates.push(candidate(i, 0, 0));
        }
        for i in 0..self.0.candidates {
            self.launch(&mut state, i);
        }
        vec![state]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        if state.broken.is_some() {
            return;
        }
        let mut urgent = false;
        for (i, candidate) in state.candidates.iter().enumerate() {
            let now = state.now(i);
            if candidate.paused {
                actions.push(Action::Resume(i));
                continue;
            }
            if candidate
                .election
                .deadline()
                .is_some_and(|at| at <= now.local)
            {
                urgent = true;
                actions.push(Action::Wake(i));
            }
            if candidate.work == Some(true) {
                actions.push(Action::WorkEnds(i));
            }
            if candidate.token.is_some_and(|token| token < state.accepted) && !state.refused {
                actions.push(Action::Effect(i));
            }
            if state.faults_left > 0 {
                actions.extend([Action::Pause(i), Action::Crash(i), Action::GainTick(i)]);
                if candidate.guard.is_some() {
                    actions.push(Action::StepDown(i));
                }
            }
        }
        for (k, message) in state.network.iter().enumerate() {
            if state.reaches(message) {
                urgent |= !message.held;
                actions.push(Action::Deliver(k));
            }
            if state.faults_left > 0 && !message.held {
                actions.extend([Action::Lose(k), Action::Hold(k)]);
                if message.address.copy == 0 {
                    actions.push(Action::Repeat(k));
                }
            }
        }
        if !urgent && state.ticks < self.0.ticks {
            actions.push(Action::TimePasses);
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = last.clone();
        let fault = matches!(
            action,
            Action::Lose(_)
                | Action::Repeat(_)
                | Action::Hold(_)
                | Action::Pause(_)
                | Action::Crash(_)
                | Action::StepDown(_)
                | Action::GainTick(_)
        );
        state.faults_left -= u8::from(fault);
        match action {
            Action::TimePasses => state.ticks += 1,
            Action::Wake(i) => self.step(&mut state, i, Input::Tick, 0),
            Action::Deliver(k) => {
                let message = state.network.remove(k);
                self.deliver(&mut state, message);
            }
            Action::WorkEnds(i) => {
                state.candidates[i].work = None;
                state.candidates[i].token = None;
                self.step(&mut state, i, Input::WorkEnded, 0);
            }
            Action::Effect(_) => state.refused = true,
            Action::Resume(i) => state.candidates[i].paused = false,
            Action::Lose(k) => drop(state.network.remove(k)),
            Action::Repeat(k) => {
                let mut again = state.network[k].clone();
                again.address.copy = 1;
                again.held = true;
                state.send(again);
            }
            Action::Hold(k) => state.network[k].held = true,
            Action::Pause(i) => state.candidates[i].paused = true,
            Action::Crash(i) => {
                let old = &state.candidates[i];
                let (incarnation, gained) = (old.incarnation + 1, old.gained);
                state.candidates[i] = candidate(i, incarnation, gained);
                state
                    .network
                    .retain(|m| m.address.to_server || m.address.candidate != i);
                self.launch(&mut state, i);
            }
            Action::StepDown(i) => {
                self.step(&mut state, i, Input::StepDown(Duration::from_secs(2)), 0);
            }
            Action::GainTick(i) => state.candidates[i].gained += 1,
        }
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("S1", |_, state: &State| {
                let leads = |(i, c): (usize, &Candidate)| {
                    usize::from(c.guard.is_some_and(|guard| guard.holds(state.now(i))))
                };
                state
                    .candidates
                    .iter()
                    .enumerate()
                    .map(leads)
                    .sum::<usize>()
                    <= 1
            }),
            Property::always("S2", |_, state: &State| state.broken != Some("S2")),
            Property::always("S4", |_, state: &State| state.broken != Some("S4")),
            Property::always("S5", |_, state: &State| state.broken != Some("S5")),
            Property::always(SOUND, |_, state: &State| state.broken != Some(SOUND)),
            Property::sometimes(SECOND, |_, state: &State| state.terms > 1),
            Property::sometimes(STALE, |_, state: &State| state.refused),
        ]
    }
}

impl State {
    fn now(&self, i: usize) -> Now {
        let ticks = u32::from(self.ticks) + u32::from(self.candidates[i].gained);
        let local = LocalTime::from_nanos(ORIGIN) + TICK * ticks;
        Now {
            local,
            wall: WallTime::from_micros(local.as_nanos() as i64 / 1_000),
        }
    }

    /// Returns whether a message can be delivered now.
    fn reaches(&self, message: &Message) -> bool {
        let Address {
            to_server,
            candidate,
            ..
        } = message.address;
        to_server || !self.candidates[candidate].paused
    }

    /// Adds a message. The network is a set, so that the order of sending does not create different states.
    fn send(&mut self, message: Message) {
        let at = self
            .network
            .partition_point(|m| m.address < message.address);
        self.network.insert(at, message);
    }
}

impl Elections {
    /// Starts a process. One that watches receives the current state before it relies on the watch.
    fn launch(&self, state: &mut State, i: usize) {
        self.step(state, i, Input::Start, 0);
        if self.0.watch {
            let (input, fingerprint) = match &state.object {
                Some(object) => {
                    let seen = object.seen.clone();
                    let fingerprint = seen.fingerprint;
                    (Input::Observed(Source::Watch, seen), fingerprint)
                }
                None => {
                    let revision = ResourceVersion::new(state.revision.to_string());
                    (Input::Absent(Source::Watch, Some(revision)), 0)
                }
            };
            self.step(state, i, input, fingerprint);
            self.step(state, i, Input::Watching(true), 0);
        }
    }

    fn deliver(&self, state: &mut State, message: Message) {
        let Address {
            candidate,
            incarnation,
            id,
            ..
        } = message.address;
        let (input, fingerprint) = match message.body {
            Body::Input(input, fingerprint) => {
                if state.candidates[candidate].incarnation == incarnation {
                    self.step(state, candidate, input, fingerprint);
                }
                return;
            }
            Body::Read => match &state.object {
                Some(object) => (
                    Input::Observed(Source::Read(id), object.seen.clone()),
                    object.seen.fingerprint,
                ),
                None => (Input::Absent(Source::Read(id), None), 0),
            },
            Body::Write(kind, record) => {
                let author = author(candidate, incarnation);
                (
                    Input::Written(id, self.apply(state, author, &kind, record)),
                    0,
                )
            }
        };
        if state.candidates[candidate].incarnation == incarnation {
            let address = Address {
                to_server: false,
                ..message.address
            };
            let body = Body::Input(input, fingerprint);
            state.send(Message {
                address,
                held: false,
                body,
            });
        }
    }

    fn apply(&self, state: &mut State, author: u8, kind: &WriteKind, record: Record) -> Outcome {
        let current = state.object.as_ref().map(|object| &object.seen.version);
        if current != kind.base() {
            return Outcome::Refused;
        }
        state.revision += 1;
        let version = Version {
            uid: "u".into(),
            revision: ResourceVersion::new(state.revision.to_string()),
        };
        let seen = Observation {
            version: version.clone(),
            mark: Some(Mark::of(&record)),
            described: None,
            record,
            fingerprint: state.revision,
            unreadable: false,
            orders: Orders::default(),
        };
        if self.0.watch {
            for (i, candidate) in state.candidates.clone().iter().enumerate() {
                let address = Address {
                    to_server: false,
                    candidate: i,
                    incarnation: candidate.incarnation,
                    // Watch events have their own numbers, above those of requests.
                    id: 1_000 + state.revision,
                    copy: 0,
                };
                let input = Input::Observed(Source::Watch, seen.clone());
                let body = Body::Input(input, state.revision);
                state.send(Message {
                    address,
                    held: false,
                    body,
                });
            }
        }
        state.object = Some(Object { seen, author });
        Outcome::Applied(version)
    }

    fn step(&self, state: &mut State, i: usize, input: Input, fingerprint: u64) {
        let now = state.now(i);
        let candidate = &mut state.candidates[i];
        if fingerprint > candidate.seen.0 {
            candidate.seen = (fingerprint, now.local.as_nanos());
        }
        let Ok(commands) = caught(|| candidate.election.step(now, input)) else {
            state.broken = Some(SOUND);
            return;
        };
        for command in commands {
            self.obey(state, i, now, command);
        }
    }

    fn obey(&self, state: &mut State, i: usize, now: Now, command: Command) {
        let candidate = &mut state.candidates[i];
        let address = |id| Address {
            to_server: true,
            candidate: i,
            incarnation: candidate.incarnation,
            id,
            copy: 0,
        };
        match command {
            Command::Read { id, .. } => {
                let message = Message {
                    address: address(id),
                    held: false,
                    body: Body::Read,
                };
                state.send(message);
            }
            Command::Write {
                id, kind, record, ..
            } => {
                let address = address(id);
                if matches!(kind, WriteKind::Release(..))
                    && (candidate.guard.is_some_and(|g| g.holds(now)) || candidate.work.is_some())
                {
                    state.broken = Some("S4");
                }
                if !self.may_write(state, i, now, &kind) {
                    state.broken = Some("S5");
                }
                let body = Body::Write(kind, record);
                state.send(Message {
                    address,
                    held: false,
                    body,
                });
            }
            Command::Lead { token, guard, .. } => {
                let token = token.as_str().parse().unwrap_or_default();
                candidate.guard = Some(guard);
                candidate.token = Some(token);
                candidate.work = Some(false);
                if token <= state.last_token {
                    state.broken = Some("S2");
                }
                state.last_token = token;
                state.accepted = state.accepted.max(token);
                state.terms += 1;
            }
            Command::Extend { guard } => candidate.guard = Some(guard),
            Command::Stop { .. } => {
                candidate.guard = None;
                candidate.work = candidate.work.map(|_| true);
            }
            Command::Overrun => {
                candidate.work = None;
                candidate.token = None;
                self.step(state, i, Input::WorkEnded, 0);
            }
            Command::Drain { .. }
            | Command::NewLeader { .. }
            | Command::Released
            | Command::Finished => {}
        }
    }

    /// Checks S5 for versions that are still current. Other versions cannot be replaced at all.
    fn may_write(&self, state: &State, i: usize, now: Now, kind: &WriteKind) -> bool {
        let candidate = &state.candidates[i];
        let Some(object) = &state.object else {
            return true;
        };
        if kind.base() != Some(&object.seen.version) {
            return true;
        }
        let (record, since) = candidate.seen;
        object.author == author(i, candidate.incarnation)
            || object.seen.record.is_free()
            || (record == object.seen.fingerprint
                && now.local >= LocalTime::from_nanos(since) + object.seen.record.lease_duration())
    }
}

fn author(candidate: usize, incarnation: u8) -> u8 {
    candidate as u8 * 16 + incarnation
}

fn candidate(i: usize, incarnation: u8, gained: u8) -> Candidate {
    let timing = Timing::builder()
        .lease_duration(8 * TICK)
        .renew_deadline(4 * TICK)
        .retry_period(2 * TICK)
        .build()
        .expect("2 s / 1 s / 0.5 s keeps every rule");
    let config = Config {
        seed: i as u64,
        ..Config::new(format!("{i}.{incarnation}"), timing)
    };
    Candidate {
        election: Election::new(config),
        incarnation,
        gained,
        paused: false,
        guard: None,
        token: None,
        work: None,
        seen: (0, 0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks the number of states, which changes only when decisions of the code change. Such a change must be
    /// deliberate.
    #[track_caller]
    fn complete(scope: &Scope, states: usize) {
        let checked = check(scope, 2);
        assert!(checked.complete, "{checked}");
        assert!(checked.holds(), "{checked}");
        assert_eq!(checked.states, states, "{checked}");
    }

    #[test]
    fn invariants_hold_for_two_candidates_with_one_fault() {
        complete(&Scope::quick(), 146_094);
    }

    #[test]
    fn invariants_hold_for_two_watching_candidates_with_one_fault() {
        let checked = check(&Scope::quick_watching(), 2);
        assert!(checked.holds(), "{checked}");
    }
}
