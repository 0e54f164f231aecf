//! The cost of fair shares.

use std::time::{Duration, Instant};

use bytes::Bytes;
use http::Request;
use http_body_util::Full;
use serde_json::json;
use tenure_apiserver::server::Builder;
use tokio::task::JoinSet;

use super::{Attacked, connect};
use crate::LEASES;
use crate::support::Answer;

/// Not a test: prints the writes of Leases per second with and without fair shares, in turns. For
/// `cargo test --release --test api -- --ignored --nocapture lease_writes`.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "a measurement"]
async fn lease_writes_with_and_without_fair_shares() {
    let fair = Attacked::start(|builder| builder).await;
    let plain = Attacked::start(Builder::without_fairness).await;
    for clients in [1, 32] {
        let mut counts = [0, 0];
        for round in 0..8 {
            // Alternates the order, so that neither variant is always measured first.
            for turn in [round % 2, 1 - round % 2] {
                let server = [&fair, &plain][turn];
                counts[turn] += count_writes(server, clients, Duration::from_secs(1)).await;
            }
        }
        let [with, without] = counts.map(|count| count as f64 / 8.0);
        let ratio = with / without;
        println!("{clients} clients: {with:.0}/s with, {without:.0}/s without, {ratio:.3}");
    }
}

/// Writes Leases for some time, one for each client.
async fn count_writes(server: &Attacked, clients: usize, span: Duration) -> usize {
    let mut tasks = JoinSet::new();
    for client in 0..clients {
        let address = server.address;
        let name = format!("w-{client}");
        let lease = json!({"metadata": {"name": name}});
        server.send("alice", "POST", LEASES, lease).await;
        tasks.spawn(async move {
            let mut sender = connect(address).await;
            let end = Instant::now() + span;
            let mut count = 0;
            while Instant::now() < end {
                let body = format!("{{\"spec\":{{\"leaseTransitions\":{count}}}}}");
                let request = Request::patch(format!("{LEASES}/{name}"))
                    .header("host", "localhost")
                    .header("authorization", "Bearer alice")
                    .header("content-type", "application/merge-patch+json")
                    .body(Full::new(Bytes::from(body)));
                let answer = sender.send_request(request.unwrap()).await.unwrap();
                assert_eq!(Answer::of(answer).await.status, 200);
                count += 1;
            }
            count
        });
    }
    tasks.join_all().await.into_iter().sum()
}
