//! Runs the commands of a page of the book as a reader does: in shells, in an empty home, with only the given programs and
//! those of the system on the PATH.
//!
//! The info string of a code block says what the reader does with it:
//!
//! | block | the reader |
//! |---|---|
//! | `sh,run` | runs it in the first terminal and waits for its end, or for the output that follows |
//! | `sh,run,terminal=2` | the same in another terminal |
//! | `sh,run,fails` | the same; its last command exits with another code than 0 |
//! | `text,output` | sees these lines in this order, among others, in the terminal of the last commands |
//! | `text,output,terminal=2` | the same in another terminal, whose commands still run |
//! | `python,file=NAME` | saves it as NAME in the folder of the first terminal |
//! | `<!-- interrupt terminal=2 -->`, a line of its own | presses Ctrl-C in that terminal |
//!
//! Numbers and spaces may differ from those on the page, and `...` is any text.

use std::fmt::Write as _;
use std::fs;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process_group};

use crate::clock::poll;

/// Maximum time until a command ends or prints what the page shows.
const LIMIT: Duration = Duration::from_secs(60);

/// A terminal: runs the scripts `N.sh` of its folder `$1` in order. It ends with all its processes when its standard input
/// is closed, because the test has ended.
const SHELL: &str = r#"
exec 3<&0 </dev/null
( read -r _ <&3; kill -s KILL 0 ) &
disown
trap : INT
n=0
while :; do
  until [ -e "$1/$n.sh" ]; do sleep 0.05; done
  . "$1/$n.sh" >"$1/$n.out" 2>&1
  echo "$?" >"$1/$n.code.new" && mv "$1/$n.code.new" "$1/$n.code"
  n=$((n + 1))
done
"#;

/// What the reader of a page does next.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Action {
    Run {
        terminal: usize,
        fails: bool,
    },
    /// Without a terminal, that of the last commands.
    See {
        terminal: Option<usize>,
    },
    Save {
        name: String,
    },
    Interrupt {
        terminal: usize,
    },
}

/// An action and the text of its code block.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Step {
    line: usize,
    action: Action,
    text: String,
}

/// Runs all commands of a page of `docs/book`. `programs` are the programs on the PATH, with their names.
///
/// # Panics
///
/// Panics with the line of the page if a command does something else than the page says.
pub fn run(page: &str, programs: &[(&str, PathBuf)]) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../docs/book")
        .join(page);
    let text = fs::read_to_string(&path).expect("the page");
    let steps = parse(&text);
    let has_commands = |step: &Step| matches!(step.action, Action::Run { .. });
    assert!(steps.iter().any(has_commands), "{page} has no commands");
    let mut desk = Desk::new(programs);
    for (number, step) in steps.iter().enumerate() {
        let sees = steps[number + 1..]
            .iter()
            .take_while(|step| step.action == Action::See { terminal: None })
            .count();
        let place = format!("{page}:{}", step.line);
        desk.perform(&place, step, sees > 0);
    }
}

/// Returns the steps of a page.
fn parse(page: &str) -> Vec<Step> {
    let mut steps = Vec::new();
    let mut lines = page.lines().enumerate();
    while let Some((number, line)) = lines.next() {
        let action = if let Some(info) = line.strip_prefix("```") {
            action(info)
        } else {
            let order = line.strip_prefix("<!-- interrupt ");
            let order = order.and_then(|rest| rest.strip_suffix(" -->"));
            order.map(|flags| Action::Interrupt {
                terminal: terminal(flags).unwrap_or(1),
            })
        };
        let mut text = String::new();
        if line.starts_with("```") {
            for (_, line) in lines.by_ref().take_while(|(_, line)| *line != "```") {
                // Writing to a string cannot fail.
                let _ = writeln!(text, "{line}");
            }
        }
        if let Some(action) = action {
            steps.push(Step {
                line: number + 1,
                action,
                text,
            });
        }
    }
    steps
}

fn action(info: &str) -> Option<Action> {
    let mut flags = info.split(',').skip(1);
    if let Some(name) = flags.clone().find_map(|flag| flag.strip_prefix("file=")) {
        let name = name.to_owned();
        return Some(Action::Save { name });
    }
    match flags.next()? {
        "run" => Some(Action::Run {
            terminal: terminal(info).unwrap_or(1),
            fails: flags.any(|flag| flag == "fails"),
        }),
        "output" => Some(Action::See {
            terminal: terminal(info),
        }),
        _ => None,
    }
}

fn terminal(flags: &str) -> Option<usize> {
    let number = flags
        .split(',')
        .find_map(|flag| flag.strip_prefix("terminal="));
    number.map(|number| number.parse().expect("a number of a terminal"))
}

