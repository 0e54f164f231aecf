//! Server-side apply and the ownership of fields.
//!
//! `metadata.managedFields` records the owner of each field. An update takes ownership of the fields that it changes.
//! An apply declares all fields of its manager:
//! - a field that the manager applied before and does not apply now is removed, unless another manager owns it;
//! - a field that another manager owns with another value is a conflict, unless the apply is forced.
//!
//! The rules are those of structured-merge-diff (`merge/update.go`) and of kube-apiserver's field manager.
//!
//! Invariant: the paths of an entry belong to the version that the entry names, and comparisons for an entry use that
//! version.

mod check;
mod compare;
mod managed;
mod merge;
mod set;
mod shape;

use std::collections::BTreeMap;

use serde_json::{Value, json};

pub(crate) use compare::{Comparison, compare};
pub(crate) use managed::{Managed, Operation, Writer, is_reset};
pub(crate) use set::Set;
pub(crate) use shape::Shape;

/// Manager of existing fields when the first apply finds no owners.
const BEFORE_FIRST_APPLY: &str = "before-first-apply";

/// Manager name of kubectl, and the annotation of its client-side applies. A server-side apply by kubectl takes over
/// the fields of its client-side applies (apimachinery, `managedfields/internal/lastappliedmanager.go`).
const KUBECTL: &str = "kubectl";
const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// A field that another manager owns with another value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Conflict {
    /// The owner, as shown in messages.
    pub(crate) owner: String,
    /// The field, such as `.spec.replicas`.
    pub(crate) field: String,
}

/// Error of an apply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// The configuration does not match the schema.
    Unfit(String),
    /// Other managers own fields that the configuration changes.
    Conflicts(Vec<Conflict>),
}

/// Compares the same two objects in another version; `None` if the version is unknown.
pub(crate) type InVersion<'a> = &'a dyn Fn(&str) -> Option<Comparison>;

/// Paths that have no owner, because the server sets them.
fn unowned_paths() -> &'static Set {
    static PATHS: std::sync::LazyLock<Set> = std::sync::LazyLock::new(|| {
        Set::of(&[
            &["apiVersion"],
            &["kind"],
            &["metadata"],
            &["metadata", "name"],
            &["metadata", "namespace"],
            &["metadata", "creationTimestamp"],
            &["metadata", "selfLink"],
            &["metadata", "uid"],
            &["metadata", "clusterName"],
            &["metadata", "generation"],
            &["metadata", "managedFields"],
            &["metadata", "resourceVersion"],
        ])
    });
    &PATHS
}

/// The owners of an object after a write.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Owners {
    /// The previous owners.
    Kept,
    /// The previous single owner, with another time.
    Renewed(String),
    /// These owners, if any.
    List(Option<Value>),
}

impl Owners {
    /// Returns the list to store, given the previous one.
    pub(crate) fn into_list(self, before: Option<Value>) -> Option<Value> {
        match self {
            Self::Kept => before,
            Self::Renewed(now) => before.map(|list| managed::renewed(list, now)),
            Self::List(list) => list,
        }
    }

    /// Returns whether the owners equal the previous ones except for times.
    pub(crate) fn same_but_times(&self, before: Option<&Value>) -> bool {
        match (self, before) {
            (Self::Kept | Self::Renewed(_), _) => true,
            (Self::List(Some(list)), Some(before)) => managed::same_but_times(before, list),
            (Self::List(list), before) => list.is_none() && before.is_none(),
        }
    }
}

/// Returns whether the only owner changed only fields that it owns, as every renewal of a lock does. Then only the time
/// of the entry changes.
pub(crate) fn renews(owners: &Value, writer: &Writer, change: &Comparison) -> bool {
    let Comparison {
        added,
        modified,
        removed,
    } = change;
    let counts = |set: &Set| !set.is_subset(unowned_paths());
    if counts(removed) || !(counts(added) || counts(modified)) {
        return false;
    }
    managed::alone(owners, writer).is_some_and(|own| {
        let mut changed = [added, modified].into_iter();
        changed.all(|set| set.is_written_in(Some(own), Some(unowned_paths())))
    })
}

/// Returns the owners after an update with these changes.
pub(crate) fn update(
    mut managed: Managed,
    writer: &Writer,
    change: &Comparison,
    others: InVersion<'_>,
    now: &str,
) -> Managed {
    take_from_others(&mut managed, None, &writer.api_version, change, others);
    let taken = change.changed().difference(unowned_paths());
    if !taken.is_empty() {
        let own = managed.entry(writer);
        own.fields = taken.union(&own.fields);
        own.time = Some(now.to_owned());
    }
    managed.entries.retain(|entry| !entry.fields.is_empty());
    managed.cap();
    managed
}

