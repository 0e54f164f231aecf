//! Watches the holder that a follower observes, and reports its proved death to the state machine.
//!
//! The sources of evidence are asked once per term of a holder. The core decides what their evidence proves. A proof
//! counts for one version, so it is reported again for each later version of the same term. A renewal that the holder
//! sent before it died creates such a version.

use std::sync::Arc;

use futures_util::FutureExt as _;
use futures_util::future::AbortHandle;
use tenure_core::death::{Evidence, Inquest, Rules};
use tenure_core::{Incarnation, Input, Phase, Version};

use super::{Entry, World};
use crate::death::DeathProof;
use crate::hub::sending::Done;

/// The sources of evidence of one election, and the holder that they watch.
pub(in crate::hub) struct Inquiry {
    proofs: Vec<Arc<dyn DeathProof>>,
    current: Option<Watched>,
}

/// A watched holder.
struct Watched {
    inquest: Inquest,
    dead: bool,
    /// The last version for which its death was reported.
    reported: Option<Version>,
    waits: Vec<AbortHandle>,
}

impl Inquiry {
    /// Returns the inquiry of an election, if it has sources of evidence.
    pub(super) fn new(proofs: Vec<Arc<dyn DeathProof>>) -> Option<Box<Self>> {
        let current = None;
        (!proofs.is_empty()).then(|| Box::new(Self { proofs, current }))
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        self.waits.iter().for_each(AbortHandle::abort);
    }
}

impl Entry {
    /// Watches the observed holder while this election follows.
    pub(super) fn watch_holder(&mut self, world: &mut World) {
        let Some(inquiry) = &mut self.inquiry else {
            return;
        };
        let following = self.election.phase() == Phase::Following;
        let seen = self.last.as_ref().filter(|_| following);
        let seen = seen.map(|snapshot| snapshot.observation());
        let Some((seen, holder)) = seen.and_then(|seen| Some((seen, seen.incarnation()?))) else {
            inquiry.current = None;
            return;
        };
        let current = inquiry.current.as_ref();
        if current.is_none_or(|watched| watched.inquest.incarnation() != &**holder) {
            let waits = inquiry
                .proofs
                .iter()
                .filter_map(|proof| proof.watch(holder));
            let waits = waits.map(|wait| world.requests.poll(self.id, wait.map(Done::Evidence)));
            inquiry.current = Some(Watched {
                inquest: Inquest::new(Incarnation::clone(holder), Rules::default()),
                dead: false,
                reported: None,
                waits: waits.collect(),
            });
        }
        let Some(watched) = inquiry.current.as_mut().filter(|watched| watched.dead) else {
            return;
        };
        if watched.reported.as_ref() != Some(&seen.version) {
            let version = seen.version.clone();
            watched.reported = Some(version.clone());
            self.step(world, Input::Dead(version), None);
        }
    }

    /// Passes evidence to the core.
    pub(super) fn add_evidence(&mut self, world: &mut World, evidence: &[Evidence]) {
        let current = self.inquiry.as_mut().and_then(|own| own.current.as_mut());
        if let Some(watched) = current.filter(|watched| !watched.dead) {
            watched.dead = evidence.iter().any(|one| watched.inquest.add(one));
            if watched.dead {
                let holder = &watched.inquest.incarnation().identity;
                let _in = self.span.clone().entered();
                tracing::info!(%holder, "the holder is proved dead");
            }
        }
        self.watch_holder(world);
    }
}