/// The reader's machine.
struct Desk {
    terminals: Vec<Terminal>,
    path: String,
    tenure: Option<PathBuf>,
    /// The terminal of the last commands.
    last: usize,
    folder: tempfile::TempDir,
}

struct Terminal {
    shell: Child,
    folder: PathBuf,
    /// Number of scripts so far.
    scripts: usize,
    /// Whether the last script fails.
    fails: bool,
}

impl Desk {
    fn new(programs: &[(&str, PathBuf)]) -> Self {
        let folder = tempfile::tempdir().expect("a folder for a test");
        for name in ["bin", "home", "tmp"] {
            fs::create_dir(folder.path().join(name)).expect("a folder for a test");
        }
        let bin = folder.path().join("bin");
        let mut tenure = None;
        for (name, program) in programs {
            std::os::unix::fs::symlink(program, bin.join(name)).expect("a link");
            if *name == "tenure" {
                tenure = Some(program.clone());
            }
        }
        Self {
            terminals: Vec::new(),
            path: format!("{}:/usr/local/bin:/usr/bin:/bin", bin.display()),
            tenure,
            last: 1,
            folder,
        }
    }

    fn home(&self) -> PathBuf {
        self.folder.path().join("home")
    }

    /// A program in the reader's environment.
    fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = Command::new(program);
        command
            .env_clear()
            .env("PATH", &self.path)
            .env("HOME", self.home())
            .env("TMPDIR", self.folder.path().join("tmp"))
            .env("LANG", "C.UTF-8")
            .current_dir(self.home());
        command
    }

    /// Performs a step. `place` is its place on the page, and `sees` is whether the page shows output of it.
    fn perform(&mut self, place: &str, step: &Step, sees: bool) {
        match &step.action {
            Action::Save { name } => {
                let file = self.home().join(name);
                let folder = file.parent().expect("a file in a folder");
                fs::create_dir_all(folder).expect("a folder for a test");
                fs::write(&file, &step.text).expect("a file for a test");
            }
            Action::Run { terminal, fails } => {
                self.last = *terminal;
                self.enter(*terminal, &step.text, *fails);
                if !sees {
                    self.expect_end(place);
                }
            }
            Action::See { terminal } => {
                let terminal = terminal.unwrap_or(self.last);
                self.expect_output(place, terminal, &step.text);
            }
            Action::Interrupt { terminal } => {
                let terminal = &self.terminals[*terminal - 1];
                terminal.signal(Signal::INT);
                let ended = poll(LIMIT, || terminal.code());
                let said = terminal.output();
                assert!(ended.is_some(), "{place}: runs after Ctrl-C:\n{said}");
            }
        }
    }

    /// Types commands into a terminal.
    fn enter(&mut self, number: usize, text: &str, fails: bool) {
        while self.terminals.len() < number {
            let folder = self
                .folder
                .path()
                .join(format!("terminal-{}", self.terminals.len()));
            fs::create_dir(&folder).expect("a folder for a test");
            // The test itself may have been started with Ctrl-C ignored.
            let mut command = self.command("env");
            command
                .args(["--default-signal=INT,QUIT", "bash", "-c", SHELL, "bash"])
                .arg(&folder)
                .stdin(Stdio::piped())
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .process_group(0);
            let shell = command.spawn().expect("bash");
            self.terminals.push(Terminal {
                shell,
                folder,
                scripts: 0,
                fails: false,
            });
        }
        let terminal = &mut self.terminals[number - 1];
        let script = terminal.scripts;
        terminal.scripts += 1;
        terminal.fails = fails;
        let fresh = terminal.file(script, "new");
        fs::write(&fresh, text).expect("a file for a test");
        fs::rename(&fresh, terminal.file(script, "sh")).expect("a file for a test");
    }

    /// Waits until the last commands have ended.
    fn expect_end(&self, place: &str) {
        let terminal = &self.terminals[self.last - 1];
        let ended = poll(LIMIT, || terminal.code());
        let said = terminal.output();
        assert!(ended.is_some(), "{place}: runs after {LIMIT:?}:\n{said}");
        terminal.check_code(place);
    }

    /// Waits until the last commands of a terminal have printed these lines.
    fn expect_output(&self, place: &str, number: usize, expected: &str) {
        let terminal = &self.terminals[number - 1];
        let seen = poll(LIMIT, || {
            let ended = terminal.code().is_some();
            let missing = missing(expected, &terminal.output());
            (ended || missing.is_none()).then_some(missing)
        });
        let said = terminal.output();
        if let Some(line) = seen.unwrap_or_else(|| missing(expected, &said)) {
            panic!("{place}: no line\n  {line}\nin the output of terminal {number}:\n{said}");
        }
        terminal.check_code(place);
    }
}

