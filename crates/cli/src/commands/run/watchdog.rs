//! The process between the wrapper and the command. It ends the command when the wrapper cannot.
//!
//! A stopped or killed wrapper runs no timers. The watchdog starts the command, so it is the parent of the command. It
//! also adopts orphans, so all processes that the command starts stay below the watchdog, even after the wrapper has
//! died. It kills everything below itself when the deadline in the [`FenceFile`] passes, or when its socket closes. A
//! closed socket means that the wrapper has ended. The watchdog never reaps the command. The pid of the command
//! therefore stays in use, and a signal cannot reach another process. The wrapper inherits the exit code when it ends
//! the watchdog.
//!
//! If the wrapper was killed, the watchdog then releases the lease ([`CrashRelease`]). It does so only when no process
//! is left: the kernel reports that the watchdog has no child, and the control group, if there is one, could be
//! removed. Each orphan among its descendants becomes its child, so none of them is missed. Without a control group, a
//! process that joined a foreign pid namespace is missed.
//!
//! The watchdog reports over the socket. Reports are hints, because the wrapper must not depend on a process that may
//! be stopped.

use std::ffi::OsString;
use std::io::{self, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

use nix::sys::signal::SigSet;
use nix::sys::signalfd::{SfdFlags, SignalFd};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendFlags, recvmsg, send};
use rustix::process::{
    Pid, Signal, WaitId, WaitIdOptions, getpid, getppid, kill_process, kill_process_group,
    set_child_subreaper, set_parent_process_death_signal, waitid,
};
use rustix::time::{ClockId, Timespec, clock_gettime};

use super::cgroup::Cgroup;
use super::crash_release::CrashRelease;
use super::fence_file::FenceFile;
use super::{group, kin};

/// Hidden subcommand; see [`watch`].
pub(crate) const WATCHDOG: &str = "__watchdog";

/// Exit code of the watchdog after it has killed remaining processes.
pub(super) const ENDED_IT: u8 = 1;

/// Exit code of the watchdog if it could not start.
const FAILED: u8 = 125;

/// Interval at which the watchdog checks its clock and orphans.
const TURN: Duration = Duration::from_secs(1);

/// Interval and number of attempts to end remaining processes. A process that is blocked in the kernel may take a long
/// time.
const ROUND: Duration = Duration::from_millis(20);
const ROUNDS: u32 = 30_000;

/// Interval and number of checks whether a wrapper without a socket has ended.
const WRAPPER_ROUND: Duration = Duration::from_millis(2);
const WRAPPER_ROUNDS: u32 = 500;

/// Signals to the watchdog that are forwarded to the wrapper, because a command knows only its parent.
const PASSED_ON: [nix::sys::signal::Signal; 6] = {
    use nix::sys::signal::Signal;
    [
        Signal::SIGTERM,
        Signal::SIGINT,
        Signal::SIGQUIT,
        Signal::SIGHUP,
        Signal::SIGUSR1,
        Signal::SIGUSR2,
    ]
};

/// A report of the watchdog to the wrapper: eight bytes, a kind and a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Report {
    /// The command runs with this pid, which is also the id of its group.
    Started(i32),
    /// The command could not be started, because of this error of the operating system.
    NotStarted(i32),
    /// A member of its group was stopped by this signal.
    Stopped(i32),
    /// The command has ended.
    Ended,
}

impl Report {
    pub(super) const LENGTH: usize = 8;

    fn encode(self) -> [u8; Self::LENGTH] {
        let (kind, value) = match self {
            Self::Started(pid) => (1, pid),
            Self::NotStarted(errno) => (2, errno),
            Self::Stopped(signal) => (3, signal),
            Self::Ended => (4, 0),
        };
        (i64::from(kind) << 32 | i64::from(value.cast_unsigned())).to_le_bytes()
    }

    pub(super) fn decode(bytes: [u8; Self::LENGTH]) -> Option<Self> {
        let [v0, v1, v2, v3, kind, ..] = bytes;
        let value = i32::from_le_bytes([v0, v1, v2, v3]);
        match kind {
            1 => Some(Self::Started(value)),
            2 => Some(Self::NotStarted(value)),
            3 => Some(Self::Stopped(value)),
            4 => Some(Self::Ended),
            _ => None,
        }
    }
}

/// `tenure __watchdog WRAPPER KEEP CGROUP`: see the module. Standard input is the socket to the wrapper, over which the
/// file descriptors are received. Returns the exit code when everything below has ended.
pub(crate) fn watch(args: &[OsString]) -> u8 {
    let text = |at: usize| args.get(at).and_then(|arg| arg.to_str());
    let wrapper = text(0).and_then(|pid| Pid::from_raw(pid.parse().ok()?));
    let (Some(wrapper), Some(keep), Some(cgroup)) = (wrapper, text(1), args.get(2)) else {
        eprintln!("tenure: {WATCHDOG} is internal");
        return FAILED;
    };
    let cgroup = (!cgroup.is_empty()).then(|| Cgroup::at(Path::new(cgroup)));
    run(wrapper, keep, cgroup.as_ref()).unwrap_or_else(|error| {
        let why = tenure_lock::in_words(&error);
        eprintln!("tenure: the watchdog of the command failed: {why}");
        FAILED
    })
}

