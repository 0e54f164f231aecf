//! The three faults under which client-go is known to have two leaders, with its usual 15, 10 and 2 seconds. They are
//! injected one after the other, and equally for every kind of candidate.

use std::fmt;
use std::path::Path;
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context, Result};

use super::proxy::Gate;
use super::squad::{Make, Squad};
use super::store::FencedStore;
use crate::candidate::Election;
use crate::clock;

/// Followers of client-go poll at random times up to 4.4 s apart. With a single follower a poll may come so late that
/// the overlap has already ended.
const SIZE: usize = 5;

/// A fault of the leader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Known {
    /// No data passes between the leader and the API server.
    BlackHole,
    /// The leader's requests pass and are applied, but the responses do not arrive.
    OneWay,
    /// The leader is stopped until another candidate leads, and then continued.
    Stopped,
}

impl Known {
    /// All three.
    pub const ALL: [Self; 3] = [Self::BlackHole, Self::OneWay, Self::Stopped];

    /// Injects the fault into a leader with four followers. Returns how long both did guarded work.
    ///
    /// # Errors
    ///
    /// Fails if a process does not start, or if nobody leads.
    pub fn overlap(self, make: Make, kubeconfig: &Path) -> Result<Duration> {
        let name = format!("known-{make:?}-{self:?}-{}", clock::now().0).to_lowercase();
        let election = Election::new(kubeconfig.to_owned(), name);
        let (lease, renew) = (election.lease_duration, election.renew_deadline);
        let mut squad = Squad::start(make, election, SIZE, &FencedStore::start()?)?;
        let minute = Duration::from_secs(60);
        let old = squad
            .settled(Duration::from_secs(5), minute)
            .with_context(|| format!("{make:?}: nobody leads"))?;
        let next = |squad: &Squad| {
            let other = |_| squad.leader_other_than(old);
            clock::poll(minute, || other(())).with_context(|| format!("{make:?}: nobody follows"))
        };
        match self {
            Self::BlackHole => squad.proxy(old).set(Gate::Held, Gate::Held),
            Self::OneWay => squad.proxy(old).set(Gate::Open, Gate::Held),
            Self::Stopped => squad.process(old).stop(),
        }
        next(&squad)?;
        if self == Self::Stopped {
            sleep(Duration::from_millis(500));
            squad.process(old).resume();
        }
        // Long enough for the last attempt of a round of renewals and for that of a release after it.
        sleep(renew + lease / 3);
        let history = squad.history();
        Ok(match self {
            // Time during which it was stopped does not count as work.
            Self::Stopped => history.longest_stale_work(),
            _ => {
                let overlaps = history.overlaps(clock::now());
                let lengths = overlaps.iter().map(|overlap| overlap.length);
                lengths.max().unwrap_or_default()
            }
        })
    }
}

/// The overlaps of both kinds under each fault, measured together.
#[derive(Clone, Debug)]
pub struct Table(pub Vec<(Known, Duration, Duration)>);

/// Measures client-go and tenure under each fault.
///
/// # Errors
///
/// Fails if a process does not start, or if nobody leads.
pub fn measure(kubeconfig: &Path) -> Result<Table> {
    std::thread::scope(|scope| {
        let cell = |known: Known, make: Make| scope.spawn(move || known.overlap(make, kubeconfig));
        let rows: Vec<_> = Known::ALL
            .into_iter()
            .map(|known| {
                (
                    known,
                    cell(known, Make::ClientGo),
                    cell(known, Make::Tenure),
                )
            })
            .collect();
        let rows = rows.into_iter().map(|(known, client_go, tenure)| {
            let join = |cell: std::thread::ScopedJoinHandle<'_, Result<Duration>>| {
                cell.join()
                    .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
            };
            Ok((known, join(client_go)?, join(tenure)?))
        });
        Ok(Table(rows.collect::<Result<_>>()?))
    })
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "| two leaders at once, 15/10/2 | client-go | tenure |")?;
        writeln!(f, "|---|---|---|")?;
        for (known, client_go, tenure) in &self.0 {
            let words = match known {
                Known::BlackHole => "leader's connection black-holed",
                Known::OneWay => "answers to the leader lost",
                Known::Stopped => "work after SIGSTOP past the lease",
            };
            let seconds = |time: &Duration| match time.is_zero() {
                true => "0".to_owned(),
                false => format!("{:.1} s", time.as_secs_f64()),
            };
            writeln!(
                f,
                "| {words} | {} | {} |",
                seconds(client_go),
                seconds(tenure)
            )?;
        }
        Ok(())
    }
}
