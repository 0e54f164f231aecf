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

use http::{Request, Version};
use hyper_rustls::HttpsConnector;
use hyper_timeout::TimeoutConnector;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::client::legacy::{self, Builder};
use hyper_util::rt::TokioExecutor;
use kube::Config;
use kube::client::{Body, ConfigExt as _};
use tenure_lock::BoxFuture;
use tower::Service;

use super::Answer;
use super::calm::Calmly;
use crate::handle::lock;

type Https = HttpsConnector<HttpConnector>;
type Connector = TimeoutConnector<Calmly<Https>>;
type Pool = legacy::Client<Connector, Body>;

/// Connects, and agrees with the server on HTTP/2 or HTTP/1.1.
pub(super) fn connector(config: &Config, tcp: HttpConnector) -> Result<Https, kube::Error> {
    if config.tls_server_name.is_some() {
        // kube keeps it to itself how it asks for another name.
        return config.rustls_https_connector_with_connector(tcp);
    }
    let mut tls = config.rustls_client_config()?;
    tls.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok((tcp, tls).into())
}

/// Sends on the connections that there are, and on new ones after a request was given up or failed.
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
    pool: Pool,
    /// How many there were before.
    number: u64,
    /// The server speaks HTTP/2, so a new pool needs no more than one connection to begin with.
    http2: bool,
}

impl Wary {
    /// With a connector for each kind of request; that for watches speaks HTTP/1.1 only.
    pub(super) fn new(connector: Connector, for_watches: &Connector) -> Self {
        let present = Present {
            pool: open(&connector, false),
            number: 0,
            http2: false,
        };
        let lines = Arc::new(Lines {
            connector,
            present: Mutex::new(present),
            watches: open(for_watches, false),
        });
        Self { lines }
    }
}

fn open(connector: &Connector, http2: bool) -> Pool {
    let mut builder = Builder::new(TokioExecutor::new());
    builder.http2_only(http2).build(connector.clone())
}

fn is_watch(request: &Request<Body>) -> bool {
    let query = request.uri().query().unwrap_or_default();
    query.split('&').any(|pair| pair == "watch=true")
}

impl Service<Request<Body>> for Wary {
    type Response = Answer;
    type Error = legacy::Error;
    type Future = BoxFuture<'static, Result<Self::Response, Self::Error>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        if is_watch(&request) {
            return Box::pin(self.lines.watches.request(request));
        }
        let present = lock(&self.lines.present);
        let (sent, number) = (present.pool.request(request), present.number);
        drop(present);
        let mut hope = Hope {
            lines: self.lines.clone(),
            number,
            answered: false,
        };
        Box::pin(async move {
            let answer = sent.await;
            let http2 = match &answer {
                Ok(answer) => Some(answer.version() == Version::HTTP_2),
                // A server that cannot be reached is the same one; one that breaks off may be another.
                Err(error) => (!error.is_connect()).then_some(false),
            };
            hope.answered = answer.is_ok();
            if let Some(http2) = http2 {
                lock(&hope.lines.present).http2 = http2;
            }
            answer
        })
    }
}

/// A request that waits for its answer.
struct Hope {
    lines: Arc<Lines>,
    number: u64,
    answered: bool,
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
            present.pool = open(&self.lines.connector, present.http2);
        }
    }
}
