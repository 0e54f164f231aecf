//! Many elections in one process: shards, queues, tenants.
//!
//! A hub drives all elections on one task, with one watch for the namespace. If the server supports HTTP/2 (feature
//! `http2`), all renewals share one connection. Run two of these: the second one waits, and takes over everything when
//! the first is stopped.
#![allow(clippy::print_stdout, reason = "the example prints what happens")]

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

    // Two candidates of one process, or of two runs, must have different identities.
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

    // The process leads a shard as long as it holds its `Term`. Dropping the `Term` releases the shard.
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
                        println!("lost a shard: {}", reason.as_str());
                        terms.retain(|term| term.tenure().is_leading());
                    }
                    Some(_) => {}
                    None => continue,
                }
                events.push(next(candidate));
            }
        }
    }

    println!("releasing {} shards", terms.len());
    drop((terms, events));
    hub.ended().await;
    Ok(())
}

/// Returns the next event of a candidate, together with the candidate.
async fn next(mut candidate: Candidate) -> (Candidate, Option<Event>) {
    let event = candidate.next().await;
    (candidate, event)
}
