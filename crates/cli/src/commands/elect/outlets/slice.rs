//! `--endpointslice`: the single EndpointSlice of a Service without a selector, with the leader's address.
//!
//! Invariant: a slice that a later term wrote is never changed. Every write names the version that it replaces, so an
//! outdated write fails and the outlet reads again.

use anyhow::{Context, Result};
use http::{Method, Request, header};
use kube::Client;
use serde_json::{Value, json};
use tenure::{FencingToken, Handle};

use super::Queue;
use super::rounds::Rounds;

/// The annotation with the token of the term that wrote the slice. The number of transitions would not work: it starts
/// again when the lock is deleted, and an older slice would look later than every new term.
const TOKEN: &str = "tenure.dev/fencing-token";

/// The slice that follows the leader.
pub(crate) struct Slice {
    pub(crate) client: Client,
    pub(crate) handle: Handle,
    pub(crate) namespace: String,
    pub(crate) service: String,
    pub(crate) pod: String,
    pub(crate) address: String,
    pub(crate) node: Option<String>,
}

/// Returns the name of the slice of a Service.
pub(crate) fn name_of(service: &str) -> String {
    format!("{service}-tenure")
}

impl Slice {
    /// Updates the slice until the queue is closed.
    pub(crate) async fn serve(self, queue: Queue) {
        let mut rounds = Rounds::new(queue);
        let what = format!("update the EndpointSlice of service {}", self.service);
        let mut led = false;
        while let Some(round) = rounds.next().await {
            let leading = self.handle.tenure().filter(|tenure| tenure.is_leading());
            let term = leading.map(|tenure| tenure.token().clone());
            let leads = term.is_some();
            if leads || led || round.is_loss() {
                let done = rounds.make(round, &what, self.reconcile(term)).await;
                led = leads || !done;
            }
        }
    }

    /// Adds the address of this pod while leading in this term, and removes it otherwise.
    async fn reconcile(&self, term: Option<FencingToken>) -> Result<()> {
        let name = name_of(&self.service);
        let slice = self.get(&format!("{}/{name}", self.path())).await?;
        let wrote = |slice: &Value| -> Option<FencingToken> {
            let token = slice["metadata"]["annotations"][TOKEN].as_str()?;
            token.parse().ok()
        };
        let mine = |slice: &Value| slice["endpoints"][0]["addresses"][0] == *self.address;
        match (slice, term) {
            (None, None) => Ok(()),
            (Some(slice), None) if !mine(&slice) => Ok(()),
            (Some(mut slice), None) => {
                slice["endpoints"] = json!([]);
                self.put(Some(&name), &slice).await
            }
            (Some(slice), Some(term)) if wrote(&slice).is_some_and(|by| by > term) => Ok(()),
            (Some(slice), Some(term)) if mine(&slice) && wrote(&slice).as_ref() == Some(&term) => {
                Ok(())
            }
            (slice, Some(term)) => {
                let wanted = self.wanted(slice.as_ref(), &term).await?;
                if !self.handle.is_leading() {
                    return Ok(());
                }
                self.put(slice.is_some().then_some(&name), &wanted).await
            }
        }
    }

    async fn wanted(&self, slice: Option<&Value>, term: &FencingToken) -> Result<Value> {
        let path = format!(
            "/api/v1/namespaces/{}/services/{}",
            self.namespace, self.service
        );
        let service = self.get(&path).await?;
        let service =
            service.with_context(|| format!("service {} does not exist", self.service))?;
        let ports = service["spec"]["ports"]
            .as_array()
            .cloned()
            .unwrap_or_default();
        let ports: Vec<Value> = ports.iter().map(port_of).collect();
        let mut endpoint = json!({
            "addresses": [self.address],
            "conditions": { "ready": true },
            "targetRef": { "kind": "Pod", "name": self.pod, "namespace": self.namespace },
        });
        if let Some(node) = &self.node {
            endpoint["nodeName"] = node.as_str().into();
        }
        let blank = || {
            json!({
                "apiVersion": "discovery.k8s.io/v1",
                "kind": "EndpointSlice",
                "metadata": { "name": name_of(&self.service), "namespace": self.namespace },
                "addressType": if self.address.contains(':') { "IPv6" } else { "IPv4" },
            })
        };
        let mut slice = slice.cloned().unwrap_or_else(blank);
        let metadata = &mut slice["metadata"];
        metadata["labels"]["kubernetes.io/service-name"] = self.service.as_str().into();
        metadata["labels"]["endpointslice.kubernetes.io/managed-by"] = "tenure.dev".into();
        metadata["annotations"][TOKEN] = term.to_string().into();
        slice["endpoints"] = json!([endpoint]);
        slice["ports"] = ports.into();
        Ok(slice)
    }

    async fn get(&self, path: &str) -> Result<Option<Value>> {
        let request = Request::get(path).body(Vec::new())?;
        match self.client.request(request).await {
            Ok(object) => Ok(Some(object)),
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(None),
            Err(error) => Err(error).with_context(|| format!("cannot read {path}")),
        }
    }

    async fn put(&self, name: Option<&String>, slice: &Value) -> Result<()> {
        let (method, path) = match name {
            Some(name) => (Method::PUT, format!("{}/{name}", self.path())),
            None => (Method::POST, self.path()),
        };
        let request = Request::builder()
            .method(method)
            .uri(&path)
            .header(header::CONTENT_TYPE, "application/json")
            .body(slice.to_string().into_bytes())?;
        let written = self.client.request::<Value>(request).await;
        written.with_context(|| format!("cannot write {path}"))?;
        Ok(())
    }

    fn path(&self) -> String {
        let namespace = &self.namespace;
        format!("/apis/discovery.k8s.io/v1/namespaces/{namespace}/endpointslices")
    }
}

/// Returns a port of a slice for a port of a Service. If the target port is a name, uses the number of the Service's
/// port, because the pod's number is not known.
fn port_of(port: &Value) -> Value {
    let target = &port["targetPort"];
    let number = if target.is_number() {
        target
    } else {
        &port["port"]
    };
    json!({
        "name": port["name"].as_str().unwrap_or_default(),
        "port": number,
        "protocol": port["protocol"].as_str().unwrap_or("TCP"),
    })
}
