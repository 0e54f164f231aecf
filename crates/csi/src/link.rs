//! One connection to a driver, without reconnection.
//!
//! A driver that restarts may have other capabilities and may have lost volumes in progress. Therefore a lost
//! connection is reported to its user and never replaced. An idle connection stays open.

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
    /// Connects once. Fails immediately if no driver listens.
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
        // The sender is dropped only after it has sent the value.
        _ = lost.wait_for(|lost| *lost).await;
    }
}

impl Service<hyper::Request<Body>> for Link {
    type Response = Answer;
    type Error = Status;
    type Future = Pin<Box<dyn Future<Output = Result<Answer, Status>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Status>> {
        // The service is always ready. A call on a lost connection fails with its own status.
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

/// Maps a connection error to Unavailable. The driver may still process the call, so the error must not count as the
/// driver's response.
fn broken(error: &hyper::Error) -> Status {
    let source = std::error::Error::source(error).map(|source| format!(": {source}"));
    Status::unavailable(format!(
        "connection to the driver: {error}{}",
        source.unwrap_or_default()
    ))
}

#[expect(
    clippy::needless_pass_by_value,
    reason = "the body passes its error by value"
)]
fn cut(error: hyper::Error) -> Status {
    broken(&error)
}
