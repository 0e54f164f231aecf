//! `-h` and `--help` of every command, as a user sees them.

use std::process::Command;

use tenure_tests::tools;

/// Groups of flags that help may contain.
const GROUPS: [&str; 18] = [
    "Election",
    "Timing",
    "Command",
    "Signals",
    "Health",
    "HTTP",
    "Outputs",
    "Routing",
    "Server",
    "Security",
    "Storage",
    "Controllers",
    "Limits",
    "Driver",
    "Volumes",
    "Topology",
    "Capacity",
    "Connection",
];

/// Maximum number of lines of a summary.
const SUMMARY: usize = 40;

pub(crate) fn help(path: &[String], flag: &str, columns: usize) -> String {
    let mut command = Command::new(tools::tenure().unwrap());
    let output = command
        .args(path)
        .arg(flag)
        .env("COLUMNS", columns.to_string())
        .output()
        .unwrap();
    assert!(
        output.status.success() && output.stderr.is_empty(),
        "{path:?} {flag}"
    );
    String::from_utf8(output.stdout).unwrap()
}

/// Returns the names below a heading.
fn below(help: &str, heading: &str) -> Vec<String> {
    let lines = help.lines().skip_while(|line| *line != heading).skip(1);
    let lines = lines.take_while(|line| line.starts_with("  "));
    let names = lines.filter_map(|line| line.split_whitespace().next());
    names.map(str::to_owned).collect()
}

fn headings(help: &str) -> Vec<&str> {
    let lines = help.lines();
    let headings = lines.filter(|line| !line.starts_with(' ') && line.ends_with(':'));
    headings.map(|line| line.trim_end_matches(':')).collect()
}

/// Returns every command, including those of `tenure server`.
pub(crate) fn commands() -> Vec<Vec<String>> {
    let mut found = vec![Vec::new()];
    let mut next = 0;
    while let Some(path) = found.get(next).cloned() {
        let names = below(&help(&path, "-h", 100), "Commands:");
        for name in names.into_iter().filter(|name| name != "help") {
            found.push([path.clone(), vec![name]].concat());
        }
        next += 1;
    }
    found
}

#[test]
fn help_of_every_command_has_groups_examples_and_a_short_summary() {
    let commands = commands();
    assert!(commands.len() >= 20, "{commands:?}");
    for path in commands {
        let name = ["tenure"]
            .into_iter()
            .chain(path.iter().map(String::as_str));
        let name = name.collect::<Vec<_>>().join(" ");
        let long = help(&path, "--help", 100);
        for columns in [80, 100] {
            let short = help(&path, "-h", columns);
            let lines = short.trim_end().lines();
            assert!(
                lines.clone().count() <= SUMMARY,
                "{name} at {columns}\n{short}"
            );
            let widest = lines.clone().map(|line| line.chars().count()).max();
            assert!(widest <= Some(columns), "{name}\n{short}");
            let last = lines.last().unwrap_or_default();
            assert_eq!(
                last,
                format!("All flags, details and variables: {name} --help")
            );
            assert!(!short.contains("[env:"), "{name}\n{short}");
        }
        for help in [&long, &help(&path, "-h", 100)] {
            let examples = below(help, "Examples:");
            assert!((2..=4).contains(&examples.len()), "{name}\n{help}");
            assert!(help.contains(&format!("\n  {name}")), "{name}\n{help}");
            let shown = headings(help);
            let known = [&GROUPS[..], &["Commands", "Logging", "Help", "Examples"]].concat();
            for heading in &shown {
                assert!(known.contains(heading), "{name}: {heading}\n{help}");
            }
        }
        let shown = headings(&long);
        let groups = GROUPS.iter().filter(|group| shown.contains(group));
        assert!(path.is_empty() || groups.count() > 0, "{name}\n{long}");
        assert_eq!(
            shown[shown.len() - 2..],
            ["Help", "Examples"],
            "{name}\n{long}"
        );
    }
}

#[test]
fn help_of_run_and_elect_has_the_main_groups_and_globals_last() {
    for (command, groups) in [
        (
            "run",
            &["Election", "Timing", "Command", "Signals", "Outputs"][..],
        ),
        (
            "elect",
            &["Election", "Timing", "Health", "HTTP", "Outputs", "Routing"],
        ),
    ] {
        let long = help(&[command.to_owned()], "--help", 100);
        let expected = [groups, &["Connection", "Logging", "Help", "Examples"]].concat();
        assert_eq!(headings(&long), expected, "{long}");
        assert!(long.contains("[env: TENURE_LEASE_DURATION"), "{long}");
    }
    for command in ["man", "completions"] {
        let long = help(&[command.to_owned()], "--help", 100);
        assert!(
            !long.contains("--kubeconfig") && !long.contains("--verbose"),
            "{long}"
        );
    }
}

#[test]
fn run_explains_the_short_flags_of_flock() {
    let run = |args: &[&str]| {
        let mut command = Command::new(tools::tenure().unwrap());
        let output = command.arg("run").args(args).output().unwrap();
        assert_eq!(output.status.code(), Some(64), "{args:?}");
        String::from_utf8(output.stderr).unwrap()
    };
    let wait = run(&["-w", "10", "--election", "e", "--", "true"]);
    assert_eq!(
        wait,
        "tenure: unknown flag -w; for flock's -w, use --wait 10s; see `tenure run --help`\n"
    );
    let nonblock = run(&["-n", "--election", "e", "--", "true"]);
    assert!(nonblock.contains("-n is the namespace"), "{nonblock}");
    assert!(nonblock.contains("--nonblock"), "{nonblock}");
}
