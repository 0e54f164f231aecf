//! One connection to one member of etcd: HTTP/2 over TCP or TLS, shared by calls and the watch.
//!
//! A lost connection is not replaced here. The mirror detects the loss and connects again.

use std::marker::PhantomData;
use std::sync::Arc;

use bytes::{Buf as _, BufMut as _, Bytes, BytesMut};
use futures_util::FutureExt as _;
use h2::RecvStream;
use h2::client::{self, SendRequest};
use http::header::{CONTENT_TYPE, TE};
use http::{HeaderMap, HeaderValue, Method, Request, StatusCode, Uri, Version};
use prost::Message;
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tonic::{Code, Status};

use super::config::Endpoint;
use super::wire::{WATCH, WatchCreate, WatchRequest, WatchResponse};

/// Flow-control window of a stream and of the connection. It is large, because a watch that catches up receives many
/// events.
const STREAM_WINDOW: u32 = 2 << 20;
const WINDOW: u32 = 5 << 20;
/// Length of the gRPC message prefix: the compression flag and the length.
const PREFIX: usize = 5;

/// The sending half; clones share the connection.
#[derive(Clone)]
pub(super) struct Link {
    send: SendRequest<Bytes>,
    origin: Uri,
}

impl std::fmt::Debug for Link {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Link")
            .field("origin", &self.origin)
            .finish_non_exhaustive()
    }
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
        let origin = endpoint.origin.clone();
        match tls.filter(|_| endpoint.tls) {
            None => Self::over(stream, origin).await,
            Some(config) => {
                let name = ServerName::try_from(endpoint.host.clone());
                let name = name.map_err(|error| error.to_string())?;
                let connector = TlsConnector::from(Arc::clone(config));
                let stream = connector.connect(name, stream).await;
                Self::over(stream.map_err(|error| format!("TLS: {error}"))?, origin).await
            }
        }
    }

    async fn over<S>(stream: S, origin: Uri) -> Result<Self, String>
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let handshake = client::Builder::new()
            .initial_window_size(STREAM_WINDOW)
            .initial_connection_window_size(WINDOW)
            .enable_push(false)
            .handshake(stream);
        let (send, connection) = handshake.await.map_err(|error| error.to_string())?;
        tokio::spawn(async move {
            if let Err(error) = connection.await {
                tracing::debug!(%error, "connection to etcd broke");
            }
        });
        Ok(Self { send, origin })
    }

    /// Returns whether new calls are impossible, including after a GOAWAY that lets running calls finish.
    pub(super) fn is_closed(&self) -> bool {
        let ready = self.send.clone().ready().now_or_never();
        !matches!(ready, Some(Ok(_)))
    }

    /// Makes one call.
    pub(super) async fn call<Q, A>(&self, path: &'static str, message: &Q) -> Result<A, Status>
    where
        Q: Message,
        A: Message + Default,
    {
        // The request is sent in one piece, so that etcd usually wakes up once.
        let mut answers = self.begin(path, message, true).await?;
        let answer = answers.next().await?;
        let answer = answer.ok_or_else(|| Status::internal("the response has no message"))?;
        // The trailers follow, with the status.
        answers.next().await?;
        Ok(answer)
    }

    /// Starts a watch, which ends when the returned stream is dropped.
    pub(super) async fn watch(&self, create: WatchCreate) -> Result<Watch, Status> {
        let create = Some(create);
        // Closing the request stream would end the watch.
        self.begin(WATCH, &WatchRequest { create }, false).await
    }

    /// Sends a message and waits for the response head. `whole` closes the request stream.
    async fn begin<Q: Message, A>(
        &self,
        path: &'static str,
        message: &Q,
        whole: bool,
    ) -> Result<Answers<A>, Status> {
        let mut send = self.send.clone().ready().await.map_err(broken)?;
        let (answer, mut requests) = send.send_request(self.head(path)?, false).map_err(broken)?;
        requests.send_data(framed(message), whole).map_err(broken)?;
        let (head, body) = answer.await.map_err(broken)?.into_parts();
        if head.status != StatusCode::OK {
            return Err(Status::unknown(format!("HTTP status {}", head.status)));
        }
        // A response without messages has its status in the headers.
        verdict(&head.headers)?;
        Ok(Answers {
            body,
            read: BytesMut::new(),
            kind: PhantomData,
        })
    }

    fn head(&self, path: &'static str) -> Result<Request<()>, Status> {
        let mut place = self.origin.clone().into_parts();
        place.path_and_query = Some(http::uri::PathAndQuery::from_static(path));
        let place = Uri::from_parts(place).map_err(|error| Status::internal(error.to_string()))?;
        let mut head = Request::new(());
        *head.method_mut() = Method::POST;
        *head.version_mut() = Version::HTTP_2;
        *head.uri_mut() = place;
        let headers = head.headers_mut();
        headers.insert(TE, HeaderValue::from_static("trailers"));
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
        Ok(head)
    }
}