fn run(wrapper: Pid, keep: &str, cgroup: Option<&Cgroup>) -> io::Result<u8> {
    // If the watchdog is stopped when the wrapper dies, the kernel wakes it.
    set_parent_process_death_signal(Some(Signal::CONT))?;
    if getppid() != Some(wrapper) {
        return Ok(FAILED);
    }
    set_child_subreaper(Some(getpid()))?;
    group::close_inherited(&group::parse_keep(keep));
    let stdin = io::stdin();
    let socket = stdin.as_fd();
    let (fence, input) = receive(socket)?;
    let (release, argv) = fence.words()?;
    // Both processes may have been stopped since the wrapper wrote the deadline.
    if time_left(fence.read()?, boot_nanos()).is_none() {
        return Ok(ENDED_IT);
    }
    let main = match group::spawn(&argv, keep, cgroup, input) {
        Ok(main) => main,
        Err(error) => {
            tell(
                socket,
                Report::NotStarted(error.raw_os_error().unwrap_or(0)),
            );
            return Ok(FAILED);
        }
    };
    tell(socket, Report::Started(kin::raw(main)));
    // An error of the guard loop is ignored. The processes are ended in any case, because nothing else watches the
    // command any more.
    let _ = guard(wrapper, main, socket, &fence);
    end_everything(main, cgroup);
    let certain = has_ended(wrapper) && nothing_is_left();
    if let Some(cgroup) = cgroup {
        cgroup.remove();
    }
    let certain = certain && cgroup.is_none_or(|cgroup| !cgroup.path().exists());
    let release = release.to_str().and_then(CrashRelease::decode);
    if let Some(release) = release.filter(|_| certain) {
        // A signal to the watchdog ends it now, because nobody else reads it any more.
        SigSet::all().thread_unblock()?;
        release.run();
    }
    Ok(ENDED_IT)
}

/// Receives the fence file, and standard input for the command unless it has none.
fn receive(socket: BorrowedFd<'_>) -> io::Result<(FenceFile, Option<OwnedFd>)> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    let mut buffers = [IoSliceMut::new(&mut byte)];
    recvmsg(socket, &mut buffers, &mut control, RecvFlags::CMSG_CLOEXEC)?;
    let mut files = control.drain().flat_map(|message| match message {
        RecvAncillaryMessage::ScmRights(files) => files.collect(),
        _ => Vec::new(),
    });
    let fence = files.next();
    let fence = fence.ok_or_else(|| io::Error::other("the wrapper has gone"))?;
    Ok((fence.into(), files.next()))
}

/// Sends a report, unless the wrapper has stopped reading.
fn tell(socket: BorrowedFd<'_>, report: Report) {
    let _ = send(
        socket,
        &report.encode(),
        SendFlags::DONTWAIT | SendFlags::NOSIGNAL,
    );
}

/// Returns when the deadline has passed, or the wrapper has ended.
fn guard(wrapper: Pid, main: Pid, socket: BorrowedFd<'_>, fence: &FenceFile) -> io::Result<()> {
    // Block signals only now, so that the command does not inherit the mask.
    let mut mask = SigSet::empty();
    mask.add(nix::sys::signal::Signal::SIGCHLD);
    PASSED_ON.into_iter().for_each(|signal| mask.add(signal));
    mask.thread_block()?;
    let signals = SignalFd::with_flags(&mask, SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC)?;
    let mut children = Children::of(main);
    loop {
        children.look(socket);
        let Some(wait) = time_left(fence.read()?, boot_nanos()) else {
            return Ok(());
        };
        let mut events = [
            PollFd::new(&socket, PollFlags::IN),
            PollFd::new(&signals, PollFlags::IN),
        ];
        match poll(&mut events, Some(&wait)) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        let spoke = !events[0].revents().is_empty();
        if spoke && has_gone(socket) {
            return Ok(());
        }
        while let Ok(Some(signal)) = signals.read_signal() {
            let signal = i32::try_from(signal.ssi_signo).unwrap_or(0);
            match Signal::from_named_raw(signal) {
                Some(Signal::CHILD) | None => {}
                // The pid of a wrapper that died may belong to another process.
                Some(signal) if getppid() == Some(wrapper) => {
                    let _ = kill_process(wrapper, signal);
                }
                Some(_) => {}
            }
        }
    }
}

