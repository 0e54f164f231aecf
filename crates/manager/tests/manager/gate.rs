//! The gate, against a scripted API server.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tenure_manager::{Gate, Manager, Runnable, api_ready};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;

use super::{Log, Logged, Running};

/// An API server that returns these responses, one per request, and repeats the last one. It would keep connections
/// open. An empty response means that nothing is sent.
struct Script {
    url: String,
    connections: Arc<AtomicUsize>,
    requests: Arc<Mutex<Vec<String>>>,
}

impl Script {
    async fn start(answers: &'static [&'static str]) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let script = Self {
            url,
            connections: Arc::default(),
            requests: Arc::default(),
        };
        let (connections, requests) = (script.connections.clone(), script.requests.clone());
        tokio::spawn(async move {
            loop {
                let (mut stream, _) = listener.accept().await.unwrap();
                connections.fetch_add(1, Ordering::SeqCst);
                let requests = requests.clone();
                tokio::spawn(async move {
                    let mut bytes = vec![0; 4096];
                    while let Ok(length @ 1..) = stream.read(&mut bytes).await {
                        let head = String::from_utf8_lossy(&bytes[..length]).into_owned();
                        let line = head.lines().next().unwrap_or_default().to_owned();
                        let place = {
                            let mut requests = requests.lock().unwrap();
                            requests.push(line);
                            requests.len() - 1
                        };
                        let answer = answers.get(place).or(answers.last()).unwrap();
                        if answer.is_empty() {
                            std::future::pending::<()>().await;
                        }
                        let (status, body) = answer.split_once('|').unwrap();
                        let length = body.len();
                        let answer = format!(
                            "HTTP/1.1 {status} x\r\ncontent-length: {length}\r\n\r\n{body}"
                        );
                        stream.write_all(answer.as_bytes()).await.unwrap();
                    }
                });
            }
        });
        script
    }

    /// Returns a manager behind a fast gate that logs when its work starts.
    fn manager(&self, gate: Gate, log: &Log) -> Manager {
        let log = log.clone();
        let work = Runnable::new("work", move |scope| {
            log.say("starts");
            async move { scope.cancelled().await }
        });
        let config = kube::Config::new(self.url.parse().unwrap());
        Manager::builder(config)
            .gate(gate)
            .every(work)
            .build()
            .unwrap()
    }
}

const QUICK: Gate = Gate {
    period: Duration::from_millis(5),
    timeout: Duration::from_secs(60),
    limit: Duration::MAX,
    exclude: None,
};

#[test]
fn gate_polls_as_in_k3s() {
    let seconds = Duration::from_secs;
    let gate = api_ready();
    assert_eq!(gate.period, seconds(2));
    assert_eq!(gate.timeout, seconds(15));
    assert_eq!(gate.limit, seconds(900));
}

#[tokio::test]
async fn each_poll_has_its_own_connection_and_only_changes_are_logged() {
    let script = Script::start(&[
        "503|[+]ping ok\n[-]etcd failed: reason withheld\n",
        "503|[+]ping ok\n[-]etcd failed: reason withheld\n",
        "503|[+]ping ok\n[-]etcd failed: reason withheld\n",
        "503|[-]poststarthook failed: reason withheld\n",
        "503|[-]poststarthook failed: reason withheld\n",
        "200|ok",
    ])
    .await;
    let logged = Logged::listen();
    let log = Log::default();
    let running = Running::start(script.manager(QUICK, &log));
    log.wait("starts", 1).await;
    running.stop().await.unwrap();
    let requests = script.requests.lock().unwrap().clone();
    assert_eq!(requests, vec!["GET /readyz?verbose HTTP/1.1"; 6]);
    assert_eq!(script.connections.load(Ordering::SeqCst), 6);
    let waiting = logged.lines("waiting for the API server");
    assert_eq!(waiting.len(), 2, "{waiting:?}");
    assert!(waiting[0].contains("[-]etcd failed"), "{waiting:?}");
    assert!(
        waiting[1].contains("[-]poststarthook failed"),
        "{waiting:?}"
    );
    assert_eq!(logged.lines("the API server is ready").len(), 1);
}

#[tokio::test]
async fn unresponsive_api_server_is_polled_again() {
    let script = Script::start(&["", "200|ok"]).await;
    let gate = Gate {
        timeout: Duration::from_secs(2),
        ..QUICK
    };
    let log = Log::default();
    let running = Running::start(script.manager(gate, &log));
    log.wait("starts", 1).await;
    running.stop().await.unwrap();
    assert!(script.connections.load(Ordering::SeqCst) >= 2);
}

#[tokio::test]
async fn api_server_that_is_not_ready_within_the_limit_is_reported_with_its_reason() {
    let script = Script::start(&["500|[-]etcd failed: reason withheld\n"]).await;
    let gate = Gate {
        period: Duration::from_secs(1),
        limit: Duration::from_secs(5),
        ..QUICK
    };
    let log = Log::default();
    let error = Running::start(script.manager(gate, &log)).end().await;
    assert_eq!(
        error.unwrap_err().to_string(),
        "the API server was not ready within 5 s: 500 Internal Server Error \
         [-]etcd failed: reason withheld"
    );
    assert!(log.all().is_empty());
}
