//! `--readiness-gate`: a pod condition that is true while the pod leads. A pod with this readiness gate is Ready, and
//! so receives traffic of its Services, while its containers are ready and it leads.

use anyhow::{Context, Result};
use http::{Request, header};
use jiff::Timestamp;
use kube::Client;
use serde_json::{Value, json};
use tenure::Handle;

use super::Queue;
use super::rounds::Rounds;

/// The default condition type of `--readiness-gate`.
pub(crate) const DEFAULT_TYPE: &str = "tenure.dev/leader";

/// The condition of this candidate's pod.
pub(crate) struct Gate {
    pub(crate) client: Client,
    pub(crate) handle: Handle,
    pub(crate) namespace: String,
    pub(crate) pod: String,
    pub(crate) condition: String,
}

impl Gate {
    /// Updates the condition until the queue is closed.
    pub(crate) async fn serve(self, queue: Queue) {
        let mut rounds = Rounds::new(queue);
        let what = format!("update the readiness gate of pod {}", self.pod);
        // The time is kept if the status is unchanged, so that the API server does not write an equal object.
        let mut since = (false, Timestamp::now());
        while let Some(round) = rounds.next().await {
            let leads = self.handle.is_leading();
            if leads != since.0 {
                since = (leads, Timestamp::now());
            }
            rounds.make(round, &what, self.say(since)).await;
        }
    }

    async fn say(&self, (leads, since): (bool, Timestamp)) -> Result<()> {
        let (status, reason) = if leads {
            ("True", "Leading")
        } else {
            ("False", "NotLeading")
        };
        let condition = json!({
            "type": self.condition, "status": status, "reason": reason,
            // Conditions have whole seconds.
            "lastTransitionTime": Timestamp::from_second(since.as_second())?.to_string(),
        });
        let path = format!(
            "/api/v1/namespaces/{}/pods/{}/status",
            self.namespace, self.pod
        );
        // Merges by type, so the kubelet's conditions stay.
        let request = Request::patch(path)
            .header(
                header::CONTENT_TYPE,
                "application/strategic-merge-patch+json",
            )
            .body(
                json!({ "status": { "conditions": [condition] } })
                    .to_string()
                    .into_bytes(),
            )?;
        self.client
            .request::<Value>(request)
            .await
            .with_context(|| format!("cannot patch the status of pod {}", self.pod))?;
        Ok(())
    }
}
