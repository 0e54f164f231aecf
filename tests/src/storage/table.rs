//! Cases as tables: the content of the cluster, the class, the claim, and the expected result. Many cases share one
//! server, one driver and one provisioner, each in its own namespace.
//!
//! In all texts, `<ns>` is the namespace of the case, which is also the name of its class, `<uid>` the uid of
//! its claim, and `<uid:NAME>` the uid of an object that was created before.
#![allow(clippy::disallowed_methods, reason = "waits for other processes")]
#![allow(
    clippy::needless_pass_by_value,
    reason = "passing values keeps the cases short"
)]

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use futures_util::future::join_all;
use serde_json::{Value, json};
use tenure_csi::mock::{Method, MockDriver};

use super::api::Api;
use super::claim::handed_over;

const DRIVER: &str = "mock.csi.example";
const PATIENCE: Duration = Duration::from_secs(90);

/// One case.
#[derive(Clone, Debug, Default)]
pub struct Trial {
    name: &'static str,
    objects: Vec<Value>,
    class: Value,
    claim: Value,
    wanted: Wanted,
}

#[derive(Clone, Debug, Default)]
struct Wanted {
    /// Part of the first CreateVolume; null means that there must be no call.
    request: Option<Value>,
    /// Part of the volume object; null means that there must be none.
    volume: Option<Value>,
    /// Text in a Warning ProvisioningFailed of the claim.
    failure: Option<&'static str>,
    /// The reason of some event of the claim.
    event: Option<&'static str>,
    /// Part of the claim.
    claim: Option<Value>,
    /// Parts of other objects, by kind and name.
    objects: Vec<Value>,
    /// Minimum number of calls of CreateVolume and DeleteVolume.
    calls: Option<(usize, usize)>,
}

/// Creates a case with a plain class and a plain claim.
#[must_use]
pub fn trial(name: &'static str) -> Trial {
    Trial {
        name,
        ..Trial::default()
    }
}

impl Trial {
    /// Adds an object with its status to the cluster.
    #[must_use]
    pub fn with(mut self, object: Value) -> Self {
        self.objects.push(object);
        self
    }

    /// Adds several objects.
    #[must_use]
    pub fn with_all(mut self, objects: impl IntoIterator<Item = Value>) -> Self {
        self.objects.extend(objects);
        self
    }

    /// Merges fields into the class.
    #[must_use]
    pub fn class(mut self, class: Value) -> Self {
        merge(&mut self.class, &class);
        self
    }

    /// Sets parameters of the class.
    #[must_use]
    pub fn parameters(self, parameters: Value) -> Self {
        self.class(json!({ "parameters": parameters }))
    }

    /// Sets the script of the driver for the class.
    #[must_use]
    pub fn script(self, script: Value) -> Self {
        self.parameters(json!({ "script": script.to_string() }))
    }

    /// Merges fields into the claim.
    #[must_use]
    pub fn claim(mut self, claim: Value) -> Self {
        merge(&mut self.claim, &claim);
        self
    }

    /// Merges fields into the spec of the claim.
    #[must_use]
    pub fn spec(self, spec: Value) -> Self {
        self.claim(json!({ "spec": spec }))
    }

    /// Sets annotations of the claim.
    #[must_use]
    pub fn annotations(self, annotations: Value) -> Self {
        self.claim(json!({ "metadata": { "annotations": annotations } }))
    }

    /// Expects a CreateVolume call that contains this; `null` expects no call.
    #[must_use]
    pub fn asks(mut self, request: Value) -> Self {
        self.wanted.request = Some(request);
        self
    }

    /// Expects a volume object that contains this; `null` expects none.
    #[must_use]
    pub fn gives(mut self, volume: Value) -> Self {
        self.wanted.volume = Some(volume);
        self
    }

    /// Expects a warning of the claim with this text, and no volume.
    #[must_use]
    pub fn fails(mut self, text: &'static str) -> Self {
        self.wanted.failure = Some(text);
        self.wanted.volume = Some(Value::Null);
        self
    }

    /// Expects a failure before the driver is called.
    #[must_use]
    pub fn refused(self, text: &'static str) -> Self {
        self.fails(text).asks(Value::Null)
    }

    /// Expects an event of the claim with this reason.
    #[must_use]
    pub fn event(mut self, reason: &'static str) -> Self {
        self.wanted.event = Some(reason);
        self
    }

    /// Expects that nothing happens for the claim.
    #[must_use]
    pub fn ignored(self) -> Self {
        self.asks(Value::Null).gives(Value::Null)
    }

    /// Expects this in the claim at the end.
    #[must_use]
    pub fn leaves(mut self, claim: Value) -> Self {
        self.wanted.claim = Some(claim);
        self
    }

