//! Requests, responses and watch events in flight.

use std::rc::Rc;

use tenure_core::{Input, LocalTime, Outcome, Place, Record, ResourceVersion, Source, WriteKind};

use super::{Event, World, present};
use crate::fault::Fault;
use crate::machine::Machine;
use crate::node::Letter;
use crate::register::{Applied, Object};

/// The watch is broken, and the node has not noticed yet.
pub(super) const SILENT: u64 = u64::MAX;

/// A request in flight to the server.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    node: usize,
    incarnation: u64,
    id: u64,
    /// The sender's local time when it was sent.
    sent: LocalTime,
    write: Option<(WriteKind, Record)>,
    /// Where the sender runs, if it describes itself.
    place: Option<Rc<Place>>,
    reply: Reply,
    /// Number of versions by which the answer to a read is outdated.
    stale: Option<usize>,
}

/// The reply to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reply {
    /// The response, after this delay.
    Answer(u64),
    /// An error without information, after this delay.
    Error(u64),
    /// "Conflict" although the request was executed, after this delay.
    Conflict(u64),
    /// No reply.
    Nothing,
}

impl World {
    pub(super) fn send_read(&mut self, i: usize, id: u64, timeout: u64) {
        self.send(i, id, timeout, None);
    }

    pub(super) fn send_write(
        &mut self,
        i: usize,
        id: u64,
        timeout: u64,
        kind: WriteKind,
        record: Record,
    ) {
        self.send(i, id, timeout, Some((kind, record)));
    }

    fn send(&mut self, i: usize, id: u64, timeout: u64, write: Option<(WriteKind, Record)>) {
        let node = &mut self.nodes[i];
        node.pending = Some(id);
        let (incarnation, is_write) = (node.incarnation, write.is_some());
        let sent = node.clock.now(self.now).local;
        let deadline = sent + std::time::Duration::from_nanos(timeout);
        node.open = Some((id, deadline));
        let expires = node.clock.real_at(deadline, self.now);
        let blocked = node.requests_blocked_until;
        let event = Event::Timeout {
            node: i,
            incarnation,
            id,
            write: is_write,
        };
        self.at(expires, event);
        let mut request = Request {
            node: i,
            incarnation,
            id,
            sent,
            write,
            place: self.nodes[i].place.clone(),
            reply: Reply::Answer(self.one_way()),
            stale: None,
        };
        let mut delay = self.one_way();
        if blocked > self.now {
            if !self.plan.faults.has(Fault::HeldTraffic) || self.rng.percent(50) {
                return;
            }
            self.report.totals.faults.count(Fault::HeldTraffic);
            delay += blocked - self.now;
        }
        if self.calm.is_none()
            && !self.request_kinds.is_empty()
            && self.rng.chance(self.plan.request_faults)
        {
            let fault = *self.rng.pick(&self.request_kinds);
            if self.strike_request(fault, &mut request, &mut delay, timeout) {
                return;
            }
        }
        self.after(delay, Event::Arrive(Box::new(request)));
    }

    /// Applies a fault to a request. Returns true if the request does not reach the server.
    fn strike_request(
        &mut self,
        fault: Fault,
        request: &mut Request,
        delay: &mut u64,
        timeout: u64,
    ) -> bool {
        if matches!(fault, Fault::StaleRead) == request.write.is_some()
            && matches!(fault, Fault::StaleRead | Fault::OwnConflict)
        {
            return false;
        }
        self.report.totals.faults.count(fault);
        self.trace(|_| format!("n{}   !! {} ({})", request.node, fault.name(), request.id));
        let long = self.long_delay(timeout);
        match fault {
            Fault::RequestLost => return true,
            Fault::AnswerLost => request.reply = Reply::Nothing,
            Fault::RequestLate => {
                *delay += long;
                if self.rng.percent(50) {
                    request.reply = Reply::Nothing;
                }
            }
            Fault::AnswerLate => request.reply = Reply::Answer(long),
            Fault::ErrorApplied => request.reply = Reply::Error(self.one_way()),
            Fault::ErrorNotApplied | Fault::Throttled => {
                self.fail(request, Outcome::Unknown);
                return true;
            }
            Fault::Forbidden => {
                self.fail(request, Outcome::Unusable);
                return true;
            }
            Fault::ErrorAppliedLater => {
                self.fail(request, Outcome::Unknown);
                request.reply = Reply::Nothing;
                *delay += long;
            }
            Fault::Duplicate => {
                let mut again = request.clone();
                if self.rng.percent(50) {
                    again.reply = Reply::Nothing;
                }
                self.after(*delay + long, Event::Arrive(Box::new(again)));
            }
            Fault::OwnConflict => request.reply = Reply::Conflict(self.one_way()),
            Fault::StaleRead => request.stale = Some(self.rng.range(1, 6) as usize),
            _ => {}
        }
        false
    }

