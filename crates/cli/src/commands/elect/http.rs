//! The sidecar's HTTP endpoints.

use std::convert::Infallible;
use std::fs::Permissions;
use std::future::Future;
use std::io::ErrorKind;
use std::os::unix::fs::{FileTypeExt as _, PermissionsExt as _};
use std::os::unix::net::UnixListener as StdListener;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use futures_util::{Stream, StreamExt, stream};
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, header};
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::{Bytes, Frame, Incoming};
use rustix::fs::Mode;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use tenure_host::browser::Hosts;
use tenure_host::listener::Listener;
use tenure_host::seats::{Seat, Seats};
use tokio::net::{TcpListener, UnixListener};

use super::view::View;
use crate::hosts;
use crate::page::Page;

/// Time after the end of its lease at which `/livez` of a leader fails (client-go's watchdog).
const TOLERANCE: Duration = Duration::from_secs(20);

/// Interval of comment lines, which keep idle event streams open through proxies.
const KEEP_ALIVE: Duration = Duration::from_secs(15);

type Body = BoxBody<Bytes, Infallible>;
/// Returns content type and text for the headers of a request.
type MetricsText = dyn Fn(&HeaderMap) -> (&'static str, String) + Send + Sync;

/// Address of a listener.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Address {
    Tcp(String),
    Unix(PathBuf),
}

impl std::str::FromStr for Address {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Some(path) = text.strip_prefix("unix:") {
            return Ok(Self::Unix(path.into()));
        }
        match text
            .rsplit_once(':')
            .map(|(host, port)| (host, port.parse::<u16>()))
        {
            Some((host, Ok(port))) => {
                let host = if host.is_empty() { "0.0.0.0" } else { host };
                Ok(Self::Tcp(format!("{host}:{port}")))
            }
            _ => Err(format!(
                "{text:?} is not an address: expected host:port, :port or unix:/path"
            )),
        }
    }
}

impl Address {
    /// Returns the URL for programs on this machine.
    pub(crate) fn url(&self) -> String {
        match self {
            Self::Unix(path) => format!("unix:{}", path.display()),
            Self::Tcp(address) => match address.strip_prefix("0.0.0.0:") {
                Some(port) => format!("http://localhost:{port}/"),
                None => format!("http://{address}/"),
            },
        }
    }
}

/// Endpoints of one listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Endpoints {
    pub(crate) leader: bool,
    pub(crate) probes: bool,
    pub(crate) metrics: bool,
}

/// The endpoints.
#[derive(Clone)]
pub(crate) struct Site {
    pub(crate) view: View,
    pub(crate) metrics: Arc<MetricsText>,
    pub(crate) endpoints: Endpoints,
    /// Every path and method responds like `/`, as in the old sidecar.
    pub(crate) compat: bool,
    /// The page under `/ui`.
    pub(crate) page: Page,
    /// Required for `POST /v1/step-down`. Without a token, only clients of a unix socket may use it.
    pub(crate) token: Option<Arc<str>>,
    /// Additional names of listeners on loopback.
    pub(crate) names: Arc<[String]>,
    /// Names of a listener that browsers of this machine can reach; `None` for other listeners.
    pub(crate) hosts: Option<Arc<Hosts>>,
    /// Limits the number of connections, so that many clients cannot use up the memory of the election.
    pub(crate) seats: Arc<Seats>,
}

/// Binds a socket file with this mode. Replaces a socket, and no other file.
fn bind_socket(path: &Path, mode: u32) -> std::io::Result<UnixListener> {
    match std::fs::symlink_metadata(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => {}
        Err(error) => return Err(error),
        Ok(found) if found.file_type().is_socket() => std::fs::remove_file(path)?,
        Ok(_) => {
            let why = "the path exists and is not a socket; remove it or use another path";
            return Err(std::io::Error::new(ErrorKind::AlreadyExists, why));
        }
    }
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    // Set the mode of the socket before its file exists, so that the file never has more permissions.
    rustix::fs::fchmod(&socket, Mode::from_raw_mode(mode))?;
    rustix::net::bind(&socket, &SocketAddrUnix::new(path)?)?;
    rustix::net::listen(&socket, 128)?;
    // The umask may have removed permissions.
    std::fs::set_permissions(path, Permissions::from_mode(mode))?;
    UnixListener::from_std(StdListener::from(socket))
}

/// Binds the address. The returned future serves it and never completes.
pub(crate) async fn listen(
    address: &Address,
    mode: u32,
    mut site: Site,
) -> Result<impl Future<Output = ()> + Send + use<>> {
    let listener = match address {
        Address::Tcp(address) => {
            let listener = TcpListener::bind(address).await;
            let listener = listener.with_context(|| format!("cannot listen on {address}"))?;
            site.hosts = hosts::of(&listener, address, &site.names);
            Listener::Tcp(listener)
        }
        Address::Unix(path) => {
            let listener = bind_socket(path, mode);
            Listener::Unix(
                listener.with_context(|| format!("cannot listen on {}", path.display()))?,
            )
        }
    };
    let seats = Arc::clone(&site.seats);
    Ok(listener.serve(seats, move |request, seat| {
        let site = site.clone();
        async move { site.handle(request, seat).await }
    }))
}

