//! The process group that runs while leading.
//!
//! Its leader, the command, is a child of the [watchdog](super::watchdog), and the kernel kills it when the watchdog
//! dies. It is reaped after all other processes, so that its pid stays that of the group.

use std::ffi::OsString;
use std::os::fd::OwnedFd;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};
use std::{fmt, io};

use rustix::io::Errno;
use rustix::process::{
    Pid, Signal, WaitOptions, WaitStatus, kill_process_group, set_child_subreaper,
    test_kill_process_group, waitpid,
};
use tenure_lock::in_words;

use super::cgroup::Cgroup;
use super::kin::{self, Process};
use crate::values::signal_name;

/// Hidden subcommand that turns into the user's command; see [`become_child`].
pub(crate) const CHILD: &str = "__child";

/// The command to start.
#[derive(Clone, Debug)]
pub(crate) struct Spec {
    /// Program and arguments, unchanged.
    pub(crate) argv: Vec<OsString>,
    /// The [crash release](super::crash_release) of the term; empty if the watchdog must not release it.
    pub(super) release: String,
    /// Additional environment variables.
    pub(crate) env: Vec<(String, String)>,
    /// Whether the child inherits our standard input.
    pub(crate) stdin: bool,
    /// Inherited file descriptors that the child keeps, in addition to the standard ones.
    pub(crate) keep: Vec<i32>,
}

/// A running group.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Group {
    leader: Pid,
}

/// How the main child ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Exit {
    /// With this code.
    Code(u8),
    /// By this signal.
    Signal(u8),
}

impl Exit {
    /// Returns the exit code that a shell would show.
    pub(crate) fn code(self) -> u8 {
        match self {
            Self::Code(code) => code,
            Self::Signal(signal) => 128u8.saturating_add(signal),
        }
    }

    /// Returns whether it succeeded.
    pub(crate) fn success(self) -> bool {
        self == Self::Code(0)
    }
}

impl fmt::Display for Exit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Code(code) => write!(f, "exited with code {code}"),
            Self::Signal(number) => {
                let signal = Signal::from_named_raw((*number).into());
                let name = signal.map_or_else(|| format!("signal {number}"), signal_name);
                write!(f, "was ended by {name}")
            }
        }
    }
}

impl From<ExitStatus> for Exit {
    fn from(status: ExitStatus) -> Self {
        let low = |number: i32| u8::try_from(number).unwrap_or(u8::MAX);
        match status.signal() {
            Some(signal) => Self::Signal(low(signal)),
            None => Self::Code(low(status.code().unwrap_or_default())),
        }
    }
}

/// Makes this process the new parent of orphans of the group.
pub(crate) fn adopt_orphans() -> io::Result<()> {
    set_child_subreaper(Some(rustix::process::getpid())).map_err(Into::into)
}

/// In the watchdog: starts the command in its own group.
///
/// The kernel ties the command to the *thread* that started it; the watchdog has only one.
pub(super) fn spawn(
    argv: &[OsString],
    keep: &str,
    cgroup: Option<&Cgroup>,
    input: Option<OwnedFd>,
) -> io::Result<Pid> {
    let child = Command::new(std::env::current_exe()?)
        .arg(CHILD)
        .arg(std::process::id().to_string())
        .arg(keep)
        .arg(cgroup.map_or("".as_ref(), Cgroup::path))
        .args(argv)
        .stdin(input.map_or_else(Stdio::null, Stdio::from))
        .process_group(0)
        .spawn()?;
    let leader = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
    leader.ok_or_else(|| io::Error::other("a running child has a positive id"))
}

/// Formats the file descriptors to keep as an argument.
pub(super) fn format_keep(keep: &[i32]) -> String {
    let keep: Vec<String> = keep.iter().map(ToString::to_string).collect();
    keep.join(",")
}

/// Parses the output of [`format_keep`].
pub(super) fn parse_keep(keep: &str) -> Vec<i32> {
    keep.split(',').filter_map(|fd| fd.parse().ok()).collect()
}

impl Group {
    pub(super) fn led_by(leader: Pid) -> Self {
        Self { leader }
    }

    /// Returns the pid of the main child, which is also the id of the group.
    pub(crate) fn id(self) -> Pid {
        self.leader
    }

    /// Sends a signal to every member; an empty group is not an error.
    pub(crate) fn signal(self, signal: Signal) {
        let _ = kill_process_group(self.leader, signal);
    }

