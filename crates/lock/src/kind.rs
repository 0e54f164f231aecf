//! Lock kinds, with the names of client-go's factory.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use kube::Client;
use tenure_core::Place;

use crate::error::Error;
use crate::lock::Lock;
use crate::multi::MultiLock;
use crate::object_lock::ObjectLock;

/// The kinds of locks in an API server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum LockKind {
    /// `leases`: a Lease.
    #[default]
    Leases,
    /// `configmaps`: an annotation of a ConfigMap.
    ConfigMaps,
    /// `endpoints`: an annotation of Endpoints.
    Endpoints,
    /// `configmapsleases`: a ConfigMap and a Lease, for migration.
    ConfigMapsLeases,
    /// `endpointsleases`: Endpoints and a Lease, for migration.
    EndpointsLeases,
}

impl LockKind {
    /// All kinds.
    pub const ALL: [Self; 5] = [
        Self::Leases,
        Self::ConfigMaps,
        Self::Endpoints,
        Self::ConfigMapsLeases,
        Self::EndpointsLeases,
    ];

    /// Returns the name, as in `--leader-elect-resource-lock`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Leases => "leases",
            Self::ConfigMaps => "configmaps",
            Self::Endpoints => "endpoints",
            Self::ConfigMapsLeases => "configmapsleases",
            Self::EndpointsLeases => "endpointsleases",
        }
    }

    /// Creates a lock of this kind. Every write sets `labels` on the object.
    ///
    /// # Errors
    ///
    /// Fails if Kubernetes does not accept the namespace or name.
    pub fn open(
        self,
        client: Client,
        namespace: &str,
        name: &str,
        labels: &BTreeMap<String, String>,
    ) -> Result<Arc<dyn Lock>, Error> {
        self.open_at(client, namespace, name, labels, None)
    }

    /// Same as [`open`](Self::open), for a candidate that runs at this place. Its writes describe the holder.
    ///
    /// # Errors
    ///
    /// Fails if Kubernetes does not accept the namespace or name.
    pub fn open_at(
        self,
        client: Client,
        namespace: &str,
        name: &str,
        labels: &BTreeMap<String, String>,
        place: Option<&Arc<Place>>,
    ) -> Result<Arc<dyn Lock>, Error> {
        let at = || place.cloned();
        let single =
            |lock: ObjectLock| Arc::new(lock.labels(labels.clone()).place(at())) as Arc<dyn Lock>;
        let multi =
            |lock: MultiLock| Arc::new(lock.labels(labels.clone()).place(at())) as Arc<dyn Lock>;
        match self {
            Self::Leases => ObjectLock::lease(client, namespace, name).map(single),
            Self::ConfigMaps => ObjectLock::config_map(client, namespace, name).map(single),
            Self::Endpoints => ObjectLock::endpoints(client, namespace, name).map(single),
            Self::ConfigMapsLeases => {
                MultiLock::config_maps_leases(client, namespace, name).map(multi)
            }
            Self::EndpointsLeases => {
                MultiLock::endpoints_leases(client, namespace, name).map(multi)
            }
        }
    }
}

impl fmt::Display for LockKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// There is no lock kind of this name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a kind of lock: expected one of {known}", known = LockKind::ALL.map(LockKind::as_str).join(", "))]
pub struct NotALockKind(String);

impl FromStr for LockKind {
    type Err = NotALockKind;

    fn from_str(text: &str) -> Result<Self, NotALockKind> {
        let kind = Self::ALL.into_iter().find(|kind| kind.as_str() == text);
        kind.ok_or_else(|| NotALockKind(text.to_owned()))
    }
}
