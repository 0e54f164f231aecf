//! Faults, controllers and operators that affect pods, their processes and the Lease.

use std::time::Duration;

use tenure_core::Input;
use tenure_core::undertaker::{PodId, PodStage};

use super::candidate::Candidate;
use super::{Event, STRIKE, WatchEvent, World};
use crate::fault::Fault;

impl World {
    pub(super) fn strike(&mut self) {
        if self.calm {
            return;
        }
        let next = self.rng.below(2 * STRIKE);
        self.after(next, Event::Strike);
        let living: Vec<usize> = (0..self.candidates.len())
            .filter(|i| self.candidates[*i].alive && !self.candidates[*i].disowned)
            .collect();
        let leader = living.iter().copied().find(|i| self.leads(*i));
        let Some(i) = leader
            .filter(|_| self.rng.percent(60))
            .or_else(|| (!living.is_empty()).then(|| *self.rng.pick(&living)))
        else {
            return;
        };
        let fault = *self.rng.pick(&[
            Fault::Crash,
            Fault::Partition,
            Fault::StepDown,
            Fault::PodDeleted,
            Fault::PodDeleted,
            Fault::PodForced,
            Fault::PodFailed,
            Fault::NodeLost,
        ]);
        self.report.totals.faults.count(fault);
        let span = self.rng.below(4 * STRIKE);
        let PodId { name, uid } = self.candidates[i].pod.clone();
        self.trace(|_| format!("{name}_{uid} !! {}", fault.name()));
        match fault {
            Fault::Crash => {
                self.candidates[i].die();
                self.after(span / 8, Event::Start(i));
            }
            Fault::Partition => self.candidates[i].cut_until = self.now + span,
            Fault::StepDown => self.step(i, Input::StepDown(Duration::from_nanos(span / 4))),
            Fault::PodDeleted => {
                // The processes end within the grace period, and the pod is deleted after that.
                self.step(i, Input::Shutdown);
                self.after(span / 8, Event::Remove(i));
            }
            Fault::PodForced => {
                self.candidates[i].disowned = true;
                self.candidates[i].cut_until = self.now + span;
                self.after(span, Event::Heal(i));
                self.bury(i);
            }
            Fault::PodFailed => {
                self.candidates[i].die();
                self.candidates[i].ended = true;
                self.cluster.set_stage(&name, &uid, PodStage::Ended);
                self.after(span, Event::Remove(i));
            }
            _ => {
                self.candidates[i].cut_until = self.now + span;
                self.cluster.set_stage(&name, &uid, PodStage::Overdue);
                self.after(span, Event::Heal(i));
            }
        }
    }

    pub(super) fn remove(&mut self, i: usize) {
        self.candidates[i].die();
        let PodId { name, uid } = &self.candidates[i].pod;
        if self.cluster.has_pod(name, uid) {
            self.bury(i);
        }
    }

    /// Removes the pod; its controller creates another.
    fn bury(&mut self, i: usize) {
        let PodId { name, uid } = self.candidates[i].pod.clone();
        self.cluster.remove_pod(&name, &uid);
        if self.rng.percent(50) {
            let delay = self.rng.below(STRIKE);
            self.after(delay, Event::Collect);
        }
        let next = match self.stateful {
            true => name,
            false => self.next_name(),
        };
        self.report.totals.faults.count(Fault::PodReplaced);
        let delay = self.rng.below(STRIKE / 2);
        self.after(delay, Event::Schedule(next));
    }

    /// Handles a node that responds again: it ends the processes that it should not run.
    pub(super) fn heal(&mut self, i: usize) {
        let PodId { name, uid } = self.candidates[i].pod.clone();
        if self.candidates[i].disowned {
            self.candidates[i].die();
        } else if !self.candidates[i].ended {
            self.cluster.set_stage(&name, &uid, PodStage::Running);
        }
    }

    pub(super) fn collect(&mut self) {
        let gone = |uid: &String| {
            let mut pods = self.candidates.iter().map(|candidate| &candidate.pod);
            !pods.any(|pod| pod.uid == *uid && self.cluster.has_pod(&pod.name, uid))
        };
        if self.cluster.owner.as_ref().is_some_and(gone) {
            self.report.totals.faults.count(Fault::LeaseCollected);
            let revision = self.cluster.delete_lease();
            self.trace(|_| "the Lease is collected".to_owned());
            self.announce(|| WatchEvent::Gone(revision.clone()));
        }
    }

    /// Ends the faults: nodes respond, and every pod runs.
    pub(super) fn calm_down(&mut self) {
        self.calm = true;
        for i in 0..self.candidates.len() {
            self.candidates[i].cut_until = 0;
            self.heal(i);
            if self.candidates[i].alive {
                self.list_lease(i);
            } else {
                self.start(i);
            }
        }
        let name = self.next_name();
        self.schedule(&name);
        self.operate();
        // An earlier write may still be in flight.
        self.after(5 * STRIKE, Event::Operate);
    }

    /// Frees a lock like an operator who knows that the holder has ended, if no candidate may do so.
    pub(super) fn operate(&mut self) {
        let Some(lease) = self.cluster.lease.clone() else {
            return;
        };
        let holds = |candidate: &Candidate| {
            candidate.alive && candidate.named.identity() == lease.seen.record.holder
        };
        let unmarked = PodId::parse(&lease.seen.record.holder)
            .is_some_and(|pod| lease.mark.as_ref() != Some(&pod.uid));
        if unmarked && !self.candidates.iter().any(holds) {
            self.trace(|_| "an operator empties the Lease".to_owned());
            self.empty(Some(&lease.seen.version), &lease.seen.record);
        }
    }

    /// Returns a name that no pod has had.
    pub(super) fn next_name(&mut self) -> String {
        self.names += 1;
        format!("web-{}", self.names)
    }
}