/// Removes changed fields from all owners except one.
fn take_from_others(
    managed: &mut Managed,
    except: Option<&Writer>,
    version: &str,
    change: &Comparison,
    others: InVersion<'_>,
) {
    let mut versions: BTreeMap<String, Option<Comparison>> = BTreeMap::new();
    managed.entries.retain_mut(|entry| {
        if Some(&entry.writer) == except {
            return true;
        }
        let own = &entry.writer.api_version;
        let change = if own == version {
            Some(change)
        } else {
            versions
                .entry(own.clone())
                .or_insert_with(|| others(own))
                .as_ref()
        };
        let Some(change) = change else {
            return false;
        };
        let fields = std::mem::take(&mut entry.fields);
        entry.fields = fields
            .difference(&change.modified)
            .difference(&change.added)
            .difference(&change.removed);
        !entry.fields.is_empty()
    });
}

/// Inputs of an apply.
pub(crate) struct Apply<'a> {
    pub(crate) shape: Shape<'a>,
    /// The live object in the version of the writer, without owners; an empty object if absent.
    pub(crate) live: &'a Value,
    /// An empty object of the kind.
    pub(crate) empty: &'a Value,
    /// The applied configuration, without `apiVersion` and `kind`.
    pub(crate) config: &'a Value,
    pub(crate) writer: &'a Writer,
    /// Paths that this endpoint cannot write.
    pub(crate) reset: &'a Set,
    pub(crate) force: bool,
}

