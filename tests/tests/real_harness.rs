//! The harness itself: the cluster is what it claims to be, and nothing of it stays.

use std::fs;

use http::{Method, StatusCode};
use serde_json::json;
use tenure_tests::Skip;
use tenure_tests::real::{Cluster, Peer, available, shared};
use tenure_tests::wire::{Wire, lease_path};

#[test]
fn the_server_says_its_real_version() {
    let Some(cluster) = Skip::unless(shared()) else {
        return;
    };
    let version = cluster.wire().unwrap().get("/version").unwrap();
    assert_eq!(version.body["gitVersion"], Peer::KubeApiserver.version());
    assert_eq!(version.body["major"], "1");
}

#[test]
fn rbac_is_on() {
    let Some(cluster) = Skip::unless(shared()) else {
        return;
    };
    let user = Wire::connect(&cluster.user_kubeconfig()).unwrap();
    let answer = user.get(&lease_path("default", "rbac")).unwrap();
    assert_eq!(
        (answer.status, &answer.body["reason"]),
        (StatusCode::FORBIDDEN, &json!("Forbidden"))
    );
    let admin = cluster
        .wire()
        .unwrap()
        .get(&lease_path("default", "rbac"))
        .unwrap();
    assert_eq!(admin.status, StatusCode::NOT_FOUND);
}

#[test]
fn a_dropped_cluster_leaves_nothing_behind() {
    if Skip::unless(available(&[Peer::Etcd, Peer::KubeApiserver])).is_none() {
        return;
    }
    let cluster = Cluster::start().unwrap();
    let lease = json!({"metadata": {"name": "x"}, "spec": {}});
    let created =
        cluster
            .wire()
            .unwrap()
            .send(&Method::POST, &lease_path("default", ""), Some(&lease));
    assert_eq!(created.unwrap().status, StatusCode::CREATED);

    let (pids, kubeconfig) = (cluster.pids(), cluster.kubeconfig());
    let running = |pid: &u32| fs::exists(format!("/proc/{pid}")).unwrap();
    assert!(pids.len() == 2 && pids.iter().all(running));
    drop(cluster);
    assert!(!pids.iter().any(running));
    assert!(!kubeconfig.parent().unwrap().exists());
}
