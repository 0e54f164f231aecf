//! A lock in two objects, to migrate an election from ConfigMaps or Endpoints to Leases.
//!
//! The primary object is of the old kind, and the secondary object is the Lease of the same name. Clients of the old
//! kind see only the primary, clients of the new kind see only the Lease, and this lock uses both. A leader must hold
//! both. The combined meaning is decided in [`tenure_core::pair`]. The requests are those of client-go 1.17 to 1.26:
//!
//! | | requests |
//! |---|---|
//! | read | GET primary; if it exists, GET secondary |
//! | create | POST primary, POST secondary |
//! | other writes | PUT primary, GET secondary, then PUT it, or POST it if it is missing |
//!
//! This lock is stricter where client-go could produce two leaders:
//!
//! - It aborts a creation if the primary already exists; client-go continues.
//! - It replaces the secondary only in the observed version; client-go replaces any version that it finds.
//! - If the two records differ, it waits for the longer duration. client-go waits for the duration of the primary, even
//!   if a client of Leases holds the other object.
//! - If the primary names this process and the secondary is missing, it reports exactly that, and the next renewal
//!   creates the secondary again. client-go reports that nothing exists.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use kube::Client;
use serde_json::Value;
pub use tenure_core::pair::UNKNOWN_HOLDER;
use tenure_core::pair::{
    Own, Pair, PairChange, PairRequest, PairResponse, Rules, Side, Step, Writing,
};
use tenure_core::{Place, Record, WriteKind};

use crate::error::{Doubt, Error, Refusal, Verb};
use crate::lock::{BoxFuture, Lock, Precision, Watch, WatchOutcome, WatchTarget};
use crate::object::{ObjectRef, Resource};
use crate::object_lock::Part;
use crate::orders;
use crate::request::{self, Wire};
use crate::snapshot::{Snapshot, Warned};

/// Index of the primary object among the watched objects. The secondary object has the next index.
const PRIMARY: usize = 0;
const SECONDARY: usize = 1;

/// A lock in two objects.
#[derive(Debug)]
pub struct MultiLock {
    wire: Wire,
    primary: Part,
    secondary: Part,
    described: String,
    warned: Warned,
    own: Mutex<Own>,
    /// Serializes whole reads and whole writes, because a read during our own write would show half of it.
    turn: tokio::sync::Mutex<()>,
}

impl MultiLock {
    /// `configmapsleases`: a ConfigMap and a Lease.
    ///
    /// # Errors
    ///
    /// Fails if Kubernetes does not accept the namespace or name.
    pub fn config_maps_leases(client: Client, namespace: &str, name: &str) -> Result<Self, Error> {
        Self::new(client, Resource::CONFIG_MAP, namespace, name)
    }

    /// `endpointsleases`: Endpoints and a Lease.
    ///
    /// # Errors
    ///
    /// Fails if Kubernetes does not accept the namespace or name.
    pub fn endpoints_leases(client: Client, namespace: &str, name: &str) -> Result<Self, Error> {
        Self::new(client, Resource::ENDPOINTS, namespace, name)
    }

    /// Sets labels that every write adds to both objects. Other labels are kept.
    #[must_use]
    pub fn labels(mut self, labels: BTreeMap<String, String>) -> Self {
        self.primary.labels.clone_from(&labels);
        self.secondary.labels = labels;
        self
    }

    /// Sets where the candidate of this lock runs, as [`ObjectLock::place`](crate::ObjectLock::place) does.
    #[must_use]
    pub fn place(mut self, place: Option<Arc<Place>>) -> Self {
        self.primary.place.clone_from(&place);
        self.secondary.place = place;
        self
    }

    fn new(client: Client, kind: Resource, namespace: &str, name: &str) -> Result<Self, Error> {
        Ok(Self {
            wire: Wire::new(client),
            primary: Part::new(kind, namespace, name)?,
            secondary: Part::new(Resource::LEASE, namespace, name)?,
            described: format!("{} and lease {namespace}/{name}", kind.word),
            warned: Warned::default(),
            own: Mutex::default(),
            turn: tokio::sync::Mutex::default(),
        })
    }

    async fn fetch(&self) -> Result<Option<Snapshot>, Error> {
        let _turn = self.turn.lock().await;
        let Some(primary) = request::get(&self.wire, &self.primary.name).await? else {
            return Ok(None);
        };
        let secondary = request::get(&self.wire, &self.secondary.name).await?;
        self.snapshot(Verb::Get, &primary, secondary.as_ref())
            .map(Some)
    }

