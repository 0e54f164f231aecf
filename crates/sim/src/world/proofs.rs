//! Evidence that holders are dead: where the incarnations run, which ends are reported, and false evidence.
//!
//! Every piece of evidence is true, but it may not prove the death of the holder. It may be about an earlier process
//! with the same pid, an earlier run of the same container, or another machine. It may also arrive long after the fact.

use std::rc::Rc;

use tenure_core::death::{ContainerEnd, Evidence, Inquest, Rules};
use tenure_core::{Container, Input, Place, Process, WallTime};

use super::{Event, World};
use crate::fault::Fault;
use crate::machine::Kind;
use crate::node::{Letter, Node};
use crate::register::Object;

/// Number of machines. Several candidates share each.
const MACHINES: usize = 2;

/// Few pids, so that they are reused.
const PIDS: u64 = 3;

/// Remembered evidence of a node.
const REMEMBERED: usize = 8;

impl Node {
    pub(super) fn note_evidence(&mut self, evidence: Evidence) {
        if !self.evidence.contains(&evidence) {
            self.evidence.truncate(REMEMBERED - 1);
            self.evidence.push_front(evidence);
        }
    }
}

impl World {
    /// Returns where a new incarnation runs, if it describes itself. It has two processes, as `tenure run` has.
    pub(super) fn place(&mut self, i: usize) -> Option<Rc<Place>> {
        if !self.plan.proves[i] {
            return None;
        }
        let (machine, boot) = self.machine(i);
        let (started, run) = (self.now, self.incarnations);
        let first = self.rng.below(PIDS);
        let process = |pid: u64| Process {
            boot: boot.clone(),
            pid_namespace: 1,
            time_namespace: 1,
            pid: u32::try_from(pid).unwrap_or_default(),
            started,
        };
        // Both processes have the same start time, so only their pids differ.
        let processes = vec![process(first), process(first + PIDS)];
        Some(Rc::new(Place {
            machine: Some(machine),
            processes,
            container: Some(Container {
                namespace: "ns".to_owned(),
                pod: format!("p{i}"),
                uid: format!("u{i}"),
                name: "elector".to_owned(),
                id: self.plan.container_ids.then(|| format!("c{run}")),
            }),
            node: None,
        }))
    }

    fn machine(&mut self, i: usize) -> (String, String) {
        let machine = i % MACHINES;
        let boot = *self.boots.entry(machine).or_default();
        (format!("m{machine}"), format!("b{machine}-{boot}"))
    }

    /// Gives a new process the evidence of the current boot of its machine.
    pub(super) fn learn_own_boot(&mut self, i: usize) {
        if self.plan.proves[i] {
            let (machine, boot) = self.machine(i);
            self.deliver(i, Letter::Evidence(Evidence::Booted { machine, boot }));
        }
    }

    /// Reports the end of a process: the kernel to the candidates on the same machine, and the kubelet to all.
    pub(super) fn report_end(&mut self, i: usize) {
        let Some(place) = self.nodes[i].place.clone().filter(|_| self.nodes[i].alive) else {
            return;
        };
        for process in &place.processes {
            let ended = Evidence::ProcessEnded(process.clone());
            self.spread(&ended, |j| j % MACHINES == i % MACHINES);
        }
        if let Some(run) = &place.container {
            let node = &self.nodes[i];
            let finished = node.clock.now(self.now).wall.whole_seconds();
            let end = ContainerEnd {
                started: Some(node.started),
                finished: Some(finished),
                ..end_of(run)
            };
            self.spread(&Evidence::ContainerEnded(end), |_| true);
        }
    }

    /// Sends evidence to candidates that use it. Some of it is late.
    fn spread(&mut self, evidence: &Evidence, to: impl Fn(usize) -> bool) {
        for node in 0..self.nodes.len() {
            if !to(node) || !self.plan.proves[node] {
                continue;
            }
            let mut delay = self.one_way();
            if self.calm.is_none() && self.rng.percent(20) {
                delay += self.rng.below(2 * self.plan.longest_lease());
            }
            let incarnation = self.nodes[node].incarnation;
            let letter = Box::new(Letter::Evidence(evidence.clone()));
            self.after(
                delay,
                Event::Letter {
                    node,
                    incarnation,
                    letter,
                },
            );
        }
    }

    /// Compares the evidence of a node with the version that it knows, and reports a dead holder to its election.
    pub(super) fn prove(&mut self, i: usize) {
        let node = &self.nodes[i];
        if !self.plan.proves[i] || !node.alive || node.evidence.is_empty() {
            return;
        }
        let Some(version) = node.machine.version().cloned() else {
            return;
        };
        if node.proved.as_ref() == Some(&version) {
            return;
        }
        let object = self.register.find(&version);
        let described = object.and_then(|object| match self.kind {
            // This bug is in the core. The simulated driver has the same bug, so it looks up evidence about the
            // described incarnation.
            Kind::Proofs(Some(tenure_core::Mutant::ProofByIdentity)) => {
                object.seen.described.clone()
            }
            _ => object.seen.incarnation().cloned(),
        });
        let Some(incarnation) = described else {
            return;
        };
        let rules = match self.kind {
            Kind::DeathMutant(mutant) => Rules::mutated(mutant),
            _ => Rules::default(),
        };
        let mut inquest = Inquest::new((*incarnation).clone(), rules);
        if node.evidence.iter().any(|evidence| inquest.add(evidence)) {
            self.nodes[i].proved = Some(version.clone());
            self.report.totals.proofs += 1;
            self.deliver(i, Letter::Other(Input::Dead(version)));
        }
    }

