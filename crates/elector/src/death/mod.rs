//! Confirmed death: detects that the holder of a lock has ended, so that candidates do not wait for its lease.
//!
//! A [`DeathProof`] collects evidence. The state machine of `tenure-core` decides whether the evidence proves the death
//! of the holder; see `docs/book/explanation/safety.md`.
//!
//! | file | content |
//! |---|---|
//! | `host.rs` | the kernel of this machine |
//! | `pod.rs`, `kubelet.rs` | the status of the holder's pod |
//! | `node.rs` | a taint on the holder's node |
//! | `watcher.rs` | the watch of a pod or node |

mod host;
mod kubelet;
mod node;
mod pod;
mod watcher;

use std::fmt;
use std::sync::Arc;

use tenure_core::death::Evidence;
use tenure_core::{Incarnation, Place};
use tenure_lock::BoxFuture;

pub use self::host::{HostProof, Unavailable};
pub use self::node::{NodeProof, UnknownNode};
pub use self::pod::{PodProof, UnknownContainer};

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

/// A permission that a source of evidence needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AccessRule {
    /// API group; empty for the core group.
    pub group: &'static str,
    /// Plural name of the kind.
    pub resource: &'static str,
    /// Verbs on every object of the kind. The names of future holders are unknown.
    pub verbs: &'static [&'static str],
    /// Whether the kind has no namespaces, so that only a ClusterRole can grant the permission.
    pub cluster: bool,
}

/// Returns an environment variable that is set and not empty.
fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

/// Returns whether a text is a DNS label, as names of namespaces are.
fn is_label(text: &str) -> bool {
    let allowed = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    !text.is_empty() && text.len() <= 63 && text.chars().all(allowed)
}
