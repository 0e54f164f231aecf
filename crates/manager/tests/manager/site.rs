//! Health and metrics, as probes and scrapers see them.

use std::net::SocketAddr;

use tenure_apiserver::TestServer;
use tenure_manager::{Runnable, queue::WorkQueue};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use super::{Log, Running, quick};

/// The status and the body of a GET.
async fn get(address: SocketAddr, path: &str) -> (u16, String) {
    let mut stream = tokio::net::TcpStream::connect(address).await.unwrap();
    let request = format!("GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    (status, body.to_owned())
}

#[tokio::test]
async fn health_and_metrics_in_controller_runtimes_format() {
    let server = TestServer::start().await.unwrap();
    let log = Log::default();
    let said = log.clone();
    let free = SocketAddr::from(([127, 0, 0, 1], 0));
    let manager = quick(&server)
        .await
        .probe_address(free)
        .metrics_address(free)
        .ready_check("store", || Err("closed".to_owned()))
        .metrics(|registry| {
            let queues = tenure_manager::queue::QueueMetrics::new();
            queues.register(registry.sub_registry_with_prefix("own"));
            WorkQueue::with_metrics("q", tenure_manager::queue::default_limiter(), &queues).add(1);
        })
        .every(panicking("bad").ignore())
        .leader(
            "g",
            Runnable::new("work", move |scope| {
                said.say("starts");
                async move { scope.cancelled().await }
            }),
        )
        .build()
        .unwrap();
    let mut bound = manager.addresses();
    let running = Running::start(manager);
    let addresses = bound.wait_for(|all| all.len() == 2).await.unwrap().clone();
    let (probes, metrics) = (addresses[0], addresses[1]);
    log.wait("starts", 1).await;

    assert_eq!(get(probes, "/healthz").await, (200, "ok".into()));
    let (_, text) = get(probes, "/healthz?verbose").await;
    assert_eq!(text, "[+]leaderElection ok\nhealthz check passed\n");
    assert_eq!(
        get(probes, "/healthz/leaderElection").await,
        (200, "ok".into())
    );
    let text = "[+]manager ok\n[-]store failed: reason withheld\nhealthz check failed\n";
    assert_eq!(get(probes, "/readyz").await, (500, text.into()));
    assert_eq!(
        get(probes, "/readyz?exclude=store").await,
        (200, "ok".into())
    );
    let text = "internal server error: closed\n";
    assert_eq!(get(probes, "/readyz/store").await, (500, text.into()));
    assert_eq!(get(probes, "/metrics").await.0, 404);
    assert_eq!(get(metrics, "/healthz").await.0, 404);

    let (status, text) = get(metrics, "/metrics").await;
    assert_eq!(status, 200);
    for line in [
        r#"leader_election_master_status{name="g"} 1"#,
        r#"tenure_manager_panics_total{controller="bad"} 1"#,
        r#"own_workqueue_adds_total{name="q"} 1"#,
    ] {
        assert!(text.contains(line), "{line} is not in\n{text}");
    }
    running.stop().await.unwrap();
}

#[tokio::test]
async fn a_busy_port_is_an_error_with_the_address() {
    let server = TestServer::start().await.unwrap();
    let taken = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = taken.local_addr().unwrap();
    let manager = quick(&server).await.probe_address(address).build().unwrap();
    let error = Running::start(manager).end().await.unwrap_err().to_string();
    assert!(
        error.starts_with(&format!("cannot listen on {address}: ")),
        "{error}"
    );
}

/// Panics at once.
fn panicking(name: &str) -> Runnable {
    Runnable::new(name, |scope| async move {
        assert!(scope.name().is_empty(), "oh");
    })
}
