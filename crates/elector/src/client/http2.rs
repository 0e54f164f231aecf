//! Many requests on one connection, if the server supports HTTP/2.
//!
//! This is much cheaper for thousands of renewals per second than one connection per request in flight. Invariant:
//! after a request that received no response, the caller never sends the next request over the same connection. That
//! connection may be dead without an error so far, and other requests would wait for it.
//!
//! Each watch has its own connection, as with HTTP/1.1. A server limits the number of concurrent requests on one
//! connection, often to a hundred. A few watches per namespace would leave no room for renewals.

use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};

use futures_util::FutureExt as _;
use http::{Request, Response, Uri, Version};
use http_body_util::BodyExt as _;
use hyper::body::Bytes;
use hyper_rustls::HttpsConnector;
use hyper_timeout::TimeoutConnector;
use hyper_util::client::legacy::connect::Connection as _;
use hyper_util::client::legacy::{self, Builder};
use hyper_util::rt::{TokioExecutor, TokioIo};
use kube::Config;
use kube::client::{Body, ConfigExt as _};
use tenure_lock::BoxFuture;
use tokio::sync::OnceCell;
use tower::{BoxError, Service};

use super::calm::{Calmly, Together};
use super::single::{Content, Single};
use crate::sync::lock;

type Https = HttpsConnector<Calmly>;
type Connector = TimeoutConnector<Together<Https>>;
type Pool = legacy::Client<Connector, Body>;

type LockResponse = Response<Content>;

/// Creates a connector that negotiates HTTP/2 or HTTP/1.1 with the server.
pub(super) fn connector(config: &Config, tcp: Calmly) -> Result<Https, kube::Error> {
    if config.tls_server_name.is_some() {
        // kube does not expose how it configures another server name.
        return config.rustls_https_connector_with_connector(tcp);
    }
    let mut tls = config.rustls_client_config()?;
    tls.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok((tcp, tls).into())
}

/// Sends over the current [`Line`], and over a new one after a request failed or was dropped.
#[derive(Clone)]
pub(super) struct Wary {
    lines: Arc<Lines>,
}

struct Lines {
    connector: Connector,
    present: Mutex<Present>,
    watches: Pool,
}

struct Present {
    line: Arc<Line>,
    /// Number of earlier lines.
    number: u64,
    /// The last response used HTTP/1.1, so HTTP/2 is not tried again.
    http1: bool,
}

/// The connections to the server.
struct Line {
    /// The single connection, created by the first request that needs it. It contains `None` if the server supports
    /// only HTTP/1.1. A pool could store the connection too, but would need much more work per request.
    single: OnceCell<Option<Single>>,
    /// Connections that each serve one request at a time.
    pool: Pool,
}

impl Wary {
    /// Creates the client with a connector for each kind of request. The connector for watches uses only HTTP/1.1.
    pub(super) fn new(connector: Connector, for_watches: &Connector) -> Self {
        let present = Present {
            line: Line::new(&connector, false),
            number: 0,
            http1: false,
        };
        let lines = Arc::new(Lines {
            connector,
            present: Mutex::new(present),
            watches: pool(for_watches),
        });
        Self { lines }
    }
}

fn pool(connector: &Connector) -> Pool {
    Builder::new(TokioExecutor::new()).build(connector.clone())
}

fn is_watch(request: &Request<Body>) -> bool {
    let query = request.uri().query().unwrap_or_default();
    query.split('&').any(|pair| pair == "watch=true")
}

impl Service<Request<Body>> for Wary {
    type Response = LockResponse;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<Self::Response, Self::Error>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        if is_watch(&request) {
            let watch = self.lines.watches.request(request);
            return Box::pin(async move { Ok(watch.await?.map(Content::Pooled)) });
        }
        let request = whole(request);
        let hope = Hope::on(self.lines.clone());
        let Some(Some(single)) = hope.line.single.get() else {
            return Box::pin(connect_and_send(hope, request));
        };
        let Some(room) = single.room() else {
            return Box::pin(connect_and_send(hope.another(), request));
        };
        // Hand over the request immediately, because a future that contains a request is many times larger than one
        // that waits.
        let sent = room.send(request);
        Box::pin(async move { Ok(hope.heard(sent.await?)) })
    }
}

