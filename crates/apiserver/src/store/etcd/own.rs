//! Changes of this server's own transactions, known before the watch reports them.
//!
//! Each transaction has its own revision, and its response describes everything that happened at that revision. If no
//! earlier revision is missing, the change is published without waiting for the watch, which then repeats it. A change
//! that is too early stays here until the watch has reached its revision.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::format::removed;
use crate::store::mvcc::{Followed, Mvcc};

/// Unpublished changes, by revision.
#[derive(Debug, Default)]
pub(super) struct Own(Mutex<BTreeMap<u64, Followed>>);

impl Own {
    /// Publishes an own change and the changes that waited for it, unless an earlier revision is missing.
    pub(super) fn publish(&self, change: Followed, mvcc: &Mvcc) {
        let mut own = self.lock();
        own.insert(change.revision, change);
        let mut published = mvcc.revision();
        let mut next = Vec::new();
        while let Some(first) = own.first_entry()
            && *first.key() <= published + 1
        {
            published = published.max(*first.key());
            next.push(first.remove());
        }
        // The watch may deliver the same changes; published revisions are skipped.
        if !next.is_empty() {
            mvcc.follow(next, 0, removed);
        }
    }

    /// Takes the change at a revision that the watch has reached.
    pub(super) fn take(&self, revision: u64) -> Option<Followed> {
        self.lock().remove(&revision)
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<u64, Followed>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::super::record::Draft;
    use super::*;
    use crate::store::Retention;
    use crate::store::batch::Entry;
    use crate::store::testing::key;

    fn change(name: &str, revision: u64) -> Followed {
        let key = key("ns", name);
        let draft = Draft::new(&key, &json!({"metadata": {"name": name}})).unwrap();
        let object = draft.finish(key.clone(), revision);
        let entry = Some(Entry { object, term: 0 });
        Followed {
            key,
            revision,
            entry,
        }
    }

    #[test]
    fn own_change_is_published_after_earlier_revisions() {
        let (own, mvcc) = (Own::default(), Mvcc::new(Retention::default(), 10));
        own.publish(change("c", 13), &mvcc);
        assert_eq!(mvcc.revision(), 10, "revisions 11 and 12 are missing");
        own.publish(change("a", 11), &mvcc);
        assert_eq!(mvcc.revision(), 11);
        own.publish(change("b", 12), &mvcc);
        assert_eq!(mvcc.revision(), 13);
        assert_eq!(mvcc.get(&key("ns", "c")).unwrap().revision, 13);
        assert!(own.lock().is_empty());
    }

    #[test]
    fn own_change_is_published_once() {
        let (own, mvcc) = (Own::default(), Mvcc::new(Retention::default(), 10));
        own.publish(change("a", 12), &mvcc);
        assert_eq!(own.take(12).unwrap().revision, 12);
        assert!(own.take(12).is_none());
        mvcc.follow(vec![change("x", 11), change("a", 12)], 12, removed);
        own.publish(change("x", 11), &mvcc);
        assert_eq!(mvcc.revision(), 12);
        assert!(
            own.lock().is_empty(),
            "a change that is already published must be dropped"
        );
        let version = mvcc.get(&key("ns", "x")).unwrap();
        mvcc.follow(vec![change("x", 11)], 11, removed);
        assert!(std::sync::Arc::ptr_eq(
            &version,
            &mvcc.get(&key("ns", "x")).unwrap()
        ));
        assert_eq!(mvcc.revision(), 12, "the revision must not decrease");
    }
}
