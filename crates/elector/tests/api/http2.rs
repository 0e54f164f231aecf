//! All requests share one connection, and use another one when it is dead.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures_util::future::join_all;
use http::Request;
use kube::Client;
use kube::client::Body;
use kube::config::{KubeConfigOptions, Kubeconfig};
use tenure_apiserver::TestServer;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

use crate::server::{LEASES, get, within};

/// Forwards bytes. It can drop all data on existing connections, or close them.
struct Proxy {
    address: SocketAddr,
    opened: Arc<AtomicUsize>,
    dead: Arc<AtomicUsize>,
    ended: watch::Sender<usize>,
}

impl Proxy {
    async fn before(server: String) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let proxy = Self {
            address: listener.local_addr().unwrap(),
            opened: Arc::default(),
            dead: Arc::default(),
            ended: watch::Sender::default(),
        };
        let (opened, dead) = (proxy.opened.clone(), proxy.dead.clone());
        let ended = proxy.ended.subscribe();
        tokio::spawn(async move {
            while let Ok((near, _)) = listener.accept().await {
                let number = opened.fetch_add(1, Ordering::SeqCst) + 1;
                let far = TcpStream::connect(&server).await.unwrap();
                let ((a, b), (c, d)) = (near.into_split(), far.into_split());
                tokio::spawn(pass(number, dead.clone(), ended.clone(), a, d));
                tokio::spawn(pass(number, dead.clone(), ended.clone(), c, b));
            }
        });
        proxy
    }

    fn opened(&self) -> usize {
        self.opened.load(Ordering::SeqCst)
    }
}

async fn pass(
    number: usize,
    dead: Arc<AtomicUsize>,
    mut ended: watch::Receiver<usize>,
    mut from: impl AsyncReadExt + Unpin,
    mut to: impl AsyncWriteExt + Unpin,
) {
    let mut buffer = [0; 4096];
    loop {
        let read = tokio::select! {
            read = from.read(&mut buffer) => read,
            _ = ended.wait_for(|ended| number <= *ended) => return,
        };
        let Ok(length @ 1..) = read else {
            return;
        };
        if number <= dead.load(Ordering::SeqCst) {
            std::future::pending::<()>().await;
        }
        if to.write_all(&buffer[..length]).await.is_err() {
            return;
        }
    }
}

async fn behind_a_proxy() -> (TestServer, Proxy, Client) {
    let server = TestServer::start_tls().await.unwrap();
    let address = server.url().trim_start_matches("https://").to_owned();
    let proxy = Proxy::before(address.clone()).await;
    let kubeconfig = server
        .kubeconfig()
        .replace(&address, &proxy.address.to_string());
    let kubeconfig = Kubeconfig::from_yaml(&kubeconfig).unwrap();
    let options = KubeConfigOptions::default();
    let config = kube::Config::from_custom_kubeconfig(kubeconfig, &options);
    let client = tenure::client_http2(config.await.unwrap()).unwrap();
    (server, proxy, client)
}

#[tokio::test]
async fn all_requests_share_one_connection_and_replace_a_dead_one() {
    let (_server, proxy, client) = behind_a_proxy().await;
    within(get(&client, LEASES)).await.expect("an answer");
    let answers = within(join_all((0..50).map(|_| get(&client, LEASES)))).await;
    assert!(answers.iter().all(Option::is_some));
    assert_eq!(proxy.opened(), 1);

    proxy.dead.store(1, Ordering::SeqCst);
    let lost = tokio::time::timeout(Duration::from_millis(200), get(&client, LEASES)).await;
    assert!(lost.is_err(), "nothing passes");
    within(get(&client, LEASES)).await.expect("an answer");
    assert_eq!(proxy.opened(), 2);
}

#[tokio::test]
async fn closed_connection_is_replaced() {
    let (_server, proxy, client) = behind_a_proxy().await;
    within(get(&client, LEASES)).await.expect("an answer");
    proxy.ended.send_replace(1);
    // The first request may be sent before the end is noticed.
    within(async { while get(&client, LEASES).await.is_none() {} }).await;
    let answers = within(join_all((0..50).map(|_| get(&client, LEASES)))).await;
    assert!(answers.iter().all(Option::is_some));
    assert_eq!(proxy.opened(), 2);
}

/// A server behind a slow proxy that supports only HTTP/1.1. The first request discovers this and is given up. The
/// second request needs the time of one connection, not of two.
#[tokio::test]
async fn a_server_without_http2_is_not_asked_for_it_twice() {
    let server = TestServer::start().await.unwrap();
    let address = server.url().trim_start_matches("http://").to_owned();
    let proxy = Proxy::before(address).await;
    let config = kube::Config::new(format!("http://{}", proxy.address).parse().unwrap());
    let client = tenure::client_http2(config).unwrap();
    // Neither of the first two connections, one that negotiates and one that sends, transfers data.
    proxy.dead.store(2, Ordering::SeqCst);
    let lost = tokio::time::timeout(Duration::from_millis(500), get(&client, LEASES)).await;
    assert!(lost.is_err(), "nothing passes");
    assert_eq!(proxy.opened(), 2);
    within(get(&client, LEASES)).await;
    assert_eq!(proxy.opened(), 3, "one to send on, none to look");
}

/// Requests that wait for a connection that cannot be created fail together, not one after the other.
#[tokio::test]
async fn requests_waiting_for_a_connection_share_its_failure() {
    let tries = Arc::new(AtomicUsize::new(0));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let counted = tries.clone();
    tokio::spawn(async move {
        // Each connection ends before the TLS handshake is complete.
        while let Ok((stream, _)) = listener.accept().await {
            counted.fetch_add(1, Ordering::SeqCst);
            drop(stream);
        }
    });
    let mut config = kube::Config::new(format!("https://{address}").parse().unwrap());
    config.accept_invalid_certs = true;
    let client = tenure::client_http2(config).unwrap();
    let answers = within(join_all((0..50).map(|_| get(&client, LEASES)))).await;
    assert!(answers.iter().all(Option::is_none));
    assert!(tries.load(Ordering::SeqCst) <= 4, "{tries:?} tries for 50");
}

#[tokio::test]
async fn watches_do_not_use_streams_of_renewals() {
    let (_server, proxy, client) = behind_a_proxy().await;
    within(get(&client, LEASES)).await.expect("an answer");
    let mut watches = Vec::new();
    for number in 1..4 {
        let watch = Request::get(format!("{LEASES}?watch=true&timeoutSeconds=60"));
        let watch = client.send(watch.body(Body::empty()).unwrap());
        watches.push(within(watch).await.unwrap());
        assert_eq!(proxy.opened(), 1 + number);
    }
    within(get(&client, LEASES)).await.expect("an answer");
    assert_eq!(proxy.opened(), 4, "it has its own still");
}
