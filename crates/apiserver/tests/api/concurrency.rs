//! Concurrent writers.

use std::sync::Arc;

use serde_json::json;

use crate::support::Server;
use crate::{LEASES, MAPS, create, map};

/// Only one PUT with a given version succeeds.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn compare_and_set_has_one_winner_per_round() {
    let server = Arc::new(Server::start().await);
    create(&server, LEASES, json!({"metadata": {"name": "l"}})).await;
    let path = format!("{LEASES}/l");
    for round in 0..20 {
        let read = server.call("GET", &path, None).await.json();
        let mut racers = tokio::task::JoinSet::new();
        for racer in 0..4 {
            let (server, path) = (Arc::clone(&server), path.clone());
            let mut body = read.clone();
            body["spec"]["holderIdentity"] = json!(format!("{round}-{racer}"));
            racers.spawn(async move { server.call("PUT", &path, Some(body)).await.status });
        }
        let mut codes = racers.join_all().await;
        codes.sort_unstable();
        assert_eq!(codes, [200, 409, 409, 409]);
    }
}

/// Patches without a version are retried after a conflict, so that none is lost.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_patch_is_lost() {
    let server = Arc::new(Server::start().await);
    create(&server, MAPS, map("m", "0")).await;
    let mut writers = tokio::task::JoinSet::new();
    for writer in 0..8 {
        let server = Arc::clone(&server);
        writers.spawn(async move {
            for round in 0..10 {
                let change = json!({"data": {(format!("w{writer}-{round}")): "x"}});
                let answer = server
                    .call("PATCH", &format!("{MAPS}/m"), Some(change))
                    .await;
                assert_eq!(answer.status, 200, "{}", answer.json());
            }
        });
    }
    writers.join_all().await;
    let data = server.call("GET", &format!("{MAPS}/m"), None).await.json();
    assert_eq!(data["data"].as_object().map(serde_json::Map::len), Some(81));
}

/// Exactly one of several concurrent creates of a name succeeds, including creates by PUT.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn concurrent_creates_have_one_winner() {
    let server = Arc::new(Server::start().await);
    for round in 0..10 {
        let name = format!("l{round}");
        let mut racers = tokio::task::JoinSet::new();
        for racer in 0..4 {
            let (server, name) = (Arc::clone(&server), name.clone());
            racers.spawn(async move {
                let body = json!({"metadata": {"name": name}, "spec": {"holderIdentity": racer.to_string()}});
                if racer % 2 == 0 {
                    server.call("POST", LEASES, Some(body)).await.status
                } else {
                    server.call("PUT", &format!("{LEASES}/{name}"), Some(body)).await.status
                }
            });
        }
        let codes = racers.join_all().await;
        assert_eq!(
            codes.iter().filter(|code| **code == 201).count(),
            1,
            "{codes:?}"
        );
        assert!(
            codes.iter().all(|code| matches!(code, 201 | 409 | 422)),
            "{codes:?}"
        );
    }
}
