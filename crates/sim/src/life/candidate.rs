//! One candidate for life: a process in a pod, with its undertaker.

use tenure_core::undertaker::{PodId, Rules, Verdict, Vigil};
use tenure_core::{Config, Election, Guard, LocalTime, Record, ResourceVersion, Timing};

use super::cluster::{Lease, PodView};
use super::server::{Call, Reply};
use crate::clock::Clock;
use crate::rng::Rng;

/// How a process obtains the name of its pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Naming {
    /// The correct name.
    Right,
    /// The process uses a wrong host name, and verifies it.
    Wrong,
    /// The process uses a wrong host name and does not verify it, like versions before that check existed. It sets no
    /// mark.
    Unchecked,
}

/// A pod with its process.
#[derive(Debug)]
pub(super) struct Candidate {
    /// The pod as stored in the API server.
    pub(super) pod: PodId,
    /// The pod as named by the process.
    pub(super) named: PodId,
    pub(super) naming: Naming,
    pub(super) election: Election,
    pub(super) clock: Clock,
    pub(super) incarnation: u64,
    /// Whether the process runs and campaigns.
    pub(super) alive: bool,
    /// Whether the pod was deleted by force while the process runs. S1 does not apply to such a process.
    pub(super) disowned: bool,
    pub(super) cut_until: u64,
    pub(super) tick: Option<(LocalTime, u64)>,
    pub(super) guard: Option<Guard>,
    /// The watch delivers changes in order: the next one not before this instant.
    pub(super) tail: u64,
    /// The request of the election in flight, and whether it is a write.
    pub(super) request: Option<(u64, bool)>,
    /// Whether its pod has failed. A failed pod is never started again.
    pub(super) ended: bool,
    /// The last observed Lease that named a holder, even if the Lease was deleted or released since.
    held: Option<Lease>,
    /// The holder in the last observed Lease.
    leader: String,
    vigil: Option<Vigil>,
}

impl Candidate {
    pub(super) fn new(
        pod: PodId,
        named: PodId,
        naming: Naming,
        clock: Clock,
        config: Config,
    ) -> Self {
        Self {
            pod,
            named,
            naming,
            election: Election::new(config),
            clock,
            incarnation: 0,
            alive: false,
            disowned: false,
            cut_until: 0,
            tick: None,
            guard: None,
            tail: 0,
            request: None,
            ended: false,
            held: None,
            leader: String::new(),
            vigil: None,
        }
    }

    /// Returns the configuration of a process with this name.
    pub(super) fn config(named: &PodId, timing: &Timing, rng: &mut Rng) -> Config {
        Config {
            identity: named.identity(),
            timing: timing.clone(),
            release_on_cancel: true,
            for_life: true,
            rejoin: true,
            coordinated: false,
            preference: None,
            whole_seconds: false,
            seed: rng.bits(),
        }
    }

    /// Starts another process in the same pod, without the state of the previous one.
    pub(super) fn restart(&mut self, incarnation: u64, config: Config) {
        self.election = Election::new(config);
        self.incarnation = incarnation;
        self.alive = true;
        self.tick = None;
        self.guard = None;
        self.request = None;
        self.held = None;
        self.leader.clear();
        self.vigil = None;
    }

    pub(super) fn die(&mut self) {
        self.alive = false;
        self.guard = None;
    }

    /// Returns the mark that its writes set.
    pub(super) fn mark(&self) -> Option<&String> {
        (self.naming != Naming::Unchecked).then_some(&self.pod.uid)
    }

    /// Records the Lease as it was read or watched.
    pub(super) fn observe_lease(&mut self, lease: Option<&Lease>) {
        let Some(lease) = lease else {
            return;
        };
        self.leader.clone_from(&lease.seen.record.holder);
        if !lease.seen.record.is_free() {
            self.held = Some(lease.clone());
        }
    }

    /// Runs a check of the undertaker, and returns the request for a pod.
    pub(super) fn look(&mut self, rules: Rules, lease_seconds: u32) -> Option<Call> {
        let theirs = !self.leader.is_empty() && self.leader != self.named.identity();
        let held = self.held.as_ref().map(|held| &held.seen.record);
        let of_this_mode = |record: &&Record| {
            record.holder == self.leader && record.lease_duration_seconds == lease_seconds
        };
        let pod = held.filter(of_this_mode).filter(|_| theirs);
        let pod = pod.and_then(|record| PodId::parse(&record.holder));
        if self.vigil.as_ref().map(Vigil::pod) != pod.as_ref() {
            self.vigil = pod.map(|pod| Vigil::new(pod, rules));
        }
        let vigil = self.vigil.as_ref()?;
        // Candidates without the check are not under test here.
        (self.naming != Naming::Unchecked).then(|| Call::List(vigil.pod().name.clone()))
    }

    /// Handles a response for the undertaker, and returns its next request.
    pub(super) fn attend(&mut self, reply: &Reply, lease_seconds: u32) -> Option<Call> {
        let vigil = self.vigil.as_mut()?;
        match reply {
            Reply::Pods(name, PodView { revision, pod }) if *name == vigil.pod().name => {
                if let Some(held) = &self.held
                    && held.seen.record.holder == vigil.pod().identity()
                {
                    let at: &ResourceVersion = &held.seen.version.revision;
                    vigil.observe_mark(at, held.mark.as_deref());
                }
                let verdict = vigil.observe_pod(revision, pod.as_ref());
                (verdict == Verdict::Dead).then_some(Call::Fetch)
            }
            Reply::Fetched(lease) => {
                let record = lease.as_ref().map(|lease| &lease.seen.record);
                let may = vigil.may_empty(record, lease_seconds);
                may.then(|| {
                    let record = record.cloned().unwrap_or_default();
                    let base = lease.as_ref().map(|lease| lease.seen.version.clone());
                    Call::Empty(base, record)
                })
            }
            _ => None,
        }
    }
}
