//! Leads, loses and campaigns again without exiting the process.
//!
//! The work is an ordinary future. It gets a handle that determines from the clock whether the term continues. When the
//! work returns, the term ends and other candidates can lead. When the term is lost, the work is notified and joined,
//! and it is started again with the next term. This example steps down every minute to show a hand-over.
#![allow(
    clippy::print_stdout,
    clippy::disallowed_methods,
    reason = "the example prints what happens, and its pauses are not deadlines"
)]

use std::time::Duration;

use tenure::{Elector, Status};

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    tracing_subscriber::fmt::init();
    let client = tenure::client(kube::Config::infer().await?)?;
    let elector = Elector::lease(client, "default", "campaign-example").build()?;

    let handle = elector.handle();
    let mut status = handle.watch();
    tokio::spawn(async move {
        while status.changed().await.is_ok() {
            match &*status.borrow_and_update() {
                Status::Leader { token, .. } => println!("status: leading, token {token}"),
                Status::Follower { leader } => println!("status: {leader} leads"),
                Status::Unknown => println!("status: nobody leads"),
            }
        }
    });

    let terms = elector
        .campaign(tokio::signal::ctrl_c(), |tenure| {
            let handle = handle.clone();
            async move {
                println!("term {} begins", tenure.token());
                tokio::select! {
                    () = tenure.cancelled() => {}
                    () = tokio::time::sleep(Duration::from_secs(60)) => {
                        handle.step_down(Duration::from_secs(5));
                        tenure.cancelled().await;
                    }
                }
                println!("term {} ends", tenure.token());
            }
        })
        .await;
    println!("{terms} terms");
    Ok(())
}
