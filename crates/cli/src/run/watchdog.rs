//! A tiny process beside the wrapper that ends the group when the wrapper cannot.
//!
//! A stopped or killed wrapper runs no timers. The watchdog waits on a pipe for the deadline of the
//! work, which every renewal moves. It kills the group and whoever left it when the deadline passes, or
//! when the pipe closes without a farewell.

use std::io::{self, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Pid, Signal, getppid, kill_process_group};
use rustix::time::{ClockId, Timespec, clock_gettime};

use super::kin;

/// Hidden subcommand; see [`watch`].
pub(crate) const WATCHDOG: &str = "__watchdog";

const FAREWELL: u64 = u64::MAX;

/// The wrapper's end of the pipe.
pub(crate) struct Watchdog {
    pipe: ChildStdin,
    child: Child,
}

impl Watchdog {
    /// Starts the watchdog for a group.
    pub(crate) fn start(group: Pid, mark: &str) -> io::Result<Self> {
        let mut child = Command::new(std::env::current_exe()?)
            .arg(WATCHDOG)
            .arg(group.as_raw_nonzero().to_string())
            .arg(mark)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            // Signals that a terminal sends to the wrapper's group must not reach it.
            .process_group(0)
            .spawn()?;
        let pipe = child.stdin.take().expect("asked for a pipe");
        Ok(Self { pipe, child })
    }

    /// Its process.
    pub(crate) fn id(&self) -> i32 {
        i32::try_from(self.child.id()).unwrap_or(0)
    }

    /// Moves the deadline: nanoseconds of `CLOCK_BOOTTIME`.
    pub(crate) fn until(&mut self, deadline: u64) -> io::Result<()> {
        self.pipe.write_all(&deadline.to_le_bytes())
    }

    /// The group is empty; the watchdog may go.
    pub(crate) fn dismiss(mut self) {
        let _ = self.until(FAREWELL);
        let _ = self.child.wait();
    }
}

/// `tenure __watchdog GROUP MARK`: see the module.
pub(crate) fn watch(group: &str, mark: &str) -> u8 {
    let Some(group) = group.parse().ok().and_then(Pid::from_raw) else {
        eprintln!("tenure: {WATCHDOG} is internal");
        return 125;
    };
    let wrapper = getppid().map_or(0, |pid| pid.as_raw_nonzero().get());
    super::group::close_inherited(&[]);
    match guard(&io::stdin().as_fd().try_clone_to_owned()) {
        Ok(End::Farewell) => 0,
        Ok(End::Overdue | End::Orphaned) | Err(_) => {
            let _ = kill_process_group(group, Signal::KILL);
            // Whoever was born while we looked is found the next time.
            for _ in 0..50 {
                let left = kin::descendants_of(wrapper, mark);
                if left.is_empty() {
                    break;
                }
                left.iter().for_each(|process| process.signal(Signal::KILL));
                std::thread::sleep(Duration::from_millis(20));
            }
            1
        }
    }
}

enum End {
    Farewell,
    Overdue,
    Orphaned,
}

/// Reads deadlines until one passes, or the pipe ends.
fn guard(pipe: &io::Result<OwnedFd>) -> io::Result<End> {
    let pipe = pipe
        .as_ref()
        .map_err(|error| io::Error::from(error.kind()))?;
    let mut deadline: Option<u64> = None;
    let mut buffer = Vec::with_capacity(64);
    loop {
        let left = deadline.map(|deadline| deadline.saturating_sub(boot_nanos()));
        if left == Some(0) {
            return Ok(End::Overdue);
        }
        // Wake at least once a second: poll's own clock stops in suspend, ours does not.
        let wait = left.unwrap_or(u64::MAX).min(1_000_000_000);
        let wait = Timespec {
            tv_sec: 0,
            tv_nsec: i64::try_from(wait).unwrap_or(0).min(999_999_999),
        };
        let mut fds = [PollFd::new(pipe, PollFlags::IN)];
        match poll(&mut fds, Some(&wait)) {
            Ok(0) | Err(rustix::io::Errno::INTR) => continue,
            Ok(_) => {}
            Err(error) => return Err(error.into()),
        }
        let mut chunk = [0; 64];
        let read = rustix::io::read(pipe, &mut chunk)?;
        if read == 0 {
            return Ok(End::Orphaned);
        }
        buffer.extend_from_slice(&chunk[..read]);
        while let Some((message, rest)) = buffer.split_first_chunk::<8>() {
            let value = u64::from_le_bytes(*message);
            buffer = rest.to_vec();
            if value == FAREWELL {
                return Ok(End::Farewell);
            }
            deadline = Some(value);
        }
    }
}

fn boot_nanos() -> u64 {
    let now = clock_gettime(ClockId::Boottime);
    let nanos = i128::from(now.tv_sec) * 1_000_000_000 + i128::from(now.tv_nsec);
    u64::try_from(nanos).unwrap_or(0)
}
