//! `cargo xtask test`: runs every tier of tests, and prints a summary at the end.

use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, Result, bail};

use crate::command::{Run, root, target};
use crate::fuzz;
use crate::setup::{self, Missing};

/// A group of tests with the same requirements.
struct Tier {
    name: &'static str,
    about: &'static str,
    /// Installs its requirements. Returns those that are missing.
    prepare: fn() -> Vec<Missing>,
    /// Whether every test checks its own requirements and reports missing ones.
    in_parts: bool,
    run: fn(Given<'_>) -> Result<()>,
}

/// Parameters of a tier.
#[derive(Clone, Copy)]
struct Given<'a> {
    /// Whether all its requirements are met.
    complete: bool,
    /// The kubeconfig of an existing cluster to use instead of our own.
    cluster: Option<&'a Path>,
    /// Whether to run repeatable tests more often.
    long: bool,
}

/// Result of a tier.
#[derive(Debug, PartialEq, Eq)]
enum Ended {
    /// Passed, without the named requirements.
    Passed(Vec<String>),
    Failed(String),
    Skipped(String),
}

const TIERS: &[Tier] = &[
    Tier {
        name: "unit",
        about: "unit, property, replay and documentation tests of every crate",
        prepare: Vec::new,
        in_parts: false,
        run: |given| {
            let mut tests = Run::cargo([
                "test",
                "--workspace",
                "--exclude",
                "tenure-tests",
                "--all-features",
                "--no-fail-fast",
            ]);
            if given.long {
                tests = tests.env("TENURE_RBAC_SEQUENCES", "100000");
            }
            tests.go()
        },
    },
    Tier {
        name: "races",
        about: "every order of the threads that share a term, explored with loom",
        prepare: Vec::new,
        in_parts: false,
        run: |_| {
            let package = root().join("races");
            // The checked code uses the dependencies of the shipped code; cargo adds those of loom to the list.
            std::fs::copy(root().join("Cargo.lock"), package.join("Cargo.lock"))?;
            Run::cargo(["test"])
                .inside(&package)
                .env("CARGO_TARGET_DIR", target().join("races"))
                .go()
        },
    },
    Tier {
        name: "proof",
        about: "the inductive invariant of the protocol, checked with the solver Z3",
        prepare: || missing([setup::python(&["z3-solver==5.4.0.0"])]),
        in_parts: false,
        run: |_| {
            let python = setup::tools().join("python/bin/python");
            let program = root().join("proof/check.py").display().to_string();
            Run::new(&python, ["-B"]).args(&[program]).go()
        },
    },
    Tier {
        name: "sim",
        about: "simulated elections under faults, mutants, model check",
        prepare: Vec::new,
        in_parts: false,
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
        name: "mutants",
        about: "a sample of the mutation score: changes of the core that a unit test must detect",
        prepare: Vec::new,
        in_parts: false,
        run: |_| {
            let sample = ["core", "--quick", "--sample", "100"];
            crate::mutants(&sample.map(str::to_owned))
        },
    },
    Tier {
        name: "fuzz",
        about: "the parsers of the API server under libFuzzer, some seconds each",
        prepare: || missing([setup::debian("c++", "g++")]),
        in_parts: false,
        run: |_| fuzz::briefly(),
    },
    Tier {
        name: "process",
        about: "real processes and outside clients (kubectl, client-go, Python, Node, Java, Chromium, Prometheus) against Tenure",
        prepare: || {
            missing([
                setup::unpacked("kubernetes-client", "usr/bin/kubectl"),
                // Unpacked and not installed, because the package starts a service.
                setup::unpacked("prometheus", "usr/bin/promtool"),
                setup::python(&["kubernetes", "pytest"]),
                setup::debian("tmux", "tmux"),
                setup::debian("chromium", "chromium"),
                setup::node(&[
                    "@kubernetes/client-node@1",
                    "playwright-core@1",
                    "axe-core@4",
                    "jest@30",
                ]),
                setup::maven("clients/java"),
                setup::toolchain("go"),
            ])
        },
        in_parts: true,
        run: |given| {
            let cluster = None;
            process_tests(&["--skip", "real_"], Given { cluster, ..given })
        },
    },
    Tier {
        name: "real",
        about: "Tenure and client-go against the real kube-apiserver and etcd, built from source",
        prepare: || missing([setup::toolchain("go")]),
        in_parts: false,
        run: |given| {
            process_tests(&["real_"], given)?;
            if given.cluster.is_some() {
                return Ok(());
            }
            // The etcd binary, which the tests above have built.
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
    let (cluster, mut args) = existing(args)?;
    let long = args.iter().any(|arg| arg == "--long");
    args.retain(|arg| arg != "--long");
    if let Some(unknown) = args
        .iter()
        .find(|arg| TIERS.iter().all(|tier| tier.name != **arg))
    {
        bail!("no tier {unknown:?}; `cargo xtask test --list` names them");
    }
    let strict = strict();
    let mut report = Vec::new();
    for tier in TIERS
        .iter()
        .filter(|t| args.is_empty() || args.iter().any(|a| a == t.name))
    {
        eprintln!("\n=== {}: {}", tier.name, tier.about);
        let started = Instant::now();
        let missing = (tier.prepare)();
        let given = Given {
            complete: missing.is_empty(),
            cluster: cluster.as_deref(),
            long,
        };
        let ended =
            hindrance(&missing, tier.in_parts, strict).unwrap_or_else(|| match (tier.run)(given) {
                Ok(()) => Ended::Passed(missing.iter().map(ToString::to_string).collect()),
                Err(error) => Ended::Failed(format!("{error:#}")),
            });
        report.push((tier.name, started.elapsed().as_secs(), ended));
    }
    summarise(&report)
}

/// Returns why a tier is not run at all. In CI, packages that should have been installed must not be missing.
fn hindrance(missing: &[Missing], in_parts: bool, strict: bool) -> Option<Ended> {
    let package = missing.iter().find(|m| matches!(m, Missing::Package(_)));
    if let Some(package) = package.filter(|_| strict) {
        return Some(Ended::Failed(format!(
            "may not be skipped in CI: {package}"
        )));
    }
    let first = missing.first().filter(|_| !in_parts)?;
    Some(Ended::Skipped(first.to_string()))
}

fn summarise(report: &[(&str, u64, Ended)]) -> Result<()> {
    println!("\ntier       seconds  result");
    let (mut passed, mut failed, mut skipped) = (0, 0, 0);
    for (name, seconds, ended) in report {
        let text = match ended {
            Ended::Passed(without) => {
                passed += 1;
                let without = without.iter().map(|reason| format!("; {reason}"));
                "passed".to_owned() + &without.collect::<String>()
            }
            Ended::Failed(why) => {
                failed += 1;
                format!("FAILED: {why}")
            }
            Ended::Skipped(reason) => {
                skipped += 1;
                format!("skipped: {reason}")
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

/// Runs the tests with real processes. They use the debug build of the command, and build missing peers. If all
/// requirements are met, CI requires every one of them.
fn process_tests(filter: &[&str], given: Given<'_>) -> Result<()> {
    const PEERS: &str = "TENURE_REAL";
    Run::cargo(["build", "--package", "tenure-cli"]).go()?;
    let mut tests = Run::cargo(["test", "--package", "tenure-tests", "--"])
        .args(&filter.iter().map(ToString::to_string).collect::<Vec<_>>())
        .interruptible();
    if let Some(kubeconfig) = given.cluster {
        tests = tests.env("TENURE_KUBECONFIG", kubeconfig);
    }
    if given.long {
        tests = tests.env("TENURE_HAND_OVERS", "10000");
    }
    if std::env::var_os(PEERS).is_none() && !(strict() && given.complete) {
        tests = tests.env(PEERS, "build");
    }
    tests.go()
}

/// Removes `--kubeconfig FILE` from the arguments, and returns both.
fn existing(args: &[String]) -> Result<(Option<PathBuf>, Vec<String>)> {
    let mut rest = Vec::new();
    let mut file = None;
    let mut args = args.iter();
    while let Some(arg) = args.next() {
        let given = match arg.split_once('=') {
            Some(("--kubeconfig", given)) => given,
            _ if arg == "--kubeconfig" => args.next().context("--kubeconfig needs a file")?,
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

/// Returns whether the requirements of tests must not be missing.
pub(crate) fn strict() -> bool {
    std::env::var_os("CI").is_some_and(|ci| ci == "true")
}

fn missing<const N: usize>(wanted: [Result<(), Missing>; N]) -> Vec<Missing> {
    wanted.into_iter().filter_map(Result::err).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tier_in_parts_runs_although_requirements_are_missing() {
        let go = || Missing::Toolchain("no go".to_owned());
        let package = || Missing::Package("no tmux".to_owned());
        let skipped = |reason: &str| Some(Ended::Skipped(reason.to_owned()));
        assert_eq!(hindrance(&[], false, true), None);
        assert_eq!(hindrance(&[go()], false, true), skipped("no go"));
        assert_eq!(
            hindrance(&[package(), go()], false, false),
            skipped("no tmux")
        );
        for strict in [false, true] {
            assert_eq!(hindrance(&[go()], true, strict), None);
        }
        assert_eq!(hindrance(&[package()], true, false), None);
        let failed = hindrance(&[go(), package()], true, true);
        assert!(matches!(failed, Some(Ended::Failed(why)) if why.ends_with("no tmux")));
    }

    #[test]
    fn kubeconfig_is_separated_from_the_tiers() {
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
