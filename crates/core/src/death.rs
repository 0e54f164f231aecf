//! Decides whether evidence proves that an incarnation has ended.
//!
//! A proof replaces the wait for a lease, so it must show that every process of the incarnation has ended. Evidence is
//! always a true statement about something. The danger is a statement about something else: an earlier process with the
//! same pid, an earlier run of the same container, another machine. Rules:
//!
//! - A process is identified by boot, pid namespace, pid and start time. A start time counts only in the time namespace
//!   in which it was read.
//! - A boot ends with the next boot of the same machine. A machine without a unique name proves nothing.
//! - A run of a container is identified by the uid of the pod, the name of the container and the id of the run. If the
//!   incarnation does not know the id, the run is the one in which the term was acquired, by the clock of its node: it
//!   started before, it ended after, and the next run started after. Times of the kubelet are truncated to seconds, and
//!   so is the acquire time of some locks. An end in the same second may therefore be that of the run before.
//! - A pod that no longer exists proves nothing, because it may have been deleted by force while its processes run.

use crate::incarnation::{Container, Incarnation, Process};
use crate::mutant::DeathMutant;
pub use crate::mutant::DeathRules as Rules;
use crate::time::WallTime;

/// A true statement about something that has ended.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Evidence {
    /// The kernel reports the end of this process, or that it has no such process.
    ProcessEnded(Process),
    /// This machine runs with this boot now.
    Booted {
        /// The machine.
        machine: String,
        /// Id of its current boot.
        boot: String,
    },
    /// The kubelet reports the end of one run of a container.
    ContainerEnded(ContainerEnd),
    /// The kubelet reports that the pod has failed or succeeded, with every container terminated. Nothing in it starts
    /// again.
    PodEnded {
        /// `metadata.uid` of the pod.
        uid: String,
    },
    /// The pod object no longer exists.
    PodGone {
        /// `metadata.uid` of the pod.
        uid: String,
    },
    /// An administrator states by a taint that the node is shut down.
    NodeOutOfService {
        /// Name of the node.
        node: String,
    },
}

/// The end of one run of a container.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ContainerEnd {
    /// `metadata.uid` of the pod.
    pub uid: String,
    /// Name of the container.
    pub name: String,
    /// Id of the run.
    pub id: String,
    /// When it started, by the clock of its node, truncated to seconds.
    pub started: Option<WallTime>,
    /// When it ended, by the same clock, truncated to seconds.
    pub finished: Option<WallTime>,
    /// When the next run started, by the same clock, truncated to seconds; `None` if none has started.
    pub next_started: Option<WallTime>,
}

/// Collects evidence about one incarnation.
#[derive(Clone, Debug)]
pub struct Inquest {
    incarnation: Incarnation,
    /// Which of its processes are known to have ended.
    ended: Vec<bool>,
    dead: bool,
    rules: Rules,
}

impl Inquest {
    /// Starts without evidence.
    pub fn new(incarnation: Incarnation, rules: Rules) -> Self {
        Self {
            ended: vec![false; incarnation.place.processes.len()],
            incarnation,
            dead: false,
            rules,
        }
    }

    /// Returns the incarnation that the evidence is compared with.
    pub fn incarnation(&self) -> &Incarnation {
        &self.incarnation
    }

    /// Adds evidence, and returns whether the incarnation is proved dead.
    pub fn add(&mut self, evidence: &Evidence) -> bool {
        let place = &self.incarnation.place;
        let rules = self.rules;
        self.dead |= match evidence {
            Evidence::ProcessEnded(process) => {
                for (known, ended) in place.processes.iter().zip(&mut self.ended) {
                    *ended |= is_process(rules, known, process);
                }
                let any = self.ended.contains(&true);
                let all = any && self.ended.iter().all(|ended| *ended);
                all || (any && rules.is(DeathMutant::OneProcess))
            }
            Evidence::Booted { machine, boot } => {
                let here = place.machine.as_ref() == Some(machine);
                // A description without processes does not name a boot.
                let other = !place.processes.is_empty()
                    && place.processes.iter().all(|process| process.boot != *boot);
                (here || rules.is(DeathMutant::AnyMachine)) && other
            }
            Evidence::ContainerEnded(end) => {
                let container = place.container.as_ref();
                container.is_some_and(|container| {
                    is_run(rules, container, self.incarnation.acquire_time, end)
                })
            }
            Evidence::PodEnded { uid } => is_pod(place.container.as_ref(), uid),
            Evidence::PodGone { uid } => {
                rules.is(DeathMutant::GoneIsDead) && is_pod(place.container.as_ref(), uid)
            }
            Evidence::NodeOutOfService { node } => place.node.as_ref() == Some(node),
        };
        self.dead
    }
}

