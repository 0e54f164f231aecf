//! Updates objects: PUT and PATCH, of the whole object or one subresource.

use std::collections::HashMap;
use std::sync::Arc;

use bytes::Bytes;
use serde_json::{Value, json};

use super::engine::{ATTEMPTS, Registry, Target, WriteOptions, parsed, refuse_invalid, unparsed};
use super::owners::{self, Configuration, Intent};
use super::quotas::{Outcome, Versions};
use super::rules::{at, entries, items, text};
use super::{Generation, Subresource, meta, rules};
use crate::auth::User;
use crate::status::{Cause, Failure};
use crate::store::{Change, Expected, Object};

/// The source of the new state, in the stored form.
pub(crate) enum Source<'a> {
    /// A complete object from the client.
    Replace(Value),
    /// A patch, to be applied to the stored object.
    Patch(&'a (dyn Fn(&Value) -> Result<Value, Failure> + Send + Sync)),
    /// A configuration to apply, whether or not the object exists.
    Apply(Configuration<'a>),
}

impl Registry {
    /// Updates an object. Returns it as stored, and whether it was created.
    pub(crate) async fn update(
        self: &Arc<Self>,
        target: &Target<'_>,
        subresource: Option<Subresource>,
        mut source: Source<'_>,
        user: &User,
        options: &WriteOptions,
    ) -> Result<(Bytes, bool), Failure> {
        let seen = self.store.revision();
        let first = self
            .update_now(target, subresource, &mut source, user, options)
            .await;
        match first {
            Err(failure) if self.outdated(seen, &failure).await? => {
                self.update_now(target, subresource, &mut source, user, options)
                    .await
            }
            done => done,
        }
    }

    async fn update_now(
        self: &Arc<Self>,
        target: &Target<'_>,
        subresource: Option<Subresource>,
        source: &mut Source<'_>,
        user: &User,
        options: &WriteOptions,
    ) -> Result<(Bytes, bool), Failure> {
        let demanded = matches!(&*source, Source::Replace(body) if has_version(body));
        for _ in 0..ATTEMPTS {
            let Some(current) = self.store.get(&target.key()) else {
                let (body, owners) = match &*source {
                    _ if subresource.is_some() => return Err(target.not_found()),
                    Source::Apply(configuration) => {
                        check_no_uid(target, &configuration.object)?;
                        owners::applied(target, None, None, configuration, options)?
                    }
                    Source::Replace(body) if target.kind.create_on_update => {
                        check_uid(target, None, body)?;
                        let mut body = body.clone();
                        let sent = owners::take(&mut body);
                        owners::default(target, &mut body);
                        let sent = sent.as_ref();
                        let owners = owners::updated(target, None, None, &body, sent, options);
                        (body, owners)
                    }
                    Source::Replace(_) | Source::Patch(_) => return Err(target.not_found()),
                };
                let owners = owners.into_list(None);
                let created = self.create_by_update(target, body, owners, user, options);
                match created.await? {
                    Some(created) => return Ok((created, true)),
                    None => continue,
                }
            };
            let mut old = match self.recent.take(&current) {
                Some(old) => old,
                None => parsed(&current)?,
            };
            // An older version of the server, or of the definition, may have stored it with fewer defaults.
            target.default(&mut old);
            let is_patch = !matches!(&*source, Source::Replace(_));
            let Intent {
                new,
                owners,
                before,
            } = match &mut *source {
                Source::Replace(body) => {
                    check_uid(target, Some(&old), body)?;
                    // A request with a version is not retried, so the body is not needed again. The exception is a
                    // shared store, where the first attempt may have used stale data.
                    let body = if demanded && !self.store.shared() {
                        std::mem::take(body)
                    } else {
                        body.clone()
                    };
                    Intent::by_update(target, subresource, &mut old, body, options)
                }
                Source::Patch(apply) => {
                    let patched = apply(&old)?;
                    Intent::by_update(target, subresource, &mut old, patched, options)
                }
                Source::Apply(configuration) => {
                    Intent::by_apply(target, subresource, &mut old, configuration, options)?
                }
            };
            check_version(target, is_patch, &current, &new)?;
            // `prepare` treats a write of the scale as an update of the whole object.
            let part = subresource.filter(|part| *part != Subresource::Scale);
            let mut new = prepare(target, part, &old, new)?;
            if subresource.is_none() {
                self.decide_names(target, &mut new);
                (target.kind.assign)(self, target, &mut new)?;
            }
            // If only the times of the owners differ, the request changes nothing and must not cause a write.
            let unchanged = new == old && owners.same_but_times(before.as_ref());
            let owners = if unchanged {
                before
            } else {
                owners.into_list(before)
            };
            owners::put(&mut new, owners);
            if subresource.is_none() {
                self.check_grant(target, user, Some(&old), &new)?;
                (target.kind.check_update)(self, target, &old, &new)?;
            }
            if unchanged || options.dry_run {
                if !self.is_current(&current).await? {
                    continue;
                }
                self.check_fence(target, options)?;
            }
            if unchanged {
                return Ok((current.json.clone(), false));
            }
            // The amounts of a pod are limited when it is created.
            let enforced = subresource.is_none() && !target.kind.graceful;
            if options.dry_run {
                if target.kind.metered && !is_removable(target, &new) {
                    let versions = Versions {
                        old: Some(&old),
                        new: Some(&new),
                    };
                    Box::pin(self.charge(target, versions, enforced, true)).await?;
                }
                return Ok((unparsed(&new), false));
            }
            let expected = Expected::Revision(current.revision);
            if is_removable(target, &new) {
                // The response to removing the last finalizer contains the object as it would have been stored.
                let last = unparsed(&new);
                let removed = Box::pin(self.remove(target, &old, expected, options)).await?;
                match removed {
                    Some(_) => {
                        self.after_removal(target);
                        return Ok((last, false));
                    }
                    None if demanded => break,
                    None => continue,
                }
            }
            let charge = if target.kind.metered {
                let versions = Versions {
                    old: Some(&old),
                    new: Some(&new),
                };
                Some(Box::pin(self.charge(target, versions, enforced, false)).await?)
            } else {
                None
            };
            let new = Arc::new(new);
            let change = Change::Put(Arc::clone(&new));
            let written = self
                .write(target, target.key(), expected, change, options)
                .await;
            if let Some(charge) = charge {
                Box::pin(self.settle(target, charge, Outcome::of(&written))).await;
            }
            match written? {
                Some(stored) => {
                    if let Some(new) = Arc::into_inner(new) {
                        self.remember(&stored, new);
                    }
                    return Ok((stored.json.clone(), false));
                }
                None if demanded => break,
                None => {}
            }
        }
        Err(Failure::modified(target.kind.resource(), target.name))
    }
}

impl Registry {
    /// Caches the stored object for its next update.
    fn remember(&self, stored: &Arc<Object>, value: Value) {
        if !self.store.shared() {
            return self.recent.insert(stored, value);
        }
        // A shared store returns the object that its watch delivered, not the one passed to the write.
        let shown = self.store.get(&stored.key);
        if let Some(shown) = shown.filter(|shown| shown.revision == stored.revision) {
            self.recent.insert(&shown, value);
        }
    }
}

/// Checks the precondition that a uid in the body of a PUT expresses.
fn check_uid(target: &Target<'_>, old: Option<&Value>, body: &Value) -> Result<(), Failure> {
    let wanted = text(body, "/metadata/uid");
    let present = old.map_or("", |old| text(old, "/metadata/uid"));
    if wanted.is_empty() || wanted == present {
        return Ok(());
    }
    let why = format!(
        "Precondition failed: UID in precondition: {wanted}, UID in object meta: {present}"
    );
    Err(Failure::conflict(target.kind.resource(), target.name, &why))
}

/// Rejects a configuration with a uid for an absent object.
fn check_no_uid(target: &Target<'_>, configuration: &Value) -> Result<(), Failure> {
    let uid = text(configuration, "/metadata/uid");
    if uid.is_empty() {
        return Ok(());
    }
    let why = format!(
        "uid mismatch: the provided object specified uid {uid}, and no existing object was found"
    );
    Err(Failure::conflict(target.kind.resource(), target.name, &why))
}

/// Whether the client names the version that it replaces.
fn has_version(body: &Value) -> bool {
    !matches!(text(body, "/metadata/resourceVersion"), "" | "0")
}

/// Compares the client's resourceVersion with the stored one. A patch is applied to the stored object, so its result
/// contains the client's version only if that version differs.
fn check_version(
    target: &Target<'_>,
    patched: bool,
    current: &Object,
    new: &Value,
) -> Result<(), Failure> {
    let resource = target.kind.resource();
    let wanted = text(new, "/metadata/resourceVersion");
    if has_version(new) {
        return match wanted.parse::<u64>() {
            Ok(revision) if revision == current.revision => Ok(()),
            Ok(_) => Err(Failure::modified(resource, target.name)),
            Err(_) => Err(Failure::bad_request(format!(
                "invalid resource version {wanted:?}: it is not a number"
            ))),
        };
    }
    if patched || target.kind.unconditional_update {
        return Ok(());
    }
    let why = "must be specified for an update";
    let cause = Cause::invalid("metadata.resourceVersion", &json!(0), why);
    Err(Failure::invalid(resource, target.name, vec![cause]))
}

/// Preserves the members that this update cannot change, applies defaults and validates.
fn prepare(
    target: &Target<'_>,
    subresource: Option<Subresource>,
    old: &Value,
    mut new: Value,
) -> Result<Value, Failure> {
    let kind = target.kind;
    let mut causes = Vec::new();
    let uid = text(&new, "/metadata/uid");
    if !uid.is_empty() && uid != text(old, "/metadata/uid") {
        // The real server checks this twice and reports two causes.
        let cause = Cause::invalid("metadata.uid", &json!(uid), "field is immutable");
        causes.extend([cause.clone(), cause]);
    }
    let grace = "/metadata/deletionGracePeriodSeconds";
    if let Some(seconds) = at(&new, grace).filter(|g| !g.is_null() && !meta::is_deleting(old)) {
        let field = "metadata.deletionGracePeriodSeconds";
        let cause = Cause::invalid(field, seconds, "field is immutable");
        causes.extend([cause.clone(), cause]);
    }
    meta::preserve_system(old, &mut new);
    match subresource {
        Some(Subresource::Status) => {
            keep_all_but(old, &mut new, "status");
            if target.version.custom.is_some() {
                // The status of a custom object can change only the owners in the metadata.
                preserve(old, &mut new, "metadata");
            } else if !kind.status_with_metadata {
                preserve_identity(old, &mut new);
            }
            (kind.change_status)(old, &mut new);
        }
        Some(Subresource::Finalize) => {
            keep_all_but(old, &mut new, "spec");
            preserve(old, &mut new, "metadata");
        }
        Some(Subresource::EphemeralContainers) => keep_all_but_ephemeral(old, &mut new),
        Some(_) => {}
        None => {
            if target.has_status() {
                preserve(old, &mut new, "status");
            }
            (kind.preserve)(old, &mut new);
        }
    }
    target.default(&mut new);
    if subresource.is_none() && counts(target, old, &new) {
        let generation = old
            .pointer("/metadata/generation")
            .and_then(Value::as_i64)
            .unwrap_or(0);
        meta::metadata(&mut new).insert("generation".into(), json!(generation + 1));
    }
    meta::validate(kind, &new, &mut causes);
    meta::validate_update(old, &new, &mut causes);
    if subresource.is_none() {
        target.validate_update(old, &new, &mut causes);
    } else if subresource == Some(Subresource::EphemeralContainers) {
        check_ephemeral(old, &new, &mut causes);
    } else if subresource == Some(Subresource::Finalize) {
        rules::namespace::validate_finalize(&new, &mut causes);
    } else if subresource == Some(Subresource::Status) {
        match &target.version.custom {
            Some(custom) => custom.schema.validate_update(old, &new, &mut causes),
            None => (kind.validate_status)(&new, &mut causes),
        }
    }
    refuse_invalid(target, target.name, causes)?;
    Ok(new)
}

/// Whether a deleted object can be removed because no finalizer and no grace period is left.
fn is_removable(target: &Target<'_>, object: &Value) -> bool {
    let grace = at(object, "/metadata/deletionGracePeriodSeconds").and_then(Value::as_i64);
    let held = target.kind.is_namespace && !items(object, "/spec/finalizers").is_empty();
    meta::is_deleting(object)
        && grace.unwrap_or(0) == 0
        && items(object, "/metadata/finalizers").is_empty()
        && !held
}

fn preserve(old: &Value, new: &mut Value, member: &str) {
    let Some(map) = new.as_object_mut() else {
        return;
    };
    match old.get(member) {
        Some(value) => map.insert(member.to_owned(), value.clone()),
        None => map.remove(member),
    };
}

fn keep_all_but(old: &Value, new: &mut Value, changed: &str) {
    let members = |value: &Value| -> Vec<String> {
        value
            .as_object()
            .map(|map| map.keys().cloned().collect())
            .unwrap_or_default()
    };
    for member in members(old).into_iter().chain(members(new)) {
        if member != changed && member != "metadata" {
            preserve(old, new, &member);
        }
    }
}

/// Preserves the metadata by which others select, own and delete an object. A status write cannot change it.
fn preserve_identity(old: &Value, new: &mut Value) {
    let empty = json!({});
    let was = old.get("metadata").unwrap_or(&empty);
    if let Some(metadata) = new.get_mut("metadata") {
        for member in ["labels", "ownerReferences", "finalizers"] {
            preserve(was, metadata, member);
        }
    }
}

const EPHEMERAL: &str = "/spec/ephemeralContainers";

fn keep_all_but_ephemeral(old: &Value, new: &mut Value) {
    let listed = items(new, EPHEMERAL).to_vec();
    keep_all_but(old, new, "metadata");
    preserve(old, new, "metadata");
    if let Some(spec) = new.get_mut("spec").and_then(Value::as_object_mut) {
        spec.insert("ephemeralContainers".to_owned(), json!(listed));
        if listed.is_empty() {
            spec.remove("ephemeralContainers");
        }
    }
}

/// Checks that ephemeral containers are only added, and existing ones are unchanged.
fn check_ephemeral(old: &Value, new: &Value, causes: &mut Vec<Cause>) {
    let listed = items(new, EPHEMERAL).iter();
    let by_name: HashMap<&str, &Value> = listed.map(|c| (text(c, "/name"), c)).collect();
    for was in items(old, EPHEMERAL) {
        let name = text(was, "/name");
        let what = match by_name.get(name) {
            Some(is) if *is == was => continue,
            Some(_) => "changed",
            None => "removed",
        };
        let why = format!("existing ephemeral containers {name:?} may not be {what}\n");
        causes.push(Cause::forbidden("spec.ephemeralContainers", &why));
    }
}

/// Whether `metadata.generation` counts this change.
fn counts(target: &Target<'_>, old: &Value, new: &Value) -> bool {
    // If a custom kind has a `status` subresource, the status has already been preserved here. Otherwise it counts like
    // any other member.
    let custom = target.version.custom.is_some();
    let content = |object| -> Vec<(&String, &Value)> {
        let members = Value::as_object(object).into_iter().flatten();
        members
            .filter(|(key, _)| *key != "metadata" && (custom || *key != "status"))
            .collect()
    };
    match target.kind.generation {
        Generation::None | Generation::First => false,
        Generation::Content | Generation::Changes => content(old) != content(new),
        Generation::Labels => {
            content(old) != content(new) || old["metadata"]["labels"] != new["metadata"]["labels"]
        }
        Generation::Annotations => {
            let annotations = |object| entries(object, "/metadata/annotations");
            content(old) != content(new) || annotations(old).ne(annotations(new))
        }
    }
}
