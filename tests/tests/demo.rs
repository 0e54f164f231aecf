//! `tenure demo` measures hand-overs and leaves no processes behind.

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use tenure_tests::clock::poll;
use tenure_tests::process::Process;
use tenure_tests::{Skip, tools};

use crate::top::Terminal;

const LIMIT: Duration = Duration::from_secs(120);

fn demo(args: &[&str]) -> Process {
    let mut command = Command::new(tools::tenure().unwrap());
    command.arg("demo").args(args);
    Process::spawn("demo", command).unwrap()
}

/// Returns the number of candidates of the demo with this process id. Their command line contains the name of its
/// folder.
fn candidates(demo: u32) -> usize {
    let mark = format!("tenure-demo-{demo}-");
    let processes = std::fs::read_dir("/proc").unwrap().filter_map(Result::ok);
    processes
        .filter(|entry| {
            let line = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
            String::from_utf8_lossy(&line).contains(&mark)
        })
        .count()
}

/// Returns the folder of the demo with this process id.
fn folder(demo: u32) -> Option<PathBuf> {
    let mark = format!("tenure-demo-{demo}-");
    let entries = std::fs::read_dir(std::env::temp_dir()).unwrap();
    let mut names = entries.filter_map(|entry| Some(entry.ok()?.path()));
    names.find(|path| path.to_string_lossy().contains(&mark))
}

#[test]
fn demo_kills_leaders_and_measures_hand_overs() {
    let mut demo = demo(&["--rounds", "2", "--no-page", "--pause", "300ms"]);
    let pid = demo.pid();
    assert!(demo.wait(LIMIT).unwrap().success(), "{}", demo.transcript());
    let text = demo.text().join("\n");
    let line = |mark: &str| {
        let found = text.lines().find(|line| line.contains(mark));
        found
            .unwrap_or_else(|| panic!("no {mark:?} in {text}"))
            .to_owned()
    };
    assert!(line("1. SIGTERM").contains("->"));
    // The lease has to expire first.
    let crash = line("2. SIGKILL");
    let seconds: f64 = crash
        .rsplit(' ')
        .next()
        .unwrap()
        .trim_end_matches('s')
        .parse()
        .unwrap();
    assert!((1.0..20.0).contains(&seconds), "{crash}");
    for signal in ["after SIGTERM", "after SIGKILL"] {
        assert!(line(signal).contains(" 1 hand-over, "), "{text}");
    }
    assert!(!text.contains("http://"), "the page is disabled");
    assert_eq!(candidates(pid), 0);
}

/// ^C in a terminal reaches both the demo and its candidates, and the demo still ends cleanly.
#[test]
fn demo_ends_cleanly_on_an_interrupt_from_the_terminal() {
    if Skip::unless(tools::tmux()).is_none() {
        return;
    }
    let tenure = tools::tenure().unwrap();
    let demo = format!(
        "sh -c 'echo it is $$; exec {} demo --no-page --pause 60s'",
        tenure.display()
    );
    let terminal = Terminal::start("demo", &format!("clear; {demo}; echo en\"\"ded with $?"));
    let screen = terminal.shows(&["it is ", " leads."]);
    let pid = screen
        .split("it is ")
        .nth(1)
        .and_then(|rest| rest.split_whitespace().next());
    let pid: u32 = pid.unwrap().parse().unwrap();
    assert_eq!(candidates(pid), 3);
    terminal.keys(&["C-c"]);
    terminal.shows(&["ended with 0"]);
    assert_eq!(candidates(pid), 0);
    assert!(
        !std::env::temp_dir()
            .join(format!("tenure-demo-{pid}"))
            .exists()
    );
}

#[test]
fn demo_ends_cleanly_when_asked_to() {
    let mut demo = demo(&["--pause", "60s"]);
    let pid = demo.pid();
    let shown = poll(LIMIT, || {
        let text = demo.text();
        let page = text.iter().any(|line| line.contains("/ui#token="));
        (page && text.iter().any(|line| line.contains(" leads."))).then_some(())
    });
    assert!(shown.is_some(), "{}", demo.transcript());
    assert_eq!(candidates(pid), 3);
    assert!(folder(pid).is_some());
    demo.terminate();
    assert!(demo.wait(LIMIT).unwrap().success());
    assert_eq!(candidates(pid), 0);
    assert_eq!(folder(pid), None);
}

#[test]
fn demo_that_is_killed_leaves_no_candidates() {
    let mut demo = demo(&["--no-page", "--pause", "60s"]);
    let pid = demo.pid();
    let all = poll(LIMIT, || (candidates(pid) == 3).then_some(()));
    assert!(all.is_some(), "{}", demo.transcript());
    demo.kill();
    let gone = poll(LIMIT, || (candidates(pid) == 0).then_some(()));
    assert!(gone.is_some());
    if let Some(folder) = folder(pid) {
        let _ = std::fs::remove_dir_all(folder);
    }
}
