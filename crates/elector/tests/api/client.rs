//! Tests of `tenure::client`: its requests, and that it does not retry them.

use std::sync::Arc;

use kube::Config;
use tenure::LockKind;
use tenure_apiserver::TestServer;
use tenure_apiserver::server::Fault;
use tenure_lock::{Class, Lock};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;

#[cfg(feature = "http2")]
use crate::server::get;
use crate::server::{LEASES, client, within};

fn lease(client: kube::Client) -> Arc<dyn Lock> {
    let labels = std::collections::BTreeMap::new();
    LockKind::Leases
        .open(client, "default", "x", &labels)
        .unwrap()
}

/// Duty 12: a renewal that is repeated below the election could outlive its term.
#[tokio::test]
async fn duty_12_a_failed_request_is_sent_once() {
    let server = TestServer::start().await.unwrap();
    for code in [429, 500, 503, 504] {
        let fault = Fault::answer(code).path(LEASES).verb("get");
        let added = server.faults().add(fault);
        let error = within(lease(client(&server)).read()).await.unwrap_err();
        assert_eq!(error.class(), Class::Unknown, "{error}");
        assert_eq!(added.hits(), 1, "{code}");
        added.remove();
    }
}

/// Application traffic differs: requests that a busy server rejects temporarily are sent again.
#[cfg(feature = "http2")]
#[tokio::test]
async fn work_client_retries_when_the_server_is_busy() {
    let server = TestServer::start().await.unwrap();
    let mut config = Config::new(server.url().parse().unwrap());
    config.auth_info.token = Some(server.token().to_owned().into());
    let client = tenure::work_client_http2(config, "worker").unwrap();
    let fault = Fault::answer(503).path(LEASES).verb("list").times(2);
    let added = server.faults().add(fault);
    assert!(within(get(&client, LEASES)).await.is_some());
    assert_eq!(added.hits(), 2);
}

/// Duty 12: API servers and their audit logs can identify requests of an election.
#[tokio::test]
async fn duty_12_requests_have_the_user_agent_of_elections() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let served = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            head.push(stream.read_u8().await.unwrap());
        }
        let answer = b"HTTP/1.1 503 Service Unavailable\r\ncontent-length: 0\r\n\r\n";
        stream.write_all(answer).await.unwrap();
        String::from_utf8(head).unwrap()
    });
    let client = tenure::client(Config::new(url.parse().unwrap())).unwrap();
    assert!(within(lease(client).read()).await.is_err());
    let head = within(served).await.unwrap();
    assert!(
        head.starts_with(&format!("GET {LEASES}/x HTTP/1.1")),
        "{head}"
    );
    let agent = format!("user-agent: {}", tenure::USER_AGENT);
    assert!(head.lines().any(|line| line == agent), "{head}");
}
