//! Helpers for the tests of this module.

use std::sync::Arc;

use serde_json::{Value, json};

use super::{Change, Expected, Key, Object, Range, Store, Write, WriteError};

pub(super) const LEASES: &str = "coordination.k8s.io/leases";

pub(super) fn key(namespace: &str, name: &str) -> Key {
    Key {
        resource: LEASES.into(),
        namespace: namespace.to_owned(),
        name: name.to_owned(),
    }
}

pub(super) fn everything() -> Range {
    range(None, None)
}

pub(super) fn range(namespace: Option<&str>, name: Option<&str>) -> Range {
    Range {
        resource: LEASES.into(),
        namespace: namespace.map(str::to_owned),
        name: name.map(str::to_owned),
    }
}

pub(super) fn lease(holder: &str, acquire: &str, renew: u64) -> Value {
    json!({
        "metadata": {"labels": {"holder": holder}},
        "spec": {"holderIdentity": holder, "acquireTime": acquire, "renewTime": renew.to_string()},
    })
}

pub(super) fn put(key: &Key, expected: Expected, value: Value) -> Write {
    Write::new(key.clone(), expected, Change::Put(value.into()))
}

pub(super) fn delete(key: &Key, revision: u64) -> Write {
    let expected = Expected::Revision(revision);
    Write::new(key.clone(), expected, Change::Delete)
}

/// Creates or replaces an object unconditionally.
pub(super) async fn set(store: &dyn Store, key: &Key, value: Value) -> Arc<Object> {
    try_set(store, key, value).await.unwrap()
}

pub(super) async fn try_set(
    store: &dyn Store,
    key: &Key,
    value: Value,
) -> Result<Arc<Object>, WriteError> {
    let expected = store.get(key).map_or(Expected::Absent, |object| {
        Expected::Revision(object.revision)
    });
    store.write(put(key, expected, value)).await
}
