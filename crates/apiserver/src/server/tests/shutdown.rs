//! Clean shutdown, which clients can distinguish from a failure.

use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use super::{LEASES, address, connect};
use crate::TestServer;
use crate::server::Fault;

#[tokio::test]
async fn a_watch_ends_with_the_last_chunk() {
    let server = TestServer::start().await.unwrap();
    let mut watch = connect(server.url()).await;
    let head = format!(
        "GET {LEASES}?watch=true HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {}\r\n\r\n",
        server.token()
    );
    watch.write_all(head.as_bytes()).await.unwrap();
    let mut text = vec![0; 4096];
    let read = watch.read(&mut text).await.unwrap();
    let mut text = String::from_utf8_lossy(&text[..read]).into_owned();
    assert!(text.starts_with("HTTP/1.1 200 OK\r\n"), "{text}");

    tokio::time::timeout(Duration::from_secs(20), server.shutdown())
        .await
        .unwrap();
    watch.read_to_string(&mut text).await.unwrap();
    assert!(text.ends_with("0\r\n\r\n"), "{text}");
}

#[tokio::test]
async fn shutdown_answers_running_requests_and_accepts_no_others() {
    let server = TestServer::start().await.unwrap();
    let url = server.url().to_owned();
    let slow = server
        .faults()
        .add(Fault::latency(Duration::from_millis(300)));
    let mut io = connect(&url).await;
    io.write_all(b"GET /version HTTP/1.1\r\nhost: localhost\r\n\r\n")
        .await
        .unwrap();
    while slow.hits() == 0 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    tokio::time::timeout(Duration::from_secs(20), server.shutdown())
        .await
        .unwrap();
    let mut answer = String::new();
    io.read_to_string(&mut answer).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
    assert!(tokio::net::TcpStream::connect(address(&url)).await.is_err());
}
