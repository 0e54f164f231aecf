//! Replays what csi-provisioner did with the same claim, and lists the differences.
#![allow(clippy::disallowed_methods, reason = "waits for other processes")]

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use anyhow::{Context, Result};
use serde::Deserialize;
use serde_json::{Value, json};
use tenure_csi::mock::{Method, MockDriver};

use super::api::Api;

const DRIVER: &str = "mock.csi.example";
const PATIENCE: Duration = Duration::from_secs(60);

/// One recorded case.
#[derive(Clone, Debug, Deserialize)]
pub struct Case {
    /// Flags of the provisioner.
    pub flags: String,
    /// Capabilities of the controller.
    pub driver_controller_capabilities: Vec<String>,
    /// Capabilities of the plugin.
    pub driver_plugin_capabilities: Vec<String>,
    cluster_objects: Vec<Value>,
    secrets: Vec<Value>,
    storage_class: Value,
    claim: Claim,
    result: Recorded,
}

#[derive(Clone, Debug, Deserialize)]
struct Claim {
    name: String,
    annotations: BTreeMap<String, String>,
    spec: Value,
}

#[derive(Clone, Debug, Deserialize)]
struct Recorded {
    claim_annotations: BTreeMap<String, String>,
    create_calls_at_least: usize,
    create_request: Option<Value>,
    pv: Option<Value>,
    events: Vec<(String, String, String)>,
    delete_request: Option<Value>,
    pv_left: bool,
}

/// Runs a case against a running provisioner. Returns the differences.
///
/// # Errors
///
/// Fails if the API server rejected a request.
pub async fn replay(case: &Case, api: &Api, driver: &MockDriver) -> Result<Vec<String>> {
    let replay = Replay::begin(case, api, driver).await?;
    let mut differences = replay.until(false).await?;
    replay.release().await?;
    differences.extend(replay.until(true).await?);
    Ok(differences)
}

struct Replay<'a> {
    case: &'a Case,
    api: &'a Api,
    driver: &'a MockDriver,
    namespace: String,
    uid: String,
}

impl<'a> Replay<'a> {
    async fn begin(case: &'a Case, api: &'a Api, driver: &'a MockDriver) -> Result<Self> {
        let namespace = format!("case-{}", case.claim.name);
        let meta = json!({ "metadata": { "name": namespace } });
        api.create("/api/v1/namespaces", &meta).await?;
        for object in &case.cluster_objects {
            let path = match object["kind"].as_str() {
                Some("Node") => "/api/v1/nodes",
                _ => "/apis/storage.k8s.io/v1/csinodes",
            };
            api.create(path, object).await?;
        }
        for secret in &case.secrets {
            api.create(&format!("/api/v1/namespaces/{namespace}/secrets"), secret)
                .await?;
        }
        let mut class = case.storage_class.clone();
        class["metadata"] = meta["metadata"].clone();
        for (key, value) in class["parameters"].as_object_mut().into_iter().flatten() {
            if key.to_lowercase().ends_with("namespace") && *value == "default" {
                *value = json!(namespace);
            }
        }
        api.create("/apis/storage.k8s.io/v1/storageclasses", &class)
            .await?;
        let mut annotations = case.claim.annotations.clone();
        for key in ["volume.kubernetes.io", "volume.beta.kubernetes.io"] {
            annotations.insert(format!("{key}/storage-provisioner"), DRIVER.to_owned());
        }
        let mut spec = case.claim.spec.clone();
        spec["storageClassName"] = json!(namespace);
        let claim = json!({
            "metadata": { "name": case.claim.name, "annotations": annotations },
            "spec": spec,
        });
        let path = format!("/api/v1/namespaces/{namespace}/persistentvolumeclaims");
        let claim = api.create(&path, &claim).await?;
        let uid = claim["metadata"]["uid"]
            .as_str()
            .context("a claim has a uid")?;
        Ok(Self {
            case,
            api,
            driver,
            namespace,
            uid: uid.to_owned(),
        })
    }

