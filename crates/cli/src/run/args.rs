//! The flags of `tenure run`.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};
use rustix::process::Signal;

use crate::election::Election;
use crate::values::{PassedOn, duration, order_signal, passed_on, signal};

/// Run a command only while leading
///
/// Exit codes: that of the command; 128+N if it died of signal N or tenure was stopped by it; 64 wrong
/// command line; 75 not elected in time; 76 leadership lost; 125 tenure failed; 126 not executable;
/// 127 not found.
#[derive(Args, Debug)]
pub(crate) struct Run {
    #[command(flatten)]
    pub(super) election: Election,
    /// Do not wait: fail if somebody else leads, or the API server does not answer one request
    #[arg(short, long, env = "TENURE_NONBLOCK")]
    pub(super) nonblock: bool,
    /// Wait at most this long to lead; 0 waits for ever
    #[arg(short, long, value_name = "D", env = "TENURE_WAIT", value_parser = duration)]
    pub(super) wait: Option<Duration>,
    /// Give the lease up after this long
    #[arg(long, value_name = "D", env = "TENURE_MAX_HOLD", value_parser = duration)]
    pub(super) max_hold: Option<Duration>,
    /// Let this many candidates lead at a time, each with a slot of its own
    #[arg(long, value_name = "N", env = "TENURE_SLOTS", value_parser = clap::value_parser!(u32).range(1..=1000), conflicts_with = "once")]
    pub(super) slots: Option<u32>,
    /// Change the number of slots that others agreed on
    #[arg(long, requires = "slots")]
    pub(super) resize: bool,
    /// Do nothing if another candidate has done it: since this one started, or this long before
    #[arg(long, value_name = "D", env = "TENURE_ONCE", num_args = 0..=1, require_equals = true, default_missing_value = "1m", value_parser = duration)]
    pub(super) once: Option<Duration>,
    /// Start nothing with less than this left of the lease [default: the retry period]
    #[arg(long, value_name = "D", env = "TENURE_MIN_VALIDITY", value_parser = duration)]
    pub(super) min_validity: Option<Duration>,
    /// Remove the lock object at the end, unless somebody else uses it; slot 0, which has the number of slots, stays
    #[arg(long, env = "TENURE_DELETE_ON_EXIT")]
    pub(super) delete_on_exit: bool,
    /// What to do when the command ends
    #[arg(long, value_enum, default_value_t, env = "TENURE_ON_EXIT")]
    pub(super) on_exit: OnExit,
    /// What to do when the command fails; by default the same
    #[arg(long, value_enum, env = "TENURE_ON_EXIT_FAILURE")]
    pub(super) on_exit_failure: Option<OnExit>,
    /// Give up after this many restarts
    #[arg(long, value_name = "N", env = "TENURE_MAX_RESTARTS")]
    pub(super) max_restarts: Option<u32>,
    /// What to do when leadership is lost
    #[arg(long, value_enum, default_value_t, env = "TENURE_RUN_ON_LOST")]
    pub(super) on_lost: OnLost,
    /// Exit code if the lease was not acquired in time
    #[arg(short = 'E', long, value_name = "CODE", default_value_t = 75)]
    pub(super) conflict_exit_code: u8,
    /// Exit code if leadership was lost
    #[arg(long, value_name = "CODE", default_value_t = 76)]
    pub(super) lost_exit_code: u8,
    /// Signal that asks the command to end; by default the one that tenure got, else TERM
    #[arg(long, value_name = "SIGNAL", env = "TENURE_STOP_SIGNAL", value_parser = signal)]
    pub(super) stop_signal: Option<Signal>,
    /// Signal to tenure that gives leadership up instead of being passed on: USR1 or USR2
    #[arg(long, value_name = "SIGNAL", env = "TENURE_STEP_DOWN_SIGNAL", value_parser = order_signal)]
    pub(super) step_down_signal: Option<Signal>,
    /// Signals that the command gets without being asked to end: HUP, QUIT, both, or none
    #[arg(long, value_name = "SIGNALS", env = "TENURE_FORWARD_SIGNAL", default_value = "HUP", value_parser = passed_on)]
    pub(super) forward_signal: PassedOn,
    /// Run the arguments as one line of /bin/sh
    #[arg(long)]
    pub(super) shell: bool,
    /// Whether the command gets the terminal, with its ^C; after ^Z it goes on at once, for who leads must not sleep
    #[arg(long, value_enum, value_name = "WHEN", env = "TENURE_FOREGROUND", num_args = 0..=1, require_equals = true, default_value = "auto", default_missing_value = "always")]
    pub(super) foreground: Foreground,
    /// What the command reads from standard input
    #[arg(long, value_enum, default_value_t)]
    pub(super) stdin: Stdin,
    /// A file descriptor that the command inherits besides 0, 1 and 2
    #[arg(long, value_name = "FD", value_parser = clap::value_parser!(i32).range(3..))]
    pub(super) keep_fd: Vec<i32>,
    /// Do not take part in any election: just become the command
    #[arg(long)]
    pub(super) without_election: bool,
    /// Prefix of the environment variables that the command gets
    #[arg(long, value_name = "PREFIX", default_value = "TENURE_")]
    pub(super) env_prefix: String,
    /// Append one JSON line per change to this file
    #[arg(long, value_name = "FILE", env = "TENURE_OUTPUT_EVENTS")]
    pub(super) output_events: Option<PathBuf>,
    /// Print the Role that this command line needs, and end
    #[arg(long)]
    pub(super) print_rbac: bool,
    /// The command and its arguments
    #[arg(
        last = true,
        required_unless_present = "print_rbac",
        value_name = "CMD"
    )]
    pub(super) command: Vec<OsString>,
}

/// What to do when the command ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum OnExit {
    /// End with its exit code
    #[default]
    Exit,
    /// Start it again, after 1 s and up to 30 s
    Restart,
    /// Keep the lease and start nothing
    Hold,
}

/// What to do when leadership is lost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(super) enum OnLost {
    /// End
    #[default]
    Exit,
    /// Campaign again
    Rejoin,
}

/// Whether the command gets the terminal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Foreground {
    /// If tenure has it
    Auto,
    /// Also if standard input is not read
    Always,
    /// No: it runs in the background, where ^C does not reach it, and has nothing to read
    Never,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(super) enum Stdin {
    #[default]
    Inherit,
    Null,
}
