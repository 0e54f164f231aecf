//! `cargo xtask soak`: the faults of the tests, for hours.

use std::io::Write;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Result, bail};
use clap::{Parser, ValueEnum};
use tenure_tests::clock;
use tenure_tests::nemesis::campaign::{Campaign, Outcome};
use tenure_tests::nemesis::seed::{self, Seeded};
use tenure_tests::nemesis::server::Server;
use tenure_tests::nemesis::squad::Make;

/// Long enough for a fleet to have a past, short enough for its lines to be kept in memory.
const CHAPTER: Duration = Duration::from_secs(600);

/// Fleets of tenure and client-go through random faults, for hours; a line for each ten minutes
#[derive(Parser)]
#[command(name = "cargo xtask soak", bin_name = "cargo xtask soak")]
struct Options {
    /// How long; 0.1 is six minutes
    #[arg(long, default_value_t = 1.0)]
    hours: f64,
    /// The seed of the first chapter; each chapter has a seed of its own, which is printed
    #[arg(long)]
    seed: Option<u64>,
    /// On which server
    #[arg(long, value_enum, default_value_t = Kind::Embedded)]
    server: Kind,
    /// Without the fleet of client-go, which needs Go
    #[arg(long)]
    alone: bool,
}

#[derive(Clone, Copy, ValueEnum)]
enum Kind {
    /// kube-apiserver and etcd
    Real,
    /// `tenure server`
    Embedded,
}

fn main() -> ExitCode {
    match run(&Options::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            _ = writeln!(std::io::stderr(), "{error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(options: &Options) -> Result<()> {
    let end = clock::now() + Duration::from_secs_f64(options.hours.max(0.0) * 3600.0);
    let makes: &[Make] = match options.alone {
        true => &[Make::Tenure],
        false => &[Make::Tenure, Make::ClientGo],
    };
    let first = options.seed.unwrap_or_else(seed::of_this_run);
    let mut seeds = Seeded::new(first);
    let mut total = Total::default();
    let mut seed = first;
    while clock::now() < end {
        let server = match options.server {
            Kind::Real => Server::real()?,
            Kind::Embedded => Server::embedded()?,
        };
        let time = CHAPTER.min(end.since(clock::now()));
        let outcome = Campaign::start(server, makes, seed)?.run(time)?;
        say(outcome.to_string().trim_end());
        let violations = &outcome.of(Make::Tenure).violations;
        if !violations.is_empty() {
            bail!(
                "seed {seed}, `cargo xtask soak --seed {seed}` has its schedule again:\n{}",
                violations.join("\n")
            );
        }
        total.add(&outcome);
        say(&total.to_string());
        seed = seeds.number() >> 32;
    }
    Ok(())
}

/// What all chapters so far did.
#[derive(Default)]
struct Total {
    time: Duration,
    faults: u64,
    tenure_terms: usize,
    refused: u64,
    client_go: Duration,
}

impl Total {
    fn add(&mut self, outcome: &Outcome) {
        self.time += outcome.time;
        self.faults += outcome.fault_count();
        let tenure = outcome.of(Make::Tenure);
        self.tenure_terms += tenure.terms;
        self.refused += tenure.refused;
        for (make, verdict) in &outcome.makes {
            if *make == Make::ClientGo {
                self.client_go = self.client_go.max(verdict.overlap);
            }
        }
    }
}

impl std::fmt::Display for Total {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "so far: {:.2} h, {} faults, tenure {} terms, overlap 0, {} stale effects refused; client-go overlap {:.1} s",
            self.time.as_secs_f64() / 3600.0,
            self.faults,
            self.tenure_terms,
            self.refused,
            self.client_go.as_secs_f64()
        )
    }
}

#[expect(clippy::print_stdout, reason = "the answer of a command")]
fn say(line: &str) {
    println!("{line}");
}
