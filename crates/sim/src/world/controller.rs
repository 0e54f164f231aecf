//! The controller of a coordinated election, modelled on kube-apiserver 1.36
//! (`pkg/controlplane/controller/leaderelection/leaderelection_controller.go`), and the LeaseCandidates from which it
//! selects.
//!
//! Properties that matter to candidates: it compares times in the record with its own wall clock. It replaces the
//! record of a holder that seems expired, keeps annotations, never increments transitions, and does not repeat an
//! assignment to the same candidate. Its steps on one Lease are simulated as one step, because its write is a
//! compare-and-set on the version that it read just before.

use tenure_core::{Record, WallTime};

use super::World;
use super::event::Event;

/// The strategy that Kubernetes implements.
const STRATEGY: &str = "OldestEmulationVersion";

/// `defaultRequeueInterval`, in nanoseconds.
const REQUEUE: u64 = 5_000_000_000;

/// `electionDuration`, in microseconds: how long a ping waits for a response.
const ELECTION: i64 = 5_000_000;

/// `defaultLeaseDurationSeconds`: the lease of an assignment.
const ASSIGNED_SECONDS: u32 = 5;

/// `leaseCandidateValidDuration`, in microseconds.
const VALID: i64 = 30 * 60 * 1_000_000;

/// Interval at which a candidate renews its object without a ping, in nanoseconds.
const RENEW_EVERY: u64 = 300_000_000_000;

/// A LeaseCandidate.
#[derive(Clone, Debug)]
struct Candidate {
    incarnation: u64,
    name: String,
    /// The lowest version is preferred.
    emulation: u64,
    renewed: i64,
    pinged: Option<i64>,
}

impl Candidate {
    fn owes_an_answer(&self) -> bool {
        self.pinged.is_some_and(|pinged| self.renewed < pinged)
    }
}

/// The controller and its state.
#[derive(Debug, Default)]
pub(super) struct Controller {
    /// Offset of its wall clock from real time, in nanoseconds.
    pub(super) offset: i64,
    /// In the order of their creation.
    candidates: Vec<Candidate>,
    /// The number and the time of the next check.
    wake: Option<(u64, u64)>,
}

impl World {
    /// Schedules a check of the controller soon, because the object or a candidate changed.
    pub(super) fn wake_controller(&mut self) {
        if self.plan.coordinated {
            let delay = self.one_way();
            self.look_after(delay);
        }
    }

    fn look_after(&mut self, delay: u64) {
        let at = self.now + delay;
        if self.controller.wake.is_some_and(|(_, wake)| wake <= at) {
            return;
        }
        self.sequence += 1;
        let number = self.sequence;
        self.controller.wake = Some((number, at));
        self.at(at, Event::Controller { number });
    }

    /// Creates the object of a candidate, or renews it, now and every five minutes.
    pub(super) fn announce_candidate(&mut self, i: usize, incarnation: u64) {
        if self.nodes[i].incarnation != incarnation || !self.nodes[i].alive {
            return;
        }
        self.after(
            RENEW_EVERY,
            Event::Candidate {
                node: i,
                incarnation,
            },
        );
        let known = |c: &Candidate| c.incarnation == incarnation;
        if !self.controller.candidates.iter().any(known) {
            let emulation = self.rng.range(1_000, 1_003);
            self.controller.candidates.push(Candidate {
                incarnation,
                name: self.nodes[i].identity.clone(),
                emulation,
                renewed: i64::MIN,
                pinged: None,
            });
        }
        self.renew_candidate(i, incarnation);
    }

    /// Renews the object of a candidate. If the candidate cannot send now, it tries again.
    pub(super) fn renew_candidate(&mut self, i: usize, incarnation: u64) {
        let node = &self.nodes[i];
        if node.incarnation != incarnation || !node.alive {
            return;
        }
        let cut_off = node.requests_blocked_until.max(node.answers_blocked_until);
        if cut_off.max(node.paused_until) > self.now {
            let event = Event::Ping {
                node: i,
                incarnation,
            };
            return self.after(1_000_000_000, event);
        }
        let wall = node.clock.now(self.now).wall.as_micros();
        let mut candidates = self.controller.candidates.iter_mut();
        if let Some(candidate) = candidates.find(|c| c.incarnation == incarnation) {
            let past = candidate.pinged.map_or(i64::MIN, |pinged| pinged + 1);
            candidate.renewed = wall.max(past);
            self.wake_controller();
        }
    }

