//! Managed fields: records which manager wrote which field.
//!
//! Owners are computed on the object as the client intends it: after defaults, but before values that the server
//! assigns. The real server does the same.

use std::borrow::Cow;
use std::collections::HashSet;

use jiff::Timestamp;
use serde_json::{Value, json};

use super::engine::{Target, WriteOptions};
use super::meta::{self, rfc3339};
use super::rules::{at, text};
use super::{Kind, Subresource, Version};
use crate::apply::{
    self, Apply, Comparison, Conflict, Managed, Operation, Owners, Refusal, Set, Shape, Writer,
};
use crate::schema;
use crate::status::{Cause, Failure};

const LIST: &str = "/metadata/managedFields";

/// An apply patch during its execution.
pub(crate) struct Configuration<'a> {
    /// `apiVersion` of the configuration.
    pub(crate) api_version: String,
    pub(crate) kind: String,
    /// The configuration without `apiVersion` and `kind`.
    pub(crate) object: Value,
    pub(crate) force: bool,
    /// Converts the result to the stored form.
    pub(crate) store: &'a (dyn Fn(Value) -> Result<Value, Failure> + Send + Sync),
}

impl Configuration<'_> {
    fn whole(&self) -> Value {
        let mut whole = self.object.clone();
        whole["apiVersion"] = json!(self.api_version);
        whole["kind"] = json!(self.kind);
        whole
    }

    /// Rejects a configuration of another version or kind, or one that does not match the schema.
    pub(crate) fn check(&self, group: &str, version: &str, kind: &str) -> Result<(), Failure> {
        check_type(&super::group_version(group, version), kind, self)?;
        let Some(message) = schema::message(group, version, kind) else {
            return Ok(());
        };
        Apply::check(Shape::Struct(message), &self.object).map_err(|why| refused(self, why))
    }
}

/// A stored object, separated from its owners.
#[derive(Clone, Copy)]
pub(super) struct Stored<'a> {
    pub(super) object: &'a Value,
    pub(super) owners: Option<&'a Value>,
}

/// The intended state of an object, separated from the owners of its fields.
pub(super) struct Intent {
    pub(super) new: Value,
    pub(super) owners: Owners,
    /// The previous owners, taken from the stored object.
    pub(super) before: Option<Value>,
}

impl Intent {
    /// From a complete object, which may include owners.
    pub(super) fn by_update(
        target: &Target<'_>,
        subresource: Option<Subresource>,
        old: &mut Value,
        mut new: Value,
        options: &WriteOptions,
    ) -> Self {
        let (before, sent) = (take(old), take(&mut new));
        default(target, &mut new);
        let stored = Stored {
            object: old,
            owners: before.as_ref(),
        };
        let sent = sent.as_ref();
        let owners = updated(target, subresource, Some(stored), &new, sent, options);
        Self {
            new,
            owners,
            before,
        }
    }

    /// From an applied configuration.
    pub(super) fn by_apply(
        target: &Target<'_>,
        subresource: Option<Subresource>,
        old: &mut Value,
        configuration: &Configuration<'_>,
        options: &WriteOptions,
    ) -> Result<Self, Failure> {
        let before = take(old);
        let stored = Stored {
            object: old,
            owners: before.as_ref(),
        };
        let (new, owners) = applied(target, subresource, Some(stored), configuration, options)?;
        Ok(Self {
            new,
            owners,
            before,
        })
    }
}

/// Applies the defaults that a client implies by omitting a field, but no values that the server assigns.
pub(super) fn default(target: &Target<'_>, object: &mut Value) {
    match target.kind.default_intended {
        Some(default) => default(object),
        None => target.default(object),
    }
}

/// Removes the owners from an object and returns them.
pub(super) fn take(object: &mut Value) -> Option<Value> {
    meta::metadata(object).remove("managedFields")
}

/// Sets the owners of an object.
pub(super) fn put(object: &mut Value, owners: Option<Value>) {
    let metadata = meta::metadata(object);
    match owners {
        Some(owners) => metadata.insert("managedFields".into(), owners),
        None => metadata.remove("managedFields"),
    };
}

