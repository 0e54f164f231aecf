//! Runs a program with one change enabled, and ends it with the first test that fails.

use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};

/// Interval at which a running program is checked.
const LOOK: Duration = Duration::from_millis(3);

/// Runs a program as a child of the first process of a new pid namespace, in separate control groups.
///
/// A changed `tenure run` may send a signal to all processes or control groups that it can find. Inside the namespace
/// it finds only its own. All of them end with the first process of the namespace.
const SANDBOX: &str = r#"
for home in /sys/fs/cgroup /sys/fs/cgroup/unified /sys/fs/cgroup/freezer; do
    if [ -f "$home/cgroup.procs" ]; then
        mkdir -p "$home/tenure-mutants" && echo 0 > "$home/tenure-mutants/cgroup.procs"
    fi
done 2> /dev/null
"$@"
exit $?
"#;

/// A program, and how to run it.
pub(crate) struct Trial<'a> {
    pub(crate) program: &'a Path,
    pub(crate) args: &'a [&'a str],
    /// The folder of the package, in which its tests run.
    pub(crate) folder: &'a Path,
    /// Whether other processes of this machine must be protected from the program.
    pub(crate) sandbox: bool,
    /// Time limit. A change that makes the program endless counts as detected.
    pub(crate) limit: Duration,
}

impl Trial<'_> {
    /// Returns whether the program fails, or does not end in time, with one change enabled; 0 is none.
    pub(crate) fn fails(&self, change: u32) -> Result<bool> {
        let mut child = self.start(change)?;
        let (report, failed) = mpsc::channel();
        if let Some(stdout) = child.stdout.take() {
            std::thread::spawn(move || {
                let lines = BufReader::new(stdout).lines().map_while(Result::ok);
                for _ in lines.filter(|line| line.ends_with("... FAILED")) {
                    let _ = report.send(());
                }
            });
        }
        let started = Instant::now();
        loop {
            match failed.recv_timeout(LOOK) {
                Ok(()) => break,
                Err(RecvTimeoutError::Timeout) => {}
                // The program has closed its output, and ends soon.
                Err(RecvTimeoutError::Disconnected) => std::thread::sleep(LOOK),
            }
            if let Some(status) = child.try_wait()? {
                return Ok(!status.success());
            }
            if started.elapsed() > self.limit {
                break;
            }
        }
        child.kill()?;
        child.wait()?;
        Ok(true)
    }

    fn start(&self, change: u32) -> Result<Child> {
        let mut command = if self.sandbox {
            let mut command = Command::new("unshare");
            command
                .args(["--pid", "--fork", "--kill-child", "--mount-proc", "--"])
                .args(["sh", "-c", SANDBOX, "sh"])
                .arg(self.program);
            command
        } else {
            Command::new(self.program)
        };
        command
            .args(self.args)
            .current_dir(self.folder)
            .env("CARGO_MANIFEST_DIR", self.folder)
            .env("TENURE_MUTATION", change.to_string())
            // A tenth of proptest's default, because all cases run for every change.
            .env("PROPTEST_CASES", "25")
            .env("RUST_BACKTRACE", "0")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .with_context(|| format!("cannot run {}", self.program.display()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fails(script: &str, sandbox: bool, limit: Duration) -> bool {
        let trial = Trial {
            program: Path::new("sh"),
            args: &["-c", script],
            folder: Path::new("/"),
            sandbox,
            limit,
        };
        trial.fails(7).unwrap()
    }

    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn change_is_noticed_by_the_exit_code_and_by_the_time() {
        assert!(!fails("test $TENURE_MUTATION = 7", false, LONG));
        assert!(fails("exit 3", false, LONG));
        assert!(fails("sleep 60", false, Duration::from_millis(20)));
    }

    /// Passes without a check if this process may not create namespaces.
    #[test]
    fn program_in_the_sandbox_is_a_child_of_the_first_process_and_sees_its_change() {
        if fails("true", true, LONG) {
            return;
        }
        assert!(!fails("test $PPID = 1", true, LONG));
        let clean = "env -i grep -q TENURE_MUTATION=7 /proc/1/environ";
        assert!(!fails(clean, true, LONG));
        assert!(fails("exit 3", true, LONG));
    }

    #[test]
    fn first_failed_test_ends_the_program() {
        let began = Instant::now();
        assert!(fails(
            "echo 'test a::b ... FAILED'; exec sleep 60",
            false,
            LONG
        ));
        assert!(began.elapsed() < Duration::from_secs(50));
        assert!(!fails("echo 'test a::b ... ok'", false, LONG));
    }
}