    /// Expects this in another object at the end.
    #[must_use]
    pub fn leaves_object(mut self, object: Value) -> Self {
        self.wanted.objects.push(object);
        self
    }

    /// Expects at least this many calls of CreateVolume and DeleteVolume.
    #[must_use]
    pub fn calls(mut self, create: usize, delete: usize) -> Self {
        self.wanted.calls = Some((create, delete));
        self
    }
}

/// Runs cases concurrently against a running provisioner. Returns the differences from the expected results.
///
/// # Errors
///
/// Fails if the API server rejected a request.
pub async fn run(api: &Api, driver: &MockDriver, trials: &[Trial]) -> Result<Vec<String>> {
    let mut begun = Vec::new();
    for trial in trials {
        begun.push(Running::begin(api, driver, trial).await?);
    }
    let mut found = join_all(begun.iter().map(Running::settle)).await.concat();
    // A claim that is created after all others is provisioned, so the others without a volume are ignored on purpose.
    let last = trial("after-all").gives(json!({}));
    let last = Running::begin(api, driver, &last).await?;
    found.extend(last.settle().await);
    for running in &begun {
        if running.trial.wanted.request == Some(Value::Null) {
            let calls = running.calls(Method::CreateVolume).len();
            if calls > 0 {
                let name = running.trial.name;
                found.push(format!("{name}: {calls} calls of CreateVolume"));
            }
        }
    }
    Ok(found)
}

struct Running<'a> {
    api: &'a Api,
    driver: &'a MockDriver,
    trial: Trial,
    namespace: String,
    uids: BTreeMap<String, String>,
}

impl<'a> Running<'a> {
    async fn begin(api: &'a Api, driver: &'a MockDriver, trial: &Trial) -> Result<Self> {
        let namespace = format!("t-{}", trial.name);
        let mut running = Self {
            api,
            driver,
            trial: trial.clone(),
            namespace,
            uids: BTreeMap::new(),
        };
        running.build().await.with_context(|| trial.name)?;
        Ok(running)
    }

    async fn build(&mut self) -> Result<()> {
        let meta = json!({ "metadata": { "name": self.namespace } });
        self.api.create("/api/v1/namespaces", &meta).await?;
        for object in self.trial.objects.clone() {
            let object = self.filled(&object);
            let name = object["metadata"]["name"].as_str().unwrap_or_default();
            let uid = put(self.api, &object, &self.namespace).await?;
            let name = name.to_owned();
            self.uids.insert(name, uid);
        }
        let mut class = json!({ "kind": "StorageClass", "metadata": { "name": self.namespace }, "provisioner": DRIVER });
        merge(&mut class, &self.filled(&self.trial.class));
        put(self.api, &trimmed(class), &self.namespace).await?;
        let mut claim = handed_over("claim", &self.namespace, DRIVER);
        merge(&mut claim, &self.filled(&self.trial.claim));
        let uid = put(self.api, &trimmed(claim), &self.namespace).await?;
        self.uids.insert(String::new(), uid);
        Ok(())
    }

    fn uid(&self) -> &str {
        self.uids.get("").map_or("", String::as_str)
    }

    fn filled(&self, value: &Value) -> Value {
        let mut text = value.to_string().replace("<ns>", &self.namespace);
        for (name, uid) in &self.uids {
            text = text.replace(&format!("<uid:{name}>"), uid);
        }
        text = text.replace("<uid>", self.uid());
        serde_json::from_str(&text).unwrap_or_default()
    }

