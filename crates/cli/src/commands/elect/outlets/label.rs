//! `--label`: the leader's pod has a label that a Service can select.
//!
//! This is a controller: it checks at every change and every few seconds, so that the label of a dead leader is
//! removed. A leader removes the label from other pods before it sets its own, so at a hand-over no pod has it for a
//! moment. Two pods have it only if a request of a former leader arrives late; the annotation `tenure.dev/term` shows
//! which one is newer.

use std::time::Duration;

use anyhow::{Context, Result};
use http::{Request, header};
use kube::Client;
use serde_json::{Value, json};
use tenure::Handle;

use super::Queue;
use super::rounds::Rounds;

/// The default key of `--label`.
pub(crate) const DEFAULT_KEY: &str = "tenure.dev/leader";

/// The annotation with the term in which a pod got the label.
const TERM: &str = "tenure.dev/term";

/// The label of the leader.
pub(crate) struct Label {
    pub(crate) client: Client,
    pub(crate) handle: Handle,
    pub(crate) namespace: String,
    pub(crate) pod: String,
    pub(crate) key: String,
    /// The values for the leader and for all other pods.
    pub(crate) values: (String, String),
    /// Whether the leader steps down if the label cannot be set.
    pub(crate) required: bool,
}

impl Label {
    /// Updates the labels until the queue is closed.
    pub(crate) async fn serve(self, queue: Queue) {
        let mut rounds = Rounds::new(queue);
        let what = format!("update the leader label of pod {}", self.pod);
        // Once the label is set, a failure of a later check is not a reason to step down.
        let mut set = false;
        while let Some(round) = rounds.next().await {
            let done = rounds.make(round, &what, self.reconcile()).await;
            let leading = self.handle.is_leading();
            set = leading && (done || set);
            if self.required && leading && !set {
                tracing::warn!(
                    "stepping down: cannot set the leader label, and --label-required is set"
                );
                self.handle.step_down(Duration::from_secs(30));
            }
        }
    }

    /// While leading, removes the label from other pods; then updates this candidate's pod.
    async fn reconcile(&self) -> Result<()> {
        let (yes, no) = (&self.values.0, &self.values.1);
        let labelled = self.labelled().await?;
        let value = |pod: &Value| {
            pod["metadata"]["labels"][&self.key]
                .as_str()
                .map(str::to_owned)
        };
        let is_own = |pod: &&Value| pod["metadata"]["name"] == *self.pod;
        let mut cleared = Ok(());
        for pod in labelled.iter().filter(|pod| !is_own(pod)) {
            // The leader is checked before each pod, because a new leader may have labelled itself in the meantime.
            if value(pod).as_ref() == Some(yes) && self.handle.is_leading() {
                let name = pod["metadata"]["name"].as_str().unwrap_or_default();
                cleared = cleared.and(self.patch(name, no, None).await);
            }
        }
        let leading = self.handle.tenure().filter(|tenure| tenure.is_leading());
        let wanted = if leading.is_some() { yes } else { no };
        let own = labelled.iter().find(is_own);
        if own.and_then(value).as_ref() != Some(wanted) {
            let term = leading.map(|tenure| tenure.transitions().to_string());
            self.patch(&self.pod, wanted, term).await?;
        }
        cleared
    }

    async fn labelled(&self) -> Result<Vec<Value>> {
        let selector = self.key.replace('/', "%2F");
        let path = format!("{}?labelSelector={selector}", self.path());
        let list: Value = self
            .client
            .request(Request::get(path).body(Vec::new())?)
            .await
            .context("cannot list pods")?;
        Ok(list["items"].as_array().cloned().unwrap_or_default())
    }

    async fn patch(&self, pod: &str, value: &str, term: Option<String>) -> Result<()> {
        let mut metadata = json!({ "labels": { &self.key: value } });
        if let Some(term) = term {
            metadata["annotations"] = json!({ TERM: term });
        }
        let request = Request::patch(format!("{}/{pod}", self.path()))
            .header(header::CONTENT_TYPE, "application/merge-patch+json")
            .body(json!({ "metadata": metadata }).to_string().into_bytes())?;
        match self.client.request::<Value>(request).await {
            Ok(_) => Ok(()),
            // A deleted pod of another candidate has no label either.
            Err(kube::Error::Api(status)) if status.code == 404 && pod != self.pod => Ok(()),
            Err(error) => Err(error).with_context(|| format!("cannot patch pod {pod}")),
        }
    }

    fn path(&self) -> String {
        format!("/api/v1/namespaces/{}/pods", self.namespace)
    }
}
