//! Faults on real processes, with the real kube-apiserver.

use tenure_tests::nemesis::server::Server;
use tenure_tests::real::{Peer, available, own_cluster, shared};
use tenure_tests::scenarios::nemesis;
use tenure_tests::{Skip, tools};

fn programs() -> Result<(), Skip> {
    available(&[Peer::Elector]).and_then(|()| tools::candidate().map(drop))
}

#[test]
fn campaign() {
    if Skip::unless(own_cluster().and_then(|()| programs())).is_some() {
        nemesis::campaign(Server::real().unwrap());
    }
}

#[test]
fn known_overlaps() {
    if let Some(cluster) = Skip::unless(programs().and_then(|()| shared())) {
        nemesis::known_overlaps(&cluster.kubeconfig());
    }
}
