//! The simulator's command: `cargo xtask sim` runs it.

use std::process::ExitCode;

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    tenure_sim::cli::main(&args)
}
