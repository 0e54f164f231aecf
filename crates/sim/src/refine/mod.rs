//! Checks that every step of a run is a step of the system that `proof/` proves (`docs/book/explanation/proof.md`).
//!
//! [`Refinement`] computes the state of that system from the run: from the versions of the object, the writes, the
//! observations, the terms and their guards. For each step it evaluates the conditions of the proved system, under the
//! names of `proof/transitions.txt`. The first condition that is false is a deviation. [`Refinement`] does not read the
//! state of an election.
//!
//! The variables have the names of `proof/system.py`. The flags `saw_mark` and `saw_record` are missing, because a
//! change resets them for all candidates. Instead, an observation has the number of the mark or record that was
//! observed.

pub mod step;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use tenure_core::{Guard, LocalTime, Timing, Version, WriteKind};

use crate::register::Object;
use step::Step;

/// Number of writes of a candidate that are remembered. Older ones can neither be applied nor count.
const REMEMBERED: usize = 64;

/// The register of the proved system.
#[derive(Debug, Default)]
struct Register {
    /// The current object; `None` while it does not exist.
    object: Option<Rc<Object>>,
    /// The object that was deleted last.
    deleted: Option<Rc<Object>>,
    version: u64,
    author: Option<u64>,
    mark_author: Option<u64>,
    mark_free: bool,
    mark_sent: LocalTime,
    mark_lease: Duration,
    /// The greatest fingerprint of a record so far. Later records have greater fingerprints.
    newest: u64,
    /// Numbers of the current mark and of the current record.
    mark: u64,
    record: u64,
    terms: u64,
}

impl Register {
    fn is_current(&self, base: &Version) -> bool {
        self.object
            .as_ref()
            .is_some_and(|object| object.seen.version == *base)
    }

    fn is_empty(&self) -> bool {
        let seen = self.object.as_ref().map(|object| &object.seen);
        seen.is_some_and(|seen| seen.record.is_free() && !seen.unreadable)
    }

    fn is_described(&self) -> bool {
        let object = self.object.as_ref();
        object.is_some_and(|object| object.seen.incarnation().is_some())
    }
}

/// A write of a candidate.
#[derive(Clone, Copy, Debug)]
struct Write {
    id: u64,
    sent: LocalTime,
    wins: bool,
    releases: bool,
    /// The version that it created.
    applied: Option<u64>,
    term: u64,
}

/// An observation of the mark or of the record with this number.
#[derive(Clone, Copy, Debug, Default)]
struct Saw {
    number: u64,
    at: LocalTime,
}

/// A candidate of the proved system.
#[derive(Debug, Default)]
struct Candidate {
    dead: bool,
    /// Send time of the write from which the guard counts.
    guard: Option<LocalTime>,
    floor: u64,
    last_id: u64,
    /// Token and number of the last term.
    term: Option<(u64, u64)>,
    saw_mark: Option<Saw>,
    saw_record: Option<Saw>,
    /// A stale read has hidden the mark with this number.
    forgot: Option<u64>,
    proof: Option<Version>,
    writes: Vec<Write>,
    /// Real and local time of its last step.
    clock: Option<(u64, LocalTime)>,
}

/// The candidate that takes a step.
#[derive(Clone, Copy, Debug)]
pub struct Actor<'a> {
    /// Number of the incarnation, which is unique in a run.
    pub incarnation: u64,
    /// Local clock of the candidate.
    pub clock: LocalTime,
    /// Durations of the candidate.
    pub timing: &'a Timing,
    /// Whether the guarded work of the candidate runs.
    pub works: bool,
}

/// The state of the proved system, and the first deviation from it.
#[derive(Debug)]
pub struct Refinement {
    register: Register,
    candidates: BTreeMap<u64, Candidate>,
    /// The greatest rate error of a clock, as a fraction; `None` if clocks are not checked.
    rho: Option<f64>,
    checks: bool,
    taken: [u64; Step::ALL.len()],
    deviation: Option<String>,
}

impl Refinement {
    /// Creates the first state. Without `checks`, the run is outside of the proved system, and nothing is checked.
    pub fn new(checks: bool, rho: Option<f64>) -> Self {
        Self {
            register: Register {
                mark_free: true,
                ..Register::default()
            },
            candidates: BTreeMap::new(),
            rho,
            checks,
            taken: [0; Step::ALL.len()],
            deviation: None,
        }
    }

    /// Returns the first deviation.
    pub fn deviation(&self) -> Option<&str> {
        self.deviation.as_deref()
    }

    /// Returns how often each step was taken.
    pub const fn taken(&self) -> [u64; Step::ALL.len()] {
        self.taken
    }

