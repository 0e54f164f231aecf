//! One user attacks the server, and the elections of another user must continue.
//!
//! Every attack runs over real sockets, for a bounded time, against a server in a separate runtime. During the attack,
//! another user renews a Lease every 100 ms from a separate thread. Bounds are generous, because the machine may be
//! loaded.
#![allow(
    clippy::print_stdout,
    reason = "the figures of an attack are shown with --nocapture"
)]

mod cost;

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::Request;
use http_body_util::Full;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tenure_apiserver::auth::{Mode, User};
use tenure_apiserver::server::{self, Builder, Handle};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpSocket, TcpStream};
use tokio::runtime::Runtime;
use tokio::task::JoinSet;

use crate::support::{Answer, request};
use crate::{LEASES, MAPS};

/// Duration of an attack.
const ATTACK: Duration = Duration::from_secs(3);
/// No renewal takes longer than this.
const BOUND: Duration = Duration::from_secs(2);
/// Longer than any operation of these tests takes.
const LIMIT: Duration = Duration::from_secs(120);

const MERGE: (&str, &str) = ("content-type", "application/merge-patch+json");

/// A server whose threads are not those of the clients.
struct Attacked {
    address: SocketAddr,
    _handle: Handle,
    runtime: Option<Runtime>,
}

impl Drop for Attacked {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

impl Attacked {
    async fn start(limits: impl FnOnce(Builder) -> Builder) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .unwrap();
        let builder = server::Server::builder()
            .no_tls()
            .insecure_listen(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)))
            .authorization(Mode::AlwaysAllow)
            .token("alice", User::new("alice", []))
            .token("mallory", User::new("mallory", []))
            .token("admin", User::admin());
        let builder = limits(builder);
        let handle = runtime.spawn(builder.start()).await.unwrap().unwrap();
        let (_, address) = handle.url().split_once("://").unwrap();
        Self {
            address: address.parse().unwrap(),
            _handle: handle,
            runtime: Some(runtime),
        }
    }

    async fn send(&self, user: &str, method: &str, path: &str, body: Value) -> Answer {
        let body = body.to_string().into_bytes();
        send(self.address, user, (method, path), body).await
    }

    /// Creates ConfigMaps of this many bytes each.
    async fn fill(&self, count: usize, bytes: usize) {
        let value = "x".repeat(bytes);
        for number in 0..count {
            let body = json!({"metadata": {"name": format!("m-{number}")}, "data": {"k": value}});
            let made = self.send("admin", "POST", MAPS, body).await;
            assert_eq!(made.status, 201);
        }
    }

    /// The value of a metric, for the line that starts with this text.
    async fn metric(&self, line: &str) -> u64 {
        let text = self.send("admin", "GET", "/metrics", Value::Null).await;
        let text = String::from_utf8_lossy(&text.bytes).into_owned();
        let found = text.lines().find_map(|other| other.strip_prefix(line));
        let found = found.unwrap_or_else(|| panic!("no {line} in {text}"));
        found.trim().parse().unwrap()
    }

    async fn rejections(&self, reason: &str) -> u64 {
        let line = format!("apiserver_flowcontrol_rejected_requests_total{{reason=\"{reason}\"}}");
        self.metric(&line).await
    }
}

async fn send(
    address: SocketAddr,
    user: &str,
    (method, path): (&str, &str),
    body: Vec<u8>,
) -> Answer {
    let bearer = format!("Bearer {user}");
    let kind = match method {
        "PATCH" => MERGE,
        _ => ("content-type", "application/json"),
    };
    let headers = [("authorization", bearer.as_str()), kind];
    Answer::of(request(address, method, path, &headers, body).await).await
}

