//! A lock in one object: a Lease, or an annotation of a ConfigMap or of Endpoints.
//!
//! Requests: `read` is one GET. `write` is one POST to create, and one PUT otherwise, with the uid and the
//! resourceVersion of the version it replaces. A write can therefore neither overwrite an unseen version nor recreate a
//! deleted object.

use std::collections::BTreeMap;
use std::sync::Arc;

use kube::Client;
use serde_json::Value;
use tenure_core::{Observation, Place, Record, StepDownOrder, WriteKind};

use crate::error::{Doubt, Error, Obstacle, Refusal, Verb};
use crate::lean::Lean;
use crate::lock::{BoxFuture, Lock, Precision, Watch, WatchOutcome, WatchTarget};
use crate::object::{self, ObjectName, ObjectRef, Resource};
use crate::request::Wire;
use crate::snapshot::{Snapshot, StoredRecord, Warned, fingerprint};
use crate::{annotation, holder, lease, orders, plain, request, term};

/// A lock in one object.
#[derive(Debug)]
pub struct ObjectLock {
    wire: Wire,
    part: Part,
    warned: Warned,
}

impl ObjectLock {
    /// Creates a lock with the record in the spec of a Lease, which all current Kubernetes clients use.
    ///
    /// # Errors
    ///
    /// Fails if Kubernetes does not accept the namespace or name.
    pub fn lease(client: Client, namespace: &str, name: &str) -> Result<Self, Error> {
        Self::new(client, Resource::LEASE, namespace, name)
    }

    /// Creates a lock with the record in an annotation of a ConfigMap, as used by clients of Kubernetes before 1.24.
    ///
    /// # Errors
    ///
    /// Fails if Kubernetes does not accept the namespace or name.
    pub fn config_map(client: Client, namespace: &str, name: &str) -> Result<Self, Error> {
        Self::new(client, Resource::CONFIG_MAP, namespace, name)
    }

    /// Creates a lock with the record in an annotation of Endpoints, as used by clients of Kubernetes before 1.24 and
    /// by the `leader-elector` sidecar.
    ///
    /// # Errors
    ///
    /// Fails if Kubernetes does not accept the namespace or name.
    pub fn endpoints(client: Client, namespace: &str, name: &str) -> Result<Self, Error> {
        Self::new(client, Resource::ENDPOINTS, namespace, name)
    }

    /// Sets labels that every write adds to the object. Other labels are kept.
    #[must_use]
    pub fn labels(mut self, labels: BTreeMap<String, String>) -> Self {
        self.part.labels = labels;
        self
    }

    /// Sets where the candidate of this lock runs. Its writes then describe the holder in the annotation
    /// [`HOLDER_ANNOTATION`](crate::HOLDER_ANNOTATION), so that others can learn of its end.
    #[must_use]
    pub fn place(mut self, place: Option<Arc<Place>>) -> Self {
        self.part.place = place;
        self
    }

    fn new(client: Client, kind: Resource, namespace: &str, name: &str) -> Result<Self, Error> {
        Ok(Self {
            wire: Wire::new(client),
            part: Part::new(kind, namespace, name)?,
            warned: Warned::default(),
        })
    }

    fn snapshot(&self, verb: Verb, object: &Value) -> Result<Snapshot, Error> {
        let snapshot = self
            .part
            .snapshot(object)
            .ok_or_else(|| self.part.unversioned(verb))?;
        self.warned.note(snapshot.warnings());
        Ok(snapshot)
    }
}

impl Lock for ObjectLock {
    fn describe(&self) -> &str {
        self.part.name.describe()
    }

    fn precision(&self) -> Precision {
        self.part.precision()
    }

