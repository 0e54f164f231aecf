//! `cargo xtask mutants`: the mutation score. Changes one operator, branch or function at a time, and counts the
//! changes that a test or the simulator detects.
//!
//! All changes are compiled into one program, each behind a switch, so that thousands of changes need only a few
//! builds. Equivalent changes are listed in `equivalent.txt`, each with the reason.
#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    clippy::disallowed_methods,
    reason = "a command line tool: it prints, and it measures durations"
)]

mod equivalent;
mod render;
mod seeded;
mod sites;
mod tree;
mod trial;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, bail};

use equivalent::Equivalents;
use sites::Change;
use tree::{Source, Tree};
use trial::Trial;

const HELP: &str = "\
cargo xtask mutants [TARGET...] [--file TEXT] [--sample N] [--seed S] [--again FILE] [--jobs N] [--quick] [--list]

  TARGET       core (default), lock, deadline, run
  --file TEXT  change only files whose path contains TEXT
  --sample N   try only N random changes
  --seed S     seed of the sample [default: 1]
  --again FILE try only the changes that a previous run missed; FILE is its output
  --jobs N     number of changes to try concurrently [default: the number of CPUs]
  --quick      run only the first stage of each target, without simulator and processes
  --list       print the changes without trying them";

/// The code to change, and the programs that must detect the changes.
struct Target {
    name: &'static str,
    /// The folder of the package.
    package: &'static str,
    /// The changed paths in it.
    paths: &'static [&'static str],
    stages: &'static [Stage],
    /// The minimum score in percent, below which the command fails.
    least: f64,
    /// The minimum score for the first stage alone, or for a sample.
    least_quick: f64,
}

/// One way to detect a change, fast ones first.
struct Stage {
    name: &'static str,
    build: &'static [&'static str],
    args: &'static [&'static str],
    /// Time limit of one run. A change that causes an endless loop counts as detected.
    seconds: u64,
    /// Whether the changed code ends other processes, so that it runs in a sandbox.
    sandbox: bool,
    /// For a build of a changed command: the cargo arguments that build the tests which run it as a process, and their
    /// package.
    harness: Option<(&'static [&'static str], &'static str)>,
}

const TARGETS: &[Target] = &[
    Target {
        name: "core",
        package: "crates/core",
        paths: &["crates/core/src"],
        stages: &[
            Stage {
                name: "unit",
                build: &["test", "--package", "tenure-core", "--lib", "--no-run"],
                args: &[],
                seconds: 60,
                sandbox: false,
                harness: None,
            },
            Stage {
                name: "simulator",
                build: &["build", "--workspace", "--bin", "tenure-sim"],
                args: &[
                    "--seeds",
                    "150",
                    "--threads",
                    "1",
                    "--no-mutants",
                    "--no-model",
                ],
                seconds: 600,
                sandbox: false,
                harness: None,
            },
        ],
        least: 95.0,
        least_quick: 95.0,
    },
    Target {
        name: "lock",
        package: "crates/lock",
        paths: &["crates/lock/src"],
        stages: &[
            Stage {
                name: "tests",
                build: &["test", "--package", "tenure-lock", "--no-run"],
                args: &["--skip", "contention::", "--skip", "election::"],
                seconds: 120,
                sandbox: false,
                harness: None,
            },
            Stage {
                name: "contention",
                build: &["test", "--package", "tenure-lock", "--no-run"],
                args: &["contention::", "election::"],
                seconds: 300,
                sandbox: false,
                harness: None,
            },
        ],
        least: 95.0,
        least_quick: 95.0,
    },
    Target {
        name: "deadline",
        package: "crates/elector",
        paths: &["crates/elector/src/deadline"],
        stages: &[
            Stage {
                name: "unit",
                build: &["test", "--package", "tenure", "--lib", "--no-run"],
                args: &["deadline", "guard", "handle"],
                seconds: 120,
                sandbox: false,
                harness: None,
            },
            Stage {
                name: "library",
                build: &["test", "--package", "tenure", "--lib", "--no-run"],
                args: &[],
                seconds: 300,
                sandbox: false,
                harness: None,
            },
        ],
        least: 95.0,
        least_quick: 95.0,
    },
    Target {
        name: "run",
        package: "crates/cli",
        paths: &["crates/cli/src/commands/run"],
        stages: &[
            Stage {
                name: "unit",
                build: &[
                    "test",
                    "--workspace",
                    "--exclude",
                    "tenure-tests",
                    "--all-features",
                    "--bin",
                    "tenure",
                    "--no-run",
                ],
                args: &["commands::run"],
                seconds: 120,
                sandbox: true,
                harness: None,
            },
            Stage {
                name: "processes",
                build: &[
                    "build",
                    "--workspace",
                    "--exclude",
                    "tenure-tests",
                    "--all-features",
                    "--bin",
                    "tenure",
                ],
                args: &[
                    "run_",
                    "--test-threads=6",
                    "--skip=run_command_has_completions_and_man_pages",
                ],
                seconds: 300,
                sandbox: true,
                harness: Some((
                    &[
                        "test",
                        "--package",
                        "tenure-tests",
                        "--test",
                        "runner",
                        "--no-run",
                    ],
                    "tests",
                )),
            },
        ],
        least: 0.0,
        least_quick: 0.0,
    },
];

