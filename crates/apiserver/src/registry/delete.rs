//! Deletes objects: immediately, after a grace period, or when the last finalizer is removed.

use std::sync::Arc;

use bytes::Bytes;
use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

use super::engine::{ATTEMPTS, Registry, Target, WriteOptions, parsed, unparsed};
use super::meta;
use super::rules::{items, pod, text};
use crate::status::Failure;
use crate::store::{Change, Expected, Object};

/// Finalizers for a garbage collector: `orphan` keeps the dependents, `foregroundDeletion` deletes them first.
const ORPHAN: &str = "orphan";
const FOREGROUND: &str = "foregroundDeletion";

/// Options of a deletion.
#[derive(Clone, Debug, Default)]
pub(crate) struct DeleteOptions {
    /// Grace period in seconds, for kinds that have one.
    pub(crate) grace_seconds: Option<i64>,
    /// Precondition: the uid of the object.
    pub(crate) uid: Option<String>,
    /// Precondition: the version of the object.
    pub(crate) resource_version: Option<String>,
    /// `Orphan`, `Background` or `Foreground`.
    pub(crate) propagation: Option<String>,
    /// The client sent `orphanDependents: false`.
    pub(crate) cascade_in_old_way: bool,
    /// Options of the write.
    pub(crate) write: WriteOptions,
}

/// Result of a deletion.
pub(crate) enum Deleted {
    /// The object is deleted. Contains its last state.
    Gone(Bytes),
    /// The object waits for its finalizers or its grace period. Contains its current state.
    Ending(Bytes),
}

/// Next step of a deletion.
enum Step {
    Remove,
    Mark(Value),
    /// Marks the object, so that watchers see the deletion timestamp, and then removes it.
    MarkAndRemove(Value),
    Nothing,
}

impl Registry {
    /// Deletes one object.
    pub(crate) async fn delete(
        self: &Arc<Self>,
        target: &Target<'_>,
        options: &DeleteOptions,
    ) -> Result<Deleted, Failure> {
        let seen = self.store.revision();
        let done = match self.delete_now(target, options).await {
            Err(failure) if self.outdated(seen, &failure).await? => {
                self.delete_now(target, options).await
            }
            done => done,
        };
        let is_service = target.kind.resource() == ("", "services");
        if is_service && !options.write.dry_run && matches!(done, Ok(Deleted::Gone(_))) {
            self.delete_endpoints(target).await;
        }
        done
    }

    /// Deletes the Endpoints of a deleted Service. As in the real server, the response does not depend on the result.
    async fn delete_endpoints(self: &Arc<Self>, service: &Target<'_>) {
        let Some(kind) = super::find("", "endpoints") else {
            return;
        };
        let endpoints = Target {
            kind,
            version: &kind.versions()[0],
            ..*service
        };
        match self.delete_now(&endpoints, &DeleteOptions::default()).await {
            Err(failure) if failure.code != 404 => {
                let (service, error) = (service.name, &failure.message);
                tracing::warn!(service, error, "cannot delete the Endpoints of a Service");
            }
            _ => {}
        }
    }

