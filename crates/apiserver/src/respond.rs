//! Constructors of HTTP responses.

use bytes::Bytes;
use http::header::{CACHE_CONTROL, CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderValue, Response, StatusCode};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Full};

use crate::status::{Failure, status_text};

/// The body of every response. Its own bytes never fail; a wrapper may add errors.
pub type Body = UnsyncBoxBody<Bytes, std::io::Error>;

pub(crate) const JSON: HeaderValue = HeaderValue::from_static("application/json");
const PLAIN: HeaderValue = HeaderValue::from_static("text/plain; charset=utf-8");
const NO_CACHE: HeaderValue = HeaderValue::from_static("no-cache, private");

/// Returns a body with these bytes.
pub(crate) fn full(bytes: impl Into<Bytes>) -> Body {
    Full::new(bytes.into())
        .map_err(|never| match never {})
        .boxed_unsync()
}

/// Returns a response with a content type.
pub(crate) fn bytes(code: StatusCode, kind: HeaderValue, body: impl Into<Bytes>) -> Response<Body> {
    let mut response = Response::new(full(body));
    *response.status_mut() = code;
    response.headers_mut().insert(CONTENT_TYPE, kind);
    response.headers_mut().insert(CACHE_CONTROL, NO_CACHE);
    response
}

/// Returns a JSON response.
pub(crate) fn json(code: StatusCode, body: impl Into<Bytes>) -> Response<Body> {
    bytes(code, JSON, body)
}

/// Returns a plain text response.
pub(crate) fn text(code: StatusCode, body: impl Into<Bytes>) -> Response<Body> {
    bytes(code, PLAIN, body)
}

/// Returns the response with the `Status` body of a failure.
#[must_use]
pub fn failure(failure: &Failure) -> Response<Body> {
    let code = StatusCode::from_u16(failure.code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let mut response = json(code, status_text(&failure.to_value()));
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
