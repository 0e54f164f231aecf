//! The steps of a request: authenticate, impersonate, authorize, handle within the shares of its user.

use std::borrow::Cow;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;

use bytes::Bytes;
use http::header::AUTHORIZATION;
use http::{HeaderMap, Request, Response};
use hyper::body::Body as HttpBody;
use tenure_host::browser::Hosts;
use tokio::sync::watch;

use super::backup::{self, Saver};
use super::body::until;
use super::faults::{Action, Faults, injected};
use super::indent;
use super::watch_access::WatchAccess;
use crate::audit::{Audit, Trail};
use crate::auth::{Auth, Mode, User};
use crate::fairness::Fairness;
use crate::http::Api;
use crate::request::{RequestInfo, Verb};
use crate::respond::{self, Body};
use crate::status::Failure;

/// The caller as the transport identifies it.
#[derive(Clone, Debug)]
pub(super) enum Peer {
    /// A network client.
    Network {
        /// The user of the client certificate.
        certificate: Option<User>,
        /// Address of the client.
        address: Option<IpAddr>,
        /// Whether the connection uses TLS.
        tls: bool,
    },
    /// A client of the socket file, which only the owner of the server can open.
    Socket,
}

impl Peer {
    /// Returns the user that the connection itself identifies, for a request with these headers.
    fn known_user(&self, headers: &HeaderMap) -> Option<User> {
        match self {
            Self::Network { certificate, .. } => certificate.clone(),
            Self::Socket if headers.contains_key(AUTHORIZATION) => None,
            Self::Socket => Some(User::admin()),
        }
    }

    /// Returns whether a web page could send such a request, because it needs no credentials that only the user has.
    fn is_open_to_pages(&self, mode: Mode) -> bool {
        match self {
            Self::Network { tls, .. } => !tls || mode == Mode::AlwaysAllow,
            Self::Socket => false,
        }
    }

    fn address(&self) -> Option<IpAddr> {
        match self {
            Self::Network { address, .. } => *address,
            Self::Socket => None,
        }
    }
}

/// Handles requests below a path without authentication.
pub type PublicRoute = Arc<dyn Fn(http::request::Parts) -> PublicAnswer + Send + Sync>;

/// The response of a [`PublicRoute`].
pub type PublicAnswer = Pin<Box<dyn Future<Output = Response<Body>> + Send>>;

/// Instructs the transport to close the connection without a response.
#[derive(Debug, thiserror::Error)]
#[error("an injected fault dropped the response")]
pub(super) struct Dropped;

/// Request handling, shared by all connections.
pub(super) struct Pipeline {
    pub(super) api: Arc<Api>,
    pub(super) auth: Arc<Auth>,
    pub(super) audit: Option<Arc<Audit>>,
    pub(super) faults: Arc<Faults>,
    pub(super) fairness: Fairness,
    pub(super) saver: Option<Saver>,
    pub(super) public: Vec<(String, PublicRoute)>,
    pub(super) mode: Mode,
    /// Names of this server, for requests that a web page could have sent.
    pub(super) hosts: Hosts,
    /// True when the server is shutting down.
    pub(super) ending: watch::Receiver<bool>,
}

impl Pipeline {
    /// Handles one request.
    pub(super) async fn answer<B>(
        &self,
        peer: &Peer,
        request: Request<B>,
    ) -> Result<Response<Body>, Dropped>
    where
        B: HttpBody<Data = Bytes> + Send + Unpin,
        B::Error: std::error::Error + Send + Sync + 'static,
    {
        if peer.is_open_to_pages(self.mode) {
            let (method, uri) = (request.method(), request.uri());
            if let Err(refused) = self.hosts.check(method, uri, request.headers()) {
                tracing::info!(%refused, "denied a request of a web page");
                let why = refused.to_string();
                return Ok(respond::failure(&Failure::generic(403, "Forbidden", why)));
            }
        }
        let path = request.uri().path();
        if let Some((_, route)) = self
            .public
            .iter()
            .find(|(prefix, _)| is_below(path, prefix))
        {
            let mut parts = request.into_parts().0;
            parts.extensions.insert(peer.address());
            let answer = route(parts).await;
            let mut ending = self.ending.clone();
            let end = async move { _ = ending.wait_for(|ending| *ending).await };
            return Ok(answer.map(|body| until(body, end)));
        }
        let indents = indent::is_wanted(&request);
        let mut trail = Trail::begin(self.audit.as_ref(), peer.address(), &request);
        let request = request.map(|body| trail.tee(body));
        let response = self.handle(peer, request, &mut trail).await?;
        let response = trail.finish(response);
        Ok(match indents {
            true => indent::indented(response),
            false => response,
        })
    }

