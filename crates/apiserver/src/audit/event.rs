//! Serializes an event as a line of JSON. The writer thread does this, so that requests do not wait for it.

use std::sync::Arc;

use bytes::Bytes;
use jiff::Timestamp;
use serde::Serialize;
use serde_json::{Map, Value, json};

use super::policy::{Level, Stage};
use crate::auth::User;
use crate::protobuf;
use crate::request::{RequestInfo, Route};
use crate::timestamp::format_micros;

/// The recorded data of a request at one stage.
pub(super) struct Event {
    pub(super) request: Arc<RequestParts>,
    pub(super) stage: Stage,
    pub(super) time: Timestamp,
    pub(super) level: Level,
    pub(super) omit_managed_fields: bool,
    pub(super) user: Option<Arc<User>>,
    pub(super) impersonated: Option<Arc<User>>,
    /// Whether the request was allowed, and the reason.
    pub(super) decision: Option<(bool, Arc<str>)>,
    pub(super) outcome: Option<Outcome>,
    pub(super) body: Option<RequestBody>,
}

/// The parts of a request that do not change between its stages.
pub(super) struct RequestParts {
    pub(super) id: String,
    pub(super) uri: String,
    pub(super) info: RequestInfo,
    pub(super) source_ips: Vec<String>,
    pub(super) user_agent: String,
    pub(super) content_type: String,
    pub(super) received: Timestamp,
}

/// The result of a request.
#[derive(Clone, Debug, Default)]
pub(super) struct Outcome {
    /// Status code; `None` if the connection ended before the response was ready.
    pub(super) code: Option<u16>,
    /// The `Status` that the client received, if it received one.
    pub(super) status: Option<Bytes>,
    /// Replaces the message of the status.
    pub(super) message: Option<String>,
    /// Metadata of the created object.
    pub(super) created: Option<Created>,
}

/// Metadata of the created object, from the response.
#[derive(Clone, Debug, Default, serde::Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Created {
    pub(super) name: String,
    pub(super) uid: String,
    pub(super) resource_version: String,
}

/// The body of a request.
#[derive(Clone, Debug)]
pub(super) enum RequestBody {
    Whole(Bytes),
    /// The body exceeds the limit of recorded bodies.
    TooLarge,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Line<'a> {
    kind: &'static str,
    api_version: &'static str,
    level: &'static str,
    #[serde(rename = "auditID")]
    audit_id: &'a str,
    stage: &'static str,
    #[serde(rename = "requestURI")]
    request_uri: &'a str,
    verb: &'static str,
    user: Value,
    #[serde(skip_serializing_if = "Option::is_none")]
    impersonated_user: Option<Value>,
    #[serde(rename = "sourceIPs", skip_serializing_if = "<[String]>::is_empty")]
    source_ips: &'a [String],
    #[serde(skip_serializing_if = "str::is_empty")]
    user_agent: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    object_ref: Option<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    response_status: Option<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    request_object: Option<Value>,
    request_received_timestamp: String,
    stage_timestamp: String,
    #[serde(skip_serializing_if = "Map::is_empty")]
    annotations: Map<String, Value>,
}

impl Event {
    /// Returns the approximate memory of the event in bytes.
    pub(super) fn size(&self) -> usize {
        let body = match &self.body {
            Some(RequestBody::Whole(bytes)) => bytes.len(),
            _ => 0,
        };
        let status = self.outcome.as_ref().and_then(|o| o.status.as_ref());
        1_024 + self.request.uri.len() + body + status.map_or(0, Bytes::len)
    }

