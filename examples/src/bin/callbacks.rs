//! client-go's callbacks, and what is promised about them.
//!
//! - `on_stopped_leading` comes only if `on_started_leading` did, after its future has ended, and
//!   before the lease is given back. (In client-go it comes in any case, waits for nothing, and the
//!   lease may already be somebody else's.)
//! - `on_new_leader` comes in the order of the changes.
//!
//! `run_or_die` panics on an invalid configuration and returns after one term, like client-go's.
#![allow(
    clippy::print_stdout,
    clippy::disallowed_methods,
    reason = "this is what the example shows; its pauses are no deadlines"
)]

use std::sync::Arc;
use std::time::Duration;

use tenure::{Callbacks, Elector, HealthAdaptor, Tenure};

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    tracing_subscriber::fmt::init();
    let client = tenure::client(kube::Config::infer().await?)?;
    let watchdog = Arc::new(HealthAdaptor::new(Duration::from_secs(20)));

    let callbacks = Callbacks::new(
        |tenure: Tenure| async move {
            println!("started leading");
            tenure.cancelled().await;
            println!("winding down");
            // Nobody else leads yet: the lease is kept alive for this, within bounds.
            tokio::time::sleep(Duration::from_millis(200)).await;
        },
        |reason| println!("stopped leading: {}", reason.as_str()),
    )
    .on_new_leader(|leader| println!("new leader: {leader:?}"));

    let ended = Elector::lease(client, "default", "callbacks-example")
        .name("callbacks-example")
        .watchdog(&watchdog)
        .run_or_die(tokio::signal::ctrl_c(), callbacks)
        .await;
    match ended {
        Some(reason) => println!("the term ended: {}", reason.as_str()),
        None => println!("never led"),
    }
    println!("{}: {:?}", watchdog.name(), watchdog.check());
    Ok(())
}
