//! The audit data of one request, collected while the pipeline handles it.
//!
//! Invariant: every request that the policy selects is recorded. This includes requests whose connection ends before
//! the response is ready, because they may have taken effect.

use std::net::IpAddr;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};

use bytes::Bytes;
use futures_util::{FutureExt as _, StreamExt as _};
use http::header::{AUTHORIZATION, CONTENT_TYPE, USER_AGENT};
use http::{HeaderMap, HeaderName, HeaderValue, Request, Response};
use http_body_util::{BodyExt as _, BodyStream, Full, StreamBody};
use hyper::body::{Body as HttpBody, Frame, SizeHint};
use jiff::Timestamp;

use super::Audit;
use super::event::{Created, Event, Outcome, RequestBody, RequestParts};
use super::policy::{Level, Stage, Verdict};
use crate::auth::{Decision, User};
use crate::request::{RequestInfo, Verb};
use crate::respond::Body;

const AUDIT_ID: HeaderName = HeaderName::from_static("audit-id");
/// Maximum length of an id that the client chooses.
const MOST_ID: usize = 64;
/// Maximum length of a recorded user agent.
const MOST_USER_AGENT: usize = 1_024;
/// Maximum number of recorded proxy addresses.
const MOST_PROXIES: usize = 16;
/// Maximum size of a recorded request body in bytes.
const MOST_BODY: usize = 256 << 10;
/// Maximum size of a response that is parsed for a status or the name of a created object.
const MOST_RESPONSE: u64 = 4 << 20;
/// Maximum size of a recorded status in bytes.
const MOST_STATUS: usize = 16 << 10;

/// The trail of one request. It does nothing if auditing is disabled.
#[derive(Default)]
pub(crate) struct Trail(Option<Box<Recording>>);

struct Recording {
    audit: Arc<Audit>,
    request: Arc<RequestParts>,
    /// Unset until the user is known.
    verdict: Option<Verdict>,
    user: Option<Arc<User>>,
    impersonated: Option<Arc<User>>,
    decision: Option<(bool, Arc<str>)>,
    copy: Arc<BodyCopy>,
    /// The scheme of the credentials, for failed authentications.
    attempted: &'static str,
    outcome: Option<Outcome>,
    complete: bool,
}

impl Trail {
    /// Starts the trail of a request from this address.
    pub(crate) fn begin<B>(
        audit: Option<&Arc<Audit>>,
        address: Option<IpAddr>,
        request: &Request<B>,
    ) -> Self {
        Self(audit.map(|audit| Box::new(Recording::new(audit, address, request))))
    }

    /// Wraps the request body, so that a copy can be recorded.
    pub(crate) fn tee<B>(&self, body: B) -> Tee<B> {
        let copy = self.0.as_ref().map(|recording| Arc::clone(&recording.copy));
        Tee { inner: body, copy }
    }

    /// Records the authenticated user.
    pub(crate) fn authenticated(&mut self, user: &User) {
        if let Some(recording) = &mut self.0 {
            recording.decide_level(Some(user));
            if recording.records() {
                recording.user = Some(Arc::new(user.clone()));
                recording.emit(Stage::RequestReceived);
            }
        }
    }

    /// Records the impersonated user, if it differs from the authenticated user.
    pub(crate) fn acts_as(&mut self, user: &User) {
        if let Some(recording) = self.recording()
            && recording.user.as_deref() != Some(user)
        {
            recording.impersonated = Some(Arc::new(user.clone()));
        }
    }

    /// Records whether the request was allowed. `decide` returns the reason.
    pub(crate) fn decided(&mut self, allowed: bool, decide: impl FnOnce() -> Decision) {
        if let Some(recording) = self.recording() {
            let decision = decide();
            // Roles may have changed since the decision.
            let reason = if decision.allowed == allowed {
                decision.reason
            } else {
                String::new()
            };
            recording.decision = Some((allowed, reason.into()));
        }
    }

    /// Records the outcome. A watch is recorded again when its body ends.
    pub(crate) fn finish(self, mut response: Response<Body>) -> Response<Body> {
        let Some(mut recording) = self.0 else {
            return response;
        };
        let long_running = recording.request.info.is_long_running();
        if recording.verdict.is_none() {
            recording.decide_level(None);
        }
        if let Ok(id) = HeaderValue::from_str(&recording.request.id) {
            response.headers_mut().insert(AUDIT_ID, id);
        }
        if !recording.records() {
            recording.complete = true;
            return response;
        }
        let (response, outcome) = recording.outcome_of(response);
        recording.outcome = Some(outcome);
        if long_running && response.status().is_success() {
            recording.emit(Stage::ResponseStarted);
            return response.map(|inner| {
                let trail = Self(Some(recording));
                Trailed { inner, trail }.boxed_unsync()
            });
        }
        recording.complete();
        response
    }

