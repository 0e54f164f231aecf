//! Checks of the invariants at the points where they could be violated: S1 when a guard may have become valid, S4 and
//! S5 when a write is sent.

use std::rc::Rc;

use tenure_core::{Source, StopReason, Timing, WriteKind};

use super::World;
use crate::fault::Fault;
use crate::invariants::Invariant;
use crate::invariants::s4_ordered_departure::{Departure, check_release};
use crate::plan::{Clocks, Outsiders, nanos};
use crate::register::Object;

impl World {
    /// Returns whether a node receives the current state of the object and did not write it.
    pub(super) fn foreign_present(
        &self,
        i: usize,
        source: Source,
        shown: Option<&Rc<Object>>,
    ) -> Option<&'static str> {
        // An absence has no revision. If the watch delivered an event in the meantime, the node reads again.
        let heeded = self.nodes[i].heeds(source) && (source == Source::Watch || shown.is_some());
        if !heeded || self.plan.outsiders == Outsiders::RestoresBack {
            return None;
        }
        match (shown, self.register.current()) {
            (None, None) => Some("the object is gone"),
            (Some(shown), Some(current)) if Rc::ptr_eq(shown, current) => {
                (shown.author != Some(self.nodes[i].incarnation)).then_some("it is held by another")
            }
            _ => None,
        }
    }

    /// Checks S1 at an instant at which a guard may have become valid.
    pub(crate) fn check_guards(&mut self) {
        let now = self.now;
        let leading = self.nodes.iter().enumerate().filter_map(|(i, node)| {
            if node.foreign {
                return None;
            }
            let stopped = node.paused_until > now && self.plan.faults.has(Fault::MachinePause);
            let guard = node.guard.filter(|_| node.leads(now) && !stopped)?;
            Some((i, node.clock.real_at(guard.until(), now)))
        });
        let mut guards = self.guards;
        let text = guards.check(now, leading);
        if self.plan.checks_guards() {
            self.guards = guards;
            if let Some(text) = text {
                self.violate(Invariant::S1, text);
            }
        } else if self.plan.clocks == Clocks::Wild && self.plan.outsiders == Outsiders::None {
            self.report.totals.wild_overlap =
                self.report.totals.wild_overlap.max(guards.longest_overlap);
        }
    }

    /// Checks S4 and S5 when a write is sent.
    pub(super) fn check_write(&mut self, i: usize, kind: &WriteKind) {
        let node = &self.nodes[i];
        if node.foreign {
            return;
        }
        let now = node.clock.now(self.now);
        if let WriteKind::Release(base, _) = kind {
            let length = self.plan.timings[i].guard();
            let base = self.register.find(base);
            let departure = Departure {
                guard_holds: node.leads(self.now),
                works: node.work.is_some(),
                overran: node.overran,
                guard_ran_out: base.is_some_and(|base| {
                    base.author == Some(node.incarnation) && now.local >= base.sent + length
                }),
            };
            if let Some(text) = check_release(departure) {
                return self.violate(Invariant::S4, format!("node {i} {text}"));
            }
        }
        match kind {
            WriteKind::Release(_, order) => self.check_successor(i, order.as_deref()),
            // A term that is stopped before it begins has no successor either.
            WriteKind::Create | WriteKind::Acquire(_) => self.forget_successor(i),
            WriteKind::Renew(_) => {}
        }
        self.check_unused_release(i, kind);
        if !self.plan.checks_tokens() {
            return;
        }
        if let Some(text) = self.check_rights(i, kind) {
            return self.violate(Invariant::S5, format!("node {i} {text}"));
        }
        let node = &self.nodes[i];
        let local = now.local.as_nanos();
        let text = match kind.base() {
            // A stale read may hide a term that the node should wait for.
            None if self.plan.faults.has(Fault::StaleRead) => None,
            None => node.sights.check_create(local),
            Some(version) => self.register.find(version).and_then(|base| {
                if self.is_dead(i, base) {
                    return None;
                }
                let wins = matches!(kind, WriteKind::Acquire(_));
                let timing = &self.plan.timings[i];
                let delay = nanos(timing.lock_delay());
                let hold = node.sights.check_mark(node.incarnation, base, delay, local);
                if wins && hold.is_some() {
                    return hold;
                }
                // The candidate may take up, renew and release what the controller assigned or marked.
                if self.plan.coordinated && base.seen.record.holder == node.identity {
                    return None;
                }
                let lease = patience(base, timing);
                node.sights
                    .check_write(node.incarnation, base, lease, local)
            }),
        };
        if let Some(text) = text {
            self.violate(Invariant::S5, format!("node {i} {text}"));
        }
    }

    /// Checks that a candidate may win a term. No candidate may acquire a paused election. In a coordinated election, only
    /// the candidate that the controller selected may acquire the lease.
    fn check_rights(&self, i: usize, kind: &WriteKind) -> Option<&'static str> {
        let base = match kind {
            WriteKind::Create => {
                return self
                    .plan
                    .coordinated
                    .then_some("creates the Lease, which only the controller may do");
            }
            WriteKind::Acquire(base) => self.register.find(base)?,
            WriteKind::Renew(_) | WriteKind::Release(..) => return None,
        };
        let chosen = base.seen.record.holder == self.nodes[i].identity;
        if base.seen.orders.paused {
            Some("acquires while the election is paused")
        } else if self.plan.coordinated && !chosen {
            Some("acquires a lease that the controller assigned to another")
        } else {
            None
        }
    }

    /// Returns whether a node receives its own term with an order to give it up.
    pub(super) fn is_ordered(&self, i: usize, source: Source, shown: &Rc<Object>) -> bool {
        let node = &self.nodes[i];
        let present = self
            .register
            .current()
            .is_some_and(|now| Rc::ptr_eq(now, shown));
        let (record, orders) = (&shown.seen.record, &shown.seen.orders);
        node.heeds(source)
            && present
            && self.plan.outsiders != Outsiders::RestoresBack
            && shown.author == Some(node.incarnation)
            && !record.is_free()
            && (orders.step_down.as_ref()).is_some_and(|order| order.names(record))
    }

    /// Checks that no term is released unused because of an order to an earlier term with the same number.
    fn check_unused_release(&mut self, i: usize, kind: &WriteKind) {
        let lease = self.plan.longest_lease();
        let node = &mut self.nodes[i];
        let WriteKind::Release(base, _) = kind else {
            node.has_led &= matches!(kind, WriteKind::Renew(_));
            return;
        };
        // The local clock of the node may be slower than real time.
        let sits_out = node.sits_out_until > 0 && self.now < node.sits_out_until + lease;
        if node.has_led || node.leaving || sits_out {
            return;
        }
        let earlier = self.register.find(base).is_some_and(|base| {
            let (record, orders) = (&base.seen.record, &base.seen.orders);
            let order = orders.step_down.as_ref();
            order.is_some_and(|o| o.transitions == record.transitions && !o.names(record))
        });
        if earlier {
            let text = format!("node {i} gives up a term because of an order to an earlier term");
            self.violate(Invariant::L1, text);
        }
    }

    /// Checks that an order ends only the term that it names: it stays on the object, and no later holder obeys it.
    pub(super) fn check_obedience(&mut self, i: usize, reason: &StopReason) {
        let checked = matches!(self.plan.outsiders, Outsiders::None | Outsiders::Humans);
        // The controller numbers a term before a candidate takes it up.
        if *reason != StopReason::Ordered || !checked || self.plan.coordinated {
            return;
        }
        let node = &self.nodes[i];
        // A later order to another candidate may be given before the watch event of this one arrives.
        let ordered = self.ordered.get(&node.incarnation);
        // A second winning write of the same term may have been applied before the order was given.
        let earlier = |term: u64| node.work.as_ref().is_some_and(|work| term < work.term);
        let text = match ordered {
            None => format!("node {i} obeys an order that was given to another candidate"),
            Some(&term) if earlier(term) => {
                format!("node {i} obeys an order that was given to an earlier term")
            }
            Some(_) => return,
        };
        self.violate(Invariant::L1, text);
    }

    /// Checks the reason for a loss. If only electors write and reads are never stale, nobody edits, deletes or rolls
    /// back our record, so such a reason is wrong.
    pub(super) fn check_blame(&mut self, i: usize, reason: &StopReason) {
        let blames = matches!(
            reason,
            StopReason::Edited
                | StopReason::Emptied
                | StopReason::Deleted
                | StopReason::Recreated
                | StopReason::WentBack
        );
        if blames
            && self.plan.outsiders == Outsiders::None
            && !self.plan.faults.has(Fault::StaleRead)
            // Another process with our name looks like an edit.
            && !self.plan.one_name
            // client-go empties a record that it no longer holds, and a controller reassigns it.
            && !self.plan.is_mixed()
            && !self.plan.coordinated
        {
            let reason = reason.as_str();
            self.violate(Invariant::L1, format!("node {i} stops, wrongly: {reason}"));
        }
    }
}

/// Returns how long a candidate with this timing must not replace a record, in nanoseconds.
pub(super) fn patience(object: &Object, own: &Timing) -> u64 {
    let lease = if object.seen.unreadable {
        nanos(own.lease())
    } else {
        nanos(object.seen.record.lease_duration()).max(1_000_000_000)
    };
    lease + nanos(own.lock_delay())
}
