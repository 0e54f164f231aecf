//! The life cycle of namespaces: the four permanent ones, and the deletion of others.
//!
//! Deletion of a namespace proceeds as follows:
//!
//! 1. The request marks the namespace.
//! 2. The server deletes all objects in it.
//! 3. When no object is left, the server removes its finalizer, which removes the namespace.
//!
//! Objects with finalizers delay this. Each removal of such an object triggers another check of its namespace. If a
//! controller empties namespaces instead, this server only marks them, and removes them after the controller has
//! removed the finalizer.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Arc, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::future::join_all;
use serde_json::{Value, json};

use super::delete::DeleteOptions;
use super::engine::{Registry, Target, WriteOptions, parsed};
use super::rules::namespace::FINALIZER;
use super::rules::{items, text};
use super::update::Source;
use super::{Kind, Subresource, meta};
use crate::auth::User;
use crate::status::Failure;
use crate::store::{Key, Object, Range, WriteError};

/// Namespaces that exist from the start and cannot be deleted.
const PERMANENT: &[&str] = &["default", "kube-node-lease", "kube-public", "kube-system"];

/// Delays before a failed purge is retried.
const FIRST_RETRY: Duration = Duration::from_millis(100);
const LAST_RETRY: Duration = Duration::from_secs(30);

/// Interval at which servers that share a store search for deletions that no server continues.
const ADOPT: Duration = Duration::from_secs(30);

impl Registry {
    /// Creates the permanent namespaces and resumes unfinished deletions.
    pub(crate) async fn open_namespaces(self: &Arc<Self>) -> Result<(), WriteError> {
        let system = User {
            name: "system:apiserver".into(),
            ..User::default()
        };
        let absent = PERMANENT
            .iter()
            .filter(|name| self.namespace(name).is_none());
        let made = absent.map(async |name| {
            let body = json!({"metadata": {"name": name}});
            let target = Target {
                name,
                ..namespaces()
            };
            let options = WriteOptions::default();
            let made = self.create(&target, body, &system, &options).await;
            match made {
                Err(failure) if self.namespace(name).is_none() => {
                    Err(WriteError::Failed(failure.message))
                }
                _ => Ok(()),
            }
        });
        // Concurrent writes share one disk commit.
        for made in join_all(made).await {
            made?;
        }
        self.purge_ending();
        Ok(())
    }

    /// Periodically resumes deletions that another server started and did not finish, until the registry is dropped.
    pub(crate) fn adopt_purges(self: &Arc<Self>) {
        if !self.store.shared() {
            return;
        }
        let registry = Arc::downgrade(self);
        tokio::spawn(async move {
            loop {
                tokio::time::sleep(ADOPT).await;
                let Some(registry) = registry.upgrade() else {
                    break;
                };
                registry.purge_ending();
            }
        });
    }

    fn purge_ending(self: &Arc<Self>) {
        let range = Range {
            resource: namespaces().kind.storage_key(),
            namespace: None,
            name: None,
        };
        let namespaces = self.store.list(&range, None);
        for namespace in namespaces.map(|l| l.objects).unwrap_or_default() {
            if is_ending(&namespace) {
                self.purge_later(&namespace.key.name);
            }
        }
    }

    pub(super) fn namespace(&self, name: &str) -> Option<Arc<Object>> {
        let resource = namespaces().kind.storage_key();
        self.store.get(&Key {
            resource,
            namespace: String::new(),
            name: name.to_owned(),
        })
    }

    /// Rejects the deletion of permanent namespaces.
    pub(super) fn check_deletable(&self, target: &Target<'_>) -> Result<(), Failure> {
        if target.kind.is_namespace && PERMANENT.contains(&target.name) {
            let name = target.name;
            let message =
                format!("namespaces {name:?} is forbidden: this namespace may not be deleted");
            return Err(Failure::about(
                403,
                "Forbidden",
                ("", "namespaces"),
                name,
                message,
            ));
        }
        Ok(())
    }

    /// Checks the namespace of a removed object, which may be empty now.
    pub(super) fn after_removal(self: &Arc<Self>, target: &Target<'_>) {
        if !target.kind.namespaced {
            return;
        }
        if self
            .namespace(target.namespace)
            .is_some_and(|namespace| is_ending(&namespace))
        {
            self.purge_later(target.namespace);
        }
    }

