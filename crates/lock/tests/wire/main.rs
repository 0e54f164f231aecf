//! Requests of locks, and how they read the responses.

#![allow(
    clippy::unwrap_used,
    reason = "helpers of tests, not only tests, may panic"
)]

mod annotation;
mod api;
mod candidate;
mod contention;
mod election;
mod errors;
mod fixtures;
mod holder;
mod lease;
mod members;
mod multi;
mod recorded;
mod store;

use serde_json::{Value, json};
use tenure_core::{Record, WallTime};

/// 2026-01-02T03:04:05Z.
const NOON: i64 = 1_767_323_045_000_000;

fn record(holder: &str, transitions: u32) -> Record {
    Record {
        holder: holder.to_owned(),
        lease_duration_seconds: 10,
        acquire_time: Some(WallTime::from_micros(NOON)),
        renew_time: Some(WallTime::from_micros(NOON + 2_000_000)),
        transitions,
        ..Record::default()
    }
}

/// Returns a Lease `foo/bar` as the API server sends it.
fn lease(holder: &str, transitions: u32, revision: &str) -> Value {
    json!({
        "kind": "Lease",
        "apiVersion": "coordination.k8s.io/v1",
        "metadata": {
            "name": "bar", "namespace": "foo", "uid": "uid-lease", "resourceVersion": revision,
        },
        "spec": {
            "holderIdentity": holder,
            "leaseDurationSeconds": 10,
            "acquireTime": "2026-01-02T03:04:05.000000Z",
            "renewTime": "2026-01-02T03:04:07.000000Z",
            "leaseTransitions": transitions,
        },
    })
}

const LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces/foo/leases";
const LEASE: &str = "/apis/coordination.k8s.io/v1/namespaces/foo/leases/bar";
