//! `cargo run -p tenure-tests --bin differential -- SEQUENCES [SEED]`: sends random requests to our API server and to
//! the real one, and prints the differences of their responses.
#![allow(clippy::print_stdout, reason = "a command line tool")]

use anyhow::Result;
use tenure_tests::differential::{LENGTH, Side, play};
use tenure_tests::embedded::Embedded;
use tenure_tests::nemesis::seed::{self, Seeded};
use tenure_tests::real::Cluster;
use tenure_tests::wire::Wire;

fn main() -> Result<()> {
    let mut numbers = std::env::args().skip(1).map(|text| text.parse::<u64>());
    let count = usize::try_from(numbers.next().transpose()?.unwrap_or(25))?;
    let first = numbers
        .next()
        .transpose()?
        .unwrap_or_else(seed::of_this_run);
    let (embedded, cluster) = (Embedded::start()?, Cluster::start()?);
    let mut ours = Side::new(Wire::connect(&embedded.kubeconfig())?);
    let mut real = Side::new(cluster.wire()?);
    let (mut seeds, mut seed, mut found) = (Seeded::new(first), first, 0);
    for number in 0..count {
        if let Some(difference) = play(&mut ours, &mut real, number, seed)? {
            found += 1;
            println!("{difference}");
        }
        seed = seeds.number() >> 32;
    }
    println!("{count} sequences of {LENGTH} operations, {found} with a difference");
    Ok(())
}
