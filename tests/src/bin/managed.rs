//! A program on the manager for tests: it does one thing right or wrong, and says what it does.
//!
//! `managed KUBECONFIG WHAT`, where WHAT is one of the cases of [`run`].
#![allow(
    clippy::print_stdout,
    clippy::disallowed_methods,
    reason = "its output is what the tests read; its pauses decide no election"
)]

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::runtime::reflector::Store;
use kube::runtime::watcher;
use kube::{Api, Config};
use tenure_manager::wrangler::LeaderElection;
use tenure_manager::{
    Builder, Cache, Gate, Manager, OnLoss, Outcome, Runnable, Startup, api_ready, run_or_die,
    signals,
};
use tokio::signal::unix::SignalKind;

/// For hooks that hang and work that does not stop.
const SHORT: Duration = Duration::from_millis(500);

#[tokio::main(worker_threads = 2)]
async fn main() -> Result<()> {
    let mut args = std::env::args().skip(1);
    let file = args.next().context("a kubeconfig")?;
    let what = args.next().context("what to do")?;
    let kubeconfig = Kubeconfig::read_from(file)?;
    let options = KubeConfigOptions::default();
    let mut config = Config::from_custom_kubeconfig(kubeconfig, &options).await?;
    config.default_namespace = "default".into();
    run(config, &what).await
}

async fn run(config: Config, what: &str) -> Result<()> {
    let manager = Manager::builder(config.clone()).elections(|election| {
        election
            .lease_duration(Duration::from_secs(3))
            .renew_deadline(Duration::from_millis(1_500))
            .retry_period(Duration::from_millis(200))
    });
    match what {
        "work" => go(manager.leader("g", speaker("work"))).await,
        "gated" => go(manager.gate(api_ready()).leader("g", speaker("work"))).await,
        "demoted" => {
            let maps: Api<ConfigMap> = Api::namespaced(tenure::client(config)?, "default");
            let cache = Cache::new("maps", maps, watcher::Config::default());
            let teller = teller(cache.reader());
            let manager = manager.on_loss(OnLoss::Demote).cache(cache);
            go(manager.every(teller).leader("g", speaker("work"))).await
        }
        "deaf" => {
            let deaf = Runnable::new("deaf", |_| {
                println!("deaf starts");
                std::future::pending::<()>()
            });
            go(manager.every(deaf)).await
        }
        "panic" => {
            let panics = Runnable::new("nodes", |scope| async move {
                assert!(scope.name().is_empty(), "no node");
            });
            go(manager.leader("g", panics)).await
        }
        "block" => go(manager.leader("g", blocker("stuck"))).await,
        "block-all" => go(manager.leader("g", blocker("a")).leader("g", blocker("b"))).await,
        "deaf-leader" => {
            let deaf = Runnable::new("deaf", |_| {
                println!("deaf starts");
                std::future::pending::<()>()
            });
            go(manager.shutdown_timeout(SHORT).leader("g", deaf)).await
        }
        "stuck" => {
            // It blocks a thread, and something else ends the manager.
            let fails = Runnable::new("nodes", |_| async {
                tokio::signal::unix::signal(SignalKind::hangup())?
                    .recv()
                    .await;
                Err::<(), _>(std::io::Error::other("no disk"))
            });
            let manager = manager.shutdown_timeout(SHORT);
            go(manager.every(fails).every(blocker("stuck"))).await
        }
        "stuck-server" => {
            let server = tenure_server::Server::remote(config).with_controllers(|manager, _| {
                manager.shutdown_timeout(SHORT).every(blocker("stuck"))
            });
            Ok(server.start().await?.run_until_signal().await?)
        }
        "slow-start" => {
            let slow = Runnable::new("slow", |scope| async move {
                println!("slow begins to start");
                scope.cancelled().await;
                println!("slow gave up");
            });
            go(manager.leader("g", slow)).await
        }
        "never-ready" => {
            let gate = Gate {
                limit: Duration::from_secs(3),
                ..api_ready()
            };
            go(manager.gate(gate).every(speaker("work"))).await
        }
        "dropped-hook" => go(hook(manager, |startup| async move { drop(startup) })).await,
        "failing-hook" => {
            go(hook(manager, |startup| async move {
                let _keep = startup;
                Err::<(), _>("no seed")
            }))
            .await
        }
        "hanging-hook" => {
            go(hook(manager.hook_timeout(SHORT), |startup| async move {
                let _keep = startup;
                std::future::pending::<()>().await;
            }))
            .await
        }
        "panicking-hook" => {
            go(hook(manager, |startup| async move {
                assert!(startup.client.default_namespace().is_empty(), "no seed");
            }))
            .await
        }
        "idle" => {
            let names = (0..10).map(|n| format!("controller-{n}"));
            go(names.fold(manager, |manager, name| manager.leader("g", speaker(&name)))).await
        }
        "wrangler" => {
            let client = tenure::client(config)?;
            let asked = signals::shutdown()?;
            println!("campaigning");
            LeaderElection::new(client, "w")
                .run_or_die(asked, |tenure| async move {
                    println!("work starts");
                    tenure.cancelled().await;
                    println!("work stopped");
                })
                .await
        }
        "run-or-die" => {
            let panics = async { assert!(what.is_empty(), "no tunnel") };
            run_or_die("tunnel", signals::shutdown()?, panics).await;
            Ok(())
        }
        other => bail!("nobody knows how to {other:?}"),
    }
}

async fn go(manager: Builder) -> Result<()> {
    Ok(manager.build()?.run_until_signal().await?)
}

/// A manager with this hook before its work.
fn hook<F, W>(manager: Builder, hook: F) -> Builder
where
    F: FnOnce(Startup) -> W + Send + 'static,
    W: Future + Send + 'static,
    W::Output: Outcome,
{
    manager.on_startup("seed", hook).every(speaker("work"))
}

/// Blocks its thread for ever.
fn blocker(name: &str) -> Runnable {
    let said = name.to_owned();
    Runnable::new(name, move |scope| {
        let name = said.clone();
        async move {
            println!("{name} starts");
            while !scope.name().is_empty() {
                std::thread::sleep(Duration::from_secs(1));
            }
        }
    })
}

/// Says which config maps come into the cache and which go.
fn teller(cache: Store<ConfigMap>) -> Runnable {
    Runnable::new("teller", move |scope| {
        let cache = cache.clone();
        async move {
            let mut known = BTreeSet::new();
            loop {
                let maps = cache.state();
                let now: BTreeSet<String> = maps
                    .iter()
                    .filter_map(|m| m.metadata.name.clone())
                    .collect();
                now.difference(&known)
                    .for_each(|name| println!("map {name}"));
                known
                    .difference(&now)
                    .for_each(|name| println!("gone {name}"));
                known = now;
                tokio::select! {
                    () = scope.cancelled() => return,
                    () = tokio::time::sleep(Duration::from_millis(20)) => {}
                }
            }
        }
    })
}

/// Says when it starts and when it has stopped.
fn speaker(name: &str) -> Runnable {
    let said = name.to_owned();
    Runnable::new(name, move |scope| {
        let name = said.clone();
        async move {
            println!("{name} starts");
            scope.cancelled().await;
            println!("{name} stopped");
        }
    })
}
