//! `cargo xtask`: one command for every check and tool of the project, so that a checkout needs only cargo. `verify`
//! changes no file, `fix` does.
#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    clippy::disallowed_methods,
    reason = "a command line tool: it prints, and it measures durations"
)]

mod book;
mod command;
mod dist;
mod duplicates;
mod elf;
mod fuzz;
mod image;
mod modules;
mod originals;
mod packages;
mod pages;
mod release;
mod setup;
mod test;
mod tidy;
mod verify;

use std::process::ExitCode;

use command::Run;

const HELP: &str = "\
cargo xtask COMMAND

  verify              run all static checks: format, clippy, docs, tidy
  fix                 format and apply clippy's suggestions
  test [TIER...]      run every tier of tests, or the named ones; install their requirements
  test real --kubeconfig FILE
                      run the tier `real` on an existing cluster
  test --list         list the tiers and their requirements
  fuzz [TARGET...] [--seconds N]
                      fuzz the parsers with libFuzzer [default: 60 seconds each]
  sim [--seconds N] [--seed S]
                      simulate elections under faults, search for seeded bugs, check the model
  mutants [TARGET...] [--file TEXT] [--sample N] [--jobs N] [--quick]
                      measure the mutation score: list changes of the code that no test detects
  real up|down|status run the real kube-apiserver and etcd on loopback, built from source
  soak [--hours N] [--seed S] [--server real|embedded]
                      run fleets of real processes under random faults for hours
  bench [NAME...]     measure Tenure and the real peers, and print the ratios
  image [NAME...]     build the static binaries of deploy/Dockerfile, and check them
  dist [NAME...] [--binary FILE] [--out DIR] [--base-url URL]
                      make the files of a release in target/artifacts: archive, deb, krew, docker, sbom, wheel, npm
  book                build docs/book with mdBook into target/book
  release --dry-run   check versions and the changelog, pack all published crates, compare their interfaces with
                      those of the last tag
  tidy                check dependencies of crates and modules, copied code, file sizes, links, pages of the book,
                      test files without tests, and the tests named in docs/book/explanation/originals.md";

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
        "book" => book::run(),
        "book-links" => book::links(&rest),
        "image" => image::run(&rest).map(drop),
        "dist" => dist::run(&rest),
        "release" => release::run(&rest),
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

/// Runs a program of the test package in the release profile. The programs that it starts are built in the same
/// profile.
fn optimised(name: &str, rest: &[String]) -> anyhow::Result<()> {
    let built = ["--package", "tenure-cli", "--package", "tenure-tests"];
    Run::cargo(["build", "--release"].iter().chain(&built)).go()?;
    // Not `cargo run`: it selects one package, which changes the features of shared crates and builds them again.
    let program = command::target().join("release").join(name);
    Run::new(program, rest).go()
}
