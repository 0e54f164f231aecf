//! Converts HTTP requests to calls of the registry, and their results to responses.
//!
//! The pipeline of the server handles TLS, authentication and authorization first. It parses the request line with
//! [`RequestInfo::parse`], authorizes [`RequestInfo::attributes`], and calls [`Api::handle`]. This module opens no
//! sockets.

mod accept;
mod body;
mod delete_options;
mod discovery;
mod list;
mod metrics;
mod openapi;
mod openid;
mod options;
mod patch;
mod pieces;
mod render;
mod resource;
mod reviews;
mod scale;
mod timeout;
mod version;
mod watch;
mod yaml;

use std::collections::HashSet;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use http::header::WARNING;
use http::{HeaderValue, Method, Request, Response, StatusCode};

pub(crate) use options::fence as parse_fence;
pub use version::ReadyCheck;

use crate::auth::{Access, AllowAll, User};
use crate::fairness::{Gate, HEAVY, Tenant};
use crate::registry::Registry;
use crate::request::{Query, RequestInfo, ResourcePath, Route, Verb};
use crate::respond::{self, Body};
use crate::status::Failure;
use crate::store::{Store, WriteError};
use metrics::Metrics;
use resource::{Call, Resolved};

/// Options of an [`Api`].
#[derive(Clone)]
#[non_exhaustive]
pub struct Options {
    /// Security checks; [`AllowAll`] by default.
    pub access: Arc<dyn Access>,
    /// Whether the API empties namespaces that are being deleted. Otherwise a controller must do it.
    pub purges_namespaces: bool,
    /// Counters of the audit log, for `/metrics`.
    pub(crate) audit: Option<crate::audit::Counts>,
    /// Further checks of `/readyz`, each with its name.
    pub ready_checks: Vec<(String, ReadyCheck)>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            access: Arc::new(AllowAll),
            purges_namespaces: true,
            audit: None,
            ready_checks: Vec::new(),
        }
    }
}

/// The Kubernetes API over one store.
pub struct Api {
    registry: Arc<Registry>,
    access: Arc<dyn Access>,
    ready_checks: Vec<(String, ReadyCheck)>,
    metrics: Metrics,
    /// The shares of users, if a server limits them.
    gate: OnceLock<Arc<Gate>>,
    shutdown: tokio::sync::watch::Sender<bool>,
}

impl Api {
    /// Opens the API: creates the permanent namespaces, resumes unfinished deletions, and starts to expire events.
    ///
    /// # Errors
    /// Returns an error if the store rejects the first writes.
    pub async fn open(store: Arc<dyn Store>, options: Options) -> Result<Arc<Self>, WriteError> {
        let registry = Registry::new(store, Arc::clone(&options.access));
        let registry = Arc::new(if options.purges_namespaces {
            registry
        } else {
            registry.without_purges()
        });
        registry.open_namespaces().await?;
        registry.adopt_purges();
        registry.expire_objects();
        registry.follow_definitions();
        registry.follow_quotas();
        let (shutdown, _) = tokio::sync::watch::channel(false);
        Ok(Arc::new(Self {
            registry,
            access: options.access,
            ready_checks: options.ready_checks,
            metrics: Metrics::new(options.audit.as_ref()),
            gate: OnceLock::new(),
            shutdown,
        }))
    }

    /// Ends all watches cleanly. New watches end immediately.
    pub fn shutdown(&self) {
        self.shutdown.send_replace(true);
    }

    /// Shows the use of these shares in the metrics.
    pub(crate) fn show_gate(&self, gate: Arc<Gate>) {
        // An API has one server, so the gate is set once.
        let _ = self.gate.set(gate);
    }

    /// Counts a request that was rejected before it was handled.
    pub(crate) fn count_rejection(&self, info: &RequestInfo, code: u16) {
        self.metrics.observe(info, code, Duration::ZERO);
    }

