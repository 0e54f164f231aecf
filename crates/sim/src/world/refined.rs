//! Reports the steps of a run to the [refinement check](crate::refine).

use std::rc::Rc;

use tenure_core::{Command, LocalTime, WriteKind};

use super::World;
use crate::fault::Fault;
use crate::invariants::Invariant;
use crate::machine::Kind;
use crate::node::Node;
use crate::plan::{Clocks, Outsiders, Plan};
use crate::refine::{Actor, Refinement};
use crate::register::Object;

/// Returns the check for a plan. Restores of the store are outside of the proved system.
pub(super) fn refinement(plan: &Plan) -> Refinement {
    let checks = matches!(plan.outsiders, Outsiders::None | Outsiders::Humans);
    let rates = plan
        .timings
        .iter()
        .map(|timing| timing.tolerated_rate_error());
    // A clock that stops with its machine breaks assumption A2. The wall clock then ends the guard.
    let clocks = plan.clocks != Clocks::Wild && !plan.faults.has(Fault::MachinePause);
    Refinement::new(checks, clocks.then(|| rates.fold(1.0, f64::min)))
}

impl World {
    /// Reports a step of a candidate of Tenure, unless it runs client-go.
    pub(super) fn refined(&mut self, i: usize, report: impl FnOnce(&mut Refinement, Actor<'_>)) {
        let node = &self.nodes[i];
        if !node.foreign && self.kind != Kind::ClientGo {
            let actor = Actor {
                incarnation: node.incarnation,
                clock: node.clock.now(self.now).local,
                timing: &self.plan.timings[i],
                works: node.work.is_some(),
            };
            report(&mut self.refinement, actor);
        }
    }

    /// Reports a command before it is executed.
    pub(super) fn refine_command(&mut self, i: usize, command: &Command) {
        match command {
            Command::Write { id, kind, .. } => {
                let assigned = self.is_assigned(&self.nodes[i]);
                self.refined(i, |check, actor| check.send(actor, *id, kind, assigned));
            }
            Command::Lead { token, guard, .. } => {
                let token = token.as_str().parse().unwrap_or_default();
                self.refined(i, |check, actor| check.begin(actor, token, guard));
            }
            Command::Extend { guard } => self.refined(i, |check, actor| check.extend(actor, guard)),
            Command::Stop { .. } => self.refined(i, Refinement::stop),
            _ => {}
        }
    }

    fn is_assigned(&self, node: &Node) -> bool {
        let holder = self
            .register
            .current()
            .map(|object| &object.seen.record.holder);
        self.plan.coordinated && holder == Some(&node.identity)
    }

    /// Reports a write that was applied. Writes of client-go have no mark.
    pub(super) fn refine_applied(
        &mut self,
        (author, id): (u64, u64),
        kind: &WriteKind,
        object: &Rc<Object>,
        marks: bool,
    ) {
        if marks {
            self.refinement.apply(author, id, kind, object);
        }
    }

    /// Reports a release that the watchdog of a dead process sends. Returns its number.
    pub(super) fn refine_crash_release(
        &mut self,
        (author, clock): (u64, LocalTime),
        kind: &WriteKind,
    ) -> u64 {
        self.refinement.crash_release(author, clock, kind)
    }

    /// Reports what other writers have changed, and a deviation. With a seeded bug, the promises must find the bug
    /// without this check, so a deviation is not a violation.
    pub(super) fn refine_event(&mut self) {
        let register = &self.register;
        self.refinement
            .sync(register.current(), register.revision());
        if let (Some(text), None) = (self.refinement.deviation(), &self.report.deviation) {
            let text = text.to_owned();
            self.trace(|_| format!("DEVIATION {text}"));
            self.report.deviation = Some(text.clone());
            if self.kind.is_shipped() {
                self.violate(Invariant::Refinement, text);
            }
        }
    }
}
