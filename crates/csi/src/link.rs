//! One connection to a driver, which never comes back once it is lost.
//!
//! A driver that went away may come back as another one, with other abilities and without the volumes
//! it was making; so there is no reconnecting, and whoever holds the link is told. Idleness is not loss:
//! nothing here closes a quiet connection.

use std::path::Path;
use std::pin::Pin;
use std::task::{Context, Poll};

use http_body_util::BodyExt as _;
use http_body_util::combinators::MapErr;
use hyper::body::Incoming;
use hyper::client::conn::http2::{self, SendRequest};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::UnixStream;
use tokio::sync::watch;
use tonic::Status;
use tonic::body::Body;
use tower::Service;

type Answer = hyper::Response<MapErr<Incoming, fn(hyper::Error) -> Status>>;

/// The sending half; clones share the connection.
#[derive(Clone, Debug)]
pub(crate) struct Link {
    send: SendRequest<Body>,
    lost: watch::Receiver<bool>,
}

impl Link {
    /// Connects once, and fails at once if nobody listens.
    pub(crate) async fn open(socket: &Path) -> Result<Self, String> {
        let stream = UnixStream::connect(socket).await;
        let stream = stream.map_err(|error| error.to_string())?;
        let handshake = http2::Builder::new(TokioExecutor::new())
            .handshake(TokioIo::new(stream))
            .await;
        let (send, connection) = handshake.map_err(|error| error.to_string())?;
        let (tell, lost) = watch::channel(false);
        tokio::spawn(async move {
            if let Err(error) = connection.await {
                tracing::debug!(%error, "connection to the csi driver broke");
            }
            tell.send_replace(true);
        });
        Ok(Self { send, lost })
    }

    /// Completes when the connection is gone. Cancel safe.
    pub(crate) async fn lost(&self) {
        let mut lost = self.lost.clone();
        // The sender drops only after it has told.
        _ = lost.wait_for(|lost| *lost).await;
    }
}

impl Service<hyper::Request<Body>> for Link {
    type Response = Answer;
    type Error = Status;
    type Future = Pin<Box<dyn Future<Output = Result<Answer, Status>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Status>> {
        // A connection is always ready; whether it is lost, the call itself finds out, with its code.
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

/// Whatever breaks below the call means Unavailable: the driver may be at work all the same, so it must
/// not count as an answer of the driver.
fn broken(error: &hyper::Error) -> Status {
    let source = std::error::Error::source(error).map(|source| format!(": {source}"));
    Status::unavailable(format!(
        "connection to the driver: {error}{}",
        source.unwrap_or_default()
    ))
}

#[expect(
    clippy::needless_pass_by_value,
    reason = "this is how a body hands it over"
)]
fn cut(error: hyper::Error) -> Status {
    broken(&error)
}