/// A 429 that says when to retry and which limit was exceeded.
fn check_rejection(answer: &Answer, limit: &str) {
    assert_eq!(answer.status, 429);
    assert_eq!(answer.headers["retry-after"], "1");
    let status = answer.json();
    assert_eq!(status["kind"], "Status", "{status}");
    assert_eq!(status["reason"], "TooManyRequests", "{status}");
    assert_eq!(status["details"]["retryAfterSeconds"], 1, "{status}");
    let message = status["message"].as_str().unwrap();
    assert!(message.contains("too many requests"), "{message}");
    assert!(message.contains(limit), "{message}");
}

/// Renews a Lease of alice every 100 ms, on a separate thread.
struct Renewals {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<(usize, Duration)>,
}

impl Renewals {
    fn start(address: SocketAddr, reconnects: bool) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread();
            let runtime = { runtime }.enable_all().build().unwrap();
            runtime.block_on(renew(address, reconnects, &stopped))
        });
        Self { stop, thread }
    }

    /// Stops the renewals and checks that none was late.
    fn check(self) {
        self.stop.store(true, Ordering::SeqCst);
        let (count, slowest) = self.thread.join().unwrap();
        println!("{count} renewals, the slowest took {slowest:?}");
        assert!(count >= 5, "{count} renewals only");
        assert!(slowest < BOUND, "a renewal took {slowest:?}");
    }
}

