//! An empty home directory, so that `tenure` has its own local server there.

use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use tempfile::TempDir;

use crate::tools;

/// Writes a file that only its owner can read, as `tenure` requires for secrets.
///
/// # Panics
///
/// Panics if the file cannot be written.
pub fn write_secret(path: impl AsRef<Path>, text: impl AsRef<[u8]>) {
    let mut options = std::fs::OpenOptions::new();
    options.write(true).create(true).truncate(true).mode(0o600);
    let file = options.open(path);
    let written = file.and_then(|mut file| file.write_all(text.as_ref()));
    written.expect("a file for a test");
}

/// A home. Its local server ends with it.
#[derive(Debug)]
pub struct Home {
    folder: TempDir,
    tenure: PathBuf,
}

impl Home {
    /// Creates an empty home.
    ///
    /// # Panics
    ///
    /// Panics if the command is not built or the folder cannot be created.
    pub fn new() -> Self {
        let tenure = tools::tenure().expect("cargo build --package tenure-cli comes first");
        Self {
            folder: tempfile::tempdir().expect("a folder for a test"),
            tenure,
        }
    }

    /// `tenure` without arguments and with an environment that names no cluster. It may start the local server of this
    /// home without a terminal.
    pub fn command(&self) -> Command {
        let mut command = Command::new(&self.tenure);
        command
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap_or_default());
        command
            .env("HOME", self.folder.path())
            .env("TENURE_ALLOW_LOCAL", "1")
            .current_dir(self.folder.path());
        command.stdin(Stdio::null());
        command
    }

    /// Runs `tenure ARGS` to its end.
    ///
    /// # Panics
    ///
    /// Panics if it cannot be started.
    pub fn tenure(&self, args: &[&str]) -> Output {
        self.command().args(args).output().expect("it was built")
    }

    /// Returns the path of a file in the home.
    pub fn path(&self, name: impl AsRef<Path>) -> PathBuf {
        self.folder.path().join(name)
    }
}

impl Default for Home {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for Home {
    fn drop(&mut self) {
        let _ = self.tenure(&["server", "stop"]);
    }
}
