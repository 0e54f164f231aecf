//! The command line of the simulator: `cargo xtask sim`.

#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "this is the command's output"
)]
#![allow(
    clippy::disallowed_methods,
    reason = "real time decides only how many seeds are run, never what a seed does"
)]

use std::process::ExitCode;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use crate::fault::Fault;
use crate::hunt::{Catch, LIMIT, Quarry, hunt, quarry, stack_quarry};
use crate::invariants::Violation;
use crate::machine::Kind;
use crate::model;
use crate::sweep::{Sweep, sweep};
use crate::world::World;

const USAGE: &str = "\
usage: cargo xtask sim [--seconds N] [--seeds N] [--from SEED] [--threads N] [--no-mutants] [--no-model]
       cargo xtask sim --stack [--seconds N] [--seeds N] [--from SEED] [--threads N]
       cargo xtask sim --seed S [--pair | --mixed | --coordinated | --proofs | --ranks | --life | --shards | --slots | [--stack] [--mutant TEXT]]
                                        replay one seed and print its last events

  --seconds N    run for about N seconds of real time [default: 60]
  --seeds N      run at most N seeds [default: no limit]
  --from SEED    start with this seed [default: 0]
  --threads N    number of threads [default: all cores]
  --no-mutants   do not search for the seeded bugs
  --no-model     do not run the model check
  --mutant TEXT  replay with the seeded bug whose name contains TEXT
  --pair         replay a migration through a lock in two objects
  --mixed        replay a fleet of client-go and tenure
  --coordinated  replay a coordinated election
  --proofs       replay candidates that prove holders dead
  --ranks        replay ranked candidates
  --life         replay leaders for life and their pods
  --shards       replay a shard group whose number of shards changes
  --slots        replay a semaphore whose number of slots changes
  --stack        run only the whole driver, over a simulated network";

const SHARDS: &str = "shard groups that change their number of shards";

const SLOTS: &str = "semaphores that change their number of slots";

const DRIVER: &str = "the whole driver over a simulated network";

/// Number of lines shown of a failing run.
const TAIL: usize = 60;

/// Number of hunts per bug from which the median is taken.
const HUNTS: u64 = 5;

/// Options of the simulator.
#[derive(Clone, Debug)]
pub struct Options {
    /// Simulation time, in seconds of real time.
    pub seconds: u64,
    /// Maximum number of seeds.
    pub seeds: u64,
    /// The first seed.
    pub from: u64,
    /// Number of threads.
    pub threads: usize,
    /// Whether to search for the seeded bugs.
    pub mutants: bool,
    /// Whether to run the model check.
    pub model: bool,
    /// Seed to replay; no other seed is run.
    pub replay: Option<u64>,
    /// Seeded bug for the replay.
    pub mutant: Option<String>,
    /// Replay a migration.
    pub pair: bool,
    /// Replay a fleet of client-go and tenure.
    pub mixed: bool,
    /// Replay a coordinated election.
    pub coordinated: bool,
    /// Replay candidates that prove holders dead.
    pub proofs: bool,
    /// Replay ranked candidates.
    pub ranks: bool,
    /// Replay leaders for life.
    pub life: bool,
    /// Replay a shard group.
    pub shards: bool,
    /// Replay a semaphore.
    pub slots: bool,
    /// Run only the whole driver.
    pub stack: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            seconds: 60,
            seeds: u64::MAX,
            from: 0,
            threads: std::thread::available_parallelism().map_or(2, usize::from),
            mutants: true,
            model: true,
            replay: None,
            mutant: None,
            pair: false,
            mixed: false,
            coordinated: false,
            proofs: false,
            ranks: false,
            life: false,
            shards: false,
            slots: false,
            stack: false,
        }
    }
}

