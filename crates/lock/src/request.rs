//! The three requests of a lock, and those of members. Each is sent once.

use std::borrow::Cow;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use http::{Method, Request, header};
use http_body_util::{BodyExt as _, Limited};
use kube::Client;
use kube::client::Body;
use serde_json::Value;
use tenure_core::Version;

use crate::error::{Doubt, Error, Verb};
use crate::lean::Lean;
use crate::object::ObjectName;
use crate::words::in_words;

/// Limit of the bytes of a list. A longer response is not read to its end.
const LONGEST_LIST: usize = 4 << 20;

/// Connection to the API server.
pub(crate) struct Wire {
    client: Client,
    /// Whether the last response came over a connection that is shared by many requests.
    shared: AtomicBool,
}

impl Wire {
    pub(crate) fn new(client: Client) -> Self {
        let shared = AtomicBool::new(false);
        Self { client, shared }
    }

    pub(crate) fn is_shared(&self) -> bool {
        self.shared.load(Ordering::Relaxed)
    }
}

/// kube's client has no `Debug`.
impl std::fmt::Debug for Wire {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Wire")
    }
}

/// Reads an object; `None` if the API server reports that it does not exist.
pub(crate) async fn get(wire: &Wire, object: &ObjectName) -> Result<Option<Value>, Error> {
    match send(wire, Verb::Get, object, None).await? {
        (200..300, body) => decode(Verb::Get, object, &body.text()).map(Some),
        (404, body) => match Error::from_answer(Verb::Get, object, 404, &body.text()) {
            Error::Refused { .. } => Ok(None),
            error => Err(error),
        },
        (code, body) => Err(Error::from_answer(Verb::Get, object, code, &body.text())),
    }
}

/// Creates an object and returns it as stored.
pub(crate) async fn create(wire: &Wire, object: &ObjectName, body: String) -> Result<Value, Error> {
    write(wire, Verb::Create, object, body).await
}

/// Replaces an object and returns it as stored. The body must contain uid and resourceVersion.
pub(crate) async fn update(wire: &Wire, object: &ObjectName, body: String) -> Result<Value, Error> {
    write(wire, Verb::Update, object, body).await
}

/// Same as [`update`], but the caller must [`decode`] the response.
pub(crate) async fn update_text(
    wire: &Wire,
    object: &ObjectName,
    body: String,
) -> Result<ResponseBody, Error> {
    write_text(wire, Verb::Update, object, body).await
}

/// Lists objects of the same kind and namespace as `object`, and returns the response. `query` selects them.
pub(crate) async fn list(
    wire: &Wire,
    object: &ObjectName,
    query: &str,
) -> Result<ResponseBody, Error> {
    let path = format!("{}?{query}", object.resource().path(object.namespace()));
    let request = Request::get(path);
    match send_request(wire, Verb::List, object, request, None).await? {
        (200..300, body) => Ok(body),
        (code, body) => Err(Error::from_answer(Verb::List, object, code, &body.text())),
    }
}

/// Deletes an object at this version.
pub(crate) async fn delete(
    wire: &Wire,
    object: &ObjectName,
    version: &Version,
) -> Result<(), Error> {
    let body = serde_json::json!({
        "apiVersion": "v1",
        "kind": "DeleteOptions",
        "preconditions": {
            "uid": *version.uid,
            "resourceVersion": version.revision.to_string(),
        },
    });
    write_text(wire, Verb::Delete, object, body.to_string())
        .await
        .map(drop)
}

/// The body of a response.
pub(crate) struct ResponseBody(Bytes);

impl ResponseBody {
    /// Returns the body as text, without a copy if it is valid UTF-8.
    pub(crate) fn text(&self) -> Cow<'_, str> {
        String::from_utf8_lossy(&self.0)
    }
}

async fn write(wire: &Wire, verb: Verb, object: &ObjectName, body: String) -> Result<Value, Error> {
    let answer = write_text(wire, verb, object, body).await?;
    decode(verb, object, &answer.text())
}

async fn write_text(
    wire: &Wire,
    verb: Verb,
    object: &ObjectName,
    body: String,
) -> Result<ResponseBody, Error> {
    match send(wire, verb, object, Some(body)).await? {
        (200..300, body) => Ok(body),
        (code, body) => Err(Error::from_answer(verb, object, code, &body.text())),
    }
}

/// Sends one request for an object, or for all of its kind in the namespace.
async fn send(
    wire: &Wire,
    verb: Verb,
    object: &ObjectName,
    body: Option<String>,
) -> Result<(u16, ResponseBody), Error> {
    let all = || object.resource().path(object.namespace());
    let (method, path) = match verb {
        Verb::Get => (Method::GET, object.path()),
        Verb::List => (Method::GET, all()),
        Verb::Create => (Method::POST, all()),
        Verb::Update => (Method::PUT, object.path()),
        Verb::Delete => (Method::DELETE, object.path()),
    };
    let request = Request::builder().method(method).uri(path);
    send_request(wire, verb, object, request, body).await
}

/// Sends one request. The HTTP status is read from the response and not from kube's error, because kube's error hides
/// the status if the body contains no code.
async fn send_request(
    wire: &Wire,
    verb: Verb,
    object: &ObjectName,
    request: http::request::Builder,
    body: Option<String>,
) -> Result<(u16, ResponseBody), Error> {
    let failed = |error| Error::from_client(verb, object, error);
    let request = request.header(header::ACCEPT, "application/json");
    let request = match body {
        None => request.body(Body::empty()),
        Some(body) => request
            .header(header::CONTENT_TYPE, "application/json")
            .body(Body::from(body.into_bytes())),
    };
    let request = request.map_err(|error| failed(kube::Error::HttpError(error)))?;
    let answer = wire.client.send(request).await.map_err(failed)?;
    let shared = answer.version() == http::Version::HTTP_2;
    wire.shared.store(shared, Ordering::Relaxed);
    let code = answer.status().as_u16();
    let body = answer.into_body();
    let body = match verb {
        Verb::List => read_limited(body, verb, object).await?,
        _ => body.collect().await.map_err(failed)?.to_bytes(),
    };
    Ok((code, ResponseBody(body)))
}

async fn read_limited(body: Body, verb: Verb, object: &ObjectName) -> Result<Bytes, Error> {
    let read = Limited::new(body, LONGEST_LIST).collect().await;
    let undecodable = |error: Box<dyn std::error::Error + Send + Sync>| {
        Error::unknown(verb, object, Doubt::Undecodable(in_words(&*error)))
    };
    Ok(read.map_err(undecodable)?.to_bytes())
}

/// Parses the object in a response.
pub(crate) fn decode(verb: Verb, object: &ObjectName, body: &str) -> Result<Value, Error> {
    let undecodable = |why| Error::unknown(verb, object, Doubt::Undecodable(why));
    let Lean(value) = serde_json::from_str(body).map_err(|error| undecodable(error.to_string()))?;
    if crate::object::version(&value).is_none() {
        return Err(undecodable("no uid or no resourceVersion".to_owned()));
    }
    Ok(value)
}