/// Converts the body to one buffer, which is the form of all of kube's request bodies.
fn whole(request: Request<Body>) -> Request<Bytes> {
    let (head, mut body) = request.into_parts();
    let frame = body.frame().now_or_never().flatten();
    let bytes = frame.and_then(|frame| frame.ok()?.into_data().ok());
    Request::from_parts(head, bytes.unwrap_or_default())
}

/// Sends over the single connection, and creates it if it does not exist. Uses the next connection if the server has
/// closed this one, or if the task that was creating it gave up. Servers close connections from time to time.
async fn connect_and_send(
    mut hope: Hope,
    request: Request<Bytes>,
) -> Result<LockResponse, BoxError> {
    for _ in 0..2 {
        let line = hope.line.clone();
        let (lines, number) = (hope.lines.clone(), hope.number);
        let to = request.uri().clone();
        let connect = || async move {
            // Requests that wait for one connection must fail together, and must not try to connect one after the
            // other.
            if lock(&lines.present).number != number {
                return Err(None);
            }
            connect(lines.connector.clone(), to).await.map_err(Some)
        };
        let single = match line.single.get_or_try_init(connect).await {
            Ok(Some(single)) => single,
            Ok(None) => {
                // Remember this even if this request is given up, because another negotiation would take equally long.
                lock(&hope.lines.present).http1 = true;
                let answer = line.pool.request(request.map(Body::from)).await?;
                return Ok(hope.heard(answer.map(Content::Pooled)));
            }
            Err(Some(error)) => return Err(error),
            Err(None) => {
                hope = hope.another();
                continue;
            }
        };
        let Some(room) = single.room() else {
            hope = hope.another();
            continue;
        };
        return Ok(hope.heard(room.send(request).await?));
    }
    Err("cannot reach the server, or it closes connections immediately".into())
}

impl Line {
    fn new(connector: &Connector, http1: bool) -> Arc<Self> {
        Arc::new(Self {
            single: OnceCell::new_with(http1.then_some(None)),
            pool: pool(connector),
        })
    }
}

/// Creates a connection for many requests; `None` if the server does not support it.
async fn connect(mut connector: Connector, to: Uri) -> Result<Option<Single>, BoxError> {
    let stream = connector.call(to).await?;
    if !stream.connected().is_negotiated_h2() {
        return Ok(None);
    }
    Ok(Some(Single::over(TokioIo::new(stream)).await?))
}

/// A request that waits for its response.
struct Hope {
    lines: Arc<Lines>,
    line: Arc<Line>,
    number: u64,
    answered: bool,
}

impl Hope {
    fn on(lines: Arc<Lines>) -> Self {
        let present = lock(&lines.present);
        let (line, number) = (present.line.clone(), present.number);
        drop(present);
        Self {
            lines,
            line,
            number,
            answered: false,
        }
    }

    /// Marks the response as received.
    fn heard(mut self, answer: LockResponse) -> LockResponse {
        self.answered = true;
        lock(&self.lines.present).http1 = answer.version() != Version::HTTP_2;
        answer
    }

    /// Marks this line as failed, and moves the request to another line.
    fn another(self) -> Self {
        let lines = self.lines.clone();
        drop(self);
        Self::on(lines)
    }
}

impl Drop for Hope {
    fn drop(&mut self) {
        if self.answered {
            return;
        }
        let mut present = lock(&self.lines.present);
        // Another request may already have replaced these connections.
        if present.number == self.number {
            tracing::debug!("no response; the next request uses a new connection");
            present.number += 1;
            present.line = Line::new(&self.lines.connector, present.http1);
        }
    }
}