    async fn write_both(
        &self,
        kind: &WriteKind,
        record: &Record,
        base: Option<&Snapshot>,
    ) -> Result<Snapshot, Error> {
        let _turn = self.turn.lock().await;
        let under_way = UnderWay::begin(self, record);
        let verb = base.map_or(Verb::Create, |_| Verb::Update);
        let mut objects = Objects {
            primary: base.map(Snapshot::object),
            secondary: base.and_then(Snapshot::secondary),
        };
        if let (Some(order), Some(primary)) = (kind.order(), &mut objects.primary) {
            orders::set(primary, order);
        }
        let known = objects
            .primary
            .as_ref()
            .and_then(|primary| self.pair(primary, objects.secondary.as_ref()));
        let (mut writing, mut ask) = Writing::begin(Rules::default(), known.map(|(pair, _)| pair));
        loop {
            let answer = self.carry_out(&ask, record, &mut objects).await;
            let (answer, error) = match answer {
                Ok(answer) => (answer, None),
                Err(error) => (PairResponse::Failed, Some(error)),
            };
            match writing.next(answer) {
                Step::PairRequest(next) => ask = next,
                Step::Failed => {
                    let error = error.unwrap_or_else(|| {
                        let why = "it is not the version that was read".to_owned();
                        let name = &self.secondary.name;
                        Error::refused(Verb::Update, name, Refusal::Conflict(why))
                    });
                    return Err(if writing.is_half_done() {
                        half_written(error)
                    } else {
                        error
                    });
                }
                Step::Done(pair) => {
                    under_way.done(&pair);
                    let primary = objects.primary.unwrap_or_default();
                    return self.snapshot(verb, &primary, objects.secondary.as_ref());
                }
            }
        }
    }

    /// Sends one request of a write, and keeps the object in its response.
    async fn carry_out(
        &self,
        ask: &PairRequest,
        record: &Record,
        objects: &mut Objects,
    ) -> Result<PairResponse, Error> {
        let wire = &self.wire;
        let (verb, side) = match ask {
            PairRequest::Look => {
                let found = request::get(wire, &self.secondary.name).await?;
                let seen = found.as_ref().map(|found| self.secondary.observed(found));
                objects.secondary = found.or(objects.secondary.take());
                return Ok(PairResponse::Found(seen.flatten().map(|(seen, _)| seen)));
            }
            PairRequest::Create(side) => (Verb::Create, *side),
            PairRequest::Replace(side, _) => (Verb::Update, *side),
        };
        let (part, object) = match side {
            Side::Primary => (&self.primary, &mut objects.primary),
            Side::Secondary => (&self.secondary, &mut objects.secondary),
        };
        let stored = if verb == Verb::Create {
            let body = part.body(part.name.blank(), record);
            request::create(wire, &part.name, body).await?
        } else {
            let body = part.body(object.clone().unwrap_or_default(), record);
            request::update(wire, &part.name, body).await?
        };
        let (seen, _) = part
            .observed(&stored)
            .ok_or_else(|| part.unversioned(verb))?;
        *object = Some(stored);
        Ok(PairResponse::Stored(seen))
    }

    fn own(&self) -> MutexGuard<'_, Own> {
        // The value is replaced as a whole, so a panic cannot leave a partial change.
        self.own.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn snapshot(
        &self,
        verb: Verb,
        primary: &Value,
        secondary: Option<&Value>,
    ) -> Result<Snapshot, Error> {
        let snapshot = self.combine(primary, secondary);
        let snapshot = snapshot.ok_or_else(|| self.primary.unversioned(verb))?;
        self.warned.note(snapshot.warnings());
        Ok(snapshot)
    }

    /// Returns the combined state of both objects; `None` if one has no version.
    fn combine(&self, primary: &Value, secondary: Option<&Value>) -> Option<Snapshot> {
        let (pair, warnings) = self.pair(primary, secondary)?;
        let observation = pair.together(Rules::default());
        Some(Snapshot::new(observation, primary, secondary, warnings))
    }

