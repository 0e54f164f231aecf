//! Faults that are not tied to a request, and the end of all faults.

#![allow(
    clippy::collapsible_match,
    reason = "with a match guard, the fault would fall through to the arms below"
)]

use std::rc::Rc;
use std::time::Duration;

use tenure_core::{Input, Orders, Record, StepDownOrder};

use super::World;
use super::event::Event;
use super::network::SILENT;
use crate::fault::Fault;
use crate::invariants::Invariant;
use crate::invariants::l1_liveness::Calm;
use crate::machine::Kind;
use crate::node::Letter;
use crate::plan::{Clocks, Outsiders, nanos};
use crate::register::Object;

impl World {
    pub(super) fn strike(&mut self) {
        if self.calm.is_some() {
            return;
        }
        let next = self.rng.below(2 * self.plan.nemesis);
        self.after(next, Event::Nemesis);
        if self.nemesis_kinds.is_empty() {
            return;
        }
        let fault = *self.rng.pick(&self.nemesis_kinds);
        // Faults of leaders are the most likely to break an invariant.
        let leader = self.nodes.iter().position(|n| n.leads(self.now));
        let victim = match leader {
            Some(leader) if self.rng.percent(60) => leader,
            _ => self.rng.below(self.plan.nodes as u64) as usize,
        };
        self.report.totals.faults.count(fault);
        self.trace(|_| format!("n{victim} !! {}", fault.name()));
        self.strike_node(fault, victim);
        self.strike_proofs(fault);
        self.strike_ranks(fault);
        self.strike_object(fault);
    }

    fn strike_node(&mut self, fault: Fault, i: usize) {
        let lease = self.plan.longest_lease();
        let span = match self.rng.below(3) {
            0 => self.rng.below(lease / 4),
            1 => self.rng.below(lease),
            _ => self.rng.below(4 * lease),
        };
        let until = self.now + span;
        let node = &mut self.nodes[i];
        match fault {
            Fault::Partition => {
                node.requests_blocked_until = until;
                node.answers_blocked_until = until;
                self.break_watch(i, span);
            }
            Fault::PartitionRequests => node.requests_blocked_until = until,
            Fault::PartitionAnswers => node.answers_blocked_until = until,
            Fault::Crash => {
                let incarnation = node.incarnation;
                if node.alive {
                    self.crash(i);
                    self.after(
                        span,
                        Event::Restart {
                            node: i,
                            incarnation,
                        },
                    );
                }
            }
            Fault::Pause | Fault::Suspend | Fault::MachinePause => {
                if node.alive && node.paused_until <= self.now {
                    node.paused_until = until;
                    let stops = fault == Fault::MachinePause
                        || (fault == Fault::Suspend && self.kind == Kind::StoppedClock);
                    if stops {
                        node.clock.stop(self.now);
                    }
                    if stops && fault == Fault::Suspend {
                        // This mutant does not use the wall clock either.
                        node.clock.jump_wall(-(span as i64));
                    }
                    self.at(until, Event::Resume { node: i, until });
                }
            }
            Fault::WallForward => {
                node.clock.jump_wall(span as i64);
                self.check_guards();
            }
            Fault::WallBack => {
                node.clock.jump_wall(-(span as i64));
                self.check_guards();
            }
            Fault::WatchBreak => self.break_watch(i, span),
            Fault::WorkEnds if self.rng.percent(50) => self.outlive(i, span),
            Fault::WorkEnds => {
                if self.nodes[i].work.take_if(|work| !work.ending).is_some() {
                    self.deliver(i, Letter::Other(Input::WorkEnded));
                }
            }
            Fault::StepDown => {
                let pause = Duration::from_nanos(span);
                node.sits_out_until = node.sits_out_until.max(until);
                self.deliver(i, Letter::Other(Input::StepDown(pause)));
            }
            Fault::Shutdown => {
                node.leaving = true;
                self.deliver(i, Letter::Other(Input::Shutdown));
            }
            _ => {}
        }
    }

    /// Ends the future of the work while a part of the work continues for some time.
    fn outlive(&mut self, i: usize, span: u64) {
        let node = &mut self.nodes[i];
        let incarnation = node.incarnation;
        let Some(work) = node.work.as_mut().filter(|work| !work.ending) else {
            return;
        };
        work.ending = true;
        let number = work.number;
        self.report.totals.faults.count(Fault::WorkOutlives);
        self.deliver(i, Letter::Other(Input::WorkEnding));
        self.after(
            span,
            Event::WorkEnds {
                node: i,
                incarnation,
                number,
            },
        );
    }

