//! Execution of the commands of elections, and the guarded work of their terms.

use tenure_core::{Command, Guard, Input, StopReason, Timing};

use super::World;
use super::event::Event;
use crate::fault::Fault;
use crate::invariants::Invariant;
use crate::invariants::s4_ordered_departure::check_work;
use crate::node::{Letter, Work};
use crate::plan::{Clocks, nanos};

/// Maximum time to end a process whose work exceeded its deadline, in nanoseconds. It is a part of the margin.
const KILL_TAKES: u64 = 20_000_000;

impl World {
    pub(super) fn obey(&mut self, i: usize, command: Command) {
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
                self.check_obedience(i, &reason);
                if let StopReason::PreferredHolder(to) = &reason {
                    self.check_hand_over(i, to);
                }
                if reason == StopReason::Ordered {
                    // The longest time that an order may ask for.
                    let until = self.now + self.plan.longest_lease();
                    let node = &mut self.nodes[i];
                    node.sits_out_until = node.sits_out_until.max(until);
                }
                if let Some(calm) = &self.calm
                    && let Some(text) = calm.stopped(i, &reason)
                {
                    self.violate(Invariant::L1, text);
                }
                if self.rng.percent(25) {
                    // The work checked its guard just before the stop, and its effect is slow.
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

    pub(super) fn lead(&mut self, i: usize, token: u64, guard: Guard) {
        let me = self.nodes[i].incarnation;
        let term = (0..16)
            .map_while(|back| self.register.past(back))
            .find(|o| o.author == Some(me) && o.revision == token)
            .or_else(|| self.register.past(0))
            .map_or(0, |o| o.term);
        self.report.totals.terms += 1;
        self.note_term(i);
        if self.plan.checks_work() {
            let working = self.nodes.iter().enumerate();
            let working = working.filter(|(_, n)| n.work.is_some() && !n.foreign);
            let working = working.map(|(j, _)| j);
            if !self.nodes[i].foreign
                && let Some(text) = check_work(i, working)
            {
                self.violate(Invariant::S4, text);
            }
        }
        self.sequence += 1;
        let number = self.sequence;
        let node = &mut self.nodes[i];
        node.guard = Some(guard);
        node.overran = false;
        node.has_led = true;
        node.work = Some(Work {
            term,
            token,
            number,
            ending: false,
        });
        if !self.nodes[i].foreign
            && let Some(text) = self.tokens.begin(term, token)
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
            self.report.totals.failovers.push(failover);
        }
    }

    /// Sends an effect of the work that reaches the fenced store now or later.
    pub(super) fn emit_effect(&mut self, i: usize) {
        let Some(Work { term, token, .. }) = self.nodes[i].work else {
            return;
        };
        if self.nodes[i].foreign {
            return;
        }
        let delay = if self.rng.percent(30) {
            self.rng.below(2 * self.plan.longest_lease())
        } else {
            self.rng.below(self.plan.latency * 2)
        };
        self.after(delay, Event::Effect { term, token });
    }

    /// Handles the cancellation of the work.
    pub(super) fn end_work(&mut self, i: usize) {
        let calm = self.calm.is_some();
        let (incarnation, faults) = (self.nodes[i].incarnation, self.plan.faults);
        let Some(work) = self.nodes[i].work.as_mut().filter(|work| !work.ending) else {
            // The work had ended by itself.
            return;
        };
        work.ending = true;
        let number = work.number;
        let delay = if !calm && faults.has(Fault::WorkStuck) && self.rng.percent(30) {
            self.report.totals.faults.count(Fault::WorkStuck);
            return;
        } else if !calm && faults.has(Fault::WorkSlow) && self.rng.percent(30) {
            self.report.totals.faults.count(Fault::WorkSlow);
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

    /// Handles the end of a process whose work exceeded its deadline.
    pub(super) fn killed(&mut self, i: usize, incarnation: u64) {
        let node = &self.nodes[i];
        if !node.alive || node.incarnation != incarnation {
            return;
        }
        self.crash(i);
        let delay = self.rng.below(self.plan.longest_lease());
        self.after(
            delay,
            Event::Restart {
                node: i,
                incarnation,
            },
        );
    }

    /// Ends the process, or the child that does the work, because the work exceeded its deadline.
    pub(super) fn overrun(&mut self, i: usize) {
        let incarnation = self.nodes[i].incarnation;
        if self.rng.percent(50) {
            self.report.totals.faults.count(Fault::SlowKill);
            let takes = self.rng.below(KILL_TAKES);
            self.after(
                takes,
                Event::Kill {
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
}
