//! The etcd engine with a real etcd: the guarantees of every engine, and several servers on one store.
#![allow(
    clippy::disallowed_methods,
    reason = "tests wait for processes; no election is decided here"
)]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![allow(clippy::print_stderr, reason = "what is skipped is said")]

#[path = "../support/mod.rs"]
mod support;

mod encryption;
mod harness;
mod outages;
mod servers;
mod stores;

use std::sync::Arc;

use serde_json::{Value, json};
use tenure_apiserver::store::{
    Change, Expected, Fence, Key, Object, Range, Store, Write, WriteError,
};

fn key(name: &str) -> Key {
    Key {
        resource: "coordination.k8s.io/leases".into(),
        namespace: "ns".to_owned(),
        name: name.to_owned(),
    }
}

fn everything() -> Range {
    Range {
        resource: key("").resource,
        namespace: None,
        name: None,
    }
}

fn put(key: &Key, expected: Expected, value: Value) -> Write {
    Write::new(key.clone(), expected, Change::Put(value.into()))
}

fn delete(key: &Key, revision: u64) -> Write {
    Write {
        change: Change::Delete,
        ..put(key, Expected::Revision(revision), Value::Null)
    }
}

fn under(fence: Fence, write: Write) -> Write {
    Write {
        fence: Some(fence),
        ..write
    }
}

fn value(object: &Object) -> Value {
    serde_json::from_slice(&object.json).unwrap()
}

async fn create(store: &dyn Store, name: &str, n: u64) -> Arc<Object> {
    let write = put(&key(name), Expected::Absent, json!({"n": n}));
    store.write(write).await.unwrap()
}

/// Reads an object as a client of any server does.
async fn read(store: &dyn Store, name: &str) -> Option<Arc<Object>> {
    store.fresh().await.unwrap();
    store.get(&key(name))
}