    /// Breaks a watch: it delivers nothing from now on. Later the node notices, and opens a new one.
    fn break_watch(&mut self, i: usize, span: u64) {
        let node = &mut self.nodes[i];
        let (watch, incarnation) = (node.watch, node.incarnation);
        if watch == 0 {
            return;
        }
        // Nothing is delivered between the break and its detection, so change the number of the connection.
        self.sequence += 1;
        let silent = self.sequence;
        self.nodes[i].watch = silent;
        let notice = self.rng.below(span + 1);
        self.after(
            notice,
            Event::WatchDown {
                node: i,
                watch: silent,
            },
        );
        let back = notice + self.rng.below(span + 1) + 1;
        self.after(
            back,
            Event::WatchUp {
                node: i,
                incarnation,
            },
        );
        self.nodes[i].watch_tail = SILENT;
    }

    fn strike_object(&mut self, fault: Fault) {
        let Some(current) = self.register.current().cloned() else {
            return;
        };
        let mut record = current.seen.record.clone();
        let lease = self.plan.longest_lease();
        let object = match fault {
            Fault::LabelEdit => self.register.touch(),
            Fault::Order => {
                let to = self.rng.below(2 * self.nodes.len() as u64) as usize;
                let to = self.nodes.get(to).map(|node| node.identity.clone());
                let sit_out = Duration::from_nanos(self.rng.below(lease));
                self.order_step_down(&current, to, sit_out)
            }
            Fault::OrderPause => self.register.order(Orders {
                paused: !current.seen.orders.paused,
                ..current.seen.orders.clone()
            }),
            Fault::Preferred => {
                let node = self.rng.below(self.nodes.len() as u64) as usize;
                self.prefer(node);
                None
            }
            Fault::HumanDelete => {
                let revision = self.register.delete();
                self.announce_gone(revision);
                None
            }
            Fault::HumanClear => {
                record.holder.clear();
                Some(self.register.edit(record, false))
            }
            Fault::HumanRename => {
                record.holder = "a-human".to_owned();
                Some(self.register.edit(record, false))
            }
            Fault::HumanDuration => {
                let seconds = self.rng.range(1, 3 * lease / 1_000_000_000);
                let seconds = u32::try_from(seconds).unwrap_or(1);
                let same = seconds == record.lease_duration_seconds;
                record.lease_duration_seconds = seconds + u32::from(same);
                Some(self.register.edit(record, false))
            }
            Fault::HumanGarbage => Some(self.register.edit(Record::default(), true)),
            Fault::Restore | Fault::RestoreBumped => {
                let bump = if fault == Fault::Restore {
                    0
                } else {
                    1_000_000
                };
                let back = self.rng.range(1, 20) as usize;
                self.restore(back, bump);
                None
            }
            _ => None,
        };
        if let Some(object) = object {
            self.announce(&object);
        }
    }

    /// Ends the faults: the network heals, dead processes come back, stopped ones resume, and an operator lifts a
    /// pause. The consequences of the faults stay: requests in flight, orders, clocks, stuck work, and the state that
    /// candidates know.
    pub(super) fn calm_down(&mut self) {
        if let Some(calm) = self.calm {
            self.calm = Some(calm.proceed(self));
            return;
        }
        if self.plan.outsiders == Outsiders::RestoresBack && !self.restore_paused() {
            return;
        }
        self.trace(|_| "the faults end".to_owned());
        self.calm = Some(Calm::begin(self));
        self.lift_pause();
        self.calm_ranks();
        for i in 0..self.nodes.len() {
            let now = self.now;
            let node = &mut self.nodes[i];
            node.requests_blocked_until = 0;
            node.answers_blocked_until = 0;
            if !node.alive {
                self.restart(i);
                continue;
            }
            if node.paused_until > now {
                node.paused_until = now;
                self.at(
                    now,
                    Event::Resume {
                        node: i,
                        until: now,
                    },
                );
            }
            if self.plan.watches[i] {
                self.heal_watch(i);
            }
        }
    }

    /// Injects the last fault of a run with restores: a pause while nobody holds the lock, and then a restore that
    /// removes the pause. Candidates that wait for the end of the pause only receive lower revisions. Returns true when
    /// this is done.
    fn restore_paused(&mut self) -> bool {
        if let Some(before) = self.before_pause.take() {
            if let Some(back) = self.register.back_to(before) {
                self.trace(|_| format!("the store is restored to revision {before}"));
                self.report.totals.faults.count(Fault::Restore);
                self.restore(back, 0);
            }
            return true;
        }
        let Some(current) = self.register.current().cloned() else {
            return true;
        };
        self.before_pause = Some(current.revision);
        let lease = self.plan.longest_lease();
        let paused = self.register.order(Orders {
            paused: true,
            ..current.seen.orders.clone()
        });
        if let Some(object) = paused {
            self.announce(&object);
        }
        for i in 0..self.nodes.len() {
            let pause = Input::StepDown(Duration::from_nanos(lease / 2));
            self.deliver(i, Letter::Other(pause));
        }
        self.after(2 * lease, Event::Calm);
        false
    }

