//! The basic case: several processes, of which one does the work.
//!
//! Run it in three terminals. One process prints that it leads; the others print the name of the leader. Stop the
//! leader with Ctrl-C and another process takes over immediately. Kill it with `kill -9` and another one takes over
//! when its lease has expired. `kubectl get lease my-lease -o yaml` shows the record.
#![allow(
    clippy::print_stdout,
    clippy::disallowed_methods,
    reason = "the example prints what happens, and its pauses are not deadlines"
)]

use std::time::Duration;

use tenure::{Callbacks, Elector, Tenure};

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    tracing_subscriber::fmt::init();
    let config = kube::Config::infer().await?;
    let client = tenure::client(config)?;

    let me = tenure::identity::host_uuid();
    println!("{me}: campaigning");
    let elector = Elector::lease(client, "default", "my-lease")
        .identity(&me)
        .lease_duration(Duration::from_secs(15))
        .renew_deadline(Duration::from_secs(10))
        .retry_period(Duration::from_secs(2))
        .build()?;

    let callbacks = Callbacks::new(
        |tenure: Tenure| async move {
            println!("started leading, token {}", tenure.token());
            while tenure.is_leading() {
                println!("working, valid for {:?}", tenure.valid_for());
                tokio::select! {
                    () = tenure.cancelled() => {}
                    () = tokio::time::sleep(Duration::from_secs(5)) => {}
                }
            }
        },
        |reason| println!("stopped leading: {}", reason.as_str()),
    )
    .on_new_leader(|leader| println!("new leader: {leader:?}"));

    elector
        .run_callbacks(tokio::signal::ctrl_c(), callbacks)
        .await;
    println!("done, the lease is free");
    Ok(())
}
