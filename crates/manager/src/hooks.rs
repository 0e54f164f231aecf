//! Startup hooks, which run before controllers start.
//!
//! Hooks are called in order, and each future is awaited before the next hook is called. A hook that must wait moves its
//! [`Done`] to a spawned task and returns. Controllers start when every hook is done. A dropped handle means that the hook
//! failed, so a forgotten handle ends the start with an error.
//!
//! Each hook runs in a separate task. A hook that blocks its thread does not delay its time limit or a shutdown, as long
//! as the runtime has another thread.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt as _, StreamExt as _};
use tenure_lock::panic_text;
use tokio::sync::{oneshot, watch};
use tokio::task::{JoinError, JoinSet};
use tokio::time::Sleep;

use crate::error::{Error, chain};
use crate::ready::Readiness;
use crate::runnable::{Cause, Outcome};
use crate::tasks::ABORT_TAKES;

/// The argument of a hook.
pub struct Startup {
    /// Reports that the hook is done.
    pub done: Done,
    /// Client for requests.
    pub client: kube::Client,
    pub(crate) ready: watch::Receiver<Readiness>,
}

impl Startup {
    /// Waits until the API server is ready. Returns immediately without a [gate](crate::Builder::gate).
    pub async fn api_ready(&mut self) {
        // If the API server never becomes ready, the start fails and this future is dropped.
        let ready = self.ready.wait_for(|ready| *ready == Readiness::Ready);
        if ready.await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

impl fmt::Debug for Startup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Startup")
            .field("ready", &*self.ready.borrow())
            .finish_non_exhaustive()
    }
}

/// Reports the result of a hook. Dropping it means that the hook failed.
#[must_use = "dropping it fails the start"]
pub struct Done(oneshot::Sender<Result<(), String>>);

impl Done {
    /// Reports success.
    pub fn ok(self) {
        // The receiver is gone if the start was cancelled.
        let _ = self.0.send(Ok(()));
    }

    /// Reports a failure.
    pub fn failed(self, cause: impl fmt::Display) {
        let _ = self.0.send(Err(cause.to_string()));
    }
}

impl fmt::Debug for Done {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Done")
    }
}

type Call = Box<dyn FnOnce(Startup) -> BoxFuture<'static, Result<(), Cause>> + Send>;

/// A named hook.
pub(crate) struct Hook {
    pub(crate) name: Arc<str>,
    call: Call,
}

impl Hook {
    pub(crate) fn new<F, W>(name: &str, call: F) -> Self
    where
        F: FnOnce(Startup) -> W + Send + 'static,
        W: Future + Send + 'static,
        W::Output: Outcome,
    {
        let call = |startup| call(startup).map(Outcome::into_result).boxed();
        Self {
            name: name.into(),
            call: Box::new(call),
        }
    }
}

/// The running hook. Dropping it aborts the hook.
#[derive(Debug, Default)]
pub(crate) struct Calling {
    name: Option<Arc<str>>,
    /// Holds at most one task, because the next hook is called after the previous one has returned.
    task: JoinSet<Result<(), Cause>>,
}

impl Calling {
    fn call(&mut self, Hook { name, call }: Hook, startup: Startup) {
        self.name = Some(name);
        // The call itself may block or panic too, so it runs inside the task.
        self.task.spawn(async { call(startup).await });
    }

    /// Aborts a running hook after the start has ended.
    ///
    /// # Errors
    /// Returns an error if the hook blocks its thread.
    pub(crate) async fn end(mut self) -> Result<(), Error> {
        self.task.abort_all();
        let ended = async { while self.task.join_next().await.is_some() {} };
        if tokio::time::timeout(ABORT_TAKES, ended).await.is_ok() {
            return Ok(());
        }
        let name = self.name.iter().map(|name| format!("startup hook {name}"));
        Err(Error::ShutdownTimeout {
            limit: ABORT_TAKES,
            names: name.collect(),
        })
    }
}

/// Calls all hooks in order and waits until each is done. The first failure ends the start, even while another hook is
/// being called.
pub(crate) async fn run(
    hooks: Vec<Hook>,
    calling: &mut Calling,
    client: &kube::Client,
    ready: &watch::Receiver<Readiness>,
    limit: Duration,
) -> Result<(), Error> {
    let mut waiting = FuturesUnordered::new();
    for hook in hooks {
        let name = hook.name.clone();
        let (done, answer) = oneshot::channel();
        let startup = Startup {
            done: Done(done),
            client: client.clone(),
            ready: ready.clone(),
        };
        tracing::debug!(hook = &*name, "startup hook");
        let mut late = Box::pin(tokio::time::sleep(limit));
        calling.call(hook, startup);
        loop {
            tokio::select! {
                biased;
                Some(called) = calling.task.join_next() => {
                    returned(called).map_err(|cause| failed(&name, cause))?;
                    break;
                }
                Some(done) = waiting.next() => done?,
                () = &mut late => return Err(failed(&name, too_late("has not returned", limit))),
            }
        }
        waiting.push(answered(name, answer, late, limit));
    }
    while let Some(done) = waiting.next().await {
        done?;
    }
    Ok(())
}

/// Converts the result of a hook task.
fn returned(called: Result<Result<(), Cause>, JoinError>) -> Result<(), String> {
    match called {
        Ok(returned) => returned.map_err(|cause| chain(&*cause)),
        Err(error) => Err(match error.try_into_panic() {
            Ok(panic) => format!("panicked: {}", panic_text(&*panic)),
            Err(cancelled) => cancelled.to_string(),
        }),
    }
}

/// Waits for the report of one hook.
async fn answered(
    name: Arc<str>,
    answer: oneshot::Receiver<Result<(), String>>,
    late: Pin<Box<Sleep>>,
    limit: Duration,
) -> Result<(), Error> {
    tokio::select! {
        biased;
        answer = answer => match answer {
            Ok(Ok(())) => {
                tracing::debug!(hook = &*name, "startup hook done");
                Ok(())
            }
            Ok(Err(cause)) => Err(failed(&name, cause)),
            Err(_) => {
                let cause = "its `Done` handle was dropped before it was called";
                Err(failed(&name, cause.to_owned()))
            }
        },
        () = late => Err(failed(&name, too_late("has not reported that it is done", limit))),
    }
}

fn failed(name: &str, cause: String) -> Error {
    Error::Hook {
        name: name.to_owned(),
        cause,
    }
}

fn too_late(what: &str, limit: Duration) -> String {
    format!("{what} within {} s", limit.as_secs_f64())
}
