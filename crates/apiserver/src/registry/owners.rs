//! The owners of fields: what the verbs remember of who wrote what.
//!
//! Owners are worked out on the object as the client meant it, after defaults and before the server's
//! own additions, as the real server does.

use std::borrow::Cow;

use jiff::Timestamp;
use serde_json::{Value, json};

use super::engine::{Target, WriteOptions};
use super::meta::{self, rfc3339};
use super::{Kind, Subresource, Version};
use crate::apply::{
    self, Apply, Comparison, Conflict, Managed, Operation, Refusal, Set, Shape, Writer,
};
use crate::schema;
use crate::status::{Cause, Failure};

const LIST: &str = "/metadata/managedFields";

/// An apply patch on its way.
pub(crate) struct Configuration<'a> {
    /// What the client wants, with `apiVersion` and `kind`.
    pub(crate) object: Value,
    pub(crate) force: bool,
    /// Makes the stored form of what comes out.
    pub(crate) store: &'a (dyn Fn(Value) -> Result<Value, Failure> + Send + Sync),
}

/// Fills in what the client means by leaving it out, and nothing that is the server's to give.
pub(super) fn default(target: &Target<'_>, object: &mut Value) {
    match target.kind.resource() {
        ("", "services") => super::rules::service::default_meant(object),
        ("", "persistentvolumeclaims") => super::rules::volume::default_meant(object),
        _ => target.default(object),
    }
}

/// Takes the owners that a client sent out of its object.
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

/// The owners after a create or an update, both in the stored form. `sent` are those that the client
/// sent along: it may change them.
pub(super) fn updated(
    target: &Target<'_>,
    subresource: Option<Subresource>,
    old: Option<&Value>,
    new: &Value,
    sent: Option<&Value>,
    options: &WriteOptions,
) -> Option<Value> {
    let live = old.and_then(|old| old.pointer(LIST));
    if options.manager.is_empty() {
        return live.cloned();
    }
    let sent = sent.filter(|_| subresource.is_none());
    let managed = if apply::is_reset(sent) {
        Managed::default()
    } else {
        let from_client = sent.filter(|sent| Some(*sent) != live);
        let from_client = from_client.and_then(|sent| Managed::decode(Some(sent)));
        match from_client.filter(|managed| !managed.is_empty()) {
            Some(managed) => managed,
            None => Managed::decode(live)?,
        }
    };
    if managed.is_empty() && old.is_some() {
        // Nobody owns anything since before owners were kept; only an apply changes that.
        return None;
    }
    let empty = empty(target.kind, target.version);
    let reset = reset(target, subresource);
    let compared = |kind: &'static Kind, version: &'static Version| -> Comparison {
        let old = old.map_or(Cow::Borrowed(&empty), |old| in_version(version, old));
        let new = in_version(version, new);
        apply::compare(shape(kind, version), &old, &new).without(&reset)
    };
    let change = compared(target.kind, target.version);
    if change.is_empty() && sent.is_none_or(|sent| Some(sent) == live) {
        return live.cloned();
    }
    let writer = writer(target, subresource, Operation::Update, options);
    let others = |api_version: &str| {
        let (kind, version) = find_version(target.kind, api_version)?;
        Some(compared(kind, version))
    };
    let now = rfc3339(Timestamp::now());
    apply::update(managed, &writer, &change, &others, &now).encode()
}

/// The object after an apply, in the stored form, and its owners.
pub(super) fn applied(
    target: &Target<'_>,
    subresource: Option<Subresource>,
    old: Option<&Value>,
    configuration: &Configuration<'_>,
    options: &WriteOptions,
) -> Result<(Value, Option<Value>), Failure> {
    let mut config = configuration.object.clone();
    check_type(target, &config)?;
    let map = config.as_object_mut().expect("checked to be an object");
    map.remove("apiVersion");
    map.remove("kind");
    let empty = empty(target.kind, target.version);
    let mut live = old.map_or_else(
        || empty.clone(),
        |old| in_version(target.version, old).into_owned(),
    );
    let managed = Managed::decode(live.pointer(LIST))
        .ok_or_else(|| Failure::internal("the owners of the stored object cannot be read"))?;
    put(&mut live, None);
    let writer = writer(target, subresource, Operation::Apply, options);
    let reset = reset(target, subresource);
    let apply = Apply {
        shape: shape(target.kind, target.version),
        live: &live,
        empty: &empty,
        config: &config,
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
        let old = to_stored(live.clone());
        let new = to_stored(new.clone());
        let (old, new) = (in_version(version, &old), in_version(version, &new));
        Some(apply::compare(shape(kind, version), &old, &new))
    };
    let now = rfc3339(Timestamp::now());
    let (new, managed) = apply
        .run(managed, &compared, &now)
        .map_err(|refusal| refused(&configuration.object, refusal))?;
    // What came out as it was is as it was stored, defaults and all.
    let new = match old {
        Some(old) if new == live => old.clone(),
        _ => (configuration.store)(new)?,
    };
    Ok((new, managed.encode()))
}