    fn read(&self) -> BoxFuture<'_, Result<Option<Snapshot>, Error>> {
        Box::pin(async move {
            let object = request::get(&self.wire, &self.part.name).await?;
            object
                .map(|object| self.snapshot(Verb::Get, &object))
                .transpose()
        })
    }

    fn write<'a>(
        &'a self,
        kind: &'a WriteKind,
        record: &'a Record,
        base: Option<&'a Snapshot>,
    ) -> BoxFuture<'a, Result<Snapshot, Error>> {
        Box::pin(async move {
            let (wire, name) = (&self.wire, &self.part.name);
            let Some(version) = kind.base() else {
                let body = self.part.body(name.blank(), record);
                let object = request::create(wire, name, body).await?;
                return self.snapshot(Verb::Create, &object);
            };
            let base = base.filter(|base| base.observation().version == *version);
            let base = base.ok_or_else(|| Error::refused(Verb::Update, name, Refusal::Unseen))?;
            let body = self.part.body_on(base, record, kind.order());
            let answer = request::update_text(wire, name, body).await?;
            let answer = answer.text();
            if let Some(plain) = self.part.plain(&answer, Some(base)) {
                self.warned.note(plain.warnings());
                return Ok(plain);
            }
            let object = request::decode(Verb::Update, name, &answer)?;
            self.snapshot(Verb::Update, &object)
        })
    }

    fn shares_connection(&self) -> bool {
        self.wire.is_shared()
    }

    fn watch(&self) -> Watch {
        Watch::Objects(vec![WatchTarget {
            object: self.part.name.clone(),
        }])
    }

    fn apply_watch_event(
        &self,
        target: usize,
        object: Option<Value>,
        last: Option<&Snapshot>,
    ) -> WatchOutcome {
        match (object, last) {
            (None, _) if target == 0 => WatchOutcome::Absent,
            // Usually this is the watch event of our own write.
            (Some(object), Some(last)) if target == 0 && self.part.is_as_in(&object, last) => {
                WatchOutcome::Present(last.clone())
            }
            (Some(object), _) if target == 0 && self.part.is(&object) => {
                let snapshot = self.snapshot(Verb::Get, &object);
                snapshot.map_or(WatchOutcome::ReadNeeded, WatchOutcome::Present)
            }
            _ => WatchOutcome::ReadNeeded,
        }
    }

    fn apply_watch_text(
        &self,
        target: usize,
        object: &str,
        last: Option<&Snapshot>,
    ) -> WatchOutcome {
        let plain = self.part.plain(object, last).filter(|_| target == 0);
        if let Some(plain) = plain {
            self.warned.note(plain.warnings());
            return WatchOutcome::Present(plain);
        }
        match serde_json::from_str(object) {
            Ok(Lean(object)) => self.apply_watch_event(target, Some(object), last),
            Err(_) => WatchOutcome::ReadNeeded,
        }
    }

    fn references(&self, snapshot: Option<&Snapshot>) -> Vec<ObjectRef> {
        vec![
            self.part
                .name
                .reference(snapshot.map(Snapshot::object).as_ref()),
        ]
    }
}

/// One object with a record, and the format of the record in it.
#[derive(Debug)]
pub(crate) struct Part {
    pub(crate) name: ObjectName,
    pub(crate) labels: BTreeMap<String, String>,
    /// Where the candidate runs; `None` if its writes do not describe the holder.
    pub(crate) place: Option<Arc<Place>>,
}

impl Part {
    pub(crate) fn new(kind: Resource, namespace: &str, name: &str) -> Result<Self, Error> {
        let name = ObjectName::new(kind, namespace, name);
        if let Some(problem) = name.problem() {
            return Err(Error::unusable(Verb::Get, &name, Obstacle::Name(problem)));
        }
        Ok(Self {
            name,
            labels: BTreeMap::new(),
            place: None,
        })
    }

    pub(crate) fn precision(&self) -> Precision {
        if self.in_spec() {
            Precision::Micros
        } else {
            Precision::Seconds
        }
    }

    /// Returns the record in an object of this kind.
    fn stored(&self, object: &Value) -> StoredRecord {
        if self.in_spec() {
            lease::read(object)
        } else {
            annotation::read(object)
        }
    }

    /// Returns the object to send: `object` with the record, its mark, the description of the holder if the place is
    /// known, and the configured labels. All other fields are unchanged.
    pub(crate) fn body(&self, mut object: Value, record: &Record) -> String {
        let resource = self.name.resource();
        object["apiVersion"] = resource.api_version().into();
        object["kind"] = resource.kind.into();
        for (key, value) in &self.labels {
            object::set_metadata(&mut object, "labels", key, value);
        }
        let mark = term::text(record);
        object::set_metadata(&mut object, "annotations", term::TERM_ANNOTATION, &mark);
        if let Some(place) = &self.place {
            holder::set(&mut object, record, place);
        }
        if self.in_spec() {
            lease::body(object, record)
        } else {
            annotation::body(object, record)
        }
    }

