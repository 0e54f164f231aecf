//! Enforces resource quotas.
//!
//! The usage of a namespace is the member `status.used` of its quotas. A write that needs more first adds the amount
//! there with a compare-and-set, and then writes the object. If two concurrent requests need the last unit, the second
//! one is therefore rejected. A write that needs less lowers the usage afterwards.
//!
//! The usage is counted again when the server starts, and after a failure that leaves it unknown. It is also counted
//! again if the hard limits of a quota differ from its status. A count waits for the reservations of this process,
//! because it would not see an object that has a reservation and is not written yet. Servers that share a store do not
//! wait for each other, so their counts never lower a known usage.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tokio::sync::{Notify, OwnedRwLockReadGuard, RwLock};

use super::engine::{ATTEMPTS, Registry, Target, WriteOptions, parsed, write_failure};
use super::pods::{forbidden, name_of};
use super::rules::limits::{Amounts, add, amounts};
use super::rules::{at, quota};
use super::{Kind, namespaces};
use crate::quantity::Quantity;
use crate::status::Failure;
use crate::store::{Change, Expected, Key, Object, Range, WatchEnd, Write, WriteError};

/// A count is followed by a pause of this many times its duration, so that counts use at most a tenth of one core.
const PAUSE: u32 = 9;
/// Delay before a failed count is repeated.
const RETRY: Duration = Duration::from_secs(1);

/// State of the enforcement in this process.
#[derive(Default)]
pub(super) struct Quotas {
    /// Held while the usage of a quota is changed. Otherwise each transaction of the store would apply one of many
    /// concurrent changes, and the others would use up their attempts.
    turns: Locks<tokio::sync::Mutex<()>>,
    /// Held for reading from a reservation until its object is written, and for writing during a count.
    counting: Locks<RwLock<()>>,
    /// Namespaces whose usage must be counted.
    waiting: Mutex<BTreeSet<String>>,
    wake: Notify,
}

/// A lock per namespace, so that a namespace does not wait for the work on another one.
#[derive(Default)]
struct Locks<T>(Mutex<HashMap<String, Arc<T>>>);

impl<T: Default> Locks<T> {
    /// Returns the lock of a namespace.
    fn of(&self, namespace: &str) -> Arc<T> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(lock) = all.get(namespace) {
            return Arc::clone(lock);
        }
        // Removes the locks that no task holds or awaits.
        all.retain(|_, lock| Arc::strong_count(lock) > 1);
        Arc::clone(all.entry(namespace.to_owned()).or_default())
    }
}

/// The amounts by which a write changes the usage, per quota. [`Registry::settle`] completes it.
#[derive(Default)]
pub(super) struct Charge {
    changes: Vec<Difference>,
    counting: Option<OwnedRwLockReadGuard<()>>,
    /// Whether the changes are unknown, so that only a count after the write gives the usage.
    is_incomplete: bool,
    /// The namespace to count if the request ends before the charge is settled.
    unsettled: Option<(Arc<Quotas>, String)>,
}

impl Drop for Charge {
    /// The request was cancelled. The store may still apply a queued write of it, so the count follows later.
    fn drop(&mut self) {
        if let Some((quotas, namespace)) = self.unsettled.take()
            && let Ok(runtime) = tokio::runtime::Handle::try_current()
        {
            runtime.spawn(async move {
                tokio::time::sleep(RETRY).await;
                quotas.add(&namespace);
            });
        }
    }
}

/// The difference that a write makes for one quota.
struct Difference {
    quota: Key,
    /// Reserved before the write.
    more: Amounts,
    /// Released after the write.
    less: Amounts,
}

/// The object before and after a write; `None` if it does not exist.
#[derive(Clone, Copy)]
pub(super) struct Versions<'v> {
    pub(super) old: Option<&'v Value>,
    pub(super) new: Option<&'v Value>,
}

/// The result of a charged write.
pub(super) enum Outcome {
    Applied,
    Rejected,
    /// The write may have been applied although it failed.
    Unknown,
}