/// Returns how long to sleep; `None` once the deadline has passed. The sleep is at most one turn, because the clock of
/// `poll` stops during suspend, and that of the deadline does not.
pub(super) fn time_left(deadline: u64, now: u64) -> Option<Timespec> {
    let left = Duration::from_nanos(deadline.checked_sub(now).filter(|left| *left > 0)?);
    let wait = left.min(TURN);
    Some(Timespec {
        tv_sec: i64::try_from(wait.as_secs()).unwrap_or(1),
        tv_nsec: wait.subsec_nanos().into(),
    })
}

/// Reads the wrapper's bytes, which only mean that the deadline has moved. Returns whether the wrapper has ended.
fn has_gone(socket: BorrowedFd<'_>) -> bool {
    let mut bytes = [0; 64];
    loop {
        match rustix::net::recv(socket, &mut bytes, RecvFlags::DONTWAIT) {
            Ok((0, _)) => return true,
            Ok(_) | Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => return false,
            Err(_) => return true,
        }
    }
}

/// The children of the watchdog: the command, and orphans.
struct Children {
    main: Pid,
    ended: bool,
    reaped: u64,
}

impl Children {
    fn of(main: Pid) -> Self {
        Self {
            main,
            ended: false,
            reaped: 0,
        }
    }

    /// Reports state changes of members of the group, and reaps orphans from time to time.
    fn look(&mut self, socket: BorrowedFd<'_>) {
        let group = WaitId::Pgid(Some(self.main));
        let stopped = WaitIdOptions::STOPPED | WaitIdOptions::NOHANG;
        while let Ok(Some(status)) = waitid(group.clone(), stopped) {
            let Some(signal) = status.stopping_signal() else {
                break;
            };
            tell(socket, Report::Stopped(signal));
        }
        let ended = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        if !self.ended && matches!(waitid(WaitId::Pid(self.main), ended), Ok(Some(_))) {
            self.ended = true;
            tell(socket, Report::Ended);
        }
        let now = boot_nanos();
        if Duration::from_nanos(now.saturating_sub(self.reaped)) >= TURN {
            self.reaped = now;
            kin::reap_orphans(Some(self.main));
        }
    }
}

/// Kills everything below this process, which is only the command and its descendants.
fn end_everything(main: Pid, cgroup: Option<&Cgroup>) {
    // The command is not reaped here, so no other process has its pid.
    let _ = kill_process_group(main, Signal::KILL);
    for _ in 0..ROUNDS {
        if let Some(cgroup) = cgroup {
            cgroup.kill();
        }
        // Processes that were created while /proc was read are found the next time.
        let left = kin::own_descendants();
        if left.is_empty() && !cgroup.is_some_and(Cgroup::is_populated) {
            break;
        }
        left.iter().for_each(|process| process.signal(Signal::KILL));
        std::thread::sleep(ROUND);
    }
}

/// Returns whether the wrapper has ended. The kernel closes its socket shortly before its children get another parent,
/// so this waits a little. It does not wait longer for a wrapper that lives.
fn has_ended(wrapper: Pid) -> bool {
    for _ in 0..WRAPPER_ROUNDS {
        if getppid() != Some(wrapper) {
            return true;
        }
        std::thread::sleep(WRAPPER_ROUND);
    }
    false
}

/// Reaps all children that have ended, the command included, and returns whether none is left. Only for a watchdog whose
/// wrapper has ended: a wrapper that lives needs the exit code of the command.
fn nothing_is_left() -> bool {
    loop {
        match waitid(WaitId::All, WaitIdOptions::EXITED | WaitIdOptions::NOHANG) {
            Ok(Some(_)) | Err(Errno::INTR) => {}
            Err(Errno::CHILD) => return true,
            Ok(None) | Err(_) => return false,
        }
    }
}

fn boot_nanos() -> u64 {
    let now = clock_gettime(ClockId::Boottime);
    let nanos = i128::from(now.tv_sec) * 1_000_000_000 + i128::from(now.tv_nsec);
    u64::try_from(nanos).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reports_survive_the_socket() {
        let reports = [
            Report::Started(i32::MAX),
            Report::NotStarted(2),
            Report::Stopped(20),
            Report::NotStarted(-1),
            Report::Ended,
        ];
        for report in reports {
            assert_eq!(Report::decode(report.encode()), Some(report));
        }
        assert_eq!(Report::decode([0; 8]), None);
    }

    #[test]
    fn deadline_that_has_passed_leaves_no_time() {
        let second = 1_000_000_000;
        assert_eq!(time_left(5, 5), None);
        assert_eq!(time_left(5, 6), None);
        let left = |deadline| time_left(deadline, 0).map(|wait| (wait.tv_sec, wait.tv_nsec));
        assert_eq!(left(7), Some((0, 7)));
        assert_eq!(left(90 * second), Some((1, 0)), "one turn at most");
        assert_eq!(left(u64::MAX), Some((1, 0)));
    }
}