fn is_process(rules: Rules, known: &Process, ended: &Process) -> bool {
    (known.boot == ended.boot || rules.is(DeathMutant::AnyBoot))
        && known.pid_namespace == ended.pid_namespace
        && known.time_namespace == ended.time_namespace
        && known.pid == ended.pid
        && (known.started == ended.started || rules.is(DeathMutant::PidAlone))
}

fn is_pod(container: Option<&Container>, uid: &str) -> bool {
    container.is_some_and(|container| container.uid == uid)
}

fn is_run(
    rules: Rules,
    container: &Container,
    acquired: Option<WallTime>,
    end: &ContainerEnd,
) -> bool {
    let run = match &container.id {
        Some(id) => *id == end.id,
        None => acquired.is_some_and(|acquired| acquired_in(rules, acquired, end)),
    };
    container.uid == end.uid
        && (container.name == end.name || rules.is(DeathMutant::AnyContainer))
        && (run || rules.is(DeathMutant::AnyRun))
}

/// Returns whether a term was acquired in this run of the container, by the clock of the node.
fn acquired_in(rules: Rules, acquired: WallTime, end: &ContainerEnd) -> bool {
    let second = acquired.whole_seconds();
    let started = end.started.is_some_and(|started| started <= acquired);
    // Truncated times compare like the real ones, unless they are equal.
    let ended = end.finished.is_some_and(|finished| {
        finished > acquired || (finished >= second && rules.is(DeathMutant::SameSecond))
    });
    // If the clock was set back, an earlier run may seem to end later. The next run is then the one that holds the lock.
    let next = end.next_started.is_none_or(|next| next > acquired);
    (started || rules.is(DeathMutant::LaterRun))
        && ended
        && (next || rules.is(DeathMutant::NextRun))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::incarnation::Place;

    fn process(pid: u32) -> Process {
        Process {
            boot: "b1".to_owned(),
            pid_namespace: 4_026_531_836,
            time_namespace: 4_026_531_834,
            pid,
            started: 700,
        }
    }

    fn container() -> Container {
        Container {
            namespace: "shop".to_owned(),
            pod: "web-0".to_owned(),
            uid: "u1".to_owned(),
            name: "elector".to_owned(),
            id: Some("c1".to_owned()),
        }
    }

    fn incarnation(pids: &[u32]) -> Incarnation {
        Incarnation {
            identity: "a".to_owned(),
            acquire_time: Some(WallTime::from_micros(5_000_000)),
            transitions: 1,
            place: Place {
                machine: Some("m1".to_owned()),
                processes: pids.iter().copied().map(process).collect(),
                container: Some(container()),
                node: Some("n1".to_owned()),
            },
        }
    }

    fn proves(incarnation: &Incarnation, evidence: &[Evidence]) -> bool {
        let mut inquest = Inquest::new(incarnation.clone(), Rules::default());
        evidence.iter().any(|evidence| inquest.add(evidence))
    }

    fn run(id: &str) -> ContainerEnd {
        ContainerEnd {
            uid: "u1".to_owned(),
            name: "elector".to_owned(),
            id: id.to_owned(),
            started: None,
            finished: None,
            next_started: None,
        }
    }

    #[test]
    fn end_of_exactly_that_process_is_a_proof() {
        let ended = |change: fn(&mut Process)| {
            let mut other = process(7);
            change(&mut other);
            proves(&incarnation(&[7]), &[Evidence::ProcessEnded(other)])
        };
        assert!(ended(|_| ()));
        assert!(!ended(|process| process.pid = 8));
        assert!(!ended(|process| process.started = 701), "reused pid");
        assert!(!ended(|process| process.boot = "b2".to_owned()));
        assert!(!ended(|process| process.pid_namespace = 1));
        assert!(!ended(|process| process.time_namespace = 1));
    }

    #[test]
    fn every_process_must_have_ended() {
        let both = incarnation(&[7, 9]);
        let ended = |pid| Evidence::ProcessEnded(process(pid));
        assert!(!proves(&both, &[ended(7), ended(7)]));
        assert!(proves(&both, &[ended(9), ended(7)]));
        assert!(!proves(&incarnation(&[]), &[ended(7)]), "none is named");
    }

    #[test]
    fn another_boot_of_the_same_machine_is_a_proof() {
        let booted = |machine: &str, boot: &str| Evidence::Booted {
            machine: machine.to_owned(),
            boot: boot.to_owned(),
        };
        let holder = incarnation(&[7]);
        assert!(proves(&holder, &[booted("m1", "b2")]));
        assert!(!proves(&holder, &[booted("m1", "b1")]));
        assert!(!proves(&holder, &[booted("m2", "b2")]));
        let mut unnamed = holder.clone();
        unnamed.place.machine = None;
        assert!(!proves(&unnamed, &[booted("m1", "b2")]));
        assert!(!proves(&incarnation(&[]), &[booted("m1", "b2")]));
    }

    #[test]
    fn end_of_exactly_that_run_of_the_container_is_a_proof() {
        let ended = |change: fn(&mut ContainerEnd)| {
            let mut other = run("c1");
            change(&mut other);
            proves(&incarnation(&[]), &[Evidence::ContainerEnded(other)])
        };
        assert!(ended(|_| ()));
        assert!(!ended(|end| end.id = "c0".to_owned()), "an earlier run");
        assert!(!ended(|end| end.uid = "u2".to_owned()));
        assert!(!ended(|end| end.name = "other".to_owned()));
    }

    #[test]
    fn run_without_an_id_must_be_the_one_in_which_the_term_was_acquired() {
        let mut holder = incarnation(&[]);
        holder.place.container = Some(Container {
            id: None,
            ..container()
        });
        let at = |seconds: i64| Some(WallTime::from_micros(seconds * 1_000_000));
        let during = |started, finished, next_started| {
            let end = ContainerEnd {
                started,
                finished,
                next_started,
                ..run("c9")
            };
            Evidence::ContainerEnded(end)
        };
        // Acquired at 5.3 s, and with the precision of the lock at 5 s.
        for acquired in [5_300_000, 5_000_000] {
            holder.acquire_time = Some(WallTime::from_micros(acquired));
            assert!(proves(&holder, &[during(at(1), at(6), None)]));
            assert!(proves(&holder, &[during(at(5), at(6), at(6))]));
            for (started, finished, next, why) in [
                (at(1), at(4), None, "it ended before"),
                (
                    at(1),
                    at(5),
                    None,
                    "it may have ended in that second, before",
                ),
                (at(6), at(9), None, "it started after"),
                (at(1), at(9), at(2), "the next one was running"),
                (at(1), at(9), at(5), "the next one may have been running"),
                (None, at(6), None, "its start is unknown"),
                (at(1), None, None, "its end is unknown"),
            ] {
                assert!(
                    !proves(&holder, &[during(started, finished, next)]),
                    "{why}"
                );
            }
        }
        holder.acquire_time = None;
        assert!(!proves(&holder, &[during(at(1), at(6), None)]));
    }

    #[test]
    fn pod_that_ended_is_a_proof_and_a_pod_that_is_gone_is_none() {
        let holder = incarnation(&[7]);
        let uid = || "u1".to_owned();
        assert!(proves(&holder, &[Evidence::PodEnded { uid: uid() }]));
        assert!(!proves(&holder, &[Evidence::PodGone { uid: uid() }]));
        let other = "u2".to_owned();
        assert!(!proves(&holder, &[Evidence::PodEnded { uid: other }]));
        let mut outside = holder;
        outside.place.container = None;
        assert!(!proves(&outside, &[Evidence::PodEnded { uid: uid() }]));
    }

    #[test]
    fn taint_of_exactly_that_node_is_a_proof() {
        let taint = |node: &str| Evidence::NodeOutOfService {
            node: node.to_owned(),
        };
        assert!(proves(&incarnation(&[7]), &[taint("n1")]));
        assert!(!proves(&incarnation(&[7]), &[taint("n2")]));
    }
}