impl Outcome {
    /// Returns the outcome of a write.
    pub(super) fn of(written: &Result<Option<Arc<Object>>, Failure>) -> Self {
        match written {
            Ok(Some(_)) => Self::Applied,
            Ok(None) => Self::Rejected,
            Err(failure) => Self::of_failure(failure),
        }
    }

    /// Returns the outcome of a failed write.
    pub(super) fn of_failure(failure: &Failure) -> Self {
        if failure.code >= 500 {
            Self::Unknown
        } else {
            Self::Rejected
        }
    }
}

impl Registry {
    /// Reserves the amounts that a write needs in addition, or rejects the write.
    ///
    /// `enforced` is false for writes that may exceed a quota: a status reports what has happened already. A dry run is
    /// checked and reserves nothing.
    pub(super) async fn charge(
        &self,
        target: &Target<'_>,
        versions: Versions<'_>,
        enforced: bool,
        dry_run: bool,
    ) -> Result<Charge, Failure> {
        let mut charge = Charge::default();
        if !is_counted(target.kind) {
            return Ok(charge);
        }
        let quotas = self.quotas_of(target.namespace);
        if quotas.is_empty() {
            return Ok(charge);
        }
        let known = |quota: &Arc<Object>| parsed(quota).is_ok_and(|quota| is_known(&quota));
        if !quotas.iter().all(known) {
            self.count(target.namespace).await?;
        }
        let counting = self.quotas.counting.of(target.namespace);
        charge.counting = Some(counting.read_owned().await);
        if !dry_run {
            charge.unsettled = Some((Arc::clone(&self.quotas), target.namespace.to_owned()));
        }
        for quota in self.quotas_of(target.namespace) {
            let reserved = self
                .reserve(target, &quota.key, versions, enforced, dry_run)
                .await;
            match reserved {
                Ok(difference) => charge.changes.extend(difference),
                Err(failure) => {
                    let outcome = Outcome::of_failure(&failure);
                    self.settle(target, charge, outcome).await;
                    return Err(failure);
                }
            }
        }
        Ok(charge)
    }

    /// Completes a charge: after a write it releases what the object no longer needs, after a rejection it releases the
    /// reservation. If the result of the write is unknown, the reservation stays until the next count.
    pub(super) async fn settle(&self, target: &Target<'_>, mut charge: Charge, outcome: Outcome) {
        if charge.is_incomplete {
            return;
        }
        let changes = charge.changes.iter();
        match outcome {
            Outcome::Applied => {
                self.give_back(target, changes.map(|d| (&d.quota, &d.less)))
                    .await;
            }
            Outcome::Rejected => {
                self.give_back(target, changes.map(|d| (&d.quota, &d.more)))
                    .await;
            }
            // A queued write may still be applied, so the charge is left to be counted later.
            Outcome::Unknown => return,
        }
        charge.unsettled = None;
    }

    /// Removes an object, and releases its amounts if this request removed it. Returns `Ok(None)` if another write came
    /// first.
    ///
    /// The charge is taken before the write. A count after the write does not see the object, so a charge after that
    /// count would release the amounts again.
    pub(super) async fn remove(
        &self,
        target: &Target<'_>,
        old: &Value,
        expected: Expected,
        options: &WriteOptions,
    ) -> Result<Option<Arc<Object>>, Failure> {
        let charge = Box::pin(self.charge_removal(target, old)).await;
        let removed = self
            .write(target, target.key(), expected, Change::Delete, options)
            .await;
        Box::pin(self.settle(target, charge, Outcome::of(&removed))).await;
        removed
    }

