//! Slow clients, idle clients, many clients.

use std::io::ErrorKind;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use futures_util::{StreamExt as _, stream};
use http::Method;
use http_body_util::{BodyExt as _, StreamBody};
use hyper::body::Frame;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use super::{LEASES, connect, connect_tls, get, request};
use crate::TestServer;
use crate::server::Server;

const SHORT: Duration = Duration::from_millis(100);
/// Longer than any step of these tests takes.
const LIMIT: Duration = Duration::from_secs(180);

/// Reads until the server closes the connection; fails if the server does not close it.
async fn until_closed(mut io: impl tokio::io::AsyncRead + Unpin) -> String {
    let mut text = Vec::new();
    let read = tokio::time::timeout(Duration::from_secs(20), io.read_to_end(&mut text)).await;
    let _ = read.expect("the server did not close the connection");
    String::from_utf8_lossy(&text).into_owned()
}

#[tokio::test]
async fn request_head_that_never_ends_times_out() {
    let builder = Server::builder().no_tls().header_timeout(SHORT);
    let server = TestServer::start_with(builder).await.unwrap();
    let mut slow = connect(server.url()).await;
    slow.write_all(b"GET /version HTTP/1.1\r\nhost: localhost\r\n")
        .await
        .unwrap();
    until_closed(slow).await;
    assert_eq!(get(server.url(), "/version", "").await.code, 200);
}

#[tokio::test]
async fn body_that_never_ends_is_rejected() {
    let builder = Server::builder().no_tls().body_timeout(SHORT);
    let server = TestServer::start_with(builder).await.unwrap();
    let mut slow = connect(server.url()).await;
    let head = format!(
        "POST {LEASES} HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {}\r\n\
         content-type: application/json\r\ncontent-length: 100\r\n\r\n{{",
        server.token()
    );
    slow.write_all(head.as_bytes()).await.unwrap();
    let answer = until_closed(slow).await;
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("HTTP/1.1 400 "), "{answer}");
    let status: serde_json::Value = serde_json::from_str(body).unwrap();
    assert_eq!(status["kind"], "Status");
    assert_eq!(
        (&status["code"], &status["reason"]),
        (&400.into(), &"BadRequest".into())
    );
    let message = status["message"].as_str().unwrap();
    assert!(message.contains("did not arrive in time"), "{message}");
}

/// Set when the server drops the response.
struct Flag(Arc<AtomicBool>);