impl Site {
    async fn handle(self, request: Request<Incoming>, seat: Arc<Seat>) -> Response<Body> {
        if let Some(refused) = self.refusal(&request) {
            return refused;
        }
        // A client of a unix socket has no address.
        let address = seat.address();
        if self.endpoints.leader && Page::has(request.uri().path()) {
            let mut parts = request.into_parts().0;
            parts.extensions.insert(seat);
            parts.extensions.insert(address);
            return self.page.answer(&parts).await;
        }
        self.answer(&request, address.is_none(), &seat)
    }

    /// Rejects a request that a web page of another site could have sent.
    fn refusal(&self, request: &Request<Incoming>) -> Option<Response<Body>> {
        let hosts = self.hosts.as_ref()?;
        let checked = hosts.check(request.method(), request.uri(), request.headers());
        let refused = checked.err()?;
        let why = format!("{refused}\n");
        Some(text(StatusCode::FORBIDDEN, "text/plain", why))
    }

    fn answer(&self, request: &Request<Incoming>, private: bool, seat: &Seat) -> Response<Body> {
        let read = matches!(*request.method(), Method::GET | Method::HEAD);
        let verbose = request
            .uri()
            .query()
            .is_some_and(|query| query.contains("verbose"));
        let path = request.uri().path();
        let endpoints = self.endpoints;
        match (path, read) {
            ("/livez" | "/healthz", true) if endpoints.probes => {
                let health = self.view.handle.health();
                let wedged = health.check(TOLERANCE).is_err();
                probe(path, "leaderElection", wedged, verbose)
            }
            ("/readyz", true) if endpoints.probes => {
                probe(path, "observed", self.view.notes.heard().is_none(), verbose)
            }
            ("/metrics", true) if endpoints.metrics => {
                let (kind, body) = (self.metrics)(request.headers());
                text(StatusCode::OK, kind, body)
            }
            _ if !endpoints.leader => no_such_path(),
            ("/", true) => json(StatusCode::OK, self.view.name()),
            ("/v1/leader", true) => self.leader(),
            ("/v1/candidates", true) => self.candidates(),
            ("/v1/is-leader" | "/leader" | "/ready", true) => {
                let leads = self.view.handle.is_leading();
                let code = if leads {
                    StatusCode::OK
                } else {
                    StatusCode::SERVICE_UNAVAILABLE
                };
                json(
                    code,
                    serde_json::json!({ "leader": self.view.leader() }).to_string(),
                )
            }
            ("/sse" | "/v1/watch", true) => self.events(request.method() == Method::HEAD, seat),
            ("/v1/step-down", false) if request.method() == Method::POST => {
                self.step_down(request, private)
            }
            _ if self.compat => json(StatusCode::OK, self.view.name()),
            (_, true) => no_such_path(),
            _ => text(
                StatusCode::METHOD_NOT_ALLOWED,
                "text/plain",
                "GET or HEAD\n".into(),
            ),
        }
    }

    fn leader(&self) -> Response<Body> {
        let answer = self.view.answer();
        let code = if self.view.is_stale() {
            StatusCode::SERVICE_UNAVAILABLE
        } else {
            StatusCode::OK
        };
        json(code, serde_json::to_string(&answer).unwrap_or_default())
    }

    fn candidates(&self) -> Response<Body> {
        let Some(answer) = self.view.candidates() else {
            let why = "this sidecar runs without --announce\n";
            return text(StatusCode::NOT_FOUND, "text/plain", why.into());
        };
        let membership = self.view.handle.membership();
        let code = match membership.is_some_and(tenure::Membership::is_current) {
            true => StatusCode::OK,
            false => StatusCode::SERVICE_UNAVAILABLE,
        };
        json(code, serde_json::to_string(&answer).unwrap_or_default())
    }

    fn step_down(&self, request: &Request<Incoming>, private: bool) -> Response<Body> {
        let given = request
            .headers()
            .get(header::AUTHORIZATION)
            .and_then(|v| v.to_str().ok());
        let given = given.and_then(|given| given.strip_prefix("Bearer "));
        let known = match (&self.token, given) {
            (Some(token), Some(given)) => same(token.as_bytes(), given.as_bytes()),
            _ => false,
        };
        if !private && !known {
            let why = "step-down needs the token in the file of --step-down-token-file, or a unix socket\n";
            return text(StatusCode::FORBIDDEN, "text/plain", why.into());
        }
        if !self.view.handle.is_leading() {
            return text(
                StatusCode::CONFLICT,
                "text/plain",
                "this process does not lead\n".into(),
            );
        }
        self.view.handle.step_down(Duration::from_secs(30));
        text(StatusCode::ACCEPTED, "text/plain", "stepping down\n".into())
    }