/// Returns the owners after a create or an update, both in the stored form. `sent` are the owners in the request, which
/// a client may change.
pub(super) fn updated(
    target: &Target<'_>,
    subresource: Option<Subresource>,
    old: Option<Stored<'_>>,
    new: &Value,
    sent: Option<&Value>,
    options: &WriteOptions,
) -> Owners {
    let live = old.and_then(|old| old.owners);
    if options.manager.is_empty() {
        return Owners::Kept;
    }
    let sent = sent.filter(|_| subresource.is_none());
    let reset = reset(target, subresource);
    let compared = |kind: &Kind, version: &Version| -> Comparison {
        let old = old.map_or_else(
            || Cow::Owned(empty(target.kind, target.version)),
            |old| in_version(version, old.object),
        );
        let new = in_version(version, new);
        apply::compare(shape(kind, version), &old, &new).without(&reset)
    };
    let change = compared(target.kind, target.version);
    let writer = writer(target, subresource, Operation::Update, options);
    let now = rfc3339(Timestamp::now());
    let leaves_owners = sent.is_none_or(|sent| Some(sent) == live);
    if let Some(live) = live.filter(|_| leaves_owners)
        && apply::renews(live, &writer, &change)
    {
        return Owners::Renewed(now);
    }
    let managed = if apply::is_reset(sent) {
        Managed::default()
    } else {
        let from_client = sent.filter(|sent| Some(*sent) != live);
        let from_client = from_client.and_then(|sent| Managed::decode(Some(sent)));
        match from_client.filter(|managed| !managed.is_empty()) {
            Some(managed) => managed,
            None => match Managed::decode(live) {
                Some(managed) => managed,
                None => return Owners::List(None),
            },
        }
    };
    if managed.is_empty() && old.is_some() {
        // The object was written before owners were recorded. Only an apply adds owners to it.
        return Owners::List(None);
    }
    if change.is_empty() && leaves_owners {
        return Owners::Kept;
    }
    let others = |api_version: &str| {
        let (kind, version) = find_version(target.kind, api_version)?;
        Some(compared(kind, version))
    };
    Owners::List(apply::update(managed, &writer, &change, &others, &now).encode())
}

/// Returns the object after an apply, in the stored form, and its owners.
pub(super) fn applied(
    target: &Target<'_>,
    subresource: Option<Subresource>,
    old: Option<Stored<'_>>,
    configuration: &Configuration<'_>,
    options: &WriteOptions,
) -> Result<(Value, Owners), Failure> {
    let api_version = target.kind.api_version(target.version);
    check_type(&api_version, target.kind.kind(), configuration)?;
    let empty = empty(target.kind, target.version);
    let live = old.map_or(Cow::Borrowed(&empty), |old| {
        in_version(target.version, old.object)
    });
    let owners = old.and_then(|old| old.owners);
    let writer = writer(target, subresource, Operation::Apply, options);
    let reset = reset(target, subresource);
    let apply = Apply {
        shape: shape(target.kind, target.version),
        live: &live,
        empty: &empty,
        config: &configuration.object,
        writer: &writer,
        reset: &reset,
        force: configuration.force,
    };
    let to_stored = |value: Value| match target.version.conversion {
        Some(conversion) => (conversion.to_stored)(value),
        None => value,
    };
    let compared = |api_version: &str, new: &Value| {
        let (kind, version) = find_version(target.kind, api_version)?;
        let old = to_stored(Value::clone(&live));
        let new = to_stored(new.clone());
        let (old, new) = (in_version(version, &old), in_version(version, &new));
        Some(apply::compare(shape(kind, version), &old, &new))
    };
    let now = rfc3339(Timestamp::now());
    let refused = |refusal| match refusal {
        Refusal::Conflicts(conflicts) if subresource == Some(Subresource::Scale) => {
            refused(configuration, Refusal::Conflicts(of_scale(conflicts)))
        }
        refusal => refused(configuration, refusal),
    };
    let again = owners.map_or(Ok(None), |owners| apply.again(owners));
    let (mut new, owners) = if let Some(new) = again.map_err(refused)? {
        (new, Owners::Renewed(now))
    } else {
        let managed = Managed::decode(owners)
            .ok_or_else(|| Failure::internal("the owners of the stored object cannot be read"))?;
        let (new, managed) = apply.run(managed, &compared, &now).map_err(refused)?;
        (new, Owners::List(managed.encode()))
    };
    apply.note(&mut new, || configuration.whole());
    match (old, owners) {
        // An unchanged result keeps the stored form, including its defaults.
        (Some(old), owners) if new == *live => Ok((
            old.object.clone(),
            match owners {
                Owners::Renewed(_) => Owners::Kept,
                other => other,
            },
        )),
        (_, owners) => Ok(((configuration.store)(new)?, owners)),
    }
}

/// Returns the shape of a version of a kind.
fn shape<'a>(kind: &Kind, version: &'a Version) -> Shape<'a> {
    if let Some(custom) = &version.custom {
        return Shape::Custom(&custom.schema);
    }
    let message = schema::message(kind.group(), version.name(), kind.kind());
    message.map_or(Shape::Free, Shape::Struct)
}

/// Returns an empty object of the kind.
fn empty(kind: &Kind, version: &Version) -> Value {
    let message = schema::message(kind.group(), version.name(), kind.kind());
    let empty = message.and_then(|message| crate::canonical::canonicalise(message, json!({})).ok());
    let mut empty = empty.unwrap_or_else(|| json!({}));
    if let Some(map) = empty.as_object_mut() {
        map.remove("apiVersion");
        map.remove("kind");
    }
    empty
}

fn in_version<'a>(version: &Version, stored: &'a Value) -> Cow<'a, Value> {
    match version.conversion {
        Some(conversion) => Cow::Owned((conversion.from_stored)(stored.clone())),
        None => Cow::Borrowed(stored),
    }
}

