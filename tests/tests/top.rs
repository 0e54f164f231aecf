//! `tenure top` in a real terminal, provided by tmux.

use std::process::{Command, Output};
use std::time::Duration;

use tenure_tests::clock::poll;
use tenure_tests::{Skip, tools};

use crate::seeing::Place;

const LIMIT: Duration = Duration::from_secs(60);

/// A separate tmux server, which ends with the test.
pub(crate) struct Terminal {
    socket: String,
}

impl Terminal {
    /// Starts `sh` and types the command line into it, so that the end of the command is visible.
    pub(crate) fn start(name: &str, line: &str) -> Self {
        let terminal = Self {
            socket: format!("tenure-{name}-{}", std::process::id()),
        };
        let size = ["-x", "120", "-y", "24"];
        terminal.tmux(&[&["new-session", "-d"], &size[..], &["sh"]].concat());
        terminal.types(line);
        terminal
    }

    fn resize(&self, columns: u16) {
        self.tmux(&["resize-window", "-x", &columns.to_string(), "-y", "24"]);
    }

    /// Types a line.
    pub(crate) fn types(&self, line: &str) {
        self.tmux(&["send-keys", "-l", line]);
        self.keys(&["Enter"]);
    }

    fn tmux(&self, args: &[&str]) -> Output {
        let mut command = Command::new("tmux");
        command
            .args(["-f", "/dev/null", "-L", &self.socket])
            .args(args);
        command.env("TERM", "xterm-256color").output().unwrap()
    }

    pub(crate) fn keys(&self, keys: &[&str]) {
        self.tmux(&[&["send-keys"], keys].concat());
    }

