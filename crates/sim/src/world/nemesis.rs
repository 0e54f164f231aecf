//! Faults that strike by themselves, and the end of all faults.

#![allow(
    clippy::collapsible_match,
    reason = "a guard would send the fault on to the arms below"
)]

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
use crate::plan::nanos;

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
        // Those who lead are the interesting victims.
        let leader = self.nodes.iter().position(|n| n.leads(self.now));
        let victim = match leader {
            Some(leader) if self.rng.percent(60) => leader,
            _ => self.rng.below(self.plan.nodes as u64) as usize,
        };
        self.report.totals.faults.count(fault);
        self.trace(|_| format!("n{victim} !! {}", fault.name()));
        self.strike_node(fault, victim);
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
                        // Nor does this mutant ask the wall clock.
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
            Fault::Shutdown => self.deliver(i, Letter::Other(Input::Shutdown)),
            _ => {}
        }
    }

    /// The watch delivers nothing from now on; the node hears of it, and gets a new one, later.
    fn break_watch(&mut self, i: usize, span: u64) {
        let node = &mut self.nodes[i];
        let (watch, incarnation) = (node.watch, node.incarnation);
        if watch == 0 {
            return;
        }
        // Between break and notice nothing is delivered: move the connection's number on.
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
                let step_down = StepDownOrder {
                    transitions: record.transitions,
                    to: self.nodes.get(to).map(|node| node.identity.clone()),
                    sit_out: Duration::from_nanos(self.rng.below(lease)),
                };
                self.register.order(Orders {
                    step_down: Some(Box::new(step_down)),
                    ..current.seen.orders.clone()
                })
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
                let restored = self.register.restore(back, bump);
                // A restored server is another server: every watch ends.
                for i in 0..self.nodes.len() {
                    self.break_watch(i, lease / 8);
                }
                restored.and(None)
            }
            _ => None,
        };
        if let Some(object) = object {
            self.announce(&object);
        }
    }

    /// The faults end: everything heals, and from now on L1 must hold.
    pub(super) fn calm_down(&mut self) {
        if let Some(calm) = self.calm {
            self.calm = Some(calm.proceed(self));
            return;
        }
        self.trace(|_| "the faults end".to_owned());
        self.drop_late_traffic();
        self.calm = Some(Calm::begin(self));
        // Calls for a pause are lifted. Where nothing but the order itself ends its effect, it stays.
        let orders = match self.register.current() {
            Some(object) if self.plan.coordinated => Orders {
                paused: false,
                ..object.seen.orders.clone()
            },
            _ => Orders::default(),
        };
        if let Some(object) = self.register.order(orders) {
            self.announce(&object);
        }
        for i in 0..self.nodes.len() {
            let now = self.now;
            let node = &mut self.nodes[i];
            node.requests_blocked_until = 0;
            node.answers_blocked_until = 0;
            node.tick = None;
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
            } else {
                self.step(i, Letter::Other(Input::Tick));
            }
            self.end_stuck_work(i);
            if self.plan.watches[i] {
                let incarnation = self.nodes[i].incarnation;
                self.nodes[i].watch = 0;
                self.after(
                    1,
                    Event::WatchUp {
                        node: i,
                        incarnation,
                    },
                );
            }
        }
    }

    fn end_stuck_work(&mut self, i: usize) {
        let node = &self.nodes[i];
        if let Some(work) = node.work.filter(|work| work.ending) {
            let (incarnation, number) = (node.incarnation, work.number);
            self.after(
                2,
                Event::WorkEnds {
                    node: i,
                    incarnation,
                    number,
                },
            );
        }
    }

    pub(crate) fn violate_liveness(&mut self, text: String) {
        self.violate(Invariant::L1, text);
    }

    /// The longest retry period and request timeout of any candidate, in nanoseconds.
    pub(crate) fn slowest(&self) -> (u64, u64) {
        let retry = self.plan.timings.iter().map(|t| nanos(t.retry_period()));
        let request = self.plan.timings.iter().map(|t| nanos(t.request_timeout()));
        (
            retry.max().unwrap_or_default(),
            request.max().unwrap_or_default(),
        )
    }
}
