//! Signals, and the end of a process.

use std::io;

use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::oneshot;

use crate::error::Error;
use crate::handle::ManagerHandle;

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

/// Ends the process with code 1 if something did not stop in time. It may block a thread, and a runtime
/// waits for its threads for ever. For programs that call [`Manager::run`](crate::Manager::run);
/// [`run_until_signal`](crate::Manager::run_until_signal) does this.
pub fn exit_if_stuck(handle: &ManagerHandle, result: &Result<(), Error>) {
    let Some(stuck) = handle.stuck() else { return };
    match result {
        Ok(()) | Err(Error::ShutdownTimeout { .. }) => exit(1, &stuck),
        Err(error) => exit(1, &format!("{error}; {stuck}")),
    }
}

/// Says why and ends the process.
#[allow(clippy::print_stderr, reason = "the last words of a process")]
pub(crate) fn exit(code: i32, why: &str) -> ! {
    if !why.is_empty() {
        eprintln!("tenure: {why}");
    }
    std::process::exit(code);
}