    /// Determines the amounts that the removal of an object releases. If that fails, they are counted after the removal.
    async fn charge_removal(&self, target: &Target<'_>, old: &Value) -> Charge {
        if !is_counted(target.kind) || self.quotas_of(target.namespace).is_empty() {
            return Charge::default();
        }
        // All objects of a namespace that is being deleted are removed, including its quotas.
        let namespace = self.namespace(target.namespace);
        if namespace.is_none_or(|namespace| namespaces::is_ending(&namespace)) {
            return Charge::default();
        }
        let versions = Versions {
            old: Some(old),
            new: None,
        };
        let charged = self.charge(target, versions, false, false).await;
        charged.unwrap_or_else(|_| Charge {
            changes: Vec::new(),
            counting: None,
            is_incomplete: true,
            unsettled: Some((Arc::clone(&self.quotas), target.namespace.to_owned())),
        })
    }

    /// Counts the usage of all quotas in the background: now if it is unknown, and when a quota changes.
    pub(crate) fn follow_quotas(self: &Arc<Self>) {
        let range = all_quotas(None);
        let listing = self.store.list(&range, None);
        let (mut after, quotas) = match listing {
            Ok(listing) => (listing.revision, listing.objects),
            Err(_) => (self.store.revision(), Vec::new()),
        };
        for quota in quotas {
            self.count_later(&quota.key.namespace);
        }
        let state = Arc::clone(&self.quotas);
        let registry: Weak<Self> = Arc::downgrade(self);
        tokio::spawn(async move {
            while let Some(strong) = registry.upgrade() {
                let watch = strong.store.watch(range.clone(), after);
                let Ok(mut watch) = watch else {
                    // The revision is compacted. Every quota may have changed since.
                    after = strong.store.revision();
                    let all = strong.store.list(&range, None);
                    for quota in all.map(|all| all.objects).unwrap_or_default() {
                        strong.count_later(&quota.key.namespace);
                    }
                    continue;
                };
                drop(strong);
                loop {
                    tokio::select! {
                        event = watch.next() => match event {
                            Ok(event) => {
                                after = event.revision;
                                let quota = parsed(&event.object).unwrap_or_default();
                                if !is_known(&quota) {
                                    state.add(&event.object.key.namespace);
                                }
                            }
                            Err(WatchEnd::Closed) => return,
                            Err(_) => break,
                        },
                        () = state.wake.notified() => {}
                    }
                    while let Some(namespace) = state.next() {
                        let Some(strong) = registry.upgrade() else {
                            return;
                        };
                        let start = Instant::now();
                        let pause = match strong.count(&namespace).await {
                            Ok(()) => start.elapsed() * PAUSE,
                            Err(_) => {
                                state.add(&namespace);
                                RETRY
                            }
                        };
                        drop(strong);
                        tokio::time::sleep(pause).await;
                    }
                }
            }
        });
    }

    /// Requests a count in the background.
    fn count_later(&self, namespace: &str) {
        self.quotas.add(namespace);
    }

    /// Counts the usage of the quotas of a namespace.
    async fn count(&self, namespace: &str) -> Result<(), Failure> {
        let counting = self.quotas.counting.of(namespace);
        let _alone = counting.write().await;
        self.store.fresh().await?;
        for stored in self.quotas_of(namespace) {
            let quota = parsed(&stored)?;
            let hard = amounts(&quota, "/spec/hard");
            let served = self.served();
            let kinds = served.kinds().into_iter().filter(|kind| is_counted(kind));
            let kinds = kinds.filter(|kind| quota::concerns(kind.resource(), &hard));
            let objects: Vec<_> = kinds
                .map(|kind| {
                    let (group, plural) = kind.resource();
                    let resource = (group.to_owned(), plural.to_owned());
                    (resource, self.objects_in(kind, namespace))
                })
                .collect();
            // The work grows with the number of objects, so it does not run on a thread of the runtime.
            let keep_known = self.store.shared();
            let counted = tokio::task::spawn_blocking(move || status(&quota, &objects, keep_known));
            let counted = counted
                .await
                .map_err(|error| Failure::internal(error.to_string()))?;
            let Some(counted) = counted else {
                continue;
            };
            let expected = Expected::Revision(stored.revision);
            let change = Change::Put(counted.into());
            match self
                .store
                .write(Write::new(stored.key.clone(), expected, change))
                .await
            {
                // The write of a cancelled request may have been queued before this one. The next count includes it.
                Ok(_) => self.count_later(namespace),
                // Another write came first, for example of a controller that counts too. Its event causes another count
                // if the status is still unknown.
                Err(WriteError::Conflict(_) | WriteError::Moved(_)) => {
                    if self.store.get(&stored.key).is_some() {
                        let why = "a quota changes while it is counted; try again";
                        return Err(Failure::try_again(why));
                    }
                }
                Err(error) => return Err(Failure::unavailable(error.to_string())),
            }
        }
        Ok(())
    }

