//! Creating objects.

use std::sync::Arc;

use bytes::Bytes;
use jiff::Timestamp;
use serde_json::Value;

use super::engine::{ATTEMPTS, Registry, Target, WriteOptions, parsed, refuse_invalid, unparsed};
use super::quotas::{Outcome, Versions};
use super::rules::text;
use super::{meta, owners};
use crate::auth::User;
use crate::request::Verb;
use crate::status::{Cause, Failure};
use crate::store::{Change, Expected, Given, Key, Write};

/// Number of random names to try for `generateName`.
const NAME_ATTEMPTS: usize = 8;

/// Result of an attempt to create an object.
enum Created {
    /// The object was created. Contains its stored form.
    Done(Bytes),
    /// An object of that name exists.
    Exists,
    /// Another object on which the content depends has changed.
    Outdated,
}

impl Registry {
    /// Creates an object from its stored form, and returns it as stored.
    pub(crate) async fn create(
        &self,
        target: &Target<'_>,
        object: Value,
        user: &User,
        options: &WriteOptions,
    ) -> Result<Bytes, Failure> {
        let seen = self.store.revision();
        let again = (self.store.shared() || target.kind.admit.is_some()).then(|| object.clone());
        let mut done = self.create_now(target, object, user, options).await;
        let Some(again) = again else {
            return created(done);
        };
        let mut refreshed = false;
        for _ in 1..ATTEMPTS {
            let repeat = match &done {
                Ok(Created::Outdated) => true,
                Err(failure) if !refreshed => {
                    refreshed = true;
                    self.outdated(seen, failure).await?
                }
                _ => false,
            };
            if !repeat {
                break;
            }
            done = self.create_now(target, again.clone(), user, options).await;
        }
        created(done)
    }

    async fn create_now(
        &self,
        target: &Target<'_>,
        mut object: Value,
        user: &User,
        options: &WriteOptions,
    ) -> Result<Created, Failure> {
        check_namespace(target, &object)?;
        let place = self.check_place(target, text(&object, "/metadata/name"))?;
        let sent_version = object.pointer("/metadata/resourceVersion").cloned();
        if !text(&object, "/metadata/resourceVersion").is_empty() && !options.dry_run {
            let why = "resourceVersion should not be set on objects to be created";
            return Err(Failure::new(500, "", why));
        }
        self.check_grant(target, user, None, &object)?;
        let sent = owners::take(&mut object);
        owners::default(target, &mut object);
        let owners = owners::updated(target, None, None, &object, sent.as_ref(), options);
        let owners = owners.into_list(None);
        set_namespace(target, &mut object);
        let used = self.admit(target, &mut object)?;
        let generated = meta::generate_name(&mut object);
        for attempt in 1.. {
            prepare(target, &mut object)?;
            self.decide_new_names(target, &mut object);
            (target.kind.assign)(self, target, &mut object)?;
            owners::put(&mut object, owners.clone());
            restore_sent_version(&mut object, sent_version.as_ref(), options);
            let name = text(&object, "/metadata/name").to_owned();
            let key = target.key_of(&name);
            let done = self
                .try_create(target, key, &object, (place.clone(), &used), options)
                .await?;
            if !matches!(done, Created::Exists) {
                return Ok(done);
            }
            if !generated || attempt == NAME_ATTEMPTS {
                let is_generated = !text(&object, "/metadata/generateName").is_empty();
                let resource = match is_generated {
                    // The real server names the group of the stored form, here only.
                    true => (target.kind.group_kind().0, target.kind.plural()),
                    false => target.kind.resource(),
                };
                let mut failure = Failure::already_exists(resource, &name);
                let there = self.store.get(&target.key_of(&name));
                if there.is_some_and(|there| parsed(&there).is_ok_and(|it| meta::is_deleting(&it)))
                {
                    failure.message = format!("object is being deleted: {}", failure.message);
                }
                if is_generated && let Some(details) = &mut failure.details {
                    details.retry_after_seconds = Some(1);
                    failure.message +=
                        ", the server was not able to generate a unique name for the object";
                }
                return Err(failure);
            }
            meta::metadata(&mut object).remove("name");
            meta::generate_name(&mut object);
        }
        unreachable!("the loop ends by returning")
    }