async fn renew(address: SocketAddr, reconnects: bool, stop: &AtomicBool) -> (usize, Duration) {
    let lease = json!({"metadata": {"name": "l"}, "spec": {"holderIdentity": "alice"}});
    let made = send(
        address,
        "alice",
        ("POST", LEASES),
        lease.to_string().into_bytes(),
    )
    .await;
    assert_eq!(made.status, 201);
    let mut version = made.version().to_string();
    let (mut count, mut slowest) = (0, Duration::ZERO);
    let mut sender = connect(address).await;
    while !stop.load(Ordering::SeqCst) {
        let began = Instant::now();
        if reconnects {
            sender = connect(address).await;
        }
        let lease = json!({"metadata": {"name": "l", "resourceVersion": version},
            "spec": {"holderIdentity": "alice", "leaseTransitions": count}});
        let request = Request::put(format!("{LEASES}/l"))
            .header("host", "localhost")
            .header("authorization", "Bearer alice")
            .header("content-type", "application/json")
            .body(Full::new(Bytes::from(lease.to_string())))
            .unwrap();
        let answer = tokio::time::timeout(LIMIT, sender.send_request(request));
        let answer = answer.await.expect("an answer").expect("a connection");
        let answer = Answer::of(answer).await;
        assert_eq!(answer.status, 200, "{}", answer.json());
        version = answer.version().to_string();
        slowest = slowest.max(began.elapsed());
        count += 1;
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    (count, slowest)
}

async fn connect(address: SocketAddr) -> http1::SendRequest<Full<Bytes>> {
    let stream = TcpStream::connect(address).await.unwrap();
    let (sender, connection) = http1::handshake(TokioIo::new(stream)).await.unwrap();
    tokio::spawn(connection);
    sender
}

/// Sends the same request from many connections for the time of an attack. Returns how many were handled and rejected.
async fn flood(
    server: &Attacked,
    clients: usize,
    limit: &'static str,
    request: impl Fn(usize) -> (&'static str, String, Vec<u8>),
) -> (usize, usize) {
    let handled = Arc::new(AtomicUsize::new(0));
    let rejected = Arc::new(AtomicUsize::new(0));
    let end = Instant::now() + ATTACK;
    let mut tasks = JoinSet::new();
    for client in 0..clients {
        let (method, path, body) = request(client);
        let (handled, rejected) = (Arc::clone(&handled), Arc::clone(&rejected));
        let address = server.address;
        tasks.spawn(async move {
            while Instant::now() < end {
                let answer = send(address, "mallory", (method, &path), body.clone()).await;
                match answer.status {
                    200 | 201 => _ = handled.fetch_add(1, Ordering::SeqCst),
                    _ => {
                        check_rejection(&answer, limit);
                        rejected.fetch_add(1, Ordering::SeqCst);
                        // This pause is shorter than the one that the server asks for in `Retry-After`.
                        tokio::time::sleep(Duration::from_millis(50)).await;
                    }
                }
            }
        });
    }
    while let Some(done) = tasks.join_next().await {
        done.unwrap();
    }
    let counts = (
        handled.load(Ordering::SeqCst),
        rejected.load(Ordering::SeqCst),
    );
    println!("{} requests handled, {} rejected", counts.0, counts.1);
    counts
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn renewals_continue_during_a_flood_of_large_lists() {
    let server = Attacked::start(|builder| builder.max_requests_inflight(8)).await;
    server.fill(100, 20_000).await;
    let renewals = Renewals::start(server.address, false);
    let list = |_| ("GET", MAPS.to_owned(), Vec::new());
    let (handled, rejected) = flood(&server, 60, "wait in the lane \"workload\"", list).await;
    renewals.check();
    assert!(handled > 0 && rejected > 0, "{handled} {rejected}");
    assert!(server.rejections("queue-full").await > 0);
    assert_eq!(server.metric("tenure_unread_answer_bytes").await, 0);
    let line = "apiserver_flowcontrol_current_executing_requests{priority_level=\"heavy\"}";
    assert_eq!(server.metric(line).await, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn renewals_continue_during_a_flood_of_heavy_patches() {
    let server = Attacked::start(|builder| builder.max_requests_inflight(8)).await;
    server.fill(60, 1).await;
    let renewals = Renewals::start(server.address, false);
    // The objects have 64 KB to 1 MB, and up to 4,000 values.
    let bodies: Vec<Vec<u8>> = [1_000, 2_000, 4_000, 4_000]
        .into_iter()
        .zip([64, 100, 120, 250])
        .map(|(values, bytes)| {
            let value = "x".repeat(bytes);
            let data: Vec<String> = (0..values)
                .map(|number| format!("\"key-{number}\":\"{value}\""))
                .collect();
            format!("{{\"data\":{{{}}}}}", data.join(",")).into_bytes()
        })
        .collect();
    let patch = |client: usize| {
        let path = format!("{MAPS}/m-{client}");
        ("PATCH", path, bodies[client % bodies.len()].clone())
    };
    let (handled, rejected) = flood(&server, 60, "too many", patch).await;
    renewals.check();
    assert!(handled > 0 && rejected > 0, "{handled} {rejected}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn renewals_continue_during_a_flood_of_renewals_of_another_user() {
    let server = Attacked::start(|builder| builder.max_requests_inflight(2)).await;
    let lease = json!({"metadata": {"name": "m"}});
    let made = server.send("mallory", "POST", LEASES, lease).await;
    assert_eq!(made.status, 201);
    let renewals = Renewals::start(server.address, false);
    let patch = |client| {
        let body = json!({"metadata": {"annotations": {format!("a-{client}"): "b"}}});
        (
            "PATCH",
            format!("{LEASES}/m"),
            body.to_string().into_bytes(),
        )
    };
    flood(&server, 60, "wait in the lane \"elections\"", patch).await;
    renewals.check();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn renewals_continue_while_bodies_arrive_byte_by_byte() {
    let server = Attacked::start(|builder| {
        builder
            .max_arriving_bodies(20)
            .body_deadline(Duration::from_secs(3))
    })
    .await;
    let renewals = Renewals::start(server.address, false);
    let mut slow = JoinSet::new();
    for _ in 0..60 {
        let address = server.address;
        slow.spawn(async move {
            let stream = TcpStream::connect(address).await.unwrap();
            let (mut reading, mut writing) = stream.into_split();
            let head = format!(
                "POST {MAPS} HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer mallory\r\n\
                 content-type: application/json\r\ncontent-length: 100000\r\n\r\n"
            );
            writing.write_all(head.as_bytes()).await.unwrap();
            let drip = tokio::spawn(async move {
                while writing.write_all(b" ").await.is_ok() {
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
            });
            let mut text = Vec::new();
            let read = tokio::time::timeout(LIMIT, reading.read_to_end(&mut text));
            let _ = read.await.expect("the server ends the request");
            drip.abort();
            let text = String::from_utf8_lossy(&text).into_owned();
            text.get(9..12).unwrap_or_default().to_owned()
        });
    }
    let codes = slow.join_all().await;
    renewals.check();
    let count = |code: &str| codes.iter().filter(|other| *other == code).count();
    println!("{} rejected, {} too slow", count("429"), count("400"));
    // Some connections may be reset before the client has read the answer.
    assert!(count("429") >= 25, "{codes:?}");
    assert!((1..=10).contains(&count("400")), "{codes:?}");
    assert!(server.rejections("arriving-bodies").await >= 50);
}

/// A definition can get a default after its objects were stored. Many small objects then make a large list.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn large_default_of_many_small_objects_is_charged() {
    const OBJECTS: usize = 80;
    let definitions = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
    let things = "/apis/t.example/v1/namespaces/default/things";
    let server = Attacked::start(|builder| builder.max_answer_bytes(20_000_000)).await;
    let mut definition = json!({"metadata": {"name": "things.t.example"}, "spec": {"group": "t.example",
        "scope": "Namespaced", "names": {"plural": "things", "kind": "Thing"},
        "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema":
            {"type": "object", "properties": {"text": {"type": "string"}}}}}]}});
    let made = server.send("admin", "POST", definitions, definition).await;
    assert_eq!(made.status, 201);
    for number in 0..OBJECTS {
        let thing = json!({"apiVersion": "t.example/v1", "kind": "Thing",
            "metadata": {"name": format!("t-{number}")}});
        let made = server.send("admin", "POST", things, thing).await;
        assert_eq!(made.status, 201);
    }
    let path = format!("{definitions}/things.t.example");
    definition = server.send("admin", "GET", &path, Value::Null).await.json();
    let schema = &mut definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"];
    schema["properties"]["text"]["default"] = json!("x".repeat(1_000_000));
    let put = server.send("admin", "PUT", &path, definition).await;
    assert_eq!(put.status, 200);

    let listed = server.send("mallory", "GET", things, Value::Null).await;
    assert_eq!(listed.status, 429, "{} bytes", listed.bytes.len());
    assert!(server.rejections("answer-bytes").await > 0);
    let few = format!("{things}?limit=5");
    let listed = server.send("mallory", "GET", &few, Value::Null).await;
    let text = &listed.json()["items"][4]["text"];
    assert_eq!(text.as_str().map(str::len), Some(1_000_000));
    // A deletion cannot be requested again, so that its response has all objects, without the default.
    let options = json!({"kind": "DeleteOptions", "apiVersion": "v1"});
    let deleted = server.send("mallory", "DELETE", things, options).await;
    assert_eq!(deleted.status, 200, "{}", deleted.json());
    let items = &deleted.json()["items"];
    assert_eq!(items.as_array().map(Vec::len), Some(OBJECTS));
    assert!(deleted.bytes.len() < 1_000_000);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn renewals_continue_while_large_answers_are_not_read() {
    const ANSWERS: u64 = 60_000_000;
    let server = Attacked::start(|builder| {
        builder
            .max_answer_bytes(ANSWERS)
            .write_timeout(Duration::from_secs(4))
    })
    .await;
    server.fill(200, 60_000).await;
    let renewals = Renewals::start(server.address, false);
    let (mut unread, mut accepted, mut rejected) = (Vec::new(), 0, 0);
    for _ in 0..20 {
        let socket = TcpSocket::new_v4().unwrap();
        socket.set_recv_buffer_size(4096).unwrap();
        let mut stream = socket.connect(server.address).await.unwrap();
        let head = format!(
            "GET {MAPS} HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer mallory\r\n\r\n"
        );
        stream.write_all(head.as_bytes()).await.unwrap();
        let mut code = [0; 12];
        let read = tokio::time::timeout(LIMIT, stream.read_exact(&mut code));
        read.await.expect("an answer").unwrap();
        match &code[9..] {
            b"200" => accepted += 1,
            b"429" => rejected += 1,
            other => panic!("{other:?}"),
        }
        unread.push(stream);
        let bytes = server.metric("tenure_unread_answer_bytes").await;
        assert!(bytes <= ANSWERS / 2 + 1_000_000, "{bytes} bytes are held");
    }
    println!("{accepted} answers are not read, {rejected} requests were rejected");
    assert!(accepted >= 1 && rejected >= 1, "{accepted} {rejected}");
    assert!(server.rejections("answer-bytes").await > 0);
    // Another user still gets its list.
    let list = server.send("alice", "GET", MAPS, Value::Null).await;
    assert_eq!(list.status, 200);
    // Clients that do not read are disconnected.
    let began = Instant::now();
    while server.metric("tenure_unread_answer_bytes").await > 0 {
        assert!(began.elapsed() < LIMIT, "answers are still held");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    renewals.check();
    drop(unread);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn renewals_continue_with_many_watches_of_another_user() {
    let server = Attacked::start(|builder| builder.max_watches(300)).await;
    let renewals = Renewals::start(server.address, false);
    let headers = [("authorization", "Bearer mallory")];
    let (mut watches, mut rejected) = (Vec::new(), 0);
    for _ in 0..200 {
        let path = format!("{LEASES}?watch=true");
        let response = request(server.address, "GET", &path, &headers, Vec::new()).await;
        if response.status() == 200 {
            watches.push(response);
            continue;
        }
        let answer = Answer::of(response).await;
        check_rejection(&answer, "150 open watches");
        rejected += 1;
    }
    assert_eq!((watches.len(), rejected), (150, 50));
    let path = format!("{LEASES}?watch=true");
    let headers = [("authorization", "Bearer alice")];
    let other = request(server.address, "GET", &path, &headers, Vec::new()).await;
    assert_eq!(other.status(), 200);
    tokio::time::sleep(ATTACK).await;
    renewals.check();
    // The places of ended watches are free again.
    drop(watches);
    let headers = [("authorization", "Bearer mallory")];
    let began = Instant::now();
    loop {
        let again = request(server.address, "GET", &path, &headers, Vec::new()).await;
        if again.status() == 200 {
            break;
        }
        assert!(began.elapsed() < LIMIT, "watches still count");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn renewals_continue_with_many_connections_of_another_address() {
    let server = Attacked::start(|builder| builder.max_connections(100)).await;
    // The holder opens a new connection for every renewal, and each connection needs a place.
    let renewals = Renewals::start(server.address, true);
    let connect = async || {
        let socket = TcpSocket::new_v4().unwrap();
        let from = SocketAddr::from((Ipv4Addr::new(127, 0, 0, 2), 0));
        socket.bind(from).unwrap();
        socket.connect(server.address).await.unwrap()
    };
    // Connections with half of a head are idle, and are closed for later ones.
    let mut open = Vec::new();
    for _ in 0..300 {
        let mut stream = connect().await;
        let _ = stream.write_all(b"GET / HTTP/1.1\r\n").await;
        open.push(stream);
    }
    // Connections with a watch are busy.
    for _ in 0..200 {
        let mut stream = connect().await;
        let head = format!(
            "GET {MAPS}?watch=true HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer mallory\r\n\r\n"
        );
        let _ = stream.write_all(head.as_bytes()).await;
        let answered = tokio::time::timeout(LIMIT, stream.read_u8());
        let _ = answered.await.expect("an answer or the end");
        open.push(stream);
    }
    tokio::time::sleep(ATTACK).await;
    renewals.check();
    assert!(server.rejections("connections").await > 0);
}
