//! The common part of all verbs, on top of the store.
//!
//! Invariant: every change is one compare-and-set on exactly the version that was read and validated. There are no
//! unconditional writes.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use serde_json::Value;

use super::recent::Recent;
use super::{Kind, Subresource, Version};
use crate::auth::{Access, Attributes, NotGranted, User};
use crate::limits;
use crate::request::Verb;
use crate::status::{Cause, Failure};
use crate::store::{Change, Expected, Fence, Key, Object, Store, Write, WriteError};

/// Maximum number of attempts of a write without a resourceVersion against concurrent writers.
pub(super) const ATTEMPTS: usize = 64;

/// The store together with the semantics of the API.
pub(crate) struct Registry {
    pub(crate) store: Arc<dyn Store>,
    pub(super) access: Arc<dyn Access>,
    /// Namespaces that are being emptied; true if the namespace has to be checked again.
    pub(super) purges: Mutex<HashMap<String, bool>>,
    /// The kinds that clients defined.
    pub(super) served: std::sync::RwLock<Arc<super::definitions::Served>>,
    /// Definitions whose objects are being removed.
    pub(super) ends: Mutex<HashSet<String>>,
    /// Whether this server empties namespaces that are being deleted. Otherwise a controller does it.
    pub(super) empties_namespaces: bool,
    /// Enforcement of quotas.
    pub(super) quotas: Arc<super::quotas::Quotas>,
    /// Recently written objects in parsed form, for the next update.
    pub(super) recent: Recent,
}

/// The object or collection that a request addresses.
#[derive(Clone, Copy)]
pub(crate) struct Target<'a> {
    /// The kind of the object.
    pub(crate) kind: &'a Kind,
    /// The API version of the request.
    pub(crate) version: &'a Version,
    /// Empty for cluster scope, or for all namespaces.
    pub(crate) namespace: &'a str,
    /// Empty for collections.
    pub(crate) name: &'a str,
}

/// Options of a write.
#[derive(Clone, Debug, Default)]
pub(crate) struct WriteOptions {
    /// Do everything except storing the result.
    pub(crate) dry_run: bool,
    /// An additional precondition on a Lease.
    pub(crate) fence: Option<Fence>,
    /// The field manager that owns the fields set by this write. Empty leaves the owners unchanged.
    pub(crate) manager: String,
}

impl Target<'_> {
    /// The key of the named object.
    pub(crate) fn key(&self) -> Key {
        self.key_of(self.name)
    }

    pub(super) fn key_of(&self, name: &str) -> Key {
        let namespace = if self.kind.namespaced {
            self.namespace
        } else {
            ""
        };
        Key {
            resource: self.kind.storage_key(),
            namespace: namespace.to_owned(),
            name: name.to_owned(),
        }
    }

    /// Applies the defaults of the kind.
    pub(super) fn default(&self, object: &mut Value) {
        match &self.version.custom {
            // `fill` stops only at an object that is too large, which the store rejects.
            Some(custom) => _ = custom.schema.fill(object),
            None => (self.kind.default)(object),
        }
    }

    /// Validates an object.
    pub(super) fn validate(&self, object: &Value, causes: &mut Vec<Cause>) {
        match &self.version.custom {
            Some(custom) => custom.schema.validate(object, causes),
            None => (self.kind.validate)(object, causes),
        }
    }

    /// Validates the change from `old` to `new`.
    pub(super) fn validate_update(&self, old: &Value, new: &Value, causes: &mut Vec<Cause>) {
        match &self.version.custom {
            Some(custom) => custom.schema.validate_update(old, new, causes),
            None => (self.kind.validate)(new, causes),
        }
        (self.kind.validate_update)(old, new, causes);
    }

    /// Whether the version has a `status` subresource.
    pub(super) fn has_status(&self) -> bool {
        let subresources = self.kind.subresources(self.version);
        subresources.contains(&Subresource::Status)
    }

    pub(super) fn not_found(&self) -> Failure {
        Failure::not_found(self.kind.resource(), self.name)
    }
}