    /// Replies immediately with an error of the server, or of a proxy in front of it.
    fn fail(&mut self, request: &Request, outcome: Outcome) {
        let Request {
            node,
            incarnation,
            id,
            ..
        } = *request;
        let input = match request.write {
            Some(_) => Input::Written(id, outcome),
            None => Input::ReadFailed(id),
        };
        let letter = Box::new(Letter::Other(input));
        let delay = 2 * self.one_way();
        self.after(
            delay,
            Event::Answer {
                node,
                incarnation,
                id,
                letter,
            },
        );
    }

    /// Handles a request that reaches the server.
    pub(super) fn arrive(&mut self, request: &Request) {
        let Request {
            node,
            incarnation,
            id,
            ..
        } = *request;
        let (letter, unknown) = match &request.write {
            None => {
                let stale = request.stale.and_then(|back| self.register.past(back));
                let letter = match stale {
                    Some(object) => Letter::Shown(Source::Read(id), object.clone()),
                    None => present(&self.register, Source::Read(id)),
                };
                (letter, Input::ReadFailed(id))
            }
            Some((kind, record)) => {
                let marks = self.marks(node);
                let author = (incarnation, request.sent);
                let place = request.place.as_deref();
                let applied = self.register.write(author, kind, record, marks, place);
                let outcome = match applied {
                    Applied::Yes(object) => {
                        self.trace(|_| format!("   server: n{node} {id} made {}", object.revision));
                        let version = object.seen.version.clone();
                        self.refine_applied((incarnation, id), kind, &object, marks);
                        self.announce(&object);
                        let winner = &mut self.nodes[node];
                        if winner.incarnation == incarnation && !matches!(kind, WriteKind::Renew(_))
                        {
                            // This is a new term, so the state of the last term's work no longer matters.
                            winner.overran = false;
                        }
                        if matches!(request.reply, Reply::Conflict(_)) {
                            Outcome::Refused
                        } else {
                            Outcome::Applied(version)
                        }
                    }
                    Applied::No => Outcome::Refused,
                };
                let letter = Letter::Other(Input::Written(id, outcome));
                (letter, Input::Written(id, Outcome::Unknown))
            }
        };
        let (letter, mut delay) = match request.reply {
            Reply::Nothing => return,
            Reply::Answer(delay) | Reply::Conflict(delay) => (letter, delay),
            Reply::Error(delay) => (Letter::Other(unknown), delay),
        };
        let blocked = self.nodes[node].answers_blocked_until;
        if blocked > self.now {
            if !self.plan.faults.has(Fault::HeldTraffic) || self.rng.percent(50) {
                return;
            }
            self.report.totals.faults.count(Fault::HeldTraffic);
            delay += blocked - self.now;
        }
        let letter = Box::new(letter);
        self.after(
            delay,
            Event::Answer {
                node,
                incarnation,
                id,
                letter,
            },
        );
    }

    pub(super) fn answered(&mut self, i: usize, incarnation: u64, id: u64, letter: Letter) {
        let node = &self.nodes[i];
        if node.incarnation != incarnation || !node.alive {
            return;
        }
        // A driver that dropped the request when it timed out never receives the response.
        if node.pending == Some(id) || self.plan.late_answers {
            self.deliver(i, letter);
            self.nodes[i].pending.take_if(|pending| *pending == id);
        }
    }

    pub(super) fn timed_out(&mut self, i: usize, incarnation: u64, id: u64, write: bool) {
        let node = &mut self.nodes[i];
        if node.incarnation != incarnation || node.pending.take_if(|p| *p == id).is_none() {
            return;
        }
        let input = if write {
            Input::Written(id, Outcome::Unknown)
        } else {
            Input::ReadFailed(id)
        };
        self.deliver(i, Letter::Other(input));
    }

