//! `cargo xtask real`: the real kube-apiserver and etcd, for trying things out and for tests.

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use tenure_tests::bench::elections;
use tenure_tests::candidate::Election;
use tenure_tests::real::{Cluster, Peer, build, down, state, up};

const USAGE: &str = "usage: cargo xtask real build|up|down|status|measure
  build    builds kube-apiserver, etcd and the client-go programs into target/peers
  up       builds what is missing, starts etcd and kube-apiserver on loopback, prints the kubeconfig
  down     ends what `up` started, and nothing else
  status   says what runs
  measure  measures client-go and tenure, on a cluster of its own or on --kubeconfig FILE";

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            _ = writeln!(std::io::stderr(), "{error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = args.iter().map(String::as_str).collect();
    match words.as_slice() {
        ["build"] => Peer::ALL.into_iter().try_for_each(|peer| {
            let path = build(peer)?;
            say(&path.display().to_string());
            Ok(())
        }),
        ["up"] => {
            let (state, started) = up()?;
            let verb = if started {
                "started"
            } else {
                "already running"
            };
            say(&format!(
                "{verb}; export KUBECONFIG={}",
                state.kubeconfig.display()
            ));
            Ok(())
        }
        ["down"] => {
            say(if down()? { "ended" } else { "nothing runs" });
            Ok(())
        }
        ["status"] => {
            match state()? {
                Some(state) => say(&format!(
                    "running as processes {:?}; export KUBECONFIG={}",
                    state.running(),
                    state.kubeconfig.display()
                )),
                None => say("nothing runs; `cargo xtask real up` starts it"),
            }
            Ok(())
        }
        ["measure", rest @ ..] => measure_all(rest),
        _ => bail!("{USAGE}"),
    }
}

fn measure_all(args: &[&str]) -> Result<()> {
    let (cluster, kubeconfig) = match args {
        [] => {
            let cluster = Cluster::start()?;
            let kubeconfig = cluster.kubeconfig();
            (Some(cluster), kubeconfig)
        }
        ["--kubeconfig", file] => (None, PathBuf::from(file)),
        _ => bail!("{USAGE}"),
    };
    let makes: [(_, elections::Start); 2] = [
        ("client-go", Election::client_go),
        (
            if cfg!(debug_assertions) {
                "tenure, not optimised"
            } else {
                "tenure"
            },
            Election::library,
        ),
    ];
    let mut reports = Vec::new();
    for (make, start) in makes {
        reports.push(elections::measure(&kubeconfig, make, start, &[]).context(make)?);
    }
    say(&elections::Table(&reports).to_string());
    drop(cluster);
    Ok(())
}

/// The command's answer, on stdout; progress is on stderr.
#[expect(clippy::print_stdout, reason = "the answer of a command")]
fn say(line: &str) {
    println!("{line}");
}
