//! client-go's callbacks, and the guarantees about them.
//!
//! - `on_stopped_leading` is called only if `on_started_leading` was called, after its future has ended, and before the
//!   lease is released. (client-go always calls it, and does not wait for the work, so the lease may already
//!   belong to another candidate.)
//! - `on_new_leader` is called in the order of the changes.
//!
//! Like client-go's function, `run_or_die` panics on an invalid configuration and returns after one term.
#![allow(
    clippy::print_stdout,
    clippy::disallowed_methods,
    reason = "the example prints what happens, and its pauses are not deadlines"
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
            // The lease is still renewed here for a limited time, so no other candidate leads yet.
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
