//! Floods of slow, unread, reset and idle connections against `tenure server` as a process. Another user is served
//! meanwhile, and afterwards nothing is held.
#![allow(
    clippy::disallowed_methods,
    reason = "attacks are not elections and may sleep on any clock"
)]

use std::net::Ipv4Addr;
use std::time::Duration;

use serde_json::{Value, json};
use tenure_tests::attack::client::{Client, open_from, reset_streams, status};
use tenure_tests::attack::server::{AttackedServer, raise_file_limit, rule};
use tenure_tests::attack::{LEASES, MAPS};
use tenure_tests::clock::{self, Nanos};
use tokio::io::AsyncWriteExt as _;

/// No renewal of the other user takes longer, on a busy machine.
const SLOW: Duration = Duration::from_secs(5);
const LIMIT: Duration = Duration::from_secs(120);

/// Starts a server with an attacker, and with another user that renews a Lease.
async fn start() -> AttackedServer {
    raise_file_limit();
    let users = ["mallory", "alice"].map(str::to_owned);
    let server = AttackedServer::start(&users, &["--store=memory"]);
    let all = ["get", "list", "watch", "create", "update", "patch"];
    server
        .allow("mallory", "maps", &json!([rule("", "configmaps", &all)]))
        .await;
    let leases = json!([rule("coordination.k8s.io", "leases", &all)]);
    server.allow("alice", "leases", &leases).await;
    let lease = json!({ "metadata": { "name": "l" } });
    server.create(LEASES, &lease).await;
    server
}

