//! A test program based on the manager. Each case has one correct or incorrect behaviour, and prints its actions.
//!
//! `managed KUBECONFIG WHAT [FILE]`, where WHAT is one of the cases of [`run`]. Work under a lock also takes a kernel
//! lock on a file next to the kubeconfig, which is released at the end of the process at the latest. Two processes that
//! run the same work at the same time therefore report it.
#![allow(
    clippy::print_stdout,
    clippy::disallowed_methods,
    reason = "tests read its output, and its pauses decide no election"
)]

use std::collections::BTreeSet;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::runtime::reflector::Store;
use kube::runtime::watcher;
use kube::{Api, Config};
use tenure::Status;
use tenure_manager::wrangler::LeaderElection;
use tenure_manager::{
    Builder, Cache, Cause, Gate, LeaderMigration, Manager, Next, OnLoss, Outcome, Runnable, Scope,
    Startup, Warm, api_ready, run_or_die, signals,
};
use tokio::signal::unix::SignalKind;

/// Time limit for hooks that hang and work that does not stop.
const SHORT: Duration = Duration::from_millis(500);

/// Folder of the kubeconfig, which all processes of a test share.
static FOLDER: OnceLock<PathBuf> = OnceLock::new();

#[tokio::main(worker_threads = 2)]
async fn main() -> Result<()> {
    let mut args = std::env::args().skip(1);
    let file = args.next().context("a kubeconfig")?;
    let what = args.next().context("missing argument: the case to run")?;
    let folder = Path::new(&file).parent().context("its folder")?;
    FOLDER.get_or_init(|| folder.to_owned());
    let kubeconfig = Kubeconfig::read_from(file)?;
    let options = KubeConfigOptions::default();
    let mut config = Config::from_custom_kubeconfig(kubeconfig, &options).await?;
    config.default_namespace = "default".into();
    run(config, &what, args.next().as_deref()).await
}

