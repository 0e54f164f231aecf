//! Third-party clients on the real kube-apiserver, which shows that their expectations are correct.

use tenure_tests::real::{Cluster, Peer, build, shared};
use tenure_tests::scenarios::clients;
use tenure_tests::{Skip, tools};

fn cluster() -> Option<&'static Cluster> {
    Skip::unless(shared())
}

#[test]
fn client_go_election() {
    let Some(cluster) = cluster().filter(|_| clients::peer(Peer::Elector)) else {
        return;
    };
    clients::client_go_election(&cluster.kubeconfig());
}

#[test]
fn old_client_go_election() {
    let Some(cluster) = cluster().filter(|_| clients::peer(Peer::OldElector)) else {
        return;
    };
    clients::old_client_go_election(&cluster.kubeconfig());
}

#[test]
fn informer() {
    let Some(cluster) = cluster().filter(|_| clients::peer(Peer::Informer)) else {
        return;
    };
    clients::informer(&cluster.kubeconfig());
}

#[test]
fn applier() {
    let Some(cluster) = cluster().filter(|_| clients::peer(Peer::Applier)) else {
        return;
    };
    clients::applier(&cluster.kubeconfig());
}

#[test]
fn kubectl() {
    let Some(cluster) = cluster().filter(|_| clients::peer(Peer::Kubectl)) else {
        return;
    };
    clients::kubectl(
        &build(Peer::Kubectl).unwrap(),
        &cluster.kubeconfig(),
        "kubectl",
    );
}

#[test]
fn kubectl_of_the_distribution() {
    let (Some(cluster), Some(kubectl)) = (cluster(), Skip::unless(tools::distribution_kubectl()))
    else {
        return;
    };
    clients::kubectl(&kubectl, &cluster.kubeconfig(), "kubectl-path");
}

#[test]
fn python() {
    let (Some(cluster), Some(_)) = (cluster(), Skip::unless(tools::python())) else {
        return;
    };
    clients::python(&cluster.kubeconfig());
}

#[test]
fn node() {
    let (Some(cluster), Some(_)) = (cluster(), Skip::unless(tools::node_client())) else {
        return;
    };
    clients::node(&cluster.kubeconfig());
}