    /// Handles one request that is not for a public route.
    async fn handle<B>(
        &self,
        peer: &Peer,
        request: Request<B>,
        trail: &mut Trail,
    ) -> Result<Response<Body>, Dropped>
    where
        B: HttpBody<Data = Bytes> + Send + Unpin,
        B::Error: std::error::Error + Send + Sync + 'static,
    {
        let uri = request.uri();
        let info = RequestInfo::parse(request.method(), uri.path(), uri.query());
        if let Err(failure) = self.auth.catch_up(request.headers()).await {
            return Ok(respond::failure(&failure));
        }
        let user = match self.identify(peer, &request, trail) {
            Ok(user) => user,
            Err(failure) => return Ok(respond::failure(&failure)),
        };
        if let Err(failure) = self.authorize(peer, &user, &info, trail).await {
            return Ok(respond::failure(&failure));
        }
        let plan = self.faults.plan(uri.path(), &user.name, info.verb.as_str());
        if !plan.latency.is_zero() {
            tokio::time::sleep(plan.latency).await;
        }
        if let Some(Action::Answer(code)) = plan.action {
            return Ok(respond::failure(&injected(code)));
        }
        if info.verb == Verb::Get && uri.path() == backup::PATH {
            return Ok(match &self.saver {
                Some(saver) => saver.answer().await,
                None => backup::not_supported(),
            });
        }
        let end = info.is_long_running().then(|| {
            let known = peer.known_user(request.headers());
            let tenant = self.fairness.tenant(&user, peer.address());
            let access = WatchAccess::new(&self.auth, known, request.headers(), &info, tenant);
            self.end(uri.path(), &user, plan.action, access)
        });
        let handling = self
            .fairness
            .handle(&self.api, request, info, &user, peer.address());
        let response = handling.await;
        if plan.action == Some(Action::DropAnswer) {
            return Err(Dropped);
        }
        Ok(match end {
            Some(end) => response.map(|body| until(body, end)),
            None => response,
        })
    }

    /// Returns the user of a request, after impersonation.
    fn identify<'a, B>(
        &self,
        peer: &'a Peer,
        request: &Request<B>,
        trail: &mut Trail,
    ) -> Result<Cow<'a, User>, Failure> {
        let headers = request.headers();
        let user = match peer {
            Peer::Socket if !headers.contains_key(AUTHORIZATION) => Cow::Owned(User::admin()),
            Peer::Socket => self.auth.authenticate(None, headers)?,
            Peer::Network { certificate, .. } => {
                self.auth.authenticate(certificate.as_ref(), headers)?
            }
        };
        trail.authenticated(&user);
        let user = self.auth.impersonate(user, headers)?;
        trail.acts_as(&user);
        Ok(user)
    }

    /// Authorizes a request. If the user has very many rules, the decision is heavy work that is charged to the user.
    async fn authorize(
        &self,
        peer: &Peer,
        user: &User,
        info: &RequestInfo,
        trail: &mut Trail,
    ) -> Result<(), Failure> {
        let attributes = info.attributes();
        let authorized = match self.auth.authorize_briefly(user, &attributes) {
            Some(authorized) => {
                trail.decided(authorized.is_ok(), || self.auth.decide(user, &attributes));
                authorized
            }
            None => {
                let decide = async {
                    let authorized = self.auth.authorize(user, &attributes);
                    trail.decided(authorized.is_ok(), || self.auth.decide(user, &attributes));
                    authorized
                };
                let tenant = self.fairness.tenant(user, peer.address());
                tenant.off_workers(decide).await?
            }
        };
        authorized.inspect_err(|failure| {
            tracing::info!(
                user = user.name,
                verb = info.verb.as_str(),
                "denied: {}",
                failure.message
            );
        })
    }

    /// Resolves when a watch of this user must end. The server shuts down, the user loses the permission, or an
    /// injected fault ends the watch.
    fn end(
        &self,
        path: &str,
        user: &User,
        action: Option<Action>,
        access: WatchAccess,
    ) -> impl Future<Output = ()> + Send + use<> {
        let mut ending = self.ending.clone();
        let cut = self.faults.cut(path, &user.name);
        let after = match action {
            Some(Action::CutWatch(after)) => Some(after),
            _ => None,
        };
        async move {
            let timer = async {
                match after {
                    Some(after) => tokio::time::sleep(after).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                _ = ending.wait_for(|ending| *ending) => {}
                () = cut => {}
                () = timer => {}
                () = access.ended() => {}
            }
        }
    }
}

/// Returns whether the path equals the prefix or is below it.
fn is_below(path: &str, prefix: &str) -> bool {
    path.strip_prefix(prefix)
        .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}