    /// Appends the line without the newline character.
    pub(super) fn write(&self, out: &mut Vec<u8>) {
        let request = self.request.as_ref();
        let mut annotations = Map::new();
        if let Some((allowed, reason)) = &self.decision {
            let decision = if *allowed { "allow" } else { "forbid" };
            annotations.insert("authorization.k8s.io/decision".into(), json!(decision));
            annotations.insert("authorization.k8s.io/reason".into(), json!(**reason));
        }
        if let Some(RequestBody::TooLarge) = &self.body {
            annotations.insert("audit.k8s.io/truncated".into(), json!("true"));
        }
        let line = Line {
            kind: "Event",
            api_version: "audit.k8s.io/v1",
            level: self.level.name(),
            audit_id: &request.id,
            stage: self.stage.name(),
            request_uri: &request.uri,
            verb: request.info.verb.as_str(),
            user: self.user.as_deref().map_or_else(|| json!({}), user),
            impersonated_user: self.impersonated.as_deref().map(user),
            source_ips: &request.source_ips,
            user_agent: &request.user_agent,
            object_ref: self.object_ref(),
            response_status: self.outcome.as_ref().map(Outcome::to_value),
            request_object: self.request_object(),
            request_received_timestamp: micros(request.received),
            stage_timestamp: micros(self.time),
            annotations,
        };
        let start = out.len();
        if serde_json::to_writer(&mut *out, &line).is_err() {
            out.truncate(start);
        }
    }

    fn object_ref(&self) -> Option<Value> {
        let Route::Resource(path) = &self.request.info.route else {
            return None;
        };
        let created = self.outcome.as_ref().and_then(|o| o.created.as_ref());
        let created = created.cloned().unwrap_or_default();
        let name = [&path.name, &path.selected_name, &created.name];
        let name = name.into_iter().find(|name| !name.is_empty());
        let members = [
            ("resource", path.resource.as_str()),
            ("namespace", &path.namespace),
            ("name", name.map_or("", String::as_str)),
            ("uid", &created.uid),
            ("apiGroup", &path.group),
            ("apiVersion", &path.version),
            ("resourceVersion", &created.resource_version),
            ("subresource", &path.subresource),
        ];
        let members = members.into_iter().filter(|(_, text)| !text.is_empty());
        Some(Value::Object(
            members
                .map(|(key, text)| (key.to_owned(), json!(text)))
                .collect(),
        ))
    }

    fn request_object(&self) -> Option<Value> {
        let Some(RequestBody::Whole(bytes)) = &self.body else {
            return None;
        };
        let text = || std::str::from_utf8(bytes).ok();
        let mut value: Value = match self.request.content_type.as_str() {
            "application/vnd.kubernetes.protobuf" => protobuf::decode(bytes).ok()?.value,
            yaml if yaml.ends_with("yaml") => serde_saphyr::from_str(text()?).ok()?,
            _ => serde_json::from_slice(bytes).ok()?,
        };
        if self.omit_managed_fields
            && let Some(Value::Object(metadata)) = value.get_mut("metadata")
        {
            metadata.remove("managedFields");
        }
        Some(value)
    }
}

impl Outcome {
    fn to_value(&self) -> Value {
        let sent = self.status.as_ref();
        let sent = sent.and_then(|bytes| serde_json::from_slice::<Value>(bytes).ok());
        let sent = sent.filter(|status| status.get("kind") == Some(&json!("Status")));
        let mut status = json!({ "metadata": {} });
        for member in ["status", "message", "reason", "details"] {
            if let Some(value) = sent.as_ref().and_then(|sent| sent.get(member)) {
                status[member] = value.clone();
            }
        }
        if let Some(message) = &self.message {
            status["status"] = json!("Failure");
            status["message"] = json!(message);
        }
        if let Some(code) = self.code {
            status["code"] = json!(code);
        }
        status
    }
}

fn user(user: &User) -> Value {
    let mut out = json!({ "username": user.name, "groups": user.groups });
    if !user.uid.is_empty() {
        out["uid"] = json!(user.uid);
    }
    if !user.extra.is_empty() {
        out["extra"] = json!(user.extra);
    }
    out
}

fn micros(time: Timestamp) -> String {
    format_micros(time.as_second(), time.subsec_nanosecond()).unwrap_or_default()
}
