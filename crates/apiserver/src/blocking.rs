//! Work of unknown duration, outside the worker threads of the runtime.

use std::future::poll_fn;
use std::pin::pin;

use tokio::runtime::{Handle, RuntimeFlavor};

/// Runs every step of a future on a thread that the runtime replaces meanwhile. A runtime with a single thread cannot
/// do that, so there the future runs as usual. The future can be dropped between two steps, so that a cancelled request
/// and a shutdown do not wait for its end.
pub(crate) async fn off_workers<F: Future>(work: F) -> F::Output {
    if Handle::current().runtime_flavor() != RuntimeFlavor::MultiThread {
        return work.await;
    }
    let mut work = pin!(work);
    poll_fn(|context| tokio::task::block_in_place(|| work.as_mut().poll(context))).await
}
