//! `cargo xtask test`: every tier of tests, and at the end what ran.

use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, Result, bail};

use crate::command::Run;
use crate::fuzz;
use crate::setup::{self, Missing};

/// A group of tests with the same needs.
struct Tier {
    name: &'static str,
    about: &'static str,
    prepare: fn() -> Result<(), Missing>,
    /// With the kubeconfig of a cluster that is to be used instead of one of our own, if any.
    run: fn(Option<&Path>) -> Result<()>,
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
        run: |_| {
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
        run: |_| {
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
        name: "fuzz",
        about: "the parsers of the API server under libFuzzer, some seconds each",
        prepare: || setup::debian("c++", "g++"),
        run: |_| fuzz::briefly(),
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
        run: |_| process_tests(&["--skip", "real_"], None),
    },
    Tier {
        name: "real",
        about: "us and client-go against the real kube-apiserver and etcd, built from source",
        prepare: || setup::toolchain("go"),
        run: |cluster| {
            process_tests(&["real_"], cluster)?;
            if cluster.is_some() {
                return Ok(());
            }
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
    let (cluster, args) = existing(args)?;
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
            Ok(()) => match (tier.run)(cluster.as_deref()) {
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
fn process_tests(filter: &[&str], cluster: Option<&Path>) -> Result<()> {
    Run::cargo(["build", "--package", "tenure-cli"]).go()?;
    let tests = Run::cargo(["test", "--package", "tenure-tests", "--"])
        .args(&filter.iter().map(ToString::to_string).collect::<Vec<_>>());
    match cluster {
        Some(kubeconfig) => tests.env("TENURE_KUBECONFIG", kubeconfig).go(),
        None => tests.go(),
    }
}

/// Takes `--kubeconfig FILE` out of the arguments.
fn existing(args: &[String]) -> Result<(Option<PathBuf>, Vec<String>)> {
    let mut rest = Vec::new();
    let mut file = None;
    let mut args = args.iter();
    while let Some(arg) = args.next() {
        let given = match arg.split_once('=') {
            Some(("--kubeconfig", given)) => given,
            _ if arg == "--kubeconfig" => args.next().context("--kubeconfig names no file")?,
            _ => {
                rest.push(arg.clone());
                continue;
            }
        };
        let path = std::fs::canonicalize(given).with_context(|| format!("--kubeconfig {given}"))?;
        file = Some(path);
    }
    Ok((file, rest))
}

fn nothing() -> Result<(), Missing> {
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kubeconfig_is_told_from_the_tiers() {
        let words = |text: &str| text.split(' ').map(str::to_owned).collect::<Vec<_>>();
        let here = std::fs::canonicalize("Cargo.toml").unwrap();
        for text in [
            "real --kubeconfig Cargo.toml",
            "--kubeconfig=Cargo.toml real",
        ] {
            let (file, rest) = existing(&words(text)).unwrap();
            assert_eq!((file, rest), (Some(here.clone()), words("real")));
        }
        assert_eq!(existing(&words("real")).unwrap(), (None, words("real")));
        existing(&words("--kubeconfig")).unwrap_err();
        existing(&words("--kubeconfig nowhere")).unwrap_err();
    }
}