    /// Takes a step whose conditions are these, in the order of the table.
    fn take(&mut self, step: Step, actor: Option<u64>, conditions: &[bool]) {
        debug_assert_eq!(conditions.len(), step.conditions().len());
        self.taken[step as usize] += 1;
        let wrong = conditions.iter().position(|holds| !holds);
        if let (Some(at), None) = (wrong, &self.deviation) {
            let (name, condition) = (step.name(), step.conditions()[at]);
            let actor = actor.map_or(String::new(), |number| format!(" of incarnation {number}"));
            self.deviation = Some(format!("{name}{actor}: {condition} does not hold"));
        }
    }

    fn candidate(&mut self, actor: Actor<'_>) -> &mut Candidate {
        self.candidates.entry(actor.incarnation).or_default()
    }

    /// The clock of a candidate advances.
    pub fn pass_time(&mut self, actor: Actor<'_>, real: u64) {
        let (Some(rho), true) = (self.rho, self.checks) else {
            return;
        };
        let last = self.candidate(actor).clock.replace((real, actor.clock));
        let Some((then, clock)) = last.filter(|(then, _)| *then != real) else {
            return;
        };
        let (dt, d) = (
            (real - then) as f64,
            actor.clock.since(clock).as_nanos() as f64,
        );
        // Both clocks count whole nanoseconds.
        let rates = d + 1.0 >= dt * (1.0 - rho) && d - 1.0 <= dt * (1.0 + rho);
        let conditions = [actor.clock >= clock, rates];
        self.take(Step::PassTime, Some(actor.incarnation), &conditions);
    }

    /// Another writer may have changed the object.
    pub fn sync(&mut self, current: Option<&Rc<Object>>, revision: u64) {
        if !self.checks || revision == self.register.version {
            return;
        }
        let next = revision > self.register.version;
        let before = self.register.object.take();
        self.register.version = revision;
        let Some(object) = current else {
            let existed = before.is_some();
            self.register.author = None;
            self.register.deleted = before.or_else(|| self.register.deleted.take());
            return self.take(Step::Delete, None, &[existed, next]);
        };
        self.register.object = Some(object.clone());
        let Some(before) = before else {
            self.register.author = None;
            self.register.mark_author = None;
            self.register.mark_free = true;
            self.register.mark += 1;
            self.register.record += 1;
            self.register.newest = object.seen.fingerprint;
            return self.take(Step::ForeignCreate, None, &[true, next]);
        };
        let same = before.seen.fingerprint == object.seen.fingerprint;
        // A controller adds a preferred holder to a record, which keeps its author.
        let same = same || before.seen.record.same_write(&object.seen.record);
        if same && before.seen.unreadable == object.seen.unreadable {
            return self.take(Step::Touch, None, &[true, next]);
        }
        if object.seen.fingerprint <= self.register.newest {
            // A person has written an earlier record once more, which the proved system excludes.
            self.checks = false;
            return;
        }
        self.register.newest = object.seen.fingerprint;
        self.register.record += 1;
        self.register.author = None;
        self.take(Step::ForeignWrite, None, &[true, next]);
    }

    /// A candidate observes a version.
    pub fn observe(&mut self, actor: Actor<'_>, object: &Object) {
        let register = &self.register;
        let exists = register.object.is_some();
        let last = register.object.as_ref().or(register.deleted.as_ref());
        let Some(current) = last.filter(|_| self.checks).cloned() else {
            return;
        };
        let mark = match (&object.seen.mark, &current.seen.mark) {
            (Some(mark), Some(now)) => mark.is(now) && object.marked_by == current.marked_by,
            _ => false,
        };
        let record = object.seen.fingerprint == current.seen.fingerprint
            && object.seen.version.uid == current.seen.version.uid;
        let (mark_number, record_number) = (register.mark, register.record);
        let stale = !mark && object.revision < current.revision;
        let candidate = self.candidate(actor);
        let at = actor.clock;
        if stale {
            candidate.forgot = Some(mark_number);
        }
        if !exists {
            // The mark of the deleted object is hidden by a stale read, but it cannot be observed.
            if stale {
                self.take(Step::Forget, Some(actor.incarnation), &[]);
            }
            return;
        }
        if mark
            && candidate
                .saw_mark
                .is_none_or(|saw| saw.number != mark_number)
        {
            candidate.saw_mark = Some(Saw {
                number: mark_number,
                at,
            });
        }
        if record
            && candidate
                .saw_record
                .is_none_or(|saw| saw.number != record_number)
        {
            candidate.saw_record = Some(Saw {
                number: record_number,
                at,
            });
        }
        if mark || record {
            self.take(Step::Observe, Some(actor.incarnation), &[true]);
        } else if stale {
            self.take(Step::Forget, Some(actor.incarnation), &[]);
        }
    }

