//! One connection with many requests in flight. Each request needs only an HTTP/2 stream.
//!
//! hyper's client uses a task, two channels and a queue entry per request. At thousands of small requests per second,
//! these are a large part of the cost. Here the caller hands the request to the connection and is woken by the
//! response.

use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use futures_util::FutureExt as _;
use h2::client::{self, ResponseFuture, SendRequest};
use h2::{Ping, PingPong, Reason, RecvStream};
use http::header::CONTENT_LENGTH;
use http::{Request, Response};
use hyper::body::{Body as HttpBody, Bytes, Frame, Incoming, SizeHint};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::timeout;
use tower::BoxError;

use crate::clock::pause;

/// Flow-control window: the amount of data that the server may send ahead on one stream, and on all of them.
const STREAM_WINDOW: u32 = 2 << 20;
const WINDOW: u32 = 5 << 20;

/// Number of requests in flight, and length of a response header, that are assumed until the server sends its settings.
/// Same as hyper's values.
const STREAMS: usize = 100;
const HEAD: u32 = 16 << 10;

/// Interval and timeout of pings on a connection with requests in flight and no responses. Without a ping response the
/// connection counts as dead. A read timeout would not detect this, because each written request restarts it.
const ALIVE: (Duration, Duration) = (Duration::from_secs(30), Duration::from_secs(15));

/// The sending half.
pub(super) struct Single {
    send: SendRequest<Bytes>,
    /// The connection's own reference is one, and every request in flight has another.
    under_way: Weak<()>,
}

impl Single {
    /// Performs the HTTP/2 handshake.
    pub(super) async fn over<S>(stream: S) -> Result<Self, h2::Error>
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let handshake = client::Builder::new()
            .initial_window_size(STREAM_WINDOW)
            .initial_connection_window_size(WINDOW)
            .initial_max_send_streams(STREAMS)
            .max_header_list_size(HEAD)
            .enable_push(false)
            .handshake(stream);
        let (send, mut connection) = handshake.await?;
        let own = Arc::new(());
        let under_way = Arc::downgrade(&own);
        let silence = connection.ping_pong().map(|pings| silence(pings, own));
        // The task ends when the last sender is dropped or the server closes the connection. Waiting requests then
        // receive an error.
        tokio::spawn(async move {
            let why = match silence {
                None => connection.await.err().map(|error| error.to_string()),
                Some(silence) => tokio::select! {
                    // Process data that arrived while this process was stopped before any timer.
                    biased;
                    ended = connection => ended.err().map(|error| error.to_string()),
                    why = silence => Some(why),
                },
            };
            if let Some(why) = why {
                tracing::debug!(why, "the connection ended");
            }
        });
        Ok(Self { send, under_way })
    }

    /// Reserves room for a request, unless the connection has ended.
    pub(super) fn room(&self) -> Option<Room> {
        // A clone always has room for one more request, which waits for its turn in the connection. If the connection
        // ends in the meantime, it is unknown whether the request was sent.
        let send = self.send.clone().ready().now_or_never()?.ok()?;
        let under_way = self.under_way.upgrade()?;
        Some(Room { send, under_way })
    }
}

/// Reserved room for a request.
pub(super) struct Room {
    send: SendRequest<Bytes>,
    under_way: Arc<()>,
}

impl Room {
    pub(super) fn send(mut self, request: Request<Bytes>) -> Sent {
        let (mut head, body) = request.into_parts();
        if !body.is_empty() {
            head.headers.insert(CONTENT_LENGTH, body.len().into());
        }
        let sent = self
            .send
            .send_request(Request::from_parts(head, ()), body.is_empty())
            .and_then(|(answer, mut stream)| {
                if !body.is_empty() {
                    stream.send_data(body, true)?;
                }
                Ok(answer)
            });
        Sent {
            answer: sent.map_err(Some),
            under_way: self.under_way,
        }
    }
}

/// A sent request. Dropping it notifies the server that the response is no longer needed.
pub(super) struct Sent {
    answer: Result<ResponseFuture, Option<h2::Error>>,
    under_way: Arc<()>,
}

impl Future for Sent {
    type Output = Result<Response<Content>, h2::Error>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let answer = match &mut self.answer {
            Ok(answer) => ready!(answer.poll_unpin(cx))?,
            Err(error) => {
                let error = error.take();
                return Poll::Ready(Err(error.unwrap_or_else(|| Reason::CANCEL.into())));
            }
        };
        let under_way = self.under_way.clone();
        Poll::Ready(Ok(answer.map(|body| Content::Streamed {
            body,
            _under_way: under_way,
        })))
    }
}

