//! `--webhook`: every change is posted to a URL, in order and with the term, so that a receiver can drop late changes.

use std::str::FromStr;
use std::time::Duration;

use http::{Request, Uri, header};
use kube::client::Body;
use kube::{Client, Config};

use super::{ElectionChange, Notice, Queue};

/// Timeout of one attempt.
const TIMEOUT: Duration = Duration::from_secs(5);

/// Number of attempts for an unreachable receiver, with increasing delays.
const ATTEMPTS: u32 = 6;

const FIRST_PAUSE: Duration = Duration::from_millis(500);

/// The URL to post to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Target {
    base: Uri,
    path: String,
    shown: String,
}

impl FromStr for Target {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong =
            || format!("{text:?} is not a URL: expected http://host/path or https://host/path");
        let uri: Uri = text.parse().map_err(|_| wrong())?;
        let (Some("http" | "https"), Some(authority)) = (uri.scheme_str(), uri.authority()) else {
            return Err(wrong());
        };
        let base = Uri::builder()
            .scheme(uri.scheme_str().unwrap_or("http"))
            .authority(authority.as_str())
            .path_and_query("/")
            .build()
            .map_err(|_| wrong())?;
        let path = uri.path_and_query().map_or("/", |path| path.as_str());
        Ok(Self {
            base,
            path: path.to_owned(),
            shown: text.to_owned(),
        })
    }
}

impl Target {
    /// Sends a GET to the URL. Any status other than 2xx is an error.
    ///
    /// Creates a client each time, so that a periodic check sees the same as a new client.
    pub(crate) async fn get(&self) -> Result<(), String> {
        let client = Client::try_from(Config::new(self.base.clone()));
        let client = client.map_err(|error| tenure::plain(&error))?;
        let request = Request::get(&self.path).body(Body::empty());
        let request = request.map_err(|error| error.to_string())?;
        let answer = client.send(request).await;
        let status = answer
            .map_err(|error| format!("{}: {}", self.shown, tenure::plain(&error)))?
            .status();
        let good = status.is_success().then_some(());
        good.ok_or_else(|| format!("{} answered {status}", self.shown))
    }

    /// Posts until the queue is closed. The release does not wait for a receiver: its share of a term is dropped before
    /// the first attempt.
    pub(crate) async fn serve(self, mut queue: Queue) {
        let client = match Client::try_from(Config::new(self.base.clone())) {
            Ok(client) => client,
            Err(error) => {
                let error = tenure::plain(&error);
                tracing::warn!(url = self.shown, error, "the webhook cannot be used");
                return;
            }
        };
        while let Some(mut change) = queue.recv().await {
            change.term = None;
            if change.notice != Notice::Started {
                self.deliver(&client, &change).await;
            }
        }
    }

    async fn deliver(&self, client: &Client, change: &ElectionChange) {
        let mut pause = FIRST_PAUSE;
        for attempt in 1..=ATTEMPTS {
            let why = match tokio::time::timeout(TIMEOUT, self.post(client, change)).await {
                Ok(Ok(())) => return,
                Ok(Err(why)) => why,
                Err(_) => "no answer in time".to_owned(),
            };
            if attempt == ATTEMPTS {
                tracing::warn!(
                    url = self.shown,
                    why,
                    "the webhook still fails; not retrying"
                );
                return;
            }
            tracing::debug!(url = self.shown, why, "the webhook failed");
            tokio::time::sleep(pause).await;
            pause *= 2;
        }
    }

    async fn post(&self, client: &Client, change: &ElectionChange) -> Result<(), String> {
        let mut body = serde_json::to_value(&change.answer).map_err(|error| error.to_string())?;
        body["event"] = serde_json::json!(change.notice);
        body["previous"] = change.previous.clone().into();
        let request = Request::post(&self.path)
            .header(header::CONTENT_TYPE, "application/json")
            .header("X-Tenure-Term", change.answer.term.unwrap_or_default())
            .body(Body::from(body.to_string().into_bytes()))
            .map_err(|error| error.to_string())?;
        let answer = client.send(request).await.map_err(|e| tenure::plain(&e))?;
        let status = answer.status();
        status
            .is_success()
            .then_some(())
            .ok_or_else(|| status.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn webhook_urls_are_parsed() {
        let target: Target = "http://localhost:9000/hook?x=1".parse().unwrap();
        assert_eq!(target.base, "http://localhost:9000/");
        assert_eq!(target.path, "/hook?x=1");
        for bad in ["localhost:9000", "ftp://x/", "", "/path"] {
            assert!(bad.parse::<Target>().is_err(), "{bad}");
        }
    }
}
