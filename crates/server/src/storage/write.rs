//! Writes of the controllers: Events, and small merge patches of exactly the version on which the decision was based.

use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Event, EventSource, ObjectReference};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, Client, Resource};
use serde_json::{Value, json};
use tenure_kinds::{PersistentVolume, PersistentVolumeClaim};

use super::world::{Name, World};

/// Field manager and source of Events.
const MANAGER: &str = "persistentvolume-controller";

/// Type of an Event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Tone {
    Normal,
    Warning,
}

/// Sends writes, and stores the responses in the cache.
pub(super) struct Writer {
    pub(super) client: Client,
    world: World,
}

impl Writer {
    pub(super) fn new(client: Client, world: World) -> Self {
        Self { client, world }
    }

    pub(super) async fn claim(
        &self,
        claim: &PersistentVolumeClaim,
        patch: Value,
    ) -> Result<Arc<PersistentVolumeClaim>, kube::Error> {
        let (name, patch) = prepared(claim, patch);
        let answer = self
            .claims(&name)
            .patch(&name.name, &parameters(), &patch)
            .await;
        Ok(self.heard_of_claim(answer?))
    }

    pub(super) async fn claim_status(
        &self,
        claim: &PersistentVolumeClaim,
        status: Value,
    ) -> Result<Arc<PersistentVolumeClaim>, kube::Error> {
        let (name, patch) = prepared(claim, json!({ "status": status }));
        let claims = self.claims(&name);
        let answer = claims.patch_status(&name.name, &parameters(), &patch).await;
        Ok(self.heard_of_claim(answer?))
    }

    pub(super) async fn volume(
        &self,
        volume: &PersistentVolume,
        patch: Value,
    ) -> Result<Arc<PersistentVolume>, kube::Error> {
        let (name, patch) = prepared(volume, patch);
        let answer = self
            .volumes()
            .patch(&name.name, &parameters(), &patch)
            .await;
        Ok(self.heard_of_volume(answer?))
    }

    pub(super) async fn volume_status(
        &self,
        volume: &PersistentVolume,
        status: Value,
    ) -> Result<Arc<PersistentVolume>, kube::Error> {
        let (name, patch) = prepared(volume, json!({ "status": status }));
        let volumes = self.volumes();
        let answer = volumes
            .patch_status(&name.name, &parameters(), &patch)
            .await;
        Ok(self.heard_of_volume(answer?))
    }

    /// Reads a claim from the API server.
    pub(super) async fn fresh_claim(
        &self,
        name: &Name,
    ) -> Result<Option<PersistentVolumeClaim>, kube::Error> {
        self.claims(name).get_opt(&name.name).await
    }

    /// Reads a volume from the API server.
    pub(super) async fn fresh_volume(
        &self,
        name: &str,
    ) -> Result<Option<PersistentVolume>, kube::Error> {
        self.volumes().get_opt(name).await
    }

    /// Records an Event. A failure to record it is ignored.
    pub(super) async fn event<K>(&self, about: &K, tone: Tone, reason: &str, message: &str)
    where
        K: Resource<DynamicType = ()>,
    {
        let about = reference(about);
        let namespace = about
            .namespace
            .clone()
            .unwrap_or_else(|| "default".to_owned());
        let now = Timestamp::now();
        let unique = now.as_nanosecond();
        let mut event = Event {
            count: Some(1),
            first_timestamp: Some(Time(now)),
            last_timestamp: Some(Time(now)),
            message: Some(message.to_owned()),
            reason: Some(reason.to_owned()),
            source: Some(EventSource {
                component: Some(MANAGER.to_owned()),
                ..EventSource::default()
            }),
            reporting_component: Some(MANAGER.to_owned()),
            type_: Some(format!("{tone:?}")),
            ..Event::default()
        };
        event.metadata.name = Some(format!(
            "{}.{unique:x}",
            about.name.as_deref().unwrap_or_default()
        ));
        event.metadata.namespace = Some(namespace.clone());
        event.involved_object = about;
        let events: Api<Event> = Api::namespaced(self.client.clone(), &namespace);
        if let Err(error) = events.create(&PostParams::default(), &event).await {
            tracing::debug!(
                reason,
                error = tenure::plain(&error),
                "cannot create an event"
            );
        }
    }

    fn claims(&self, name: &Name) -> Api<PersistentVolumeClaim> {
        Api::namespaced(self.client.clone(), &name.namespace)
    }

    fn volumes(&self) -> Api<PersistentVolume> {
        Api::all(self.client.clone())
    }

    fn heard_of_claim(&self, claim: PersistentVolumeClaim) -> Arc<PersistentVolumeClaim> {
        let claim = Arc::new(claim);
        self.world.lock().claims.replace(claim.clone());
        claim
    }

    fn heard_of_volume(&self, volume: PersistentVolume) -> Arc<PersistentVolume> {
        let volume = Arc::new(volume);
        self.world.lock().volumes.replace(volume.clone());
        volume
    }
}

/// Returns a reference to an object, in the form used in volumes and Events.
pub(super) fn reference<K: Resource<DynamicType = ()>>(object: &K) -> ObjectReference {
    let meta = object.meta();
    ObjectReference {
        api_version: Some(K::api_version(&()).into_owned()),
        kind: Some(K::kind(&()).into_owned()),
        namespace: meta.namespace.clone(),
        name: meta.name.clone(),
        uid: meta.uid.clone(),
        resource_version: meta.resource_version.clone(),
        ..ObjectReference::default()
    }
}

fn parameters() -> PatchParams {
    PatchParams {
        field_manager: Some(MANAGER.to_owned()),
        ..PatchParams::default()
    }
}

/// Adds the version to a patch, so that the API server rejects a decision on an older version.
fn prepared<K: Resource>(object: &K, mut patch: Value) -> (Name, Patch<Value>) {
    patch["metadata"]["resourceVersion"] = json!(object.meta().resource_version);
    (Name::of(object.meta()), Patch::Merge(patch))
}