impl Registry {
    pub(crate) fn new(store: Arc<dyn Store>, access: Arc<dyn Access>) -> Self {
        Self {
            store,
            access,
            purges: Mutex::default(),
            served: std::sync::RwLock::default(),
            ends: Mutex::default(),
            empties_namespaces: true,
            quotas: Arc::default(),
            recent: Recent::new(),
        }
    }

    /// Disables the emptying of deleted namespaces, for servers where a controller does it.
    pub(crate) fn without_purges(mut self) -> Self {
        self.empties_namespaces = false;
        self
    }

    /// Returns the current version, or 404.
    pub(crate) fn get(&self, target: &Target<'_>) -> Result<Arc<Object>, Failure> {
        self.store
            .get(&target.key())
            .ok_or_else(|| target.not_found())
    }

    /// Rejects a write that grants more permissions than the writer has. `old` is exactly the version that the write
    /// replaces.
    pub(super) fn check_grant(
        &self,
        target: &Target<'_>,
        user: &User,
        old: Option<&Value>,
        object: &Value,
    ) -> Result<(), Failure> {
        if !target.kind.grants {
            return Ok(());
        }
        let (group, plural) = target.kind.resource();
        self.access
            .check_grant(user, plural, target.namespace, old, object)
            .map_err(|why| {
                if let NotGranted::NoRole { name, .. } = &why {
                    // The real server combines the role's name with the binding's kind.
                    return Failure::not_found((group, plural), name);
                }
                let name = super::rules::text(object, "/metadata/name");
                let resource = crate::status::qualified(plural, group);
                let message = format!("{resource} {name:?} is forbidden: {why}");
                Failure::about(403, "Forbidden", (group, plural), name, message)
            })
    }

    /// Checks an additional permission that the request turned out to need.
    pub(super) fn check_permission(
        &self,
        target: &Target<'_>,
        user: &User,
        verb: Verb,
    ) -> Result<(), Failure> {
        let attributes = Attributes {
            verb: verb.as_str(),
            target: crate::auth::Target::Resource {
                group: target.kind.group(),
                resource: target.kind.plural(),
                subresource: "",
                namespace: target.namespace,
                name: target.name,
            },
        };
        let decision = self.access.authorize(user, &attributes);
        if decision.allowed {
            Ok(())
        } else {
            Err(Failure::forbidden(
                &user.name,
                &attributes,
                &decision.reason,
            ))
        }
    }

    /// Whether a rejection may rest on stale data because other servers have written since. If it returns true, their
    /// writes are published here and the request must be evaluated again.
    ///
    /// `seen` is the revision before the first evaluation. Only rejections need this check: a successful write was
    /// compared with the current version by etcd.
    pub(super) async fn outdated(&self, seen: u64, failure: &Failure) -> Result<bool, Failure> {
        if !self.store.shared() || failure.code >= 500 || failure.code == 429 {
            return Ok(false);
        }
        self.store.fresh().await?;
        Ok(self.store.revision() > seen)
    }

    /// Whether a version is still current after all writes that any server has acknowledged. Requests that write
    /// nothing need this check, because they have no compare-and-set.
    pub(super) async fn is_current(&self, version: &Object) -> Result<bool, Failure> {
        if !self.store.shared() {
            return Ok(true);
        }
        self.store.fresh().await?;
        let present = self.store.get(&version.key);
        Ok(present.is_some_and(|present| present.revision == version.revision))
    }

    /// Checks the fence of a request that writes nothing.
    pub(crate) fn check_fence(
        &self,
        target: &Target<'_>,
        options: &WriteOptions,
    ) -> Result<(), Failure> {
        match &options.fence {
            None => Ok(()),
            Some(fence) => self
                .store
                .check_fence(fence)
                .map_err(|error| write_failure(target, error)),
        }
    }

    /// Rejects a fence on a Lease that the user may not read, with the same error as for an absent Lease.
    pub(crate) fn check_fence_is_readable(
        &self,
        target: &Target<'_>,
        user: &User,
        fence: &Fence,
    ) -> Result<(), Failure> {
        if self.access.authorize(user, &reading(fence)).allowed {
            return Ok(());
        }
        Err(write_failure(target, WriteError::Fenced(fence.absent())))
    }

