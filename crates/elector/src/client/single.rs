//! One connection on which many requests are under way, each of them a stream and nothing more.
//!
//! hyper's client has a task, two channels and a place in a queue for each request; with thousands of small
//! ones a second that is a good part of their cost. Here who asks hands the request to the connection and is
//! woken by its answer.

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

/// What the server may send ahead on one stream, and on all of them.
const STREAM_WINDOW: u32 = 2 << 20;
const WINDOW: u32 = 5 << 20;

/// How many requests may be under way, and how long the head of an answer may be, before the server says how it
/// wants it: hyper's.
const STREAMS: usize = 100;
const HEAD: u32 = 16 << 10;

/// A connection on which requests leave and no answer comes is asked for a sign of life this often, and is
/// dead without one: reading alone has no end on it, as every request that is written begins the wait anew.
const ALIVE: (Duration, Duration) = (Duration::from_secs(30), Duration::from_secs(15));

/// The sending side.
pub(super) struct Single {
    send: SendRequest<Bytes>,
    /// The connection's own part is one, and every request that is under way has another.
    under_way: Weak<()>,
}

impl Single {
    /// Agrees with the server on how to talk.
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
        // It ends with the last who may send on it, or with the server; who waits then, is told.
        tokio::spawn(async move {
            let why = match silence {
                None => connection.await.err().map(|error| error.to_string()),
                Some(silence) => tokio::select! {
                    // What has come while this process was stopped counts.
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

    /// Room for a request, unless the connection has ended.
    pub(super) fn room(&self) -> Option<Room> {
        // On a clone there always is for one more, which waits for its turn in the connection. If that ends
        // meanwhile, nobody knows whether it was sent.
        let send = self.send.clone().ready().now_or_never()?.ok()?;
        let under_way = self.under_way.upgrade()?;
        Some(Room { send, under_way })
    }
}

/// Room for a request.
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

/// A request that was sent. To drop it is to tell the server that nobody waits any more.
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

/// The body of an answer.
pub(super) enum Content {
    /// On a connection with others.
    Streamed {
        body: RecvStream,
        _under_way: Arc<()>,
    },
    /// On one of its own.
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

/// Completes with a reason when the server has given no sign of life in time, although somebody waits for it.
async fn silence(mut pings: PingPong, own: Arc<()>) -> String {
    loop {
        pause(ALIVE.0).await;
        if Arc::strong_count(&own) == 1 {
            continue;
        }
        match timeout(ALIVE.1, pings.ping(Ping::opaque())).await {
            Ok(Ok(_)) => {}
            Ok(Err(error)) => return error.to_string(),
            Err(_) => return "no sign of life".to_owned(),
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
    async fn a_connection_that_ended_has_no_room() {
        let (ours, theirs) = duplex(1 << 16);
        let server = tokio::spawn(h2::server::handshake(theirs));
        let single = Single::over(ours).await.unwrap();
        drop(server.await.unwrap());
        // The connection's own task has to notice.
        for _ in 0..100 {
            let Some(room) = single.room() else { return };
            room.send(request("a")).await.err().expect("no answer");
        }
        panic!("it still takes requests");
    }

    #[tokio::test(start_paused = true)]
    async fn a_server_that_says_nothing_is_given_up() {
        let (ours, theirs) = duplex(1 << 16);
        let server = tokio::spawn(h2::server::handshake(theirs));
        let single = Single::over(ours).await.unwrap();
        // It stays connected, and reads nothing any more.
        let _mute = server.await.unwrap();
        let began = tokio::time::Instant::now();
        let sent = single.room().unwrap().send(request("a"));
        sent.await.err().expect("no answer");
        assert_eq!(began.elapsed(), ALIVE.0 + ALIVE.1);
    }
}
