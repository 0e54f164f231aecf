//! `cargo xtask bench`: figures for docs/benchmarks.md. Ours and the real peers in one run on one machine,
//! so that the ratios mean something even where the machine is noisy.
#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    clippy::disallowed_methods,
    reason = "a tool for people that measures time"
)]

use anyhow::{Result, bail};
use tenure_tests::candidate::Election;
use tenure_tests::load::{self, Table as Loads};
use tenure_tests::measure::{Table, measure};
use tenure_tests::real::{Cluster, Peer, available};

const HELP: &str = "bench [elections] [apiserver] [--no-real]: all without a name";

fn main() -> Result<()> {
    let mut names: Vec<String> = std::env::args().skip(1).collect();
    let real = !names.iter().any(|name| name == "--no-real");
    names.retain(|name| name != "--no-real");
    if let Some(unknown) = names
        .iter()
        .find(|name| !["elections", "apiserver"].contains(&name.as_str()))
    {
        bail!("no benchmark {unknown:?}\n{HELP}");
    }
    let wanted = |name: &str| names.is_empty() || names.iter().any(|given| given == name);
    if wanted("apiserver") {
        apiserver(real)?;
    }
    if wanted("elections") {
        elections(real)?;
    }
    Ok(())
}

/// Candidates of both makes, on the real kube-apiserver if it can be had, else on ours.
fn elections(real: bool) -> Result<()> {
    let peers = available(&[Peer::Elector]);
    let cluster = if real { Some(Cluster::start()?) } else { None };
    let ours = load::Ours::start()?;
    let (place, kubeconfig) = match &cluster {
        Some(cluster) => ("kube-apiserver + etcd", cluster.kubeconfig()),
        None => ("tenure server", ours.kubeconfig()),
    };
    let mut reports = Vec::new();
    match peers {
        Ok(()) => {
            eprintln!("client-go on {place} ...");
            reports.push(measure(&kubeconfig, "client-go", Election::client_go)?);
        }
        Err(skip) => eprintln!("without client-go: {skip}"),
    }
    eprintln!("tenure on {place} ...");
    reports.push(measure(&kubeconfig, "tenure", Election::library)?);
    println!("\n### Elections on {place}\n\n{}", Table(&reports));
    Ok(())
}

/// Both API servers under the same load.
fn apiserver(real: bool) -> Result<()> {
    let mut reports = Vec::new();
    if real {
        eprintln!("kube-apiserver + etcd ...");
        let began = std::time::Instant::now();
        let cluster = Cluster::start()?;
        let ready = began.elapsed();
        reports.push(load::run(
            "kube-apiserver + etcd",
            &cluster.kubeconfig(),
            &cluster.pids(),
            ready,
        )?);
    }
    eprintln!("tenure server ...");
    let ours = load::Ours::start()?;
    reports.push(load::run(
        "tenure server",
        &ours.kubeconfig(),
        &[ours.pid()],
        ours.ready,
    )?);
    println!("\n### API servers\n\n{}", Loads(&reports));
    Ok(())
}
