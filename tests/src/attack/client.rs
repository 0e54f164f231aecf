//! HTTP requests of one user, and sockets that misuse HTTP.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Request};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo};
use serde_json::Value;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpSocket, TcpStream};

use crate::clock::{self, Nanos};

/// Time limit of every request, longer than any request takes.
pub const LIMIT: Duration = Duration::from_secs(120);

/// Content type of a JSON object.
pub const JSON: &str = "application/json";
/// Content type of a merge patch.
pub const MERGE: &str = "application/merge-patch+json";
/// Content type of a JSON patch.
pub const JSON_PATCH: &str = "application/json-patch+json";

/// A user of the server, identified by a token.
#[derive(Clone, Debug)]
pub struct Client {
    /// The server, without TLS.
    pub address: SocketAddr,
    /// The bearer token.
    pub token: String,
}

/// One connection of a client.
#[derive(Debug)]
pub struct Connection {
    sender: http1::SendRequest<Full<Bytes>>,
    token: String,
}

/// A complete response.
#[derive(Clone, Debug)]
pub struct Reply {
    /// The HTTP status.
    pub status: u16,
    /// The headers.
    pub headers: HeaderMap,
    /// The body.
    pub bytes: Bytes,
}

impl Reply {
    /// Returns the body as JSON, or null.
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.bytes).unwrap_or_default()
    }

    /// Returns whether the request was executed.
    pub fn is_success(&self) -> bool {
        (200..300).contains(&self.status)
    }
}

impl Client {
    /// Opens a connection.
    ///
    /// # Errors
    ///
    /// Fails if the server does not accept the connection in time.
    pub async fn connect(&self) -> io::Result<Connection> {
        let connect = async {
            let stream = TcpStream::connect(self.address).await?;
            let handshake = http1::handshake(TokioIo::new(stream)).await;
            handshake.map_err(io::Error::other)
        };
        let (sender, connection) = within(connect).await?;
        tokio::spawn(connection);
        Ok(Connection {
            sender,
            token: self.token.clone(),
        })
    }

    /// Sends one request on a new connection, with a JSON body unless it is null.
    ///
    /// # Errors
    ///
    /// Fails if there is no response in time.
    pub async fn send(&self, method: &str, path: &str, body: &Value) -> io::Result<Reply> {
        let kind = if method == "PATCH" { MERGE } else { JSON };
        let body = match body {
            Value::Null => Bytes::new(),
            body => body.to_string().into(),
        };
        let mut connection = self.connect().await?;
        connection
            .send(method, path, &[("content-type", kind)], body)
            .await
    }

    /// Sends one request on a new connection, with additional headers.
    ///
    /// # Errors
    ///
    /// Fails if there is no response in time.
    pub async fn send_with(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &Value,
    ) -> io::Result<Reply> {
        let mut connection = self.connect().await?;
        let body = Bytes::from(body.to_string());
        connection.send(method, path, headers, body).await
    }

    /// Starts a watch and returns its stream.
    ///
    /// # Errors
    ///
    /// Fails if there is no response in time.
    pub async fn watch(&self, path: &str) -> io::Result<(u16, Incoming)> {
        let mut connection = self.connect().await?;
        let request = connection.request("GET", path, &[], Bytes::new())?;
        let answered = async { connection.sender.send_request(request).await };
        let response = within(async { answered.await.map_err(io::Error::other) }).await?;
        Ok((response.status().as_u16(), response.into_body()))
    }

    /// Connects a socket whose receive buffer is small, and sends the head of a request.
    ///
    /// # Errors
    ///
    /// Fails if the server does not accept the connection or does not read.
    pub async fn raw(&self, line: &str, headers: &str) -> io::Result<TcpStream> {
        let socket = TcpSocket::new_v4()?;
        socket.set_recv_buffer_size(4_096)?;
        let head = format!(
            "{line} HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {}\r\n{headers}\r\n",
            self.token
        );
        within(async {
            let mut stream = socket.connect(self.address).await?;
            stream.write_all(head.as_bytes()).await?;
            Ok(stream)
        })
        .await
    }
}

