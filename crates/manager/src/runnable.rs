//! A unit of work of the manager: a name, a start function, and a failure policy.

use std::error::Error;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use futures_util::{FutureExt as _, Stream, StreamExt as _, pin_mut};

use crate::error::chain;
use crate::scope::Scope;

/// Reason for the failure of a runnable.
pub type Cause = Box<dyn Error + Send + Sync>;

/// The output of a runnable: nothing, or a result with a [`Cause`].
pub trait Outcome {
    /// Converts the output to a result.
    ///
    /// # Errors
    ///
    /// Returns the reason of the failure.
    fn into_result(self) -> Result<(), Cause>;
}

impl Outcome for () {
    fn into_result(self) -> Result<(), Cause> {
        Ok(())
    }
}

impl<E: Into<Cause>> Outcome for Result<(), E> {
    fn into_result(self) -> Result<(), Cause> {
        self.map_err(Into::into)
    }
}

/// Policy for a runnable that fails or panics before it is cancelled. A runnable that returns without an error is
/// complete under every policy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Policy {
    /// Stop the manager with an error that names the runnable.
    #[default]
    Die,
    /// Start it again with increasing delays.
    Restart(Backoff),
    /// Log the failure and continue without it.
    Ignore,
}

/// The delays between restarts. They double, and start again after a long successful run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backoff {
    /// The first delay.
    pub first: Duration,
    /// The longest delay.
    pub most: Duration,
    /// After a run of this length, the delays start again with the first one.
    pub reset_after: Duration,
}

impl Default for Backoff {
    /// Returns delays from one second, doubling to thirty seconds, that start again after a run of a minute.
    fn default() -> Self {
        Self {
            first: Duration::from_secs(1),
            most: Duration::from_secs(30),
            reset_after: Duration::from_secs(60),
        }
    }
}

type Start = dyn Fn(Scope) -> BoxFuture<'static, Result<(), Cause>> + Send + Sync;

/// A controller or any other piece of work. Depending on the method of the [`Builder`](crate::Builder), it is started
/// once on every replica, once per term, or once per term and shard.
///
/// ```
/// use tenure_manager::{Backoff, Runnable};
///
/// let _ = Runnable::new("heartbeat", |scope| async move {
///     while scope.is_leading() {
///         // one beat
///         scope.cancelled().await;
///     }
/// })
/// .restart(Backoff::default());
/// ```
#[derive(Clone)]
pub struct Runnable {
    name: Arc<str>,
    policy: Policy,
    start: Arc<Start>,
}

impl Runnable {
    /// Creates a runnable from any future. The future must end when its scope is cancelled.
    pub fn new<F, W>(name: &str, start: F) -> Self
    where
        F: Fn(Scope) -> W + Send + Sync + 'static,
        W: Future + Send + 'static,
        W::Output: Outcome,
    {
        let start = move |scope| start(scope).map(Outcome::into_result).boxed();
        Self {
            name: name.into(),
            policy: Policy::default(),
            start: Arc::new(start),
        }
    }

    /// Creates a runnable from a kube-rs `Controller`: the stream that its `run` returns. The items of the stream are
    /// logged. Pass [`Scope::until_cancelled`] to `graceful_shutdown_on`, so that running reconciliations are
    /// completed. Otherwise they are dropped at the end of the term.
    ///
    /// ```no_run
    /// # use std::sync::Arc;
    /// # use k8s_openapi::api::core::v1::ConfigMap;
    /// # use kube::runtime::controller::{Action, Controller};
    /// # async fn reconcile(_: Arc<ConfigMap>, _: Arc<()>) -> Result<Action, kube::Error> {
    /// #     Ok(Action::await_change())
    /// # }
    /// # fn failed(_: Arc<ConfigMap>, _: &kube::Error, _: Arc<()>) -> Action { Action::await_change() }
    /// # fn example(maps: kube::Api<ConfigMap>) {
    /// let _ = tenure_manager::Runnable::controller("maps", move |scope| {
    ///     Controller::new(maps.clone(), Default::default())
    ///         .graceful_shutdown_on(scope.until_cancelled())
    ///         .run(reconcile, failed, Arc::new(()))
    /// });
    /// # }
    /// ```
    pub fn controller<F, S, T, E>(name: &str, start: F) -> Self
    where
        F: Fn(Scope) -> S + Send + Sync + 'static,
        S: Stream<Item = Result<T, E>> + Send + 'static,
        E: Error,
    {
        let start = Arc::new(start);
        Self::new(name, move |scope| {
            let start = start.clone();
            async move {
                let (name, end) = (scope.name().to_owned(), scope.clone());
                let stream = start(scope);
                pin_mut!(stream);
                while let Some(result) = stream.next().await {
                    if let Err(error) = result {
                        let error = chain(&error);
                        tracing::warn!(controller = name, error, "reconciliation failed");
                    }
                }
                if end.is_cancelled() {
                    Ok(())
                } else {
                    Err("the controller ended without a request to stop")
                }
            }
        })
    }

    /// Restarts it if it fails or panics.
    #[must_use]
    pub fn restart(mut self, backoff: Backoff) -> Self {
        self.policy = Policy::Restart(backoff);
        self
    }

    /// Continues without it if it fails or panics.
    #[must_use]
    pub fn ignore(mut self) -> Self {
        self.policy = Policy::Ignore;
        self
    }

    /// Returns its name in logs, metrics and errors.
    pub fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn shared_name(&self) -> &Arc<str> {
        &self.name
    }

    pub(crate) fn policy(&self) -> Policy {
        self.policy
    }

    pub(crate) fn start(&self, scope: Scope) -> BoxFuture<'static, Result<(), Cause>> {
        (self.start)(scope)
    }
}

impl fmt::Debug for Runnable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Runnable")
            .field("name", &self.name)
            .field("policy", &self.policy)
            .finish_non_exhaustive()
    }
}
