//! The flags of `tenure run`.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};
use rustix::process::Signal;

use crate::announce::Announce;
use crate::election::Election;
use crate::values::{PassedOn, duration, order_signal, passed_on, signal};

/// Run a command only while leading
///
/// Exit codes: that of the command; 128+N if the command or tenure was ended by signal N; 64 wrong command line; 75 not
/// elected in time; 76 leadership lost; 125 tenure failed; 126 not executable; 127 not found.
#[derive(Args, Debug)]
#[command(
    mut_arg("announce", |arg| arg.conflicts_with("slots")),
    mut_arg("priority", |arg| arg.conflicts_with("slots")),
    mut_arg("prefer_zone", |arg| arg.conflicts_with("slots")),
    mut_arg("failback", |arg| arg.conflicts_with("slots")),
)]
pub(crate) struct Run {
    #[command(flatten)]
    pub(super) election: Election,
    #[command(flatten)]
    pub(super) announce: Announce,
    /// Exit immediately if another candidate leads
    ///
    /// Like `flock --nonblock`. Also fails if the API server does not respond to one request.
    #[arg(long, env = "TENURE_NONBLOCK")]
    pub(super) nonblock: bool,
    /// Maximum time to wait for leadership [default: no limit]
    ///
    /// Like `flock --timeout`, but 0 waits without a limit.
    #[arg(long, value_name = "D", env = "TENURE_WAIT", value_parser = duration)]
    pub(super) wait: Option<Duration>,
    /// Exit if a permission or the namespace is still missing after this time
    #[arg(long, value_name = "D", env = "TENURE_STARTUP_TIMEOUT", default_value = "30s", value_parser = duration)]
    pub(super) startup_timeout: Duration,
    /// Release the lease after this time [default: no limit]
    #[arg(long, value_name = "D", env = "TENURE_MAX_HOLD", value_parser = duration)]
    pub(super) max_hold: Option<Duration>,
    /// Candidates that may lead at a time [default: 1]
    ///
    /// Each of them has its own slot, with a separate lease.
    #[arg(long, value_name = "N", env = "TENURE_SLOTS", value_parser = clap::value_parser!(u32).range(1..=1000), conflicts_with = "once")]
    pub(super) slots: Option<u32>,
    /// Change the number of slots for all candidates
    #[arg(long, requires = "slots")]
    pub(super) resize: bool,
    /// Skip if another candidate has succeeded [default D: 1m]
    ///
    /// The success counts if it happened after the start of this process, or at most D before.
    #[arg(long, value_name = "D", env = "TENURE_ONCE", num_args = 0..=1, require_equals = true, default_missing_value = "1m", value_parser = duration)]
    pub(super) once: Option<Duration>,
    /// Remaining lease that the start of the command needs [default: the retry period]
    #[arg(long, value_name = "D", env = "TENURE_MIN_VALIDITY", value_parser = duration)]
    pub(super) min_validity: Option<Duration>,
    /// Delete the lock object at the end, unless another candidate uses it
    ///
    /// The lease of slot 0 stays, because it stores the number of slots.
    #[arg(long, env = "TENURE_DELETE_ON_EXIT")]
    pub(super) delete_on_exit: bool,
    /// Action when the command ends
    #[arg(
        long,
        value_enum,
        value_name = "ACTION",
        default_value_t,
        env = "TENURE_ON_EXIT"
    )]
    pub(super) on_exit: OnExit,
    /// Action when the command fails [default: that of --on-exit]
    #[arg(
        long,
        value_enum,
        value_name = "ACTION",
        env = "TENURE_ON_EXIT_FAILURE"
    )]
    pub(super) on_exit_failure: Option<OnExit>,
    /// Maximum number of restarts [default: no limit]
    #[arg(long, value_name = "N", env = "TENURE_MAX_RESTARTS")]
    pub(super) max_restarts: Option<u32>,
    /// Action when leadership is lost
    #[arg(
        long,
        value_enum,
        value_name = "ACTION",
        default_value_t,
        env = "TENURE_RUN_ON_LOST"
    )]
    pub(super) on_lost: OnLost,
    /// Exit code if the lease was not acquired in time
    #[arg(short = 'E', long, value_name = "CODE", default_value_t = 75)]
    pub(super) conflict_exit_code: u8,
    /// Exit code if leadership was lost
    #[arg(long, value_name = "CODE", default_value_t = 76)]
    pub(super) lost_exit_code: u8,
    /// Signal to end the command [default: TERM]
    ///
    /// If a signal ends tenure, the command gets the same signal by default.
    #[arg(long, value_name = "SIGNAL", env = "TENURE_STOP_SIGNAL", value_parser = signal)]
    pub(super) stop_signal: Option<Signal>,
    /// Signal to tenure that makes it step down: USR1 or USR2 [default: none]
    ///
    /// This signal is not forwarded to the command.
    #[arg(long, value_name = "SIGNAL", env = "TENURE_STEP_DOWN_SIGNAL", value_parser = order_signal)]
    pub(super) step_down_signal: Option<Signal>,
    /// Signals that are forwarded and do not end the run: HUP, QUIT, both, or none
    #[arg(long, value_name = "SIGNALS", env = "TENURE_FORWARD_SIGNAL", default_value = "HUP", value_parser = passed_on)]
    pub(super) forward_signal: PassedOn,
    /// Run the arguments as one line of /bin/sh
    #[arg(long)]
    pub(super) shell: bool,
    /// Give the terminal, including ^C, to the command
    ///
    /// ^Z does not suspend it, because a suspended leader blocks fail-over.
    #[arg(long, value_enum, value_name = "WHEN", env = "TENURE_FOREGROUND", num_args = 0..=1, require_equals = true, default_value = "auto", default_missing_value = "always")]
    pub(super) foreground: Foreground,
    /// Standard input of the command
    #[arg(long, value_enum, value_name = "INPUT", default_value_t)]
    pub(super) stdin: Stdin,
    /// File descriptor that the command inherits, besides 0, 1 and 2; can be repeated
    #[arg(long, value_name = "FD", value_parser = clap::value_parser!(i32).range(3..))]
    pub(super) keep_fd: Vec<i32>,
    /// Run the command directly, without an election
    #[arg(long)]
    pub(super) without_election: bool,
    /// Prefix of the environment variables that the command gets
    #[arg(long, value_name = "PREFIX", default_value = "TENURE_")]
    pub(super) env_prefix: String,
    /// Append one JSON line per change to this file
    #[arg(long, value_name = "FILE", env = "TENURE_OUTPUT_EVENTS")]
    pub(super) output_events: Option<PathBuf>,
    /// Print the Role that this command line needs, and exit
    #[arg(long)]
    pub(super) print_rbac: bool,
    /// Command to run, and its arguments
    #[arg(
        last = true,
        required_unless_present = "print_rbac",
        value_name = "CMD"
    )]
    pub(super) command: Vec<OsString>,
}

/// Action when the command ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum OnExit {
    /// Exit with its exit code
    #[default]
    Exit,
    /// Start it again, after 1 s and up to 30 s
    Restart,
    /// Keep the lease and start nothing
    Hold,
}

/// Action when leadership is lost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(super) enum OnLost {
    /// Exit
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
    /// Even if standard input is not read
    Always,
    /// No: it runs in the background without input, and ^C does not reach it
    Never,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(super) enum Stdin {
    #[default]
    Inherit,
    Null,
}
