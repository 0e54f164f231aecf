//! The life of namespaces: the four that always exist, and the end of the others.
//!
//! Deleting a namespace marks it; then everything in it is deleted, and when nothing is left the
//! server takes its own finalizer off, which removes the namespace. Content with finalizers of its
//! own delays that; each removal of such an object looks at its namespace again.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Arc, MutexGuard, PoisonError};

use serde_json::{Value, json};

use super::delete::DeleteOptions;
use super::engine::{Registry, Target, WriteOptions, parsed};
use super::rules::items;
use super::rules::namespace::FINALIZER;
use super::update::Source;
use super::{Kind, Subresource, meta};
use crate::auth::User;
use crate::status::Failure;
use crate::store::{Key, Object, Range, WriteError};

/// Namespaces that exist from the start and cannot be deleted.
const PERMANENT: &[&str] = &["default", "kube-node-lease", "kube-public", "kube-system"];

impl Registry {
    /// Makes the permanent namespaces and takes up unfinished deletions.
    pub(crate) async fn open_namespaces(self: &Arc<Self>) -> Result<(), WriteError> {
        let system = User {
            name: "system:apiserver".into(),
            ..User::default()
        };
        for name in PERMANENT {
            if self.namespace(name).is_none() {
                let body = json!({"metadata": {"name": name}});
                let target = Target {
                    name,
                    ..namespaces()
                };
                let made = self
                    .create(&target, body, &system, &WriteOptions::default())
                    .await;
                if let Err(failure) = made.map_err(|failure| failure.message)
                    && self.namespace(name).is_none()
                {
                    return Err(WriteError::Failed(failure));
                }
            }
        }
        let range = Range {
            resource: namespaces().kind.storage_key(),
            namespace: None,
            name: None,
        };
        for namespace in self
            .store
            .list(&range, None)
            .map(|l| l.objects)
            .unwrap_or_default()
        {
            if is_ending(&namespace) {
                self.purge_later(&namespace.key.name);
            }
        }
        Ok(())
    }

    pub(super) fn namespace(&self, name: &str) -> Option<Arc<Object>> {
        let resource = namespaces().kind.storage_key();
        self.store.get(&Key {
            resource,
            namespace: String::new(),
            name: name.to_owned(),
        })
    }

    /// The permanent namespaces stay.
    pub(super) fn check_deletable(&self, target: &Target<'_>) -> Result<(), Failure> {
        let is_namespace = target.kind.subresources.contains(&Subresource::Finalize);
        if is_namespace && PERMANENT.contains(&target.name) {
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

    /// Looks after the namespace of an object that has just gone.
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
    /// One purge runs per namespace; what happens meanwhile makes it look again at its end.
    pub(super) fn purge_later(self: &Arc<Self>, name: &str) {
        match self.purges().entry(name.to_owned()) {
            Entry::Occupied(mut running) => {
                running.insert(true);
                return;
            }
            Entry::Vacant(free) => free.insert(false),
        };
        let (registry, name) = (Arc::clone(self), name.to_owned());
        tokio::spawn(async move {
            loop {
                if let Err(failure) = registry.purge(&name).await {
                    tracing::warn!(
                        namespace = name,
                        error = failure.message,
                        "purge not finished"
                    );
                }
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

    async fn purge(self: &Arc<Self>, name: &str) -> Result<(), Failure> {
        let Some(namespace) = self.namespace(name) else {
            return Ok(());
        };
        let value = parsed(&namespace)?;
        let own = items(&value, "/spec/finalizers")
            .iter()
            .any(|f| f == FINALIZER);
        if !meta::is_deleting(&value) || !own {
            return Ok(());
        }
        let mut left = 0;
        let kinds = self.kinds();
        let stored = kinds
            .into_iter()
            .filter(|kind| kind.namespaced && !kind.review);
        for kind in stored {
            for object in self.content(kind, name) {
                let target = Target {
                    kind,
                    version: &kind.versions[0],
                    namespace: name,
                    name: &object.key.name,
                };
                let background = DeleteOptions {
                    propagation: Some("Background".into()),
                    ..Default::default()
                };
                // Gone meanwhile is as good; anything else is counted below.
                _ = Box::pin(self.delete(&target, &background)).await;
            }
            left += self.content(kind, name).len();
        }
        if left > 0 {
            return Ok(());
        }
        let system = User::default();
        let finalize = |old: &Value| {
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
        self.update(
            &target,
            Some(Subresource::Finalize),
            source,
            &system,
            &options,
        )
        .await?;
        Ok(())
    }

    fn content(&self, kind: &'static Kind, namespace: &str) -> Vec<Arc<Object>> {
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

/// Whether a stored namespace is being deleted.
pub(super) fn is_ending(namespace: &Object) -> bool {
    // Every creation asks this, so the common answer is given without parsing.
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
        version: &kind.versions[0],
        namespace: "",
        name: "",
    }
}
