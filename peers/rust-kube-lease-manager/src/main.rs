//! The counterpart of the client-go elector for kube-lease-manager: the same flags as far as they are supported, and
//! the same lines.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use kube::config::{KubeConfigOptions, Kubeconfig};
use kube_lease_manager::LeaseManagerBuilder;
use tokio::signal::unix::{SignalKind, signal};

type Failure = Box<dyn std::error::Error>;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Failure> {
    let args: Vec<String> = std::env::args().collect();
    let flag = |name: &str| {
        let at = args.iter().position(|arg| arg == name);
        at.and_then(|at| args.get(at + 1)).cloned().ok_or(format!("{name} is missing"))
    };
    let seconds = |name: &str| -> Result<u64, Failure> {
        let millis: u64 = flag(name)?.trim_end_matches("ms").parse()?;
        Ok(Duration::from_millis(millis).as_secs())
    };
    let file = Kubeconfig::read_from(flag("--kubeconfig")?)?;
    let config = kube::Config::from_custom_kubeconfig(file, &KubeConfigOptions::default()).await?;
    let id = flag("--id")?;
    let lease = seconds("--lease-duration")?;
    let manager = LeaseManagerBuilder::new(kube::Client::try_from(config)?, flag("--name")?)
        .with_namespace(flag("--namespace")?)
        .with_identity(&id)
        .with_duration(lease)
        // The candidate renews the lease this long before it expires. At that time the renew deadline of client-go
        // would have passed.
        .with_grace(lease - seconds("--renew-deadline")?)
        .build()
        .await?;
    let mut terminate = signal(SignalKind::terminate())?;
    let (mut leading, task) = manager.watch().await;
    loop {
        tokio::select! {
            changed = leading.changed() => changed?,
            _ = terminate.recv() => break,
        }
        let event = if *leading.borrow_and_update() { "acquired" } else { "lost" };
        say(event, &id);
    }
    let led = *leading.borrow();
    drop(leading);
    if led {
        say("lost", &id);
    }
    task.await??;
    Ok(())
}

fn say(event: &str, id: &str) {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos();
    let until = if event == "lost" { format!(r#","until":{now}"#) } else { String::new() };
    println!(r#"{{"t":{now},"event":"{event}","self":"{id}","leader":"{id}"{until}}}"#);
}