    /// Sends a new version to all watchers.
    pub(crate) fn announce(&mut self, object: &Rc<Object>) {
        self.wake_controller();
        for i in 0..self.nodes.len() {
            if self.nodes[i].watch != 0 {
                self.send_watch(i, Letter::Shown(Source::Watch, object.clone()));
            }
        }
    }

    /// Sends the deletion of the object to all watchers.
    pub(crate) fn announce_gone(&mut self, revision: u64) {
        self.wake_controller();
        for i in 0..self.nodes.len() {
            if self.nodes[i].watch != 0 {
                self.send_watch(i, Letter::Gone(Source::Watch, Some(revision)));
            }
        }
    }

    fn send_watch(&mut self, i: usize, letter: Letter) {
        let mut delay = self.one_way();
        if self.nodes[i].answers_blocked_until > self.now || self.nodes[i].watch_tail == SILENT {
            return;
        }
        if self.plan.watch_faults > 0
            && self.calm.is_none()
            && !self.watch_kinds.is_empty()
            && self.rng.chance(self.plan.watch_faults)
        {
            let fault = *self.rng.pick(&self.watch_kinds);
            self.report.totals.faults.count(fault);
            match fault {
                Fault::WatchLost => return,
                Fault::WatchLate => delay += self.rng.below(self.plan.longest_lease()),
                Fault::WatchTwice => {
                    let again = delay + self.rng.below(self.plan.longest_lease());
                    let (watch, letter) = (self.nodes[i].watch, Box::new(letter.clone()));
                    self.after(
                        again,
                        Event::Watch {
                            node: i,
                            watch,
                            letter,
                        },
                    );
                }
                Fault::WatchOld => {
                    let back = self.rng.range(1, 8) as usize;
                    if let Some(object) = self.register.past(back).cloned() {
                        let letter = Box::new(Letter::Shown(Source::Watch, object));
                        let watch = self.nodes[i].watch;
                        self.after(
                            delay,
                            Event::Watch {
                                node: i,
                                watch,
                                letter,
                            },
                        );
                    }
                }
                _ => {}
            }
        }
        let node = &mut self.nodes[i];
        let at = (self.now + delay).max(node.watch_tail);
        node.watch_tail = at;
        let (watch, letter) = (node.watch, Box::new(letter));
        self.at(
            at,
            Event::Watch {
                node: i,
                watch,
                letter,
            },
        );
    }

    /// Starts a watch: delivers the current state, and then reports that the watch works.
    pub(super) fn watch_up(&mut self, i: usize, incarnation: u64) {
        let node = &self.nodes[i];
        if node.incarnation != incarnation || !node.alive || node.watch != 0 {
            return;
        }
        if node.answers_blocked_until.max(node.requests_blocked_until) > self.now {
            let delay = self.rng.range(1, self.plan.longest_lease());
            self.after(
                delay,
                Event::WatchUp {
                    node: i,
                    incarnation,
                },
            );
            return;
        }
        self.sequence += 1;
        self.nodes[i].watch = self.sequence;
        self.nodes[i].watch_tail = self.now;
        let letter = present(&self.register, Source::Watch);
        self.deliver(i, letter);
        let revision = ResourceVersion::new(self.register.revision().to_string());
        self.deliver(i, Letter::Other(Input::Listed(revision)));
        self.deliver(i, Letter::Other(Input::Watching(true)));
    }

    /// Returns whether a node's writes contain a mark; those of client-go do not.
    fn marks(&self, i: usize) -> bool {
        matches!(self.nodes[i].machine, Machine::Core(_))
    }

    /// Ends a watch at the server. It is reopened at the same position and delivers the missed changes.
    pub(super) fn reopen_watch(&mut self, i: usize, watch: u64) {
        if self.nodes[i].watch == watch && watch != 0 {
            let letter = present(&self.register, Source::Watch);
            self.send_watch(i, letter);
        }
    }

    /// Returns the latency of one way through the network.
    pub(crate) fn one_way(&mut self) -> u64 {
        self.plan.latency / 2 + self.rng.below(self.plan.latency)
    }

    /// Returns a critical delay: about a request timeout, or about a lease.
    fn long_delay(&mut self, timeout: u64) -> u64 {
        let lease = self.plan.longest_lease();
        match self.rng.below(4) {
            0 => self.rng.below(timeout),
            1 => self.rng.below(2 * timeout),
            2 => self.rng.below(lease),
            _ => self.rng.below(3 * lease),
        }
    }
}
