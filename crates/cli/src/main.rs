//! The `tenure` command: parse, run, exit code. One file per subcommand.
#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    clippy::disallowed_methods,
    reason = "a command talks to people, and its own pauses decide no election"
)]

mod connect;
mod elect;
mod election;
mod elections;
mod events;
mod local;
mod output;
mod run;
mod server;
mod signals;
mod status;
mod steer;
mod values;

use std::ffi::OsString;
use std::io::IsTerminal;
use std::path::Path;
use std::process::ExitCode;

use clap::error::ErrorKind;
use clap::{Parser, Subcommand};

use connect::Connect;

/// Leader election for Kubernetes: many replicas, one of them acts
#[derive(Parser, Debug)]
#[command(
    name = "tenure",
    version,
    propagate_version = true,
    max_term_width = 100
)]
struct Tenure {
    #[command(flatten)]
    connect: Connect,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand, Debug)]
enum Command {
    Run(Box<run::Run>),
    Elect(Box<elect::Elect>),
    Status(status::Status),
    StepDown(steer::StepDown),
    Pause(steer::Pause),
    Resume(steer::Resume),
    Server(server::Server),
}

fn main() -> ExitCode {
    let args: Vec<OsString> = std::env::args_os().collect();
    match args.get(1).and_then(|arg| arg.to_str()) {
        Some(run::CHILD) => return run::become_child(&args[2..]).into(),
        Some(run::WATCHDOG) => {
            let group = args.get(2).and_then(|arg| arg.to_str()).unwrap_or_default();
            return run::watch(group).into();
        }
        _ => {}
    }
    let old = called_as_sidecar(&args);
    let args = if old { as_elect(args) } else { args };
    let tenure = match Tenure::try_parse_from(&args) {
        Ok(tenure) => tenure,
        Err(error) => {
            let _ = error.print();
            let asked = matches!(
                error.kind(),
                ErrorKind::DisplayHelp | ErrorKind::DisplayVersion
            );
            return if asked {
                ExitCode::SUCCESS
            } else {
                usage_code(&args).into()
            };
        }
    };
    log_to_stderr();
    // The child of `run` lives as long as the thread that started it, and most commands need no
    // second thread; the server does.
    let mut builder = match tenure.command {
        Command::Server(_) => tokio::runtime::Builder::new_multi_thread(),
        _ => tokio::runtime::Builder::new_current_thread(),
    };
    let runtime = match builder.enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("tenure: cannot start: {error}");
            return 125.into();
        }
    };
    let code = runtime.block_on(dispatch(tenure, old));
    // Requests that still hang must not delay the exit.
    runtime.shutdown_background();
    code.into()
}

async fn dispatch(tenure: Tenure, old: bool) -> u8 {
    let Tenure { connect, command } = tenure;
    let (result, failure) = match command {
        Command::Run(run) => (run.run(&connect).await, 125),
        Command::Elect(elect) => (elect.run(&connect, old).await, 1),
        Command::Status(status) => (status.run(&connect).await, 1),
        Command::StepDown(order) => (order.run(&connect).await, 1),
        Command::Pause(order) => (order.run(&connect).await, 1),
        Command::Resume(order) => (order.run(&connect).await, 1),
        Command::Server(server) => (server.run().await, 1),
    };
    result.unwrap_or_else(|error| {
        eprintln!("tenure: {error:#}");
        failure
    })
}

/// `TENURE_LOG` chooses what is logged, as `RUST_LOG` does elsewhere; warnings by default. The client's
/// own lines are left out: what went wrong is said once, by whoever asked.
fn log_to_stderr() {
    let filter = tracing_subscriber::EnvFilter::try_from_env("TENURE_LOG")
        .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new("warn,kube_client=off"));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        .with_target(false)
        .init();
}

/// Whether this is a command line for the old sidecar: called by its name, or with flags first.
fn called_as_sidecar(args: &[OsString]) -> bool {
    let name = args.first().map(Path::new).and_then(Path::file_name);
    let by_name = name.is_some_and(|name| name == "leader-elector" || name == "server");
    let first = args.get(1).and_then(|arg| arg.to_str()).unwrap_or_default();
    let ours = [
        "-h",
        "--help",
        "-V",
        "--version",
        "--kubeconfig",
        "--context",
        "--require-cluster",
    ];
    let flag = first.split('=').next().unwrap_or_default();
    by_name || (flag.starts_with('-') && !ours.contains(&flag))
}

/// `-http=:4040` and `--http :4040` both mean `elect --http :4040`: Go reads one dash as two.
fn as_elect(args: Vec<OsString>) -> Vec<OsString> {
    let mut args = args.into_iter();
    let program = args.next().unwrap_or_default();
    let flags = args.map(|arg| match arg.to_str() {
        Some(text) if text.len() > 2 && text.starts_with('-') && !text.starts_with("--") => {
            format!("-{text}").into()
        }
        _ => arg,
    });
    [program, "elect".into()].into_iter().chain(flags).collect()
}

/// The exit code for a bad command line: `run` follows flock(1), the rest the old sidecar.
fn usage_code(args: &[OsString]) -> u8 {
    let command = args
        .iter()
        .skip(1)
        .find(|arg| !arg.as_encoded_bytes().starts_with(b"-"));
    if command.is_some_and(|command| command == "run") {
        64
    } else {
        2
    }
}
