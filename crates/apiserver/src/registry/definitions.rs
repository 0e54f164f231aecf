//! Serves the kinds that clients define, and deletes their objects with the definition.
//!
//! Invariants: the kind of a definition is served before the write that established it is answered. The objects of a
//! kind are deleted before its definition is.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, PoisonError, Weak};
use std::time::Duration;

use serde_json::{Value, json};

use super::delete::DeleteOptions;
use super::engine::{Registry, Target, WriteOptions, parsed};
use super::kinds::compile;
use super::rules::{items, text};
use super::{Kind, KindRef, Source, meta};
use crate::auth::User;
use crate::blocking::off_workers;
use crate::crd::{self, definition};
use crate::status::Failure;
use crate::store::{Given, Key, Object, Range, WatchEnd};

/// Interval at which the deletion of a definition checks whether objects of its kind are left.
const PURGE_PERIOD: Duration = Duration::from_millis(50);

/// The custom kinds that are served in addition to the built-in kinds.
#[derive(Default)]
pub(crate) struct Served {
    /// The store revision at which the definitions were read.
    revision: u64,
    /// The definitions, in the order of their keys.
    definitions: Vec<Definition>,
    /// Indices of the definitions, by storage name.
    by_storage: HashMap<Arc<str>, usize>,
}

struct Definition {
    kind: Arc<Kind>,
    seen: Given,
    ending: bool,
}

impl Served {
    /// Returns all kinds in the order of discovery.
    pub(crate) fn kinds(&self) -> Vec<&Kind> {
        let custom = self.definitions.iter().map(|definition| &*definition.kind);
        super::all().iter().copied().chain(custom).collect()
    }

    fn definition(&self, storage: &str) -> Option<&Definition> {
        self.definitions.get(*self.by_storage.get(storage)?)
    }
}

/// The names that definitions own, by group and name, with the name of the definition. `None` means several definitions.
struct Owners<'a>(HashMap<(&'a str, String), Option<&'a str>>);

impl<'a> Owners<'a> {
    fn of(definitions: &'a [Value]) -> Self {
        let mut owners = HashMap::new();
        for definition in definitions {
            let group = text(definition, "/spec/group");
            let owner = text(definition, "/metadata/name");
            let names = definition.pointer("/status/acceptedNames");
            for (name, _) in definition::claimed_names(names.unwrap_or(&Value::Null)) {
                owners
                    .entry((group, name))
                    .and_modify(|known| *known = None)
                    .or_insert(Some(owner));
            }
        }
        Self(owners)
    }

    /// Returns a name that this definition claims, and that a built-in kind or another definition owns.
    fn conflict(&self, definition: &Value) -> Option<String> {
        let group = text(definition, "/spec/group");
        let own = text(definition, "/metadata/name");
        let builtin: HashSet<&str> = super::all()
            .iter()
            .filter(|kind| kind.group() == group)
            .flat_map(|kind| [kind.plural(), kind.kind()])
            .collect();
        let names = definition.pointer("/spec/names").unwrap_or(&Value::Null);
        let mut mine = definition::claimed_names(names).into_iter();
        let taken = |name: &String| {
            let owner = self.0.get(&(group, name.clone()));
            builtin.contains(name.as_str()) || owner.is_some_and(|owner| *owner != Some(own))
        };
        mine.find_map(|(name, _)| taken(&name).then_some(name))
    }
}

impl Kind {
    /// Whether objects of this kind define kinds (CustomResourceDefinition).
    pub(crate) fn is_definition(&self) -> bool {
        self.resource() == (crd::GROUP, crd::PLURAL)
    }
}

impl Registry {
    /// Returns the kind that serves a resource.
    pub(crate) fn find(&self, group: &str, plural: &str) -> Option<KindRef> {
        if let Some(kind) = super::find(group, plural) {
            return Some(KindRef::BuiltIn(kind));
        }
        let served = self.served();
        let definition = served.definition(&format!("{group}/{plural}"))?;
        Some(KindRef::Custom(Arc::clone(&definition.kind)))
    }

    /// Returns the kinds that are served now.
    pub(crate) fn served(&self) -> Arc<Served> {
        let served = self.served.read().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(&served)
    }

