//! Many elections in one process: shards, queues, tenants.
//!
//! A hub drives them all on one task, with one watch for the namespace, and one connection for all
//! renewals where the server speaks HTTP/2 (feature `http2`). Run two of these: the second waits, and takes over everything when the first is stopped.
#![allow(clippy::print_stdout, reason = "this is what the example shows")]

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use tenure::{Candidate, Elector, Event, Hub};

#[tokio::main(flavor = "current_thread")]
async fn main() -> anyhow::Result<()> {
    tracing_subscriber::fmt::init();
    let shards: usize = std::env::args()
        .nth(1)
        .map_or(Ok(100), |text| text.parse())?;
    let client = tenure::client_http2(kube::Config::infer().await?)?;
    let hub = Hub::new(client.clone());

    // Two candidacies of one process, or of two runs, must not look alike.
    let identity = tenure::identity::host_uuid();
    let mut events = FuturesUnordered::new();
    for shard in 0..shards {
        let elector = Elector::lease(client.clone(), "default", &format!("shard-{shard}"))
            .hub(&hub)
            .identity(&identity)
            .events(false)
            .build()?;
        events.push(next(elector.start()));
    }

    // Holding a `Term` is leading; dropping it gives the shard away.
    let mut terms = Vec::new();
    let mut shutdown = std::pin::pin!(tokio::signal::ctrl_c());
    loop {
        tokio::select! {
            _ = &mut shutdown => break,
            Some((candidate, event)) = events.next() => {
                match event {
                    Some(Event::Lead(term)) => {
                        terms.push(term);
                        if terms.len() == shards {
                            println!("leading {shards} shards");
                        }
                    }
                    Some(Event::Stop(reason)) => {
                        println!("lost one: {}", reason.as_str());
                        terms.retain(|term| term.is_leading());
                    }
                    Some(_) => {}
                    None => continue,
                }
                events.push(next(candidate));
            }
        }
    }

    println!("giving {} shards away", terms.len());
    drop((terms, events));
    hub.ended().await;
    Ok(())
}

/// The next event of a candidate, and the candidate again.
async fn next(mut candidate: Candidate) -> (Candidate, Option<Event>) {
    let event = candidate.next().await;
    (candidate, event)
}
