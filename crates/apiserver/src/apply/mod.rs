//! Server-side apply and the ownership of fields.
//!
//! Every write says which fields it set; `metadata.managedFields` remembers. An update takes what it
//! changes from whoever had it. An apply states what its manager wants: fields it stated before and
//! does not state now go unless somebody else owns them, and fields that others own with another value
//! are conflicts unless forced. The rules are those of structured-merge-diff
//! (`merge/update.go`) and of kube-apiserver's field manager.
//!
//! Invariant: paths of one entry are of the version that the entry names, and comparisons for an entry
//! are made in that version.

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
pub(crate) use shape::{Shape, keyed};

/// The owner of what was there when a first apply finds no owners.
const BEFORE_FIRST_APPLY: &str = "before-first-apply";

/// The writer whose applies follow those that it made on the client's side, and where those left their
/// configuration (apimachinery, `managedfields/internal/lastappliedmanager.go`).
const KUBECTL: &str = "kubectl";
const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// A field that somebody else owns with another value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Conflict {
    /// Who, as messages name it.
    pub(crate) owner: String,
    /// What, such as `.spec.replicas`.
    pub(crate) field: String,
}

/// Why a configuration was not applied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// It does not fit the schema.
    Unfit(String),
    /// Others own what it wants to change.
    Conflicts(Vec<Conflict>),
}

/// Comparisons of the same two objects in other versions; `None` if a version is not known.
pub(crate) type InVersion<'a> = &'a dyn Fn(&str) -> Option<Comparison>;

/// Paths that are nobody's: what the server sets.
fn nobodys() -> &'static Set {
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
    /// Those from before.
    Kept,
    /// Those from before, which is one, at another time.
    Renewed(String),
    /// These, if any.
    List(Option<Value>),
}

impl Owners {
    /// The list as it is stored, from the one before.
    pub(crate) fn into_list(self, before: Option<Value>) -> Option<Value> {
        match self {
            Self::Kept => before,
            Self::Renewed(now) => before.map(|list| managed::renewed(list, now)),
            Self::List(list) => list,
        }
    }

    /// Whether they differ from those before in their times at most.
    pub(crate) fn same_but_times(&self, before: Option<&Value>) -> bool {
        match (self, before) {
            (Self::Kept | Self::Renewed(_), _) => true,
            (Self::List(Some(list)), Some(before)) => managed::same_but_times(before, list),
            (Self::List(list), before) => list.is_none() && before.is_none(),
        }
    }
}

/// Whether an update is by the only owner and changed nothing but what it owned already, as every
/// renewal of a lock does: then the owners are the same but for the time.
pub(crate) fn renews(owners: &Value, writer: &Writer, change: &Comparison) -> bool {
    let Comparison {
        added,
        modified,
        removed,
    } = change;
    let counts = |set: &Set| !set.is_subset(nobodys());
    if counts(removed) || !(counts(added) || counts(modified)) {
        return false;
    }
    managed::alone(owners, writer).is_some_and(|own| {
        let mut changed = [added, modified].into_iter();
        changed.all(|set| set.is_written_in(Some(own), Some(nobodys())))
    })
}

/// The owners after an update that changed what `change` says.
pub(crate) fn update(
    mut managed: Managed,
    writer: &Writer,
    change: &Comparison,
    others: InVersion<'_>,
    now: &str,
) -> Managed {
    take_from_others(&mut managed, None, &writer.api_version, change, others);
    let taken = change.changed().difference(nobodys());
    if !taken.is_empty() {
        let own = managed.entry(writer);
        own.fields = taken.union(&own.fields);
        own.time = Some(now.to_owned());
    }
    managed.entries.retain(|entry| !entry.fields.is_empty());
    managed.cap();
    managed
}

/// Takes what changed from its owners, except one.
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

/// An apply: the live object, what is applied, by whom.
pub(crate) struct Apply<'a> {
    pub(crate) shape: Shape,
    /// The live object in the version of the writer, without owners; an empty object if absent.
    pub(crate) live: &'a Value,
    /// An object of the kind with nothing in it.
    pub(crate) empty: &'a Value,
    /// What the client wants, without `apiVersion` and `kind`.
    pub(crate) config: &'a Value,
    pub(crate) writer: &'a Writer,
    /// Paths that cannot be written this way.
    pub(crate) reset: &'a Set,
    pub(crate) force: bool,
}

impl Apply<'_> {
    /// Says what does not fit the schema.
    pub(crate) fn check(shape: Shape, config: &Value) -> Result<(), Refusal> {
        check::check(shape, config).map_err(Refusal::Unfit)
    }

    /// The new object, not yet canonical, if the writer is the only owner and states what it stated
    /// last time: then nothing goes, nobody is in the way, and the owners stay. `None` if there is
    /// more to it.
    pub(crate) fn again(&self, owners: &Value) -> Result<Option<Value>, Refusal> {
        let Some(stated) = managed::alone(owners, self.writer) else {
            return Ok(None);
        };
        check::check(self.shape, self.config).map_err(Refusal::Unfit)?;
        let claimed = compare::fields(self.shape, self.config).without(self.reset);
        if !claimed.difference(nobodys()).is_written_as(stated) {
            return Ok(None);
        }
        let merged = merge::merge(self.shape, Some(self.live), Some(self.config));
        Ok(Some(merged.unwrap_or_else(|| json!({}))))
    }

    /// The new object, not yet canonical, and its owners.
    ///
    /// `compared` gives the comparison of the live object with a new one in another version.
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
            // Who states all that it stated before takes nothing out.
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
        own.fields = std::mem::take(&mut own.fields).difference(nobodys());
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
        for entry in managed
            .entries
            .iter()
            .filter(|entry| entry.writer != *self.writer)
        {
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

    /// The configuration of the last apply on the client's side, if there was one.
    fn last_applied(&self) -> Option<&str> {
        let annotations = self.live.pointer("/metadata/annotations")?;
        let text = annotations.get(LAST_APPLIED)?.as_str()?;
        Some(text).filter(|text| !text.is_empty() && self.writer.manager == KUBECTL)
    }

    /// What kubectl stated when it applied on the client's side and what has been so since: that is its
    /// own, whoever it was recorded as.
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

    /// Keeps the annotation of applies on the client's side in step, for the next of them. `whole` is what is
    /// applied, with `apiVersion` and `kind`.
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

    /// Takes out what this writer stated last time and nobody states now.
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
