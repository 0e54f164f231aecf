//! Events about elections, as `kubectl describe lease` shows them.

use http::{Method, Request, header};
use kube::Client;
use serde_json::{Value, json};
use tenure_core::{FencingToken, WallTime};
use tenure_lock::ObjectRef;

/// The default source of Events.
const COMPONENT: &str = "tenure";

/// An Event with client-go's text: `<identity> became leader`. Thousands of Events may wait to be posted, so an Event
/// contains nothing that its election can provide at that time.
pub(crate) struct Note {
    /// Index of the lock's object that it is about.
    pub(crate) object: usize,
    pub(crate) what: &'static str,
    /// Reason for the end of a term, from [`tenure_core::StopReason::as_str`].
    pub(crate) reason: Option<&'static str>,
    pub(crate) token: FencingToken,
    /// End of the lease of the previous holder, if it had not released.
    pub(crate) replaced: Option<WallTime>,
    pub(crate) at: WallTime,
}

impl Note {
    /// Posts the Event.
    pub(crate) async fn post(
        self,
        client: Client,
        about: ObjectRef,
        identity: &str,
        source: Option<&str>,
    ) -> Result<(), kube::Error> {
        let path = format!("/api/v1/namespaces/{}/events", about.namespace);
        let request = Request::builder()
            .method(Method::POST)
            .uri(path)
            .header(header::CONTENT_TYPE, "application/json")
            .body(self.body(&about, identity, source).to_string().into_bytes())
            .map_err(kube::Error::HttpError)?;
        client.request::<Value>(request).await.map(drop)
    }

    fn body(&self, about: &ObjectRef, identity: &str, source: Option<&str>) -> Value {
        let seconds = rfc3339(self.at.whole_seconds(), 0);
        // The instant in the name makes Events unique, as in client-go's recorder.
        let name = format!("{}.{:x}", about.name, self.at.as_micros());
        let mut annotations = json!({ "tenure.dev/fencing-token": self.token.as_str() });
        if let Some(reason) = self.reason {
            annotations["tenure.dev/reason"] = reason.into();
        }
        if let Some(end) = self.replaced {
            annotations["tenure.dev/previous-lease-end"] = rfc3339(end, 6).into();
        }
        json!({
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {
                "name": name,
                "namespace": about.namespace,
                "annotations": annotations,
            },
            "involvedObject": {
                "apiVersion": about.api_version,
                "kind": about.kind,
                "namespace": about.namespace,
                "name": about.name,
                "uid": about.uid.as_deref().unwrap_or_default(),
                "resourceVersion": about.resource_version.as_deref().unwrap_or_default(),
            },
            "reason": "LeaderElection",
            "message": format!("{identity} {}", self.what),
            "type": "Normal",
            "source": { "component": source.unwrap_or(COMPONENT) },
            "reportingComponent": source.unwrap_or(COMPONENT),
            "reportingInstance": identity.chars().take(128).collect::<String>(),
            "firstTimestamp": seconds,
            "lastTimestamp": seconds,
            "count": 1,
        })
    }
}

fn rfc3339(time: WallTime, precision: u8) -> String {
    let time = jiff::Timestamp::from_microsecond(time.as_micros()).unwrap_or_default();
    format!("{time:.precision$}", precision = usize::from(precision))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn event_text_equals_that_of_client_go() {
        let about = ObjectRef {
            api_version: "coordination.k8s.io/v1".into(),
            kind: "Lease".into(),
            namespace: "ns".into(),
            name: "x".into(),
            uid: Some("u".into()),
            resource_version: Some("7".into()),
        };
        let note = Note {
            object: 0,
            what: "became leader",
            reason: None,
            token: FencingToken::from(7),
            replaced: Some(WallTime::from_micros(1_600_000_000_000_000)),
            at: WallTime::from_micros(1_600_000_000_250_000),
        };
        let body = note.body(&about, "baz", None);
        assert_eq!(body["source"]["component"], "tenure");
        let named = note.body(&about, "baz", Some("x/baz"));
        assert_eq!(named["source"]["component"], "x/baz");
        assert_eq!(body["message"], "baz became leader");
        assert_eq!(body["reason"], "LeaderElection");
        assert_eq!(body["type"], "Normal");
        assert_eq!(body["involvedObject"]["kind"], "Lease");
        assert_eq!(body["firstTimestamp"], "2020-09-13T12:26:40Z");
        assert_eq!(body["metadata"]["name"], "x.5af3107a7d090");
        assert!(body["metadata"]["annotations"]["tenure.dev/reason"].is_null());
        assert_eq!(
            body["metadata"]["annotations"]["tenure.dev/previous-lease-end"],
            "2020-09-13T12:26:40.000000Z"
        );
    }
}