    /// Creates the object of a PUT or an apply to an absent name. Returns `None` if another writer came first.
    pub(super) async fn create_by_update(
        &self,
        target: &Target<'_>,
        mut object: Value,
        owners: Option<Value>,
        user: &User,
        options: &WriteOptions,
    ) -> Result<Option<Bytes>, Failure> {
        self.check_permission(target, user, Verb::Create)?;
        let place = self.check_place(target, target.name)?;
        self.check_grant(target, user, None, &object)?;
        set_namespace(target, &mut object);
        let used = self.admit(target, &mut object)?;
        let sent = object.pointer("/metadata/resourceVersion").cloned();
        prepare(target, &mut object)?;
        self.decide_new_names(target, &mut object);
        (target.kind.assign)(self, target, &mut object)?;
        owners::put(&mut object, owners);
        restore_sent_version(&mut object, sent.as_ref(), options);
        let done = self
            .try_create(target, target.key(), &object, (place, &used), options)
            .await?;
        Ok(match done {
            Created::Done(stored) => Some(stored),
            Created::Exists | Created::Outdated => None,
        })
    }

    /// Completes the object with values that depend on other objects. Returns the versions that were used.
    fn admit(&self, target: &Target<'_>, object: &mut Value) -> Result<Vec<Given>, Failure> {
        match target.kind.admit {
            Some(admit) => admit(self, target, object),
            None => Ok(Vec::new()),
        }
    }

    /// Creates the object. `used` are the versions on which its content depends.
    async fn try_create(
        &self,
        target: &Target<'_>,
        key: Key,
        object: &Value,
        (place, used): (Vec<Given>, &[Given]),
        options: &WriteOptions,
    ) -> Result<Created, Failure> {
        if options.dry_run {
            self.store.fresh().await?;
            self.check_place(target, &key.name)?;
            self.check_fence(target, options)?;
            let versions = Versions {
                old: None,
                new: Some(object),
            };
            Box::pin(self.charge(target, versions, true, true)).await?;
            return Ok(match self.store.get(&key) {
                None => Created::Done(unparsed(object)),
                Some(_) => Created::Exists,
            });
        }
        let versions = Versions {
            old: None,
            new: Some(object),
        };
        let charge = Box::pin(self.charge(target, versions, true, false)).await?;
        let object = Arc::new(object.clone());
        let done = self
            .write_new(target, key, &object, (place, used), options)
            .await;
        let outcome = match &done {
            Ok(Created::Done(_)) => Outcome::Applied,
            Ok(Created::Exists | Created::Outdated) => Outcome::Rejected,
            Err(failure) => Outcome::of_failure(failure),
        };
        Box::pin(self.settle(target, charge, outcome)).await;
        done
    }

    /// Writes a new object.
    async fn write_new(
        &self,
        target: &Target<'_>,
        key: Key,
        object: &Arc<Value>,
        (mut place, used): (Vec<Given>, &[Given]),
        options: &WriteOptions,
    ) -> Result<Created, Failure> {
        for _ in 0..ATTEMPTS {
            let change = Change::Put(Arc::clone(object));
            let write = Write {
                fence: options.fence.clone(),
                given: [&place, used].concat(),
                ..Write::new(key.clone(), Expected::Absent, change)
            };
            match self.write_given(target, write).await? {
                Some(stored) => return Ok(Created::Done(stored.json.clone())),
                None if self.store.get(&key).is_some() => return Ok(Created::Exists),
                None if !self.are_current(used) => return Ok(Created::Outdated),
                None => place = self.check_place(target, &key.name)?,
            }
        }
        let what = target.kind.plural();
        let why = format!(
            "{what} {:?}: its namespace or definition keeps changing; try again",
            key.name
        );
        Err(Failure::try_again(why))
    }

