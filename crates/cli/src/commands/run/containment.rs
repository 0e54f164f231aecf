//! The wrapper's control over the command and all processes that it starts.
//!
//! Invariant: while the command runs, two processes can each end all of its descendants: this one and the watchdog. If
//! one of them dies, the other one ends the command. Nothing here waits for the watchdog without a time limit.

use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream as Socket;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, send, sendmsg, sockopt};
use rustix::process::{Pid, Signal, getpid};
use tenure::clock::{Clock, SystemClock};
use tokio::net::UnixStream;

use super::cgroup::Cgroup;
use super::fence_file::FenceFile;
use super::group::{Exit, Group, Spec};
use super::watchdog::{ENDED_IT, Report, WATCHDOG};
use super::{group, kin};
use crate::notify::Unnotified as _;
use crate::signals::{Asked, Signals};

/// Time between SIGTERM and SIGKILL for processes that remain in a group after its main child.
const STRAGGLERS: Duration = Duration::from_secs(2);

/// Time limit for the watchdog to start the command.
const START: Duration = Duration::from_secs(10);

/// Interval at which to check whether all processes have ended.
const LOOK: Duration = Duration::from_millis(20);

/// A command with its descendants, and the watchdog that is their parent.
pub(super) struct Containment {
    watchdog: Watchdog,
    group: Option<Group>,
    cgroup: Option<Cgroup>,
}

/// A change of the command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Change {
    /// A member of its group was stopped by this signal.
    Stopped(i32),
    /// The command has ended.
    Ended,
    /// The watchdog has ended.
    Unwatched,
}

impl Containment {
    /// Starts the watchdog, which starts the command. The command never runs without the watchdog, nor beyond the
    /// fence, which is in nanoseconds of `CLOCK_BOOTTIME`.
    pub(super) fn start(spec: &Spec, fence: u64) -> io::Result<Self> {
        let cgroup = match Cgroup::make() {
            Ok(cgroup) => {
                let (kind, path) = (cgroup.kind(), cgroup.path().display());
                tracing::info!(kind, %path, "containment of the command");
                Some(cgroup)
            }
            Err(why) => {
                tracing::info!(kind = "process tree", %why, "containment of the command");
                None
            }
        };
        let started = Watchdog::start(spec, fence, cgroup.as_ref());
        if let (Err(_), Some(cgroup)) = (&started, &cgroup) {
            cgroup.remove();
        }
        Ok(Self {
            watchdog: started?,
            group: None,
            cgroup,
        })
    }

    /// Waits until the command runs.
    pub(super) async fn started(&mut self) -> io::Result<Group> {
        let told = tokio::time::timeout(START, self.watchdog.next());
        match told.await {
            Ok(Some(Report::Started(pid))) => {
                let leader = Pid::from_raw(pid).ok_or(io::ErrorKind::InvalidData)?;
                Ok(*self.group.insert(Group::led_by(leader)))
            }
            Ok(Some(Report::NotStarted(errno))) => Err(io::Error::from_raw_os_error(errno)),
            Ok(_) => Err(io::Error::other("its watchdog has ended")),
            Err(_) => Err(io::Error::other(format!(
                "its watchdog did nothing for {START:?}"
            ))),
        }
    }

    pub(super) fn watchdog(&self) -> i32 {
        self.watchdog.id()
    }

    pub(super) fn cgroup(&self) -> Option<&Cgroup> {
        self.cgroup.as_ref()
    }

    /// Moves the deadline of the watchdog. Never blocks.
    pub(super) fn until(&mut self, fence: u64) {
        self.watchdog.until(fence);
    }

    /// Returns the next change. Cancel safe.
    pub(super) async fn next(&mut self) -> Change {
        loop {
            match self.watchdog.next().await {
                Some(Report::Stopped(signal)) => return Change::Stopped(signal),
                Some(Report::Ended) => return Change::Ended,
                Some(_) => {}
                None => return Change::Unwatched,
            }
        }
    }

    /// Ends the watchdog, whose socket has closed.
    pub(super) fn end_watchdog(&mut self) {
        self.watchdog.end();
    }

    /// Returns whether the watchdog has ended. Logs its end, unless it ended after it had killed the command.
    pub(super) fn is_unwatched(&mut self) -> bool {
        let Some(status) = self.watchdog.ended() else {
            return false;
        };
        if status.code() != Some(ENDED_IT.into()) {
            eprintln!(
                "tenure: the watchdog of the command {}; the command ends with it",
                Exit::from(status)
            );
        }
        true
    }