/// Renews the Lease on a new connection every time, until `end`. Returns the slowest renewal.
async fn renew(alice: Client, end: Nanos) -> Duration {
    let mut slowest = Duration::ZERO;
    let mut number = 0;
    while clock::now() < end {
        let began = clock::now();
        let body = json!({ "spec": { "leaseTransitions": number } });
        let renewed = alice.send("PATCH", &format!("{LEASES}/l"), &body).await;
        assert_eq!(renewed.expect("an answer").status, 200);
        slowest = slowest.max(clock::now().since(began));
        number += 1;
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    assert!(number >= 5, "{number} renewals only");
    slowest
}

async fn metric(server: &AttackedServer, line: &str) -> u64 {
    let text = server
        .admin()
        .send("GET", "/metrics", &Value::Null)
        .await
        .unwrap();
    let text = String::from_utf8_lossy(&text.bytes).into_owned();
    let found = text.lines().find_map(|other| other.strip_prefix(line));
    let found = found.unwrap_or_else(|| panic!("no {line} in {text}"));
    found.trim().parse().unwrap()
}

async fn rejections(server: &AttackedServer, reason: &str) -> u64 {
    let name = "apiserver_flowcontrol_rejected_requests_total";
    metric(server, &format!("{name}{{reason=\"{reason}\"}}")).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn security_slow_bodies_take_only_a_share() {
    let server = start().await;
    let mallory = server.client("mallory");
    let end = clock::now() + Duration::from_secs(8);
    let renewals = tokio::spawn(renew(server.client("alice"), end));
    let headers = "content-type: application/json\r\ncontent-length: 100000\r\n";
    let mut open = Vec::new();
    for _ in 0..2_500 {
        let stream = mallory.raw(&format!("POST {MAPS}"), headers).await;
        open.push(stream.expect("a connection"));
    }
    while clock::now() < end {
        for stream in &mut open {
            _ = stream.write_all(b" ").await;
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    assert!(renewals.await.unwrap() < SLOW);
    // Half of all bodies that may arrive belong to one user.
    let rejected = rejections(&server, "arriving-bodies").await;
    assert!(rejected >= 400, "{rejected}");
    assert!(server.peak_bytes() < 400_000_000, "{}", server.peak_bytes());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn security_lists_that_are_not_read_take_only_a_share() {
    let server = start().await;
    server.fill(100, 100_000).await;
    let mallory = server.client("mallory");
    let end = clock::now() + Duration::from_secs(8);
    let renewals = tokio::spawn(renew(server.client("alice"), end));
    let (mut unread, mut rejected) = (Vec::new(), 0);
    while clock::now() < end {
        let mut stream = mallory.raw(&format!("GET {MAPS}"), "").await.unwrap();
        match status(&mut stream).await {
            200 => unread.push(stream),
            429 => rejected += 1,
            other => panic!("{other}"),
        }
    }
    assert!(renewals.await.unwrap() < SLOW);
    let held = metric(&server, "tenure_unread_answer_bytes").await;
    println!(
        "{} unread, {rejected} rejected, {held} bytes held",
        unread.len()
    );
    assert!(
        !unread.is_empty() && rejected > 0,
        "{} {rejected}",
        unread.len()
    );
    assert!(held <= 128 << 20, "{held}");
    assert!(server.peak_bytes() < 400_000_000, "{}", server.peak_bytes());
    drop(unread);
    let began = clock::now();
    while metric(&server, "tenure_unread_answer_bytes").await > 0 {
        assert!(
            clock::now().since(began) < LIMIT,
            "responses are still held"
        );
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn security_connections_of_one_address_do_not_exclude_others() {
    let users = ["mallory", "alice"].map(str::to_owned);
    raise_file_limit();
    let server = AttackedServer::start(&users, &["--store=memory", "--max-connections=400"]);
    let all = ["get", "create", "update", "patch"];
    let leases = json!([rule("coordination.k8s.io", "leases", &all)]);
    server.allow("alice", "leases", &leases).await;
    server
        .create(LEASES, &json!({ "metadata": { "name": "l" } }))
        .await;
    let end = clock::now() + Duration::from_secs(8);
    let renewals = tokio::spawn(renew(server.client("alice"), end));
    let mut open = std::collections::VecDeque::new();
    let mut number = 0;
    while clock::now() < end {
        number += 1;
        let address = if number % 2 == 0 {
            server.plain()
        } else {
            server.tls()
        };
        if let Ok(stream) = open_from(Ipv4Addr::new(127, 0, 0, 2), address, b"G").await {
            open.push_back(stream);
        }
        if open.len() > 2_000 {
            open.pop_front();
        }
    }
    assert!(renewals.await.unwrap() < SLOW);
    println!("{number} connections");
    assert!(number > 1_000, "{number}");
    assert!(server.peak_bytes() < 400_000_000, "{}", server.peak_bytes());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn security_event_streams_of_the_page_are_limited() {
    let server = start().await;
    let end = clock::now() + Duration::from_secs(8);
    let renewals = tokio::spawn(renew(server.client("alice"), end));
    // The page shows only what its caller may read.
    let alice = server.client("alice");
    let (mut open, mut refused) = (Vec::new(), 0);
    for _ in 0..300 {
        let mut stream = alice.raw("GET /ui/feed", "").await.unwrap();
        match status(&mut stream).await {
            200 => open.push(stream),
            503 | 429 => refused += 1,
            other => panic!("{other}"),
        }
    }
    println!("{} streams, {refused} refused", open.len());
    assert!(!open.is_empty() && refused > 0, "{} {refused}", open.len());
    assert!(renewals.await.unwrap() < SLOW);
    // Closed streams leave their places.
    drop(open);
    let began = clock::now();
    loop {
        let mut stream = alice.raw("GET /ui/feed", "").await.unwrap();
        if status(&mut stream).await == 200 {
            break;
        }
        assert!(
            clock::now().since(began) < LIMIT,
            "closed streams still count"
        );
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn security_reset_streams_do_not_stop_others() {
    let server = start().await;
    server.fill(20, 10_000).await;
    let end = clock::now() + Duration::from_secs(8);
    let renewals = tokio::spawn(renew(server.client("alice"), end));
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..4 {
        let mallory = server.client("mallory");
        tasks.spawn(async move {
            let mut opened = 0;
            while clock::now() < end {
                opened += reset_streams(&mallory, MAPS, 5_000, end).await;
            }
            opened
        });
    }
    let opened: usize = tasks.join_all().await.into_iter().sum();
    assert!(renewals.await.unwrap() < SLOW);
    println!("{opened} streams");
    assert!(opened > 1_000, "{opened}");
    // The seats of reset requests are free again.
    let began = clock::now();
    for lane in ["workload", "heavy"] {
        let name = "apiserver_flowcontrol_current_executing_requests";
        let line = format!("{name}{{priority_level=\"{lane}\"}}");
        while metric(&server, &line).await > 0 {
            assert!(
                clock::now().since(began) < LIMIT,
                "{lane}: seats are still taken"
            );
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }
    assert!(server.peak_bytes() < 400_000_000, "{}", server.peak_bytes());
}