/// The body of a response.
pub(super) enum Content {
    /// On the shared connection.
    Streamed {
        body: RecvStream,
        _under_way: Arc<()>,
    },
    /// On a dedicated connection.
    Pooled(Incoming),
}

impl HttpBody for Content {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        match self.get_mut() {
            Self::Pooled(body) => Pin::new(body).poll_frame(cx).map_err(Into::into),
            Self::Streamed { body, .. } => {
                let data = match ready!(body.poll_data(cx)) {
                    Some(Ok(data)) => data,
                    Some(Err(error)) => return Poll::Ready(Some(Err(error.into()))),
                    // API servers send no trailers.
                    None => return Poll::Ready(None),
                };
                body.flow_control().release_capacity(data.len())?;
                Poll::Ready(Some(Ok(Frame::data(data))))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Pooled(body) => body.is_end_stream(),
            Self::Streamed { body, .. } => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Pooled(body) => body.size_hint(),
            Self::Streamed { .. } => SizeHint::default(),
        }
    }
}

/// Completes with a reason when the server does not answer a ping in time although requests are waiting.
async fn silence(mut pings: PingPong, own: Arc<()>) -> String {
    loop {
        pause(ALIVE.0).await;
        if Arc::strong_count(&own) == 1 {
            continue;
        }
        match timeout(ALIVE.1, pings.ping(Ping::opaque())).await {
            Ok(Ok(_)) => {}
            Ok(Err(error)) => return error.to_string(),
            Err(_) => return "no response to a ping".to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt as _;
    use tokio::io::duplex;

    use super::*;

    fn request(body: &'static str) -> Request<Bytes> {
        let request = Request::put("https://server/x");
        request.body(Bytes::from_static(body.as_bytes())).unwrap()
    }

    #[tokio::test]
    async fn many_requests_are_answered_in_any_order() {
        let (ours, theirs) = duplex(1 << 16);
        let server = tokio::spawn(async move {
            let mut server = h2::server::handshake(theirs).await.unwrap();
            let mut waiting = Vec::new();
            while let Some(next) = server.accept().await {
                let (request, answer) = next.unwrap();
                let length = request.headers()[CONTENT_LENGTH].clone();
                waiting.push((length, request.into_body(), answer));
                if waiting.len() < 3 {
                    continue;
                }
                for (length, mut body, mut answer) in waiting.drain(..).rev() {
                    tokio::spawn(async move {
                        let body = body.data().await.unwrap().unwrap();
                        assert_eq!(length, body.len().to_string());
                        let mut content = answer.send_response(Response::new(()), false).unwrap();
                        content.send_data(body, true).unwrap();
                    });
                }
            }
        });
        let single = Single::over(ours).await.unwrap();
        let sent =
            ["a", "bb", "ccc"].map(|body| (body, single.room().unwrap().send(request(body))));
        for (body, sent) in sent {
            let answer = sent.await.unwrap().into_body();
            assert_eq!(answer.collect().await.unwrap().to_bytes(), body);
        }
        assert_eq!(single.under_way.strong_count(), 1);
        drop(single);
        server.await.unwrap();
    }

    #[tokio::test]
    async fn ended_connection_accepts_no_request() {
        let (ours, theirs) = duplex(1 << 16);
        let server = tokio::spawn(h2::server::handshake(theirs));
        let single = Single::over(ours).await.unwrap();
        drop(server.await.unwrap());
        // The task of the connection must first notice that the server has closed it.
        for _ in 0..100 {
            let Some(room) = single.room() else { return };
            room.send(request("a")).await.err().expect("no answer");
        }
        panic!("it still takes requests");
    }

    #[tokio::test(start_paused = true)]
    async fn silent_server_ends_the_connection() {
        let (ours, theirs) = duplex(1 << 16);
        let server = tokio::spawn(h2::server::handshake(theirs));
        let single = Single::over(ours).await.unwrap();
        // The server stays connected but no longer reads.
        let _mute = server.await.unwrap();
        let began = tokio::time::Instant::now();
        let sent = single.room().unwrap().send(request("a"));
        sent.await.err().expect("no answer");
        assert_eq!(began.elapsed(), ALIVE.0 + ALIVE.1);
    }
}
