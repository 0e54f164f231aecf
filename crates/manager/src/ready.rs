//! The gate: no controller starts before the API server is ready.

use std::time::Duration;

use kube::Config;
use kube::client::Body;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::error::{Error, chain};
use crate::tasks::after;

/// How to wait for the API server; [`api_ready`] has k3s's values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gate {
    /// Interval between attempts.
    pub period: Duration,
    /// Timeout of one attempt.
    pub timeout: Duration,
    /// Total time limit.
    pub limit: Duration,
    /// Check of `/readyz` that is excluded, because it waits for the controllers.
    pub exclude: Option<&'static str>,
}

/// Polls `/readyz` every 2 seconds for at most 15 minutes. Each attempt uses a new connection, so that a change behind a
/// load balancer is noticed.
pub fn api_ready() -> Gate {
    Gate {
        period: Duration::from_secs(2),
        timeout: Duration::from_secs(15),
        limit: Duration::from_secs(15 * 60),
        exclude: None,
    }
}

/// Readiness of the API server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Readiness {
    Waiting,
    Ready,
}

impl Gate {
    /// Polls until the API server is ready, and publishes the result.
    pub(crate) async fn wait(
        self,
        config: &Config,
        tell: &watch::Sender<Readiness>,
    ) -> Result<(), Error> {
        let end = after(self.limit);
        let mut last = String::new();
        loop {
            let tried =
                tokio::time::timeout_at(end.min(after(self.timeout)), self.ask(config.clone()));
            let answer = match tried.await {
                Ok(answer) => answer,
                // The total limit interrupted this attempt, so the previous error is more useful.
                Err(_) if Instant::now() >= end && !last.is_empty() => Err(last.clone()),
                Err(_) => {
                    let time = self.timeout.min(self.limit);
                    Err(format!("no answer within {} s", time.as_secs_f64()))
                }
            };
            match answer {
                Ok(()) => {
                    tracing::info!("the API server is ready");
                    tell.send_replace(Readiness::Ready);
                    return Ok(());
                }
                Err(why) if why != last => {
                    tracing::info!(why, "waiting for the API server");
                    last = why;
                }
                Err(_) => {}
            }
            if after(self.period) >= end {
                let limit = self.limit;
                return Err(Error::NotReady { limit, last });
            }
            tokio::time::sleep(self.period).await;
        }
    }

    /// Sends one request on a new connection.
    async fn ask(self, mut config: Config) -> Result<(), String> {
        config.default_retry = false;
        let client = tenure::work_client(config).map_err(|error| error.to_string())?;
        let exclude = self.exclude.map(|check| format!("&exclude={check}"));
        let path = format!("/readyz?verbose{}", exclude.unwrap_or_default());
        let request = http::Request::get(path).body(Body::empty());
        let request = request.map_err(|error| error.to_string())?;
        let response = client.send(request).await.map_err(|e| chain(&e))?;
        if response.status().is_success() {
            return Ok(());
        }
        let status = response.status();
        let body = http_body_util::BodyExt::collect(response.into_body()).await;
        let body = body.map(|body| body.to_bytes()).unwrap_or_default();
        let failed: Vec<String> = String::from_utf8_lossy(&body)
            .lines()
            .filter(|line| line.starts_with("[-]"))
            .map(str::to_owned)
            .collect();
        Err(format!("{status} {}", failed.join(", "))
            .trim_end()
            .to_owned())
    }
}
