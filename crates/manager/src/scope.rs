//! The scope of a running controller: when to stop, and whether it still leads.

use std::fmt;
use std::sync::Arc;

use tenure::{FencingToken, NotLeading, Tenure};
use tokio_util::sync::CancellationToken;

use crate::shard::Shard;
use crate::tasks::Entered;

/// The scope in which a [`Runnable`](crate::Runnable) runs. Clones are the same scope.
///
/// The work must end when [`cancelled`](Self::cancelled) completes. The work counts as ended when every clone of
/// its scope is dropped. Therefore pass a clone to each of its tasks and threads, and keep none elsewhere. Until the
/// work has ended, the lock of a leader scope is not released. In a leader scope, call [`check`](Self::check) before every effect, and send the
/// [`token`](Self::token) with it.
#[derive(Clone)]
pub struct Scope {
    inner: Arc<Inner>,
}

struct Inner {
    name: Arc<str>,
    cancel: CancellationToken,
    tenure: Option<Tenure>,
    shard: Option<Shard>,
    /// The runnable counts as running as long as this exists.
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

    /// Returns the name of the runnable.
    pub fn name(&self) -> &str {
        &self.inner.name
    }

    /// Completes when the work must end: at the end of the term, and at shutdown.
    ///
    /// # Cancel safety
    ///
    /// Nothing is lost when the future is dropped.
    pub async fn cancelled(&self) {
        self.inner.cancel.cancelled().await;
    }

    /// Same as [`cancelled`](Self::cancelled), as a future that borrows nothing, for example for
    /// [`graceful_shutdown_on`](kube::runtime::Controller::graceful_shutdown_on).
    pub fn until_cancelled(&self) -> impl Future<Output = ()> + Send + Sync + 'static {
        let cancel = self.inner.cancel.clone();
        cancel.cancelled_owned()
    }

    /// Returns whether the work must end.
    pub fn is_cancelled(&self) -> bool {
        self.inner.cancel.is_cancelled()
    }

    /// Returns whether this process leads at this instant, according to the clock. Without an election, returns true
    /// until the work must end.
    pub fn is_leading(&self) -> bool {
        match &self.inner.tenure {
            Some(tenure) => tenure.is_leading(),
            None => !self.is_cancelled(),
        }
    }

    /// Checks the term before an effect: `scope.check()?`.
    ///
    /// # Errors
    ///
    /// Fails if the term has ended. Never fails without an election.
    pub fn check(&self) -> Result<(), NotLeading> {
        self.inner.tenure.as_ref().map_or(Ok(()), Tenure::check)
    }

    /// Returns the fencing token of the term; `None` without an election.
    pub fn token(&self) -> Option<&FencingToken> {
        self.inner.tenure.as_ref().map(Tenure::token)
    }

    /// Returns the term; `None` without an election.
    pub fn tenure(&self) -> Option<&Tenure> {
        self.inner.tenure.as_ref()
    }

    /// Returns the shard of this instance, in a shard scope.
    pub fn shard(&self) -> Option<Shard> {
        self.inner.shard
    }

    /// Returns whether this instance leads and is responsible for this key. Outside a shard scope it is responsible for
    /// every key.
    pub fn owns(&self, key: &str) -> bool {
        let mine = self.shard().is_none_or(|shard| shard.contains(key));
        mine && self.is_leading()
    }

    /// Returns a clone of this scope with the name of one runnable.
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