#[derive(Default)]
struct Options {
    targets: Vec<&'static Target>,
    file: Option<String>,
    sample: Option<usize>,
    seed: u64,
    /// The output of a previous run.
    again: Option<String>,
    jobs: Option<usize>,
    quick: bool,
    list: bool,
}

impl Options {
    fn jobs(&self) -> usize {
        let cpus = || std::thread::available_parallelism().map_or(1, usize::from);
        self.jobs.unwrap_or_else(cpus).max(1)
    }
}

/// A change with its number.
struct Numbered<'a> {
    number: u32,
    path: &'a str,
    change: &'a Change,
}

impl Numbered<'_> {
    /// Returns its name in `equivalent.txt`. The name contains no line number, because that would change.
    fn key(&self) -> String {
        let Change {
            name,
            function,
            original,
            ..
        } = self.change;
        format!("{} {function}: {name} in `{original}`", self.path)
    }
}

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    if args.iter().any(|arg| arg == "--help") {
        println!("{HELP}");
        return ExitCode::SUCCESS;
    }
    match options(&args).and_then(|options| run(&options)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("mutants: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn options(args: &[String]) -> Result<Options> {
    let mut options = Options {
        seed: 1,
        ..Options::default()
    };
    let mut args = args.iter();
    while let Some(arg) = args.next() {
        let mut value = || args.next().with_context(|| format!("{arg} needs a value"));
        match arg.as_str() {
            "--file" => options.file = Some(value()?.clone()),
            "--sample" => options.sample = Some(value()?.parse().context("--sample")?),
            "--seed" => options.seed = value()?.parse().context("--seed")?,
            "--again" => options.again = Some(std::fs::read_to_string(value()?)?),
            "--jobs" => options.jobs = Some(value()?.parse().context("--jobs")?),
            "--quick" => options.quick = true,
            "--list" => options.list = true,
            name => match TARGETS.iter().find(|target| target.name == name) {
                Some(target) => options.targets.push(target),
                None => bail!("no target {name:?}\n\n{HELP}"),
            },
        }
    }
    if options.targets.is_empty() {
        options.targets.extend(&TARGETS[..1]);
    }
    Ok(options)
}

fn run(options: &Options) -> Result<()> {
    let tree = Tree::copy()?;
    for target in &options.targets {
        score(&tree, target, options)?;
    }
    Ok(())
}

fn score(tree: &Tree, target: &Target, options: &Options) -> Result<()> {
    let started = Instant::now();
    let sources = tree.sources(target.paths)?;
    let mut chosen = choose(&sources, options);
    if options.list {
        for Numbered {
            number,
            path,
            change,
        } in &chosen
        {
            println!(
                "{number} {path}:{} {}: {} in `{}`",
                change.line, change.function, change.name, change.original
            );
        }
        return Ok(());
    }
    let mut unviable = BTreeSet::new();
    let mut equivalents = Equivalents::read(&chosen)?;
    let mut noticed: BTreeMap<&str, BTreeMap<&str, usize>> = BTreeMap::new();
    let mut viable = 0;
    for (index, stage) in target.stages.iter().enumerate() {
        if index > 0 && options.quick {
            break;
        }
        let mut programs = tree.build(target.package, &sources, stage.build, &mut unviable)?;
        let mut folder = tree.folder_of(target.package, true);
        if let Some((build, package)) = stage.harness {
            programs = tree.harness(build, &programs)?;
            folder = tree.folder_of(package, false);
        }
        if index == 0 {
            chosen.retain(|change| !unviable.contains(&change.number));
            viable = chosen.len();
        }
        let fails = |change: u32| notices(&programs, stage, &folder, change);
        if fails(0)? {
            bail!("{} of {} fails without any change", stage.name, target.name);
        }
        let (listed, tried): (Vec<_>, Vec<_>) = chosen
            .into_iter()
            .partition(|change| equivalents.lists(change));
        let tries = |change: &Numbered<'_>| {
            let noticed = fails(change.number)?;
            if !noticed {
                eprintln!("not noticed by {}: {}", stage.name, change.key());
            }
            Ok(noticed)
        };
        let results = in_parallel(&tried, options.jobs(), &tries)?;
        let mut count = |path, what| {
            *noticed.entry(path).or_default().entry(what).or_default() += 1;
        };
        listed
            .iter()
            .for_each(|change| count(change.path, "equivalent"));
        let mut left = Vec::new();
        for (change, noticed) in tried.into_iter().zip(results) {
            if noticed {
                count(change.path, stage.name);
            } else {
                left.push(change);
            }
        }
        chosen = left;
        eprintln!(
            "{}: {} changes left after {:.0} s",
            stage.name,
            chosen.len(),
            started.elapsed().as_secs_f64()
        );
    }
    for change in &chosen {
        *noticed
            .entry(change.path)
            .or_default()
            .entry("missed")
            .or_default() += 1;
        println!("missed: {} (line {})", change.key(), change.change.line);
    }
    report(target, &noticed);
    let listed: usize = noticed
        .values()
        .filter_map(|row| row.get("equivalent"))
        .sum();
    let counted = viable - listed;
    let percent = 100.0 * (counted - chosen.len()) as f64 / counted.max(1) as f64;
    println!(
        "{}: score {percent:.1} %: {} of {counted} changes detected; {listed} more have no effect, {} do not compile; {:.0} s",
        target.name,
        counted - chosen.len(),
        unviable.len(),
        started.elapsed().as_secs_f64()
    );
    if options.sample.is_none() && options.file.is_none() && options.again.is_none() {
        equivalents.check_used()?;
    }
    let least = if options.quick || options.sample.is_some() {
        target.least_quick
    } else {
        target.least
    };
    if options.again.is_none() && percent < least {
        bail!(
            "the score of {} is below {} %: write tests that detect the missed changes",
            target.name,
            least
        );
    }
    Ok(())
}