    /// Reserves the additional amounts of a write in one quota.
    async fn reserve(
        &self,
        target: &Target<'_>,
        key: &Key,
        versions: Versions<'_>,
        enforced: bool,
        dry_run: bool,
    ) -> Result<Option<Difference>, Failure> {
        let resource = target.kind.resource();
        let object = versions.new.or(versions.old).unwrap_or(&Value::Null);
        let refuse = |why: String| Err(forbidden(target, name_of(object), &why));
        let turn = self.quotas.turns.of(&key.namespace);
        let _turn = turn.lock().await;
        for _ in 0..ATTEMPTS {
            let Some(stored) = self.store.get(key) else {
                return Ok(None);
            };
            let quota = parsed(&stored)?;
            let hard = amounts(&quota, "/status/hard");
            let [before, after] = [versions.old, versions.new].map(|object| {
                let object = object.filter(|object| quota::selects(&quota, resource.1, object));
                object
                    .map(|object| quota::usage(resource, object))
                    .unwrap_or_default()
            });
            if !quota::concerns(resource, &hard) || (before.is_empty() && after.is_empty()) {
                return Ok(None);
            }
            let name = &key.name;
            if enforced
                && versions.old.is_none()
                && resource == ("", "pods")
                && let Some(why) = quota::missing(&hard, object)
            {
                return refuse(format!("failed quota: {name}: {why}"));
            }
            let mut difference = Difference {
                quota: key.clone(),
                more: Amounts::new(),
                less: Amounts::new(),
            };
            let zero = Quantity::from_bytes(0);
            for resource in hard.keys() {
                let amount = |amounts: &Amounts| amounts.get(resource).unwrap_or(&zero).clone();
                let (was, is) = (amount(&before), amount(&after));
                if is > was {
                    difference.more.insert(resource.clone(), is.minus(&was));
                } else if is < was {
                    difference.less.insert(resource.clone(), was.minus(&is));
                }
            }
            if difference.more.is_empty() {
                return Ok((!difference.less.is_empty()).then_some(difference));
            }
            let used = amounts(&quota, "/status/used");
            let mut next = used.clone();
            add(&mut next, &difference.more);
            let mut exceeded = difference.more.clone();
            exceeded.retain(|resource, _| next[resource] > hard[resource]);
            if enforced && !exceeded.is_empty() {
                let part = |all: &Amounts| -> Amounts {
                    let names = exceeded.keys();
                    names
                        .map(|name| (name.clone(), all.get(name).unwrap_or(&zero).clone()))
                        .collect()
                };
                let shown = [&difference.more, &used, &hard].map(|all| quota::shown(&part(all)));
                let [asked, used, limited] = shown;
                return refuse(format!(
                    "exceeded quota: {name}, requested: {asked}, used: {used}, limited: {limited}"
                ));
            }
            if dry_run {
                return Ok(None);
            }
            if self
                .put_used(&stored, quota, &next)
                .await
                .map_err(|error| write_failure(target, error))?
            {
                return Ok(Some(difference));
            }
        }
        let why = "the usage of a quota keeps changing; try again";
        Err(Failure::try_again(why))
    }

