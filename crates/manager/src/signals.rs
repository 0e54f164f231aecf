//! Signals, and the end of a process.

use std::io;

use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::oneshot;

/// Completes with the first SIGTERM or SIGINT; from the call on, a second one ends the process with
/// code 1.
///
/// # Errors
/// Signals cannot be listened for.
///
/// # Panics
/// Outside a tokio runtime.
pub fn shutdown() -> io::Result<impl Future<Output = ()> + Send> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let (first, asked) = oneshot::channel();
    let watching = tokio::spawn(async move {
        let mut either = async || {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
            }
        };
        either().await;
        // Nobody waits any more: then there is nothing to stop.
        let _ = first.send(());
        either().await;
        exit(1, "a second signal, exiting now");
    });
    Ok(async move {
        // The task goes on after the first signal.
        let _ = asked.await;
        drop(watching);
    })
}

/// Says why and ends the process.
#[allow(clippy::print_stderr, reason = "the last words of a process")]
pub(crate) fn exit(code: i32, why: &str) -> ! {
    if !why.is_empty() {
        eprintln!("tenure: {why}");
    }
    std::process::exit(code);
}
