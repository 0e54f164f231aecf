//! The cost of fair shares: the same server with and without them, measured alternately.

use std::fmt;
use std::time::Duration;

use anyhow::{Context, Result};

use super::{Ours, lease_puts, runtime};
use crate::process::resident_bytes;

/// Number of pairs of measurements. The two servers run at the same time and are measured in turns, so that changes in
/// the speed of the disk and the processors affect both.
const PAIRS: usize = 48;
const SLICE: Duration = Duration::from_millis(400);
/// Numbers of clients that are measured.
const CLIENTS: [usize; 2] = [1, 32];

/// Figures of both variants.
#[derive(Clone, Debug)]
pub(super) struct Cost {
    /// One row for each entry of [`CLIENTS`].
    puts: Vec<Puts>,
    idle_bytes: [f64; 2],
}

/// Lease PUTs per second, with and without fair shares.
#[derive(Clone, Copy, Debug)]
struct Puts {
    clients: usize,
    fair: f64,
    without: f64,
    /// Median of the ratios of the pairs.
    ratio: f64,
}

/// Measures both variants.
pub(super) fn cost() -> Result<Cost> {
    let fair = Ours::start_with(&[])?;
    let without = Ours::start_with(&["--no-fairness"])?;
    let mut idle_bytes = [0.0; 2];
    for (bytes, server) in idle_bytes.iter_mut().zip([&fair, &without]) {
        *bytes = resident_bytes(server.pid()).context("/proc has no entry for the process")? as f64;
    }
    let puts = CLIENTS.map(|clients| compare(&fair, &without, clients));
    Ok(Cost {
        puts: puts.into_iter().collect::<Result<_>>()?,
        idle_bytes,
    })
}

fn compare(fair: &Ours, without: &Ours, clients: usize) -> Result<Puts> {
    let runtime = runtime()?;
    let slice = |server: &Ours, pair: usize| {
        let name = format!("fair-{pair}");
        runtime.block_on(lease_puts(&server.kubeconfig(), &name, clients, SLICE))
    };
    let mut pairs = Vec::with_capacity(PAIRS);
    for pair in 0..PAIRS {
        // Every other pair begins with the other server.
        pairs.push(if pair % 2 == 0 {
            let first = slice(fair, pair)?;
            (first, slice(without, pair)?)
        } else {
            let first = slice(without, pair)?;
            (slice(fair, pair)?, first)
        });
    }
    let median = |figure: &dyn Fn(&(f64, f64)) -> f64| {
        let mut sorted: Vec<f64> = pairs.iter().map(figure).collect();
        sorted.sort_unstable_by(f64::total_cmp);
        f64::midpoint(sorted[(PAIRS - 1) / 2], sorted[PAIRS / 2])
    };
    Ok(Puts {
        clients,
        fair: median(&|pair| pair.0),
        without: median(&|pair| pair.1),
        ratio: median(&|pair| pair.0 / pair.1),
    })
}

impl fmt::Display for Cost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "| cost of fair shares | without | with | ratio |")?;
        writeln!(f, "| --- | --- | --- | --- |")?;
        for row in &self.puts {
            let Puts {
                clients,
                fair,
                without,
                ratio,
            } = row;
            writeln!(
                f,
                "| durable Lease PUT, TLS, clients: {clients} | {without:.0}/s | {fair:.0}/s | {ratio:.3} |"
            )?;
        }
        let [fair, without] = self.idle_bytes.map(|bytes| bytes / 1e6);
        writeln!(
            f,
            "| resident memory, idle | {without:.1} MB | {fair:.1} MB | {:.3} |",
            fair / without
        )
    }
}
