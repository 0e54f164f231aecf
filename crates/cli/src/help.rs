//! The layout of help: groups of flags, examples, and what `-h` leaves out.
//!
//! `-h` is a summary of at most 40 lines. `--help` shows every flag, with its variable and its details. `pages` contains the
//! layout of each command.

mod pages;
mod services;

use std::fmt::Write as _;

use clap::{Arg, ArgAction, Command, CommandFactory as _};

use crate::Tenure;
use pages::{GLOBALS, Page, name_of};

/// The subcommands, with grouped flags and examples. `program` is the name that the user types. `summary` omits environment
/// variables, which do not fit into the lines of `-h`.
pub(crate) fn command(program: &str, summary: bool) -> Command {
    let layout = Layout { program, summary };
    layout.apply(Tenure::command(), "", &[])
}

struct Layout<'a> {
    program: &'a str,
    summary: bool,
}

impl Layout<'_> {
    /// Lays out a command and its subcommands. `path` is empty for the program itself. `inherited` are the global flags of the
    /// commands above; clap would add them too late, behind `--help`.
    fn apply(&self, command: Command, path: &str, inherited: &[Arg]) -> Command {
        let page = Page::of(path);
        let own = command.get_arguments().filter(|arg| arg.is_global_set());
        let globals: Vec<Arg> = own.chain(inherited).cloned().collect();
        let below: Vec<String> = command
            .get_subcommands()
            .map(|command| command.get_name().to_owned())
            .collect();
        let mut command = page
            .sort(command)
            .args(inherited)
            .mut_args(|arg| self.place(page, arg))
            .disable_help_flag(true)
            .disable_version_flag(true)
            .arg(help_flag())
            .arg(version_flag());
        for name in below {
            let path = match path {
                "" => name.clone(),
                path => format!("{path} {name}"),
            };
            command = command.mut_subcommand(&name, |below| self.apply(below, &path, &globals));
        }
        let name = match path {
            "" => self.program.to_owned(),
            path => format!("{} {path}", self.program),
        };
        let header = *command.get_styles().get_header();
        let examples = self.examples(page);
        let examples = format!("{header}Examples:{header:#}{examples}");
        let more = format!("All flags, details and variables: {name} --help");
        command
            .after_help(format!("{examples}\n\n{more}"))
            .after_long_help(examples)
    }

    /// Puts a flag into its group. Flags that `-h` does not show are hidden there.
    fn place(&self, page: &Page, arg: Arg) -> Arg {
        let name = name_of(&arg).to_owned();
        let defaults = arg.get_default_values();
        let empty = !defaults.is_empty() && defaults.iter().all(|value| value.is_empty());
        let hidden = empty || arg.is_hide_default_value_set();
        let arg = arg.hide_env(self.summary).hide_default_value(hidden);
        let meaningless = page.without.contains(&name.as_str());
        for group in page.groups {
            if let Some((order, shown)) = group.place(&name) {
                let arg = arg.help_heading(group.heading).display_order(order);
                return arg.hide_short_help(!shown);
            }
        }
        for group in GLOBALS {
            if let Some((order, _)) = group.place(&name) {
                // Inherited flags come after the command's own flags in a group of the same name.
                let arg = arg.help_heading(group.heading).display_order(100 + order);
                let shown = page.summary_globals.contains(&name.as_str());
                return arg.hide_short_help(!shown).hide(meaningless);
            }
        }
        if meaningless { arg.hide(true) } else { arg }
    }

    /// Returns the lines of the examples, with their comments in one column.
    fn examples(&self, page: &Page) -> String {
        let lines = page.examples.iter().map(|(line, comment)| {
            let line = match line.strip_prefix("tenure") {
                Some(rest) => format!("{}{rest}", self.program),
                None => (*line).to_owned(),
            };
            (line, *comment)
        });
        let lines: Vec<(String, &str)> = lines.collect();
        let commented = lines.iter().filter(|(_, comment)| !comment.is_empty());
        let width = commented.map(|(line, _)| line.len()).max().unwrap_or(0);
        let mut text = String::new();
        for (line, comment) in lines {
            // Writing to a string cannot fail.
            let _ = match comment {
                "" => write!(text, "\n  {line}"),
                comment => write!(text, "\n  {line:width$}  # {comment}"),
            };
        }
        text
    }
}

fn help_flag() -> Arg {
    Arg::new("help")
        .short('h')
        .long("help")
        .action(ArgAction::Help)
        .help("Print a summary (-h) or all flags (--help)")
        .help_heading("Help")
        .hide_short_help(true)
}

