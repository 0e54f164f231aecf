//! Many requests on one connection, where the server speaks HTTP/2.
//!
//! Thousands of renewals a second cost a fraction of what they cost on a connection for each that is under
//! way. The invariant: whoever waits in vain for an answer to begin never sends the next request the same
//! way. A connection that swallowed a request may be dead without knowing it, and others would wait on it.
//!
//! Watches have a connection each, as with HTTP/1.1: a server allows so many requests at once on one, often
//! a hundred, and a few watches per namespace would leave no room for renewals.

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

type Answer = Response<Content>;

/// Connects, and agrees with the server on HTTP/2 or HTTP/1.1.
pub(super) fn connector(config: &Config, tcp: Calmly) -> Result<Https, kube::Error> {
    if config.tls_server_name.is_some() {
        // kube keeps it to itself how it asks for another name.
        return config.rustls_https_connector_with_connector(tcp);
    }
    let mut tls = config.rustls_client_config()?;
    tls.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok((tcp, tls).into())
}

/// Sends on the line that there is, and on a new one after a request was given up or failed.
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
    /// How many there were before.
    number: u64,
    /// The last answer came by HTTP/1.1, so nobody looks for more than that again.
    http1: bool,
}

/// A way to the server.
struct Line {
    /// The one connection, made by the first who needs it; none if the server speaks HTTP/1.1 only. A pool
    /// would find it as well, for much more work on each request.
    single: OnceCell<Option<Single>>,
    /// Connections for a request each.
    pool: Pool,
}

impl Wary {
    /// With a connector for each kind of request; that for watches speaks HTTP/1.1 only.
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
    type Response = Answer;
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
        // Handed over at once: a future with a request in it is many times as big as one that waits.
        let sent = room.send(request);
        Box::pin(async move { Ok(hope.heard(sent.await?)) })
    }
}

/// With the body in one piece, which is how kube makes those of requests.
fn whole(request: Request<Body>) -> Request<Bytes> {
    let (head, mut body) = request.into_parts();
    let frame = body.frame().now_or_never().flatten();
    let bytes = frame.and_then(|frame| frame.ok()?.into_data().ok());
    Request::from_parts(head, bytes.unwrap_or_default())
}

/// Sends on the only connection, after making it if there is none; on the next one, if the server had ended
/// that, as servers do now and then, or if who was to make it gave up.
async fn connect_and_send(mut hope: Hope, request: Request<Bytes>) -> Result<Answer, BoxError> {
    for _ in 0..2 {
        let line = hope.line.clone();
        let (lines, number) = (hope.lines.clone(), hope.number);
        let to = request.uri().clone();
        let connect = || async move {
            // A hundred who wait for one connection must not try one after the other in vain.
            if lock(&lines.present).number != number {
                return Err(None);
            }
            connect(lines.connector.clone(), to).await.map_err(Some)
        };
        let single = match line.single.get_or_try_init(connect).await {
            Ok(Some(single)) => single,
            Ok(None) => {
                // Known from now on, also if this request is given up: to look again would take as long again.
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
    Err("the server cannot be reached, or ends connections at once".into())
}

impl Line {
    fn new(connector: &Connector, http1: bool) -> Arc<Self> {
        Arc::new(Self {
            single: OnceCell::new_with(http1.then_some(None)),
            pool: pool(connector),
        })
    }
}

/// Makes a connection for many requests; `None` if the server has no such thing.
async fn connect(mut connector: Connector, to: Uri) -> Result<Option<Single>, BoxError> {
    let stream = connector.call(to).await?;
    if !stream.connected().is_negotiated_h2() {
        return Ok(None);
    }
    Ok(Some(Single::over(TokioIo::new(stream)).await?))
}

/// A request that waits for its answer.
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

    /// It came true.
    fn heard(mut self, answer: Answer) -> Answer {
        self.answered = true;
        lock(&self.lines.present).http1 = answer.version() != Version::HTTP_2;
        answer
    }

    /// This line is at its end, the request goes on another.
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
        // Others may have given up on the same connections before.
        if present.number == self.number {
            tracing::debug!("no answer, the next request takes a new connection");
            present.number += 1;
            present.line = Line::new(&self.lines.connector, present.http1);
        }
    }
}