    /// Asks every member to end. A stopped member is continued, so that it can react.
    pub(crate) fn ask(self, signal: Signal) {
        self.signal(signal);
        self.signal(Signal::CONT);
    }

    /// Returns whether no member is left. A member that may not be signalled, such as a program that changed its user,
    /// still counts.
    pub(crate) fn is_empty(self) -> bool {
        test_kill_process_group(self.leader) == Err(Errno::SRCH)
    }

    /// Returns whether the main child has ended, according to /proc, because a stopped watchdog does not report it.
    pub(super) fn has_ended(self) -> bool {
        Process::read(kin::raw(self.leader)).is_some_and(|process| process.zombie)
    }

    /// Reaps the main child, which has become our child, and returns how it ended.
    pub(super) fn exit(self) -> Option<Exit> {
        let (_, status) = waitpid(Some(self.leader), WaitOptions::NOHANG).ok()??;
        exit_of(status)
    }

    /// Continues the group after a member was stopped by a signal, because a suspended leader that holds the lease is
    /// useless. Prints the reason for a user who pressed ^Z and expects a prompt. Returns false if the member was
    /// stopped because it wants the terminal: it would be stopped again immediately, without end.
    pub(super) fn go_on(self, by: i32) -> bool {
        if [Signal::TTIN, Signal::TTOU]
            .map(Signal::as_raw)
            .contains(&by)
        {
            return false;
        }
        self.signal(Signal::CONT);
        if by == Signal::TSTP.as_raw() {
            eprintln!("tenure: ignored ^Z: a suspended leader would keep others from leading");
        }
        true
    }
}

/// Closes every inherited file descriptor except the standard ones and those to keep. Files that this program opens are
/// closed on exec anyway.
pub(crate) fn close_inherited(keep: &[i32]) {
    let open = std::fs::read_dir("/proc/self/fd").into_iter().flatten();
    let open: Vec<i32> = open
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .filter(|fd| *fd > 2 && !keep.contains(fd))
        .collect();
    for fd in open {
        // The descriptor that listed them is already closed.
        let _ = nix::unistd::close(fd);
    }
}

/// `tenure __child PARENT KEEP CGROUP CMD ARG...`: ties its life to the parent's and becomes the command. If that
/// fails, returns the exit code; otherwise it does not return.
pub(crate) fn become_child(args: &[OsString]) -> u8 {
    let parent = args
        .first()
        .and_then(|arg| arg.to_str()?.parse::<i32>().ok());
    let keep = args.get(1).and_then(|arg| arg.to_str()).unwrap_or_default();
    let keep = parse_keep(keep);
    let (Some(parent), Some(cgroup), Some(program)) = (parent, args.get(2), args.get(3)) else {
        eprintln!("tenure: {CHILD} is internal");
        return 125;
    };
    if let Err(error) = rustix::process::set_parent_process_death_signal(Some(Signal::KILL)) {
        let why = in_words(&error);
        eprintln!("tenure: cannot make the command end with its watchdog: {why}");
        return 125;
    }
    // The parent may have died before the line above. In that case the signal would never be sent.
    if rustix::process::getppid()
        .map(Pid::as_raw_nonzero)
        .map(Into::into)
        != Some(parent)
    {
        return 125;
    }
    if !cgroup.is_empty()
        && let Err(error) = Cgroup::at(Path::new(cgroup)).enter()
    {
        let (cgroup, why) = (cgroup.to_string_lossy(), in_words(&error));
        eprintln!(
            "tenure: cannot enter control group {cgroup}: {why}; only the process tree contains the command"
        );
    }
    super::terminal::await_foreground();
    close_inherited(&keep);
    let error = Command::new(program)
        .args(&args[4..])
        .env_remove(super::terminal::FOREGROUND)
        .exec();
    let (program, why) = (program.to_string_lossy(), in_words(&error));
    eprintln!("tenure: cannot run {program}: {why}");
    if error.kind() == io::ErrorKind::NotFound {
        127
    } else {
        126
    }
}

fn exit_of(status: WaitStatus) -> Option<Exit> {
    let low = |value: i32| u8::try_from(value).unwrap_or(u8::MAX);
    match (status.exit_status(), status.terminating_signal()) {
        (Some(code), _) => Some(Exit::Code(low(code))),
        (None, Some(signal)) => Some(Exit::Signal(low(signal))),
        (None, None) => None,
    }
}