    /// Simulates an upgrade: from now on this candidate is preferred.
    pub(super) fn prefer(&mut self, i: usize) {
        let incarnation = self.nodes[i].incarnation;
        let candidates = &mut self.controller.candidates;
        let best = candidates.iter().map(|c| c.emulation).min();
        let mut candidates = candidates.iter_mut();
        if let Some(candidate) = candidates.find(|c| c.incarnation == incarnation) {
            candidate.emulation = best.unwrap_or(1_000).saturating_sub(1);
            self.wake_controller();
        }
    }

    /// Performs `reconcileElectionStep`.
    pub(super) fn reconcile(&mut self, number: u64) {
        if self.controller.wake.is_none_or(|(wake, _)| wake != number) {
            return;
        }
        self.controller.wake = None;
        if self.election_step() {
            self.look_after(REQUEUE);
        }
    }

    /// Performs one step. Returns whether to check again without an event.
    fn election_step(&mut self) -> bool {
        let now = self.controller_now();
        let valid = |c: &Candidate| c.renewed.saturating_add(VALID) >= now;
        self.controller.candidates.retain(valid);
        if self.controller.candidates.is_empty() {
            return false;
        }
        if !self.is_election_needed(now) || self.ping_candidates(now) {
            return true;
        }
        let acked = |c: &&Candidate| c.renewed.saturating_add(ELECTION) > now;
        let acked = self.controller.candidates.iter().filter(acked);
        // The first of equal candidates is the oldest.
        let Some(best) = acked.min_by_key(|c| c.emulation) else {
            return false;
        };
        self.assign(now, best.name.clone());
        true
    }

    fn is_election_needed(&self, now: i64) -> bool {
        let Some(object) = self.register.current() else {
            return true;
        };
        let record = &object.seen.record;
        let candidates = &self.controller.candidates;
        let best = candidates.iter().min_by_key(|c| c.emulation);
        is_expired(record, now)
            || record.is_free()
            || candidates.iter().any(|c| c.renewed + VALID / 2 < now)
            || best.is_some_and(|best| best.name != record.holder)
    }

    /// Pings candidates. Returns whether responses are still missing.
    fn ping_candidates(&mut self, now: i64) -> bool {
        let mut wait = false;
        let mut asked = Vec::new();
        for candidate in &mut self.controller.candidates {
            let old = candidate.pinged.is_none_or(|at| at + ELECTION <= now);
            if candidate.owes_an_answer() && !old {
                wait = true;
            } else if candidate.renewed + ELECTION <= now
                && (candidate.pinged.is_none() || (old && !candidate.owes_an_answer()))
            {
                candidate.pinged = Some(now);
                asked.push(candidate.incarnation);
                wait = true;
            }
        }
        for incarnation in asked {
            let node = self.nodes.iter().position(|n| n.incarnation == incarnation);
            if let Some(node) = node {
                let delay = 2 * self.one_way();
                self.after(delay, Event::Ping { node, incarnation });
            }
        }
        wait
    }

    /// Creates the Lease, or replaces its record as far as that is allowed.
    fn assign(&mut self, now: i64, best: String) {
        let old = self.register.current().map(|o| o.seen.record.clone());
        let mut record = old.clone().unwrap_or_default();
        STRATEGY.clone_into(&mut record.strategy);
        if record.is_free() || (is_expired(&record, now) && record.holder != best) {
            record.preferred_holder.clear();
            record.holder = best;
            record.renew_time = Some(WallTime::from_micros(now));
            record.lease_duration_seconds = ASSIGNED_SECONDS;
            record.acquire_time = None;
        } else if record.holder != best {
            record.preferred_holder = best;
        }
        if old.as_ref() == Some(&record) {
            return;
        }
        let object = self.register.edit(record, false);
        self.trace(|_| {
            let Record {
                holder,
                preferred_holder: preferred,
                ..
            } = &object.seen.record;
            format!("the controller: holder {holder:?}, preferred {preferred:?}")
        });
        self.announce(&object);
    }

    fn controller_now(&self) -> i64 {
        (self.now as i64 + self.controller.offset).div_euclid(1_000)
    }
}

/// Implements `isLeaseExpired`.
fn is_expired(record: &Record, now: i64) -> bool {
    let lease = i64::from(record.lease_duration_seconds) * 1_000_000;
    record
        .renew_time
        .is_none_or(|renewed| renewed.as_micros().saturating_add(lease) < now)
}