    /// A candidate gets a proof that the holder of a version is dead.
    pub fn prove(&mut self, actor: Actor<'_>, version: &Version) {
        if !self.checks {
            return;
        }
        let register = &self.register;
        if register.author == Some(actor.incarnation) {
            // A candidate has no use for a proof about itself.
            return;
        }
        let author = register.author.and_then(|a| self.candidates.get(&a));
        let current = register.is_current(version);
        let about = current && register.is_described();
        let known = revision(version) <= register.version;
        let conditions = [known, !about || author.is_none_or(|author| author.dead)];
        let candidate = self.candidate(actor);
        if current || candidate.proof.is_none() {
            candidate.proof = Some(version.clone());
        }
        self.take(Step::Prove, Some(actor.incarnation), &conditions);
    }

    /// A guard ends.
    pub fn stop(&mut self, actor: Actor<'_>) {
        self.candidate(actor).guard = None;
        self.take(Step::Stop, Some(actor.incarnation), &[]);
    }

    /// All work of a term has ended.
    pub fn end_work(&mut self, actor: Actor<'_>) {
        self.take(Step::EndWork, Some(actor.incarnation), &[]);
    }

    /// A process ends.
    pub fn crash(&mut self, incarnation: u64) {
        let candidate = self.candidates.entry(incarnation).or_default();
        candidate.dead = true;
        candidate.guard = None;
        self.take(Step::Crash, Some(incarnation), &[]);
    }

    /// A candidate sends a write. `assigned`: a controller has assigned the current record to it.
    pub fn send(&mut self, actor: Actor<'_>, id: u64, kind: &WriteKind, assigned: bool) {
        if !self.checks {
            return;
        }
        self.candidate(actor);
        let (register, candidate) = (&self.register, &self.candidates[&actor.incarnation]);
        let base = kind.base();
        let known = base.is_none_or(|base| revision(base) <= register.version);
        let numbered = id > candidate.last_id && known;
        let current = base.is_some_and(|base| register.is_current(base));
        let own = register.author == Some(actor.incarnation);
        if matches!(kind, WriteKind::Release(_, _)) {
            let ended = candidate.guard.is_none() && !actor.works;
            let in_time = actor.clock < register.mark_sent + actor.timing.guard();
            let conditions = [
                numbered,
                !candidate.dead,
                ended,
                !current || (own && in_time),
            ];
            self.take(Step::SendRelease, Some(actor.incarnation), &conditions);
        } else {
            let mark = register.mark_free
                || register.mark_author == Some(actor.incarnation)
                || waited(
                    candidate.saw_mark,
                    register.mark,
                    actor,
                    register.mark_lease,
                );
            let stated = register
                .object
                .as_ref()
                .map(|o| o.seen.record.lease_duration());
            let record = register.is_empty()
                || assigned
                || waited(
                    candidate.saw_record,
                    register.record,
                    actor,
                    stated.unwrap_or_default(),
                );
            let dead = register.is_described()
                && candidate
                    .proof
                    .as_ref()
                    .is_some_and(|proof| register.is_current(proof));
            let may_replace = !current || own || (mark && record) || dead;
            let saw = candidate
                .saw_mark
                .is_some_and(|saw| saw.number == register.mark);
            let saw = saw && candidate.forgot != Some(register.mark);
            let may_create = register.object.is_some() || base.is_some() || !saw || mark;
            let conditions = [numbered, !candidate.dead, may_replace, may_create];
            self.take(Step::Send, Some(actor.incarnation), &conditions);
        }
        self.remember(actor.incarnation, actor.clock, id, kind);
    }

    /// The watchdog of a dead process sends a release. Returns its number.
    pub fn crash_release(&mut self, incarnation: u64, clock: LocalTime, kind: &WriteKind) -> u64 {
        let candidate = self.candidates.entry(incarnation).or_default();
        let (id, dead) = (candidate.last_id + 1, candidate.dead);
        let base = kind.base();
        let current = base.is_some_and(|base| self.register.is_current(base));
        let known = base.is_none_or(|base| revision(base) <= self.register.version);
        let own = self.register.author == Some(incarnation);
        if self.checks {
            self.take(
                Step::CrashRelease,
                Some(incarnation),
                &[known, dead, !current || own],
            );
        }
        self.remember(incarnation, clock, id, kind);
        id
    }

