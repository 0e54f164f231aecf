//! Startup hooks: what has to be done before controllers start.
//!
//! Hooks are called in order; each future is awaited before the next hook is called. A hook that has
//! to wait for something passes its [`Done`] to a task of its own and returns. Controllers start when
//! every hook is done. A handle that is dropped is a hook that failed, so a forgotten one ends the
//! start with a message instead of holding it up for ever.

use std::fmt;
use std::panic::AssertUnwindSafe;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt as _, StreamExt as _};
use tokio::sync::{oneshot, watch};
use tokio::time::Sleep;

use crate::error::{Error, chain};
use crate::ready::Readiness;
use crate::runnable::{Cause, Outcome};
use crate::tasks::panic_text;

/// What a hook gets.
pub struct Startup {
    /// To be called when the hook has done its part.
    pub done: Done,
    /// For requests.
    pub client: kube::Client,
    pub(crate) ready: watch::Receiver<Readiness>,
}

impl Startup {
    /// Waits until the API server is ready; at once without a [gate](crate::Builder::gate).
    pub async fn api_ready(&mut self) {
        // If it never is, the whole start fails and this future is dropped.
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

/// Says that a hook has done its part. Dropping it says that the hook failed.
#[must_use = "dropping it fails the start"]
pub struct Done(oneshot::Sender<Result<(), String>>);

impl Done {
    /// It worked.
    pub fn ok(self) {
        // The start was given up if nobody listens.
        let _ = self.0.send(Ok(()));
    }

    /// It did not.
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

/// Calls all hooks in order, and waits until each is done. The first that fails ends it, whichever is
/// being called then.
pub(crate) async fn run(
    hooks: Vec<Hook>,
    client: &kube::Client,
    ready: &watch::Receiver<Readiness>,
    limit: Duration,
) -> Result<(), Error> {
    let mut waiting = FuturesUnordered::new();
    for Hook { name, call } in hooks {
        let (done, answer) = oneshot::channel();
        let startup = Startup {
            done: Done(done),
            client: client.clone(),
            ready: ready.clone(),
        };
        tracing::debug!(hook = &*name, "startup hook");
        let mut late = Box::pin(tokio::time::sleep(limit));
        let mut called = pin!(AssertUnwindSafe(async { call(startup).await }).catch_unwind());
        loop {
            tokio::select! {
                biased;
                called = &mut called => match called {
                    Ok(Ok(())) => break,
                    Ok(Err(cause)) => return Err(failed(&name, chain(&*cause))),
                    Err(panic) => {
                        let cause = format!("panicked: {}", panic_text(&*panic));
                        return Err(failed(&name, cause));
                    }
                },
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

/// Waits for what one hook says.
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
                let cause = "its done handle was dropped without being called";
                Err(failed(&name, cause.to_owned()))
            }
        },
        () = late => Err(failed(&name, too_late("has not said that it is done", limit))),
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
