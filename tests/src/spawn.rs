//! Starts processes that cannot outlive the test run.
//!
//! Linux can kill a child when its parent dies. By "parent" it means the thread that started the child, and tests end
//! with their threads. One thread, which lives as long as the test run, therefore starts all processes.

use std::io;
use std::process::{Child, Command};
use std::sync::mpsc::{Sender, channel};
use std::sync::{LazyLock, Mutex};

type Order = (Command, Sender<io::Result<Child>>);

static SPAWNER: LazyLock<Mutex<Sender<Order>>> = LazyLock::new(|| {
    let (orders, inbox) = channel::<Order>();
    std::thread::spawn(move || {
        for (mut command, answer) in inbox {
            // If the caller has ended, it cannot end the process.
            if let Err(lost) = answer.send(command.spawn())
                && let Ok(mut child) = lost.0
            {
                _ = child.kill();
            }
        }
    });
    Mutex::new(orders)
});

/// Starts a process that the kernel kills when this one ends for any reason.
pub(crate) fn spawn_bound(mut command: Command) -> io::Result<Child> {
    bind_to_parent(&mut command);
    let (answer, result) = channel();
    let sent = match SPAWNER.lock() {
        Ok(orders) => orders.send((command, answer)),
        Err(poisoned) => poisoned.into_inner().send((command, answer)),
    };
    sent.map_err(|_| io::Error::other("the thread that starts processes has ended"))?;
    result.recv().map_err(io::Error::other)?
}

#[cfg(target_os = "linux")]
#[expect(
    unsafe_code,
    reason = "the death signal can only be set between fork and exec"
)]
fn bind_to_parent(command: &mut Command) {
    use std::os::unix::process::CommandExt;

    let parent = rustix::process::getpid();
    let bind = move || {
        rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL))?;
        // The parent may have died before the line above took effect.
        if rustix::process::getppid() != Some(parent) {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        Ok(())
    };
    // SAFETY: the closure makes two system calls and touches no memory shared with other threads.
    unsafe { command.pre_exec(bind) };
}

#[cfg(not(target_os = "linux"))]
fn bind_to_parent(_: &mut Command) {}