    /// Waits until there are no differences, for a limited time.
    async fn until(&self, released: bool) -> Result<Vec<String>> {
        let end = tokio::time::Instant::now() + PATIENCE;
        loop {
            let found = if released {
                self.after().await?
            } else {
                self.before().await?
            };
            if found.is_empty() || tokio::time::Instant::now() > end {
                return Ok(found);
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    /// Returns the differences while the claim exists.
    async fn before(&self) -> Result<Vec<String>> {
        let expected = &self.case.result;
        let mut found = Vec::new();
        let calls = self.calls(Method::CreateVolume);
        let enough = match expected.create_calls_at_least {
            0 => calls.is_empty(),
            least => calls.len() >= least,
        };
        if !enough {
            found.push(format!("{} calls of CreateVolume", calls.len()));
        }
        for call in &calls {
            differ(
                "CreateVolume",
                Some(call),
                expected.create_request.as_ref(),
                &mut found,
            );
        }
        let volume = self.volume().await?;
        differ("volume", volume.as_ref(), expected.pv.as_ref(), &mut found);
        let events = self
            .api
            .get(&format!("/api/v1/namespaces/{}/events", self.namespace))
            .await?;
        let events = events.unwrap_or_default();
        let text = |event: &Value, key: &str| event[key].as_str().unwrap_or_default().to_owned();
        let seen: BTreeSet<_> = events["items"]
            .as_array()
            .into_iter()
            .flatten()
            .map(|event| (text(event, "type"), text(event, "reason")))
            .collect();
        let wanted: BTreeSet<_> = expected
            .events
            .iter()
            .map(|(kind, reason, _)| (kind.clone(), reason.clone()))
            .collect();
        if seen != wanted {
            found.push(format!("events: {seen:?}, recorded {wanted:?}"));
        }
        let claim = self.api.get(&self.claim_path()).await?.unwrap_or_default();
        let claim = self.neutral(&claim);
        let annotations: BTreeMap<String, String> =
            serde_json::from_value(claim["metadata"]["annotations"].clone()).unwrap_or_default();
        let mut wanted = expected.claim_annotations.clone();
        // These annotations belong to the binder.
        wanted.retain(|key, _| !key.starts_with("pv.kubernetes.io/b"));
        if annotations != wanted {
            found.push(format!(
                "claim annotations: {annotations:?}, recorded {wanted:?}"
            ));
        }
        Ok(found)
    }

    /// Acts as the binder for a claim that is deleted.
    async fn release(&self) -> Result<()> {
        if self.case.result.pv.is_some() {
            let path = format!("{}/status", self.volume_path());
            self.api
                .merge(&path, &json!({ "status": { "phase": "Released" } }))
                .await?;
        }
        self.api.remove(&self.claim_path()).await
    }

    /// Returns the differences after the claim was deleted.
    async fn after(&self) -> Result<Vec<String>> {
        let expected = &self.case.result;
        let mut found = Vec::new();
        let calls = self.calls(Method::DeleteVolume);
        differ(
            "DeleteVolume",
            calls.first(),
            expected.delete_request.as_ref(),
            &mut found,
        );
        let volume = self.api.get(&self.volume_path()).await?;
        let protected = json!(["kubernetes.io/pv-protection"]);
        let left = match &volume {
            Some(volume) => {
                let meta = &volume["metadata"];
                // The binder would remove its finalizer now.
                meta["deletionTimestamp"].is_null() || meta["finalizers"] != protected
            }
            None => false,
        };
        if left != expected.pv_left {
            found.push(format!(
                "volume left: {left}, recorded {}; {volume:?}",
                expected.pv_left
            ));
        }
        Ok(found)
    }

    fn claim_path(&self) -> String {
        let (namespace, name) = (&self.namespace, &self.case.claim.name);
        format!("/api/v1/namespaces/{namespace}/persistentvolumeclaims/{name}")
    }

    fn volume_path(&self) -> String {
        let recorded = self
            .case
            .result
            .pv
            .as_ref()
            .and_then(|pv| pv["metadata"]["name"].as_str());
        let name = recorded.unwrap_or("pvc-<uid>");
        let name = name
            .replace("<uid10>", &self.uid10())
            .replace("<uid>", &self.uid);
        format!("/api/v1/persistentvolumes/{name}")
    }

    fn uid10(&self) -> String {
        self.uid.chars().filter(|c| *c != '-').take(10).collect()
    }

    async fn volume(&self) -> Result<Option<Value>> {
        let Some(mut volume) = self.api.get(&self.volume_path()).await? else {
            return Ok(None);
        };
        let root = volume.as_object_mut().context("an object")?;
        root.remove("status");
        for (part, keys) in [
            (
                "/metadata",
                &["uid", "resourceVersion", "managedFields"][..],
            ),
            ("/spec/claimRef", &["uid", "resourceVersion"]),
        ] {
            let part = volume.pointer_mut(part).and_then(Value::as_object_mut);
            if let Some(part) = part {
                keys.iter().for_each(|key| drop(part.remove(*key)));
            }
        }
        volume["metadata"]["creationTimestamp"] = json!("<time>");
        let identity = "/spec/csi/volumeAttributes/storage.kubernetes.io~1csiProvisionerIdentity";
        if let Some(identity) = volume.pointer_mut(identity) {
            *identity = json!("<identity>");
        }
        Ok(Some(self.neutral(&volume)))
    }

    /// Returns the calls for this claim's volume.
    fn calls(&self, method: Method) -> Vec<Value> {
        let about = |call: &Value| {
            let name = call["name"].as_str().or_else(|| call["volume_id"].as_str());
            name.is_some_and(|name| name.contains(&self.uid) || name.contains(&self.uid10()))
        };
        let calls = self
            .driver
            .calls_of(method)
            .into_iter()
            .map(|call| call.request);
        calls
            .filter(about)
            .map(|call| self.neutral(&call))
            .collect()
    }

    /// Replaces values that differ from run to run.
    fn neutral(&self, value: &Value) -> Value {
        let text = value
            .to_string()
            .replace(&self.uid, "<uid>")
            .replace(&self.uid10(), "<uid10>")
            .replace(&self.namespace, "<ns>");
        serde_json::from_str(&text).unwrap_or_default()
    }
}

fn differ(what: &str, seen: Option<&Value>, recorded: Option<&Value>, found: &mut Vec<String>) {
    let sorted = |value: Option<&Value>| {
        let mut value = value?.clone();
        if let Some(list) = value
            .pointer_mut("/metadata/finalizers")
            .and_then(Value::as_array_mut)
        {
            list.sort_by_key(ToString::to_string);
        }
        Some(value)
    };
    if sorted(seen) != sorted(recorded) {
        let show = |value: Option<&Value>| value.map_or("nothing".to_owned(), ToString::to_string);
        found.push(format!(
            "{what}: {}\n    recorded {}",
            show(seen),
            show(recorded)
        ));
    }
}