impl Connection {
    fn request(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: Bytes,
    ) -> io::Result<Request<Full<Bytes>>> {
        let mut request = Request::builder().method(method).uri(path);
        request = request
            .header("host", "localhost")
            .header("authorization", format!("Bearer {}", self.token));
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        request.body(Full::new(body)).map_err(io::Error::other)
    }

    /// Sends one request and reads the whole response.
    ///
    /// # Errors
    ///
    /// Fails if there is no response in time.
    pub async fn send(
        &mut self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: Bytes,
    ) -> io::Result<Reply> {
        let request = self.request(method, path, headers, body)?;
        within(async {
            self.sender.ready().await.map_err(io::Error::other)?;
            let response = self.sender.send_request(request).await;
            let (parts, body) = response.map_err(io::Error::other)?.into_parts();
            let body = body.collect().await.map_err(io::Error::other)?;
            Ok(Reply {
                status: parts.status.as_u16(),
                headers: parts.headers,
                bytes: body.to_bytes(),
            })
        })
        .await
    }
}

/// Opens a connection from another address of loopback than the usual one, and sends these bytes.
///
/// # Errors
///
/// Fails if the server does not accept the connection.
pub async fn open_from(
    from: Ipv4Addr,
    address: SocketAddr,
    bytes: &'static [u8],
) -> io::Result<TcpStream> {
    let socket = TcpSocket::new_v4()?;
    socket.bind(SocketAddr::from((from, 0)))?;
    within(async {
        let mut stream = socket.connect(address).await?;
        stream.write_all(bytes).await?;
        Ok(stream)
    })
    .await
}

/// Reads the status code of a raw response; 0 if the server closed the connection without one.
pub async fn status(stream: &mut TcpStream) -> u16 {
    let mut head = [0; 12];
    let read = within(async { stream.read_exact(&mut head).await }).await;
    let text = std::str::from_utf8(&head[9..]).unwrap_or_default();
    match read {
        Ok(_) => text.parse().unwrap_or_default(),
        Err(_) => 0,
    }
}

async fn within<T>(work: impl Future<Output = io::Result<T>>) -> io::Result<T> {
    let done = tokio::time::timeout(LIMIT, work).await;
    done.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
}

/// Opens up to this many HTTP/2 streams on one connection and resets each of them immediately. Returns how many were
/// opened before the server closed the connection.
pub async fn reset_streams(client: &Client, path: &str, most: usize, end: Nanos) -> usize {
    let Ok(mut sender) = client.connect_http2().await else {
        return 0;
    };
    let mut opened = 0;
    while opened < most && clock::now() < end && sender.ready().await.is_ok() {
        let request = Request::get(format!("http://localhost{path}"))
            .header("authorization", format!("Bearer {}", client.token))
            .body(Full::new(Bytes::new()));
        let Ok(request) = request else {
            return opened;
        };
        let mut response = Box::pin(sender.send_request(request));
        // One poll sends the head; the drop resets the stream.
        let send = |context: &mut Context<'_>| {
            _ = response.as_mut().poll(context);
            Poll::Ready(())
        };
        std::future::poll_fn(send).await;
        tokio::task::yield_now().await;
        drop(response);
        opened += 1;
    }
    opened
}

impl Client {
    /// Opens an HTTP/2 connection.
    ///
    /// # Errors
    ///
    /// Fails if the server does not accept the connection.
    pub async fn connect_http2(&self) -> io::Result<http2::SendRequest<Full<Bytes>>> {
        let connect = async {
            let stream = TcpStream::connect(self.address).await?;
            let executor = TokioExecutor::new();
            let handshake = http2::handshake(executor, TokioIo::new(stream)).await;
            handshake.map_err(io::Error::other)
        };
        let (sender, connection) = within(connect).await?;
        tokio::spawn(connection);
        Ok(sender)
    }
}
