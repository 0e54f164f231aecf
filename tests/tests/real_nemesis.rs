//! Faults on real processes, on the real kube-apiserver.

use tenure_tests::nemesis::server::Server;
use tenure_tests::real::{Peer, available, shared};
use tenure_tests::{Skip, tools};

use crate::nemesis;

fn programs() -> bool {
    let peers = available(&[Peer::Etcd, Peer::KubeApiserver, Peer::Elector]);
    Skip::unless(peers.and(tools::candidate())).is_some()
}

#[test]
fn campaign() {
    if programs() {
        nemesis::campaign(Server::real().unwrap());
    }
}

#[test]
fn known_overlaps() {
    if let Some(cluster) = Skip::unless(shared()).filter(|_| programs()) {
        nemesis::known_overlaps(&cluster.kubeconfig());
    }
}