/// Returns the kind and version of an `apiVersion`, among all kinds that share this storage.
fn find_version<'a>(kind: &'a Kind, api_version: &str) -> Option<(&'a Kind, &'a Version)> {
    let (group, version) = api_version.rsplit_once('/').unwrap_or(("", api_version));
    let views = std::iter::once(kind).chain(super::all().iter().copied());
    let mut views = views.filter(|view| view.storage() == kind.storage() && view.group() == group);
    views.find_map(|view| Some((view, view.version(version)?)))
}

/// Returns the fields that this kind of write cannot change.
fn reset(target: &Target<'_>, subresource: Option<Subresource>) -> Set {
    match subresource {
        Some(Subresource::Status) if target.version.custom.is_some() => {
            Set::of(&[&["metadata"], &["spec"]])
        }
        None if target.has_status() => Set::of(&[&["status"]]),
        Some(Subresource::Status) if target.kind.status_with_metadata => Set::of(&[&["spec"]]),
        Some(Subresource::Status) => Set::of(&[
            &["spec"],
            &["metadata", "labels"],
            &["metadata", "ownerReferences"],
            &["metadata", "finalizers"],
        ]),
        Some(Subresource::Finalize | Subresource::EphemeralContainers) => {
            Set::of(&[&["metadata"], &["status"]])
        }
        _ => Set::default(),
    }
}

fn writer(
    target: &Target<'_>,
    subresource: Option<Subresource>,
    operation: Operation,
    options: &WriteOptions,
) -> Writer {
    Writer {
        manager: options.manager.clone(),
        operation,
        api_version: target.kind.api_version(target.version),
        subresource: subresource.map_or("", Subresource::name).to_owned(),
    }
}

/// Checks that a configuration names exactly this version and kind, and sets no owners.
fn check_type(
    wanted_version: &str,
    wanted_kind: &str,
    config: &Configuration<'_>,
) -> Result<(), Failure> {
    let Configuration {
        api_version, kind, ..
    } = config;
    if api_version != wanted_version || kind != wanted_kind {
        let (group, version) = api_version.rsplit_once('/').unwrap_or(("", api_version));
        return Err(Failure::bad_request(format!(
            "invalid object type: {group}/{version}, Kind={kind}"
        )));
    }
    if at(&config.object, LIST).is_some_and(|list| !list.is_null()) {
        return Err(Failure::bad_request("metadata.managedFields must be nil"));
    }
    Ok(())
}

fn refused(config: &Configuration<'_>, refusal: Refusal) -> Failure {
    let Configuration {
        api_version,
        kind,
        object,
        ..
    } = config;
    match refusal {
        Refusal::Unfit(why) => {
            let (group, version) = api_version.rsplit_once('/').unwrap_or(("", api_version));
            let message = format!(
                "failed to create typed patch object ({}/{}; {group}/{version}, Kind={kind}): {why}",
                text(object, "/metadata/namespace"),
                text(object, "/metadata/name"),
            );
            Failure::new(500, "", message)
        }
        Refusal::Conflicts(conflicts) => conflict(&conflicts),
    }
}

/// Adapts conflicts to a scale: it has one writable field and its own API version, independent of the scaled kind.
fn of_scale(conflicts: Vec<Conflict>) -> Vec<Conflict> {
    let told = conflicts.into_iter().map(|conflict| {
        let (owner, by_update) = match conflict.owner.split_once(" using ") {
            Some((owner, _)) => (owner, " using autoscaling/v1"),
            None => (conflict.owner.as_str(), ""),
        };
        Conflict {
            owner: format!("{owner}{by_update}"),
            field: ".spec.replicas".to_owned(),
        }
    });
    told.collect()
}

/// Returns 409 with one cause per field.
fn conflict(conflicts: &[Conflict]) -> Failure {
    let noun = if conflicts.len() == 1 {
        "conflict"
    } else {
        "conflicts"
    };
    let mut seen = HashSet::new();
    let mut owners: Vec<&str> = conflicts
        .iter()
        .map(|conflict| conflict.owner.as_str())
        .collect();
    owners.retain(|owner| seen.insert(*owner));
    let parts: Vec<String> = owners
        .iter()
        .map(|owner| {
            let fields = conflicts.iter().filter(|conflict| conflict.owner == *owner);
            let fields: Vec<&str> = fields.map(|conflict| conflict.field.as_str()).collect();
            match fields.as_slice() {
                [one] if conflicts.len() == 1 => format!("conflict with {owner}: {one}"),
                many => format!("conflicts with {owner}:\n- {}", many.join("\n- ")),
            }
        })
        .collect();
    let message = format!(
        "Apply failed with {} {noun}: {}",
        conflicts.len(),
        parts.join("\n")
    );
    let mut failure = Failure::generic(409, "Conflict", message);
    if let Some(details) = &mut failure.details {
        details.causes = conflicts
            .iter()
            .map(|conflict| Cause {
                reason: "FieldManagerConflict",
                message: format!("conflict with {}", conflict.owner),
                field: conflict.field.clone(),
            })
            .collect();
    }
    failure
}