    /// Waits until everything is as expected, for a limited time.
    async fn settle(&self) -> Vec<String> {
        let end = tokio::time::Instant::now() + PATIENCE;
        loop {
            let found = self.differences().await;
            let found = found.unwrap_or_else(|error| vec![format!("{error:#}")]);
            if found.is_empty() || tokio::time::Instant::now() > end {
                let name = self.trial.name;
                return found.iter().map(|text| format!("{name}: {text}")).collect();
            }
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    }

    async fn differences(&self) -> Result<Vec<String>> {
        let wanted = &self.trial.wanted;
        let mut found = Vec::new();
        if let Some(request) = wanted.request.as_ref().filter(|value| !value.is_null()) {
            let calls = self.calls(Method::CreateVolume);
            compare(
                "CreateVolume",
                calls.first(),
                &self.filled(request),
                &mut found,
            );
        }
        if let Some(volume) = &wanted.volume {
            let path = format!("/api/v1/persistentvolumes/pvc-{}", self.uid());
            let seen = self.api.get(&path).await?;
            compare("volume", seen.as_ref(), &self.filled(volume), &mut found);
        }
        if let Some(claim) = &wanted.claim {
            let path = format!(
                "/api/v1/namespaces/{}/persistentvolumeclaims/claim",
                self.namespace
            );
            let seen = self.api.get(&path).await?;
            compare("claim", seen.as_ref(), &self.filled(claim), &mut found);
        }
        for object in &wanted.objects {
            let object = self.filled(object);
            let name = object["metadata"]["name"].as_str().unwrap_or_default();
            let path = format!("{}/{name}", place(&object, &self.namespace)?);
            let seen = self.api.get(&path).await?;
            compare(name, seen.as_ref(), &object, &mut found);
        }
        if let Some((create, delete)) = wanted.calls {
            for (method, least) in [
                (Method::CreateVolume, create),
                (Method::DeleteVolume, delete),
            ] {
                let calls = self.calls(method).len();
                if calls < least {
                    found.push(format!("{calls} calls of {method:?}"));
                }
            }
        }
        if wanted.failure.is_some() || wanted.event.is_some() {
            found.extend(self.missing_events().await?);
        }
        Ok(found)
    }

    async fn missing_events(&self) -> Result<Vec<String>> {
        let path = format!("/api/v1/namespaces/{}/events", self.namespace);
        let events = self.api.get(&path).await?.unwrap_or_default();
        let events: Vec<_> = events["items"].as_array().cloned().unwrap_or_default();
        let text = |event: &Value, key: &str| event[key].as_str().unwrap_or_default().to_owned();
        let mut found = Vec::new();
        if let Some(reason) = self.trial.wanted.event
            && !events.iter().any(|event| text(event, "reason") == reason)
        {
            found.push(format!("no event {reason}"));
        }
        if let Some(failure) = self.trial.wanted.failure {
            let failures: Vec<_> = events
                .iter()
                .filter(|event| {
                    text(event, "reason") == "ProvisioningFailed"
                        && text(event, "type") == "Warning"
                })
                .map(|event| text(event, "message"))
                .collect();
            if !failures.iter().any(|message| message.contains(failure)) {
                found.push(format!("no failure with {failure:?}, but {failures:?}"));
            }
        }
        Ok(found)
    }

    /// Returns the calls for this claim's volume.
    fn calls(&self, method: Method) -> Vec<Value> {
        let about = |call: &Value| {
            let name = call["name"].as_str().or_else(|| call["volume_id"].as_str());
            name.is_some_and(|name| name.contains(self.uid()))
        };
        let calls = self.driver.calls_of(method).into_iter();
        calls.map(|call| call.request).filter(about).collect()
    }
}

/// Creates an object, with its status if it has one. Returns its uid.
///
/// # Errors
///
/// Fails if it was rejected.
pub async fn put(api: &Api, object: &Value, namespace: &str) -> Result<String> {
    let path = place(object, namespace)?;
    let name = object["metadata"]["name"].as_str().unwrap_or_default();
    let made = api.create(&path, object).await?;
    let path = format!("{path}/{name}");
    if let Some(status) = object.get("status") {
        let patch = json!({ "status": status });
        api.merge(&format!("{path}/status"), &patch).await?;
    }
    if object["metadata"]["deletionTimestamp"].is_string() {
        api.delete(&path).await?;
    }
    let uid = made["metadata"]["uid"].as_str();
    Ok(uid.unwrap_or_default().to_owned())
}

/// Returns the path of objects of this kind.
fn place(object: &Value, namespace: &str) -> Result<String> {
    let namespace = object["metadata"]["namespace"]
        .as_str()
        .unwrap_or(namespace);
    let kind = object["kind"].as_str().unwrap_or_default();
    let (group, plural, namespaced) = match kind {
        "Secret" => ("/api/v1", "secrets", true),
        "Namespace" => ("/api/v1", "namespaces", false),
        "Node" => ("/api/v1", "nodes", false),
        "PersistentVolume" => ("/api/v1", "persistentvolumes", false),
        "PersistentVolumeClaim" => ("/api/v1", "persistentvolumeclaims", true),
        "StorageClass" => ("/apis/storage.k8s.io/v1", "storageclasses", false),
        "CSINode" => ("/apis/storage.k8s.io/v1", "csinodes", false),
        "VolumeAttachment" => ("/apis/storage.k8s.io/v1", "volumeattachments", false),
        "VolumeAttributesClass" => ("/apis/storage.k8s.io/v1", "volumeattributesclasses", false),
        "VolumeSnapshot" => ("/apis/snapshot.storage.k8s.io/v1", "volumesnapshots", true),
        "VolumeSnapshotContent" => (
            "/apis/snapshot.storage.k8s.io/v1",
            "volumesnapshotcontents",
            false,
        ),
        "ReferenceGrant" => (
            "/apis/gateway.networking.k8s.io/v1beta1",
            "referencegrants",
            true,
        ),
        other => bail!("unknown kind {other:?}"),
    };
    Ok(match namespaced {
        true => format!("{group}/namespaces/{namespace}/{plural}"),
        false => format!("{group}/{plural}"),
    })
}

/// Creates the kinds that are not built in: snapshots, their contents, and grants.
///
/// # Errors
///
/// Fails if they were rejected.
pub async fn define_kinds(api: &Api) -> Result<()> {
    let snapshots = "snapshot.storage.k8s.io";
    for (group, version, kind, plural, scope) in [
        (
            snapshots,
            "v1",
            "VolumeSnapshot",
            "volumesnapshots",
            "Namespaced",
        ),
        (
            snapshots,
            "v1",
            "VolumeSnapshotContent",
            "volumesnapshotcontents",
            "Cluster",
        ),
        (
            "gateway.networking.k8s.io",
            "v1beta1",
            "ReferenceGrant",
            "referencegrants",
            "Namespaced",
        ),
    ] {
        let schema = json!({ "type": "object", "x-kubernetes-preserve-unknown-fields": true });
        let definition = json!({
            "apiVersion": "apiextensions.k8s.io/v1",
            "kind": "CustomResourceDefinition",
            "metadata": {
                "name": format!("{plural}.{group}"),
                "annotations": { "api-approved.kubernetes.io": "https://github.com/kubernetes/enhancements" },
            },
            "spec": {
                "group": group,
                "scope": scope,
                "names": { "kind": kind, "plural": plural, "singular": kind.to_lowercase() },
                "versions": [{
                    "name": version, "served": true, "storage": true,
                    "schema": { "openAPIV3Schema": schema },
                    "subresources": { "status": {} },
                }],
            },
        });
        let path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
        api.create(path, &definition).await?;
        let end = tokio::time::Instant::now() + PATIENCE;
        let list = format!("/apis/{group}/{version}/{plural}");
        while api.get(&list).await?.is_none() {
            if tokio::time::Instant::now() > end {
                bail!("{plural} are never served");
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
    Ok(())
}

/// Returns whether `wanted` is part of `seen`. Objects may have additional fields, `null` means absent, and lists must
/// be equal except for additional fields of their objects.
fn is_part(seen: &Value, wanted: &Value) -> bool {
    match (seen, wanted) {
        (Value::Object(seen), Value::Object(wanted)) => wanted.iter().all(|(key, wanted)| {
            let seen = seen.get(key).unwrap_or(&Value::Null);
            is_part(seen, wanted)
        }),
        (Value::Array(seen), Value::Array(wanted)) => {
            seen.len() == wanted.len() && seen.iter().zip(wanted).all(|(a, b)| is_part(a, b))
        }
        (seen, wanted) => seen == wanted,
    }
}

fn compare(what: &str, seen: Option<&Value>, wanted: &Value, found: &mut Vec<String>) {
    let seen = seen.unwrap_or(&Value::Null);
    if !is_part(seen, wanted) {
        found.push(format!("{what}: {seen}\n    wanted {wanted}"));
    }
}

/// Applies a merge patch; an entry with `null` is omitted in the end.
fn merge(into: &mut Value, from: &Value) {
    match from {
        Value::Object(entries) => {
            if !into.is_object() {
                *into = json!({});
            }
            for (key, value) in entries {
                match value {
                    Value::Null => into[key] = Value::Null,
                    value => merge(&mut into[key], value),
                }
            }
        }
        // No value was given.
        Value::Null => {}
        _ => *into = from.clone(),
    }
}

/// Removes the entries that are `null`.
fn trimmed(value: Value) -> Value {
    match value {
        Value::Object(entries) => {
            let there = entries.into_iter().filter(|(_, value)| !value.is_null());
            Value::Object(there.map(|(key, value)| (key, trimmed(value))).collect())
        }
        value => value,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expected_part_of_an_object_is_found() {
        let seen = json!({ "a": { "b": 1, "c": [{ "d": 2, "e": 3 }] } });
        for wanted in [
            json!({ "a": { "b": 1 } }),
            json!({ "a": { "c": [{ "e": 3 }] }, "x": null }),
        ] {
            assert!(is_part(&seen, &wanted), "{wanted}");
        }
        for wanted in [
            json!({ "a": { "b": 2 } }),
            json!({ "a": { "c": [] } }),
            json!({ "a": null }),
            json!({ "x": {} }),
        ] {
            assert!(!is_part(&seen, &wanted), "{wanted}");
        }
    }
}