    /// Returns server-sent events: the current value first, then every change.
    fn events(&self, head_only: bool, seat: &Seat) -> Response<Body> {
        let body = if head_only {
            BodyExt::boxed(Full::default())
        } else {
            let Some(seat) = seat.stream() else {
                return too_many_streams();
            };
            let lines = changes(self.view.clone()).map(move |text| {
                // The seat lasts as long as the stream.
                let _ = &seat;
                Ok(Frame::data(text))
            });
            BodyExt::boxed(StreamBody::new(lines))
        };
        let mut response = Response::new(body);
        let headers = response.headers_mut();
        headers.insert(
            header::CONTENT_TYPE,
            HeaderValue::from_static("text/event-stream"),
        );
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
        headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
        response
    }
}

fn changes(view: View) -> impl Stream<Item = Bytes> + Send + Sync {
    let seen = view.seen.subscribe();
    stream::unfold((view, seen, true), |(view, mut seen, first)| async move {
        if !first {
            tokio::select! {
                changed = seen.changed() => changed.ok()?,
                () = tokio::time::sleep(KEEP_ALIVE) => {
                    return Some((Bytes::from_static(b": alive\n\n"), (view, seen, false)));
                }
            }
        }
        seen.mark_unchanged();
        let answer = view.answer();
        let data = serde_json::to_string(&answer).unwrap_or_default();
        let text = format!("id: {}\ndata: {data}\n\n", answer.term.unwrap_or_default());
        Some((text.into(), (view, seen, false)))
    })
}

/// Returns a response in the format of Kubernetes. Reasons are only logged, because anybody who can reach the port
/// could read them.
fn probe(path: &str, name: &str, failed: bool, verbose: bool) -> Response<Body> {
    let endpoint = path.trim_start_matches('/');
    let (code, line, verdict) = if failed {
        let line = format!("[-]{name} failed: reason withheld\n");
        (StatusCode::INTERNAL_SERVER_ERROR, line, "failed")
    } else {
        (StatusCode::OK, format!("[+]{name} ok\n"), "passed")
    };
    let body = if failed || verbose {
        format!("[+]ping ok\n{line}{endpoint} check {verdict}\n")
    } else {
        "ok".to_owned()
    };
    text(code, "text/plain; charset=utf-8", body)
}

fn too_many_streams() -> Response<Body> {
    let why = "too many event streams are open: close some, or try again later\n";
    let mut response = text(StatusCode::SERVICE_UNAVAILABLE, "text/plain", why.into());
    let headers = response.headers_mut();
    headers.insert(header::RETRY_AFTER, HeaderValue::from_static("10"));
    headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
    response
}

fn no_such_path() -> Response<Body> {
    text(StatusCode::NOT_FOUND, "text/plain", "no such path\n".into())
}

/// Compares in constant time.
fn same(a: &[u8], b: &[u8]) -> bool {
    a.len() == b.len()
        && a.iter()
            .zip(b)
            .fold(0, |different, (a, b)| different | (a ^ b))
            == 0
}

fn json(code: StatusCode, body: String) -> Response<Body> {
    text(code, "application/json", body)
}

fn text(code: StatusCode, kind: &'static str, body: String) -> Response<Body> {
    let mut response = Response::new(BodyExt::boxed(Full::new(Bytes::from(body))));
    *response.status_mut() = code;
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn socket_replaces_sockets_only_and_has_its_mode() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("socket");
        for mode in [0o600, 0o660] {
            drop(bind_socket(&path, mode).unwrap());
            let found = std::fs::symlink_metadata(&path).unwrap();
            assert!(found.file_type().is_socket());
            assert_eq!(found.permissions().mode() & 0o777, mode);
            assert!(
                std::os::unix::net::UnixStream::connect(&path).is_err(),
                "dropped"
            );
        }
        let file = folder.path().join("file");
        std::fs::write(&file, "mine").unwrap();
        let link = folder.path().join("link");
        std::os::unix::fs::symlink(&path, &link).unwrap();
        for kept in [&file, &link] {
            let error = bind_socket(kept, 0o600).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::AlreadyExists, "{error}");
        }
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "mine");
        let listener = bind_socket(&path, 0o600).unwrap();
        let (client, accepted) =
            tokio::join!(tokio::net::UnixStream::connect(&path), listener.accept());
        assert!(client.is_ok() && accepted.is_ok());
    }

    #[test]
    fn listen_addresses_are_parsed() {
        assert_eq!(
            "0.0.0.0:4444".parse(),
            Ok(Address::Tcp("0.0.0.0:4444".into()))
        );
        assert_eq!(":4040".parse(), Ok(Address::Tcp("0.0.0.0:4040".into())));
        assert_eq!(
            "localhost:0".parse(),
            Ok(Address::Tcp("localhost:0".into()))
        );
        assert_eq!("unix:/run/x".parse(), Ok(Address::Unix("/run/x".into())));
        assert!("4040".parse::<Address>().is_err());
        assert!(
            "host:port"
                .parse::<Address>()
                .unwrap_err()
                .contains("host:port")
        );
    }
}
