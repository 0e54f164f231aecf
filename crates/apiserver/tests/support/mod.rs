//! A server on loopback with the whole pipeline, and a plain HTTP client.
#![allow(dead_code, reason = "each test binary uses a part")]

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Method, Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use serde_json::Value;
use tenure_apiserver::auth::{self, Auth, TokenFile};
use tenure_apiserver::http::{Api, Options, RequestInfo, failure_response};
use tenure_apiserver::store::{MemoryStore, Store};
use tokio::net::{TcpListener, TcpStream};

/// The users of the recorded conversations.
const TOKENS: &str = "admintoken,admin,admin,\"system:masters\"\n\
    alicetoken,alice,alice,\"devs\"\nbobtoken,bob,bob\n";

/// A running server; it ends with the test's runtime.
pub(crate) struct Server {
    pub(crate) address: SocketAddr,
    pub(crate) api: Arc<Api>,
    pub(crate) store: Arc<dyn Store>,
}

/// A complete answer.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) headers: HeaderMap,
    pub(crate) bytes: Bytes,
}

/// An answer that is still coming.
pub(crate) struct Stream {
    pub(crate) status: u16,
    body: Incoming,
    rest: Vec<u8>,
}

impl Server {
    /// Starts on an empty memory store.
    pub(crate) async fn start() -> Self {
        Self::start_on(Arc::new(MemoryStore::new())).await
    }

    /// Starts on a store.
    pub(crate) async fn start_on(store: Arc<dyn Store>) -> Self {
        let tokens = TokenFile::parse(TOKENS).expect("token file");
        let options = auth::Options {
            tokens,
            ..auth::Options::default()
        };
        auth::bootstrap::run(&store).await.expect("bootstrap roles");
        let auth = Arc::new(Auth::new(Arc::clone(&store), options).expect("auth"));
        let mut options = Options::default();
        options.access = Arc::clone(&auth) as _;
        let api = Api::open(Arc::clone(&store), options).await.expect("api");
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("bind");
        let address = listener.local_addr().expect("address");
        let served = Arc::clone(&api);
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (api, auth) = (Arc::clone(&served), Arc::clone(&auth));
                let service = service_fn(move |request: Request<Incoming>| {
                    let (api, auth) = (Arc::clone(&api), Arc::clone(&auth));
                    async move { Ok::<_, Infallible>(pipeline(&api, &auth, request).await) }
                });
                tokio::spawn(async move {
                    let builder = auto::Builder::new(TokioExecutor::new());
                    _ = builder
                        .serve_connection(TokioIo::new(stream), service)
                        .await;
                });
            }
        });
        Self {
            address,
            api,
            store,
        }
    }

    /// Sends a request as the administrator and reads the whole answer.
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

    /// Sends a request as the administrator, with headers of its own.
    pub(crate) async fn send(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: Vec<u8>,
    ) -> Answer {
        let mut all = vec![("authorization", "Bearer admintoken")];
        all.extend_from_slice(headers);
        let response = request(self.address, method, path, &all, body).await;
        let (parts, body) = response.into_parts();
        let bytes = body
            .collect()
            .await
            .map(|body| body.to_bytes())
            .unwrap_or_default();
        Answer {
            status: parts.status.as_u16(),
            headers: parts.headers,
            bytes,
        }
    }

    /// Starts a watch as the administrator.
    pub(crate) async fn watch(&self, path: &str) -> Stream {
        let headers = [("authorization", "Bearer admintoken")];
        Stream::of(request(self.address, "GET", path, &headers, Vec::new()).await)
    }
}

impl Answer {
    /// The body as JSON.
    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.bytes)
            .unwrap_or_else(|error| panic!("{error}: {}", String::from_utf8_lossy(&self.bytes)))
    }

    /// The resourceVersion of an object or list.
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

    /// The next event; `None` when the server ended the stream.
    pub(crate) async fn next(&mut self) -> Option<Value> {
        loop {
            if let Some(end) = self.rest.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.rest.drain(..=end).collect();
                return Some(serde_json::from_slice(&line).expect("an event is JSON"));
            }
            let frame = self.body.frame().await?.ok()?;
            if let Ok(data) = frame.into_data() {
                self.rest.extend_from_slice(&data);
            }
        }
    }

    /// The next event, which must come soon.
    pub(crate) async fn expect(&mut self) -> Value {
        let next = tokio::time::timeout(Duration::from_secs(20), self.next()).await;
        next.expect("an event in time").expect("the stream goes on")
    }
}

/// Sends one request on a connection of its own.
pub(crate) async fn request(
    address: SocketAddr,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: Vec<u8>,
) -> Response<Incoming> {
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
    let request = builder.body(Full::new(Bytes::from(body))).expect("request");
    sender.send_request(request).await.expect("answer")
}

async fn pipeline(
    api: &Arc<Api>,
    auth: &Auth,
    mut request: Request<Incoming>,
) -> Response<tenure_apiserver::http::Body> {
    let info = RequestInfo::parse(
        request.method(),
        request.uri().path(),
        request.uri().query(),
    );
    if let Err(failure) = auth.catch_up(request.headers()).await {
        return failure_response(&failure);
    }
    let user = match auth.authenticate(None, request.headers()) {
        Ok(user) => user,
        Err(failure) => return failure_response(&failure),
    };
    if let Err(failure) = auth.authorize(&user, &info.attributes()) {
        return failure_response(&failure);
    }
    request.extensions_mut().insert(info);
    api.handle(request, &user).await
}

/// Whether a status is a success.
pub(crate) fn is_success(status: u16) -> bool {
    StatusCode::from_u16(status).is_ok_and(|status| status.is_success())
}
