//! An entry of the table of kinds, and its versions.
//!
//! A built-in kind borrows its texts from the binary. A custom kind owns them, and is freed when its definition was
//! replaced or deleted and the last request with it has ended. The accessors hide the difference, so the texts are
//! private to the tables.

use std::ops::Deref;
use std::sync::Arc;

use jiff::Timestamp;
use serde_json::Value;

use super::custom::{CustomKind, CustomVersion};
use crate::registry::{
    Column, Conversion, Field, Fields, Generation, NameRule, OwnFields, Registry, Review,
    Subresource, Target, group_version,
};
use crate::status::{Cause, Failure};
use crate::store::Given;

/// Completes or rejects a new object, and returns the versions of other objects on which the decision depends.
pub(crate) type Admit = fn(&Registry, &Target<'_>, &mut Value) -> Result<Vec<Given>, Failure>;

/// One entry of the table of kinds.
pub(crate) struct Kind {
    /// API group, empty for core.
    pub(super) group: &'static str,
    /// Versions, the preferred one first.
    pub(super) versions: &'static [Version],
    /// `Lease`.
    pub(super) kind: &'static str,
    /// `leases`.
    pub(super) plural: &'static str,
    /// `lease`.
    pub(super) singular: &'static str,
    /// Short names for kubectl.
    pub(super) short: &'static [&'static str],
    /// Categories for kubectl, for example `all`.
    pub(super) categories: &'static [&'static str],
    /// Whether objects belong to a namespace.
    pub(crate) namespaced: bool,
    /// Whether objects are namespaces. They contain other objects and are removed when they are empty.
    pub(crate) is_namespace: bool,
    /// Storage name, `group/plural`. Kinds that are two views of the same objects share it.
    pub(super) storage: &'static str,
    /// The question, if the kind is a review: it supports only `create`, which is answered and not stored.
    pub(crate) review: Option<Review>,
    /// Subresources, if the kind is built in.
    pub(crate) subresources: &'static [Subresource],
    /// Whether PUT to an absent name creates the object.
    pub(crate) create_on_update: bool,
    /// Whether PUT without resourceVersion overwrites the object.
    pub(crate) unconditional_update: bool,
    /// Whether DELETE returns the object instead of a Status.
    pub(crate) returns_deleted: bool,
    /// Whether DELETE keeps dependents unless the client requests otherwise.
    pub(crate) orphans: bool,
    /// Whether objects grant permissions. A writer must not grant more than it has.
    pub(crate) grants: bool,
    /// Whether deletion waits for a grace period.
    pub(crate) graceful: bool,
    /// Whether a write of the status can change labels, owners and finalizers too. A kubelet writes the labels of its
    /// node with the status.
    pub(crate) status_with_metadata: bool,
    /// Whether an update can change the amounts that quotas count.
    pub(crate) metered: bool,
    /// The changes that `metadata.generation` counts.
    pub(crate) generation: Generation,
    /// Field selectors beyond `metadata.name` and `metadata.namespace`, if the kind is built in.
    pub(crate) fields: &'static [Field],
    /// Columns of the Table form, after the name.
    pub(crate) columns: &'static [Column],
    /// Syntax of names.
    pub(crate) names: NameRule,
    /// Applies defaults. Must be idempotent, because it runs on every write.
    pub(crate) default: fn(&mut Value),
    /// Applies only the defaults that a client implies by omitting a field. Set if `default` also assigns values of the
    /// server.
    pub(crate) default_intended: Option<fn(&mut Value)>,
    /// Sets values of a new object that depend on other objects, or rejects it because of them. Returns the versions that
    /// it used, as preconditions of the write.
    pub(crate) admit: Option<Admit>,
    /// Assigns values that no other object may have, after defaults and validation.
    pub(crate) assign: fn(&Registry, &Target<'_>, &mut Value) -> Result<(), Failure>,
    /// Changes a new object before validation.
    pub(crate) prepare: fn(&mut Value),
    /// Validates an object.
    pub(crate) validate: fn(&Value, &mut Vec<Cause>),
    /// Validates a new object, after `validate`.
    pub(crate) validate_new: fn(&Value, &mut Vec<Cause>),
    /// Copies the members that an update cannot change from the old object to the new one, before defaults.
    pub(crate) preserve: fn(&Value, &mut Value),
    /// Validates a change, old to new, after `validate`.
    pub(crate) validate_update: fn(&Value, &Value, &mut Vec<Cause>),
    /// Rejects a change, old to new, that other objects do not allow.
    pub(crate) check_update: fn(&Registry, &Target<'_>, &Value, &Value) -> Result<(), Failure>,
    /// Rejects a deletion.
    pub(crate) check_delete: fn(&Target<'_>) -> Result<(), Failure>,
    /// Completes a change of the status, old to new.
    pub(crate) change_status: fn(&Value, &mut Value),
    /// Validates an object whose status was changed.
    pub(crate) validate_status: fn(&Value, &mut Vec<Cause>),
    /// Returns the warnings about a valid object.
    pub(crate) warn: Option<fn(&Value) -> Vec<String>>,
    /// Whether an object has expired at a given time, for kinds whose objects expire.
    pub(crate) is_expired: Option<fn(&Value, Timestamp) -> bool>,
    /// The texts of a custom kind, which replace those above.
    pub(super) custom: Option<Box<CustomKind>>,
}

/// One served version of a kind.
pub(crate) struct Version {
    /// `v1`.
    pub(super) name: &'static str,
    /// Text of the `Warning` header in every response, if the version is deprecated.
    pub(super) deprecated: Option<&'static str>,
    /// Conversion between this version and the stored version, if they differ.
    pub(crate) conversion: Option<Conversion>,
    /// Schema and columns, if a client defined the version.
    pub(crate) custom: Option<Arc<CustomVersion>>,
}

impl Kind {
    /// `(group, plural)`, the form used in errors about objects.
    pub(crate) fn resource(&self) -> (&str, &str) {
        (self.group(), self.plural())
    }

    /// `(group, kind)`, the form used in errors about fields, with the group of the stored form.
    pub(crate) fn group_kind(&self) -> (&str, &str) {
        match self.storage().split_once('/') {
            Some((group, _)) if self.review.is_none() => (group, self.kind()),
            _ => (self.group(), self.kind()),
        }
    }

    /// API group, empty for core.
    pub(crate) fn group(&self) -> &str {
        self.custom.as_ref().map_or(self.group, |own| &own.group)
    }

    /// Versions, the preferred one first.
    pub(crate) fn versions(&self) -> &[Version] {
        let own = self.custom.as_ref();
        own.map_or(self.versions, |own| &own.versions)
    }

    /// `Lease`.
    pub(crate) fn kind(&self) -> &str {
        self.custom.as_ref().map_or(self.kind, |own| &own.kind)
    }

    /// `leases`.
    pub(crate) fn plural(&self) -> &str {
        self.custom.as_ref().map_or(self.plural, |own| &own.plural)
    }

    /// `lease`.
    pub(crate) fn singular(&self) -> &str {
        let own = self.custom.as_ref();
        own.map_or(self.singular, |own| &own.singular)
    }

    /// Short names for kubectl.
    pub(crate) fn short(&self) -> Vec<&str> {
        match &self.custom {
            Some(own) => own.short.iter().map(String::as_str).collect(),
            None => self.short.to_vec(),
        }
    }

    /// Categories for kubectl.
    pub(crate) fn categories(&self) -> Vec<&str> {
        match &self.custom {
            Some(own) => own.categories.iter().map(String::as_str).collect(),
            None => self.categories.to_vec(),
        }
    }

    /// Group and version of the stored form.
    pub(crate) fn stored_version(&self) -> (&str, &str) {
        match &self.custom {
            Some(own) => (&own.group, &own.stored),
            None => {
                let (group, _) = self.storage.split_once('/').unwrap_or_default();
                let version = self.versions.first().map_or("", |version| version.name);
                (group, version)
            }
        }
    }

    /// Storage name, `group/plural`.
    pub(crate) fn storage(&self) -> &str {
        self.custom
            .as_ref()
            .map_or(self.storage, |own| &own.storage)
    }

    /// Whether both were compiled from the same spec.
    pub(crate) fn has_spec_of(&self, other: &Self) -> bool {
        self.spec() == other.spec()
    }

    /// Digest of the spec of a custom kind.
    pub(crate) fn spec(&self) -> Option<&[u8]> {
        self.custom.as_ref().map(|own| own.spec.as_ref())
    }

    /// Returns the version of this name.
    pub(crate) fn version(&self, name: &str) -> Option<&Version> {
        let mut all = self.versions().iter();
        all.find(|version| version.name() == name)
    }

    /// Returns the subresources of a version of this kind.
    pub(crate) fn subresources<'a>(&self, version: &'a Version) -> &'a [Subresource] {
        match &version.custom {
            Some(custom) => &custom.subresources,
            None => self.subresources,
        }
    }

    /// Returns the subresource of this name.
    pub(crate) fn subresource(&self, version: &Version, name: &str) -> Option<Subresource> {
        let mut all = self.subresources(version).iter().copied();
        all.find(|sub| sub.name() == name)
    }

    /// Returns the field selectors of a version of this kind.
    pub(crate) fn fields(&self, version: &Version) -> Fields {
        let own = match &version.custom {
            Some(custom) => OwnFields::Custom(Arc::clone(custom)),
            None => OwnFields::BuiltIn(self.fields),
        };
        Fields {
            namespaced: self.namespaced,
            own,
        }
    }

    /// Returns the shared storage name.
    pub(crate) fn storage_key(&self) -> Arc<str> {
        match &self.custom {
            Some(own) => Arc::clone(&own.storage),
            None => crate::registry::storage_key(self.storage),
        }
    }

    /// `group/version`, or `v1` for core.
    pub(crate) fn api_version(&self, version: &Version) -> String {
        group_version(self.group(), version.name())
    }
}

impl Version {
    /// `v1`.
    pub(crate) fn name(&self) -> &str {
        self.custom.as_ref().map_or(self.name, |own| &own.name)
    }

    /// Text of the `Warning` header in every response, if the version is deprecated.
    pub(crate) fn deprecated(&self) -> Option<&str> {
        match &self.custom {
            Some(custom) => custom.deprecated.as_deref(),
            None => self.deprecated,
        }
    }
}

/// A reference to a kind that keeps it alive during a request. Cloning a reference to a built-in kind is free.
#[derive(Clone)]
pub(crate) enum KindRef {
    BuiltIn(&'static Kind),
    Custom(Arc<Kind>),
}

impl Deref for KindRef {
    type Target = Kind;

    fn deref(&self) -> &Kind {
        match self {
            Self::BuiltIn(kind) => kind,
            Self::Custom(kind) => kind,
        }
    }
}
