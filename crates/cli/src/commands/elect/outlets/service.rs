//! `--service`: a Service that selects the leader's pod by name.
//!
//! The pod gets a label with its own name, and the Service gets a selector for this label. There is never a moment with
//! two pods behind the Service. This conflicts with tools that manage the Service's selector.

use anyhow::{Context, Result};
use http::{Request, header};
use kube::Client;
use serde_json::{Value, json};
use tenure::Handle;

use super::Queue;
use super::rounds::Rounds;

/// The label with the name of the pod, and the key of the selector.
pub(crate) const CANDIDATE: &str = "tenure.dev/candidate";

/// The Service that follows the leader.
pub(crate) struct Service {
    pub(crate) client: Client,
    pub(crate) handle: Handle,
    pub(crate) namespace: String,
    pub(crate) pod: String,
    pub(crate) name: String,
}

impl Service {
    /// Updates the selector until the queue is closed. The selector is not changed after a loss, because the next
    /// leader replaces it.
    pub(crate) async fn serve(self, queue: Queue) {
        let mut rounds = Rounds::new(queue);
        let what = format!("route service {} to the leader", self.name);
        while let Some(round) = rounds.next().await {
            if self.handle.is_leading() {
                rounds.make(round, &what, self.select()).await;
            }
        }
    }

    async fn select(&self) -> Result<()> {
        let path = format!(
            "/api/v1/namespaces/{}/services/{}",
            self.namespace, self.name
        );
        let service: Value = self
            .client
            .request(Request::get(&path).body(Vec::new())?)
            .await
            .with_context(|| format!("cannot read service {}", self.name))?;
        if service["spec"]["selector"][CANDIDATE] == *self.pod {
            return Ok(());
        }
        let label = json!({ "metadata": { "labels": { CANDIDATE: self.pod } } });
        let pod = format!("/api/v1/namespaces/{}/pods/{}", self.namespace, self.pod);
        self.patch(&pod, &label).await?;
        if self.handle.is_leading() {
            let selector = json!({ "spec": { "selector": { CANDIDATE: self.pod } } });
            self.patch(&path, &selector).await?;
        }
        Ok(())
    }

    async fn patch(&self, path: &str, patch: &Value) -> Result<()> {
        let request = Request::patch(path)
            .header(header::CONTENT_TYPE, "application/merge-patch+json")
            .body(patch.to_string().into_bytes())?;
        self.client
            .request::<Value>(request)
            .await
            .with_context(|| format!("cannot patch {path}"))?;
        Ok(())
    }
}
