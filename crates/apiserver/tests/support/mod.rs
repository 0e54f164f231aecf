//! A server on loopback with the whole request pipeline, and a plain HTTP client.
#![allow(dead_code, reason = "each test binary uses a part")]

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Method, Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Full, StreamBody};
use hyper::body::{Body, Frame, Incoming};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tenure_apiserver::http::Api;
use tenure_apiserver::server::{self, Engine, Handle};
use tenure_apiserver::store::{MemoryStore, Store};
use tokio::net::TcpStream;

/// The users of the recorded conversations.
const TOKENS: &str = "admintoken,admin,admin,\"system:masters\"\n\
    alicetoken,alice,alice,\"devs\"\nbobtoken,bob,bob\n";

/// A running server, configured like `tenure server`. It stops when dropped.
pub(crate) struct Server {
    pub(crate) address: SocketAddr,
    pub(crate) api: Arc<Api>,
    pub(crate) store: Arc<dyn Store>,
    _handle: Handle,
}

/// A complete response.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) headers: HeaderMap,
    pub(crate) bytes: Bytes,
}

/// A streamed response.
pub(crate) struct Stream {
    pub(crate) status: u16,
    body: Incoming,
    rest: Vec<u8>,
}

impl Server {
    /// Starts with an empty memory store.
    pub(crate) async fn start() -> Self {
        Self::start_on(Arc::new(MemoryStore::new())).await
    }

    /// Starts with the given store.
    pub(crate) async fn start_on(store: Arc<dyn Store>) -> Self {
        let tokens = tempfile::NamedTempFile::new().expect("cannot create a file");
        std::fs::write(tokens.path(), TOKENS).expect("cannot write the file");
        let handle = server::Server::builder()
            .no_tls()
            .insecure_listen(SocketAddr::from(([127, 0, 0, 1], 0)))
            .engine(Engine::Custom(Arc::clone(&store)))
            .token_file(tokens.path())
            .start()
            .await
            .expect("a server");
        let (_, address) = handle.url().split_once("://").expect("a URL");
        Self {
            address: address.parse().expect("the server has no address"),
            api: Arc::clone(handle.api()),
            store,
            _handle: handle,
        }
    }

    /// Sends a request as the administrator and reads the whole response.
    pub(crate) async fn call(&self, method: &str, path: &str, body: Option<Value>) -> Answer {
        let body = body.map(|body| body.to_string().into_bytes());
        let kind = match method {
            "PATCH" => "application/merge-patch+json",
            _ => "application/json",
        };
        self.send(
            method,
            path,
            &[("content-type", kind)],
            body.unwrap_or_default(),
        )
        .await
    }

    /// Sends a request as the administrator, with additional headers.
    pub(crate) async fn send(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: Vec<u8>,
    ) -> Answer {
        let mut all = vec![("authorization", "Bearer admintoken")];
        all.extend_from_slice(headers);
        Answer::of(request(self.address, method, path, &all, body).await).await
    }

    /// Sends JSON as the administrator in chunks, without a Content-Length.
    pub(crate) async fn send_pieces(
        &self,
        method: &str,
        path: &str,
        pieces: Vec<Vec<u8>>,
    ) -> Answer {
        let headers = [("authorization", "Bearer admintoken")];
        let frames = pieces.into_iter().map(Bytes::from).map(Frame::data);
        let frames = futures_util::stream::iter(frames.map(Ok::<_, Infallible>));
        let body = StreamBody::new(frames);
        Answer::of(request_with(self.address, method, path, &headers, body).await).await
    }

    /// Starts a watch as the administrator.
    pub(crate) async fn watch(&self, path: &str) -> Stream {
        let headers = [("authorization", "Bearer admintoken")];
        Stream::of(request(self.address, "GET", path, &headers, Vec::new()).await)
    }
}

impl Answer {
    pub(crate) async fn of(response: Response<Incoming>) -> Self {
        let (parts, body) = response.into_parts();
        let bytes = body
            .collect()
            .await
            .map(|body| body.to_bytes())
            .unwrap_or_default();
        Self {
            status: parts.status.as_u16(),
            headers: parts.headers,
            bytes,
        }
    }

    /// Parses the body as JSON.
    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.bytes)
            .unwrap_or_else(|error| panic!("{error}: {}", String::from_utf8_lossy(&self.bytes)))
    }

    /// Returns the resourceVersion of an object or list.
    pub(crate) fn version(&self) -> u64 {
        let json = self.json();
        let text = json["metadata"]["resourceVersion"]
            .as_str()
            .expect("resourceVersion");
        text.parse().expect("number")
    }
}

impl Stream {
    pub(crate) fn of(response: Response<Incoming>) -> Self {
        let status = response.status().as_u16();
        Self {
            status,
            body: response.into_body(),
            rest: Vec::new(),
        }
    }

    /// Returns the next event, or `None` if the server ended the stream.
    pub(crate) async fn next(&mut self) -> Option<Value> {
        loop {
            if let Some(end) = self.rest.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.rest.drain(..=end).collect();
                return Some(serde_json::from_slice(&line).expect("the event is not JSON"));
            }
            let frame = self.body.frame().await?.ok()?;
            if let Ok(data) = frame.into_data() {
                self.rest.extend_from_slice(&data);
            }
        }
    }

    /// Returns the next event; fails if it does not arrive soon.
    pub(crate) async fn expect(&mut self) -> Value {
        let next = tokio::time::timeout(Duration::from_secs(20), self.next()).await;
        next.expect("no event arrived in time")
            .expect("the stream ended")
    }
}

/// Sends one request on a new connection.
pub(crate) async fn request(
    address: SocketAddr,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: Vec<u8>,
) -> Response<Incoming> {
    request_with(address, method, path, headers, Full::new(Bytes::from(body))).await
}

async fn request_with<B>(
    address: SocketAddr,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: B,
) -> Response<Incoming>
where
    B: Body<Data = Bytes, Error = Infallible> + Send + 'static,
{
    let stream = TcpStream::connect(address).await.expect("connect");
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream))
        .await
        .expect("handshake");
    tokio::spawn(async move {
        _ = connection.await;
    });
    let mut builder = Request::builder()
        .method(Method::from_bytes(method.as_bytes()).expect("method"))
        .uri(path)
        .header("host", "localhost");
    for (name, value) in headers {
        builder = builder.header(*name, *value);
    }
    let request = builder.body(body).expect("request");
    sender.send_request(request).await.expect("answer")
}

/// Whether a status is a success.
pub(crate) fn is_success(status: u16) -> bool {
    StatusCode::from_u16(status).is_ok_and(|status| status.is_success())
}
