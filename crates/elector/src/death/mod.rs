//! Confirmed death: learns that the holder of a lock has ended, so that nobody waits for its lease.
//!
//! A [`DeathProof`] collects evidence. The state machine of `tenure-core` decides whether the evidence proves the death
//! of the holder; see `docs/safety.md`.

mod host;

use std::fmt;
use std::sync::Arc;

use tenure_core::death::Evidence;
use tenure_core::{Incarnation, Place};
use tenure_lock::BoxFuture;

pub use self::host::{HostProof, Unavailable};

/// A source of evidence that a holder has ended, for example the kernel or a hypervisor.
///
/// Implement it for sources that this crate does not know. The evidence must be true: a wrong statement lets two
/// candidates lead at the same time. If the source is not sure, it must not complete.
pub trait DeathProof: fmt::Debug + Send + Sync {
    /// Adds what is known about the place of this process. The holder of the lock publishes it, so that other candidates
    /// can ask their sources about it.
    fn describe(&self, place: &mut Place);

    /// Returns a future that completes with evidence about the end of this holder, or nothing if this source knows
    /// nothing about it. It must never block. It is dropped when another candidate holds the lock.
    ///
    /// The future completes at most once for each term of a holder, so it must wait until it has all its evidence.
    fn watch(&self, holder: &Arc<Incarnation>) -> Option<BoxFuture<'static, Vec<Evidence>>>;
}

/// Returns the place of this process according to all sources; nothing if none knows anything.
pub(crate) fn place(proofs: &[Arc<dyn DeathProof>]) -> Option<Arc<Place>> {
    let mut place = Place::default();
    for proof in proofs {
        proof.describe(&mut place);
    }
    (place != Place::default()).then(|| Arc::new(place))
}
