//! Faults on real processes, on our API server.

use http::{Method, StatusCode};
use serde_json::{Value, json};
use tenure_tests::Skip;
use tenure_tests::embedded::Embedded;
use tenure_tests::nemesis::server::Server;
use tenure_tests::real::{Peer, available};
use tenure_tests::tools;
use tenure_tests::wire::{Wire, lease_path};

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

/// A full disk refuses writes, is readable, and needs no restart once there is room again.
#[test]
fn disk_full() {
    if Skip::unless(tools::tenure()).is_none() {
        return;
    }
    let server = Server::embedded().unwrap();
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
    let mut names = (0..200).map(|n| format!("during-{n}"));
    let refused = names.find_map(|name| {
        let answer = create(&name, 500_000);
        (!answer.status.is_success()).then_some((name, answer))
    });
    let (refused, answer) = refused.expect("a disk of 64 MiB has no room for 100 MB");
    assert!(answer.status.is_server_error(), "{answer:?}");
    let read = |name: &str| {
        let path = format!("/api/v1/namespaces/default/configmaps/{name}");
        wire.get(&path).unwrap()
    };
    assert_eq!(read("before").status, StatusCode::OK);
    assert_eq!(read(&refused).status, StatusCode::NOT_FOUND, "{answer:?}");

    server.free_disk();
    let answer = create("after", 500_000);
    assert_eq!(answer.status, StatusCode::CREATED, "{answer:?}");
    let list: Value = wire.get(&lease_path("default", "")).unwrap().body;
    assert_eq!(list["kind"], "LeaseList");
}
