//! Health and metrics over HTTP.

use std::net::SocketAddr;

use tenure_apiserver::TestServer;
use tenure_manager::{Runnable, queue::WorkQueue};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use super::{Log, Running, quick};

/// Returns the status and the body of a GET.
pub(crate) async fn get(address: SocketAddr, path: &str) -> (u16, String) {
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
        "# TYPE tenure_manager_panics_total counter",
        r#"leader_election_master_status{name="g"} 1"#,
        r#"tenure_manager_panics_total{controller="bad"} 1"#,
        r#"own_workqueue_adds_total{name="q"} 1"#,
    ] {
        assert!(text.contains(line), "{line} is not in\n{text}");
    }
    running.stop().await.unwrap();
}

/// Probes of a manager that stops, and of one that does not lead.
#[tokio::test]
async fn readiness_ends_with_a_stop_request_and_leader_check_follows_the_lease() {
    let server = TestServer::start().await.unwrap();
    let free = SocketAddr::from(([127, 0, 0, 1], 0));
    let log = Log::default();
    let start = async |name: &'static str| {
        let said = log.clone();
        let slow = Runnable::new("slow", move |scope| {
            let said = said.clone();
            async move {
                said.say(format!("{name} leads"));
                scope.cancelled().await;
                // Waits until the test has checked.
                while said.count("looked") == 0 {
                    tokio::time::sleep(std::time::Duration::from_millis(2)).await;
                }
            }
        });
        let manager = quick(&server)
            .await
            .elections(|election| election.events(false))
            .probe_address(free)
            .ready_when_leading("g")
            .leader("g", slow)
            .build()
            .unwrap();
        let (mut bound, mut ready) = (manager.addresses(), manager.ready());
        let running = Running::start(manager);
        let address = bound.wait_for(|all| all.len() == 1).await.unwrap()[0];
        ready.wait_for(|ready| *ready).await.unwrap();
        (running, ready, address)
    };
    let (first, mut ready, address) = start("first").await;
    log.wait("first leads", 1).await;
    assert_eq!(get(address, "/readyz").await, (200, "ok".into()));
    let (second, _, other) = start("second").await;
    let text = "[-]leader-g failed: reason withheld\n[+]manager ok\nhealthz check failed\n";
    assert_eq!(get(other, "/readyz").await, (500, text.into()));
    let text = "internal server error: this replica does not lead g\n";
    assert_eq!(get(other, "/readyz/leader-g").await, (500, text.into()));

    let stopping = tokio::spawn(first.stop());
    ready.wait_for(|ready| !*ready).await.unwrap();
    let text = "internal server error: not started, or stopping\n";
    assert_eq!(get(address, "/readyz/manager").await, (500, text.into()));
    assert_eq!(get(address, "/healthz").await, (200, "ok".into()), "alive");
    log.say("looked");
    stopping.await.unwrap().unwrap();
    log.wait("second leads", 1).await;
    assert_eq!(get(other, "/readyz").await, (200, "ok".into()));
    second.stop().await.unwrap();

    let nowhere = quick(&server).await.ready_when_leading("g").build();
    let text = "leader group g does not exist (no groups exist)";
    assert_eq!(nowhere.unwrap_err().to_string(), text);
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

/// Panics immediately.
fn panicking(name: &str) -> Runnable {
    Runnable::new(name, |scope| async move {
        assert!(scope.name().is_empty(), "oh");
    })
}

#[tokio::test]
async fn idle_connections_do_not_block_a_probe() {
    let server = TestServer::start().await.unwrap();
    let free = SocketAddr::from(([127, 0, 0, 1], 0));
    let manager = quick(&server).await.probe_address(free).build().unwrap();
    let mut bound = manager.addresses();
    let running = Running::start(manager);
    let probes = bound.wait_for(|all| all.len() == 1).await.unwrap()[0];
    let mut idle = Vec::new();
    // Four times as many as one address may have.
    for _ in 0..128 {
        idle.push(tokio::net::TcpStream::connect(probes).await.unwrap());
    }
    assert_eq!(get(probes, "/healthz").await, (200, "ok".into()));
    let read = idle[0].read(&mut [0; 1]).await;
    assert!(matches!(read, Ok(0) | Err(_)), "the oldest is closed");
    let newest = idle.last_mut().unwrap();
    newest
        .write_all(b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n")
        .await
        .unwrap();
    let mut start = [0; 12];
    newest.read_exact(&mut start).await.unwrap();
    assert_eq!(&start, b"HTTP/1.1 200", "the newest is open");
    running.stop().await.unwrap();
}
