//! A cache of recently written objects in parsed form.
//!
//! A lease is renewed repeatedly, and each renewal starts from the result of the previous one. The cache avoids parsing
//! that result again.
//!
//! Invariant: the value returned for a version equals the result of parsing that version. Each slot contains the
//! version of its value, and returns the value only for that version.

use std::hash::{BuildHasher as _, RandomState};
use std::sync::{Arc, Mutex, PoisonError};

use serde_json::Value;

use super::meta;
use crate::store::{Key, Object};

/// Number of slots. Two objects with the same slot evict each other.
const SLOTS: usize = 256;

/// Maximum size of a cached object in serialized form, in bytes, so that a slot costs only kilobytes.
const LONGEST: usize = 4096;

type Slot = Mutex<Option<(Arc<Object>, Value)>>;

pub(super) struct Recent {
    slots: Box<[Slot]>,
    hasher: RandomState,
}

impl Recent {
    pub(super) fn new() -> Self {
        Self {
            slots: (0..SLOTS).map(|_| Slot::default()).collect(),
            hasher: RandomState::new(),
        }
    }

    /// Removes and returns the value of a version, if it is cached.
    pub(super) fn take(&self, version: &Arc<Object>) -> Option<Value> {
        let mut slot = self.slot(&version.key);
        let is_it = slot
            .as_ref()
            .is_some_and(|(of, _)| Arc::ptr_eq(of, version));
        let (_, value) = slot.take_if(|_| is_it)?;
        debug_assert_eq!(
            serde_json::from_slice(&version.json).ok(),
            Some(value.clone())
        );
        Some(value)
    }

    /// Caches the value that was stored as this version.
    pub(super) fn insert(&self, version: &Arc<Object>, mut value: Value) {
        if version.json.len() <= LONGEST {
            let revision = Value::String(version.revision.to_string());
            meta::metadata(&mut value).insert("resourceVersion".into(), revision);
            *self.slot(&version.key) = Some((Arc::clone(version), value));
        }
    }

    fn slot(&self, key: &Key) -> std::sync::MutexGuard<'_, Option<(Arc<Object>, Value)>> {
        let place = usize::try_from(self.hasher.hash_one(key) % SLOTS as u64).unwrap_or_default();
        // A slot is consistent even if a panic poisoned its lock.
        self.slots[place]
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use serde_json::json;

    use super::*;

    fn version(name: &str, revision: u64, text: &str) -> Arc<Object> {
        let key = Key {
            resource: "leases".into(),
            namespace: "default".to_owned(),
            name: name.to_owned(),
        };
        let json = json!({"metadata": {"resourceVersion": revision.to_string()}, "text": text});
        Arc::new(Object {
            key,
            revision,
            labels: Default::default(),
            json: Bytes::from(json.to_string()),
        })
    }

    #[test]
    fn cached_value_is_returned_once_for_its_version() {
        let recent = Recent::new();
        let (old, new) = (version("x", 7, "a"), version("x", 8, "a"));
        recent.insert(
            &old,
            json!({"metadata": {"resourceVersion": "6"}, "text": "a"}),
        );
        assert_eq!(recent.take(&new), None);
        assert_eq!(
            recent.take(&version("x", 7, "a")),
            None,
            "another object with the same revision"
        );
        assert_eq!(
            recent.take(&old).unwrap()["metadata"]["resourceVersion"],
            "7"
        );
        assert_eq!(recent.take(&old), None);
    }

    #[test]
    fn cache_holds_the_last_version_and_no_large_objects() {
        let recent = Recent::new();
        let (old, new) = (version("x", 7, "a"), version("x", 8, "b"));
        recent.insert(&old, json!({"text": "a"}));
        recent.insert(&new, json!({"text": "b"}));
        assert_eq!(recent.take(&old), None);
        assert_eq!(recent.take(&new).unwrap()["text"], "b");
        let much = "x".repeat(LONGEST);
        let large = version("x", 9, &much);
        recent.insert(&large, json!({"text": much}));
        assert_eq!(recent.take(&large), None);
    }
}