impl Options {
    /// Returns the kind of run that the flags of a replay select.
    fn kind(&self) -> Kind {
        match self {
            Self { pair: true, .. } => Kind::Pair,
            Self { mixed: true, .. } => Kind::Mixed(None),
            Self {
                coordinated: true, ..
            } => Kind::Coordinated(None),
            Self { proofs: true, .. } => Kind::Proofs(None),
            Self { ranks: true, .. } => Kind::Ranks(None),
            Self { life: true, .. } => Kind::Life,
            Self { shards: true, .. } => Kind::Shards,
            Self { slots: true, .. } => Kind::Slots,
            Self { stack: true, .. } => Kind::Stack,
            _ => Kind::Core,
        }
    }

    /// Parses the arguments after `sim`.
    ///
    /// # Errors
    ///
    /// Describes what is wrong with the arguments.
    pub fn parse(args: &[String]) -> Result<Self, String> {
        let mut options = Self::default();
        let mut args = args.iter();
        while let Some(arg) = args.next() {
            let mut text = || {
                let value = args.next().cloned();
                value.ok_or_else(|| format!("{arg} needs a value"))
            };
            let mut number = || {
                let value = text()?;
                value
                    .parse::<u64>()
                    .map_err(|_| format!("{arg} needs a number, not {value:?}"))
            };
            match arg.as_str() {
                "--seconds" => options.seconds = number()?,
                "--seeds" => {
                    options.seeds = number()?;
                    options.seconds = u64::MAX / 4;
                }
                "--from" => options.from = number()?,
                "--threads" => options.threads = number()?.clamp(1, 1024) as usize,
                "--seed" => options.replay = Some(number()?),
                "--mutant" => options.mutant = Some(text()?),
                "--pair" => options.pair = true,
                "--mixed" => options.mixed = true,
                "--coordinated" => options.coordinated = true,
                "--proofs" => options.proofs = true,
                "--ranks" => options.ranks = true,
                "--life" => options.life = true,
                "--shards" => options.shards = true,
                "--slots" => options.slots = true,
                "--stack" => options.stack = true,
                "--no-mutants" => options.mutants = false,
                "--no-model" => options.model = false,
                other => return Err(format!("unknown argument {other:?}")),
            }
        }
        Ok(options)
    }
}

