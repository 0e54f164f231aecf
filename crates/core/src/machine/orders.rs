//! Orders of operators to the current term (duty 15).
//!
//! Invariant: an order ends only the term that it names. An order stays on the object, so that later terms observe it, too.

use super::observe::Known;
use super::rules::require;
use super::{Election, State};
use crate::command::{Command, StopReason};
use crate::input::StepDownOrder;
use crate::record::Record;
use crate::time::{Now, WallTime};

impl Election {
    /// Returns the order to give up the term that this record shows, if there is one.
    pub(super) fn order_for(&self, record: &Record) -> Option<&StepDownOrder> {
        let Known::Present(seen) = &self.known else {
            return None;
        };
        let order = seen.observation.orders.step_down.as_deref();
        order.filter(|order| self.rules.names(order, record))
    }

    /// Asserts that an order which ends a term of this candidate was not given to another candidate or to a term that
    /// began at another time.
    pub(super) fn assert_addressed(&self, order: &StepDownOrder, acquire_time: Option<WallTime>) {
        let holder = order.holder.as_ref();
        let ours = holder.is_none_or(|holder| *holder == self.config.identity);
        let time = order.acquire_time.is_none() || order.acquire_time == acquire_time;
        require!(
            self,
            ours && time,
            "duty 15: the order {order:?} names another term"
        );
    }

    /// Ends the current term if the object has an order to it, or if the controller of a coordinated election prefers
    /// another candidate.
    pub(super) fn obey_orders(&mut self, now: Now, out: &mut Vec<Command>) {
        let (State::Leading(_), Known::Present(seen)) = (&self.state, &self.known) else {
            return;
        };
        let preferred = &seen.observation.record.preferred_holder;
        // Uses the record that the object shows, because operators see only that record. A second winning write may
        // have been applied although its response was lost.
        let record = &seen.observation.record;
        if let Some(order) = self.order_for(record) {
            self.assert_addressed(order, record.acquire_time);
            self.sit_out_until = self.sit_out_until.max(now.local + order.sit_out);
            self.stop(now, StopReason::Ordered, out);
        } else if self.config.coordinated
            && !preferred.is_empty()
            && *preferred != self.config.identity
        {
            self.stop(now, StopReason::PreferredHolder(preferred.clone()), out);
        }
    }
}
