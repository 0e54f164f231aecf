//! The process group that runs while leading.
//!
//! Invariant: nothing of it outlives this process: the kernel kills the child when its parent dies, a
//! watchdog kills the rest, and this process adopts and reaps grandchildren whose parents have gone,
//! also those that left the group; see [`kin`](super::kin).

use std::ffi::OsString;
use std::io;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

use rustix::io::Errno;
use rustix::process::{
    Pid, Signal, WaitOptions, WaitStatus, kill_process_group, set_child_subreaper,
    test_kill_process_group, waitpgid, waitpid,
};

use super::kin::MARK;

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
    /// By which the watchdog knows descendants.
    pub(crate) mark: String,
}

/// A running group.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Group {
    leader: Pid,
}

/// What became of members since the last look.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Changes {
    /// How the main child ended, if it did.
    pub(crate) exit: Option<Exit>,
    /// One stands still because it wants the terminal, which the group has not got.
    pub(crate) wants_terminal: bool,
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

impl Group {
    /// Starts the command in a group of its own.
    ///
    /// The kernel ties the child's life to the *thread* that started it, so this is called on the
    /// main thread, which lives as long as the process.
    pub(crate) fn spawn(spec: &Spec) -> io::Result<Self> {
        let own = std::env::current_exe()?;
        let keep: Vec<String> = spec.keep.iter().map(ToString::to_string).collect();
        let child = Command::new(own)
            .arg(CHILD)
            .arg(std::process::id().to_string())
            .arg(keep.join(","))
            .args(&spec.argv)
            .env(MARK, &spec.mark)
            .envs(spec.env.iter().map(|(key, value)| (key, value)))
            .stdin(if spec.stdin {
                Stdio::inherit()
            } else {
                Stdio::null()
            })
            .process_group(0)
            .spawn()?;
        let leader = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
        Ok(Self {
            leader: leader.expect("a running child has a positive id"),
        })
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

    /// Reaps members that have ended, and says how the main one did. Only members: other children of
    /// this process belong to whoever started them. A member that was stopped goes on: a leader that
    /// sleeps while it holds the lease is of no use to anybody.
    pub(crate) fn reap(self) -> Changes {
        let options = WaitOptions::NOHANG | WaitOptions::UNTRACED;
        let mut changes = Changes::default();
        while let Ok(Some((_, status))) = waitpid(Some(self.leader), options) {
            if !status.stopped() {
                changes.exit = exit_of(status);
                break;
            }
            changes.wants_terminal |= !self.go_on(status);
        }
        loop {
            match waitpgid(self.leader, options) {
                Ok(Some((_, status))) if status.stopped() => {
                    changes.wants_terminal |= !self.go_on(status);
                }
                Ok(Some((pid, status))) if pid == self.leader => changes.exit = exit_of(status),
                Ok(Some(_)) => {}
                Ok(None) | Err(_) => break,
            }
        }
        changes
    }

    /// Continues it after a stop. Whoever pressed ^Z waits for a prompt, and learns why there is none. Not
    /// if it wants the terminal: it would be stopped again at once, for ever.
    fn go_on(self, stopped: WaitStatus) -> bool {
        let by = stopped.stopping_signal();
        if [Signal::TTIN, Signal::TTOU]
            .map(Signal::as_raw)
            .contains(&by.unwrap_or(0))
        {
            return false;
        }
        self.signal(Signal::CONT);
        if by == Some(Signal::TSTP.as_raw()) {
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

/// `tenure __child PARENT KEEP CMD ARG...`: ties its life to the parent's and becomes the command.
/// Returns only if that failed, with the exit code for it.
pub(crate) fn become_child(args: &[OsString]) -> u8 {
    let parent = args
        .first()
        .and_then(|arg| arg.to_str()?.parse::<i32>().ok());
    let keep = args.get(1).and_then(|arg| arg.to_str()).unwrap_or_default();
    let keep: Vec<i32> = keep.split(',').filter_map(|fd| fd.parse().ok()).collect();
    let (Some(parent), Some(program)) = (parent, args.get(2)) else {
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
    super::terminal::await_foreground();
    close_inherited(&keep);
    let error = Command::new(program)
        .args(&args[3..])
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