/// Tries all changes, several concurrently. Returns whether each was detected, in the same order.
fn in_parallel(
    changes: &[Numbered<'_>],
    jobs: usize,
    notices: &(impl Fn(&Numbered<'_>) -> Result<bool> + Sync),
) -> Result<Vec<bool>> {
    let next = AtomicUsize::new(0);
    let work = || -> Result<Vec<(usize, bool)>> {
        let mut done = Vec::new();
        loop {
            let at = next.fetch_add(1, Ordering::Relaxed);
            let Some(change) = changes.get(at) else {
                return Ok(done);
            };
            done.push((at, notices(change)?));
        }
    };
    let mut all = Vec::new();
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..jobs).map(|_| scope.spawn(work)).collect();
        for worker in workers {
            let done = worker
                .join()
                .map_err(|_| anyhow!("a worker thread panicked"))??;
            all.extend(done);
        }
        Ok::<(), anyhow::Error>(())
    })?;
    all.sort_unstable();
    Ok(all.into_iter().map(|(_, noticed)| noticed).collect())
}

/// Returns whether one of the programs of a stage detects a change.
fn notices(programs: &[PathBuf], stage: &Stage, folder: &Path, change: u32) -> Result<bool> {
    for program in programs {
        let trial = Trial {
            program,
            args: stage.args,
            folder,
            sandbox: stage.sandbox,
            limit: Duration::from_secs(stage.seconds),
        };
        if trial.fails(change)? {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Returns the changes to make: all, those of some files, or a sample.
fn choose<'a>(sources: &'a [Source], options: &Options) -> Vec<Numbered<'a>> {
    let mut chosen = Vec::new();
    for source in sources {
        let changes = source.sites.iter().flat_map(|site| &site.changes);
        for (number, change) in (source.first..).zip(changes) {
            let path = source.path.as_str();
            if options.file.as_ref().is_none_or(|text| path.contains(text)) {
                chosen.push(Numbered {
                    number,
                    path,
                    change,
                });
            }
        }
    }
    if let Some(former) = &options.again {
        chosen.retain(|change| former.contains(&format!("missed: {} (line", change.key())));
    }
    if let Some(sample) = options.sample {
        let mut order: Vec<_> = chosen
            .into_iter()
            .map(|change| (scatter(options.seed ^ u64::from(change.number)), change))
            .collect();
        order.sort_by_key(|(key, _)| *key);
        chosen = order
            .into_iter()
            .take(sample)
            .map(|(_, change)| change)
            .collect();
        chosen.sort_by_key(|change| change.number);
    }
    chosen
}

/// SplitMix64.
fn scatter(seed: u64) -> u64 {
    let mut z = seed
        .wrapping_mul(0x9E37_79B9_7F4A_7C15)
        .wrapping_add(0x9E37_79B9_7F4A_7C15);
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

fn report(target: &Target, noticed: &BTreeMap<&str, BTreeMap<&str, usize>>) {
    let columns: Vec<&str> = target
        .stages
        .iter()
        .map(|stage| stage.name)
        .chain(["equivalent", "missed"])
        .collect();
    let head: Vec<_> = columns
        .iter()
        .map(|column| format!("{column:>12}"))
        .collect();
    println!("{:<44}{}", "", head.concat());
    for (path, row) in noticed {
        let cells: Vec<_> = columns
            .iter()
            .map(|column| format!("{:>12}", row.get(column).copied().unwrap_or_default()))
            .collect();
        println!("{path:<44}{}", cells.concat());
    }
}
