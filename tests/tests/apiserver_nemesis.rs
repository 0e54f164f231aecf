//! Faults on real processes, on our API server.

use http::{Method, StatusCode};
use serde_json::json;
use tenure_tests::Skip;
use tenure_tests::embedded::Embedded;
use tenure_tests::nemesis::server::Server;
use tenure_tests::real::{Peer, available};
use tenure_tests::tools;
use tenure_tests::wire::Wire;

use crate::nemesis;

#[test]
fn campaign() {
    let programs = available(&[Peer::Elector])
        .and(tools::candidate())
        .and(tools::tenure());
    if Skip::unless(programs).is_some() {
        let server = Server::embedded().unwrap();
        // Without a disk that can be full, the rest is still worth a run.
        _ = Skip::unless(own_disk(&server));
        nemesis::campaign(server);
    }
}

#[test]
fn known_overlaps() {
    let programs = available(&[Peer::Elector]).and(tools::candidate());
    if Skip::unless(programs).is_some() {
        let server = Embedded::start().unwrap();
        nemesis::known_overlaps(&server.kubeconfig());
    }
}

fn own_disk(server: &Server) -> Result<(), Skip> {
    let missing = || Skip("a disk can only be mounted by root".to_owned());
    server.has_own_disk().then_some(()).ok_or_else(missing)
}

/// A full disk refuses writes, is readable, needs no restart once there is room again, and has lost nothing
/// of what it took, nor after a crash.
#[test]
fn disk_full() {
    if Skip::unless(tools::tenure()).is_none() {
        return;
    }
    let mut server = Server::embedded().unwrap();
    if Skip::unless(own_disk(&server)).is_none() {
        return;
    }
    let wire = Wire::connect(&server.kubeconfig()).unwrap();
    let create = |name: &str, size: usize| {
        let map = json!({"metadata": {"name": name}, "data": {"text": "x".repeat(size)}});
        let path = "/api/v1/namespaces/default/configmaps";
        wire.send(&Method::POST, path, Some(&map)).unwrap()
    };
    assert_eq!(create("before", 10).status, StatusCode::CREATED);
    server.fill_disk().unwrap();
    // The store has some room of its own: it takes a few writes until it has to grow.
    let mut taken = vec![("before".to_owned(), 10)];
    let mut names = (0..200).map(|n| format!("during-{n}"));
    let refused = names.find_map(|name| {
        let answer = create(&name, 500_000);
        if answer.status == StatusCode::CREATED {
            taken.push((name, 500_000));
            return None;
        }
        Some((name, answer))
    });
    let (refused, answer) = refused.expect("a disk of 64 MiB has no room for 100 MB");
    assert_eq!(
        answer.status,
        StatusCode::INSUFFICIENT_STORAGE,
        "{answer:?}"
    );
    assert_eq!(answer.body["reason"], "InsufficientStorage");
    let message = answer.body["message"].as_str().unwrap();
    let why = "nothing was changed: there is no space left for writes";
    assert!(message.starts_with(why), "{message}");
    let read = |name: &str| {
        let path = format!("/api/v1/namespaces/default/configmaps/{name}");
        wire.get(&path).unwrap()
    };
    let is_there = |taken: &[(String, usize)]| {
        for (name, size) in taken {
            let found = read(name);
            assert_eq!(found.status, StatusCode::OK, "{name}");
            let text = found.body["data"]["text"].as_str().unwrap();
            assert_eq!(text.len(), *size, "{name}");
        }
        assert_eq!(read(&refused).status, StatusCode::NOT_FOUND, "{answer:?}");
    };
    is_there(&taken);

    server.free_disk();
    let again = create("after", 500_000);
    assert_eq!(again.status, StatusCode::CREATED, "{again:?}");
    taken.push(("after".to_owned(), 500_000));
    is_there(&taken);
    server.kill();
    server.start().unwrap();
    server.wait_until_ready().unwrap();
    is_there(&taken);
}