/// Runs the simulator with the arguments after `sim` and prints the result. The exit code is zero if nothing failed.
pub fn main(args: &[String]) -> ExitCode {
    if args.iter().any(|arg| arg == "--help" || arg == "-h") {
        println!("{USAGE}");
        return ExitCode::SUCCESS;
    }
    let options = match Options::parse(args) {
        Ok(options) => options,
        Err(problem) => {
            eprintln!("{problem}\n\n{USAGE}");
            return ExitCode::from(2);
        }
    };
    let started = Instant::now();
    let well = match options.replay {
        Some(seed) => match &options.mutant {
            Some(text) => replay_mutant(seed, text, options.stack),
            None => {
                let kind = options.kind();
                replay(seed, kind, with(kind))
            }
        },
        None => {
            let well = run(&options);
            let seconds = started.elapsed().as_secs_f64();
            println!("real seconds, all together      {seconds:>14.1}");
            well
        }
    };
    if well {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

/// Simulates, hunts and checks. Returns true if no invariant was violated and every bug was found.
pub fn run(options: &Options) -> bool {
    // The model check gets up to two fifths of the time. The hunt needs little time.
    let parts = if options.model { 2 } else { 1 };
    let limit = Duration::from_secs(options.seconds / parts);
    if options.stack {
        let limit = Duration::from_secs(options.seconds);
        let mut well = simulate(DRIVER, Kind::Stack, options, options.seeds, limit);
        if options.mutants {
            well &= hunt_all(&stack_quarry(), options.threads, 1);
        }
        return well;
    }
    let mut well = simulate("simulation", Kind::Core, options, options.seeds, limit);
    // Migrations have few variants, so a tenth of the seeds is sufficient.
    let seeds = options.seeds.div_ceil(10);
    well &= simulate("migrations", Kind::Pair, options, seeds, limit / 10);
    let (mixed, coordinated) = (Kind::Mixed(None), Kind::Coordinated(None));
    let mixed_seeds = options.seeds.div_ceil(5);
    well &= simulate(
        "client-go and tenure on one lock",
        mixed,
        options,
        mixed_seeds,
        limit / 10,
    );
    // The controller acts often, so one seed takes as long as ten others.
    let few = options.seeds.div_ceil(20);
    well &= simulate(
        "coordinated elections",
        coordinated,
        options,
        few,
        limit / 10,
    );
    let proofs = Kind::Proofs(None);
    well &= simulate("proofs of death", proofs, options, seeds, limit / 10);
    let ranks = Kind::Ranks(None);
    well &= simulate("ranked candidates", ranks, options, seeds, limit / 10);
    well &= simulate("leaders for life", Kind::Life, options, seeds, limit / 10);
    well &= simulate(SHARDS, Kind::Shards, options, seeds, limit / 10);
    well &= simulate(SLOTS, Kind::Slots, options, seeds, limit / 10);
    // A run of the whole driver takes as long as some hundred runs of the core.
    let seeds = options.seeds.div_ceil(500);
    well &= simulate(DRIVER, Kind::Stack, options, seeds, limit / 10);
    if options.mutants {
        well &= hunt_all(&quarry(), options.threads, HUNTS);
    }
    if options.model {
        let mut states = 0;
        for scope in model::Scope::full() {
            let seconds = scope.seconds.min((options.seconds / 5).max(5));
            let checked = model::check(&model::Scope { seconds, ..scope }, options.threads);
            print!("{checked}");
            well &= checked.holds();
            states += checked.states;
        }
        println!("  different states, together    {states:>14}");
    }
    well
}

fn simulate(what: &str, kind: Kind, options: &Options, seeds: u64, limit: Duration) -> bool {
    let started = Instant::now();
    let last = Mutex::new(started);
    let total = sweep(
        kind,
        options.from,
        seeds,
        options.threads,
        || started.elapsed() >= limit,
        |so_far| {
            let mut last = last.lock().unwrap_or_else(|e| e.into_inner());
            if last.elapsed() >= Duration::from_secs(3) {
                *last = Instant::now();
                eprintln!(
                    "  {:>5.0} s: {} seeds, {:.2} years, {} faults, {} violations",
                    started.elapsed().as_secs_f64(),
                    so_far.seeds,
                    so_far.totals.years(),
                    so_far.totals.faults.total(),
                    so_far.violations.len()
                );
            }
        },
    );
    print_sweep(what, &total, started.elapsed().as_secs_f64());
    let findings = findings(&total, with(kind));
    for finding in &findings {
        println!("{finding}");
    }
    if let Some((seed, _)) = total.violations.first() {
        replay(*seed, kind, with(kind));
    }
    findings.is_empty()
}

/// Returns the flags that the command line needs in addition to the seed.
fn with(kind: Kind) -> &'static str {
    match kind {
        Kind::Pair => " --pair",
        Kind::Mixed(_) => " --mixed",
        Kind::Coordinated(_) => " --coordinated",
        Kind::Proofs(_) => " --proofs",
        Kind::Ranks(_) => " --ranks",
        Kind::Life => " --life",
        Kind::Shards => " --shards",
        Kind::Slots => " --slots",
        Kind::Stack => " --stack",
        _ => "",
    }
}

/// Returns the findings, each with the command that reproduces it.
fn findings(total: &Sweep, with: &str) -> Vec<String> {
    let broken = total.violations.iter().map(|(seed, violation)| {
        let Violation {
            invariant, text, ..
        } = violation;
        (
            *seed,
            format!("VIOLATION of {invariant} in seed {seed}: {text}"),
        )
    });
    let unequal = total.unequal.iter().map(|seed| {
        let text = format!("NOT REPEATABLE: two runs of seed {seed} differ");
        (*seed, text)
    });
    broken
        .chain(unequal)
        .map(|(seed, text)| format!("{text}\nreplay: cargo xtask sim --seed {seed}{with}"))
        .collect()
}

fn print_sweep(what: &str, total: &Sweep, seconds: f64) {
    let unequal = total.unequal.len();
    println!("{what}");
    println!("  seeds                         {:>14}", total.seeds);
    println!(
        "  simulated cluster-years       {:>14.2}",
        total.totals.years()
    );
    println!("  real seconds                  {seconds:>14.1}");
    println!(
        "  simulated s per real s        {:>14.0}",
        total.totals.seconds() / seconds
    );
    println!("  steps of elections            {:>14}", total.totals.steps);
    println!(
        "  steps of the proved system    {:>14}",
        total.totals.refined.iter().sum::<u64>()
    );
    println!("  terms begun                   {:>14}", total.totals.terms);
    println!(
        "  faults injected               {:>14}",
        total.totals.faults.total()
    );
    print!("{}", total.totals.faults);
    println!(
        "  violations of S1-S5 and L1    {:>14}",
        total.violations.len()
    );
    println!(
        "  longest overlap of guards     {:>11} ns",
        total.totals.longest_overlap
    );
    println!(
        "  ... with clocks beyond rho    {:>11.1} s  (S1 does not apply there, S2 to S5 do)",
        total.totals.wild_overlap as f64 / 1e9
    );
    println!(
        "  effects accepted              {:>14}",
        total.totals.accepted
    );
    println!(
        "  stale effects refused         {:>14}",
        total.totals.refused
    );
    println!(
        "  seeds run twice, unequal      {:>10}, {unequal:>2}",
        total.repeated
    );
    for (crash, what) in [(true, "crash"), (false, "step-down")] {
        let mut times: Vec<u64> = total
            .totals
            .failovers
            .iter()
            .filter(|(kind, _)| *kind == crash)
            .map(|(_, time)| *time)
            .collect();
        times.sort_unstable();
        if let Some(max) = times.last() {
            let at = |part: usize| times[(times.len() - 1) * part / 100] as f64 / 1e9;
            println!(
                "  fail-over 15/10/2 after {what:<10} p50 {:.3} s, p99 {:.3} s, max {:.3} s ({} times)",
                at(50),
                at(99),
                *max as f64 / 1e9,
                times.len()
            );
        }
    }
}

fn hunt_all(quarry: &[Quarry], threads: usize, hunts: u64) -> bool {
    // A bug that trips an assertion of the core counts as found. Its backtrace is not useful.
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| {}));
    let catches = hunt_parallel(quarry, threads, hunts);
    std::panic::set_hook(hook);
    println!("seeded bugs: {LIMIT} seeds each, hunts: {hunts}");
    println!("    {:<42} {:>6} {:>6}  broken", "", "median", "worst");
    for found in &catches {
        let worst = found
            .seeds
            .iter()
            .map(|s| s.map_or("-".into(), |n| n.to_string()));
        let worst = worst
            .max_by_key(|n| (n.len(), n.clone()))
            .unwrap_or_default();
        let broken: Vec<String> = found.broken.keys().map(ToString::to_string).collect();
        let caught = if found.is_caught() {
            ""
        } else {
            "  NOT CAUGHT"
        };
        println!(
            "    {:<42} {:>6} {worst:>6}  {}{caught}",
            found.name,
            found.median(),
            broken.join(" ")
        );
    }
    let caught = catches.iter().filter(|c| c.is_caught()).count();
    let mut medians: Vec<u64> = catches.iter().map(Catch::median).collect();
    medians.sort_unstable();
    println!(
        "  caught {caught} of {}; median of the medians {} seeds",
        catches.len(),
        medians[medians.len() / 2]
    );
    caught == catches.len()
}