async fn run(config: Config, what: &str, file: Option<&str>) -> Result<()> {
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
        "deaf" => go(manager.every(deaf())).await,
        "panic" => {
            let panics = Runnable::new("nodes", |scope| async move {
                let _alone = Alone::new(&scope);
                hung_up("nodes starts").await.expect("a signal");
                assert!(scope.name().is_empty(), "no node");
            });
            go(manager.leader("g", panics).leader("g", speaker("work"))).await
        }
        "block" => {
            let manager = manager.every(speaker("bystander"));
            go(manager.leader("g", blocker("stuck"))).await
        }
        "block-all" => go(manager.leader("g", blocker("a")).leader("g", blocker("b"))).await,
        "deaf-leader" => go(manager.shutdown_timeout(SHORT).leader("g", deaf())).await,
        "stuck" => {
            // It blocks a thread, and another error ends the manager.
            let fails = Runnable::new("nodes", |_| async {
                hung_up("nodes starts").await?;
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
        // The first one times out, the second one is stopped.
        "blocking-hook" => go(hook(manager.hook_timeout(SHORT), block)).await,
        "endless-hook" => go(hook(manager, block)).await,
        "panicking-hook" => {
            go(hook(manager, |startup| async move {
                assert!(startup.client.default_namespace().is_empty(), "no seed");
            }))
            .await
        }
        "idle" => {
            let maps: Api<ConfigMap> = Api::namespaced(tenure::client(config)?, "default");
            let names = (0..10).map(|n| format!("controller-{n}"));
            let add =
                |manager: Builder, name: String| manager.warm("g", controller(&name, maps.clone()));
            go(names.fold(manager, add)).await
        }
        "shards" => {
            let manager = manager.hand_over_every(Duration::from_millis(50));
            go(manager.shard("queue", 9, speaker("queue"))).await
        }
        // The argument is the number of shards; with "change" before it, the process waits until it may change the
        // number.
        "keys" => {
            let count = file.context("a number of shards")?;
            let (change, count) = match count.strip_prefix("change-") {
                Some(count) => (true, count),
                None => (false, count),
            };
            let manager = manager
                .elections(|election| {
                    election
                        .lease_duration(Duration::from_secs(5))
                        .renew_deadline(Duration::from_secs(3))
                        .retry_period(Duration::from_secs(1))
                })
                .hand_over_every(Duration::from_millis(20))
                .shard("queue", count.parse()?, keys());
            let manager = match change {
                true => manager.change_shards("queue"),
                false => manager,
            };
            let manager = manager.build()?;
            if let Some(shards) = manager.shards("queue") {
                let mut standing = shards.watch();
                tokio::spawn(async move {
                    while standing.changed().await.is_ok() {
                        println!("{}", *standing.borrow_and_update());
                    }
                });
            }
            Ok(manager.run_until_signal().await?)
        }
        "kcm" | "ccm" => {
            let text = std::fs::read_to_string(file.context("a migration file")?)?;
            // No process dies in these cases, so leases may be long.
            let manager = manager.elections(|election| election);
            let manager = manager.leader_migration(LeaderMigration::parse(&text)?, what);
            let controllers = [&format!("{what}-nodes"), "routes", "services"];
            let add = |manager: Builder, name| manager.leader(what, speaker(name));
            go(controllers.into_iter().fold(manager, add)).await
        }
        "wrangler" | "wrangler-panic" => {
            let panics = what == "wrangler-panic";
            let client = tenure::client(config)?;
            let asked = signals::shutdown()?;
            println!("campaigning");
            LeaderElection::new(client, "w")
                .run_or_die(asked, |tenure| async move {
                    println!("work starts");
                    assert!(!panics, "no work");
                    tenure.cancelled().await;
                    println!("work stopped");
                })
                .await
        }
        "panic-or-die" | "return-or-die" | "run-or-die" => {
            let work = async {
                println!("tunnel starts");
                match what {
                    "return-or-die" => {}
                    "run-or-die" => std::future::pending().await,
                    _ => panic!("no tunnel"),
                }
            };
            run_or_die("tunnel", signals::shutdown()?, work).await;
            println!("tunnel stopped");
            Ok(())
        }
        other => bail!("unknown case {other:?}"),
    }
}

async fn go(manager: Builder) -> Result<()> {
    let manager = manager.build()?;
    if let Some(election) = manager.group("g").and_then(|g| g.election().cloned()) {
        tokio::spawn(async move {
            let mut status = election.watch();
            let follows = |status: &Status| matches!(status, Status::Follower { .. });
            if status.wait_for(follows).await.is_ok() {
                println!("follows");
            }
        });
    }
    Ok(manager.run_until_signal().await?)
}

/// Prints a text, and then waits for SIGHUP.
async fn hung_up(say: &str) -> std::io::Result<()> {
    let mut hangup = tokio::signal::unix::signal(SignalKind::hangup())?;
    println!("{say}");
    hangup.recv().await;
    Ok(())
}

/// Checks that work under a lock runs only once on this machine.
struct Alone(#[expect(dead_code, reason = "closed at the end")] Option<File>);

impl Alone {
    fn new(scope: &Scope) -> Self {
        if scope.token().is_none() {
            return Self(None);
        }
        let folder = FOLDER.get().expect("set at the start");
        let file = File::create(folder.join(format!("managed-{}", full_name(scope))));
        let file = file.expect("a file next to the kubeconfig");
        if file.try_lock().is_err() {
            println!("{} runs twice", full_name(scope));
        }
        Self(Some(file))
    }
}

/// The keys that processes with different numbers of shards share.
const KEYS: u32 = 16;

/// Returns work on the owned keys. It holds a kernel lock on each key as long as it owns the key.
fn keys() -> Runnable {
    Runnable::new("keys", |scope| async move {
        let names = (0..KEYS).map(|n| format!("key-{n}"));
        let owned: Vec<String> = names.filter(|key| scope.owns(key)).collect();
        let folder = FOLDER.get().expect("set at the start");
        let mut files = Vec::new();
        for key in &owned {
            let file = File::create(folder.join(format!("managed-{key}")));
            let file = file.expect("a file next to the kubeconfig");
            if file.try_lock().is_err() {
                println!("{key} runs twice");
            }
            files.push(file);
            println!("{key} starts");
        }
        scope.cancelled().await;
        for (key, file) in owned.iter().zip(files) {
            println!("{key} stopped");
            drop(file);
        }
    })
}

/// Returns the name of the work, with its shard.
fn full_name(scope: &Scope) -> String {
    match scope.shard() {
        Some(shard) => format!("{}.{shard}", scope.name()),
        None => scope.name().to_owned(),
    }
}

/// Returns a controller that reconciles ConfigMaps and prints each one.
fn controller(name: &str, maps: Api<ConfigMap>) -> Warm<ConfigMap> {
    let said = name.to_owned();
    Warm::new(name, maps, watcher::Config::default(), move |request| {
        println!("{said} reconciles {}", request.key.name);
        async { Ok::<_, Cause>(Next::Change) }
    })
}

/// Returns work that ignores its cancellation.
fn deaf() -> Runnable {
    Runnable::new("deaf", |scope| async move {
        let _alone = Alone::new(&scope);
        println!("deaf starts");
        std::future::pending::<()>().await;
    })
}

/// Returns a manager with this hook before its work.
fn hook<F, W>(manager: Builder, hook: F) -> Builder
where
    F: FnOnce(Startup) -> W + Send + 'static,
    W: Future + Send + 'static,
    W::Output: Outcome,
{
    manager.on_startup("seed", hook).every(speaker("work"))
}

/// A hook that blocks its thread forever.
async fn block(startup: Startup) {
    println!("seed starts");
    while !startup.client.default_namespace().is_empty() {
        std::thread::sleep(Duration::from_secs(1));
    }
}

/// Returns work that blocks its thread forever.
fn blocker(name: &str) -> Runnable {
    let said = name.to_owned();
    Runnable::new(name, move |scope| {
        let name = said.clone();
        async move {
            let _alone = Alone::new(&scope);
            println!("{name} starts");
            while !scope.name().is_empty() {
                std::thread::sleep(Duration::from_secs(1));
            }
        }
    })
}

/// Returns work that prints the ConfigMaps that are added to and removed from the cache.
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

/// Returns work that prints when it starts and when it has stopped.
fn speaker(name: &str) -> Runnable {
    Runnable::new(name, |scope| async move {
        let name = full_name(&scope);
        let _alone = Alone::new(&scope);
        println!("{name} starts");
        scope.cancelled().await;
        println!("{name} stopped");
    })
}
