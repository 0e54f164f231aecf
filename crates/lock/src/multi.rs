//! A lock in two objects, to move an election from ConfigMaps or Endpoints to Leases.
//!
//! The primary object is of the old kind, the secondary one is the Lease of the same name. Clients of
//! the old kind see the primary, clients of the new kind the Lease, and this lock both: whoever wants
//! to lead must hold both. Requests, as client-go 1.17 to 1.26 sent them:
//!
//! | | requests |
//! |---|---|
//! | read | GET primary; if it exists, GET secondary |
//! | create | POST primary, POST secondary |
//! | other writes | PUT primary, GET secondary, then PUT it, or POST it if it is missing |
//!
//! Where client-go could make two leaders, this lock is stricter:
//!
//! - It ends a creation when the primary already exists, where client-go goes on.
//! - It replaces the secondary only in the version that was seen, where client-go replaces whatever it
//!   finds.
//! - Of two different records it waits for the longer duration, where client-go waits for the one of
//!   the primary, even if a client of Leases holds the other.
//! - A primary that names this process while the secondary is missing is reported as it is, where
//!   client-go reports that nothing exists: the next renewal brings the secondary back.
//!
//! The version of a sighting has the uid of the primary and the greater revision of the two, so that it
//! moves with either. It is the revision of the Lease after every write of this lock, which keeps
//! fencing tokens in order when the election moves on to the Lease alone.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use kube::Client;
use serde_json::Value;
use tenure_core::{Orders, Record, Version, WriteKind};

use crate::error::{Doubt, Error, Refusal, Verb};
use crate::lock::{BoxFuture, Lock, Precision, Sight, Watch, WatchTarget};
use crate::object::{self, ObjectRef, Resource};
use crate::object_lock::{ClientBox, Part};
use crate::sighting::{Sighting, Warned, fingerprint};
use crate::{orders, request};

/// The holder reported while the two objects name different ones. Nobody leads then, until neither
/// has changed for a lease duration.
pub const UNKNOWN_HOLDER: &str = "leaderelection.k8s.io/unknown";

/// The place of the primary object among the watched ones; the secondary one has the next.
const PRIMARY: usize = 0;
const SECONDARY: usize = 1;

/// A lock in two objects.
#[derive(Debug)]
pub struct MultiLock {
    client: ClientBox,
    primary: Part,
    secondary: Part,
    described: String,
    warned: Warned,
    own: Mutex<Own>,
    /// Whole reads and whole writes: a read in the middle of our own write would show half of it.
    turn: tokio::sync::Mutex<()>,
}

impl MultiLock {
    /// `configmapsleases`: a ConfigMap and a Lease.
    ///
    /// # Errors
    ///
    /// The namespace or name is not one that Kubernetes takes.
    pub fn config_maps_leases(client: Client, namespace: &str, name: &str) -> Result<Self, Error> {
        Self::new(client, Resource::CONFIG_MAP, namespace, name)
    }

    /// `endpointsleases`: Endpoints and a Lease.
    ///
    /// # Errors
    ///
    /// The namespace or name is not one that Kubernetes takes.
    pub fn endpoints_leases(client: Client, namespace: &str, name: &str) -> Result<Self, Error> {
        Self::new(client, Resource::ENDPOINTS, namespace, name)
    }

    /// Labels that every write sets on both objects; other labels are kept.
    #[must_use]
    pub fn labels(mut self, labels: BTreeMap<String, String>) -> Self {
        self.primary.labels.clone_from(&labels);
        self.secondary.labels = labels;
        self
    }

    fn new(client: Client, kind: Resource, namespace: &str, name: &str) -> Result<Self, Error> {
        Ok(Self {
            client: ClientBox(client),
            primary: Part::new(kind, namespace, name)?,
            secondary: Part::new(Resource::LEASE, namespace, name)?,
            described: format!("{} and lease {namespace}/{name}", kind.word),
            warned: Warned::default(),
            own: Mutex::default(),
            turn: tokio::sync::Mutex::default(),
        })
    }

    async fn fetch(&self) -> Result<Option<Sighting>, Error> {
        let _turn = self.turn.lock().await;
        let Some(primary) = request::get(&self.client.0, &self.primary.name).await? else {
            return Ok(None);
        };
        let secondary = request::get(&self.client.0, &self.secondary.name).await?;
        self.sighting(Verb::Get, &primary, secondary.as_ref())
            .map(Some)
    }

