//! Faults on real processes, with the embedded API server.

use http::{Method, StatusCode};
use serde_json::json;
use tenure_tests::Skip;
use tenure_tests::embedded::Embedded;
use tenure_tests::home::Home;
use tenure_tests::nemesis::campaign::say;
use tenure_tests::nemesis::seed;
use tenure_tests::nemesis::server::Server;
use tenure_tests::nemesis::trees::{self, Fleet};
use tenure_tests::real::{Peer, available};
use tenure_tests::scenarios::nemesis;
use tenure_tests::stalls::Stalls;
use tenure_tests::tools;
use tenure_tests::wire::Wire;

#[test]
fn campaign() {
    let programs = available(&[Peer::Elector])
        .and(tools::candidate())
        .and(tools::tenure());
    if Skip::unless(programs).is_some() {
        let server = Server::embedded().unwrap();
        // The remaining faults are still tested if there is no disk that can be filled.
        _ = Skip::unless(own_disk(&server));
        nemesis::campaign(server);
    }
}

#[test]
fn fault_pairs() {
    if Skip::unless(tools::candidate().and(tools::tenure())).is_some() {
        let server = Server::embedded().unwrap();
        _ = Skip::unless(own_disk(&server));
        nemesis::fault_pairs(server);
    }
}

#[test]
fn mixed_fleet() {
    let programs = available(&[Peer::Elector])
        .and(tools::candidate())
        .and(tools::tenure());
    if Skip::unless(programs).is_some() {
        let server = Server::embedded().unwrap();
        _ = Skip::unless(own_disk(&server));
        nemesis::mixed_fleet(server);
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

/// A kill must take effect within the margin. If the machine delays a process for half of that, an overlap proves
/// nothing.
const HALF_MARGIN: std::time::Duration = std::time::Duration::from_millis(125);

/// No two process trees of `tenure run` exist at the same time, despite faults of wrapper and watchdog.
#[test]
fn command_trees() {
    if Skip::unless(tools::tenure().and(tools::perl())).is_none() {
        return;
    }
    let seed = seed::of_tests();
    say(&format!(
        "TENURE_SEED={seed} has this schedule of faults on command trees"
    ));
    for _ in 0..4 {
        let server = Server::embedded().unwrap();
        let faults = trees::schedule(seed, has_cgroup(&server), 4);
        let stalls = Stalls::watch();
        let mut fleet = Fleet::start(&server, 3).unwrap();
        let struck: Result<(), String> = faults.iter().try_for_each(|fault| {
            let struck = fleet.strike(*fault);
            struck.map_err(|error| format!("{fault:?} of {faults:?}: {error:#}"))
        });
        let (overlapped, terms) = (fleet.overlapped(), fleet.terms());
        let left = fleet.end();
        let longest = stalls.longest();
        if struck.is_ok() && !overlapped && left == 0 {
            let terms = terms.unwrap();
            say(&format!(
                "{} faults, {terms} terms, no overlap",
                faults.len()
            ));
            assert!(terms > faults.len() / 2, "{terms} terms for {faults:?}");
            return;
        }
        assert!(
            longest > HALF_MARGIN,
            "seed {seed}: {struck:?}, overlapped: {overlapped}, {left} processes left, and nobody had to wait for \
             longer than {longest:?}"
        );
        say(&format!(
            "repeating: the machine stalled for {longest:?} ({struck:?}, {overlapped})"
        ));
    }
    panic!("this machine is too busy to detect overlapping trees");
}

/// Whether `tenure run` has a version 2 control group for its commands here.
fn has_cgroup(server: &Server) -> bool {
    let mut doctor = Home::new().command();
    doctor.env("KUBECONFIG", server.kubeconfig());
    doctor.args(["doctor", "--observe=0s", "--samples=1", "-o", "json"]);
    let report = doctor.current_dir("/").output().unwrap();
    let report: serde_json::Value = serde_json::from_slice(&report.stdout).unwrap();
    let findings = report["findings"].as_array().unwrap();
    let containment = findings.iter().find(|f| f["check"] == "containment");
    let cgroup = containment.and_then(|finding| finding["figures"]["cgroup"].as_str());
    cgroup.is_some_and(|cgroup| cgroup.starts_with("cgroup v2"))
}

fn own_disk(server: &Server) -> Result<(), Skip> {
    let missing = || Skip("a disk can only be mounted by root".to_owned());
    server.has_own_disk().then_some(()).ok_or_else(missing)
}

/// A full disk rejects writes and stays readable. It needs no restart once there is space again, and it loses no
/// acknowledged write, not even after a crash.
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
    // The database file has some free space, so it accepts a few writes before it has to grow.
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
    let why = "nothing was changed: no space left for writes";
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