    fn recording(&mut self) -> Option<&mut Recording> {
        self.0
            .as_deref_mut()
            .filter(|recording| recording.records())
    }
}

impl Recording {
    fn new<B>(audit: &Arc<Audit>, address: Option<IpAddr>, request: &Request<B>) -> Self {
        let headers = request.headers();
        let uri = request.uri();
        let content_type = text(headers, &CONTENT_TYPE).split(';').next();
        let parts = RequestParts {
            id: id(headers),
            uri: uri
                .path_and_query()
                .map_or("/", |path| path.as_str())
                .to_owned(),
            info: RequestInfo::parse(request.method(), uri.path(), uri.query()),
            source_ips: source_ips(headers, address),
            user_agent: beginning(text(headers, &USER_AGENT), MOST_USER_AGENT).to_owned(),
            content_type: content_type.unwrap_or_default().trim().to_ascii_lowercase(),
            received: Timestamp::now(),
        };
        let scheme = text(headers, &AUTHORIZATION).split(' ').next();
        Self {
            audit: Arc::clone(audit),
            request: Arc::new(parts),
            verdict: None,
            user: None,
            impersonated: None,
            decision: None,
            copy: Arc::default(),
            attempted: match scheme.unwrap_or_default().to_ascii_lowercase().as_str() {
                "" => "no credentials provided",
                "bearer" => "attempted: bearer",
                "basic" => "attempted: basic",
                _ => "attempted: unknown scheme",
            },
            outcome: None,
            complete: false,
        }
    }

    fn records(&self) -> bool {
        self.verdict
            .is_some_and(|verdict| verdict.level > Level::None)
    }

    fn decide_level(&mut self, user: Option<&User>) {
        let attributes = self.request.info.attributes();
        let verdict = self.audit.policy.verdict(user, &attributes);
        let wanted = verdict.level >= Level::Request;
        self.copy.wanted.store(wanted, Ordering::Release);
        self.verdict = Some(verdict);
    }

    /// Reads the outcome from the response.
    fn outcome_of(&self, response: Response<Body>) -> (Response<Body>, Outcome) {
        let code = response.status().as_u16();
        let mut outcome = Outcome {
            code: Some(code),
            ..Outcome::default()
        };
        if code == 401 && self.user.is_none() {
            outcome.message = Some(format!("Authentication failed, {}", self.attempted));
            return (response, outcome);
        }
        let created = code == 201 && self.request.info.verb == Verb::Create;
        if code < 400 && !created {
            return (response, outcome);
        }
        let (response, bytes) = peek(response);
        if created {
            #[derive(serde::Deserialize)]
            struct Object {
                metadata: Created,
            }
            let object = serde_json::from_slice::<Object>(&bytes);
            outcome.created = object.ok().map(|object| object.metadata);
        } else if bytes.len() <= MOST_STATUS {
            outcome.status = Some(bytes);
        }
        (response, outcome)
    }

    fn complete(&mut self) {
        if !self.complete {
            self.complete = true;
            self.emit(Stage::ResponseComplete);
        }
    }

    fn emit(&self, stage: Stage) {
        let Some(verdict) = self.verdict.filter(|verdict| !verdict.omit.contains(stage)) else {
            return;
        };
        self.audit.log.send(Event {
            request: Arc::clone(&self.request),
            stage,
            time: if stage == Stage::RequestReceived {
                self.request.received
            } else {
                Timestamp::now()
            },
            level: verdict.level,
            omit_managed_fields: verdict.omit_managed_fields,
            user: self.user.clone(),
            impersonated: self.impersonated.clone(),
            decision: self.decision.clone(),
            outcome: self.outcome.clone(),
            body: self.copy.take(),
        });
    }
}

impl Drop for Recording {
    fn drop(&mut self) {
        if self.complete {
            return;
        }
        if self.verdict.is_none() {
            self.decide_level(None);
        }
        if self.records() {
            self.outcome.get_or_insert_with(|| Outcome {
                message: Some(
                    "the connection ended before the response was ready; the request may have \
                     taken effect"
                        .into(),
                ),
                ..Outcome::default()
            });
            self.complete();
        }
    }
}

/// The body of a watch. It records the outcome when it ends.
struct Trailed {
    inner: Body,
    trail: Trail,
}