    /// Starts to empty a namespace that is being deleted.
    ///
    /// At most one purge runs per namespace. Calls during a purge make it check the namespace again at its end. After a
    /// failure, for example of a full disk, it retries until the namespace or the server is gone.
    pub(super) fn purge_later(self: &Arc<Self>, name: &str) {
        if !self.empties_namespaces {
            return;
        }
        match self.purges().entry(name.to_owned()) {
            Entry::Occupied(mut running) => {
                running.insert(true);
                return;
            }
            Entry::Vacant(free) => free.insert(false),
        };
        let (registry, name) = (Arc::downgrade(self), name.to_owned());
        tokio::spawn(async move {
            let mut pause = FIRST_RETRY;
            while let Some(registry) = registry.upgrade() {
                let done = registry.purge(&name).await;
                if let Err(failure) = &done {
                    let error = &failure.message;
                    tracing::warn!(namespace = name, error, "purge not finished; trying again");
                    drop(registry);
                    tokio::time::sleep(pause).await;
                    pause = (pause * 2).min(LAST_RETRY);
                    continue;
                }
                pause = FIRST_RETRY;
                let mut purges = registry.purges();
                match purges.get_mut(&name) {
                    Some(again) if *again => *again = false,
                    _ => {
                        purges.remove(&name);
                        break;
                    }
                }
            }
        });
    }

    fn purges(&self) -> MutexGuard<'_, HashMap<String, bool>> {
        self.purges.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Deletes the objects in a namespace that is being deleted, and then the namespace when it is empty.
    async fn purge(self: &Arc<Self>, name: &str) -> Result<(), Failure> {
        let Some(uid) = self.ending_uid(name)? else {
            return Ok(());
        };
        let mut left = 0;
        // Another server may just have defined a kind and created objects of it.
        self.refresh_definitions();
        let served = self.served();
        let stored = served
            .kinds()
            .into_iter()
            .filter(|kind| kind.namespaced && kind.review.is_none());
        for kind in stored {
            let content = self.content(kind, name);
            // No object is created in a namespace that is being deleted. Therefore, if the uid is still the same, the
            // objects listed before belong to this namespace and not to a successor of the same name.
            if self.ending_uid(name)?.as_ref() != Some(&uid) {
                return Ok(());
            }
            for object in content {
                self.purge_object(kind, &object).await?;
            }
            left += self.content(kind, name).len();
        }
        if left > 0 {
            return Ok(());
        }
        let system = User::default();
        let finalize = |old: &Value| {
            if text(old, "/metadata/uid") != uid {
                return Err(Failure::not_found(("", "namespaces"), name));
            }
            let mut new = old.clone();
            let rest: Vec<Value> = items(old, "/spec/finalizers")
                .iter()
                .filter(|f| *f != FINALIZER)
                .cloned()
                .collect();
            new["spec"]["finalizers"] = json!(rest);
            Ok(new)
        };
        let target = Target {
            name,
            ..namespaces()
        };
        let options = WriteOptions::default();
        let source = Source::Patch(&finalize);
        let finalized = self.update(
            &target,
            Some(Subresource::Finalize),
            source,
            &system,
            &options,
        );
        ignore_absent(finalized.await)
    }

    async fn purge_object(self: &Arc<Self>, kind: &Kind, object: &Object) -> Result<(), Failure> {
        let target = Target {
            kind,
            version: &kind.versions()[0],
            namespace: &object.key.namespace,
            name: &object.key.name,
        };
        let uid = parsed(object).map(|value| text(&value, "/metadata/uid").to_owned())?;
        let background = DeleteOptions {
            propagation: Some("Background".into()),
            uid: Some(uid),
            ..Default::default()
        };
        ignore_absent(Box::pin(self.delete(&target, &background)).await)
    }

    /// Returns the uid of a namespace that is being deleted and waits for its content.
    fn ending_uid(&self, name: &str) -> Result<Option<String>, Failure> {
        let Some(namespace) = self.namespace(name) else {
            return Ok(None);
        };
        let value = parsed(&namespace)?;
        let own = items(&value, "/spec/finalizers")
            .iter()
            .any(|f| f == FINALIZER);
        let ending = meta::is_deleting(&value) && own;
        Ok(ending.then(|| text(&value, "/metadata/uid").to_owned()))
    }

    fn content(&self, kind: &Kind, namespace: &str) -> Vec<Arc<Object>> {
        let range = Range {
            resource: kind.storage_key(),
            namespace: Some(namespace.to_owned()),
            name: None,
        };
        self.store
            .list(&range, None)
            .map(|listing| listing.objects)
            .unwrap_or_default()
    }
}

/// Treats an absent object, or a successor of the same name, as success.
fn ignore_absent<T>(done: Result<T, Failure>) -> Result<(), Failure> {
    match done {
        Err(failure) if !matches!(failure.code, 404 | 409) => Err(failure),
        _ => Ok(()),
    }
}

/// Whether a stored namespace is being deleted.
pub(super) fn is_ending(namespace: &Object) -> bool {
    // Every create calls this, so the common case avoids parsing.
    mentions_deletion(&namespace.json)
        && parsed(namespace).is_ok_and(|value| meta::is_deleting(&value))
}

fn mentions_deletion(json: &[u8]) -> bool {
    const MEMBER: &[u8] = b"\"deletionTimestamp\"";
    json.windows(MEMBER.len()).any(|window| window == MEMBER)
}

fn namespaces() -> Target<'static> {
    let kind = super::find("", "namespaces").expect("namespaces are in the table");
    Target {
        kind,
        version: &kind.versions()[0],
        namespace: "",
        name: "",
    }
}