    /// Rejects new objects of a kind that is being deleted. Otherwise returns the definition, if the kind has one, as a
    /// precondition of the write.
    pub(super) fn check_defined(&self, target: &Target<'_>) -> Result<Option<Given>, Failure> {
        if target.version.custom.is_none() {
            return Ok(None);
        }
        match self.served().definition(target.kind.storage()) {
            None => Err(Failure::no_resource()),
            // The request was decoded with another version of the definition than the current one.
            Some(definition) if !definition.kind.has_spec_of(target.kind) => {
                let name = &definition.seen.key.name;
                let why = format!(
                    "the definition {name:?} has changed since the request started; try again"
                );
                Err(Failure::try_again(why))
            }
            Some(definition) if definition.ending => {
                let message = "create not allowed while custom resource definition is terminating";
                Err(Failure::generic(405, "MethodNotAllowed", message))
            }
            Some(definition) => Ok(Some(definition.seen.clone())),
        }
    }

    /// Starts to follow the definitions in the store, and resumes unfinished deletions.
    pub(crate) fn follow_definitions(self: &Arc<Self>) {
        self.refresh_definitions();
        self.end_definitions(&self.definitions().1);
        let registry: Weak<Self> = Arc::downgrade(self);
        let mut after = self.store.revision();
        tokio::spawn(async move {
            while let Some(strong) = registry.upgrade() {
                let watch = strong.store.watch(definitions(), after);
                drop(strong);
                let Ok(mut watch) = watch else {
                    // The watch cannot start because its revision is compacted, so the current state is read instead.
                    let Some(strong) = registry.upgrade() else {
                        return;
                    };
                    after = strong.store.revision();
                    off_workers(strong.review_definitions()).await;
                    continue;
                };
                let mut reviewed = 0;
                loop {
                    match watch.next().await {
                        Ok(event) => after = event.revision,
                        Err(WatchEnd::Closed) => return,
                        Err(_) => break,
                    }
                    // One review covers all events up to the revision that it has read.
                    if after <= reviewed {
                        continue;
                    }
                    let Some(strong) = registry.upgrade() else {
                        return;
                    };
                    reviewed = off_workers(strong.review_definitions()).await;
                }
            }
        });
    }

    /// Serves the current definitions, continues deletions, and accepts released names. Returns the revision of the
    /// definitions that it has read.
    async fn review_definitions(self: &Arc<Self>) -> u64 {
        self.refresh_definitions();
        let (revision, definitions) = self.definitions();
        self.end_definitions(&definitions);
        self.recheck_refused(&definitions).await;
        revision
    }

    /// Reads all definitions again.
    pub(super) fn refresh_definitions(&self) {
        let Ok(listing) = self.store.list(&definitions(), None) else {
            return;
        };
        let before = self.served();
        let known = |storage: &str| Some(Arc::clone(&before.definition(storage)?.kind));
        let mut served = Served {
            revision: listing.revision,
            ..Served::default()
        };
        for stored in listing.objects {
            let Ok(definition) = parsed(&stored) else {
                continue;
            };
            let Some(kind) = Some(&definition)
                .filter(|definition| definition::is_established(definition))
                .and_then(|definition| compile(&definition::accepted(definition), known))
            else {
                continue;
            };
            if super::find(kind.group(), kind.plural()).is_some() {
                continue;
            }
            let seen = Given {
                key: stored.key.clone(),
                revision: stored.revision,
            };
            let ending = meta::is_deleting(&definition);
            let index = served.definitions.len();
            served.by_storage.insert(kind.storage_key(), index);
            served.definitions.push(Definition { kind, seen, ending });
        }
        let mut slot = self.served.write().unwrap_or_else(PoisonError::into_inner);
        // A concurrent call that started later may have finished first.
        if slot.revision <= served.revision {
            *slot = Arc::new(served);
        }
    }

    /// Reads all definitions again if the current version of this one is not known yet.
    pub(super) fn refresh_definition(&self, key: &Key) {
        let present = self.store.get(key);
        let known = self.served().revision;
        if present.is_none_or(|present| present.revision > known) {
            self.refresh_definitions();
        }
    }

    /// Returns all definitions in the store, and the revision at which they were read.
    fn definitions(&self) -> (u64, Vec<Value>) {
        let Ok(listing) = self.store.list(&definitions(), None) else {
            return (0, Vec::new());
        };
        let objects = listing.objects.iter();
        let parsed = objects.filter_map(|object| parsed(object).ok());
        (listing.revision, parsed.collect())
    }

    /// Accepts or refuses the names of a new definition.
    pub(super) fn decide_new_names(&self, target: &Target<'_>, object: &mut Value) {
        if target.kind.is_definition() {
            object["status"] = json!({});
            self.decide_names(target, object);
        }
    }

