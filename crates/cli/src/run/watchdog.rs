//! A tiny process beside the wrapper that ends the group when the wrapper cannot.
//!
//! A stopped or killed wrapper runs no timers. The watchdog is there before the group is, and knows from its
//! first moment when the work must be over. It waits on a pipe: first the group is named, then each renewal
//! moves the deadline. It kills the group and whoever left it when the deadline passes, or when the pipe
//! closes. Once the group is empty it is killed itself: it may be stopped, and nobody waits for it.

use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Pid, Signal, getpid, getppid, kill_process_group};
use rustix::time::{ClockId, Timespec, clock_gettime};

use super::kin;

/// Hidden subcommand; see [`watch`].
pub(crate) const WATCHDOG: &str = "__watchdog";

/// The wrapper's end of the pipe.
pub(crate) struct Watchdog {
    pipe: ChildStdin,
    child: Child,
}

impl Watchdog {
    /// Starts the watchdog for all who will carry the mark: none of them outlives the deadline, which is in
    /// nanoseconds of `CLOCK_BOOTTIME`.
    pub(crate) fn start(mark: &str, deadline: u64) -> io::Result<Self> {
        let mut child = Command::new(std::env::current_exe()?)
            .arg(WATCHDOG)
            .arg(getpid().as_raw_nonzero().to_string())
            .arg(mark)
            .arg(deadline.to_string())
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

    /// Names the group. Until then the watchdog knows its members by their mark alone.
    pub(crate) fn guards(&mut self, group: Pid) -> io::Result<()> {
        self.tell(group.as_raw_nonzero().get().unsigned_abs().into())
    }

    /// Moves the deadline. An error says that the watchdog has gone.
    pub(crate) fn until(&mut self, deadline: u64) -> io::Result<()> {
        self.tell(deadline)
    }

    fn tell(&mut self, value: u64) -> io::Result<()> {
        self.pipe.write_all(&value.to_le_bytes())
    }

    /// The group is empty, or in the care of another watchdog.
    pub(crate) fn dismiss(mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// `tenure __watchdog WRAPPER MARK DEADLINE`: see the module. Returns when there was something to kill.
pub(crate) fn watch(wrapper: &str, mark: &str, deadline: &str) -> u8 {
    let wrapper = wrapper.parse().ok().and_then(Pid::from_raw);
    let (Some(wrapper), Ok(deadline)) = (wrapper, deadline.parse()) else {
        eprintln!("tenure: {WATCHDOG} is internal");
        return 125;
    };
    super::group::close_inherited(&[]);
    let mut group = None;
    // Whatever ended the guard, an error too: nobody looks after the work any more.
    let _ = guard(io::stdin().as_fd(), &mut group, deadline);
    if let Some(group) = group {
        let _ = kill_process_group(group, Signal::KILL);
    }
    // Whoever was born while we looked is found the next time.
    for _ in 0..50 {
        // A dead wrapper has no descendants any more. Its heir, the first process of the machine
        // perhaps, has plenty, and none of them is ours: the mark alone tells.
        let parent = (getppid() == Some(wrapper)).then_some(wrapper);
        let left = kin::descendants_of(parent, mark);
        if left.is_empty() {
            break;
        }
        left.iter().for_each(|process| process.signal(Signal::KILL));
        std::thread::sleep(Duration::from_millis(20));
    }
    1
}

/// Reads the group, and then deadlines until one has passed, or the pipe ends.
fn guard(pipe: BorrowedFd<'_>, group: &mut Option<Pid>, mut deadline: u64) -> io::Result<()> {
    let mut buffer = Vec::with_capacity(64);
    loop {
        let left = deadline.saturating_sub(boot_nanos());
        // Wake at least once a second: poll's own clock stops in suspend, ours does not.
        let wait = Timespec {
            tv_sec: 0,
            tv_nsec: i64::try_from(left.min(999_999_999)).unwrap_or(0),
        };
        let mut fds = [PollFd::new(&pipe, PollFlags::IN)];
        match poll(&mut fds, Some(&wait)) {
            // Who comes late has looked into the pipe first: the deadline may have moved meanwhile.
            Ok(0) if left == 0 => return Ok(()),
            Ok(0) | Err(rustix::io::Errno::INTR) => continue,
            Ok(_) => {}
            Err(error) => return Err(error.into()),
        }
        let mut chunk = [0; 64];
        let read = rustix::io::read(pipe, &mut chunk)?;
        if read == 0 {
            return Ok(());
        }
        buffer.extend_from_slice(&chunk[..read]);
        while let Some((message, rest)) = buffer.split_first_chunk::<8>() {
            let value = u64::from_le_bytes(*message);
            buffer = rest.to_vec();
            if group.is_none() {
                *group = i32::try_from(value).ok().and_then(Pid::from_raw);
            } else {
                deadline = value;
            }
        }
    }
}

fn boot_nanos() -> u64 {
    let now = clock_gettime(ClockId::Boottime);
    let nanos = i128::from(now.tv_sec) * 1_000_000_000 + i128::from(now.tv_nsec);
    u64::try_from(nanos).unwrap_or(0)
}
