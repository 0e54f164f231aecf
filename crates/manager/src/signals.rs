//! Signals and the exit of a process.

use std::io;

use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::oneshot;

use crate::error::Error;
use crate::handle::ManagerHandle;

/// Completes on the first SIGTERM or SIGINT. A second signal ends the process with code 1.
///
/// # Errors
/// Returns an error if signal handlers cannot be installed.
///
/// # Panics
/// Panics outside a tokio runtime.
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
        // The receiver may be gone; then there is nothing to stop.
        let _ = first.send(());
        either().await;
        exit(1, "received a second signal; exiting");
    });
    Ok(async move {
        // The task continues after the first signal.
        let _ = asked.await;
        drop(watching);
    })
}

/// Ends the process with code 1 if work did not stop in time. Such work may block a thread, and a runtime waits for its
/// threads indefinitely. For programs that call [`Manager::run`](crate::Manager::run);
/// [`run_until_signal`](crate::Manager::run_until_signal) does this itself.
pub fn exit_if_stuck(handle: &ManagerHandle, result: &Result<(), Error>) {
    let Some(stuck) = handle.stuck() else { return };
    match result {
        Ok(()) | Err(Error::ShutdownTimeout { .. }) => exit(1, &stuck),
        Err(error) => exit(1, &format!("{error}; {stuck}")),
    }
}

/// Prints the reason and ends the process.
#[allow(clippy::print_stderr, reason = "the last words of a process")]
pub(crate) fn exit(code: i32, why: &str) -> ! {
    if !why.is_empty() {
        eprintln!("tenure: {why}");
    }
    std::process::exit(code);
}
