//! Wrong command lines: prints one line with the problem and its solution.

use std::ffi::OsString;

use clap::CommandFactory;
use clap::error::{ContextKind, ContextValue, ErrorKind};

use crate::Tenure;

/// Flags of other sidecars and their names here.
const OLD: &[(&str, &str)] = &[
    ("--port", "--http=:PORT"),
    ("--leader-elect-lease-duration", "--lease-duration"),
    ("--leader-elect-renew-deadline", "--renew-deadline"),
    ("--leader-elect-retry-period", "--retry-period"),
    ("--leader-elect-resource-lock", "--lock"),
    ("--leader-elect-resource-name", "--election"),
    ("--leader-elect-resource-namespace", "--namespace"),
    ("--lease-lock-name", "--election"),
    ("--lease-lock-namespace", "--namespace"),
    ("--lock-type", "--lock"),
    ("--election-type", "--lock"),
    ("--type", "--lock"),
    ("--pod-name", "the variable POD_NAME, or --id"),
    ("--name", "--election"),
    ("--lease-name", "--election"),
    ("--lock-name", "--election"),
    ("--identity", "--id"),
    ("--server", "--kubeconfig"),
    ("--master", "--kubeconfig"),
    ("--reelect-after", "--max-hold"),
    ("--timeout", "--wait"),
    ("--try", "--nonblock"),
    ("--limit", "--slots"),
];

/// Prints clap's error in one line, and returns the exit code: `run` follows flock(1), other commands follow the old
/// sidecar. Requested help and version output are not errors.
pub(crate) fn report(error: &clap::Error, args: &[OsString]) -> u8 {
    match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => {
            let _ = error.print();
            return 0;
        }
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            let _ = error.print();
            return code(args);
        }
        _ => {}
    }
    let known = |name: &String| Tenure::command().find_subcommand(name).is_some();
    let command = command(args).filter(known);
    let help = match command.as_deref() {
        Some(command) => format!("tenure {command} --help"),
        None => "tenure --help".to_owned(),
    };
    let from = variable(error, args, command.as_deref());
    let from = from.map_or(String::new(), |name| format!(" (from the variable {name})"));
    let hint = match command.as_deref() {
        Some("run") => flock_hint(error, args),
        _ => None,
    };
    let text = hint.unwrap_or_else(|| describe(error));
    eprintln!("tenure: {text}{from}; see `{help}`");
    code(args)
}

/// Returns the environment variable that an invalid value came from, if it was not on the command line.
fn variable(error: &clap::Error, args: &[OsString], command: Option<&str>) -> Option<String> {
    let Some(ContextValue::String(flag)) = error.get(ContextKind::InvalidArg) else {
        return None;
    };
    let flag = flag.split([' ', '[']).next()?;
    let tenure = Tenure::command();
    let command = command
        .and_then(|name| tenure.find_subcommand(name))
        .unwrap_or(&tenure);
    let long = flag.strip_prefix("--")?;
    let mut arguments = command.get_arguments().chain(tenure.get_arguments());
    let argument = arguments.find(|argument| argument.get_long() == Some(long))?;
    if args.iter().any(|arg| gives(arg, argument)) {
        return None;
    }
    let name = argument.get_env()?.to_str()?;
    std::env::var_os(name).map(|_| name.to_owned())
}

/// Whether this word of a command line is the flag, under any of its names.
fn gives(word: &OsString, flag: &clap::Arg) -> bool {
    let Some(word) = word.to_str() else {
        return false;
    };
    let Some(long) = word.strip_prefix("--") else {
        let short = flag.get_short().map(|letter| format!("-{letter}"));
        return short.is_some_and(|short| word.starts_with(&short));
    };
    let name = long.split('=').next().unwrap_or_default();
    let aliases = flag.get_all_aliases().unwrap_or_default();
    flag.get_long() == Some(name) || aliases.contains(&name)
}

/// Returns the first line of clap's message, with its hints.
fn describe(error: &clap::Error) -> String {
    let rendered = error.render().to_string();
    let mut parts: Vec<String> = Vec::new();
    let missing = error.kind() == ErrorKind::MissingRequiredArgument;
    for line in rendered.lines() {
        let line = line.trim();
        if line.starts_with("Usage:") || line.starts_with("For more information") {
            break;
        }
        let line = line.strip_prefix("error: ").unwrap_or(line);
        if missing && line.starts_with("the following required arguments") {
            parts.push("missing".to_owned());
        } else if !line.is_empty() {
            parts.push(line.trim_start_matches("tip: ").to_owned());
        }
    }
    let mut text = if missing {
        parts.join(" ")
    } else {
        parts.join("; ")
    };
    if error.kind() == ErrorKind::UnknownArgument
        && let Some(ContextValue::String(flag)) = error.get(ContextKind::InvalidArg)
    {
        let flag = flag.split(['=', ' ']).next().unwrap_or_default();
        let known = OLD.iter().find(|(old, _)| *old == flag);
        if let Some((_, new)) = known {
            text = format!("unknown flag {flag}; use {new}");
        } else if belongs_to_provision(flag) {
            text =
                format!("{flag} is a flag of `tenure provision`: put `provision` before the flags");
        }
    }
    text
}

