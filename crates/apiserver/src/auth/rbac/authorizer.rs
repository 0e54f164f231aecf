//! The policy kept in step with the store.
//!
//! There is no task in the background: a decision first takes in what was committed since the last
//! one, which costs a comparison of two numbers when nothing was. So a role is in force as soon as
//! its write is acknowledged.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use futures_util::FutureExt as _;

use super::Rule;
use super::policy::{Policy, RESOURCES};
use crate::auth::{Attributes, User};
use crate::http::Decision;
use crate::store::{EventKind, Key, Object, Range, Store, Watch};

/// Decides by the roles and bindings in a store.
pub(crate) struct Authorizer {
    store: Arc<dyn Store>,
    policy: RwLock<Policy>,
    /// The store's revision that `policy` is known to be current at.
    revision: AtomicU64,
    watches: Mutex<Vec<Option<Box<dyn Watch>>>>,
}

impl Authorizer {
    /// Reads what the store holds now.
    pub(crate) fn new(store: Arc<dyn Store>) -> Self {
        let this = Self {
            store,
            policy: RwLock::default(),
            revision: AtomicU64::new(0),
            watches: Mutex::new(Vec::new()),
        };
        this.refresh();
        this
    }

    /// Whether one request is allowed.
    pub(crate) fn allows(&self, user: &User, attributes: &Attributes<'_>) -> bool {
        self.read(|policy| policy.allows(user, attributes))
    }

    /// Decides one request, with the reason.
    pub(crate) fn decide(&self, user: &User, attributes: &Attributes<'_>) -> Decision {
        self.read(|policy| policy.decide(user, attributes))
    }

    /// Every rule that the user has in a namespace.
    pub(crate) fn rules(&self, user: &User, namespace: &str) -> Vec<Rule> {
        self.read(|policy| policy.rules(user, namespace))
    }

    pub(super) fn stored(&self, key: &Key) -> Option<Arc<Object>> {
        self.store.get(key)
    }

    pub(super) fn read<T>(&self, with: impl FnOnce(&Policy) -> T) -> T {
        self.refresh();
        with(&self.policy.read().unwrap_or_else(PoisonError::into_inner))
    }

    fn refresh(&self) {
        let now = self.store.revision();
        // A new store is at revision 0, and so is an authorizer that has read nothing: nothing to do.
        if self.revision.load(Ordering::Acquire) == now {
            return;
        }
        let mut watches = self.watches.lock().unwrap_or_else(PoisonError::into_inner);
        if watches.is_empty() {
            watches.resize_with(RESOURCES.len(), || None);
        }
        let lost = watches
            .iter_mut()
            .zip(RESOURCES)
            .any(|(watch, resource)| match watch {
                Some(watch) => !self.drain(watch.as_mut(), resource),
                None => true,
            });
        if lost {
            self.reload(&mut watches);
        }
        self.revision.fetch_max(now, Ordering::AcqRel);
    }

    /// Applies the events that are there; false if some were lost.
    fn drain(&self, watch: &mut dyn Watch, resource: &str) -> bool {
        loop {
            match watch.next().now_or_never() {
                None => return true,
                Some(Err(_)) => return false,
                Some(Ok(event)) => {
                    let removed = event.kind == EventKind::Deleted;
                    let mut policy = self.policy.write().unwrap_or_else(PoisonError::into_inner);
                    policy.apply(resource, &event.object, removed);
                }
            }
        }
    }

    /// Lists everything again and watches from there. A watch that cannot be had is tried again with
    /// the next decision.
    fn reload(&self, watches: &mut [Option<Box<dyn Watch>>]) {
        let mut fresh = Policy::default();
        for (watch, resource) in watches.iter_mut().zip(RESOURCES) {
            let range = Range {
                resource: resource.into(),
                namespace: None,
                name: None,
            };
            let Ok(listing) = self.store.list(&range, None) else {
                *watch = None;
                continue;
            };
            for object in &listing.objects {
                fresh.apply(resource, object, false);
            }
            *watch = self.store.watch(range, listing.revision).ok();
        }
        *self.policy.write().unwrap_or_else(PoisonError::into_inner) = fresh;
    }
}