impl HttpBody for Trailed {
    type Data = Bytes;
    type Error = std::io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        let frame = std::task::ready!(Pin::new(&mut self.inner).poll_frame(cx));
        if frame.is_none() {
            self.trail = Trail::default();
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}

/// A copy of a request body, made while the request is read.
#[derive(Default)]
struct BodyCopy {
    wanted: AtomicBool,
    bytes: Mutex<Copied>,
}

#[derive(Default)]
struct Copied {
    bytes: Vec<u8>,
    too_large: bool,
}

impl BodyCopy {
    fn add(&self, data: &[u8]) {
        if !self.wanted.load(Ordering::Acquire) {
            return;
        }
        let mut copied = self.bytes.lock().unwrap_or_else(PoisonError::into_inner);
        if copied.too_large || copied.bytes.len() + data.len() > MOST_BODY {
            copied.too_large = true;
            copied.bytes = Vec::new();
        } else {
            copied.bytes.extend_from_slice(data);
        }
    }

    /// Returns the copy once, because a later stage does not repeat the body.
    fn take(&self) -> Option<RequestBody> {
        let mut copied = self.bytes.lock().unwrap_or_else(PoisonError::into_inner);
        if copied.too_large {
            return Some(RequestBody::TooLarge);
        }
        let bytes = std::mem::take(&mut copied.bytes);
        (!bytes.is_empty()).then(|| RequestBody::Whole(bytes.into()))
    }
}

/// A request body that is copied while it is read.
pub(crate) struct Tee<B> {
    inner: B,
    copy: Option<Arc<BodyCopy>>,
}

impl<B: HttpBody<Data = Bytes> + Unpin> HttpBody for Tee<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        let frame = std::task::ready!(Pin::new(&mut self.inner).poll_frame(cx));
        if let (Some(copy), Some(Ok(frame))) = (&self.copy, &frame)
            && let Some(data) = frame.data_ref()
        {
            copy.add(data);
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}

/// Returns the bytes of a complete response without consuming it. Returns no bytes for a stream.
fn peek(response: Response<Body>) -> (Response<Body>, Bytes) {
    let (parts, mut body) = response.into_parts();
    let exact = body.size_hint().exact();
    if exact.is_none_or(|size| size > MOST_RESPONSE) {
        return (Response::from_parts(parts, body), Bytes::new());
    }
    let (mut frames, mut size) = (Vec::new(), 0);
    while let Some(Some(frame)) = body.frame().now_or_never() {
        let data = frame.as_ref().ok().and_then(Frame::data_ref);
        size += data.map_or(0, Bytes::len) as u64;
        frames.push(frame);
    }
    let (body, bytes) = if exact == Some(size) {
        let data = frames.into_iter().flatten();
        let mut data: Vec<Bytes> = data.filter_map(|frame| frame.into_data().ok()).collect();
        let whole = match data.len() {
            1 => data.swap_remove(0),
            _ => data.concat().into(),
        };
        let body = Full::new(whole.clone()).map_err(|never| match never {});
        (body.boxed_unsync(), whole)
    } else {
        let frames = futures_util::stream::iter(frames).chain(BodyStream::new(body));
        (StreamBody::new(frames).boxed_unsync(), Bytes::new())
    };
    (Response::from_parts(parts, body), bytes)
}

fn text<'a>(headers: &'a HeaderMap, name: &HeaderName) -> &'a str {
    headers
        .get(name)
        .and_then(|value| value.to_str().ok())
        .unwrap_or_default()
}

/// Returns at most `most` bytes from the start of a text, ending at a character boundary.
fn beginning(text: &str, most: usize) -> &str {
    let end = (0..=most.min(text.len()))
        .rev()
        .find(|end| text.is_char_boundary(*end));
    &text[..end.unwrap_or(0)]
}

/// Returns the id that the client chose if it is valid, and a new id otherwise.
fn id(headers: &HeaderMap) -> String {
    let chosen = text(headers, &AUDIT_ID);
    let usable = chosen.bytes().all(|byte| byte.is_ascii_graphic());
    if usable && (1..=MOST_ID).contains(&chosen.len()) {
        return chosen.to_owned();
    }
    uuid::Uuid::new_v4().to_string()
}

/// Returns the addresses in proxy headers, followed by the address of the connection, which cannot be forged.
fn source_ips(headers: &HeaderMap, address: Option<IpAddr>) -> Vec<String> {
    let forwarded = ["x-forwarded-for", "x-real-ip"]
        .into_iter()
        .flat_map(|name| {
            let values = headers.get_all(name).into_iter();
            values
                .filter_map(|value| value.to_str().ok())
                .flat_map(|value| value.split(','))
                .filter_map(|part| part.trim().parse::<IpAddr>().ok())
        });
    let mut all: Vec<IpAddr> = forwarded.take(MOST_PROXIES).collect();
    all.extend(address.map(|address| address.to_canonical()));
    all.dedup();
    all.iter().map(ToString::to_string).collect()
}
