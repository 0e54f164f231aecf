//! Runs other programs, and prints their command lines first.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

/// A program to run from the root of the workspace.
pub(crate) struct Run {
    command: Command,
    shown: String,
}

impl Run {
    /// Returns the cargo that runs this program.
    pub(crate) fn cargo<A: AsRef<OsStr>>(args: impl IntoIterator<Item = A>) -> Self {
        let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        let mut run = Self::new(cargo, args);
        run.shown = run.shown.replacen(&run.program(), "cargo", 1);
        run
    }

    /// Returns any program.
    pub(crate) fn new<A: AsRef<OsStr>>(
        program: impl AsRef<OsStr>,
        args: impl IntoIterator<Item = A>,
    ) -> Self {
        let mut command = Command::new(program);
        command.args(args).current_dir(root()).stdin(Stdio::null());
        let shown = show(&command);
        Self { command, shown }
    }

    pub(crate) fn args(mut self, args: &[String]) -> Self {
        self.command.args(args);
        self.shown = args.iter().fold(self.shown, |shown, arg| shown + " " + arg);
        self
    }

    /// Restores the handling of ^C as in a terminal. A script's background processes ignore ^C, and so do their
    /// descendants, so a test that interrupts a program would wait forever.
    pub(crate) fn interruptible(mut self) -> Self {
        let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
        if ignores_interrupts(&status) {
            let mut command = Command::new("env");
            command
                .arg("--default-signal=INT,QUIT")
                .arg(self.command.get_program())
                .args(self.command.get_args())
                .current_dir(root())
                .stdin(Stdio::null());
            self.command = command;
        }
        self
    }

    /// Sets another working directory than the root of the workspace.
    pub(crate) fn inside(mut self, folder: &Path) -> Self {
        self.command.current_dir(folder);
        self
    }

    pub(crate) fn env(mut self, key: &str, value: impl AsRef<OsStr>) -> Self {
        self.command.env(key, value);
        self
    }

    /// Runs it with its output shown; an error names the command.
    pub(crate) fn go(mut self) -> Result<()> {
        eprintln!("$ {}", self.shown);
        let status = self
            .command
            .status()
            .with_context(|| format!("cannot run {}", self.shown))?;
        if !status.success() {
            bail!("{} ended with {status}", self.shown);
        }
        Ok(())
    }

    /// Runs it silently and returns its output.
    pub(crate) fn output(mut self) -> Result<String> {
        let output = self
            .command
            .stderr(Stdio::inherit())
            .output()
            .with_context(|| format!("cannot run {}", self.shown))?;
        if !output.status.success() {
            bail!("{} ended with {}", self.shown, output.status);
        }
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    fn program(&self) -> String {
        self.command.get_program().to_string_lossy().into_owned()
    }
}

/// Returns the root of the workspace.
pub(crate) fn root() -> PathBuf {
    let own = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    own.parent()
        .expect("xtask is a folder of the workspace")
        .to_path_buf()
}

/// Returns cargo's target folder.
pub(crate) fn target() -> PathBuf {
    let given = std::env::var_os("CARGO_TARGET_DIR").map(PathBuf::from);
    given.unwrap_or_else(|| root().join("target"))
}

/// Returns whether a program is on the path.
pub(crate) fn on_path(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|folder| folder.join(program).is_file())
}

/// Returns whether the process of this `/proc/PID/status` ignores SIGINT.
fn ignores_interrupts(status: &str) -> bool {
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let ignored = ignored.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    ignored.is_some_and(|mask| mask & 0b10 != 0)
}

fn show(command: &Command) -> String {
    let mut shown = command.get_program().to_string_lossy().into_owned();
    for arg in command.get_args() {
        shown = shown + " " + &arg.to_string_lossy();
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::ignores_interrupts;

    #[test]
    fn process_started_in_the_background_ignores_interrupts() {
        assert!(ignores_interrupts(
            "SigBlk:\t0\nSigIgn:\t0000000000001006\n"
        ));
        assert!(!ignores_interrupts(
            "SigBlk:\t2\nSigIgn:\t0000000000001000\n"
        ));
        assert!(!ignores_interrupts(""));
    }
}
