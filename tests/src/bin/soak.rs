//! `cargo xtask soak`: runs the faults of the tests for hours.

use std::io::Write;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Result, bail};
use clap::{Parser, ValueEnum};
use tenure_tests::clock;
use tenure_tests::nemesis::campaign::{Campaign, Outcome};
use tenure_tests::nemesis::known;
use tenure_tests::nemesis::seed::{self, Seeded};
use tenure_tests::nemesis::server::Server;
use tenure_tests::nemesis::squad::Make;

/// Duration of a chapter: long enough for many terms, and short enough to keep all event lines in memory.
const CHAPTER: Duration = Duration::from_secs(600);

/// A shorter overlap of client-go may be random.
const WEAK: Duration = Duration::from_millis(300);

/// Run fleets of tenure and client-go under random faults for hours; print a line every ten minutes
#[derive(Parser)]
#[command(name = "cargo xtask soak", bin_name = "cargo xtask soak")]
struct Options {
    /// Duration in hours; 0.1 is six minutes
    #[arg(long, default_value_t = 1.0)]
    hours: f64,
    /// Seed of the first chapter; every chapter prints its own seed
    #[arg(long)]
    seed: Option<u64>,
    /// API server to use
    #[arg(long, value_enum, default_value_t = Kind::Embedded)]
    server: Kind,
    /// Omit the fleet of client-go, which needs Go
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
    let start = || match options.server {
        Kind::Real => Server::real(),
        Kind::Embedded => Server::embedded(),
    };
    if !options.alone {
        control(&start()?)?;
    }
    while clock::now() < end {
        let server = start()?;
        let time = CHAPTER.min(end.since(clock::now()));
        let outcome = Campaign::start(server, makes, seed)?.run(time)?;
        say(outcome.to_string().trim_end());
        let violations = &outcome.of(Make::Tenure).violations;
        if !violations.is_empty() {
            bail!(
                "violations; `cargo xtask soak --seed {seed}` repeats the schedule:\n{}",
                violations.join("\n")
            );
        }
        if !outcome.missed().is_empty() {
            bail!(
                "seed {seed}: these faults never occurred: {:?}",
                outcome.missed()
            );
        }
        total.add(&outcome);
        say(&total.to_string());
        seed = seeds.number() >> 32;
    }
    if !options.alone && total.chapters > 0 && total.client_go < WEAK {
        bail!(
            "client-go had two leaders for at most {:?}: the nemesis is too weak",
            total.client_go
        );
    }
    Ok(())
}

/// First reproduces the known overlaps of client-go. If they do not occur here, this machine or this nemesis proves
/// nothing about tenure either.
fn control(server: &Server) -> Result<()> {
    let table = known::measure(&server.kubeconfig())?;
    say(table.to_string().trim_end());
    for (known, client_go, tenure) in &table.0 {
        if !tenure.is_zero() {
            bail!("{known:?}: tenure had two leaders for {tenure:?}");
        }
        if *client_go < WEAK {
            bail!(
                "{known:?}: client-go had two leaders for {client_go:?}: the nemesis is too weak"
            );
        }
    }
    Ok(())
}

/// Totals of all chapters so far.
#[derive(Default)]
struct Total {
    chapters: u32,
    time: Duration,
    faults: u64,
    tenure_terms: usize,
    refused: u64,
    client_go: Duration,
}

impl Total {
    fn add(&mut self, outcome: &Outcome) {
        self.chapters += 1;
        self.time += outcome.time;
        self.faults += outcome.fault_count();
        let tenure = outcome.of(Make::Tenure);
        self.tenure_terms += tenure.terms;
        self.refused += tenure.refused;
        for (make, verdict) in &outcome.makes {
            if *make == Make::ClientGo {
                let shown = verdict.overlap.max(verdict.stale_work);
                self.client_go = self.client_go.max(shown);
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
