//! One connection: its TLS handshake, protocol, requests and time limits.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use http_body_util::BodyExt as _;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::{Notify, watch};
use tokio_rustls::TlsAcceptor;

use super::body::{Busy, Guarded};
use super::pipeline::{Peer, Pipeline};
use super::progress::Progress;
use super::stall::Stall;
use crate::fairness::Charge;
use crate::tls::certificate_user;

/// Time limits of a connection, which bound the memory that slow clients hold.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    /// Limit of the TLS handshake.
    pub(super) handshake: Duration,
    /// Limit of a request head, and of the time between requests on HTTP/1.
    pub(super) head: Duration,
    /// Time limit for a client to read sent data.
    pub(super) write: Duration,
    /// Limit of idle time.
    pub(super) idle: Duration,
    /// Limit for a connection to close at shutdown.
    pub(super) linger: Duration,
    /// Maximum number of streams on one HTTP/2 connection.
    pub(super) streams: u32,
}

/// State that a connection and its listener share.
#[derive(Clone, Debug, Default)]
pub(super) struct Link {
    pub(super) busy: Busy,
    /// Asks a connection to close when it is idle.
    pub(super) close: Arc<Notify>,
    /// Tracks whether the client reads its responses.
    pub(super) progress: Arc<Progress>,
}

/// Serves connections.
#[derive(Clone)]
pub(super) struct Serving {
    pub(super) pipeline: Arc<Pipeline>,
    pub(super) limits: Limits,
    pub(super) ending: watch::Receiver<bool>,
}

impl Serving {
    /// Serves a TLS connection to its end.
    pub(super) async fn tls<S>(
        self,
        stream: S,
        address: Option<IpAddr>,
        acceptor: TlsAcceptor,
        link: Link,
    ) where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        // The future is boxed, so that the memory of the handshake is freed when it is complete.
        let handshake = Box::pin(acceptor.accept(Stall::new(stream, self.limits.write)));
        let accepted = tokio::select! {
            accepted = tokio::time::timeout(self.limits.handshake, handshake) => accepted,
            () = link.close.notified() => return,
        };
        let stream = match accepted {
            Ok(Ok(stream)) => stream,
            Ok(Err(error)) => return tracing::debug!(%error, "TLS handshake failed"),
            Err(_) => return tracing::debug!("TLS handshake took too long"),
        };
        let (_, session) = stream.get_ref();
        let certificate = session
            .peer_certificates()
            .and_then(|chain| chain.first())
            .and_then(certificate_user);
        let served = {
            let builder = match session.alpn_protocol() {
                Some(b"h2") => self.builder().http2_only(),
                _ => self.builder().http1_only(),
            };
            let peer = Peer::Network {
                certificate,
                address,
                tls: true,
            };
            self.serve(&builder, stream, peer, link)
        };
        served.await;
    }

    /// Serves a connection without TLS to its end. The first bytes identify HTTP/2.
    pub(super) async fn plain<S>(self, stream: S, peer: Peer, link: Link)
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let stream = Stall::new(stream, self.limits.write);
        let served = {
            let builder = self.builder();
            self.serve(&builder, stream, peer, link)
        };
        served.await;
    }

    fn builder(&self) -> auto::Builder<TokioExecutor> {
        let mut builder = auto::Builder::new(TokioExecutor::new());
        builder
            .http1()
            .timer(TokioTimer::new())
            .header_read_timeout(self.limits.head)
            .max_buf_size(64 * 1024);
        builder
            .http2()
            .timer(TokioTimer::new())
            .max_concurrent_streams(self.limits.streams)
            .max_header_list_size(64 * 1024)
            .max_send_buf_size(128 * 1024)
            .keep_alive_interval(Duration::from_secs(30))
            .keep_alive_timeout(Duration::from_secs(20));
        builder
    }

    /// Serves a connection with little memory, because most connections are idle most of the time. It is not an async
    /// function, because such a future would contain the stream in addition to the connection. The future of a request
    /// is boxed, because HTTP/1 reserves space for it between requests.
    fn serve<S>(
        self,
        builder: &auto::Builder<TokioExecutor>,
        stream: S,
        peer: Peer,
        link: Link,
    ) -> impl Future<Output = ()> + Send + use<S>
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let pipeline = Arc::clone(&self.pipeline);
        let (peer, busy) = (Arc::new(peer), link.busy.clone());
        let progress = Arc::clone(&link.progress);
        let service = service_fn(move |request| {
            let (pipeline, peer, guard) = (Arc::clone(&pipeline), Arc::clone(&peer), busy.begin());
            let progress = Arc::clone(&progress);
            Box::pin(async move {
                let mut response = pipeline.answer(&peer, request).await?;
                let charge = response.extensions_mut().remove::<Arc<Charge>>();
                let guarded = |body| Guarded::new(body, guard, progress, charge).boxed_unsync();
                Ok::<_, super::pipeline::Dropped>(response.map(guarded))
            })
        });
        let connection = builder.serve_connection(TokioIo::new(stream), service);
        let mut connection = Box::pin(connection.into_owned());
        let mut ending = self.ending.clone();
        async move {
            tokio::select! {
                ended = connection.as_mut() => return note(ended),
                () = link.progress.stalled(self.limits.write) => {
                    return tracing::debug!("closed a connection whose client does not read a response");
                }
                () = self.should_close(&link) => {}
                _ = ending.wait_for(|ending| *ending) => {}
            }
            connection.as_mut().graceful_shutdown();
            tokio::select! {
                ended = connection.as_mut() => note(ended),
                () = self.linger(&link) => {}
            }
        }
    }

    /// Resolves when the connection was idle for too long, or is asked to close.
    async fn should_close(&self, link: &Link) {
        loop {
            tokio::select! {
                // A request may have started in the meantime.
                () = link.close.notified() => return link.busy.until_idle().await,
                () = self.idle_for(self.limits.idle, link) => {}
            }
            if link.busy.is_idle() {
                return;
            }
        }
    }

    /// Waits at shutdown until the connection is idle or its time is over.
    async fn linger(&self, link: &Link) {
        let idle = async {
            loop {
                tokio::time::sleep(Duration::from_millis(20)).await;
                if link.busy.is_idle() {
                    // The response may not be sent completely yet.
                    tokio::time::sleep(Duration::from_millis(500)).await;
                    return;
                }
            }
        };
        tokio::select! {
            () = idle => {}
            () = tokio::time::sleep(self.limits.linger) => {}
        }
    }

    /// Resolves after this time without an active request.
    async fn idle_for(&self, stretch: Duration, link: &Link) {
        const CHECKS: u32 = 4;
        let mut quiet = 0;
        while quiet < CHECKS {
            tokio::time::sleep(stretch / CHECKS).await;
            quiet = if link.busy.seen_since_last_check() {
                0
            } else {
                quiet + 1
            };
        }
    }
}

fn note(ended: Result<(), Box<dyn std::error::Error + Send + Sync>>) {
    if let Err(error) = ended {
        tracing::debug!(error, "connection ended");
    }
}
