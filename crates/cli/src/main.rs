//! The `tenure` command: parses the command line, runs the subcommand and returns its exit code. `commands` has one file or
//! folder per subcommand.
#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    clippy::disallowed_methods,
    reason = "a command talks to people, and its own pauses decide no election"
)]

mod announce;
mod api;
mod board;
mod commands;
mod connect;
mod death;
mod election;
mod election_name;
mod elections;
mod events;
mod help;
mod hosts;
mod klog;
#[cfg(feature = "server")]
mod local;
mod log;
mod notify;
mod observed_lock;
mod output;
mod page;
mod rbac;
mod say;
mod signals;
mod terms;
mod usage;
mod values;
mod waiting;

use std::ffi::OsString;
use std::path::Path;
use std::process::ExitCode;

use clap::{CommandFactory as _, FromArgMatches as _, Parser, Subcommand};

#[cfg(feature = "provision")]
use commands::provision;
#[cfg(feature = "top")]
use commands::top;
#[cfg(feature = "server")]
use commands::{demo, server};
use commands::{doctor, elect, history, run, shells, status, steer, ui};
use connect::Connect;

/// Leader election for Kubernetes: many replicas, one active
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
    #[command(flatten)]
    log: log::Log,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand, Debug)]
enum Command {
    Run(Box<run::Run>),
    Elect(Box<elect::Elect>),
    Status(status::Status),
    #[cfg(feature = "top")]
    Top(top::Top),
    Ui(ui::Ui),
    History(history::History),
    StepDown(steer::StepDown),
    Pause(steer::Pause),
    Resume(steer::Resume),
    Doctor(doctor::Doctor),
    #[cfg(feature = "server")]
    Demo(demo::Demo),
    #[cfg(feature = "server")]
    Server(Box<server::Server>),
    Completions(shells::Completions),
    Man(shells::Man),
    #[cfg(feature = "provision")]
    Provision(Box<provision::Provision>),
}

fn main() -> ExitCode {
    #[cfg(feature = "server")]
    server::tell_damage();
    let args: Vec<OsString> = std::env::args_os().collect();
    match args.get(1).and_then(|arg| arg.to_str()) {
        Some(run::CHILD) => return run::become_child(&args[2..]).into(),
        Some(run::WATCHDOG) => return run::watch(&args[2..]).into(),
        #[cfg(feature = "server")]
        Some(local::DETACHED) => return local::start_server(&args[2..]).into(),
        _ => {}
    }
    #[cfg(feature = "provision")]
    let args = if called_as(&args, &["csi-provisioner"]) {
        provision::spell(provision::with_command(args))
    } else {
        provision::spell(args)
    };
    let old = called_as_sidecar(&args);
    let args = if old { as_elect(args) } else { args };
    let tenure = match parse(&args) {
        Ok(tenure) => tenure,
        Err(error) => return usage::report(&error, &args).into(),
    };
    match &tenure.command {
        #[cfg(feature = "provision")]
        Command::Provision(provision) => provision.log(),
        _ => {
            if let Err(error) = tenure.log.start() {
                eprintln!("tenure: {}", api::plain(&error));
                return usage::code(&args).into();
            }
        }
    }
    // The kernel ends the child of `run` with the thread that started it, and most commands need no second thread. The
    // server does.
    let mut builder = match tenure.command {
        #[cfg(feature = "server")]
        Command::Server(ref server) => server.runtime(),
        #[cfg(feature = "server")]
        Command::Demo(_) => tokio::runtime::Builder::new_multi_thread(),
        _ => tokio::runtime::Builder::new_current_thread(),
    };
    let runtime = match builder.enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            let why = tenure_lock::in_words(&error);
            eprintln!("tenure: cannot start the runtime: {why}");
            return 125.into();
        }
    };
    let code = runtime.block_on(dispatch(tenure, old));
    notify::stopping();
    // Requests that still hang must not delay the exit.
    runtime.shutdown_background();
    code.into()
}

/// Parses the command line. As a kubectl plugin, help shows the name of the plugin.
fn parse(args: &[OsString]) -> Result<Tenure, clap::Error> {
    let plugin = called_as(args, &["kubectl-tenure"]);
    let program = if plugin { "kubectl tenure" } else { "tenure" };
    let mut flags = args.iter().take_while(|arg| *arg != "--");
    let mut command = help::command(program, flags.any(|arg| arg == "-h"));
    if plugin {
        command = command.bin_name(program);
    }
    let mut tenure = Tenure::from_arg_matches(&command.try_get_matches_from(args)?)?;
    if let Command::Elect(elect) = &mut tenure.command {
        elect.apply_name();
    }
    Ok(tenure)
}

async fn dispatch(tenure: Tenure, old: bool) -> u8 {
    let Tenure {
        connect,
        log,
        command,
    } = tenure;
    let (result, failure) = match command {
        Command::Run(run) => (run.run(&connect, log).await, 125),
        Command::Elect(elect) => (elect.run(&connect, old).await, 1),
        Command::Status(status) => (status.run(&connect).await, 1),
        #[cfg(feature = "top")]
        Command::Top(top) => (top.run(&connect).await, 1),
        Command::Ui(ui) => (ui.run(&connect).await, 1),
        Command::History(history) => (history.run(&connect).await, 1),
        Command::StepDown(order) => (order.run(&connect).await, 1),
        Command::Pause(order) => (order.run(&connect).await, 1),
        Command::Resume(order) => (order.run(&connect).await, 1),
        Command::Doctor(doctor) => (doctor.run(&connect).await, 1),
        #[cfg(feature = "server")]
        Command::Demo(demo) => (demo.run().await, 1),
        #[cfg(feature = "server")]
        Command::Server(server) => (server.run(&connect).await, 1),
        Command::Completions(completions) => (completions.run(), 1),
        Command::Man(man) => (man.run(), 1),
        #[cfg(feature = "provision")]
        Command::Provision(provision) => (provision.run(&connect).await, 1),
    };
    result.unwrap_or_else(|error| {
        eprintln!("tenure: {}", output::escaped_lines(&api::plain(&error)));
        if error.is::<connect::NoCluster>() {
            connect::NO_CLUSTER_CODE
        } else {
            failure
        }
    })
}

/// Returns whether the program was started under one of these names.
fn called_as(args: &[OsString], names: &[&str]) -> bool {
    let name = args.first().map(Path::new).and_then(Path::file_name);
    name.is_some_and(|name| names.iter().any(|known| name == *known))
}

/// Returns whether this is a command line for the old sidecar: called by its name, or with flags first.
fn called_as_sidecar(args: &[OsString]) -> bool {
    let by_name = called_as(args, &["leader-elector", "server"]);
    let first = args.get(1).and_then(|arg| arg.to_str()).unwrap_or_default();
    let asks = ["-h", "--help", "-V", "--version"].contains(&first);
    let command = usage::command(args);
    let known = |name: &String| Tenure::command().find_subcommand(name).is_some();
    by_name || (first.starts_with('-') && !asks && !command.as_ref().is_some_and(known))
}

/// Converts `-http=:4040` and `--http :4040` to `elect --http :4040`, because Go treats one dash like two.
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
