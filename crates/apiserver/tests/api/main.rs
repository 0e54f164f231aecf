//! The API over HTTP, by theme.
#![allow(clippy::unwrap_used, reason = "what goes wrong here fails the test")]
#![allow(
    clippy::disallowed_methods,
    reason = "tests wait for a server in this process; no election is decided here"
)]

#[path = "../support/mod.rs"]
mod support;

mod access;
mod admission;
mod apply;
mod audit;
mod classes;
mod concurrency;
mod credentials;
mod custom;
mod defaults;
mod discovery;
mod doubling;
mod expiry;
mod fairness;
mod fencing;
mod kinds;
mod lifecycle;
mod lists;
mod malformed;
mod networking;
mod pods;
mod purge;
mod quotas;
mod responses;
mod revoked;
mod scalers;
mod security;
mod watches;
mod writes;

use serde_json::{Value, json};
use support::{Answer, Server};

const LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces/default/leases";
const MAPS: &str = "/api/v1/namespaces/default/configmaps";

/// A ConfigMap with one value.
fn map(name: &str, value: &str) -> Value {
    json!({"metadata": {"name": name}, "data": {"k": value}})
}

/// Creates an object and asserts success.
async fn create(server: &Server, path: &str, body: Value) -> Answer {
    let answer = server.call("POST", path, Some(body)).await;
    assert_eq!(answer.status, 201, "{}", answer.json());
    answer
}

/// Returns code and reason of a failure, and asserts that it is a valid Status.
fn failure(answer: &Answer) -> (u16, String) {
    let status = answer.json();
    assert_eq!(status["kind"], "Status", "{status}");
    assert_eq!(status["status"], "Failure", "{status}");
    assert_eq!(status["code"], answer.status, "{status}");
    (
        answer.status,
        status["reason"].as_str().expect("reason").to_owned(),
    )
}

fn is(answer: &Answer, code: u16, reason: &str) {
    assert_eq!(
        failure(answer),
        (code, reason.to_owned()),
        "{}",
        answer.json()
    );
}
