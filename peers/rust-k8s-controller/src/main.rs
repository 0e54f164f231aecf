//! The counterpart of the client-go elector for k8s-controller's `LeaderElection`: the same flags as far as they are
//! supported, and the same lines.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use k8s_controller::LeaderElection;
use kube::config::{KubeConfigOptions, Kubeconfig};
use tokio::signal::unix::{SignalKind, signal};

type Failure = Box<dyn std::error::Error>;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Failure> {
    let args: Vec<String> = std::env::args().collect();
    let flag = |name: &str| {
        let at = args.iter().position(|arg| arg == name);
        at.and_then(|at| args.get(at + 1)).cloned().ok_or(format!("{name} is missing"))
    };
    let time = |name: &str| -> Result<Duration, Failure> {
        Ok(Duration::from_millis(flag(name)?.trim_end_matches("ms").parse()?))
    };
    let file = Kubeconfig::read_from(flag("--kubeconfig")?)?;
    let config = kube::Config::from_custom_kubeconfig(file, &KubeConfigOptions::default()).await?;
    let client = kube::Client::try_from(config)?;
    let id = flag("--id")?;
    let election = LeaderElection::new(client, &flag("--namespace")?, &flag("--name")?, &id)
        .with_lease_duration(time("--lease-duration")?)
        .with_renew_deadline(time("--renew-deadline")?)
        .with_retry_period(time("--retry-period")?);
    let mut terminate = signal(SignalKind::terminate())?;
    loop {
        let work = async {
            say("acquired", &id);
            let _end = End(&id);
            std::future::pending::<()>().await
        };
        tokio::select! {
            _ = election.with_lease(work) => {}
            _ = terminate.recv() => break,
        }
    }
    // This is the documented order: the work is dropped, then the lease is released.
    election.release().await;
    Ok(())
}

/// Prints the time at which the work was dropped.
struct End<'a>(&'a str);

impl Drop for End<'_> {
    fn drop(&mut self) {
        say("lost", self.0);
    }
}

fn say(event: &str, id: &str) {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos();
    let until = if event == "lost" { format!(r#","until":{now}"#) } else { String::new() };
    println!(r#"{{"t":{now},"event":"{event}","self":"{id}","leader":"{id}"{until}}}"#);
}
