//! The life cycle of namespaces: the four permanent ones, and the deletion of others.
//!
//! Deletion of a namespace proceeds as follows:
//!
//! 1. The request marks the namespace.
//! 2. The server deletes the pods in it, and after they are gone all other objects.
//! 3. When no object is left, the server removes its finalizer, which removes the namespace.
//!
//! Objects with finalizers delay this. Each removal of such an object triggers another check of its namespace. If a
//! controller empties namespaces instead, this server only marks them, and removes them after the controller has
//! removed the finalizer.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::future::{join, join_all};
use jiff::Timestamp;
use serde_json::{Value, json};

use super::delete::DeleteOptions;
use super::engine::{Registry, Target, WriteOptions, parsed};
use super::rules::namespace::{FINALIZER, Problem, set_conditions};
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

/// Interval at which the servers on a shared store search for deletions that no server continues.
const ADOPT: Duration = Duration::from_secs(30);

/// What is left of a namespace that is being deleted.
#[derive(Default)]
struct Progress {
    /// Number of objects by resource.
    resources: BTreeMap<String, usize>,
    /// Number of objects by finalizer.
    finalizers: BTreeMap<String, usize>,
    /// Errors of deletions, at most one for each kind.
    failures: Vec<Failure>,
}

impl Progress {
    fn count(&mut self, kind: &Kind, objects: &[Arc<Object>]) {
        if objects.is_empty() {
            return;
        }
        let (group, plural) = kind.resource();
        let resource = format!("{plural}.{group}");
        self.resources.insert(resource, objects.len());
        for object in objects {
            let object = parsed(object).unwrap_or_default();
            for finalizer in items(&object, "/metadata/finalizers") {
                let name = finalizer.as_str().unwrap_or_default().to_owned();
                *self.finalizers.entry(name).or_default() += 1;
            }
        }
    }

    /// Returns the conditions that hold, in the texts of the real server.
    fn problems(&self) -> Vec<Problem> {
        let mut out = Vec::new();
        if !self.failures.is_empty() {
            let count = self.failures.len();
            let failures = self.failures.iter().map(|failure| failure.message.as_str());
            let mut failures: Vec<&str> = failures.collect();
            failures.sort_unstable();
            let failures = failures.join(", ");
            out.push(Problem {
                kind: "NamespaceDeletionContentFailure",
                reason: "ContentDeletionFailed",
                message: format!(
                    "Failed to delete all resource types, {count} remaining: {failures}"
                ),
            });
        }
        let list = |counts: &BTreeMap<String, usize>, verb: &str| -> String {
            let parts = counts.iter();
            let parts =
                parts.map(|(name, count)| format!("{name} {verb} {count} resource instances"));
            parts.collect::<Vec<_>>().join(", ")
        };
        if !self.resources.is_empty() {
            let resources = list(&self.resources, "has");
            out.push(Problem {
                kind: "NamespaceContentRemaining",
                reason: "SomeResourcesRemain",
                message: format!("Some resources are remaining: {resources}"),
            });
        }
        if !self.finalizers.is_empty() {
            let finalizers = list(&self.finalizers, "in");
            out.push(Problem {
                kind: "NamespaceFinalizersRemaining",
                reason: "SomeFinalizersRemain",
                message: format!(
                    "Some content in the namespace has finalizers remaining: {finalizers}"
                ),
            });
        }
        out
    }
}

impl Registry {
    /// Creates the permanent namespaces and priority classes, and resumes unfinished deletions.
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
        let (namespaces, classes) = join(join_all(made), self.open_priority_classes()).await;
        for made in namespaces {
            made?;
        }
        classes?;
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

    /// Deletes the objects in a namespace that is being deleted, and then the namespace when it is empty. Other objects
    /// stay until the pods are gone, because pods may use them until they end.
    async fn purge(self: &Arc<Self>, name: &str) -> Result<(), Failure> {
        let Some(uid) = self.ending_uid(name)? else {
            return Ok(());
        };
        // Another server may just have defined a kind and created objects of it.
        self.refresh_definitions();
        let served = self.served();
        let stored = served
            .kinds()
            .into_iter()
            .filter(|kind| kind.namespaced && kind.review.is_none());
        let is_pods = |kind: &Kind| kind.resource() == ("", "pods");
        let (pods, others): (Vec<&Kind>, Vec<&Kind>) = stored.partition(|kind| is_pods(kind));
        let mut progress = Progress::default();
        let mut waits_for_pods = false;
        for kind in pods.into_iter().chain(others) {
            let content = self.content(kind, name);
            // No object is created in a namespace that is being deleted. Therefore, if the uid is still the same, the
            // objects listed before belong to this namespace and not to a successor of the same name.
            if self.ending_uid(name)?.as_ref() != Some(&uid) {
                return Ok(());
            }
            let mut failure = None;
            for object in content {
                if let Err(why) = self.purge_object(kind, &object).await {
                    failure = Some(why);
                    break;
                }
            }
            progress.failures.extend(failure);
            progress.count(kind, &self.content(kind, name));
            if is_pods(kind) && !progress.resources.is_empty() {
                waits_for_pods = true;
                // The real server reports no remaining content while it waits for pods.
                progress.resources.clear();
                progress.finalizers.clear();
                break;
            }
        }
        self.show_progress(name, &uid, &progress).await?;
        if let Some(failure) = progress.failures.into_iter().next() {
            return Err(failure);
        }
        if waits_for_pods || !progress.resources.is_empty() {
            return Ok(());
        }
        self.finalize(name, &uid).await
    }

    /// Sets the conditions of a namespace that is being deleted.
    async fn show_progress(
        self: &Arc<Self>,
        name: &str,
        uid: &str,
        progress: &Progress,
    ) -> Result<(), Failure> {
        let problems = progress.problems();
        let now = meta::rfc3339(Timestamp::now());
        let show = |old: &Value| {
            if text(old, "/metadata/uid") != uid {
                return Err(Failure::not_found(("", "namespaces"), name));
            }
            let mut new = old.clone();
            set_conditions(&mut new, &problems, &now);
            Ok(new)
        };
        self.change_namespace(name, Subresource::Status, &show)
            .await
    }

    /// Removes the finalizer of an empty namespace.
    async fn finalize(self: &Arc<Self>, name: &str, uid: &str) -> Result<(), Failure> {
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
        self.change_namespace(name, Subresource::Finalize, &finalize)
            .await
    }

    async fn change_namespace(
        self: &Arc<Self>,
        name: &str,
        part: Subresource,
        change: &(dyn Fn(&Value) -> Result<Value, Failure> + Send + Sync),
    ) -> Result<(), Failure> {
        let target = Target {
            name,
            ..namespaces()
        };
        let (system, options) = (User::default(), WriteOptions::default());
        let source = Source::Patch(change);
        let changed = self.update(&target, Some(part), source, &system, &options);
        ignore_absent(changed.await)
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

/// Rejects the deletion of permanent namespaces.
pub(super) fn check_deletion(target: &Target<'_>) -> Result<(), Failure> {
    if !PERMANENT.contains(&target.name) {
        return Ok(());
    }
    let why = "this namespace may not be deleted";
    Err(super::pods::forbidden(target, target.name, why))
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