    async fn write_both(
        &self,
        record: &Record,
        base: Option<&Sighting>,
    ) -> Result<Sighting, Error> {
        let _turn = self.turn.lock().await;
        let under_way = UnderWay::begin(self, record);
        let Part { name, .. } = &self.primary;
        let (verb, primary, secondary) = match base {
            None => {
                let body = self.primary.body(name.blank(), record);
                let primary = request::create(&self.client.0, name, body).await?;
                (Verb::Create, primary, self.create_secondary(record).await)
            }
            Some(base) => {
                let body = self.primary.body(base.object(), record);
                let primary = request::update(&self.client.0, name, body).await?;
                let secondary = self
                    .replace_secondary(record, base.secondary().as_ref())
                    .await;
                (Verb::Update, primary, secondary)
            }
        };
        let secondary = secondary.map_err(half_written)?;
        let sighting = self.sighting(verb, &primary, Some(&secondary))?;
        under_way.done(&sighting);
        Ok(sighting)
    }

    async fn replace_secondary(
        &self,
        record: &Record,
        base: Option<&Value>,
    ) -> Result<Value, Error> {
        let Part { name, .. } = &self.secondary;
        let current = match request::get(&self.client.0, name).await {
            Ok(None) => return self.create_secondary(record).await,
            Ok(Some(current)) if base.is_some_and(|base| is_same(base, &current)) => current,
            Ok(Some(_)) => {
                let why = "it is not the version that was seen".to_owned();
                return Err(Error::refused(Verb::Update, name, Refusal::Conflict(why)));
            }
            // Without an answer the version that was seen still decides.
            Err(_) => match base {
                None => return self.create_secondary(record).await,
                Some(base) => base.clone(),
            },
        };
        let body = self.secondary.body(current, record);
        request::update(&self.client.0, name, body).await
    }

    async fn create_secondary(&self, record: &Record) -> Result<Value, Error> {
        let name = &self.secondary.name;
        let body = self.secondary.body(name.blank(), record);
        request::create(&self.client.0, name, body).await
    }

    /// Whether this is one half of our own write. It is no news before both halves are known to be
    /// done: together with the old other half it looks as if somebody had come between.
    fn is_own(&self, part: &Part, object: &Value) -> bool {
        match &*self.own() {
            Own::Nothing => false,
            Own::UnderWay(record) => part.stored(object).record.same_write(record),
            Own::Done(written) => written.contains(&object::version(object)),
        }
    }

    fn own(&self) -> MutexGuard<'_, Own> {
        // It is replaced as a whole, so a panic leaves nothing half done.
        self.own.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn sighting(
        &self,
        verb: Verb,
        primary: &Value,
        secondary: Option<&Value>,
    ) -> Result<Sighting, Error> {
        let sighting = self.combine(primary, secondary);
        let sighting = sighting.ok_or_else(|| self.primary.unversioned(verb))?;
        self.warned.note(sighting.warnings());
        Ok(sighting)
    }

    /// What both objects say together; `None` if one has no version.
    fn combine(&self, primary: &Value, secondary: Option<&Value>) -> Option<Sighting> {
        let Some(secondary) = secondary else {
            // Held, if at all, by a client that knows the old kind alone.
            return self.primary.sighting(primary);
        };
        let alone = self.primary.sighting(primary)?;
        let mut observation = alone.observation().clone();
        let newer = object::version(secondary)?.revision;
        if newer.order(&observation.version.revision) == Some(Ordering::Greater) {
            observation.version.revision = newer;
        }
        let mut warnings = alone.warnings().to_vec();

        let (first, second) = (
            self.primary.stored(primary),
            self.secondary.stored(secondary),
        );
        warnings.extend(self.secondary.warning(&second));
        observation.fingerprint = fingerprint(&format!("{},{}", first.text, second.text));
        observation.unreadable |= second.unreadable.is_some();
        observation.record = if observation.unreadable {
            Record::default()
        } else {
            agreed(first.record, &second.record)
        };
        let (orders, more) = orders::read(&self.secondary.name, secondary);
        observation.orders = either(observation.orders, orders);
        warnings.extend(more);
        Some(Sighting::new(
            observation,
            primary,
            Some(secondary),
            warnings,
        ))
    }
}

impl Lock for MultiLock {
    fn describe(&self) -> &str {
        &self.described
    }

    fn precision(&self) -> Precision {
        self.primary.precision()
    }