    fn screen(&self) -> String {
        let output = self.tmux(&["capture-pane", "-p"]);
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// Waits until the screen shows all of these and not the other text. A resized screen is blank for a moment.
    fn shows_without(&self, texts: &[&str], hidden: &str) {
        let seen = poll(LIMIT, || {
            let screen = self.screen();
            let shown = texts.iter().all(|text| screen.contains(text));
            (shown && !screen.contains(hidden)).then_some(())
        });
        assert!(
            seen.is_some(),
            "{texts:?}, no {hidden:?}\n{}",
            self.screen()
        );
    }

    /// Waits until the screen shows all of these.
    pub(crate) fn shows(&self, texts: &[&str]) -> String {
        let seen = poll(LIMIT, || {
            let screen = self.screen();
            texts
                .iter()
                .all(|text| screen.contains(text))
                .then_some(screen)
        });
        seen.unwrap_or_else(|| panic!("no {texts:?} on\n{}", self.screen()))
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        self.tmux(&["kill-server"]);
    }
}

fn line(place: &Place) -> String {
    let command = place.command();
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    let words: Vec<String> = words.map(|w| w.to_string_lossy().into_owned()).collect();
    format!(
        "{} top; echo ended with $?; stty -a | grep -o -- '-\\?echo '",
        words.join(" ")
    )
}

#[test]
fn top_shows_sorts_filters_and_steps_down() {
    if Skip::unless(tools::tmux()).is_none() {
        return;
    }
    let place = Place::new();
    let (web, db) = (place.election("web"), place.election("db"));
    let _leaders = [place.leader(&web, "alice"), place.leader(&db, "zoe")];
    let _follower = place.follower(&web, "bob");
    let terminal = Terminal::start("top", &line(&place));
    let screen = terminal.shows(&["2 elections, 2 held", "alice", "zoe", "held", "? help"]);
    let place_of = |screen: &str, text: &str| screen.find(text).unwrap();
    assert!(
        place_of(&screen, "zoe") < place_of(&screen, "alice"),
        "by name\n{screen}"
    );
    terminal.keys(&["h"]);
    let screen = terminal.shows(&["HOLDER ▾"]);
    assert!(
        place_of(&screen, "alice") < place_of(&screen, "zoe"),
        "by holder\n{screen}"
    );
    terminal.keys(&["/", "w", "e", "b", "Enter"]);
    terminal.shows(&["filter \"web\": 1"]);
    assert!(!terminal.screen().contains("zoe"));
    terminal.keys(&["d"]);
    terminal.shows(&["ask alice to step down from default/web? y yes"]);
    terminal.keys(&["y"]);
    // The change appears without user input, because the view follows a watch.
    let changed = poll(LIMIT, || {
        let screen = terminal.screen();
        let row = screen
            .lines()
            .find(|line| line.starts_with("web"))?
            .to_owned();
        row.contains("bob").then_some(())
    });
    assert!(changed.is_some(), "{}", terminal.screen());
    terminal.keys(&["?"]);
    terminal.shows(&["Keys and columns", "sort by name, holder", "any key closes"]);
    terminal.keys(&["x"]);
    terminal.shows_without(&["elections, "], "Keys and columns");
    terminal.keys(&["q"]);
    let screen = terminal.shows(&["ended with 0", " echo"]);
    assert!(
        !screen.contains("elections, "),
        "the terminal is restored\n{screen}"
    );
}

#[test]
fn top_keeps_names_and_drops_columns_on_narrow_terminals() {
    if Skip::unless(tools::tmux()).is_none() {
        return;
    }
    let place = Place::new();
    let name = "payments-reconciliation-worker";
    let election = place.election(name);
    let holder = "payments-7d9f8b6c5d-x2x8z_0f8a4c1e-9a6b-4d57-8b1c-5d4a3c2b1a00";
    let _leader = place.leader(&election, holder);
    let terminal = Terminal::start("narrow", &line(&place));
    terminal.resize(140);
    terminal.shows(&[name, "RENEWED", "LEFT", "CHANGES", "█", "…"]);
    terminal.resize(80);
    let shown = [
        name,
        "payments-7d9f8b6c5d-x2x",
        "…",
        "STATE",
        "LEFT",
        "? help",
    ];
    terminal.shows_without(&shown, "CHANGES");
    terminal.resize(50);
    terminal.shows_without(&[name, "STATE"], "LEFT");
    terminal.resize(80);
    terminal.keys(&["d"]);
    terminal.shows(&["ask payments-7d9f8b6c5d", "any other key no"]);
    terminal.keys(&["n", "?"]);
    terminal.shows(&["Keys and columns", "A narrow terminal shows fewer columns."]);
    terminal.keys(&["x", "q"]);
    terminal.shows(&["ended with 0"]);
}

#[test]
fn top_restores_the_terminal_on_a_signal() {
    if Skip::unless(tools::tmux()).is_none() {
        return;
    }
    let place = Place::new();
    let terminal = Terminal::start("signal", &line(&place));
    terminal.shows(&["no elections yet"]);
    let shell = terminal.tmux(&["display-message", "-p", "#{pane_pid}"]);
    let shell = String::from_utf8_lossy(&shell.stdout).trim().to_owned();
    let children = format!("/proc/{shell}/task/{shell}/children");
    let child = std::fs::read_to_string(children).unwrap();
    let killed = Command::new("kill").arg(child.trim()).status().unwrap();
    assert!(killed.success());
    let screen = terminal.shows(&["ended with 0", " echo"]);
    assert!(!screen.contains("no elections yet"), "{screen}");
}

#[test]
fn top_needs_a_terminal() {
    let place = Place::new();
    let output = place.tenure(&["top"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("tenure status -w"));
}

/// Output to a pipe has no colours; see `status_shows_the_holder_of_each_election`.
#[test]
fn top_and_status_have_colours_on_a_terminal() {
    if Skip::unless(tools::tmux()).is_none() {
        return;
    }
    let place = Place::new();
    let web = place.election("web");
    let _leader = place.leader(&web, "alice");
    let command = place.command();
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    let words: Vec<String> = words.map(|w| w.to_string_lossy().into_owned()).collect();
    let status = words.join(" ");
    let terminal = Terminal::start("colours", &format!("{status} status; echo en\"\"ded"));
    terminal.shows(&["alice", "held", "ended"]);
    let coloured = terminal.tmux(&["capture-pane", "-p", "-e"]);
    let coloured = String::from_utf8_lossy(&coloured.stdout).into_owned();
    assert!(coloured.contains("\x1b[32mheld"), "{coloured:?}");
    // The user can disable colours.
    terminal.types(&format!(
        "clear; NO_COLOR=1 {status} status; echo pl\"\"ain"
    ));
    terminal.shows(&["alice", "held", "plain"]);
    let plain = terminal.tmux(&["capture-pane", "-p", "-e"]);
    let plain = String::from_utf8_lossy(&plain.stdout).into_owned();
    assert!(!plain.contains("\x1b[32m"), "{plain:?}");
}