    /// Lowers the usage of quotas. After a failure, it requests a count.
    async fn give_back<'d>(
        &self,
        target: &Target<'_>,
        changes: impl Iterator<Item = (&'d Key, &'d Amounts)>,
    ) {
        for (key, amounts) in changes {
            if !amounts.is_empty() && !self.lower(key, amounts).await {
                self.count_later(target.namespace);
            }
        }
    }

    /// Returns false if the usage could not be lowered.
    async fn lower(&self, key: &Key, by: &Amounts) -> bool {
        let turn = self.quotas.turns.of(&key.namespace);
        let _turn = turn.lock().await;
        for _ in 0..ATTEMPTS {
            let Some(stored) = self.store.get(key) else {
                return true;
            };
            let Ok(quota) = parsed(&stored) else {
                return false;
            };
            let mut used = amounts(&quota, "/status/used");
            let zero = Quantity::from_bytes(0);
            for (name, amount) in by {
                if let Some(was) = used.get_mut(name) {
                    *was = if *was > *amount {
                        was.minus(amount)
                    } else {
                        zero.clone()
                    };
                }
            }
            match self.put_used(&stored, quota, &used).await {
                Ok(true) => return true,
                Ok(false) => {}
                Err(_) => return false,
            }
        }
        false
    }

    /// Writes the usage of a quota. Returns false if another write came first.
    async fn put_used(
        &self,
        stored: &Object,
        mut quota: Value,
        used: &Amounts,
    ) -> Result<bool, WriteError> {
        quota["status"]["used"] = texts(used);
        let expected = Expected::Revision(stored.revision);
        let change = Change::Put(quota.into());
        match self
            .store
            .write(Write::new(stored.key.clone(), expected, change))
            .await
        {
            Ok(_) => Ok(true),
            Err(WriteError::Conflict(_) | WriteError::Moved(_)) => {
                if self.store.shared() {
                    let fresh = self.store.fresh().await;
                    fresh.map_err(|error| WriteError::Unavailable(error.to_string()))?;
                }
                Ok(false)
            }
            Err(error) => Err(error),
        }
    }

    fn quotas_of(&self, namespace: &str) -> Vec<Arc<Object>> {
        let listing = self.store.list(&all_quotas(Some(namespace)), None);
        listing.map(|listing| listing.objects).unwrap_or_default()
    }

    fn objects_in(&self, kind: &Kind, namespace: &str) -> Vec<Arc<Object>> {
        let range = Range {
            resource: kind.storage_key(),
            namespace: Some(namespace.to_owned()),
            name: None,
        };
        let listing = self.store.list(&range, None);
        listing.map(|listing| listing.objects).unwrap_or_default()
    }
}

impl Quotas {
    fn add(&self, namespace: &str) {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        waiting.insert(namespace.to_owned());
        drop(waiting);
        self.wake.notify_one();
    }

    fn next(&self) -> Option<String> {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        waiting.pop_first()
    }
}

/// Whether quotas count the objects of a kind.
fn is_counted(kind: &Kind) -> bool {
    kind.namespaced && kind.review.is_none() && kind.plural() != "events"
}

/// Whether the status of a quota belongs to its spec.
fn is_known(quota: &Value) -> bool {
    let hard = amounts(quota, "/spec/hard");
    let used = amounts(quota, "/status/used");
    hard == amounts(quota, "/status/hard") && hard.keys().all(|name| used.contains_key(name))
}

/// Objects by the group and plural of their kind.
type Content = [((String, String), Vec<Arc<Object>>)];

/// Returns a quota with the counted status, or `None` if it has that status already.
fn status(quota: &Value, content: &Content, keep_known: bool) -> Option<Value> {
    let hard = amounts(quota, "/spec/hard");
    let zero = Quantity::from_bytes(0);
    let mut used: Amounts = hard
        .keys()
        .map(|name| (name.clone(), zero.clone()))
        .collect();
    for ((group, plural), objects) in content {
        for object in objects.iter().filter_map(|object| parsed(object).ok()) {
            if quota::selects(quota, plural, &object) {
                let mut own = quota::usage((group, plural), &object);
                own.retain(|name, _| hard.contains_key(name));
                add(&mut used, &own);
            }
        }
    }
    if keep_known && is_known(quota) {
        for (name, known) in amounts(quota, "/status/used") {
            if used.get(&name).is_some_and(|counted| *counted < known) {
                used.insert(name, known);
            }
        }
    }
    if is_known(quota) && used == amounts(quota, "/status/used") {
        return None;
    }
    let mut counted = quota.clone();
    let hard = at(quota, "/spec/hard")
        .cloned()
        .unwrap_or_else(|| json!({}));
    counted["status"] = json!({"hard": hard, "used": texts(&used)});
    Some(counted)
}