impl Drop for Flag {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

#[tokio::test]
async fn client_that_never_reads_is_disconnected() {
    let gone = Arc::new(AtomicBool::new(false));
    let flag = Arc::clone(&gone);
    let endless = move |_: http::request::Parts| {
        let flag = Flag(Arc::clone(&flag));
        let chunk = Bytes::from_static(&[b'x'; 65536]);
        let chunks = stream::repeat(chunk).map(move |chunk| {
            let _ = &flag;
            Ok(Frame::data(chunk))
        });
        let body = StreamBody::new(chunks).boxed_unsync();
        std::future::ready(http::Response::new(body))
    };
    let builder = Server::builder()
        .no_tls()
        .write_timeout(SHORT)
        .public_route("/endless", endless);
    let server = TestServer::start_with(builder).await.unwrap();
    let mut deaf = connect(server.url()).await;
    deaf.write_all(b"GET /endless HTTP/1.1\r\nhost: localhost\r\n\r\n")
        .await
        .unwrap();
    let wait = async {
        while !gone.load(Ordering::SeqCst) {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), wait)
        .await
        .unwrap();
}

#[tokio::test]
async fn unread_response_ends_its_connection() {
    let large = |_: http::request::Parts| {
        let body = http_body_util::Full::new(Bytes::from(vec![b'x'; 1 << 20]));
        let body = body.map_err(|never| match never {}).boxed_unsync();
        std::future::ready(http::Response::new(body))
    };
    let builder = Server::builder()
        .no_tls()
        .write_timeout(SHORT)
        .public_route("/large", large);
    let server = TestServer::start_with(builder).await.unwrap();
    // The client keeps reading from its socket, but its flow-control window for one response is this small.
    let (mut sender, connection) = hyper::client::conn::http2::Builder::new(TokioExecutor::new())
        .initial_stream_window_size(1000)
        .handshake(TokioIo::new(connect(server.url()).await))
        .await
        .unwrap();
    let connection = tokio::spawn(connection);
    let uri = format!("{}/large", server.url());
    let request = http::Request::get(uri).body(http_body_util::Empty::<Bytes>::new());
    let unread = sender.send_request(request.unwrap()).await.unwrap();
    assert_eq!(unread.status(), 200);
    let ended = tokio::time::timeout(Duration::from_secs(20), connection).await;
    let _ = ended
        .expect("the server did not close the connection")
        .unwrap();

    // A client that keeps reading receives all pieces of the response.
    let uri = format!("{}/large", server.url());
    let io = TokioIo::new(connect(server.url()).await);
    let (mut sender, connection) = hyper::client::conn::http1::handshake(io).await.unwrap();
    tokio::spawn(connection);
    let request = http::Request::get(uri).body(http_body_util::Empty::<Bytes>::new());
    let answer = sender.send_request(request.unwrap()).await.unwrap();
    assert_eq!(answer.headers()["content-length"], "1048576");
    let body = answer.into_body().collect().await.unwrap().to_bytes();
    assert_eq!(body.len(), 1 << 20);
}

#[tokio::test]
async fn silent_connections_are_closed_after_a_time_limit() {
    let builder = Server::builder().no_tls().idle_timeout(SHORT);
    let server = TestServer::start_with(builder).await.unwrap();
    until_closed(connect(server.url()).await).await;
}

#[tokio::test]
async fn thousand_idle_connections_do_not_delay_requests() {
    let server = TestServer::start().await.unwrap();
    let mut idle = Vec::new();
    for _ in 0..1000 {
        idle.push(connect(server.url()).await);
    }
    assert_eq!(get(server.url(), "/version", "").await.code, 200);
    for connection in idle {
        let closed = connection.try_read(&mut [0]);
        let open = matches!(&closed, Err(error) if error.kind() == ErrorKind::WouldBlock);
        assert!(open, "{closed:?}");
    }
}

/// Informers open all watches on one connection, which must still have streams for other requests.
#[tokio::test]
async fn one_connection_carries_hundreds_of_watches() {
    const WATCHES: usize = 240;
    let server = TestServer::start_tls().await.unwrap();
    let pki = server.handle().pki().unwrap();
    let io = connect_tls(server.url(), pki, Some(&pki.admin), &["h2"]).await;
    let (mut sender, connection) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(io))
            .await
            .unwrap();
    tokio::spawn(connection);
    let mut send = async |method: Method, path: &str, body: &str| {
        let headers = [("content-type", "application/json")];
        let mut request = request(method, "/", &headers, body);
        *request.uri_mut() = format!("https://localhost{path}").parse().unwrap();
        let answer = tokio::time::timeout(LIMIT, sender.send_request(request));
        let answer = answer.await.expect("no stream for the request").unwrap();
        assert!(answer.status().is_success(), "{}", answer.status());
        answer.into_body()
    };
    let mut watches = Vec::new();
    for _ in 0..WATCHES {
        watches.push(send(Method::GET, &format!("{LEASES}?watch=true"), "").await);
    }
    let lease = r#"{"metadata":{"name":"l"}}"#;
    let _ = send(Method::POST, LEASES, lease).await;
    let _ = send(Method::GET, &format!("{LEASES}/l"), "").await;
    for mut watch in watches {
        let event = tokio::time::timeout(LIMIT, watch.frame()).await;
        let event = event.expect("no event").unwrap().unwrap();
        let event = event.into_data().unwrap();
        assert!(event.starts_with(br#"{"type":"ADDED""#), "{event:?}");
    }
}

#[tokio::test]
async fn idle_connections_are_closed_for_new_ones_at_the_limit() {
    let builder = Server::builder().no_tls().max_connections(10);
    let server = TestServer::start_with(builder).await.unwrap();
    let mut idle = Vec::new();
    for _ in 0..30 {
        idle.push(connect(server.url()).await);
    }
    for _ in 0..5 {
        assert_eq!(get(server.url(), "/version", "").await.code, 200);
    }
}

#[tokio::test]
async fn malformed_request_head_is_rejected_or_closed() {
    let server = TestServer::start().await.unwrap();
    let long = format!(
        "GET /{} HTTP/1.1\r\nhost: localhost\r\n\r\n",
        "a".repeat(100_000)
    );
    for junk in [
        "\0\0\0\0\r\n\r\n",
        "GET\r\n\r\n",
        "PRI * HTTP/2.0\r\n\r\nXX\r\n\r\n",
        &long,
    ] {
        let mut io = connect(server.url()).await;
        // The server may respond before it has read everything.
        let _ = io.write_all(junk.as_bytes()).await;
        let _ = io.shutdown().await;
        let answer = until_closed(io).await;
        assert!(!answer.starts_with("HTTP/1.1 2"), "{answer}");
    }
    assert_eq!(get(server.url(), "/version", "").await.code, 200);
}
