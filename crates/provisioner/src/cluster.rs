//! Requests to the API server. Flags limit their rate, a timeout limits their duration, and their errors name the
//! object.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use k8s_openapi::api::core::v1::{PersistentVolume, Secret};
use k8s_openapi::api::storage::v1::CSIStorageCapacity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use kube::api::{
    Api, DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PostParams, Preconditions,
};
use kube::core::{ApiResource, GroupVersionKind, Request};
use kube::{Client, Resource};
use serde::Deserialize;
use serde::de::{DeserializeOwned, IgnoredAny};
use serde_json::json;
use tenure_manager::queue::{RateLimiter as _, TokenBucket};
use tokio::sync::Semaphore;
use tokio::time::Instant;

use crate::objects::{StorageCapacity, Volume};
use crate::secrets::SecretRef;

/// Timeout of each request, so that an unreachable server does not block a worker.
const LIMIT: Duration = Duration::from_secs(60);

/// Maximum number of concurrent requests. Each request needs buffers on both sides, and further requests would only
/// wait at the server.
const AT_ONCE: usize = 32;

/// Number of attempts to update an object after conflicts.
const CONFLICTS: usize = 5;

/// Rate limiter for `--kube-api-qps` and `--kube-api-burst`.
#[derive(Clone)]
pub(crate) struct Pace(Arc<Mutex<TokenBucket>>);

impl Pace {
    pub(crate) fn new(per_second: f64, burst: u32) -> Self {
        Self(Arc::new(Mutex::new(TokenBucket::new(per_second, burst))))
    }

    /// Waits until the next request may be sent.
    pub(crate) async fn turn(&self) {
        let now = Instant::now();
        let delay = {
            let mut bucket = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            bucket.when(&(), now)
        };
        if !delay.is_zero() {
            tokio::time::sleep_until(now + delay).await;
        }
    }
}

impl fmt::Debug for Pace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Pace")
    }
}

/// A request that failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ClusterError {
    #[error("{what}: {}", tenure::plain(source))]
    Request {
        what: String,
        source: Box<kube::Error>,
    },
    #[error("{what}: no answer within {LIMIT:?}")]
    TimedOut { what: String },
}

impl ClusterError {
    fn code(&self) -> Option<u16> {
        match self {
            Self::Request { source, .. } => match &**source {
                kube::Error::Api(status) => Some(status.code),
                _ => None,
            },
            Self::TimedOut { .. } => None,
        }
    }

    pub(crate) fn is_not_found(&self) -> bool {
        self.code() == Some(404)
    }

    pub(crate) fn is_conflict(&self) -> bool {
        self.code() == Some(409)
    }

    pub(crate) fn is_forbidden(&self) -> bool {
        self.code() == Some(403)
    }

    /// Returns whether the API server rejected the object as invalid, so that a retry cannot succeed.
    pub(crate) fn is_invalid(&self) -> bool {
        self.code() == Some(422)
    }
}

/// Client of the API server.
#[derive(Clone)]
pub(crate) struct Cluster {
    client: Client,
    pace: Pace,
    slots: Arc<Semaphore>,
}

/// Metadata in the response to a deletion, if the response contains the object.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Left {
    metadata: LeftMetadata,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct LeftMetadata {
    finalizers: Vec<String>,
}

fn volumes() -> Request {
    Request::new(Volume::url_path(&(), None))
}

/// Sends a request and discards the response body, which contains nothing new.
pub(crate) async fn unread(
    client: &Client,
    request: Result<http::Request<Vec<u8>>, kube::core::request::Error>,
) -> Result<(), kube::Error> {
    let request = request.map_err(kube::Error::BuildRequest)?;
    client.request::<IgnoredAny>(request).await.map(drop)
}

/// Result of creating an object.
#[derive(Debug)]
pub(crate) enum Posted {
    Created,
    /// An object of this name exists.
    Exists,
    /// The object is invalid.
    Refused(ClusterError),
}

impl Cluster {
    pub(crate) fn new(client: Client, pace: Pace) -> Self {
        let slots = Arc::new(Semaphore::new(AT_ONCE));
        Self {
            client,
            pace,
            slots,
        }
    }