fn texts(amounts: &Amounts) -> Value {
    let texts = amounts.iter();
    texts
        .map(|(name, amount)| (name.clone(), json!(amount.to_string())))
        .collect()
}

fn all_quotas(namespace: Option<&str>) -> Range {
    Range {
        resource: super::storage_key("/resourcequotas"),
        namespace: namespace.map(str::to_owned),
        name: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::auth::{AllowAll, User};
    use crate::registry::{DeleteOptions, Source};
    use crate::store::MemoryStore;

    fn target<'a>(plural: &str, name: &'a str) -> Target<'a> {
        let kind = crate::registry::find("", plural).expect("the kind is in the table");
        Target {
            kind,
            version: &kind.versions()[0],
            namespace: "default",
            name,
        }
    }

    /// Returns a registry with two ConfigMaps and a quota for them. Nothing is counted in the background.
    async fn limited() -> Arc<Registry> {
        let registry = Registry::new(Arc::new(MemoryStore::new()), Arc::new(AllowAll));
        let registry = Arc::new(registry);
        registry.open_namespaces().await.expect("namespaces");
        let (user, options) = (User::admin(), WriteOptions::default());
        let quota = json!({"metadata": {"name": "q"}, "spec": {"hard": {"configmaps": "5"}}});
        let (a, b) = (
            json!({"metadata": {"name": "a"}}),
            json!({"metadata": {"name": "b"}}),
        );
        for (plural, object) in [
            ("resourcequotas", quota),
            ("configmaps", a),
            ("configmaps", b),
        ] {
            let target = target(plural, "");
            let made = registry.create(&target, object, &user, &options);
            made.await.expect("it is created");
        }
        assert_eq!(used(&registry), json!({"configmaps": "2"}));
        registry
    }

    fn used(registry: &Registry) -> Value {
        let quota = registry.get(&target("resourcequotas", "q"));
        let quota = parsed(&quota.expect("the quota exists")).expect("it is an object");
        quota["status"]["used"].clone()
    }

    #[tokio::test]
    async fn removal_while_the_usage_is_unknown_is_released_once() {
        let registry = limited().await;
        let raise = |old: &Value| {
            let mut new = old.clone();
            new["spec"]["hard"]["configmaps"] = json!("9");
            Ok(new)
        };
        let (user, options) = (User::admin(), WriteOptions::default());
        let quota = target("resourcequotas", "q");
        let raised = registry.update(&quota, None, Source::Patch(&raise), &user, &options);
        raised.await.expect("the limit is raised");
        let map = target("configmaps", "a");
        let deleted = registry.delete(&map, &DeleteOptions::default()).await;
        deleted.map(drop).expect("it is deleted");
        assert_eq!(used(&registry), json!({"configmaps": "1"}));
    }

    #[tokio::test]
    async fn object_that_another_request_removed_is_not_released_again() {
        let registry = limited().await;
        let map = target("configmaps", "a");
        let stored = registry.get(&map).expect("it exists");
        let old = parsed(&stored).expect("it is an object");
        let (expected, options) = (Expected::Revision(stored.revision), WriteOptions::default());
        for is_first in [true, false] {
            let removed = registry.remove(&map, &old, expected, &options).await;
            let removed = removed.expect("the store accepts writes");
            assert_eq!(removed.is_some(), is_first);
            assert_eq!(used(&registry), json!({"configmaps": "1"}));
        }
    }
}