    fn remember(&mut self, incarnation: u64, sent: LocalTime, id: u64, kind: &WriteKind) {
        let candidate = self.candidates.entry(incarnation).or_default();
        let releases = matches!(kind, WriteKind::Release(_, _));
        candidate.last_id = id;
        if releases {
            candidate.floor = id;
        }
        if candidate.writes.len() == REMEMBERED {
            candidate.writes.remove(0);
        }
        candidate.writes.push(Write {
            id,
            sent,
            wins: matches!(kind, WriteKind::Create | WriteKind::Acquire(_)),
            releases,
            applied: None,
            term: 0,
        });
    }

    /// The server applies a write of a candidate.
    pub fn apply(&mut self, incarnation: u64, id: u64, kind: &WriteKind, object: &Rc<Object>) {
        if !self.checks {
            return;
        }
        let register = &mut self.register;
        let fits = match (kind.base(), &register.object) {
            (None, None) => true,
            (Some(base), Some(current)) => current.seen.version == *base,
            _ => false,
        };
        let next = object.revision > register.version;
        let candidate = self.candidates.entry(incarnation).or_default();
        let mut writes = candidate.writes.iter_mut();
        let write = writes.find(|write| write.id == id);
        if kind.base().is_none() && write.as_ref().is_some_and(|write| write.applied.is_some()) {
            // The object was deleted, and a duplicate of the request has created it once more. The proved system
            // excludes it.
            self.checks = false;
            return;
        }
        let write = write.filter(|write| write.applied.is_none());
        register.terms += u64::from(matches!(kind, WriteKind::Create | WriteKind::Acquire(_)));
        register.version = object.revision;
        register.author = Some(incarnation);
        register.mark_author = Some(incarnation);
        register.mark_free = object.seen.mark.is_none_or(|mark| mark.is_release());
        register.mark_lease = object
            .seen
            .mark
            .map_or(Duration::ZERO, |mark| mark.lease_duration());
        register.mark_sent = object.sent;
        register.mark += 1;
        register.record += 1;
        register.newest = object.seen.fingerprint;
        register.object = Some(object.clone());
        let sent = write.is_some_and(|write| {
            write.applied = Some(object.revision);
            write.term = register.terms;
            write.sent == object.sent
        });
        self.take(Step::Apply, Some(incarnation), &[sent, fits, next]);
    }

    /// A term begins.
    pub fn begin(&mut self, actor: Actor<'_>, token: u64, guard: &Guard) {
        if !self.checks {
            return;
        }
        let candidate = self.candidate(actor);
        let mut writes = candidate.writes.iter();
        let write = writes.find(|write| write.applied == Some(token)).copied();
        let sent = guard.sent().local;
        let holds = write.is_some_and(|write| sent == write.sent)
            && guard.length() == actor.timing.guard()
            && actor.clock < sent + actor.timing.guard();
        let conditions = [
            !candidate.dead,
            candidate.guard.is_none() && !actor.works,
            write.is_some(),
            write.is_some_and(|write| write.wins),
            write.is_some_and(|write| write.id > candidate.floor),
            holds,
            candidate.term.is_none_or(|(last, _)| token > last),
        ];
        candidate.guard = Some(sent);
        candidate.term = Some((token, write.map_or(0, |write| write.term)));
        self.take(Step::Begin, Some(actor.incarnation), &conditions);
    }

    /// A guard is extended.
    pub fn extend(&mut self, actor: Actor<'_>, guard: &Guard) {
        if !self.checks {
            return;
        }
        let candidate = self.candidate(actor);
        let sent = guard.sent().local;
        let counts =
            |write: &&Write| write.sent == sent && write.applied.is_some() && !write.releases;
        let write = candidate.writes.iter().rev().find(counts).copied();
        let conditions = [
            !candidate.dead,
            candidate.guard.is_some(),
            write.is_some() && guard.length() == actor.timing.guard(),
            write.is_some_and(|write| write.id > candidate.floor),
            candidate.guard.is_some_and(|last| sent >= last),
        ];
        candidate.guard = Some(sent);
        self.take(Step::Extend, Some(actor.incarnation), &conditions);
    }
}

fn revision(version: &Version) -> u64 {
    version.revision.as_str().parse().unwrap_or(u64::MAX)
}

/// Returns whether a candidate has observed the mark or the record with this number for the lease and its lock delay.
fn waited(saw: Option<Saw>, number: u64, actor: Actor<'_>, lease: Duration) -> bool {
    let patience = lease + actor.timing.lock_delay();
    saw.is_some_and(|saw| saw.number == number && actor.clock >= saw.at + patience)
}
