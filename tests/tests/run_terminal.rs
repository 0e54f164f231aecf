//! `tenure run --foreground` in a real terminal, provided by tmux.

use tenure_tests::home::Home;
use tenure_tests::{Skip, tools};

use crate::top::Terminal;

/// Prints whether the process group of this shell is in the foreground of the terminal. It waits a short time for that.
const WHERE: &str = "n=0; while [ $n -lt 20 ]; do \
    read -r _ _ _ _ group _ _ front _ < /proc/$$/stat; \
    if [ $group = $front ]; then echo it is in fr\"\"ont; exit; fi; \
    n=$((n+1)); sleep 0.1; done; echo it is be\"\"hind";

/// Returns a command line that runs a script in an empty home directory. It prints the exit code afterwards, with the
/// number of the line.
fn line(home: &Home, number: usize, flags: &str, script: &str) -> String {
    let file = home.path("script");
    std::fs::write(&file, script).unwrap();
    let tenure = tools::tenure().unwrap();
    format!(
        "clear; env -i PATH=\"$PATH\" HOME={} {} run --election=t {flags} -- sh {}; echo {number} en\"\"ded with $?",
        home.path("").display(),
        tenure.display(),
        file.display()
    )
}

#[test]
fn run_terminal_is_given_to_a_foreground_command() {
    if Skip::unless(tools::tmux()).is_none() {
        return;
    }
    let home = Home::new();
    // The process group in the foreground can read from the terminal.
    let script = "read word; echo it said $word";
    let terminal = Terminal::start("run", &line(&home, 0, "", script));
    terminal.keys(&["h", "e", "l", "l", "o", "Enter"]);
    terminal.shows(&["it said hello", "0 ended with 0"]);
    let lines = [
        ("", "front"),
        ("--foreground=never", "behind"),
        ("--stdin=null", "behind"),
        ("--stdin=null --foreground", "front"),
        ("--stdin=null --foreground=always", "front"),
    ];
    for (number, (flags, place)) in (1..).zip(lines) {
        terminal.types(&line(&home, number, flags, WHERE));
        let place = format!("it is {}{place}", if place == "front" { "in " } else { "" });
        // Afterwards the shell is in the foreground again; otherwise it could not continue.
        terminal.shows(&[&place, &format!("{number} ended with 0")]);
    }
    // ^C signals only the command, which ends in its own way.
    let script =
        "trap 'echo int\"\"errupted; exit 7' INT; echo wai\"\"ting; while :; do sleep 0.1; done";
    terminal.types(&line(&home, 9, "", script));
    terminal.shows(&["waiting"]);
    terminal.keys(&["C-c"]);
    terminal.shows(&["interrupted", "9 ended with 7"]);
    // A leader is never suspended: after ^Z the command continues.
    let script = "echo wai\"\"ting; read word; echo it said $word";
    terminal.types(&line(&home, 10, "", script));
    terminal.shows(&["waiting"]);
    terminal.keys(&["C-z"]);
    terminal.shows(&["tenure: ignored ^Z"]);
    terminal.keys(&["y", "e", "s", "Enter"]);
    terminal.shows(&["it said yes", "10 ended with 0"]);
    // A command that may not use the terminal has no input.
    let script = "read word || echo nothing to re\"\"ad";
    terminal.types(&line(&home, 11, "--foreground=never", script));
    terminal.shows(&["nothing to read", "11 ended with 0"]);
    // A command that reads the terminal nevertheless is stopped, and ends on request.
    let script = "read word < /dev/tty; echo it said $word";
    terminal.types(&line(&home, 12, "--foreground=never", script));
    terminal.shows(&["tenure: the command is stopped, because it needs the terminal"]);
    terminal.keys(&["C-c"]);
    terminal.shows(&["12 ended with 130"]);
}
