//! `cargo xtask`: every check and tool of the project behind one command, so that a checkout needs only cargo. `verify`
//! only reads, `fix` rewrites.
#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    clippy::disallowed_methods,
    reason = "a tool for people: it prints, and it measures how long things take"
)]

mod command;
mod elf;
mod fuzz;
mod image;
mod originals;
mod setup;
mod test;
mod tidy;
mod verify;

use std::process::ExitCode;

use command::Run;

const HELP: &str = "\
cargo xtask COMMAND

  verify              everything that can be checked without running: format, clippy, docs, tidy
  fix                 format and apply clippy's suggestions
  test [TIER...]      run every tier of tests, or the named ones; installs what they need
  test real --kubeconfig FILE
                      the same on a cluster that is there already
  test --list         the tiers and what each needs
  fuzz [TARGET...] [--seconds N]
                      the parsers under libFuzzer, 60 seconds each
  sim [--seconds N] [--seed S]
                      simulate elections under faults, catch mutants, check the model
  mutants [TARGET...] [--file TEXT] [--sample N] [--jobs N] [--quick]
                      the mutation score: which changes of the code no test notices
  real up|down|status the real kube-apiserver and etcd on loopback, built from source
  soak [--hours N] [--seed S] [--server real|embedded]
                      fleets of real processes through random faults, for hours
  bench [NAME...]     benchmarks against the real peers, as ratios
  image [NAME...]     the static binaries of deploy/Dockerfile, and that they need nothing at run time
  tidy                crate arrows, file sizes, links, the tests that docs/originals.md names";

fn main() -> ExitCode {
    let mut args = std::env::args().skip(1);
    let command = args.next().unwrap_or_default();
    let rest: Vec<String> = args.collect();
    let result = match command.as_str() {
        "verify" => verify::verify(),
        "fix" => verify::fix(),
        "test" => test::run(&rest),
        "fuzz" => fuzz::run(&rest),
        "tidy" => tidy::run(),
        "image" => image::run(&rest),
        "sim" => Run::cargo(["run", "--quiet", "--package", "tenure-sim", "--"])
            .args(&rest)
            .go(),
        "mutants" => mutants(&rest),
        "real" => Run::cargo([
            "run",
            "--quiet",
            "--package",
            "tenure-tests",
            "--bin",
            "real",
            "--",
        ])
        .args(&rest)
        .go(),
        "bench" => optimised("bench", &rest),
        "soak" => optimised("soak", &rest),
        "" | "help" | "-h" | "--help" => {
            println!("{HELP}");
            return ExitCode::SUCCESS;
        }
        other => {
            eprintln!("xtask: no command {other:?}\n\n{HELP}");
            return ExitCode::from(2);
        }
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("xtask {command}: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Computes the mutation score in a separate program, so that this one builds fast.
fn mutants(rest: &[String]) -> anyhow::Result<()> {
    let program = ["run", "--quiet", "--package", "tenure-mutants", "--"];
    Run::cargo(program).args(rest).go()
}

/// Runs a program of the tests. The programs that it starts are built as they ship.
fn optimised(name: &str, rest: &[String]) -> anyhow::Result<()> {
    let built = ["--package", "tenure-cli", "--package", "tenure-tests"];
    Run::cargo(["build", "--release"].iter().chain(&built)).go()?;
    // Not `cargo run`: it selects one package, which changes the features of shared crates and builds them again.
    let program = command::target().join("release").join(name);
    Run::new(program, rest).go()
}