fn version_flag() -> Arg {
    Arg::new("version")
        .short('V')
        .long("version")
        .action(ArgAction::Version)
        .help("Print the version")
        .help_heading("Help")
        .hide_short_help(true)
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;

    use super::*;

    /// All commands, with their paths, at this width of the terminal.
    fn all(summary: bool, width: usize) -> Vec<(String, Command)> {
        let mut root = command("tenure", summary).term_width(width);
        root.build();
        let mut found = vec![(String::new(), root)];
        let mut next = 0;
        while let Some((path, command)) = found.get(next).cloned() {
            for below in command.get_subcommands().filter(|c| c.get_name() != "help") {
                let path = format!("{path} {}", below.get_name()).trim().to_owned();
                found.push((path, below.clone().term_width(width)));
            }
            next += 1;
        }
        found
    }

    fn examples(help: &str) -> Vec<String> {
        let after = help.lines().skip_while(|line| *line != "Examples:").skip(1);
        let lines = after.take_while(|line| line.starts_with("  "));
        lines.map(|line| line.trim().to_owned()).collect()
    }

    /// Splits a line like a shell, up to a comment, a redirection or a pipe.
    fn words(line: &str) -> Vec<OsString> {
        let words = line.split_whitespace();
        let words = words.take_while(|word| !["#", ">", "|"].contains(word));
        words.map(|word| word.trim_matches('\'').into()).collect()
    }

    #[test]
    fn summary_has_at_most_forty_lines_at_eighty_and_hundred_columns() {
        let mut wrong = String::new();
        for width in [80, 100] {
            for (path, mut command) in all(true, width) {
                let help = command.render_help().to_string();
                let lines = help.trim_end().lines().count();
                let widest = help.lines().map(|line| line.chars().count()).max();
                if lines > 40 || widest > Some(width) {
                    let _ = write!(wrong, "{path}: {lines} lines at {width}\n{help}\n");
                }
                let last = help.trim_end().lines().last().unwrap_or_default();
                assert!(last.ends_with("--help"), "{path}: {last}");
            }
        }
        assert!(wrong.is_empty(), "{wrong}");
    }

    #[test]
    fn long_help_groups_every_flag_and_hides_flags_without_meaning() {
        for (path, mut command) in all(false, 100) {
            let help = command.render_long_help().to_string();
            assert!(
                !help.contains("\nOptions:"),
                "{path}: flags without a group\n{help}"
            );
            assert!(
                !help.contains("[default: ?]"),
                "{path}: a placeholder as default\n{help}"
            );
            let page = Page::of(&path);
            for group in page.groups {
                for flag in group.flags() {
                    let known = command.get_arguments().any(|arg| name_of(arg) == flag);
                    assert!(known, "{path} has no {flag}");
                }
            }
            for flag in page.without {
                assert!(
                    !help.contains(&format!("--{flag} ")),
                    "{path}: --{flag}\n{help}"
                );
            }
            assert!(
                help.find("\nHelp:") > help.find("\nLogging:"),
                "{path}\n{help}"
            );
        }
    }

    #[test]
    fn first_line_of_every_flag_is_short() {
        let mut wrong = String::new();
        for (path, command) in all(false, 100) {
            for arg in command.get_arguments().filter(|arg| !arg.is_hide_set()) {
                let help = arg.get_help().map(ToString::to_string).unwrap_or_default();
                if !(1..=80).contains(&help.chars().count()) || help.ends_with('.') {
                    let _ = writeln!(wrong, "{path} {}: {help}", arg.get_id());
                }
            }
        }
        assert!(wrong.is_empty(), "{wrong}");
    }

    #[test]
    fn every_command_has_two_to_four_examples_that_parse() {
        for (path, mut command) in all(false, 100) {
            let help = command.render_long_help().to_string();
            let examples = examples(&help);
            assert!((2..=4).contains(&examples.len()), "{path}: {examples:?}");
            for example in examples {
                let words = words(&example);
                let begins = format!("tenure {path}");
                assert!(example.starts_with(begins.trim()), "{path}: {example}");
                if let Err(error) = crate::parse(&words) {
                    panic!("{example}: {error}");
                }
            }
        }
    }

    #[test]
    fn plugin_shows_its_own_name() {
        let mut command = command("kubectl tenure", true);
        command.build();
        let status = command.find_subcommand_mut("status").unwrap();
        let help = status.render_help().to_string();
        assert!(help.contains("\n  kubectl tenure status -A"), "{help}");
        assert!(help.contains(": kubectl tenure status --help"), "{help}");
    }
}
