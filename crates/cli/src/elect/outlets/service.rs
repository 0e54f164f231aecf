//! `--service`: a Service that selects the leader's pod by name.
//!
//! The pod gets a label with its own name, and the Service a selector for it: there is never a moment
//! with two pods behind the Service. It fights with tools that own the Service's selector.

use std::time::Duration;

use anyhow::{Context, Result};
use http::{Request, header};
use kube::Client;
use serde_json::{Value, json};
use tenure::Handle;

use super::{Queue, newest};

/// The label with the name of the pod, and the key of the selector.
pub(crate) const CANDIDATE: &str = "tenure.dev/candidate";

const AGAIN: Duration = Duration::from_secs(5);

/// The Service that follows the leader.
pub(crate) struct Service {
    pub(crate) client: Client,
    pub(crate) handle: Handle,
    pub(crate) namespace: String,
    pub(crate) pod: String,
    pub(crate) name: String,
}

impl Service {
    /// Keeps the selector right until there is no more news. A lost term leaves it alone: the next
    /// leader replaces it.
    pub(crate) async fn serve(self, mut queue: Queue) {
        let mut failing = false;
        loop {
            tokio::select! {
                news = newest(&mut queue) => match news {
                    Some((_, shares)) => drop(shares),
                    None => return,
                },
                () = tokio::time::sleep(AGAIN) => {}
            }
            if !self.handle.is_leading() {
                continue;
            }
            let done = tokio::time::timeout(AGAIN, self.select()).await;
            let trouble = match done {
                Ok(Ok(())) => None,
                Ok(Err(error)) => Some(format!("{error:#}")),
                Err(_) => Some("no answer in time".to_owned()),
            };
            if let Some(trouble) = trouble.as_ref().filter(|_| !failing) {
                tracing::warn!(service = self.name, trouble, "cannot route to the leader");
            }
            failing = trouble.is_some();
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