    async fn delete_now(
        self: &Arc<Self>,
        target: &Target<'_>,
        options: &DeleteOptions,
    ) -> Result<Deleted, Failure> {
        (target.kind.check_delete)(target)?;
        let is_namespace = target.kind.is_namespace;
        for _ in 0..ATTEMPTS {
            let current = self.get(target)?;
            let mut old = parsed(&current)?;
            check_preconditions(target, options, &current, &old)?;
            if target.kind.is_definition() && !meta::is_deleting(&old) {
                Self::mark_definition(&mut old);
            }
            let step = next_step(target, options, &old, is_namespace);
            let dry = options.write.dry_run;
            if dry || matches!(step, Step::Nothing) {
                if !self.is_current(&current).await? {
                    continue;
                }
                self.check_fence(target, &options.write)?;
            }
            let change = match step {
                Step::Nothing => {
                    // An earlier request may have marked the namespace and ended before it could start the purge.
                    if is_namespace && !dry {
                        self.purge_later(target.name);
                    }
                    return Ok(Deleted::Ending(current.json.clone()));
                }
                Step::Mark(new) if dry => return Ok(Deleted::Ending(unparsed(&new))),
                Step::MarkAndRemove(new) if dry => return Ok(Deleted::Gone(unparsed(&new))),
                Step::Remove if dry => return Ok(Deleted::Gone(current.json.clone())),
                Step::MarkAndRemove(new) => {
                    let expected = Expected::Revision(current.revision);
                    let (key, change) = (target.key(), Change::Put(new.into()));
                    let marked = self
                        .write(target, key, expected, change, &options.write)
                        .await?;
                    let Some(marked) = marked else { continue };
                    let expected = Expected::Revision(marked.revision);
                    // Another client may have removed the object in between. It is deleted in either case.
                    let removed = Box::pin(self.remove(target, &old, expected, &options.write));
                    let removed = removed.await?;
                    self.after_removal(target);
                    return Ok(Deleted::Gone(removed.unwrap_or(marked).json.clone()));
                }
                Step::Remove => {
                    let expected = Expected::Revision(current.revision);
                    let removed = Box::pin(self.remove(target, &old, expected, &options.write));
                    let Some(removed) = removed.await? else {
                        continue;
                    };
                    self.after_removal(target);
                    return Ok(Deleted::Gone(removed.json.clone()));
                }
                Step::Mark(new) => Change::Put(new.into()),
            };
            let expected = Expected::Revision(current.revision);
            let marked = self
                .write(target, target.key(), expected, change, &options.write)
                .await?;
            if let Some(marked) = marked {
                if is_namespace {
                    self.purge_later(target.name);
                }
                return Ok(Deleted::Ending(marked.json.clone()));
            }
        }
        Err(Failure::modified(target.kind.resource(), target.name))
    }
}

/// Checks the uid and the version that the client expects.
pub(super) fn check_preconditions(
    target: &Target<'_>,
    options: &DeleteOptions,
    current: &Object,
    old: &Value,
) -> Result<(), Failure> {
    let is_namespace = target.kind.is_namespace;
    let kind = if is_namespace {
        target.kind.resource()
    } else {
        target.kind.group_kind()
    };
    let uid = text(old, "/metadata/uid");
    if let Some(wanted) = options.uid.as_deref().filter(|wanted| *wanted != uid) {
        let why = format!(
            "the UID in the precondition ({wanted}) does not match the UID in record ({uid}). The \
             object might have been deleted and then recreated"
        );
        return Err(Failure::conflict(kind, target.name, &why));
    }
    let revision = current.revision.to_string();
    if let Some(wanted) = options
        .resource_version
        .as_deref()
        .filter(|wanted| *wanted != revision)
    {
        let why = format!(
            "the ResourceVersion in the precondition ({wanted}) does not match the \
             ResourceVersion in record ({revision}). The object might have been modified"
        );
        return Err(Failure::conflict(kind, target.name, &why));
    }
    Ok(())
}