    /// Returns whether a candidate that uses proofs may replace a version because its author is dead.
    pub(super) fn is_dead(&self, i: usize, base: &Object) -> bool {
        let lives = |author: Option<u64>| {
            let mut nodes = self.nodes.iter();
            nodes.any(|node| node.alive && Some(node.incarnation) == author)
        };
        self.plan.proves[i]
            && base.seen.incarnation().is_some()
            && !lives(base.author)
            && !lives(base.marked_by)
    }

    /// Injects a fault of proofs: evidence about something that resembles the holder.
    pub(super) fn strike_proofs(&mut self, fault: Fault) {
        let Some(current) = self.register.current().cloned() else {
            return;
        };
        let to = self.rng.below(self.nodes.len() as u64) as usize;
        match fault {
            Fault::Reboot => return self.reboot(to % MACHINES),
            Fault::ProofOfOldVersion => {
                let back = self.rng.range(1, 12) as usize;
                let old = self.register.past(back);
                let old = old.filter(|old| old.seen.incarnation().is_some());
                if let Some(old) = old.filter(|old| self.is_dead(to, old)) {
                    let dead = Input::Dead(old.seen.version.clone());
                    self.deliver(to, Letter::Other(dead));
                }
                return;
            }
            Fault::ProofOfUndescribed => {
                if current.seen.incarnation().is_none() {
                    let dead = Input::Dead(current.seen.version.clone());
                    self.deliver(to, Letter::Other(dead));
                }
                return;
            }
            _ => {}
        }
        let Some(holder) = current.seen.incarnation() else {
            return;
        };
        let (processes, container) = (&holder.place.processes, holder.place.container.clone());
        let Some((process, run)) = processes.first().cloned().zip(container) else {
            return;
        };
        let evidence = match fault {
            Fault::EvidenceReusedPid => processes
                .iter()
                .map(|process| {
                    Evidence::ProcessEnded(Process {
                        started: process.started.saturating_sub(1),
                        ..process.clone()
                    })
                })
                .collect(),
            Fault::EvidenceOtherBoot => processes
                .iter()
                .map(|process| {
                    Evidence::ProcessEnded(Process {
                        boot: "b".to_owned(),
                        ..process.clone()
                    })
                })
                .collect(),
            Fault::EvidenceOneProcess => vec![Evidence::ProcessEnded(process)],
            Fault::EvidenceOtherContainer => {
                let name = "other".to_owned();
                vec![Evidence::ContainerEnded(ContainerEnd {
                    name,
                    ..end_of(&run)
                })]
            }
            Fault::EvidenceOldRun | Fault::EvidenceLaterRun | Fault::EvidenceClockSetBack => {
                let acquired = holder.acquire_time;
                let end = self.other_run(fault, &run, acquired, current.author);
                end.into_iter().map(Evidence::ContainerEnded).collect()
            }
            Fault::EvidencePodGone => vec![Evidence::PodGone { uid: run.uid }],
            _ => return,
        };
        for evidence in &evidence {
            self.spread(evidence, |_| true);
        }
    }

    /// Returns the end of a run of the holder's container in which the holder did not acquire the lock.
    fn other_run(
        &self,
        fault: Fault,
        run: &Container,
        acquired: Option<WallTime>,
        author: Option<u64>,
    ) -> Option<ContainerEnd> {
        let node = self.nodes.iter().find(|node| {
            node.place
                .as_ref()
                .and_then(|place| place.container.as_ref())
                == Some(run)
        })?;
        let (began, now) = (node.started, node.clock.now(self.now).wall.whole_seconds());
        let (started, finished, next_started) = match fault {
            // The run before that of the holder. It ended right before the run of the holder began.
            Fault::EvidenceOldRun => (later(began, -10), began, None),
            // The lost run must not acquire another term before this run has ended. While the lost run works, it has no
            // acquisition in flight.
            Fault::EvidenceLaterRun if author == Some(node.incarnation) && node.work.is_some() => {
                (later(acquired?, 1), now, None)
            }
            Fault::EvidenceLaterRun => return None,
            _ => (later(began, -10), later(now, 10), Some(began)),
        };
        Some(ContainerEnd {
            id: "c0".to_owned(),
            started: Some(started.whole_seconds()),
            finished: Some(finished),
            next_started,
            ..end_of(run)
        })
    }

    /// Crashes every process of a machine. They start again in another boot.
    fn reboot(&mut self, machine: usize) {
        let lease = self.plan.longest_lease();
        *self.boots.entry(machine).or_default() += 1;
        for node in (machine..self.nodes.len()).step_by(MACHINES) {
            let incarnation = self.nodes[node].incarnation;
            if !self.nodes[node].alive {
                continue;
            }
            // No candidate observes the end of a process that ends with its machine.
            self.nodes[node].place = None;
            self.crash(node);
            let delay = self.rng.below(lease);
            self.after(delay, Event::Restart { node, incarnation });
        }
    }
}

/// Returns the end of the run of this container. Its times are unknown.
fn end_of(run: &Container) -> ContainerEnd {
    ContainerEnd {
        uid: run.uid.clone(),
        name: run.name.clone(),
        id: run.id.clone().unwrap_or_default(),
        started: None,
        finished: None,
        next_started: None,
    }
}

fn later(time: WallTime, seconds: i64) -> WallTime {
    WallTime::from_micros(time.as_micros() + seconds * 1_000_000)
}