/// Explains the letters of flock(1) that `tenure run` uses otherwise: `-w SECONDS` and `-n`.
fn flock_hint(error: &clap::Error, args: &[OsString]) -> Option<String> {
    let mut flags = args.iter().take_while(|arg| *arg != "--");
    let flag = match error.get(ContextKind::InvalidArg) {
        Some(ContextValue::String(flag)) => flag.as_str(),
        _ => "",
    };
    match error.kind() {
        ErrorKind::UnknownArgument if flag == "-w" => {
            let is_wait = |arg: &&OsString| arg.to_string_lossy().starts_with("-w");
            let given = flags.find(is_wait)?.to_string_lossy().into_owned();
            let seconds = match given.strip_prefix("-w").map(|rest| rest.trim_matches('=')) {
                Some("") | None => flags.next()?.to_string_lossy().into_owned(),
                Some(attached) => attached.to_owned(),
            };
            let unit = match seconds.parse::<f64>() {
                Ok(_) => format!("{seconds}s"),
                Err(_) => "10s".to_owned(),
            };
            Some(format!(
                "unknown flag -w; for flock's -w, use --wait {unit}"
            ))
        }
        ErrorKind::InvalidValue | ErrorKind::MissingRequiredArgument
            if flags.any(|arg| arg == "-n") && !flag.starts_with("--election") =>
        {
            let hint = "-n is the namespace; for flock's -n, use --nonblock";
            Some(format!("{}; {hint}", describe(error)))
        }
        _ => None,
    }
}

/// Whether only `tenure provision` has this flag. Pods of CSI drivers give such flags without a command, because the
/// entry point of their image was csi-provisioner.
fn belongs_to_provision(flag: &str) -> bool {
    let tenure = Tenure::command();
    let Some(provision) = tenure.find_subcommand("provision") else {
        return false;
    };
    let long = flag.trim_start_matches('-');
    let mut flags = provision.get_arguments();
    flags.any(|argument| argument.get_long() == Some(long))
}

/// Returns the exit code of an invalid command line.
pub(crate) fn code(args: &[OsString]) -> u8 {
    match command(args).as_deref() {
        Some("run") => 64,
        _ => 2,
    }
}

/// Returns the subcommand, after any number of flags.
pub(crate) fn command(args: &[OsString]) -> Option<String> {
    let mut args = args.iter().skip(1).filter_map(|arg| arg.to_str());
    while let Some(arg) = args.next() {
        match arg {
            "--kubeconfig" | "--context" | "--log-format" | "--log-file" => _ = args.next(),
            flag if flag.starts_with('-') => {}
            command => return Some(command.to_owned()),
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_before_the_command_do_not_hide_it() {
        let args = |line: &str| line.split(' ').map(Into::into).collect::<Vec<_>>();
        assert_eq!(code(&args("tenure run --bad")), 64);
        assert_eq!(code(&args("tenure --kubeconfig x run --bad")), 64);
        assert_eq!(code(&args("tenure --log-format=json run --bad")), 64);
        assert_eq!(code(&args("tenure elect --bad")), 2);
        assert_eq!(code(&args("tenure --bad")), 2);
    }

    #[test]
    fn short_flags_of_flock_are_explained() {
        let hint = |line: &str| {
            let args: Vec<OsString> = line.split(' ').map(Into::into).collect();
            let error = crate::parse(&args).unwrap_err();
            flock_hint(&error, &args).unwrap_or_default()
        };
        for line in [
            "-w 10 --election=e",
            "-w10 --election=e",
            "--election=e -w=10",
        ] {
            let text = hint(&format!("tenure run {line} -- true"));
            assert_eq!(
                text, "unknown flag -w; for flock's -w, use --wait 10s",
                "{line}"
            );
        }
        for line in [
            "-n --election=e -- true",
            "--election=e -n -- true",
            "-n e -- true",
        ] {
            let text = hint(&format!("tenure run {line}"));
            assert!(
                text.ends_with("for flock's -n, use --nonblock"),
                "{line}: {text}"
            );
        }
        assert_eq!(hint("tenure run --election=e --wait=soon -- true"), "");
        assert_eq!(hint("tenure run --election= -n x -- true"), "");
    }
}