impl Apply<'_> {
    /// Checks the configuration against the schema.
    pub(crate) fn check(shape: Shape, config: &Value) -> Result<(), Refusal> {
        check::check(shape, config).map_err(Refusal::Unfit)
    }

    /// Fast path: returns the new object, not yet canonical, if the writer is the only owner and applies the same
    /// fields as last time. Then there is nothing to remove and no conflict, and the owners stay. Returns `None`
    /// otherwise.
    pub(crate) fn again(&self, owners: &Value) -> Result<Option<Value>, Refusal> {
        let Some(stated) = managed::alone(owners, self.writer) else {
            return Ok(None);
        };
        check::check(self.shape, self.config).map_err(Refusal::Unfit)?;
        let claimed = compare::fields(self.shape, self.config).without(self.reset);
        if !claimed.difference(unowned_paths()).is_written_as(stated) {
            return Ok(None);
        }
        let merged = merge::merge(self.shape, Some(self.live), Some(self.config));
        Ok(Some(merged.unwrap_or_else(|| json!({}))))
    }

    /// Returns the new object, not yet canonical, and its owners.
    ///
    /// `compared` compares the live object with a new one in another version.
    pub(crate) fn run(
        &self,
        mut managed: Managed,
        compared: &dyn Fn(&str, &Value) -> Option<Comparison>,
        now: &str,
    ) -> Result<(Value, Managed), Refusal> {
        check::check(self.shape, self.config).map_err(Refusal::Unfit)?;
        if managed.is_empty() && self.live != self.empty {
            let before = Writer {
                manager: BEFORE_FIRST_APPLY.to_owned(),
                operation: Operation::Update,
                subresource: String::new(),
                ..self.writer.clone()
            };
            let change = compare(self.shape, self.empty, self.live).without(self.reset);
            managed = update(managed, &before, &change, &|_| None, now);
        }
        let merged = merge::merge(self.shape, Some(self.live), Some(self.config));
        let merged = merged.unwrap_or_else(|| json!({}));
        let last = managed.get(self.writer).map(|entry| entry.fields.clone());
        let claimed = compare::fields(self.shape, self.config).without(self.reset);
        managed.entry(self.writer).fields = claimed;
        let new = match last {
            // Nothing is removed if the manager still applies all its previous fields.
            Some(last) if !last.is_subset(&managed.entry(self.writer).fields) => {
                self.prune(&merged, &managed, &last)
            }
            _ => merged,
        };
        let change = compare(self.shape, self.live, &new).without(self.reset);
        let others = |version: &str| compared(version, &new).map(|found| found.without(self.reset));
        if !self.force {
            let mut conflicts = self.conflicts(&managed, &change, &others, &Set::default());
            if !conflicts.is_empty()
                && let Some(own) = self.applied_by_client()
            {
                conflicts = self.conflicts(&managed, &change, &others, &own);
            }
            if !conflicts.is_empty() {
                return Err(Refusal::Conflicts(conflicts));
            }
        }
        let version = &self.writer.api_version;
        take_from_others(&mut managed, Some(self.writer), version, &change, &others);
        let own = managed.entry(self.writer);
        own.fields = std::mem::take(&mut own.fields).difference(unowned_paths());
        if new != *self.live {
            own.time = Some(now.to_owned());
        }
        managed.entries.retain(|entry| !entry.fields.is_empty());
        Ok((new, managed))
    }

    fn conflicts(
        &self,
        managed: &Managed,
        change: &Comparison,
        others: InVersion<'_>,
        allowed: &Set,
    ) -> Vec<Conflict> {
        let mut out = Vec::new();
        let entries = managed.entries.iter();
        let mut entries: Vec<_> = entries
            .filter(|entry| entry.writer != *self.writer)
            .collect();
        // Clients see the managers in the order of their names.
        entries.sort_by_cached_key(|entry| entry.writer.to_string());
        for entry in entries {
            let own = &entry.writer.api_version;
            let changed = if *own == self.writer.api_version {
                change.changed()
            } else {
                others(own)
                    .map(|change| change.changed())
                    .unwrap_or_default()
            };
            let owner = entry.writer.to_string();
            let fields = entry.fields.intersection(&changed);
            let fields = fields.difference(allowed).paths();
            out.extend(fields.into_iter().map(|field| Conflict {
                owner: owner.clone(),
                field,
            }));
        }
        out
    }

    /// Returns the configuration of the last client-side apply, if there was one.
    fn last_applied(&self) -> Option<&str> {
        let annotations = self.live.pointer("/metadata/annotations")?;
        let text = annotations.get(LAST_APPLIED)?.as_str()?;
        Some(text).filter(|text| !text.is_empty() && self.writer.manager == KUBECTL)
    }

    /// Returns the fields that kubectl applied client-side and that are unchanged since. They belong to kubectl
    /// regardless of the recorded manager.
    fn applied_by_client(&self) -> Option<Set> {
        let mut last: Value = serde_json::from_str(self.last_applied()?).ok()?;
        let map = last.as_object_mut()?;
        let version = map.remove("apiVersion");
        if version.as_ref().and_then(Value::as_str) != Some(&self.writer.api_version) {
            return None;
        }
        map.remove("kind");
        check::check(self.shape, &last).ok()?;
        let since = compare(self.shape, &last, self.live);
        let stated = compare::fields(self.shape, &last);
        let stated = stated.difference(&since.modified).difference(&since.added);
        Some(stated.difference(&since.removed))
    }

    /// Updates the annotation of client-side applies. `whole` returns the applied configuration with `apiVersion` and
    /// `kind`.
    pub(crate) fn note(&self, new: &mut Value, whole: impl FnOnce() -> Value) {
        if self.last_applied().is_none() {
            return;
        }
        let mut whole = whole();
        let stated = whole.pointer_mut("/metadata/annotations");
        if let Some(stated) = stated.and_then(Value::as_object_mut) {
            stated.remove(LAST_APPLIED);
        }
        let annotations = new.pointer_mut("/metadata/annotations");
        if let Some(annotations) = annotations.and_then(Value::as_object_mut)
            && annotations.contains_key(LAST_APPLIED)
        {
            annotations.insert(LAST_APPLIED.to_owned(), json!(format!("{whole}\n")));
        }
    }

    /// Removes fields that this writer applied last time and that no manager owns now.
    fn prune(&self, merged: &Value, managed: &Managed, last: &Set) -> Value {
        let named = |set: &Set| set.with_named(self.shape);
        let fields = |value: &Value| named(&compare::fields(self.shape, value));
        let without = |set: &Set| {
            let left = merge::remove(self.shape, merged, set);
            left.unwrap_or_else(|| json!({}))
        };
        let last = named(last);
        let all = fields(merged);
        let pruned = without(&last);
        let owned = managed
            .entries
            .iter()
            .fold(Set::default(), |sum, entry| sum.union(&entry.fields));
        let kept = fields(&pruned).union(&named(&owned));
        let pruned = without(&all.clone().difference(&kept));
        let gone = all.difference(&fields(&pruned)).intersection(&last);
        without(&gone)
    }
}

#[cfg(test)]
mod tests;
