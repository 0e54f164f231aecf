//! Requests to the API server, their responses, and watch events.

use std::time::Duration;

use tenure_core::{Record, Version};

use super::candidate::Naming;
use super::server::{Call, Reply};
use super::{Event, SECOND, WatchEvent, World};
use crate::fault::Fault;

/// A request in flight.
#[derive(Debug)]
pub(super) struct Travel {
    candidate: usize,
    incarnation: u64,
    call: Call,
    answered: bool,
    error: bool,
}

impl World {
    /// Sends a request of an election with a time limit.
    pub(super) fn request(&mut self, i: usize, call: Call, id: u64, timeout: Duration) {
        let candidate = &mut self.candidates[i];
        candidate.request = Some((id, matches!(call, Call::Write(..))));
        let deadline = candidate.clock.now(self.now).local + timeout;
        let at = candidate.clock.real_at(deadline, self.now);
        let incarnation = candidate.incarnation;
        self.at(at, Event::Timeout(i, incarnation, id));
        self.call(i, call);
    }

    pub(super) fn call(&mut self, i: usize, call: Call) {
        let incarnation = self.candidates[i].incarnation;
        let mut travel = Travel {
            candidate: i,
            incarnation,
            call,
            answered: true,
            error: false,
        };
        let mut delay = self.one_way();
        if self.candidates[i].cut_until > self.now {
            return self.lose(travel);
        }
        if !self.calm && self.rng.chance(self.faults) {
            let fault = *self.rng.pick(&[
                Fault::RequestLost,
                Fault::AnswerLost,
                Fault::RequestLate,
                Fault::ErrorApplied,
                Fault::ErrorNotApplied,
            ]);
            self.report.totals.faults.count(fault);
            match fault {
                Fault::RequestLost => return self.lose(travel),
                Fault::AnswerLost => travel.answered = false,
                Fault::RequestLate => delay += self.rng.below(120 * SECOND),
                Fault::ErrorApplied => travel.error = true,
                _ => {
                    let reply = Box::new(Reply::Error(travel.call));
                    return self.after(delay, Event::Answer(i, incarnation, reply));
                }
            }
        }
        self.after(delay, Event::Arrive(Box::new(travel)));
    }

    /// Drops a request. A process that starts reads its pod again; other requests have their own time limits.
    fn lose(&mut self, travel: Travel) {
        if matches!(travel.call, Call::Own(_)) {
            let reply = Box::new(Reply::Error(travel.call));
            let answer = Event::Answer(travel.candidate, travel.incarnation, reply);
            self.after(10 * SECOND, answer);
        }
    }

    pub(super) fn arrive(&mut self, travel: Travel) {
        let i = travel.candidate;
        let reply = self.serve(i, &travel.call);
        if !travel.answered || self.candidates[i].cut_until > self.now {
            return self.lose(travel);
        }
        let reply = match travel.error {
            true => Reply::Error(travel.call),
            false => reply,
        };
        let delay = self.one_way();
        self.after(delay, Event::Answer(i, travel.incarnation, Box::new(reply)));
    }

    fn serve(&mut self, i: usize, call: &Call) -> Reply {
        match call {
            Call::Get(id) => Reply::Got(*id, self.cluster.lease.clone()),
            Call::Write(id, base, record) => {
                let mark = self.candidates[i].mark();
                let Some(lease) = self.cluster.write(base.as_ref(), record, mark) else {
                    return Reply::Refused(*id);
                };
                // The garbage collector would delete objects that are owned by a pod with a wrong name.
                let owner = self.candidates[i].mark().cloned();
                let right = self.candidates[i].naming == Naming::Right && !record.is_free();
                self.cluster.owner = owner.filter(|_| right);
                self.announce(|| WatchEvent::Lease(lease.clone()));
                Reply::Stored(*id, lease)
            }
            Call::Own(name) => Reply::Own(self.list(name)),
            Call::List(name) => Reply::Pods(name.clone(), self.list(name)),
            Call::Fetch => Reply::Fetched(self.cluster.lease.clone()),
            Call::Empty(base, record) => {
                self.empty(base.as_ref(), record);
                Reply::Fetched(self.cluster.lease.clone())
            }
        }
    }

    /// Returns the pods of a name, sometimes a stale view.
    fn list(&mut self, name: &str) -> super::cluster::PodView {
        let mut back = 0;
        if !self.calm && self.rng.chance(self.faults) {
            self.report.totals.faults.count(Fault::StaleRead);
            back = self.rng.below(40);
        }
        self.cluster.list(name, back)
    }

    /// Empties the record in this version, or creates a Lease without a holder.
    pub(super) fn empty(&mut self, base: Option<&Version>, record: &Record) {
        let now = tenure_core::WallTime::from_micros((self.now / 1_000) as i64);
        let released = record.released(now);
        if let Some(lease) = self.cluster.write(base, &released, None) {
            self.cluster.owner = None;
            self.trace(|_| format!("the Lease is freed of {:?}", record.holder));
            self.announce(|| WatchEvent::Lease(lease.clone()));
        }
    }

    /// Sends a change of the Lease to every watcher, in order.
    pub(super) fn announce(&mut self, event: impl Fn() -> WatchEvent) {
        for i in 0..self.candidates.len() {
            let mut delay = self.one_way();
            if !self.calm && self.rng.chance(self.faults / 4) {
                self.report.totals.faults.count(Fault::WatchLate);
                delay += self.rng.below(60 * SECOND);
            }
            let candidate = &mut self.candidates[i];
            // Events that a partition blocks arrive when it has healed.
            let at = (self.now + delay)
                .max(candidate.tail)
                .max(candidate.cut_until);
            candidate.tail = at;
            if candidate.alive {
                let incarnation = candidate.incarnation;
                self.at(at, Event::Watch(i, incarnation, Box::new(event())));
            }
        }
    }

    fn one_way(&mut self) -> u64 {
        self.latency / 2 + self.rng.below(self.latency)
    }
}