    pub(crate) fn client(&self) -> Client {
        self.client.clone()
    }

    async fn ask<T>(
        &self,
        what: impl Fn() -> String,
        request: impl AsyncFnOnce() -> Result<T, kube::Error>,
    ) -> Result<T, ClusterError> {
        self.pace.turn().await;
        let _slot = self.slots.acquire().await;
        // The future is boxed, because it is large while a request runs, and most callers wait for their turn.
        match tokio::time::timeout(LIMIT, Box::pin(request())).await {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(source)) => Err(ClusterError::Request {
                what: what(),
                source: Box::new(source),
            }),
            Err(_) => Err(ClusterError::TimedOut { what: what() }),
        }
    }

    /// Reads a cluster-scoped object.
    pub(crate) async fn get<K>(&self, name: &str) -> Result<K, ClusterError>
    where
        K: Resource<DynamicType = (), Scope = k8s_openapi::ClusterResourceScope>
            + Clone
            + DeserializeOwned
            + fmt::Debug,
    {
        let api: Api<K> = Api::all(self.client.clone());
        let what = || format!("get {} {name}", K::plural(&()));
        self.ask(what, async || api.get(name).await).await
    }

    /// Reads a namespaced object.
    pub(crate) async fn get_in<K>(&self, namespace: &str, name: &str) -> Result<K, ClusterError>
    where
        K: Resource<DynamicType = (), Scope = k8s_openapi::NamespaceResourceScope>
            + Clone
            + DeserializeOwned
            + fmt::Debug,
    {
        let api: Api<K> = Api::namespaced(self.client.clone(), namespace);
        let what = || format!("get {} {namespace}/{name}", K::plural(&()));
        self.ask(what, async || api.get(name).await).await
    }

    /// Lists all objects of a kind in a namespace.
    pub(crate) async fn list_in<K>(&self, namespace: &str) -> Result<Vec<K>, ClusterError>
    where
        K: Resource<DynamicType = (), Scope = k8s_openapi::NamespaceResourceScope>
            + Clone
            + DeserializeOwned
            + fmt::Debug,
    {
        let api: Api<K> = Api::namespaced(self.client.clone(), namespace);
        let what = || format!("list {} in {namespace}", K::plural(&()));
        let list = self
            .ask(what, async || api.list(&ListParams::default()).await)
            .await?;
        Ok(list.items)
    }

    /// Reads the contents of a secret for the driver.
    pub(crate) async fn secret(
        &self,
        at: &SecretRef,
    ) -> Result<std::collections::BTreeMap<String, String>, ClusterError> {
        let secret: Secret = self.get_in(&at.namespace, &at.name).await?;
        let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
        let data = secret.data.unwrap_or_default();
        Ok(data
            .into_iter()
            .map(|(key, value)| (key, text(value.0)))
            .collect())
    }

    pub(crate) async fn create_volume(
        &self,
        volume: &PersistentVolume,
    ) -> Result<Posted, ClusterError> {
        let name = volume.metadata.name.as_deref().unwrap_or_default();
        let what = || format!("create persistentvolumes {name}");
        let post = async || {
            let body = serde_json::to_vec(volume).map_err(kube::Error::SerdeError)?;
            let request = volumes().create(&PostParams::default(), body);
            unread(&self.client, request).await
        };
        match self.ask(what, post).await {
            Ok(()) => Ok(Posted::Created),
            Err(error) if error.is_conflict() => Ok(Posted::Exists),
            Err(error) if error.is_invalid() => Ok(Posted::Refused(error)),
            Err(error) => Err(error),
        }
    }

    /// Deletes a volume object, but not another one of the same name. Returns whether this finalizer blocks the deletion.
    pub(crate) async fn delete_volume(
        &self,
        volume: &Volume,
        finalizer: &str,
    ) -> Result<bool, ClusterError> {
        let name = volume.name();
        let what = || format!("delete persistentvolumes {name}");
        let parameters = DeleteParams::default().preconditions(Preconditions {
            uid: volume.metadata.uid.clone(),
            resource_version: None,
        });
        let delete = async || {
            let request = volumes().delete(name, &parameters);
            let request = request.map_err(kube::Error::BuildRequest)?;
            self.client.request::<Left>(request).await
        };
        match self.ask(what, delete).await {
            Ok(left) => Ok(left.metadata.finalizers.iter().any(|f| f == finalizer)),
            Err(error) if error.is_not_found() => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Checks that the API server serves CSIStorageCapacity. The check sends an invalid object, so it creates nothing.
    pub(crate) async fn check_storage_capacities(&self, namespace: &str) -> Result<(), String> {
        let api: Api<CSIStorageCapacity> = Api::namespaced(self.client.clone(), namespace);
        let object = CSIStorageCapacity {
            metadata: ObjectMeta {
                name: Some("%123-invalid-name".to_owned()),
                ..ObjectMeta::default()
            },
            ..CSIStorageCapacity::default()
        };
        let what = || "csistoragecapacities of storage.k8s.io/v1".to_owned();
        match self
            .ask(what, async || {
                api.create(&PostParams::default(), &object).await
            })
            .await
        {
            Ok(_) => Err("the API server accepted an object with an invalid name".to_owned()),
            Err(error) if error.code() == Some(422) => Ok(()),
            Err(error) if error.is_not_found() => Err(format!(
                "this API server has no csistoragecapacities in storage.k8s.io/v1, and those of v1beta1 \
                 (Kubernetes before 1.24) are not supported: {error}"
            )),
            Err(error) => Err(error.to_string()),
        }
    }

    /// Writes a CSIStorageCapacity: creates it if it has no name, else replaces the version that was read.
    pub(crate) async fn write_storage_capacity(
        &self,
        capacity: &CSIStorageCapacity,
    ) -> Result<CSIStorageCapacity, ClusterError> {
        let namespace = capacity.metadata.namespace.as_deref().unwrap_or_default();
        let api: Api<CSIStorageCapacity> = Api::namespaced(self.client.clone(), namespace);
        let parameters = PostParams::default();
        match capacity.metadata.name.as_deref() {
            None => {
                let what = || format!("create csistoragecapacities in {namespace}");
                self.ask(what, async || api.create(&parameters, capacity).await)
                    .await
            }
            Some(name) => {
                let what = || format!("update csistoragecapacities {namespace}/{name}");
                self.ask(what, async || {
                    api.replace(name, &parameters, capacity).await
                })
                .await
            }
        }
    }

    pub(crate) async fn delete_storage_capacity(
        &self,
        capacity: &StorageCapacity,
    ) -> Result<(), ClusterError> {
        let namespace = capacity.metadata.namespace.as_deref().unwrap_or_default();
        let name = capacity.metadata.name.as_deref().unwrap_or_default();
        let api: Api<CSIStorageCapacity> = Api::namespaced(self.client.clone(), namespace);
        let what = || format!("delete csistoragecapacities {namespace}/{name}");
        match self
            .ask(what, async || {
                api.delete(name, &DeleteParams::default()).await
            })
            .await
        {
            Err(error) if !error.is_not_found() => Err(error),
            _ => Ok(()),
        }
    }

    /// Returns an owner reference to an existing object.
    pub(crate) async fn reference(
        &self,
        namespace: &str,
        api_version: &str,
        kind: &str,
        name: &str,
    ) -> Result<OwnerReference, ClusterError> {
        let object = self.dynamic(namespace, api_version, kind, name).await?;
        Ok(OwnerReference {
            api_version: api_version.to_owned(),
            kind: kind.to_owned(),
            name: name.to_owned(),
            uid: object.metadata.uid.unwrap_or_default(),
            ..OwnerReference::default()
        })
    }

    /// Returns the controller of an object.
    pub(crate) async fn controller_of(
        &self,
        namespace: &str,
        of: &OwnerReference,
    ) -> Result<Option<OwnerReference>, ClusterError> {
        let object = self
            .dynamic(namespace, &of.api_version, &of.kind, &of.name)
            .await?;
        let mut owners = object.metadata.owner_references.into_iter().flatten();
        let owner = owners.find(|owner| owner.controller == Some(true));
        Ok(owner.map(|owner| OwnerReference {
            block_owner_deletion: None,
            ..owner
        }))
    }

    async fn dynamic(
        &self,
        namespace: &str,
        api_version: &str,
        kind: &str,
        name: &str,
    ) -> Result<DynamicObject, ClusterError> {
        let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
        let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind));
        let api: Api<DynamicObject> =
            Api::namespaced_with(self.client.clone(), namespace, &resource);
        let what = || format!("get {} {namespace}/{name}", resource.plural);
        self.ask(what, async || api.get(name).await).await
    }

    /// Adds or removes a finalizer of a volume with a patch, because other writers change the list too.
    pub(crate) async fn set_volume_finalizer(
        &self,
        volume: &Volume,
        finalizer: &str,
        wanted: bool,
    ) -> Result<(), ClusterError> {
        let name = volume.name();
        let list = match wanted {
            true => "finalizers",
            false => "$deleteFromPrimitiveList/finalizers",
        };
        let patch = json!({ "metadata": { "uid": volume.metadata.uid, list: [finalizer] } });
        let what = || format!("patch persistentvolumes {name}");
        let send = async || {
            let patch = Patch::Strategic(&patch);
            let request = volumes().patch(name, &PatchParams::default(), &patch);
            unread(&self.client, request).await
        };
        match self.ask(what, send).await {
            // The volume is gone, or another volume has its name. In that case the patch would change a uid, which is
            // invalid.
            Err(error) if error.is_not_found() || error.is_invalid() => Ok(()),
            other => other,
        }
    }

    /// Reads an object, changes it, and replaces it, which is all that old roles allow. Retries after a conflict.
    /// `change` returns whether there is something to write.
    pub(crate) async fn update<K>(
        &self,
        namespace: &str,
        name: &str,
        mut change: impl FnMut(&mut DynamicObject) -> bool,
    ) -> Result<Option<DynamicObject>, ClusterError>
    where
        K: Resource<DynamicType = (), Scope = k8s_openapi::NamespaceResourceScope>,
    {
        let resource = ApiResource::erase::<K>(&());
        let api: Api<DynamicObject> =
            Api::namespaced_with(self.client.clone(), namespace, &resource);
        let what = |verb: &str| format!("{verb} {} {namespace}/{name}", resource.plural);
        for attempt in 1.. {
            let mut object = match self.ask(|| what("get"), async || api.get(name).await).await {
                Ok(object) => object,
                Err(error) if error.is_not_found() => return Ok(None),
                Err(error) => return Err(error),
            };
            if !change(&mut object) {
                return Ok(Some(object));
            }
            let parameters = PostParams::default();
            let put = async || api.replace(name, &parameters, &object).await;
            match self.ask(|| what("update"), put).await {
                Ok(object) => return Ok(Some(object)),
                Err(error) if error.is_not_found() => return Ok(None),
                Err(error) if error.is_conflict() && attempt < CONFLICTS => {}
                Err(error) => return Err(error),
            }
        }
        Ok(None)
    }

    /// Adds or removes a finalizer of a namespaced object. Returns false if the object is gone.
    pub(crate) async fn set_finalizer<K>(
        &self,
        namespace: &str,
        name: &str,
        uid: Option<&str>,
        (finalizer, wanted): (&str, bool),
    ) -> Result<bool, ClusterError>
    where
        K: Resource<DynamicType = (), Scope = k8s_openapi::NamespaceResourceScope>,
    {
        let mut same = true;
        let written = self
            .update::<K>(namespace, name, |object| {
                same = uid.is_none() || object.metadata.uid.as_deref() == uid;
                let list = object.metadata.finalizers.get_or_insert_default();
                let present = list.iter().any(|f| f == finalizer);
                list.retain(|f| f != finalizer);
                if wanted {
                    list.push(finalizer.to_owned());
                }
                same && present != wanted
            })
            .await?;
        Ok(written.is_some() && same)
    }
}