    /// Returns the observation of each object, and warnings for users.
    fn pair(&self, primary: &Value, secondary: Option<&Value>) -> Option<(Pair, Vec<String>)> {
        let (primary, mut warnings) = self.primary.observed(primary)?;
        let secondary = match secondary {
            None => None,
            Some(secondary) => {
                let (secondary, more) = self.secondary.observed(secondary)?;
                warnings.extend(more);
                Some(secondary)
            }
        };
        let pair = Pair { primary, secondary };
        Some((pair, warnings))
    }
}

impl Lock for MultiLock {
    fn describe(&self) -> &str {
        &self.described
    }

    fn precision(&self) -> Precision {
        self.primary.precision()
    }

    fn read(&self) -> BoxFuture<'_, Result<Option<Snapshot>, Error>> {
        Box::pin(self.fetch())
    }

    fn write<'a>(
        &'a self,
        kind: &'a WriteKind,
        record: &'a Record,
        base: Option<&'a Snapshot>,
    ) -> BoxFuture<'a, Result<Snapshot, Error>> {
        Box::pin(async move {
            let Some(version) = kind.base() else {
                return self.write_both(kind, record, None).await;
            };
            let base = base.filter(|base| base.observation().version == *version);
            let unseen = || Error::refused(Verb::Update, &self.primary.name, Refusal::Unseen);
            self.write_both(kind, record, Some(base.ok_or_else(unseen)?))
                .await
        })
    }

    fn shares_connection(&self) -> bool {
        self.wire.is_shared()
    }

    fn watch(&self) -> Watch {
        let target = |part: &Part| WatchTarget {
            object: part.name.clone(),
        };
        Watch::Objects(vec![target(&self.primary), target(&self.secondary)])
    }

    fn apply_watch_event(
        &self,
        target: usize,
        object: Option<Value>,
        last: Option<&Snapshot>,
    ) -> WatchOutcome {
        let (side, part) = match target {
            PRIMARY => (Side::Primary, &self.primary),
            SECONDARY => (Side::Secondary, &self.secondary),
            _ => return WatchOutcome::ReadNeeded,
        };
        if object.as_ref().is_some_and(|object| !part.is(object)) {
            return WatchOutcome::ReadNeeded;
        }
        let Some(last) = last else {
            let gone = side == Side::Primary && object.is_none();
            return if gone {
                WatchOutcome::Absent
            } else {
                WatchOutcome::ReadNeeded
            };
        };
        let (mut primary, mut secondary) = (last.object(), last.secondary());
        let shown = object.as_ref().map(|object| part.observed(object));
        let (Some((known, _)), None | Some(Some(_))) =
            (self.pair(&primary, secondary.as_ref()), &shown)
        else {
            return WatchOutcome::ReadNeeded;
        };
        let shown = shown.flatten().map(|(seen, _)| seen);
        match known.shown(&self.own(), side, shown) {
            PairChange::Nothing => return WatchOutcome::Present(last.clone()),
            PairChange::Absent => return WatchOutcome::Absent,
            PairChange::Hidden => return WatchOutcome::ReadNeeded,
            PairChange::Changed(_) => {}
        }
        match (side, object) {
            (Side::Primary, Some(object)) => primary = object,
            (_, object) => secondary = object,
        }
        let snapshot = self.snapshot(Verb::Get, &primary, secondary.as_ref());
        snapshot.map_or(WatchOutcome::ReadNeeded, WatchOutcome::Present)
    }

    fn references(&self, snapshot: Option<&Snapshot>) -> Vec<ObjectRef> {
        vec![
            self.primary
                .name
                .reference(snapshot.map(Snapshot::object).as_ref()),
            self.secondary
                .name
                .reference(snapshot.and_then(Snapshot::secondary).as_ref()),
        ]
    }
}

/// Converts the error of a write whose primary object has the new record while the secondary may not. Such a write was
/// not rejected: its result is unknown.
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

/// Both objects during a write.
struct Objects {
    primary: Option<Value>,
    secondary: Option<Value>,
}

/// Marks a write as in flight until it is complete or abandoned.
struct UnderWay<'a>(Option<&'a MultiLock>);

impl<'a> UnderWay<'a> {
    fn begin(lock: &'a MultiLock, record: &Record) -> Self {
        *lock.own() = Own::UnderWay(record.clone());
        Self(Some(lock))
    }

    fn done(mut self, written: &Pair) {
        if let Some(lock) = self.0.take() {
            *lock.own() = Own::done(written);
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