/// Hunts some bugs on several threads.
pub fn hunt_parallel(quarry: &[Quarry], threads: usize, hunts: u64) -> Vec<Catch> {
    let next = std::sync::atomic::AtomicUsize::new(0);
    let catches = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..threads.max(1) {
            scope.spawn(|| {
                loop {
                    let i = next.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                    let Some((name, kind)) = quarry.get(i) else {
                        break;
                    };
                    let found = hunt(name, *kind, hunts);
                    let mut catches = catches.lock().unwrap_or_else(|e| e.into_inner());
                    catches.push((i, found));
                }
            });
        }
    });
    let mut catches = catches.into_inner().unwrap_or_else(|e| e.into_inner());
    catches.sort_by_key(|(i, _)| *i);
    catches.into_iter().map(|(_, found)| found).collect()
}

fn replay_mutant(seed: u64, text: &str, stack: bool) -> bool {
    let quarry = if stack { stack_quarry() } else { quarry() };
    let found = quarry.into_iter().find(|(name, _)| name.contains(text));
    let Some((_, kind)) = found else {
        eprintln!("no seeded bug has a name that contains {text:?}");
        return false;
    };
    let stack = if stack { " --stack" } else { "" };
    replay(seed, kind, &format!("{stack} --mutant {text:?}"))
}

