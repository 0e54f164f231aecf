//! `--readiness-gate`: a condition of the pod that is true while it leads. A pod that names it among its
//! readiness gates is Ready, and so behind its Services, while its containers are ready and it leads.

use std::time::Duration;

use anyhow::{Context, Result};
use http::{Request, header};
use jiff::Timestamp;
use kube::Client;
use serde_json::{Value, json};
use tenure::Handle;

use super::{Queue, newest};

/// The type of `--readiness-gate` without a value.
pub(crate) const DEFAULT_TYPE: &str = "tenure.dev/leader";

/// How often to say it again: somebody may have changed it.
const AGAIN: Duration = Duration::from_secs(5);

/// After a failure.
const RETRY: Duration = Duration::from_secs(1);

/// The condition of the own pod.
pub(crate) struct Gate {
    pub(crate) client: Client,
    pub(crate) handle: Handle,
    pub(crate) namespace: String,
    pub(crate) pod: String,
    pub(crate) condition: String,
}

impl Gate {
    /// Keeps the condition right until there is no more news.
    pub(crate) async fn serve(self, mut queue: Queue) {
        let mut failing = false;
        // Said again with the same time, the API server has nothing to write.
        let mut since = (false, Timestamp::now());
        loop {
            let pause = if failing { RETRY } else { AGAIN };
            let shares = tokio::select! {
                news = newest(&mut queue) => match news {
                    Some((_, shares)) => shares,
                    None => return,
                },
                () = tokio::time::sleep(pause) => Vec::new(),
            };
            let leads = self.handle.is_leading();
            if leads != since.0 {
                since = (leads, Timestamp::now());
            }
            let limit = shares.iter().map(super::Share::left).min();
            let limit = limit.unwrap_or(super::PATIENCE);
            let trouble = match tokio::time::timeout(limit, self.say(since)).await {
                Ok(Ok(())) => None,
                Ok(Err(error)) => Some(format!("{error:#}")),
                Err(_) => Some("no answer in time".to_owned()),
            };
            if let Some(trouble) = trouble.as_ref().filter(|_| !failing) {
                tracing::warn!(pod = self.pod, trouble, "cannot keep the readiness gate");
            }
            failing = trouble.is_some();
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
        // Merges by type: the kubelet's conditions stay.
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
