//! The benchmarks of `cargo xtask bench`: one file each. Ours and the real peers in one run on one machine,
//! so that the ratios mean something even where the machine is noisy.

use anyhow::Result;

pub mod apiserver;
pub mod cli;
pub mod elections;
pub mod manager;

/// A benchmark: a name on the command line, and what measures and prints a table.
#[derive(Clone, Copy, Debug)]
pub struct Bench {
    /// As given on the command line.
    pub name: &'static str,
    /// Measures, with the real peers if asked to, and gives the Markdown of its section.
    pub run: fn(real: bool) -> Result<String>,
}

/// In the order in which they run.
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
        name: "manager",
        run: manager::bench,
    },
];
