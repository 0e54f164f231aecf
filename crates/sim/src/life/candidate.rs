//! One candidate for life: a process in a pod, and the undertaker in it.

use tenure_core::undertaker::{PodId, Rules, Verdict, Vigil};
use tenure_core::{Config, Election, Guard, LocalTime, Record, ResourceVersion, Timing};

use super::cluster::{Lease, PodView};
use super::server::{Call, Reply};
use crate::clock::Clock;
use crate::rng::Rng;

/// How a process of a pod learns its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Naming {
    /// As it is.
    Right,
    /// It takes a host name for it, and checks what it took.
    Wrong,
    /// It takes a host name for it, and checks nothing: a version from before the check. It sets no mark.
    Unchecked,
}

/// A pod with its process.
#[derive(Debug)]
pub(super) struct Candidate {
    /// The pod as the API server knows it.
    pub(super) pod: PodId,
    /// The pod as the process names it.
    pub(super) named: PodId,
    pub(super) naming: Naming,
    pub(super) election: Election,
    pub(super) clock: Clock,
    pub(super) incarnation: u64,
    /// Whether the process runs and campaigns.
    pub(super) alive: bool,
    /// Whether the pod was removed by force while the process runs: S1 does not count it.
    pub(super) disowned: bool,
    pub(super) cut_until: u64,
    pub(super) tick: Option<(LocalTime, u64)>,
    pub(super) guard: Option<Guard>,
    /// The watch shows changes in order: not before this.
    pub(super) tail: u64,
    /// The request of the election that is under way, and whether it is a write.
    pub(super) request: Option<(u64, bool)>,
    /// Whether its pod has failed: it is never started again.
    pub(super) ended: bool,
    /// The last Lease that named a holder, even if it is gone; and who holds it now.
    held: Option<Lease>,
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

    /// What a process of this name is told before it starts.
    pub(super) fn config(named: &PodId, timing: &Timing, rng: &mut Rng) -> Config {
        Config {
            identity: named.identity(),
            timing: timing.clone(),
            release_on_cancel: true,
            for_life: true,
            rejoin: true,
            coordinated: false,
            whole_seconds: false,
            seed: rng.bits(),
        }
    }

    /// Another process in the same pod, which knows nothing of the one before.
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

    /// The mark that its writes set.
    pub(super) fn mark(&self) -> Option<&String> {
        (self.naming != Naming::Unchecked).then_some(&self.pod.uid)
    }

    /// Takes the Lease as it was read or watched.
    pub(super) fn observe_lease(&mut self, lease: Option<&Lease>) {
        let Some(lease) = lease else {
            return;
        };
        self.leader.clone_from(&lease.seen.record.holder);
        if !lease.seen.record.is_free() {
            self.held = Some(lease.clone());
        }
    }

    /// The undertaker looks: which pod it asks for.
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
        // Candidates from before the check are not what is tested here.
        (self.naming != Naming::Unchecked).then(|| Call::List(vigil.pod().name.clone()))
    }

    /// The undertaker hears: what it asks for next.
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
