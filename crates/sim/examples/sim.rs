//! The simulator without xtask: `cargo run -p tenure-sim --example sim -- --seconds 10`.

use std::process::ExitCode;

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    tenure_sim::cli::main(&args)
}
