//! The name of an election on the command line: an argument, or the value of `--election`.

use std::fmt;
use std::ops::Deref;

use clap::error::ErrorKind;
use clap::{Arg, ArgMatches, Args, Command, FromArgMatches};
use tenure_lock::LockKind;

use crate::values::name;

/// The name of an election, as an argument or as `--election`.
#[derive(Debug)]
pub(crate) struct ElectionName(String);

/// One election and its lock.
#[derive(Args, Debug)]
pub(crate) struct OneElection {
    #[command(flatten)]
    pub(crate) name: ElectionName,
    /// Namespace [default: of the kubeconfig's context]
    #[arg(short, long, value_name = "NS", env = "TENURE_NAMESPACE")]
    pub(crate) namespace: Option<String>,
    /// Lock kind of the election
    #[arg(long, value_name = "KIND", default_value = "leases")]
    pub(crate) lock: LockKind,
}

/// The name of an election, if one is given as an argument or as `--election`.
#[derive(Debug)]
pub(crate) struct OptionalElectionName(Option<String>);

impl Deref for ElectionName {
    type Target = String;

    fn deref(&self) -> &String {
        &self.0
    }
}

impl fmt::Display for ElectionName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl Deref for OptionalElectionName {
    type Target = Option<String>;

    fn deref(&self) -> &Option<String> {
        &self.0
    }
}

/// Adds the argument and the flag.
fn add_name(command: Command, required: bool) -> Command {
    let argument = Arg::new("name")
        .value_name("ELECTION")
        .value_parser(name)
        .help("Name of the election")
        .conflicts_with("election");
    let argument = if required {
        argument.required_unless_present("election")
    } else {
        argument.help("Name of the election [default: all]")
    };
    let flag = Arg::new("election")
        .long("election")
        .value_name("NAME")
        .value_parser(name)
        .help("The same as the argument ELECTION");
    command.arg(argument).arg(flag)
}

fn given_name(matches: &ArgMatches) -> Option<String> {
    let given = |id| matches.get_one::<String>(id).cloned();
    given("name").or_else(|| given("election"))
}

impl FromArgMatches for ElectionName {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let missing = || clap::Error::new(ErrorKind::MissingRequiredArgument);
        given_name(matches).map(Self).ok_or_else(missing)
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

impl Args for ElectionName {
    fn augment_args(command: Command) -> Command {
        add_name(command, true)
    }

    fn augment_args_for_update(command: Command) -> Command {
        add_name(command, false)
    }
}

impl FromArgMatches for OptionalElectionName {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        Ok(Self(given_name(matches)))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        self.0 = given_name(matches);
        Ok(())
    }
}

impl Args for OptionalElectionName {
    fn augment_args(command: Command) -> Command {
        add_name(command, false)
    }

    fn augment_args_for_update(command: Command) -> Command {
        add_name(command, false)
    }
}
