//! `cargo xtask real`: the real kube-apiserver and etcd, for experiments and for tests.

use std::io::Write;
use std::process::ExitCode;

use anyhow::{Result, bail};
use tenure_tests::real::{Detached, Peer, build};

const USAGE: &str = "usage: cargo xtask real build|up|down|status
  build    builds kube-apiserver, etcd and the client-go programs into target/peers
  up       builds what is missing, starts etcd and kube-apiserver on loopback, prints the kubeconfig
  down     ends what `up` started, and nothing else
  status   says what runs";

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
    let cluster = Detached::usual();
    match words.as_slice() {
        ["build"] => Peer::ALL.into_iter().try_for_each(|peer| {
            let path = build(peer)?;
            say(&path.display().to_string());
            Ok(())
        }),
        ["up"] => {
            let (state, started) = cluster.up()?;
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
            say(if cluster.down()? {
                "ended"
            } else {
                "no cluster runs"
            });
            Ok(())
        }
        ["status"] => {
            match cluster.state()? {
                Some(state) if !state.is_whole() => say(&format!(
                    "the cluster is incomplete: only processes {:?} run; `cargo xtask real up` starts a new one",
                    state.running()
                )),
                Some(state) => say(&format!(
                    "running as processes {:?}; export KUBECONFIG={}",
                    state.running(),
                    state.kubeconfig.display()
                )),
                None => say("no cluster runs; `cargo xtask real up` starts one"),
            }
            Ok(())
        }
        _ => bail!("{USAGE}"),
    }
}

/// Prints the result on stdout; progress is on stderr.
#[expect(clippy::print_stdout, reason = "the answer of a command")]
fn say(line: &str) {
    println!("{line}");
}
