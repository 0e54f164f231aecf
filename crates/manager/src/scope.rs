//! What a running controller gets: when to stop, and whether it still leads.

use std::fmt;
use std::sync::Arc;

use tenure::{FencingToken, NotLeading, Tenure};
use tokio_util::sync::CancellationToken;

use crate::shard::Shard;
use crate::tasks::Entered;

/// The scope that a [`Runnable`](crate::Runnable) runs in. Clones are the same scope.
///
/// Its work has to end when [`cancelled`](Self::cancelled) completes. The work has ended when every clone of
/// its scope is dropped: give one to each task and thread that belongs to it, and keep none elsewhere. Until
/// then the lock of a leader scope is not released. In a leader scope everything with an effect should ask
/// [`check`](Self::check) first and send the [`token`](Self::token) along.
#[derive(Clone)]
pub struct Scope {
    inner: Arc<Inner>,
}

struct Inner {
    name: Arc<str>,
    cancel: CancellationToken,
    tenure: Option<Tenure>,
    shard: Option<Shard>,
    /// The runnable counts as running for as long.
    _entered: Option<[Entered; 2]>,
}

impl Scope {
    pub(crate) fn new(
        name: Arc<str>,
        cancel: CancellationToken,
        tenure: Option<Tenure>,
        shard: Option<Shard>,
    ) -> Self {
        let inner = Inner {
            name,
            cancel,
            tenure,
            shard,
            _entered: None,
        };
        Self {
            inner: Arc::new(inner),
        }
    }

    /// The name of the runnable.
    pub fn name(&self) -> &str {
        &self.inner.name
    }

    /// Completes when the work has to end: at the end of the term, and at shutdown.
    ///
    /// # Cancel safety
    /// Nothing is lost when the future is dropped.
    pub async fn cancelled(&self) {
        self.inner.cancel.cancelled().await;
    }

    /// The same as a future that borrows nothing, such as
    /// [`graceful_shutdown_on`](kube::runtime::Controller::graceful_shutdown_on) wants.
    pub fn until_cancelled(&self) -> impl Future<Output = ()> + Send + Sync + 'static {
        let cancel = self.inner.cancel.clone();
        cancel.cancelled_owned()
    }

    /// Whether the work has to end.
    pub fn is_cancelled(&self) -> bool {
        self.inner.cancel.is_cancelled()
    }

    /// Whether this process leads at this instant, by the clock. Without an election, until the work
    /// has to end.
    pub fn is_leading(&self) -> bool {
        match &self.inner.tenure {
            Some(tenure) => tenure.is_leading(),
            None => !self.is_cancelled(),
        }
    }

    /// For use before an effect: `scope.check()?`.
    ///
    /// # Errors
    /// The term has ended. Never without an election.
    pub fn check(&self) -> Result<(), NotLeading> {
        self.inner.tenure.as_ref().map_or(Ok(()), Tenure::check)
    }

    /// The fencing token of the term; there is none without an election.
    pub fn token(&self) -> Option<&FencingToken> {
        self.inner.tenure.as_ref().map(Tenure::token)
    }

    /// The term; there is none without an election.
    pub fn tenure(&self) -> Option<&Tenure> {
        self.inner.tenure.as_ref()
    }

    /// The shard that this instance works on, in a shard scope.
    pub fn shard(&self) -> Option<Shard> {
        self.inner.shard
    }

    /// Whether this instance leads and is the one for this key. Outside a shard scope every key is
    /// its own.
    pub fn owns(&self, key: &str) -> bool {
        let mine = self.shard().is_none_or(|shard| shard.contains(key));
        mine && self.is_leading()
    }

    /// The same scope for one runnable.
    pub(crate) fn renamed(&self, name: &Arc<str>, entered: [Entered; 2]) -> Self {
        let Inner {
            cancel,
            tenure,
            shard,
            ..
        } = &*self.inner;
        let inner = Inner {
            name: name.clone(),
            cancel: cancel.clone(),
            tenure: tenure.clone(),
            shard: *shard,
            _entered: Some(entered),
        };
        let inner = Arc::new(inner);
        Self { inner }
    }
}

impl fmt::Debug for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Scope")
            .field("name", &self.inner.name)
            .field("token", &self.token())
            .field("shard", &self.inner.shard)
            .field("cancelled", &self.is_cancelled())
            .finish_non_exhaustive()
    }
}