    fn are_current(&self, versions: &[Given]) -> bool {
        versions.iter().all(|given| {
            let present = self.store.get(&given.key);
            present.is_some_and(|present| present.revision == given.revision)
        })
    }

    /// Rejects a new object if its namespace or the definition of its kind is missing or being deleted.
    ///
    /// Returns both as preconditions of the write, so that the write also fails if another server starts the deletion
    /// concurrently. Therefore no object is added to a namespace or kind that is being emptied.
    fn check_place(&self, target: &Target<'_>, name: &str) -> Result<Vec<Given>, Failure> {
        let definition = self.check_defined(target)?;
        let namespace = self.check_namespace_active(target, name)?;
        Ok(definition.into_iter().chain(namespace).collect())
    }

    /// Rejects namespaced objects unless their namespace exists and is not being deleted.
    fn check_namespace_active(
        &self,
        target: &Target<'_>,
        name: &str,
    ) -> Result<Option<Given>, Failure> {
        if !target.kind.namespaced {
            return Ok(None);
        }
        let Some(namespace) = self.namespace(target.namespace) else {
            return Err(Failure::not_found(("", "namespaces"), target.namespace));
        };
        if super::namespaces::is_ending(&namespace) {
            let (group, plural) = target.kind.resource();
            let message = format!(
                "{} {name:?} is forbidden: unable to create new content in namespace {} because it \
                 is being terminated",
                crate::status::qualified(plural, group),
                target.namespace
            );
            let mut failure = Failure::about(403, "Forbidden", (group, plural), name, message);
            if let Some(details) = &mut failure.details {
                details.causes.push(Cause {
                    reason: "NamespaceTerminating",
                    message: format!("namespace {} is being terminated", target.namespace),
                    field: "metadata.namespace".into(),
                });
            }
            return Err(failure);
        }
        Ok(Some(Given {
            key: namespace.key.clone(),
            revision: namespace.revision,
        }))
    }
}

fn created(done: Result<Created, Failure>) -> Result<Bytes, Failure> {
    match done? {
        Created::Done(stored) => Ok(stored),
        Created::Exists | Created::Outdated => {
            let why = "an object on which the new object depends keeps changing; try again";
            Err(Failure::try_again(why))
        }
    }
}

/// Checks the namespace in the body: it may be omitted, but it must not differ from the namespace in the path.
pub(crate) fn check_namespace(target: &Target<'_>, object: &Value) -> Result<(), Failure> {
    let own = text(object, "/metadata/namespace");
    // An object of a cluster-scoped kind loses the namespace that its client sent.
    if !target.kind.namespaced || own.is_empty() || own == target.namespace {
        Ok(())
    } else {
        Err(Failure::bad_request(
            "the namespace of the provided object does not match the namespace sent on the request",
        ))
    }
}

/// Sets the namespace of the path, which the body may omit.
fn set_namespace(target: &Target<'_>, object: &mut Value) {
    if target.kind.namespaced {
        meta::metadata(object).insert("namespace".into(), target.namespace.into());
    }
}

/// Restores the version that the client sent, because a dry run writes nothing and has no new version to return.
fn restore_sent_version(object: &mut Value, sent: Option<&Value>, options: &WriteOptions) {
    if let Some(version) = sent.filter(|_| options.dry_run) {
        meta::metadata(object).insert("resourceVersion".into(), version.clone());
    }
}

/// Applies defaults and system metadata to a new object, and validates it.
fn prepare(target: &Target<'_>, object: &mut Value) -> Result<(), Failure> {
    let kind = target.kind;
    meta::fill_new(kind, target.namespace, object, Timestamp::now());
    (kind.prepare)(object);
    if target.version.custom.is_some() && target.has_status() {
        // A client cannot set the status of a new object.
        object.as_object_mut().map(|map| map.remove("status"));
    }
    target.default(object);
    let mut causes = Vec::new();
    meta::validate(kind, object, &mut causes);
    target.validate(object, &mut causes);
    (kind.validate_new)(object, &mut causes);
    refuse_invalid(target, text(object, "/metadata/name"), causes)
}