/// The response stream of a watch.
pub(super) type Watch = Answers<WatchResponse>;

/// The messages of one response.
pub(super) struct Answers<A> {
    body: RecvStream,
    read: BytesMut,
    kind: PhantomData<fn() -> A>,
}

impl<A: Message + Default> Answers<A> {
    /// Returns the next message, or `None` at a successful end.
    pub(super) async fn next(&mut self) -> Result<Option<A>, Status> {
        loop {
            if let Some(message) = take(&mut self.read)? {
                let message = A::decode(message);
                return message.map(Some).map_err(|error| {
                    Status::internal(format!("cannot decode the response: {error}"))
                });
            }
            let Some(piece) = self.body.data().await else {
                break;
            };
            let piece = piece.map_err(broken)?;
            self.body
                .flow_control()
                .release_capacity(piece.len())
                .map_err(broken)?;
            self.read.extend_from_slice(&piece);
        }
        let trailers = self.body.trailers().await.map_err(broken)?;
        let silent = || Status::unknown("the response has no gRPC status");
        verdict(&trailers.ok_or_else(silent)?)?;
        Ok(None)
    }
}

/// Encodes a message with its gRPC prefix.
fn framed(message: &impl Message) -> Bytes {
    let length = message.encoded_len();
    let mut frame = BytesMut::with_capacity(PREFIX + length);
    frame.put_u8(0);
    frame.put_u32(u32::try_from(length).unwrap_or(u32::MAX));
    message.encode_raw(&mut frame);
    frame.freeze()
}

/// Takes the first complete message from the buffer.
fn take(read: &mut BytesMut) -> Result<Option<Bytes>, Status> {
    let Some(mut prefix) = read.get(..PREFIX) else {
        return Ok(None);
    };
    if prefix.get_u8() != 0 {
        return Err(Status::internal("the response is compressed"));
    }
    let length = usize::try_from(prefix.get_u32()).unwrap_or(usize::MAX);
    if read.len() - PREFIX < length {
        return Ok(None);
    }
    let mut message = read.split_to(PREFIX + length);
    message.advance(PREFIX);
    Ok(Some(message.freeze()))
}

/// Reads the gRPC status from headers or trailers; a missing status is not an error.
fn verdict(headers: &HeaderMap) -> Result<(), Status> {
    match Status::from_header_map(headers) {
        Some(status) if status.code() != Code::Ok => Err(status),
        _ => Ok(()),
    }
}

#[expect(clippy::needless_pass_by_value, reason = "expected an error of h2")]
fn broken(error: h2::Error) -> Status {
    Status::unavailable(error.to_string())
}

#[cfg(test)]
mod tests {
    use super::super::wire::Header;
    use super::*;

    #[test]
    fn grpc_messages_are_split_at_their_lengths() {
        let messages = [7, 300].map(|revision| Header {
            cluster_id: 1,
            revision,
        });
        let all: Vec<u8> = messages.iter().flat_map(framed).collect();
        for pieces in [1, 3, all.len()] {
            let (mut read, mut found) = (BytesMut::new(), Vec::new());
            for piece in all.chunks(pieces) {
                read.extend_from_slice(piece);
                while let Some(message) = take(&mut read).unwrap() {
                    found.push(Header::decode(message).unwrap());
                }
            }
            assert_eq!(found, messages);
            assert!(read.is_empty());
        }
        let mut compressed = BytesMut::from(&[1, 0, 0, 0, 0][..]);
        assert_eq!(take(&mut compressed).unwrap_err().code(), Code::Internal);
    }

    #[test]
    fn call_fails_only_with_a_nonzero_grpc_status() {
        let headers = |code: &'static str| {
            HeaderMap::from_iter([(
                http::HeaderName::from_static("grpc-status"),
                HeaderValue::from_static(code),
            )])
        };
        assert!(verdict(&HeaderMap::new()).is_ok());
        assert!(verdict(&headers("0")).is_ok());
        let refused = verdict(&headers("11")).unwrap_err();
        assert_eq!(refused.code(), Code::OutOfRange);
    }
}
