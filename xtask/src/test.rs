//! `cargo xtask test`: every tier of tests, and at the end what ran.

use std::time::Instant;

use anyhow::{Result, bail};

use crate::command::Run;
use crate::setup::{self, Missing};

/// A group of tests with the same needs.
struct Tier {
    name: &'static str,
    about: &'static str,
    prepare: fn() -> Result<(), Missing>,
    run: fn() -> Result<()>,
}

/// How a tier ended.
enum Ended {
    Passed,
    Failed(String),
    Skipped { reason: String, excused: bool },
}

const TIERS: &[Tier] = &[
    Tier {
        name: "unit",
        about: "unit, property, replay and documentation tests of every crate",
        prepare: nothing,
        run: || {
            Run::cargo([
                "test",
                "--workspace",
                "--exclude",
                "tenure-tests",
                "--all-features",
                "--no-fail-fast",
            ])
            .go()
        },
    },
    Tier {
        name: "sim",
        about: "simulated elections under faults, mutants, model check",
        prepare: nothing,
        run: || {
            Run::cargo([
                "run",
                "--quiet",
                "--package",
                "tenure-sim",
                "--",
                "--seeds",
                "30000",
            ])
            .go()
        },
    },
    Tier {
        name: "process",
        about: "real processes and outside clients (kubectl, client-go, Python, Node, Chromium) against us",
        prepare: || {
            setup::unpacked("kubernetes-client", "usr/bin/kubectl")?;
            setup::python(&["kubernetes"])?;
            setup::debian("tmux", "tmux")?;
            setup::debian("chromium", "chromium")?;
            setup::node(&["@kubernetes/client-node@1", "playwright-core@1"])?;
            setup::toolchain("go")
        },
        run: || process_tests(&["--skip", "real_"]),
    },
    Tier {
        name: "real",
        about: "us and client-go against the real kube-apiserver and etcd, built from source",
        prepare: || setup::toolchain("go"),
        run: || {
            process_tests(&["real_"])?;
            // The etcd that the tests above have built.
            let etcd = [
                "test",
                "--package",
                "tenure-apiserver",
                "--features",
                "etcd",
            ];
            Run::cargo(etcd)
                .args(&["--test".to_owned(), "etcd".to_owned()])
                .env("TENURE_ETCD", "require")
                .go()
        },
    },
];

/// Runs the named tiers, or all.
pub(crate) fn run(args: &[String]) -> Result<()> {
    if args.iter().any(|arg| arg == "--list") {
        for tier in TIERS {
            println!("{:<10} {}", tier.name, tier.about);
        }
        return Ok(());
    }
    if let Some(unknown) = args
        .iter()
        .find(|arg| TIERS.iter().all(|tier| tier.name != **arg))
    {
        bail!("no tier {unknown:?}; `cargo xtask test --list` names them");
    }
    let strict = std::env::var_os("CI").is_some_and(|ci| ci == "true");
    let mut report = Vec::new();
    for tier in TIERS
        .iter()
        .filter(|t| args.is_empty() || args.iter().any(|a| a == t.name))
    {
        eprintln!("\n=== {}: {}", tier.name, tier.about);
        let started = Instant::now();
        let ended = match (tier.prepare)() {
            Ok(()) => match (tier.run)() {
                Ok(()) => Ended::Passed,
                Err(error) => Ended::Failed(format!("{error:#}")),
            },
            Err(Missing::Toolchain(reason)) => Ended::Skipped {
                reason,
                excused: true,
            },
            Err(Missing::Package(reason)) => Ended::Skipped {
                reason,
                excused: false,
            },
        };
        report.push((tier.name, started.elapsed().as_secs(), ended));
    }
    summarise(&report, strict)
}

fn summarise(report: &[(&str, u64, Ended)], strict: bool) -> Result<()> {
    println!("\ntier       seconds  result");
    let (mut passed, mut failed, mut skipped) = (0, 0, 0);
    for (name, seconds, ended) in report {
        let text = match ended {
            Ended::Passed => {
                passed += 1;
                "passed".to_owned()
            }
            Ended::Failed(why) => {
                failed += 1;
                format!("FAILED: {why}")
            }
            Ended::Skipped { reason, excused } if *excused || !strict => {
                skipped += 1;
                format!("skipped: {reason}")
            }
            Ended::Skipped { reason, .. } => {
                failed += 1;
                format!("FAILED: may not be skipped in CI: {reason}")
            }
        };
        println!("{name:<10} {seconds:>7}  {text}");
    }
    println!("\ntiers: {passed} passed, {failed} failed, {skipped} skipped");
    if failed > 0 {
        bail!("{failed} of {} tiers failed", report.len());
    }
    Ok(())
}

/// The tests of real processes run the debug build of the command.
fn process_tests(filter: &[&str]) -> Result<()> {
    Run::cargo(["build", "--package", "tenure-cli"]).go()?;
    Run::cargo(["test", "--package", "tenure-tests", "--"])
        .args(&filter.iter().map(ToString::to_string).collect::<Vec<_>>())
        .go()
}

fn nothing() -> Result<(), Missing> {
    Ok(())
}
