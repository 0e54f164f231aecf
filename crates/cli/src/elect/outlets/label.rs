//! `--label`: the leader's pod carries a label that a Service can select.
//!
//! A controller and no one-shot: it looks again at every change and every few seconds, so that a label
//! left behind by a leader that died goes away. Whoever leads takes it from the others before it has it
//! itself: for a moment at a hand-over no pod has it. Two have it only if a request of a leader that has
//! lost its lease arrives late; the annotation `tenure.dev/term` tells which is newer.

use std::time::Duration;

use anyhow::{Context, Result};
use http::{Request, header};
use kube::Client;
use serde_json::{Value, json};
use tenure::Handle;

use super::Queue;
use super::rounds::Rounds;

/// The key of `--label` without a value.
pub(crate) const DEFAULT_KEY: &str = "tenure.dev/leader";

/// The annotation that says in which term a pod got the label.
const TERM: &str = "tenure.dev/term";

/// The label of the leader.
pub(crate) struct Label {
    pub(crate) client: Client,
    pub(crate) handle: Handle,
    pub(crate) namespace: String,
    pub(crate) pod: String,
    pub(crate) key: String,
    /// The values of the leader and of everybody else.
    pub(crate) values: (String, String),
    /// Leadership is given up if the label cannot be set.
    pub(crate) required: bool,
}

impl Label {
    /// Keeps the labels right until there is no more news.
    pub(crate) async fn serve(self, queue: Queue) {
        let mut rounds = Rounds::new(queue);
        let what = format!("keep the leader label of pod {}", self.pod);
        // Once set, what keeps it from being looked at again is no reason to go.
        let mut set = false;
        while let Some(round) = rounds.next().await {
            let done = rounds.make(round, &what, self.reconcile()).await;
            let leading = self.handle.is_leading();
            set = leading && (done || set);
            if self.required && leading && !set {
                tracing::warn!("giving up leadership, as --label-required asks");
                self.handle.step_down(Duration::from_secs(30));
            }
        }
    }

    /// While leading, everybody who still says that it leads; then the own pod.
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
            // Looked at before each: whoever leads now may have labelled itself meanwhile.
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
            // A peer that has gone has no label either.
            Err(kube::Error::Api(status)) if status.code == 404 && pod != self.pod => Ok(()),
            Err(error) => Err(error).with_context(|| format!("cannot patch pod {pod}")),
        }
    }

    fn path(&self) -> String {
        format!("/api/v1/namespaces/{}/pods", self.namespace)
    }
}