/// The shape of a version of a kind.
fn shape(kind: &Kind, version: &Version) -> Shape {
    if let Some(custom) = version.custom {
        return Shape::Custom(&custom.schema);
    }
    let message = schema::message(kind.group, version.name, kind.kind);
    message.map_or(Shape::Free, Shape::Struct)
}

/// An object of the kind with nothing in it.
fn empty(kind: &Kind, version: &Version) -> Value {
    let message = schema::message(kind.group, version.name, kind.kind);
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

/// The kind and version behind an `apiVersion`, among the views of what this kind stores.
fn find_version(
    kind: &'static Kind,
    api_version: &str,
) -> Option<(&'static Kind, &'static Version)> {
    let (group, version) = api_version.rsplit_once('/').unwrap_or(("", api_version));
    let views = std::iter::once(kind).chain(super::all().iter().copied());
    let mut views = views.filter(|view| view.storage == kind.storage && view.group == group);
    views.find_map(|view| Some((view, view.version(version)?)))
}

/// What a write by this way cannot change.
fn reset(target: &Target<'_>, subresource: Option<Subresource>) -> Set {
    match subresource {
        Some(Subresource::Status) if target.version.custom.is_some() => {
            Set::of(&[&["metadata"], &["spec"]])
        }
        None if target.kind.has_status() => Set::of(&[&["status"]]),
        Some(Subresource::Status) => Set::of(&[&["spec"]]),
        Some(Subresource::Finalize) => Set::of(&[&["status"]]),
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

/// A configuration names what it is, exactly, and leaves owners to the server.
fn check_type(target: &Target<'_>, config: &Value) -> Result<(), Failure> {
    let text = |name: &str| config.get(name).and_then(Value::as_str).unwrap_or_default();
    let (api_version, kind) = (text("apiVersion"), text("kind"));
    if api_version != target.kind.api_version(target.version) || kind != target.kind.kind {
        let (group, version) = api_version.rsplit_once('/').unwrap_or(("", api_version));
        return Err(Failure::bad_request(format!(
            "invalid object type: {group}/{version}, Kind={kind}"
        )));
    }
    if config.pointer(LIST).is_some_and(|list| !list.is_null()) {
        return Err(Failure::bad_request("metadata.managedFields must be nil"));
    }
    Ok(())
}

fn refused(config: &Value, refusal: Refusal) -> Failure {
    match refusal {
        Refusal::Unfit(why) => {
            let text = |pointer: &str| super::rules::text(config, pointer);
            let api_version = text("/apiVersion");
            let (group, version) = api_version.rsplit_once('/').unwrap_or(("", api_version));
            let message = format!(
                "failed to create typed patch object ({}/{}; {group}/{version}, Kind={}): {why}",
                text("/metadata/namespace"),
                text("/metadata/name"),
                text("/kind")
            );
            Failure::new(500, "", message)
        }
        Refusal::Conflicts(conflicts) => conflict(&conflicts),
    }
}

/// 409 with one cause per field.
fn conflict(conflicts: &[Conflict]) -> Failure {
    let noun = if conflicts.len() == 1 {
        "conflict"
    } else {
        "conflicts"
    };
    let mut owners: Vec<&str> = Vec::new();
    for conflict in conflicts {
        if !owners.contains(&conflict.owner.as_str()) {
            owners.push(&conflict.owner);
        }
    }
    let parts: Vec<String> = owners
        .iter()
        .map(|owner| {
            let fields = conflicts.iter().filter(|conflict| conflict.owner == *owner);
            let fields: Vec<&str> = fields.map(|conflict| conflict.field.as_str()).collect();
            match fields.as_slice() {
                [one] => format!("conflict with {owner}: {one}"),
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