impl Terminal {
    fn file(&self, script: usize, kind: &str) -> PathBuf {
        self.folder.join(format!("{script}.{kind}"))
    }

    /// Returns the output of the last commands.
    fn output(&self) -> String {
        let bytes = fs::read(self.file(self.scripts - 1, "out")).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// Sends a signal to the shell and its commands.
    fn signal(&self, signal: Signal) {
        let group = i32::try_from(self.shell.id()).ok().and_then(Pid::from_raw);
        if let Some(group) = group {
            // The shell was not waited for, so its id belongs to its group.
            _ = kill_process_group(group, signal);
        }
    }

    /// Returns the exit code of the last commands, if they have ended.
    fn code(&self) -> Option<i32> {
        let text = fs::read_to_string(self.file(self.scripts - 1, "code")).ok()?;
        text.trim().parse().ok()
    }

    /// Checks the exit code of the last commands, if they have ended.
    fn check_code(&self, place: &str) {
        if let Some(code) = self.code() {
            let said = self.output();
            assert_eq!(code != 0, self.fails, "{place}: exits with {code}:\n{said}");
        }
    }
}

impl Drop for Desk {
    fn drop(&mut self) {
        for terminal in &mut self.terminals {
            terminal.signal(Signal::KILL);
            _ = terminal.shell.wait();
        }
        // The local server is in its own session.
        if let Some(tenure) = &self.tenure {
            _ = self.command(tenure).args(["server", "stop"]).output();
        }
    }
}

/// Returns the first expected line that the output does not have in this order.
fn missing<'a>(expected: &'a str, output: &str) -> Option<&'a str> {
    let mut lines = output.lines().map(normal);
    expected
        .lines()
        .filter(|line| !line.trim().is_empty() && line.trim() != "...")
        .find(|line| {
            let pattern = normal(line);
            !lines.any(|line| matches(&pattern, &line))
        })
}

/// Returns a line with every number as `0` and every run of spaces as one.
fn normal(line: &str) -> String {
    let mut text = String::new();
    let mut last = ' ';
    for c in line.trim().chars() {
        let c = if c.is_ascii_digit() { '0' } else { c };
        let c = if c == '\t' { ' ' } else { c };
        if !(c == last && (c == '0' || c == ' ')) {
            text.push(c);
        }
        last = c;
    }
    text
}

/// Whether a line has the text of a pattern, in which `...` is any text.
fn matches(pattern: &str, line: &str) -> bool {
    let Some((start, rest)) = pattern.split_once("...") else {
        return pattern == line;
    };
    let Some(mut line) = line.strip_prefix(start) else {
        return false;
    };
    let mut parts = rest.split("...").peekable();
    while let Some(part) = parts.next() {
        if parts.peek().is_none() {
            return line.ends_with(part);
        }
        match line.split_once(part) {
            Some((_, after)) => line = after,
            None => return false,
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: &str = "# Page\n\n```sh,run\ntrue\n```\n\n```sh\nnot run\n```\n```sh,run,terminal=2,fails\nfalse\n```\n\
                        ```text,output,terminal=2\na\n\nb\n```\n```python,file=a/b.py\nx\n```\n<!-- interrupt terminal=2 -->\n";

    #[test]
    fn blocks_are_steps_of_the_reader() {
        let steps = parse(PAGE);
        let actions: Vec<Action> = steps.iter().map(|step| step.action.clone()).collect();
        let run = |terminal, fails| Action::Run { terminal, fails };
        let save = Action::Save {
            name: "a/b.py".to_owned(),
        };
        let expected = [
            run(1, false),
            run(2, true),
            Action::See { terminal: Some(2) },
            save,
            Action::Interrupt { terminal: 2 },
        ];
        assert_eq!(actions, expected);
        assert_eq!((steps[0].line, steps[0].text.as_str()), (3, "true\n"));
        assert_eq!(steps[2].text, "a\n\nb\n");
    }

    #[test]
    fn output_is_compared_without_numbers_and_spaces() {
        let output = "tenure: leading default/hello,  fencing token 4711\nNAME    AGE\nweb\t12s\n";
        assert_eq!(
            missing("tenure: leading default/hello, fencing token 1\n", output),
            None
        );
        assert_eq!(missing("NAME AGE\n...\nweb 3s\n", output), None);
        assert_eq!(missing("web 3s\nNAME AGE", output), Some("NAME AGE"));
        assert_eq!(missing("tenure: ... token 1", output), None);
        assert_eq!(
            missing("tenure: ... tokens", output),
            Some("tenure: ... tokens")
        );
    }
}
