//! `tenure completions` and `tenure man`: shell completions and man pages.

use std::io::Write;
use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::Args;
use clap_complete::Shell;

use crate::help;

/// Print a completion script for a shell
#[derive(Args, Debug)]
pub(crate) struct Completions {
    /// Shell to print completions for
    #[arg(value_enum)]
    shell: Shell,
}

/// Write the man pages
#[derive(Args, Debug)]
pub(crate) struct Man {
    /// Write one page per command to this directory
    ///
    /// The directory is created if it does not exist.
    #[arg(long, value_name = "DIR")]
    dir: PathBuf,
}

impl Completions {
    pub(crate) fn run(&self) -> Result<u8> {
        let mut script = Vec::new();
        let mut command = help::command("tenure", false);
        clap_complete::generate(self.shell, &mut command, "tenure", &mut script);
        // A closed pipe (`| head`) is not an error.
        let _ = std::io::stdout().write_all(&script);
        Ok(0)
    }
}

impl Man {
    pub(crate) fn run(&self) -> Result<u8> {
        let place = || format!("cannot write man pages into {}", self.dir.display());
        std::fs::create_dir_all(&self.dir).with_context(place)?;
        clap_mangen::generate_to(help::command("tenure", false), &self.dir).with_context(place)?;
        Ok(0)
    }
}
