//! Clocks that jump for one process: a preloaded library in C (`tests/shim/clock.c`), and the file that controls it.

use std::fs::{self, File};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::process::Command;
use std::sync::{Mutex, PoisonError};

use crate::Skip;
use crate::real::peers_dir;

const SOURCE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/shim/clock.c");

/// The clocks of one process.
#[derive(Debug)]
pub struct ClockShim {
    library: PathBuf,
    file: tempfile::NamedTempFile,
    added: Mutex<[i64; 2]>,
}

impl ClockShim {
    /// Whether it is supported: only for Linux on x86-64.
    pub const IS_FOR_THIS_PLATFORM: bool = cfg!(all(target_os = "linux", target_arch = "x86_64"));

    /// Creates clocks that show the true time. Compiles the library if necessary.
    ///
    /// # Errors
    ///
    /// Fails if there is no C compiler, or if this is not Linux on x86-64.
    pub fn new() -> Result<Self, Skip> {
        let failed = |error: &dyn std::fmt::Display| Skip(format!("no clock shim: {error}"));
        if !Self::IS_FOR_THIS_PLATFORM {
            return Err(failed(&"it is for Linux on x86-64"));
        }
        let library = compiled()?;
        let file = tempfile::NamedTempFile::new().map_err(|error| failed(&error))?;
        file.as_file().set_len(16).map_err(|error| failed(&error))?;
        Ok(Self {
            library,
            file,
            added: Mutex::default(),
        })
    }

    /// Returns the environment in which a program uses these clocks.
    pub fn environment(&self) -> Vec<(&'static str, PathBuf)> {
        vec![
            ("LD_PRELOAD", self.library.clone()),
            ("CLOCK_SHIM", self.file.path().to_owned()),
        ]
    }

    /// Moves the wall clock, forward or back.
    pub fn jump_wall(&self, millis: i64) {
        self.jump(0, millis);
    }

    /// Moves the clock that includes suspend, forward only.
    pub fn jump_boot(&self, millis: u32) {
        self.jump(1, millis.into());
    }

    fn jump(&self, index: usize, millis: i64) {
        let mut added = self.added.lock().unwrap_or_else(PoisonError::into_inner);
        added[index] += millis * 1_000_000;
        let place = if index == 0 { 0 } else { 8 };
        let written = File::write_all_at(self.file.as_file(), &added[index].to_ne_bytes(), place);
        written.expect("a file that this process has open can be written");
    }
}

/// Returns the library, compiled once for each version of its source.
fn compiled() -> Result<PathBuf, Skip> {
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let _guard = ONE_AT_A_TIME.lock();
    let failed = |what: &dyn std::fmt::Display| Skip(format!("no clock shim: {what}"));
    let source = fs::read(SOURCE).map_err(|error| failed(&error))?;
    let mut hasher = DefaultHasher::new();
    source.hash(&mut hasher);
    let library = peers_dir().join(format!("clock-shim-{:016x}.so", hasher.finish()));
    if !library.exists() {
        fs::create_dir_all(peers_dir()).map_err(|error| failed(&error))?;
        let fresh = library.with_extension(format!("{}.new", std::process::id()));
        let status = Command::new("cc")
            .args(["-shared", "-fPIC", "-O1", "-Wall", "-Werror", "-o"])
            .arg(&fresh)
            .arg(SOURCE)
            .status()
            .map_err(|error| failed(&format!("cc: {error}")))?;
        if !status.success() {
            return Err(failed(&format!("cc ended with {status}")));
        }
        fs::rename(&fresh, &library).map_err(|error| failed(&error))?;
    }
    Ok(library)
}
