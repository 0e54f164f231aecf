//! The benchmarks of `cargo xtask bench`, one file each. Our programs and the real peers run in one run on one machine,
//! so that the ratios are meaningful even on a noisy machine.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, bail};

pub mod apiserver;
pub mod cli;
pub mod elections;
pub mod elections_table;
pub mod etcd;
pub mod fail_over;
pub mod manager;
pub mod provisioner;
mod provisioner_real;
pub mod storage;
pub mod svg;

/// A benchmark: a name for the command line, and a function that measures and returns a table.
#[derive(Clone, Copy, Debug)]
pub struct Bench {
    /// Name on the command line.
    pub name: &'static str,
    /// Measures, with the real peers if requested, and returns the Markdown of its section.
    pub run: fn(real: bool) -> Result<String>,
}

/// In the order of execution.
pub const ALL: &[Bench] = &[
    Bench {
        name: "cli",
        run: cli::bench,
    },
    Bench {
        name: "apiserver",
        run: apiserver::bench,
    },
    Bench {
        name: "elections",
        run: elections::bench,
    },
    Bench {
        name: "fail-over",
        run: fail_over::bench,
    },
    Bench {
        name: "etcd",
        run: etcd::bench,
    },
    Bench {
        name: "manager",
        run: manager::bench,
    },
    Bench {
        name: "provisioner",
        run: provisioner::bench,
    },
    Bench {
        name: "storage",
        run: storage::bench,
    },
];

/// Whether to write the documentation in addition to the terminal output.
static WRITING: AtomicBool = AtomicBool::new(false);

/// Makes later benchmarks also write their plots.
pub fn write_documentation() {
    WRITING.store(true, Ordering::Relaxed);
}

/// Returns the folder for plots, if they are requested.
fn images() -> Option<PathBuf> {
    WRITING
        .load(Ordering::Relaxed)
        .then(|| docs().join("images"))
}

/// Replaces a section of docs/book/explanation/benchmarks.md between its marks: `<!-- bench NAME -->` and
/// `<!-- end -->`. Does nothing if there are no such marks.
///
/// # Errors
///
/// Fails if the file cannot be read or written.
pub fn write_section(name: &str, section: &str) -> Result<()> {
    let path = docs().join("explanation/benchmarks.md");
    let text = std::fs::read_to_string(&path)?;
    if let Some(text) = replaced(&text, name, section) {
        std::fs::write(&path, text)?;
    }
    Ok(())
}

fn replaced(text: &str, name: &str, section: &str) -> Option<String> {
    let (mark, end) = (format!("<!-- bench {name} -->\n"), "<!-- end -->");
    let (before, rest) = text.split_once(&mark)?;
    let (_, after) = rest.split_once(end)?;
    Some(format!(
        "{before}{mark}{}\n{end}{after}",
        section.trim_end()
    ))
}

/// Returns the shipped build of the command if there is one, otherwise this build, and its folder: `image`, `dist` or
/// `release`.
fn shipped() -> Result<(PathBuf, &'static str)> {
    let here = std::env::current_exe()?;
    let builds = here.ancestors().nth(2).context("no folder of builds")?;
    for build in ["image", "dist", "release"] {
        let program = builds.join(build).join("tenure");
        if program.is_file() {
            return Ok((program, build));
        }
    }
    bail!("tenure is not built: `cargo xtask image`")
}

fn docs() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.parent().unwrap_or(here).join("docs/book")
}

/// Returns the nearest-rank percentile: the smallest of the times that at least this percentage of all does not exceed.
fn percentile(times: &[Duration], percent: usize) -> Duration {
    let mut sorted = times.to_vec();
    sorted.sort_unstable();
    let place = (sorted.len() * percent).div_ceil(100).max(1) - 1;
    sorted.get(place).copied().unwrap_or_default()
}

/// Describes the machine in one line.
fn machine() -> String {
    use crate::real::Peer;
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let cpu = read("/proc/cpuinfo");
    let model = cpu
        .lines()
        .find_map(|line| line.strip_prefix("model name")?.split_once(": "));
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    let memory = read("/proc/meminfo");
    let kilobytes = memory
        .split_whitespace()
        .nth(1)
        .and_then(|number| number.parse::<u64>().ok());
    let version = |peer: Peer| peer.version();
    format!(
        "{cores} cores ({}), {} GB of memory; kube-apiserver {}, etcd {}, client-go {}; servers and clients on one machine.",
        model.map_or("unknown", |(_, model)| model.trim()),
        kilobytes.unwrap_or_default() / 1_000_000,
        version(Peer::KubeApiserver),
        version(Peer::Etcd),
        version(Peer::Elector),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentile_of_a_short_list_includes_the_maximum() {
        let times = |count: u64| {
            (1..=count)
                .rev()
                .map(Duration::from_secs)
                .collect::<Vec<_>>()
        };
        let at = |count, percent| percentile(&times(count), percent).as_secs();
        assert_eq!((at(60, 99), at(100, 99), at(200, 99)), (60, 99, 198));
        assert_eq!((at(60, 50), at(1, 50), at(0, 50)), (30, 1, 0));
    }

    #[test]
    fn a_section_is_replaced_between_its_marks() {
        let text = "# B\n<!-- bench a -->\nold\n<!-- end -->\nrest\n";
        let new = replaced(text, "a", "new\n\n").unwrap();
        assert_eq!(new, "# B\n<!-- bench a -->\nnew\n<!-- end -->\nrest\n");
        assert_eq!(replaced(text, "b", "new"), None);
    }
}
