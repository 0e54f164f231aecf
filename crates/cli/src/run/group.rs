//! The process group that runs while leading.
//!
//! Its leader, the command, is a child of the [watchdog](super::watchdog): the kernel kills it when the watchdog dies.
//! Nobody reaps it before everything else has gone, so that its id stays that of the group.

use std::ffi::OsString;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

use rustix::io::Errno;
use rustix::process::{
    Pid, Signal, WaitOptions, WaitStatus, kill_process_group, set_child_subreaper,
    test_kill_process_group, waitpid,
};

use super::cgroup::Cgroup;
use super::kin::{self, Process};

/// Hidden subcommand that turns into the user's command; see [`become_child`].
pub(crate) const CHILD: &str = "__child";

/// What to start.
#[derive(Clone, Debug)]
pub(crate) struct Spec {
    /// Program and arguments, untouched.
    pub(crate) argv: Vec<OsString>,
    /// Added to the environment.
    pub(crate) env: Vec<(String, String)>,
    /// Whether the child reads our standard input.
    pub(crate) stdin: bool,
    /// Inherited files that the child keeps, besides the standard ones.
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
    /// The exit code that a shell would show.
    pub(crate) fn code(self) -> u8 {
        match self {
            Self::Code(code) => code,
            Self::Signal(signal) => 128u8.saturating_add(signal),
        }
    }

    /// Whether it ended well.
    pub(crate) fn success(self) -> bool {
        self == Self::Code(0)
    }
}

/// Makes this process the one that orphans of the group come to.
pub(crate) fn adopt_orphans() -> io::Result<()> {
    set_child_subreaper(Some(rustix::process::getpid())).map_err(Into::into)
}

/// In the watchdog: starts the command in a group of its own.
///
/// The kernel ties the life of the command to the *thread* that started it; the watchdog has one.
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

/// The files to keep, as an argument.
pub(super) fn format_keep(keep: &[i32]) -> String {
    let keep: Vec<String> = keep.iter().map(ToString::to_string).collect();
    keep.join(",")
}

/// What [`format_keep`] wrote.
pub(super) fn parse_keep(keep: &str) -> Vec<i32> {
    keep.split(',').filter_map(|fd| fd.parse().ok()).collect()
}

impl Group {
    pub(super) fn led_by(leader: Pid) -> Self {
        Self { leader }
    }

    /// The id of the main child, and of the group.
    pub(crate) fn id(self) -> Pid {
        self.leader
    }

    /// Sends a signal to every member; an empty group is no error.
    pub(crate) fn signal(self, signal: Signal) {
        let _ = kill_process_group(self.leader, signal);
    }

    /// Asks every member to end; one that stands still has to go on for that.
    pub(crate) fn ask(self, signal: Signal) {
        self.signal(signal);
        self.signal(Signal::CONT);
    }

    /// Whether no member is left. One that may not be signalled, such as a program that became
    /// another user, is still there.
    pub(crate) fn is_empty(self) -> bool {
        test_kill_process_group(self.leader) == Err(Errno::SRCH)
    }

    /// Whether the main child has ended, where /proc tells: a stopped watchdog does not.
    pub(super) fn has_ended(self) -> bool {
        Process::read(kin::raw(self.leader)).is_some_and(|process| process.zombie)
    }

    /// Reaps the main child, which has become ours, and says how it ended.
    pub(super) fn exit(self) -> Option<Exit> {
        let (_, status) = waitpid(Some(self.leader), WaitOptions::NOHANG).ok()??;
        exit_of(status)
    }

    /// Continues the group after a member was stopped by a signal: a leader that sleeps while it holds the lease is of
    /// no use to anybody. Whoever pressed ^Z waits for a prompt, and learns why there is none. Returns false
    /// if it was stopped because it wants the terminal: it would be stopped again immediately, without end.
    pub(super) fn go_on(self, by: i32) -> bool {
        if [Signal::TTIN, Signal::TTOU]
            .map(Signal::as_raw)
            .contains(&by)
        {
            return false;
        }
        self.signal(Signal::CONT);
        if by == Signal::TSTP.as_raw() {
            eprintln!(
                "tenure: the command goes on: a leader that sleeps would keep others from leading"
            );
        }
        true
    }
}

/// Closes every inherited file but the standard ones and those to keep. What this program opens
/// itself is closed on exec anyway.
pub(crate) fn close_inherited(keep: &[i32]) {
    let open = std::fs::read_dir("/proc/self/fd").into_iter().flatten();
    let open: Vec<i32> = open
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .filter(|fd| *fd > 2 && !keep.contains(fd))
        .collect();
    for fd in open {
        // The one that listed them is closed already.
        let _ = nix::unistd::close(fd);
    }
}

/// `tenure __child PARENT KEEP CGROUP CMD ARG...`: ties its life to the parent's and becomes the command.
/// Returns only if that failed, with the exit code for it.
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
        eprintln!("tenure: cannot tie the child to its parent: {error}");
        return 125;
    }
    // The parent may have died before the line above; then nobody would ever send the signal.
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
        let cgroup = cgroup.to_string_lossy();
        eprintln!("tenure: cannot enter {cgroup}, so the process tree alone contains it: {error}");
    }
    super::terminal::await_foreground();
    close_inherited(&keep);
    let error = Command::new(program)
        .args(&args[4..])
        .env_remove(super::terminal::FOREGROUND)
        .exec();
    eprintln!("tenure: cannot run {}: {error}", program.to_string_lossy());
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