    /// Returns whether [`Self::check_fence_is_readable`] is short enough for a thread of the runtime.
    pub(crate) fn is_fence_check_quick(&self, user: &User, fence: &Fence) -> bool {
        self.access.is_quick(user, &reading(fence))
    }

    /// Performs one compare-and-set. Returns `Ok(None)` if another write came first.
    pub(super) async fn write(
        &self,
        target: &Target<'_>,
        key: Key,
        expected: Expected,
        change: Change,
        options: &WriteOptions,
    ) -> Result<Option<Arc<Object>>, Failure> {
        let write = Write {
            fence: options.fence.clone(),
            ..Write::new(key, expected, change)
        };
        self.write_given(target, write).await
    }

    /// Like [`Registry::write`], with additional preconditions.
    pub(super) async fn write_given(
        &self,
        target: &Target<'_>,
        write: Write,
    ) -> Result<Option<Arc<Object>>, Failure> {
        // The store must not contain an object that cannot be parsed again. The managed fields are nested deeper than
        // the fields themselves.
        if let Change::Put(value) = &write.change
            && limits::depth(value) > limits::MAX_STORED_DEPTH
        {
            return Err(Failure::bad_request("the object is nested too deeply"));
        }
        match self.store.write(write).await {
            Ok(object) => {
                if target.kind.is_definition() {
                    self.refresh_definitions();
                }
                Ok(Some(object))
            }
            Err(WriteError::Conflict(_)) => Ok(None),
            Err(WriteError::Moved(key)) => {
                if super::definitions::is_definition(&key) {
                    self.refresh_definition(&key);
                }
                Ok(None)
            }
            Err(error) => Err(write_failure(target, error)),
        }
    }
}

/// Converts an error of the store to a response.
pub(super) fn write_failure(target: &Target<'_>, error: WriteError) -> Failure {
    let resource = target.kind.resource();
    match error {
        WriteError::Fenced(why) => {
            let mut failure = Failure::conflict(
                resource,
                target.name,
                &format!("the fencing token is stale: {why}"),
            );
            if let Some(details) = &mut failure.details {
                let cause = Cause {
                    reason: "StaleFencingToken",
                    message: why,
                    field: String::new(),
                };
                details.causes.push(cause);
            }
            failure
        }
        WriteError::Busy => {
            let why = "too many writes are queued; try again later";
            Failure::try_again(why)
        }
        WriteError::Full(why) => Failure::generic(
            507,
            "InsufficientStorage",
            format!("nothing was changed: no space left for writes: {why}"),
        ),
        error @ WriteError::TooLarge(_) => {
            Failure::generic(413, "RequestEntityTooLarge", error.to_string())
        }
        error @ WriteError::Unavailable(_) => Failure::unavailable(error.to_string()),
        error @ WriteError::Unknown(_) => {
            let mut failure = Failure::generic(504, "Timeout", format!("Timeout: {error}"));
            if let Some(details) = &mut failure.details {
                details.retry_after_seconds = Some(1);
            }
            failure
        }
        other => Failure::internal(other.to_string()),
    }
}

/// Parses a stored version.
pub(super) fn parsed(object: &Object) -> Result<Value, Failure> {
    serde_json::from_slice(&object.json)
        .map_err(|error| Failure::internal(format!("stored object is not JSON: {error}")))
}

/// Serializes a value in the stored form.
pub(super) fn unparsed(value: &Value) -> Bytes {
    Bytes::from(value.to_string())
}

/// Returns 422 with all causes, if there are any.
pub(super) fn refuse_invalid(
    target: &Target<'_>,
    name: &str,
    causes: Vec<Cause>,
) -> Result<(), Failure> {
    if causes.is_empty() {
        Ok(())
    } else {
        Err(Failure::invalid(target.kind.group_kind(), name, causes))
    }
}

/// Returns the permission that a fence needs.
fn reading(fence: &Fence) -> Attributes<'_> {
    Attributes {
        verb: Verb::Get.as_str(),
        target: crate::auth::Target::Resource {
            group: "coordination.k8s.io",
            resource: "leases",
            subresource: "",
            namespace: &fence.lease.namespace,
            name: &fence.lease.name,
        },
    }
}