/// Runs one seed twice and prints the end of the run. Returns true if no invariant was violated and both runs were
/// equal. `with` contains the flags that the command line needs in addition to the seed.
pub fn replay(seed: u64, kind: Kind, with: &str) -> bool {
    let report = World::run(seed, kind, true);
    let skip = report.trace.len().saturating_sub(TAIL);
    println!(
        "seed {seed}, the last {} events:",
        report.trace.len() - skip
    );
    for line in report
        .trace
        .iter()
        .take(1)
        .chain(report.trace.iter().skip(skip.max(1)))
    {
        println!("{line}");
    }
    let faults: Vec<_> = Fault::ALL
        .iter()
        .filter(|f| report.totals.faults.of(**f) > 0)
        .map(|f| format!("{} {}", report.totals.faults.of(*f), f.name()))
        .collect();
    println!("faults: {}", faults.join(", "));
    println!("trace hash {:016x}", report.hash);
    match &report.violation {
        Some(violation) => {
            println!("broken: {}: {}", violation.invariant, violation.text);
            println!("replay: cargo xtask sim --seed {seed}{with}");
        }
        None => println!("no invariant was violated"),
    }
    let again = World::run(seed, kind, false).hash;
    if again != report.hash {
        println!("not repeatable: the second run has trace hash {again:016x}");
    }
    report.violation.is_none() && again == report.hash
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Options, String> {
        let args: Vec<String> = text.split_whitespace().map(str::to_owned).collect();
        Options::parse(&args)
    }

    #[test]
    fn arguments_are_read() {
        let options = parse("--seconds 7 --from 3 --threads 1 --no-model").unwrap();
        assert_eq!((options.seconds, options.from, options.threads), (7, 3, 1));
        assert!(options.mutants && !options.model);
        assert_eq!(parse("--seed 42").unwrap().replay, Some(42));
        assert!(parse("--stack --seed 42").unwrap().stack);
    }

    #[test]
    fn panic_and_unequal_run_are_reported_with_the_replay_command() {
        let mut total = sweep(Kind::Panics, 40, 1, 1, || false, |_| {});
        total.unequal.push(50);
        assert_eq!(
            findings(&total, ""),
            [
                "VIOLATION of an assertion in seed 40: S5: an assertion for this test\n\
                 replay: cargo xtask sim --seed 40",
                "NOT REPEATABLE: two runs of seed 50 differ\n\
                 replay: cargo xtask sim --seed 50",
            ]
        );
        assert!(!replay(40, Kind::Panics, ""));
    }

    #[test]
    fn bad_arguments_are_named() {
        assert_eq!(
            parse("--seconds x").unwrap_err(),
            "--seconds needs a number, not \"x\""
        );
        assert_eq!(parse("--seed").unwrap_err(), "--seed needs a value");
        assert_eq!(parse("--fast").unwrap_err(), "unknown argument \"--fast\"");
    }
}
