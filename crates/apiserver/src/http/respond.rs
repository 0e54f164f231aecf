//! Answers as bytes.

use bytes::Bytes;
use http::header::{CACHE_CONTROL, CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderValue, Response, StatusCode};
use http_body_util::{BodyExt as _, Full};

use super::Body;
use super::pieces::Pieces;
use crate::status::Failure;

pub(super) const JSON: HeaderValue = HeaderValue::from_static("application/json");
const PLAIN: HeaderValue = HeaderValue::from_static("text/plain; charset=utf-8");
const NO_CACHE: HeaderValue = HeaderValue::from_static("no-cache, private");

/// A complete body.
pub(super) fn full(bytes: impl Into<Bytes>) -> Body {
    Full::new(bytes.into())
        .map_err(|never| match never {})
        .boxed_unsync()
}

/// An answer with a content type.
pub(super) fn bytes(code: StatusCode, kind: HeaderValue, body: impl Into<Bytes>) -> Response<Body> {
    let mut response = Response::new(full(body));
    *response.status_mut() = code;
    response.headers_mut().insert(CONTENT_TYPE, kind);
    response.headers_mut().insert(CACHE_CONTROL, NO_CACHE);
    response
}

/// A JSON answer.
pub(super) fn json(code: StatusCode, body: impl Into<Bytes>) -> Response<Body> {
    bytes(code, JSON, body)
}

/// A JSON answer in pieces.
pub(super) fn pieces(code: StatusCode, body: Pieces) -> Response<Body> {
    let mut response = json(code, Bytes::new());
    *response.body_mut() = body.boxed_unsync();
    response
}

/// A plain text answer.
pub(super) fn text(code: StatusCode, body: impl Into<Bytes>) -> Response<Body> {
    bytes(code, PLAIN, body)
}

/// A failure as its `Status` body.
#[must_use]
pub fn failure(failure: &Failure) -> Response<Body> {
    let code = StatusCode::from_u16(failure.code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let mut response = json(code, failure.to_value().to_string() + "\n");
    let seconds = failure
        .details
        .as_ref()
        .and_then(|details| details.retry_after_seconds);
    if let Some(seconds) = seconds {
        response
            .headers_mut()
            .insert(RETRY_AFTER, HeaderValue::from(seconds));
    }
    response
}