    /// Accepts or refuses the names of a definition: the first definition to claim a name in a group owns it.
    pub(super) fn decide_names(&self, target: &Target<'_>, object: &mut Value) {
        if !target.kind.is_definition() {
            return;
        }
        let (_, definitions) = self.definitions();
        let conflict = Owners::of(&definitions).conflict(object);
        definition::update_status(object, conflict.as_deref());
    }

    /// Accepts the names of refused definitions whose owners have released them.
    async fn recheck_refused(self: &Arc<Self>, definitions: &[Value]) {
        let owners = Owners::of(definitions);
        for definition in definitions {
            let Some(refusal) = definition::refusal(definition) else {
                continue;
            };
            // An update parses all definitions, so only definitions whose refusal has changed are updated.
            let conflict = owners.conflict(definition);
            let unchanged = conflict.is_some_and(|name| definition::in_use(&name) == refusal);
            if unchanged || meta::is_deleting(definition) {
                continue;
            }
            let target = Target {
                name: text(definition, "/metadata/name"),
                ..target()
            };
            // Every update decides about the names.
            let again = |old: &Value| Ok(old.clone());
            let (system, options) = (User::default(), WriteOptions::default());
            let source = Source::Patch(&again);
            let settled = self.update(&target, None, source, &system, &options).await;
            if let Err(failure) = settled.map(drop) {
                let (definition, error) = (target.name, &failure.message);
                tracing::debug!(
                    definition,
                    error,
                    "cannot update the accepted names of a definition"
                );
            }
        }
    }

    /// Sets the conditions of a definition whose deletion was requested.
    pub(super) fn mark_definition(definition: &mut Value) {
        let finalizers = meta::metadata(definition)
            .entry("finalizers")
            .or_insert_with(|| json!([]));
        if let Some(list) = finalizers.as_array_mut()
            && !list.iter().any(|finalizer| finalizer == crd::CLEANUP)
        {
            list.push(json!(crd::CLEANUP));
        }
        let message = "CustomResourceDefinition marked for deletion; CustomResource deletion will \
                       begin soon";
        let status = &mut definition["status"];
        definition::set_condition(
            status,
            "Terminating",
            "True",
            "InstanceDeletionPending",
            message,
        );
    }

    /// Starts one task per deleted definition that removes its objects.
    fn end_definitions(self: &Arc<Self>, definitions: &[Value]) {
        for definition in definitions {
            let held = items(definition, "/metadata/finalizers")
                .iter()
                .any(|finalizer| finalizer == crd::CLEANUP);
            let name = text(definition, "/metadata/name").to_owned();
            if !meta::is_deleting(definition) || !held {
                continue;
            }
            let mut ends = self.ends.lock().unwrap_or_else(PoisonError::into_inner);
            if !ends.insert(name.clone()) {
                continue;
            }
            drop(ends);
            let registry: Weak<Self> = Arc::downgrade(self);
            let kind = purged_kind(definition);
            tokio::spawn(async move {
                while let Some(strong) = registry.upgrade() {
                    let done = strong.end_definition(kind.as_deref(), &name).await;
                    if done {
                        let mut ends = strong.ends.lock().unwrap_or_else(PoisonError::into_inner);
                        ends.remove(&name);
                        return;
                    }
                    drop(strong);
                    tokio::time::sleep(PURGE_PERIOD).await;
                }
            });
        }
    }

    /// Deletes the objects of a kind and, once none is left, removes the finalizer of its definition.
    async fn end_definition(self: &Arc<Self>, kind: Option<&Kind>, name: &str) -> bool {
        if let Some(kind) = kind {
            for object in self.objects(kind) {
                let target = Target {
                    kind,
                    version: &kind.versions()[0],
                    namespace: &object.key.namespace,
                    name: &object.key.name,
                };
                // An object that is already gone is not an error. Objects that remain are found below.
                _ = self.delete(&target, &DeleteOptions::default()).await;
            }
            if !self.objects(kind).is_empty() {
                return false;
            }
        }
        let release = |old: &Value| {
            let mut new = old.clone();
            let finalizers = new
                .pointer_mut("/metadata/finalizers")
                .and_then(Value::as_array_mut);
            if let Some(finalizers) = finalizers {
                finalizers.retain(|finalizer| finalizer != crd::CLEANUP);
            }
            Ok(new)
        };
        let target = Target { name, ..target() };
        let (system, options) = (User::default(), WriteOptions::default());
        let source = Source::Patch(&release);
        let released = self.update(&target, None, source, &system, &options).await;
        released.is_ok_and(|_| true) || self.store.get(&target.key()).is_none()
    }

