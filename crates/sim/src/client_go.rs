//! client-go's control flow as a reference mutant: the behaviour of `leaderelection.go` on our inputs and commands. It
//! violates S1, S4 and S5 in the ways that `docs/book/explanation/safety.md` lists. The simulator must detect this,
//! which shows that it can detect violations.

use std::time::Duration;

use tenure_core::timing::JITTER_FACTOR;
use tenure_core::{
    Command, Config, Guard, Input, LocalTime, Now, Observation, Outcome, Record, StopReason,
    Version, WriteKind,
};

use crate::rng::Rng;

/// `IsLeader` does not depend on time: it stays true until another record is observed.
const FOR_EVER: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Loop {
    Idle,
    /// `acquire`: attempt, sleep, repeat.
    Acquire,
    /// `renew`: a round of attempts until this deadline.
    Round(LocalTime),
    /// `renew`: the sleep between rounds.
    Between,
    /// `release`, until this deadline.
    Release(LocalTime),
    Ended,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Call {
    FastUpdate,
    Get,
    Create,
    Update,
    ReleaseGet,
    ReleaseUpdate,
}

/// An elector of client-go that is restarted after each term.
#[derive(Debug)]
pub struct ClientGo {
    config: Config,
    state: Loop,
    call: Option<(u64, Call, LocalTime)>,
    next_id: u64,
    wake: LocalTime,
    observed: Record,
    observed_raw: u64,
    observed_time: LocalTime,
    cached: Option<Version>,
    pending: Option<Record>,
    cancelled: bool,
    working: bool,
    rng: Rng,
}

impl ClientGo {
    /// Creates an elector that has not started.
    pub fn new(config: Config) -> Self {
        Self {
            rng: Rng::new(config.seed),
            config,
            state: Loop::Idle,
            call: None,
            next_id: 1,
            wake: LocalTime::default(),
            observed: Record::default(),
            observed_raw: 0,
            observed_time: LocalTime::default(),
            cached: None,
            pending: None,
            cancelled: false,
            working: false,
        }
    }

    /// Same as [`tenure_core::Election::step`].
    pub fn step(&mut self, now: Now, input: Input) -> Vec<Command> {
        let mut out = Vec::new();
        if let Loop::Round(until) | Loop::Release(until) = self.state
            && now.local >= until
        {
            // The deadline of the context aborts the request in flight.
            self.call = None;
            self.deadline_passed(now, &mut out);
        }
        match input {
            Input::Start => {
                self.state = Loop::Acquire;
                self.wake = now.local;
            }
            Input::Observed(tenure_core::Source::Read(id), seen) => {
                if let Some(call) = self.answered(id) {
                    self.got(now, call, Some(seen), &mut out);
                }
            }
            Input::Absent(tenure_core::Source::Read(id), _) => {
                if let Some(call) = self.answered(id) {
                    self.got(now, call, None, &mut out);
                }
            }
            Input::ReadFailed(id) => {
                if self.answered(id).is_some() {
                    self.failed(now, &mut out);
                }
            }
            Input::Written(id, outcome) => {
                if let Some(call) = self.answered(id) {
                    self.wrote(now, call, &outcome, &mut out);
                }
            }
            Input::StepDown(_) | Input::Shutdown => {
                let leading = matches!(self.state, Loop::Round(_) | Loop::Between);
                if leading {
                    self.cancelled = matches!(input, Input::Shutdown);
                    self.call = None;
                    self.leave(now, &mut out);
                } else if matches!(input, Input::Shutdown) {
                    self.cancelled = true;
                    if !matches!(self.state, Loop::Release(_)) {
                        self.end(&mut out);
                    }
                }
            }
            Input::Tick
            | Input::WorkEnded
            | Input::WorkEnding
            | Input::Watching(_)
            | Input::Listed(_)
            | Input::Observed(..)
            | Input::Absent(..)
            | Input::Dead(_)
            | Input::Candidates(_)
            | Input::Expired(_) => {}
        }
        if let Some((id, _, expires)) = self.call
            && now.local >= expires
        {
            self.answered(id);
            self.failed(now, &mut out);
        }
        if self.call.is_none() && now.local >= self.wake {
            match self.state {
                Loop::Acquire | Loop::Round(_) => self.attempt(now, &mut out),
                Loop::Between => {
                    self.state = Loop::Round(now.local + self.config.timing.renew_deadline());
                    self.attempt(now, &mut out);
                }
                Loop::Idle | Loop::Release(_) | Loop::Ended => {}
            }
        }
        out
    }

    /// Same as [`tenure_core::Election::deadline`].
    pub fn deadline(&self) -> Option<LocalTime> {
        let call = self.call.map(|(_, _, expires)| expires);
        let own = match self.state {
            Loop::Idle | Loop::Ended => return None,
            Loop::Acquire | Loop::Between => self.call.is_none().then_some(self.wake),
            Loop::Round(until) if self.call.is_none() => Some(self.wake.min(until)),
            Loop::Round(until) | Loop::Release(until) => Some(until),
        };
        match (call, own) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        }
    }

    fn is_leader(&self) -> bool {
        self.observed.holder == self.config.identity
    }

    fn is_valid(&self, now: Now) -> bool {
        self.observed_time + self.observed.lease_duration() > now.local
    }

    /// Starts `tryAcquireOrRenew`.
    fn attempt(&mut self, now: Now, out: &mut Vec<Command>) {
        let timing = &self.config.timing;
        // A round of `renew` attempts at the fixed times of a ticker. The sleep of `acquire` starts when the attempt
        // ends.
        self.wake = now.local + timing.retry_period();
        let record = Record {
            holder: self.config.identity.clone(),
            lease_duration_seconds: timing.lease_seconds(),
            acquire_time: Some(now.wall),
            renew_time: Some(now.wall),
            ..Record::default()
        };
        self.pending = Some(record);
        match self.cached.clone() {
            Some(version) if self.is_leader() && self.is_valid(now) => {
                let record = self.keeping_term();
                self.put(
                    now,
                    Call::FastUpdate,
                    WriteKind::Renew(version),
                    record,
                    out,
                );
            }
            _ => self.get(now, Call::Get, out),
        }
    }

    fn keeping_term(&mut self) -> Record {
        let mut record = self.pending.take().unwrap_or_default();
        record.acquire_time = self.observed.acquire_time;
        record.transitions = self.observed.transitions;
        self.pending = Some(record.clone());
        record
    }

    fn got(&mut self, now: Now, call: Call, seen: Option<Observation>, out: &mut Vec<Command>) {
        if call == Call::ReleaseGet {
            match seen {
                Some(seen) if self.is_leader() => {
                    // client-go checks only its cached state, not the record that it just read.
                    let record = seen.record.released(now.wall);
                    let base = WriteKind::Release(seen.version, None);
                    self.put(now, Call::ReleaseUpdate, base, record, out);
                }
                _ => self.stop_work(now, out),
            }
            return;
        }
        let Some(seen) = seen else {
            let record = self.pending.clone().unwrap_or_default();
            self.put(now, Call::Create, WriteKind::Create, record, out);
            return;
        };
        self.cached = Some(seen.version.clone());
        if seen.unreadable {
            return self.failed(now, out);
        }
        if seen.fingerprint != self.observed_raw {
            self.observed_raw = seen.fingerprint;
            self.observed = seen.record.clone();
            self.observed_time = now.local;
        }
        if !seen.record.is_free() && self.is_valid(now) && !self.is_leader() {
            return self.failed(now, out);
        }
        let record = if self.is_leader() {
            self.keeping_term()
        } else {
            let mut record = self.pending.clone().unwrap_or_default();
            record.transitions = seen.record.transitions + 1;
            self.pending = Some(record.clone());
            record
        };
        let kind = if self.working {
            WriteKind::Renew(seen.version)
        } else {
            WriteKind::Acquire(seen.version)
        };
        self.put(now, Call::Update, kind, record, out);
    }

    fn wrote(&mut self, now: Now, call: Call, outcome: &Outcome, out: &mut Vec<Command>) {
        match (call, outcome) {
            (Call::ReleaseUpdate, Outcome::Applied(_)) => {
                self.observed = Record::default();
                self.observed_time = now.local;
                out.push(Command::Released);
                self.stop_work(now, out);
            }
            (Call::ReleaseUpdate, Outcome::Refused) => self.get(now, Call::ReleaseGet, out),
            (Call::ReleaseUpdate, _) => self.stop_work(now, out),
            (_, Outcome::Applied(version)) => {
                self.cached = Some(version.clone());
                self.observed = self.pending.clone().unwrap_or_default();
                self.observed_time = now.local;
                self.succeeded(now, version, out);
            }
            (Call::FastUpdate, _) => self.get(now, Call::Get, out),
            _ => self.failed(now, out),
        }
    }

    fn succeeded(&mut self, now: Now, version: &Version, out: &mut Vec<Command>) {
        if !self.working {
            self.working = true;
            out.push(Command::Lead {
                token: version
                    .revision
                    .as_str()
                    .parse()
                    .expect("the simulated server numbers its revisions"),
                transitions: self.observed.transitions,
                guard: Guard::new(now, FOR_EVER),
            });
            // The first round starts immediately.
            self.wake = now.local;
        } else {
            self.wake = now.local + self.config.timing.retry_period();
        }
        self.state = Loop::Between;
    }

    fn failed(&mut self, now: Now, out: &mut Vec<Command>) {
        match self.state {
            Loop::Acquire => {
                let retry = self.config.timing.retry_period();
                let jitter = retry.mul_f64(JITTER_FACTOR).as_nanos() as u64;
                self.wake = now.local + retry + Duration::from_nanos(self.rng.below(jitter));
            }
            Loop::Release(_) => self.stop_work(now, out),
            // The ticker continues; missed ticks are dropped.
            Loop::Round(_) => self.wake = self.wake.max(now.local),
            Loop::Idle | Loop::Between | Loop::Ended => {}
        }
    }

    fn deadline_passed(&mut self, now: Now, out: &mut Vec<Command>) {
        match self.state {
            Loop::Round(_) => self.leave(now, out),
            Loop::Release(_) => self.stop_work(now, out),
            Loop::Idle | Loop::Acquire | Loop::Between | Loop::Ended => {}
        }
    }

    /// Handles the end of the renew loop, for any reason: releases, and only then cancels the work.
    fn leave(&mut self, now: Now, out: &mut Vec<Command>) {
        if self.config.release_on_cancel {
            self.state = Loop::Release(now.local + self.config.timing.renew_deadline());
            self.get(now, Call::ReleaseGet, out);
        } else {
            self.stop_work(now, out);
        }
    }

    fn stop_work(&mut self, now: Now, out: &mut Vec<Command>) {
        self.working = false;
        out.push(Command::Stop {
            reason: StopReason::GuardExpired,
            deadline: now.local + FOR_EVER,
        });
        self.call = None;
        if self.cancelled {
            self.end(out);
        } else {
            // The caller's loop creates a new elector.
            self.state = Loop::Acquire;
            self.wake = now.local;
            self.observed = Record::default();
            self.observed_raw = 0;
            self.observed_time = LocalTime::default();
            self.cached = None;
        }
    }

    fn end(&mut self, out: &mut Vec<Command>) {
        self.state = Loop::Ended;
        out.push(Command::Finished);
    }

    fn answered(&mut self, id: u64) -> Option<Call> {
        let (_, call, _) = self.call.take_if(|(number, ..)| *number == id)?;
        Some(call)
    }

    fn open(&mut self, now: Now, call: Call) -> (u64, Duration) {
        let id = self.next_id;
        self.next_id += 1;
        // The timeout that `NewFromKubeconfig` sets for the lock's client.
        let timeout = self.config.timing.renew_deadline() / 2;
        self.call = Some((id, call, now.local + timeout));
        (id, timeout)
    }

    fn get(&mut self, now: Now, call: Call, out: &mut Vec<Command>) {
        let (id, timeout) = self.open(now, call);
        out.push(Command::Read { id, timeout });
    }

    fn put(
        &mut self,
        now: Now,
        call: Call,
        kind: WriteKind,
        record: Record,
        out: &mut Vec<Command>,
    ) {
        let (id, timeout) = self.open(now, call);
        out.push(Command::Write {
            id,
            kind,
            record,
            timeout,
        });
    }
}
