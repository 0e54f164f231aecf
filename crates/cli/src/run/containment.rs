//! The wrapper's hold on the command and everything that it starts.
//!
//! Invariant: while the command runs there are two processes, each of which can end all of its descendants: this
//! one and the watchdog. If one of them dies, the other one ends the command. Nothing here waits for an answer of
//! the watchdog without a limit.

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
use crate::signals::{Asked, Signals};

/// What is left of a group after its main child gets this long after SIGTERM.
const STRAGGLERS: Duration = Duration::from_secs(2);

/// How long the watchdog may take to start the command.
const START: Duration = Duration::from_secs(10);

/// How often to look whether everything has gone.
const LOOK: Duration = Duration::from_millis(20);

/// A command and all that it started, with the watchdog between.
pub(super) struct Containment {
    watchdog: Watchdog,
    group: Option<Group>,
    cgroup: Option<Cgroup>,
}

/// Something that happened to the command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Change {
    /// A member of its group was stopped by this signal.
    Stopped(i32),
    /// It has ended.
    Ended,
    /// The watchdog has gone.
    Unwatched,
}

impl Containment {
    /// Starts the watchdog. It starts the command, which never runs without it and not beyond the fence, in
    /// nanoseconds of `CLOCK_BOOTTIME`.
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

    /// The next change. Cancel safe.
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

    /// Whether the watchdog has gone; says so unless it has done its duty.
    pub(super) fn is_unwatched(&mut self) -> bool {
        let Some(status) = self.watchdog.ended() else {
            return false;
        };
        if status.code() != Some(ENDED_IT.into()) {
            eprintln!(
                "tenure: the watchdog of the command was killed ({status}): the command ends with it"
            );
        }
        true
    }

    /// Waits until nothing is left, in the group or outside of it: SIGTERM, and after a while SIGKILL, or SIGKILL
    /// immediately. Returns the signal that asked this process to end meanwhile.
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
                // Nobody would end the rest if this process died now.
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

    /// Ends the watchdog after everything else, and returns how the command ended.
    pub(super) async fn finish(mut self) -> Option<Exit> {
        // Its children, the dead command among them, become ours.
        self.watchdog.end();
        let exit = self.group.and_then(Group::exit);
        if let Some(group) = self.group {
            kin::reap_orphans(None);
            // A member that /proc does not show, such as a program that became another user.
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
    /// Bytes of reports.
    unread: Vec<u8>,
}

impl Watchdog {
    fn start(spec: &Spec, deadline: u64, cgroup: Option<&Cgroup>) -> io::Result<Self> {
        let fence = FenceFile::create(deadline, &spec.argv)?;
        let (ours, theirs) = Socket::pair()?;
        let stdin = io::stdin();
        let files = [fence.as_fd(), stdin.as_fd()];
        hand_over(&ours, &files[..if spec.stdin { 2 } else { 1 }])?;
        // A few unread bytes are enough to wake the watchdog.
        sockopt::set_socket_send_buffer_size(&ours, 1)?;
        ours.set_nonblocking(true)?;
        let socket = UnixStream::from_std(ours)?;
        let child = Command::new(std::env::current_exe()?)
            .arg(WATCHDOG)
            .arg(kin::raw(getpid()).to_string())
            .arg(group::format_keep(&spec.keep))
            .arg(cgroup.map_or("".as_ref(), Cgroup::path))
            .envs(spec.env.iter().map(|(key, value)| (key, value)))
            .stdin(Stdio::from(OwnedFd::from(theirs)))
            // Signals that a terminal sends to the wrapper's group must not reach it.
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

    /// Moves the deadline, if it is another one, and wakes the watchdog. A stopped one finds the newest deadline when
    /// it goes on, whether or not there was room for the byte that wakes it.
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

    /// The next report, or `None` once the watchdog has gone. Cancel safe.
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

    /// How it ended, if it did.
    fn ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().ok().flatten()
    }

    /// Kills it, also if it is stopped.
    fn end(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Sends open files.
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
