//! Records every version of one object from a watch: the writes, and their order.

use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use futures_util::StreamExt as _;
use kube::api::{ApiResource, DynamicObject, WatchEvent, WatchParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Api, Client, Config};
use serde_json::Value;
use tokio::sync::oneshot;

use crate::clock;

/// The annotation with the record if the lock is not a Lease.
const ANNOTATION: &str = "control-plane.alpha.kubernetes.io/leader";

/// The recorded fields of a lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Version {
    /// The holder; empty for none.
    pub holder: String,
    /// Number of changes of the holder.
    pub transitions: i64,
    /// Lease duration in seconds.
    pub lease_seconds: i64,
    /// Whether this is the deletion of the object.
    pub deleted: bool,
}

/// A watch of a lock object that keeps its events. Dropping it ends the watch.
#[derive(Debug)]
pub struct Recorder {
    versions: Arc<Mutex<Vec<Version>>>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Recorder {
    /// Watches a lock in the namespace `default`, which may not exist yet. `kind` is `Lease`, `Endpoints` or
    /// `ConfigMap`.
    ///
    /// # Errors
    ///
    /// Fails if the kubeconfig is unusable, or if there is no runtime for the watch.
    pub fn start(kubeconfig: &Path, kind: &str, name: &str) -> io::Result<Self> {
        let (group, plural) = match kind {
            "Lease" => ("coordination.k8s.io", "leases"),
            "Endpoints" => ("", "endpoints"),
            _ => ("", "configmaps"),
        };
        let resource = ApiResource {
            group: group.to_owned(),
            version: "v1".to_owned(),
            api_version: format!("{group}/v1").trim_start_matches('/').to_owned(),
            kind: kind.to_owned(),
            plural: plural.to_owned(),
        };
        let file = Kubeconfig::read_from(kubeconfig).map_err(io::Error::other)?;
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        let client = runtime.block_on(async {
            let options = KubeConfigOptions::default();
            let config = Config::from_custom_kubeconfig(file, &options).await;
            Client::try_from(config.map_err(io::Error::other)?).map_err(io::Error::other)
        })?;
        let objects: Api<DynamicObject> = Api::namespaced_with(client, "default", &resource);
        let parameters = WatchParams::default()
            .fields(&format!("metadata.name={name}"))
            .timeout(290);
        let versions = Arc::<Mutex<Vec<Version>>>::default();
        let kept = versions.clone();
        let (stop, mut stopped) = oneshot::channel();
        let (ready, started) = std::sync::mpsc::channel();
        let record = async move {
            let watch = match objects.watch(&parameters, "0").await {
                Ok(watch) => watch,
                Err(error) => {
                    _ = ready.send(Err(io::Error::other(error)));
                    return;
                }
            };
            _ = ready.send(Ok(()));
            let mut watch = std::pin::pin!(watch);
            loop {
                let event = tokio::select! {
                    event = watch.next() => event,
                    _ = &mut stopped => return,
                };
                let version = match event {
                    Some(Ok(WatchEvent::Added(o) | WatchEvent::Modified(o))) => read(&o, false),
                    Some(Ok(WatchEvent::Deleted(o))) => read(&o, true),
                    Some(_) => continue,
                    None => return,
                };
                let mut kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
                kept.extend(version);
            }
        };
        let thread = std::thread::spawn(move || runtime.block_on(record));
        started.recv().map_err(io::Error::other)??;
        Ok(Self {
            versions,
            stop: Some(stop),
            thread: Some(thread),
        })
    }

    /// Returns all versions so far.
    pub fn versions(&self) -> Vec<Version> {
        let versions = self.versions.lock();
        versions.unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Waits until a version that `wanted` accepts was observed, after the first `skip` ones.
    pub fn wait_for(
        &self,
        skip: usize,
        limit: Duration,
        wanted: impl Fn(&Version) -> bool,
    ) -> Option<Version> {
        clock::poll(limit, || {
            let mut versions = self.versions().into_iter().skip(skip);
            versions.find(|version| wanted(version))
        })
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        self.stop.take();
        if let Some(thread) = self.thread.take() {
            _ = thread.join();
        }
    }
}

fn read(object: &DynamicObject, deleted: bool) -> Option<Version> {
    let annotations = object.metadata.annotations.as_ref();
    let record: Value = match annotations.and_then(|all| all.get(ANNOTATION)) {
        Some(text) => serde_json::from_str(text).ok()?,
        None => object.data.get("spec")?.clone(),
    };
    let transitions = ["leaseTransitions", "leaderTransitions"];
    let transitions = transitions.iter().find_map(|name| record[name].as_i64());
    Some(Version {
        holder: record["holderIdentity"]
            .as_str()
            .unwrap_or_default()
            .to_owned(),
        transitions: transitions.unwrap_or_default(),
        lease_seconds: record["leaseDurationSeconds"].as_i64().unwrap_or_default(),
        deleted,
    })
}