    /// Waits until no process is left, in the group or outside of it. Sends SIGTERM and later SIGKILL, or SIGKILL
    /// immediately. Returns the signal that asked this process to end in the meantime.
    pub(super) async fn clear_out(
        &mut self,
        mut kill: bool,
        signals: &mut Signals,
    ) -> Option<Signal> {
        let began = SystemClock.now().local;
        let mut told = false;
        let mut asked = None;
        loop {
            if self.watchdog.ended().is_some() {
                // If this process died now, nothing would end the remaining processes.
                kill = true;
                kin::reap_orphans(self.group.map(Group::id));
            }
            let left = kin::descendants(self.watchdog.id());
            let populated = self.cgroup.as_ref().is_some_and(Cgroup::is_populated);
            if left.is_empty() && !populated {
                return asked;
            }
            kill |= SystemClock.now().local.since(began) >= STRAGGLERS;
            if kill || !told {
                let signal = if kill { Signal::KILL } else { Signal::TERM };
                if let Some(cgroup) = self.cgroup.as_ref().filter(|_| kill) {
                    cgroup.kill();
                }
                if let Some(group) = self.group {
                    group.ask(signal);
                }
                left.iter().for_each(|process| process.signal(signal));
                told = true;
            }
            tokio::select! {
                heard = signals.next() => if let Asked::End(signal) = heard {
                    asked = Some(signal);
                },
                () = tokio::time::sleep(LOOK) => {}
            }
        }
    }

    /// Ends the watchdog after all other processes, and returns how the command ended.
    pub(super) async fn finish(mut self) -> Option<Exit> {
        // The children of the watchdog, including the dead command, become ours.
        self.watchdog.end();
        let exit = self.group.and_then(Group::exit);
        if let Some(group) = self.group {
            kin::reap_orphans(None);
            // A member that /proc does not show, such as a program that changed its user.
            while !group.is_empty() {
                tokio::time::sleep(LOOK).await;
                kin::reap_orphans(None);
            }
        }
        if let Some(cgroup) = &self.cgroup {
            cgroup.remove();
        }
        exit
    }
}

/// The wrapper's end of the socket.
struct Watchdog {
    child: Child,
    socket: UnixStream,
    fence: FenceFile,
    /// The deadline in the file.
    until: u64,
    /// Received bytes of reports.
    unread: Vec<u8>,
}

impl Watchdog {
    fn start(spec: &Spec, deadline: u64, cgroup: Option<&Cgroup>) -> io::Result<Self> {
        let fence = FenceFile::create(deadline, &spec.release, &spec.argv)?;
        let (ours, theirs) = Socket::pair()?;
        let stdin = io::stdin();
        let files = [fence.as_fd(), stdin.as_fd()];
        hand_over(&ours, &files[..if spec.stdin { 2 } else { 1 }])?;
        // A few unread bytes are sufficient to wake the watchdog.
        sockopt::set_socket_send_buffer_size(&ours, 1)?;
        ours.set_nonblocking(true)?;
        let socket = UnixStream::from_std(ours)?;
        let child = Command::new(std::env::current_exe()?)
            .arg(WATCHDOG)
            .arg(kin::raw(getpid()).to_string())
            .arg(group::format_keep(&spec.keep))
            .arg(cgroup.map_or("".as_ref(), Cgroup::path))
            .unnotified()
            .envs(spec.env.iter().map(|(key, value)| (key, value)))
            .stdin(Stdio::from(OwnedFd::from(theirs)))
            // Signals that a terminal sends to the wrapper's group must not reach the watchdog.
            .process_group(0)
            .spawn()?;
        Ok(Self {
            child,
            socket,
            fence,
            until: deadline,
            unread: Vec::new(),
        })
    }

    fn id(&self) -> i32 {
        i32::try_from(self.child.id()).unwrap_or(0)
    }

    /// Moves the deadline, if it differs, and wakes the watchdog. A stopped watchdog finds the newest deadline when it
    /// resumes, even if the byte that wakes it could not be written.
    fn until(&mut self, deadline: u64) {
        if self.until != deadline && self.fence.write(deadline).is_ok() {
            self.until = deadline;
            let _ = send(
                &self.socket,
                &[0],
                SendFlags::DONTWAIT | SendFlags::NOSIGNAL,
            );
        }
    }

    /// Returns the next report, or `None` once the watchdog has ended. Cancel safe.
    async fn next(&mut self) -> Option<Report> {
        loop {
            while let Some((message, rest)) = self.unread.split_first_chunk::<{ Report::LENGTH }>()
            {
                let report = Report::decode(*message);
                self.unread = rest.to_vec();
                if report.is_some() {
                    return report;
                }
            }
            self.socket.readable().await.ok()?;
            let mut bytes = [0; 256];
            match self.socket.try_read(&mut bytes) {
                Ok(0) => return None,
                Ok(read) => self.unread.extend_from_slice(&bytes[..read]),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(_) => return None,
            }
        }
    }

    /// Returns how it ended, if it did.
    fn ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().ok().flatten()
    }

    /// Kills it, even if it is stopped.
    fn end(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Sends open file descriptors.
fn hand_over(socket: &Socket, files: &[BorrowedFd<'_>]) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !control.push(SendAncillaryMessage::ScmRights(files)) {
        return Err(io::Error::other("no room for two files"));
    }
    sendmsg(
        socket,
        &[IoSlice::new(&[0])],
        &mut control,
        SendFlags::empty(),
    )?;
    Ok(())
}