    /// Returns the object of `base` with the record, the labels and the order of a leader that hands over.
    pub(crate) fn body_on(
        &self,
        base: &Snapshot,
        record: &Record,
        order: Option<&StepDownOrder>,
    ) -> String {
        if let Some(order) = order {
            let mut object = base.object();
            orders::set(&mut object, order);
            return self.body(object, record);
        }
        // The text of a plain Lease keeps its annotations. The description changes only with the term.
        let described = base.observation().described.as_deref();
        let place = self.place.as_ref();
        let kept = place.is_none_or(|place| holder::is_set(described, record, place));
        let plain = (self.in_spec() && kept).then(|| base.plain()).flatten();
        let body = plain.and_then(|plain| plain.body(base.observation(), record, &self.labels));
        body.unwrap_or_else(|| self.body(base.object(), record))
    }

    /// Parses the text of the object if it is a Lease without unusual content. `last` is an earlier state.
    fn plain(&self, object: &str, last: Option<&Snapshot>) -> Option<Snapshot> {
        let plain = || plain::snapshot(&self.name, object, last);
        self.in_spec().then(plain).flatten()
    }

    /// Converts an object of this kind to the stored form; `None` if it has no version.
    pub(crate) fn snapshot(&self, object: &Value) -> Option<Snapshot> {
        let (observation, warnings) = self.observed(object)?;
        Some(Snapshot::new(observation, object, None, warnings))
    }

    /// Returns the observation of an object of this kind, and warnings for users; `None` if it has no version.
    pub(crate) fn observed(&self, object: &Value) -> Option<(Observation, Vec<String>)> {
        let version = object::version(object)?;
        let stored = self.stored(object);
        let (orders, mut warnings) = orders::read(&self.name, object);
        warnings.extend(self.warning(&stored));
        let (mark, warning) = term::read(&self.name, object);
        warnings.extend(warning);
        let (described, warning) = holder::read(&self.name, object);
        warnings.extend(warning);
        let observation = Observation {
            version,
            fingerprint: fingerprint(&stored.text),
            unreadable: stored.unreadable.is_some(),
            record: stored.record,
            mark,
            described,
            orders,
        };
        Some((observation, warnings))
    }

    fn warning(&self, stored: &StoredRecord) -> Option<String> {
        let why = stored.unreadable.as_ref()?;
        Some(format!(
            "the election record of {} cannot be read and counts as held for one lease duration: \
             {why}",
            self.name
        ))
    }

    /// Returns whether an object from a watch is this one.
    pub(crate) fn is(&self, object: &Value) -> bool {
        let metadata = &object["metadata"];
        metadata["name"] == self.name.name() && metadata["namespace"] == self.name.namespace()
    }

    /// Returns whether an object from a watch is this one, in the last known version.
    fn is_as_in(&self, object: &Value, last: &Snapshot) -> bool {
        let (metadata, version) = (&object["metadata"], &last.observation().version);
        metadata["resourceVersion"] == version.revision.as_str()
            && metadata["uid"] == *version.uid
            && self.is(object)
    }

    pub(crate) fn unversioned(&self, verb: Verb) -> Error {
        let why = "no uid or no resourceVersion".to_owned();
        Error::unknown(verb, &self.name, Doubt::Undecodable(why))
    }

    fn in_spec(&self) -> bool {
        *self.name.resource() == Resource::LEASE
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn plain_text_is_parsed_for_leases_only() {
        for (kind, expected) in [
            (Resource::LEASE, true),
            (Resource::CONFIG_MAP, false),
            (Resource::ENDPOINTS, false),
        ] {
            let part = Part::new(kind, "foo", "bar").unwrap();
            let mut object = Part::new(Resource::LEASE, "foo", "bar")
                .unwrap()
                .name
                .blank();
            object["metadata"]["uid"] = "u".into();
            object["metadata"]["resourceVersion"] = "7".into();
            object["spec"] = json!({});
            let plain = part.plain(&object.to_string(), None);
            assert_eq!(plain.is_some(), expected, "{kind:?}");
        }
    }
}