    fn read(&self) -> BoxFuture<'_, Result<Option<Sighting>, Error>> {
        Box::pin(self.fetch())
    }

    fn write<'a>(
        &'a self,
        kind: &'a WriteKind,
        record: &'a Record,
        base: Option<&'a Sighting>,
    ) -> BoxFuture<'a, Result<Sighting, Error>> {
        Box::pin(async move {
            let Some(version) = kind.base() else {
                return self.write_both(record, None).await;
            };
            let base = base.filter(|base| base.observation().version == *version);
            let unseen = || Error::refused(Verb::Update, &self.primary.name, Refusal::Unseen);
            self.write_both(record, Some(base.ok_or_else(unseen)?))
                .await
        })
    }

    fn watch(&self) -> Watch {
        let target = |part: &Part| WatchTarget {
            object: part.name.clone(),
        };
        Watch::Objects(vec![target(&self.primary), target(&self.secondary)])
    }

    fn sight(&self, target: usize, object: Option<Value>, last: Option<&Sighting>) -> Sight {
        let (primary, secondary) = match (target, object, last) {
            (PRIMARY, None, _) => return Sight::Absent,
            (PRIMARY, Some(primary), Some(last)) if self.primary.is(&primary) => {
                if self.is_own(&self.primary, &primary) || !is_newer(&primary, &last.object()) {
                    return Sight::Seen(last.clone());
                }
                (primary, last.secondary())
            }
            (SECONDARY, None, Some(last)) => (last.object(), None),
            (SECONDARY, Some(secondary), Some(last)) if self.secondary.is(&secondary) => {
                let known = last.secondary();
                if self.is_own(&self.secondary, &secondary)
                    || known.is_some_and(|known| !is_newer(&secondary, &known))
                {
                    return Sight::Seen(last.clone());
                }
                (last.object(), Some(secondary))
            }
            _ => return Sight::ReadNeeded,
        };
        let sighting = self.sighting(Verb::Get, &primary, secondary.as_ref());
        sighting.map_or(Sight::ReadNeeded, Sight::Seen)
    }

    fn references(&self, sighting: Option<&Sighting>) -> Vec<ObjectRef> {
        vec![
            self.primary
                .name
                .reference(sighting.map(Sighting::object).as_ref()),
            self.secondary
                .name
                .reference(sighting.and_then(Sighting::secondary).as_ref()),
        ]
    }
}

/// The record that both stand for. The renewal counts only once it is in both: clients of Leases see
/// nothing but the second.
fn agreed(first: Record, second: &Record) -> Record {
    let same_holder = first.holder == second.holder;
    let duration = first
        .lease_duration_seconds
        .max(second.lease_duration_seconds);
    Record {
        holder: if same_holder {
            first.holder
        } else {
            UNKNOWN_HOLDER.to_owned()
        },
        lease_duration_seconds: duration,
        renew_time: first.renew_time.min(second.renew_time),
        ..first
    }
}

/// The orders of either object. The primary's come first where both ask for a step down.
fn either(first: Orders, second: Orders) -> Orders {
    Orders {
        paused: first.paused || second.paused,
        step_down: first.step_down.or(second.step_down),
    }
}

/// The primary has the new record and the secondary may not. That was not refused: it is in doubt.
fn half_written(error: Error) -> Error {
    match error {
        error @ Error::Unusable { .. } => error,
        error => {
            let attempt = error.attempt().clone();
            let why = Doubt::HalfWritten(Box::new(error));
            Error::Unknown { attempt, why }
        }
    }
}

/// What a lock remembers of its own writes, to know them in the watch.
#[derive(Debug, Default)]
enum Own {
    #[default]
    Nothing,
    /// A write of this record is on its way to both objects.
    UnderWay(Record),
    /// The last write made these two.
    Done([Option<Version>; 2]),
}

/// Marks a write as under way until it is done or given up.
struct UnderWay<'a>(Option<&'a MultiLock>);

impl<'a> UnderWay<'a> {
    fn begin(lock: &'a MultiLock, record: &Record) -> Self {
        *lock.own() = Own::UnderWay(record.clone());
        Self(Some(lock))
    }

    fn done(mut self, written: &Sighting) {
        if let (Some(lock), Some(secondary)) = (self.0.take(), written.secondary()) {
            *lock.own() =
                Own::Done([written.object(), secondary].map(|object| object::version(&object)));
        }
    }
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        if let Some(lock) = self.0 {
            *lock.own() = Own::Nothing;
        }
    }
}

fn is_same(object: &Value, known: &Value) -> bool {
    object::version(object).is_some_and(|version| object::version(known) == Some(version))
}

/// Whether a watch shows more than is known already.
fn is_newer(object: &Value, known: &Value) -> bool {
    let (Some(object), Some(known)) = (object::version(object), object::version(known)) else {
        return true;
    };
    let behind = matches!(
        object.revision.order(&known.revision),
        Some(Ordering::Less | Ordering::Equal)
    );
    object.uid != known.uid || (object != known && !behind)
}
