//! `cargo xtask bench`: measurements for docs/book/explanation/benchmarks.md.
#![allow(clippy::print_stdout, reason = "a command line tool")]

use anyhow::{Result, bail};
use tenure_tests::bench::{ALL, write_documentation, write_section};

fn main() -> Result<()> {
    let mut names: Vec<String> = std::env::args().skip(1).collect();
    let real = !names.iter().any(|name| name == "--no-real");
    let write = names.iter().any(|name| name == "--write");
    names.retain(|name| name != "--no-real" && name != "--write");
    if write {
        write_documentation();
    }
    if let Some(unknown) = names
        .iter()
        .find(|name| !ALL.iter().any(|bench| bench.name == **name))
    {
        let known: Vec<_> = ALL.iter().map(|bench| bench.name).collect();
        bail!(
            "no benchmark {unknown:?}: there are {} (all without a name), --no-real, \
             and --write for docs/book/explanation/benchmarks.md",
            known.join(", ")
        );
    }
    for bench in ALL {
        if names.is_empty() || names.iter().any(|name| name == bench.name) {
            let section = (bench.run)(real)?;
            println!("\n{section}");
            if write {
                write_section(bench.name, &section)?;
            }
        }
    }
    Ok(())
}