    /// Answers one request of an authenticated and authorized user.
    ///
    /// If the extensions of the request contain a [`RequestInfo`], the request line is not parsed again.
    pub async fn handle<B>(self: &Arc<Self>, request: Request<B>, user: &User) -> Response<Body>
    where
        B: hyper::body::Body,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let started = Instant::now();
        let (mut parts, body) = request.into_parts();
        let info = parts.extensions.remove::<RequestInfo>().unwrap_or_else(|| {
            RequestInfo::parse(&parts.method, parts.uri.path(), parts.uri.query())
        });
        let checked = match info.is_long_running() {
            true => Ok(()),
            false => timeout::check(parts.uri.query()),
        };
        let response = match (checked, &info.route) {
            (Err(failure), _) => respond::failure(&failure),
            (_, Route::Resource(path)) => self.resource(&parts, info.verb, path, body, user).await,
            (_, Route::Other(path)) => self.other(&parts, path),
        };
        self.metrics
            .observe(&info, response.status().as_u16(), started.elapsed());
        response
    }

    async fn resource<B>(
        self: &Arc<Self>,
        parts: &http::request::Parts,
        verb: Verb,
        path: &ResourcePath,
        body: B,
        user: &User,
    ) -> Response<Body>
    where
        B: hyper::body::Body,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let kind = self.registry.find(&path.group, &path.resource);
        let (target, subresource) = match resource::resolve(&self.registry, kind.as_deref(), path) {
            Resolved::Kind(target, subresource) => (target, subresource),
            Resolved::NoResource => return respond::failure(&Failure::no_resource()),
            Resolved::NoGroup => return not_found(),
        };
        let mut call = Call {
            api: self,
            user,
            verb,
            target,
            subresource,
            query: Query::new(parts.uri.query().unwrap_or_default()),
            parts,
            tenant: parts.extensions.get::<Tenant>(),
            warnings: Vec::new(),
        };
        let ran = match call.tenant.filter(|_| call.stored_bytes() > HEAVY) {
            Some(tenant) => match call.wait_for_revision().await {
                Ok(()) => {
                    let run = Box::pin(call.run(body));
                    tenant.off_workers(run).await.flatten()
                }
                Err(failure) => Err(failure),
            },
            None => call.run(body).await,
        };
        let mut response = ran.unwrap_or_else(|failure| respond::failure(&failure));
        for text in warnings(&call.warnings) {
            let quoted = text.replace('\\', "\\\\").replace('"', "\\\"");
            if let Ok(value) = HeaderValue::from_str(&format!("299 - \"{quoted}\"")) {
                response.headers_mut().append(WARNING, value);
            }
        }
        response
    }

    fn other(&self, parts: &http::request::Parts, path: &str) -> Response<Body> {
        let query = Query::new(parts.uri.query().unwrap_or_default());
        let store = self.registry.store.as_ref();
        if let Some(answer) = version::health(path, &query, store, &self.ready_checks) {
            return answer;
        }
        if !matches!(parts.method, Method::GET | Method::HEAD) {
            return respond::failure(&Failure::method_not_allowed());
        }
        let served = self.registry.served();
        let kinds = || served.kinds();
        if let Some(answer) = discovery::answer(path, &parts.headers, &kinds) {
            return answer.unwrap_or_else(|failure| respond::failure(&failure));
        }
        match path.trim_end_matches('/') {
            "/version" => respond::json(StatusCode::OK, version::document().to_string() + "\n"),
            "/metrics" => {
                let revision = self.registry.store.revision();
                let (kind, text) =
                    (self.metrics).text(revision, self.gate.get().map(Arc::as_ref), &parts.headers);
                respond::bytes(StatusCode::OK, HeaderValue::from_static(kind), text)
            }
            other if other.starts_with("/openapi/") => {
                openapi::answer(other, &parts.headers, &kinds()).unwrap_or_else(not_found)
            }
            other => openid::answer(other, self.access.as_ref()).unwrap_or_else(not_found),
        }
    }
}

/// Maximum number of characters of all warnings in a response, and of each one if they exceed it. The real server has
/// the same limits.
const MOST_WARNED: usize = 4_096;
const MOST_WARNED_EACH: usize = 256;

/// Returns each warning once, within the limits.
fn warnings(all: &[String]) -> Vec<String> {
    let mut seen = HashSet::new();
    let unique: Vec<&String> = all.iter().filter(|text| seen.insert(*text)).collect();
    let most = match unique
        .iter()
        .map(|text| text.chars().count())
        .sum::<usize>()
    {
        sum if sum <= MOST_WARNED => usize::MAX,
        _ => MOST_WARNED_EACH,
    };
    let mut room = MOST_WARNED;
    let mut shown = Vec::new();
    for text in unique {
        let text: String = text.chars().take(most).collect();
        let Some(rest) = room.checked_sub(text.chars().count()) else {
            break;
        };
        room = rest;
        shown.push(text);
    }
    shown
}

fn not_found() -> Response<Body> {
    respond::text(StatusCode::NOT_FOUND, "404 page not found\n")
}
