//! One connection to one member of etcd: HTTP/2 over TCP or TLS, shared by calls and the watch.
//!
//! It is never made anew here; the mirror notices the loss, and connects again.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use futures_util::{StreamExt as _, stream};
use http::Uri;
use http::uri::PathAndQuery;
use http_body_util::BodyExt as _;
use http_body_util::combinators::MapErr;
use hyper::body::Incoming;
use hyper::client::conn::http2::{self, SendRequest};
use hyper_util::rt::{TokioExecutor, TokioIo};
use prost::Message;
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tonic::body::Body;
use tonic::client::Grpc;
use tonic::codegen::Service;
use tonic::{Request, Status, Streaming};
use tonic_prost::ProstCodec;

use super::config::Endpoint;
use super::wire::{WATCH, WatchCreate, WatchRequest, WatchResponse};

type Answer = hyper::Response<MapErr<Incoming, fn(hyper::Error) -> Status>>;

/// The sending half; clones share the connection.
#[derive(Clone, Debug)]
pub(super) struct Link {
    send: SendRequest<Body>,
    origin: Uri,
}

impl Link {
    /// Connects once.
    pub(super) async fn open(
        endpoint: &Endpoint,
        tls: Option<&Arc<ClientConfig>>,
    ) -> Result<Self, String> {
        let place = (endpoint.host.as_str(), endpoint.port);
        let stream = TcpStream::connect(place).await;
        let stream = stream.map_err(|error| error.to_string())?;
        stream
            .set_nodelay(true)
            .map_err(|error| error.to_string())?;
        let send = match tls.filter(|_| endpoint.tls) {
            None => handshake(stream).await?,
            Some(config) => {
                let name = ServerName::try_from(endpoint.host.clone());
                let name = name.map_err(|error| error.to_string())?;
                let connector = TlsConnector::from(Arc::clone(config));
                let stream = connector.connect(name, stream).await;
                handshake(stream.map_err(|error| format!("TLS: {error}"))?).await?
            }
        };
        let origin = endpoint.origin.clone();
        Ok(Self { send, origin })
    }

    /// Whether calls can no longer be sent.
    pub(super) fn is_closed(&self) -> bool {
        self.send.is_closed()
    }

    /// One call.
    pub(super) async fn call<Q, A>(&self, path: &'static str, message: Q) -> Result<A, Status>
    where
        Q: Message + Default + 'static,
        A: Message + Default + 'static,
    {
        let mut grpc = self.grpc();
        let codec = ProstCodec::<Q, A>::default();
        let path = PathAndQuery::from_static(path);
        grpc.ready().await?;
        let answer = grpc.unary(Request::new(message), path, codec).await?;
        Ok(answer.into_inner())
    }

    /// A watch, which lasts as long as what is returned.
    pub(super) async fn watch(
        &self,
        create: WatchCreate,
    ) -> Result<Streaming<WatchResponse>, Status> {
        let mut grpc = self.grpc();
        let codec = ProstCodec::<WatchRequest, WatchResponse>::default();
        let request = WatchRequest {
            create: Some(create),
        };
        // To end the requests would be to end the watch.
        let requests = stream::iter([request]).chain(stream::pending());
        grpc.ready().await?;
        let path = PathAndQuery::from_static(WATCH);
        let answer = grpc.streaming(Request::new(requests), path, codec).await?;
        Ok(answer.into_inner())
    }

    fn grpc(&self) -> Grpc<Self> {
        // The usual limit of 4 MB is below what a watch that catches up may bring at once.
        Grpc::with_origin(self.clone(), self.origin.clone()).max_decoding_message_size(usize::MAX)
    }
}

async fn handshake<S>(stream: S) -> Result<SendRequest<Body>, String>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let handshake = http2::Builder::new(TokioExecutor::new())
        .handshake(TokioIo::new(stream))
        .await;
    let (send, connection) = handshake.map_err(|error| error.to_string())?;
    tokio::spawn(async move {
        if let Err(error) = connection.await {
            tracing::debug!(%error, "connection to etcd broke");
        }
    });
    Ok(send)
}

impl Service<hyper::Request<Body>> for Link {
    type Response = Answer;
    type Error = Status;
    type Future = Pin<Box<dyn Future<Output = Result<Answer, Status>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Status>> {
        // Whether it is lost, the call itself finds out.
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: hyper::Request<Body>) -> Self::Future {
        let answer = self.send.send_request(request);
        Box::pin(async move {
            let answer = answer.await.map_err(|error| broken(&error))?;
            Ok(answer.map(|body| body.map_err(cut as fn(hyper::Error) -> Status)))
        })
    }
}

fn broken(error: &hyper::Error) -> Status {
    let source = std::error::Error::source(error).map(|source| format!(": {source}"));
    Status::unavailable(format!("{error}{}", source.unwrap_or_default()))
}

#[expect(
    clippy::needless_pass_by_value,
    reason = "this is how a body hands it over"
)]
fn cut(error: hyper::Error) -> Status {
    broken(&error)
}