    /// Restores the store, which ends every watch because a restored server is a new process. Some servers report that
    /// a watch is too old (410). In that case the watch is reopened with a list, and candidates are not notified
    /// of the break.
    fn restore(&mut self, back: usize, bump: u64) {
        let span = self.plan.longest_lease() / 8;
        self.register.restore(back, bump);
        let too_old = self.rng.percent(75);
        for node in 0..self.nodes.len() {
            if !too_old {
                self.break_watch(node, span);
            } else if self.nodes[node].watch != 0 {
                self.nodes[node].watch = 0;
                let incarnation = self.nodes[node].incarnation;
                let back = 1 + self.rng.below(span);
                self.after(back, Event::WatchUp { node, incarnation });
            }
        }
    }

    fn lift_pause(&mut self) {
        let current = self.register.current();
        let Some(orders) = current.map(|object| object.seen.orders.clone()) else {
            return;
        };
        if orders.paused
            && let Some(object) = self.register.order(Orders {
                paused: false,
                ..orders
            })
        {
            self.announce(&object);
        }
    }

    /// Schedules the repair of a watch. A broken watch is noticed and replaced soon. A working watch ends at some time
    /// and is reopened, which delivers the missed changes.
    fn heal_watch(&mut self, node: usize) {
        let (watch, incarnation) = (self.nodes[node].watch, self.nodes[node].incarnation);
        let (retry, _) = self.slowest();
        let soon = self.rng.below(retry);
        if watch != 0 && self.nodes[node].watch_tail != SILENT {
            let end = self.rng.below(self.plan.longest_lease());
            self.after(end, Event::WatchReopened { node, watch });
            return;
        }
        if watch != 0 {
            self.after(soon, Event::WatchDown { node, watch });
        }
        let back = soon + 1 + self.rng.below(retry);
        self.after(back, Event::WatchUp { node, incarnation });
    }

    /// Orders a leader to hand over to another candidate, in half of the cases in which the result can be predicted.
    /// The former leader may campaign again immediately.
    pub(crate) fn order_hand_over(&mut self, leader: usize) -> Option<usize> {
        let to = (leader + 1) % self.nodes.len();
        let plan = &self.plan;
        let certain = plan.release && !plan.one_name && plan.clocks != Clocks::Wild;
        let ready = self.nodes[to].alive && self.nodes[to].sits_out_until <= self.now;
        if !certain || !ready || self.rng.percent(50) {
            return None;
        }
        let current = self.register.current()?.clone();
        self.trace(|_| format!("n{leader} is ordered to hand over to n{to}"));
        let named = self.nodes[to].identity.clone();
        let object = self.order_step_down(&current, Some(named), Duration::ZERO)?;
        self.announce(&object);
        Some(to)
    }

    /// Orders the term of the current object to end. Half of the orders state only the number of the term, without its
    /// holder and its acquire time. If people edit the object, every order states all three, because an order with only
    /// the number also names later terms with that number.
    fn order_step_down(
        &mut self,
        current: &Object,
        to: Option<String>,
        sit_out: Duration,
    ) -> Option<Rc<Object>> {
        let record = &current.seen.record;
        let bound = self.plan.outsiders == Outsiders::Humans || current.revision.is_multiple_of(2);
        let step_down = StepDownOrder {
            transitions: record.transitions,
            holder: Some(record.holder.clone()).filter(|holder| bound && !holder.is_empty()),
            acquire_time: record.acquire_time.filter(|_| bound),
            to,
            sit_out,
        };
        if let Some(author) = current.author {
            self.ordered.insert(author, current.term);
        }
        self.register.order(Orders {
            step_down: Some(Box::new(step_down)),
            ..current.seen.orders.clone()
        })
    }

    pub(crate) fn violate_liveness(&mut self, text: String) {
        self.violate(Invariant::L1, text);
    }

    /// Returns the longest retry period and request timeout of any candidate, in nanoseconds.
    pub(crate) fn slowest(&self) -> (u64, u64) {
        let retry = self.plan.timings.iter().map(|t| nanos(t.retry_period()));
        let request = self.plan.timings.iter().map(|t| nanos(t.request_timeout()));
        (
            retry.max().unwrap_or_default(),
            request.max().unwrap_or_default(),
        )
    }
}