fn next_step(
    target: &Target<'_>,
    options: &DeleteOptions,
    old: &Value,
    is_namespace: bool,
) -> Step {
    let deleting = meta::is_deleting(old);
    let mut new = old.clone();
    let asked = items(old, "/metadata/finalizers").contains(&json!(FOREGROUND));
    let unsaid = (target.kind.orphans && !asked).then_some("Orphan");
    let propagation = options.propagation.as_deref().or(unsaid);
    // Events have no dependents. The real server ignores the policy and removes the finalizers for it.
    let propagation = match target.kind.storage() {
        "/events" => Some("Background"),
        _ => propagation,
    };
    let collector = set_collector_finalizers(&mut new, propagation);
    let held = !items(&new, "/metadata/finalizers").is_empty()
        || (is_namespace && !items(old, "/spec/finalizers").is_empty());
    let grace = if target.kind.graceful {
        pod::grace_seconds(old, options.grace_seconds)
    } else {
        0
    };
    let remaining = old
        .pointer("/metadata/deletionGracePeriodSeconds")
        .and_then(Value::as_i64)
        .unwrap_or(0);
    if deleting {
        // A later request can shorten the grace period, but cannot extend it.
        let shorter = target.kind.graceful && options.grace_seconds.is_some() && grace < remaining;
        let waits = target.kind.graceful && remaining > 0 && !shorter;
        // An earlier request may have marked the object and failed before it could remove it.
        if !held && !waits && (grace == 0 || remaining == 0) {
            return Step::Remove;
        }
        if !shorter && !collector {
            return Step::Nothing;
        }
        if !shorter {
            return Step::Mark(new);
        }
    } else if !held && grace == 0 && !target.kind.graceful {
        return Step::Remove;
    }
    let now = Timestamp::now();
    let end = now
        .checked_add(SignedDuration::from_secs(grace))
        .unwrap_or(now);
    let metadata = meta::metadata(&mut new);
    metadata.insert("deletionTimestamp".into(), json!(meta::rfc3339(end)));
    metadata.insert("deletionGracePeriodSeconds".into(), json!(grace));
    let generation = metadata
        .get("generation")
        .and_then(Value::as_i64)
        .filter(|_| !deleting);
    if let Some(generation) = generation.filter(|generation| *generation > 0) {
        metadata.insert("generation".into(), json!(generation + 1));
    }
    if is_namespace {
        // A namespace is removed when its content is gone, without a grace period.
        metadata.remove("deletionGracePeriodSeconds");
        new["status"]["phase"] = json!("Terminating");
    }
    if !held && grace == 0 {
        return Step::MarkAndRemove(new);
    }
    Step::Mark(new)
}

/// Adds or removes the finalizers that instruct a garbage collector about dependents.
fn set_collector_finalizers(object: &mut Value, propagation: Option<&str>) -> bool {
    let wanted = match propagation {
        Some("Orphan") => Some(ORPHAN),
        Some("Foreground") => Some(FOREGROUND),
        Some("Background") => None,
        _ => return false,
    };
    let had = items(object, "/metadata/finalizers").to_vec();
    let mut list: Vec<Value> = had
        .iter()
        .filter(|f| *f != ORPHAN && *f != FOREGROUND)
        .cloned()
        .collect();
    list.extend(wanted.map(|finalizer| json!(finalizer)));
    let sorted = |list: &[Value]| {
        let mut texts: Vec<String> = list.iter().map(ToString::to_string).collect();
        texts.sort();
        texts
    };
    if sorted(&had) == sorted(&list) {
        return false;
    }
    let metadata = meta::metadata(object);
    if list.is_empty() {
        metadata.remove("finalizers");
    } else {
        metadata.insert("finalizers".into(), json!(list));
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn propagation_is_written_as_a_finalizer() {
        let mut object = json!({"metadata": {"finalizers": ["x.io/f"]}});
        assert!(set_collector_finalizers(&mut object, Some("Foreground")));
        assert_eq!(
            object["metadata"]["finalizers"],
            json!(["x.io/f", "foregroundDeletion"])
        );
        assert!(!set_collector_finalizers(&mut object, Some("Foreground")));
        assert!(set_collector_finalizers(&mut object, Some("Orphan")));
        assert_eq!(
            object["metadata"]["finalizers"],
            json!(["x.io/f", "orphan"])
        );
        assert!(set_collector_finalizers(&mut object, Some("Background")));
        assert_eq!(object["metadata"]["finalizers"], json!(["x.io/f"]));
        assert!(!set_collector_finalizers(&mut object, None));
    }
}
