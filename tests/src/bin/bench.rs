//! `cargo xtask bench`: figures for docs/benchmarks.md.
#![allow(clippy::print_stdout, reason = "a tool for people")]

use anyhow::{Result, bail};
use tenure_tests::bench::ALL;

fn main() -> Result<()> {
    let mut names: Vec<String> = std::env::args().skip(1).collect();
    let real = !names.iter().any(|name| name == "--no-real");
    names.retain(|name| name != "--no-real");
    if let Some(unknown) = names
        .iter()
        .find(|name| !ALL.iter().any(|bench| bench.name == **name))
    {
        let known: Vec<_> = ALL.iter().map(|bench| bench.name).collect();
        bail!(
            "no benchmark {unknown:?}: there are {} (all without a name), and --no-real",
            known.join(", ")
        );
    }
    for bench in ALL {
        if names.is_empty() || names.iter().any(|name| name == bench.name) {
            println!("\n{}", (bench.run)(real)?);
        }
    }
    Ok(())
}
