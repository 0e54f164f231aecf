//! Work of unknown duration, outside the worker threads of the runtime.

use std::future::poll_fn;
use std::pin::pin;

use tokio::runtime::{Handle, RuntimeFlavor};

/// Polls a future on a worker thread that the runtime replaces during each poll. A runtime with a single thread cannot
/// replace it, so there the future is polled as usual. The future can be dropped between two polls, so that a cancelled
/// request and a shutdown do not wait for its end.
pub(crate) async fn off_workers<F: Future>(work: F) -> F::Output {
    if Handle::current().runtime_flavor() != RuntimeFlavor::MultiThread {
        return work.await;
    }
    let mut work = pin!(work);
    poll_fn(|context| tokio::task::block_in_place(|| work.as_mut().poll(context))).await
}