    fn objects(&self, kind: &Kind) -> Vec<Arc<Object>> {
        let range = Range {
            resource: kind.storage_key(),
            namespace: None,
            name: None,
        };
        let listing = self.store.list(&range, None);
        listing.map(|listing| listing.objects).unwrap_or_default()
    }
}

fn target() -> Target<'static> {
    let kind = super::find(crd::GROUP, crd::PLURAL).expect("definitions are in the table");
    Target {
        kind,
        version: &kind.versions()[0],
        namespace: "",
        name: "",
    }
}

/// Whether this is the key of a definition.
pub(super) fn is_definition(key: &Key) -> bool {
    key.resource == definitions().resource
}

fn definitions() -> Range {
    Range {
        resource: target().kind.storage_key(),
        namespace: None,
        name: None,
    }
}

/// Returns the kind whose objects are deleted together with this definition. A definition that was never served has
/// none: its group and plural may belong to a built-in kind or to another definition.
fn purged_kind(definition: &Value) -> Option<Arc<Kind>> {
    let plural = text(definition, "/spec/names/plural");
    let own_name = format!("{plural}.{}", text(definition, "/spec/group"));
    if text(definition, "/metadata/name") != own_name || !definition::is_established(definition) {
        return None;
    }
    let mut whole = definition.clone();
    let versions = whole
        .pointer_mut("/spec/versions")
        .and_then(Value::as_array_mut);
    for version in versions.into_iter().flatten() {
        // Objects may remain from versions that are no longer served.
        version["served"] = json!(true);
    }
    compile(&whole, |_| None).filter(|kind| {
        super::all()
            .iter()
            .all(|known| known.storage() != kind.storage())
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::MemoryStore;

    /// Returns the definition of `things.t.example` with a schema that differs for each number.
    fn definition(number: usize) -> Value {
        json!({"metadata": {"name": "things.t.example"}, "spec": {"group": "t.example",
            "scope": "Cluster", "names": {"plural": "things", "singular": "thing", "kind": "Thing",
                "listKind": "ThingList"},
            "versions": [{"name": "v1", "served": true, "storage": true,
                "additionalPrinterColumns": [{"name": "Size", "type": "string",
                    "jsonPath": ".spec.size"}],
                "schema": {"openAPIV3Schema": {"type": "object", "properties": {"spec": {
                    "type": "object", "properties": {"size": {"type": "string",
                        "pattern": format!("^a{{{}}}$", number % 50 + 1)},
                        format!("n{number}"): {"type": "integer"}}}}}}}]}})
    }

    fn served_kind(registry: &Registry) -> Arc<Kind> {
        match registry.find("t.example", "things") {
            Some(KindRef::Custom(kind)) => kind,
            _ => panic!("the definition is served"),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn replaced_and_deleted_definitions_are_freed() {
        let access = Arc::new(crate::auth::AllowAll);
        let registry = Arc::new(Registry::new(Arc::new(MemoryStore::new()), access));
        registry.open_namespaces().await.expect("namespaces");
        registry.follow_definitions();
        let target = Target {
            name: "things.t.example",
            ..target()
        };
        let (user, options) = (User::admin(), WriteOptions::default());
        let mut compiled: Vec<Weak<Kind>> = Vec::new();
        let live = |compiled: &[Weak<Kind>]| {
            let live = compiled.iter().filter(|kind| kind.strong_count() > 0);
            live.count()
        };
        for number in 0..1_000 {
            let first = definition(2 * number);
            let created = registry.create(&target, first, &user, &options).await;
            created.expect("it is created");
            let request = served_kind(&registry);
            let replace = |old: &Value| {
                let mut new = old.clone();
                new["spec"] = definition(2 * number + 1)["spec"].take();
                Ok(new)
            };
            let source = Source::Patch(&replace);
            let replaced = registry.update(&target, None, source, &user, &options);
            replaced.await.expect("it is replaced");
            let second = served_kind(&registry);
            assert!(!Arc::ptr_eq(&request, &second));
            compiled.extend([Arc::downgrade(&request), Arc::downgrade(&second)]);
            drop(second);
            assert_eq!(
                request.versions()[0].name(),
                "v1",
                "a request must keep its kind alive"
            );
            drop(request);
            let deleted = registry.delete(&target, &DeleteOptions::default()).await;
            deleted.map(drop).expect("it is deleted");
            while registry.get(&target).is_ok() || registry.find("t.example", "things").is_some() {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            // Besides the current definition, the task that removes its objects may hold one.
            let live = live(&compiled);
            assert!(live <= 4, "{live} live definitions after {number} rounds");
        }
        assert_eq!(compiled.len(), 2_000);
        while live(&compiled) > 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
}
