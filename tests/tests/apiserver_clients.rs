//! Third-party clients on the embedded API server.

use tenure_tests::embedded::Embedded;
use tenure_tests::real::{Peer, build};
use tenure_tests::scenarios::clients;
use tenure_tests::{Skip, tools};

#[test]
fn client_go_election() {
    if clients::peer(Peer::Elector) {
        let server = Embedded::start().unwrap();
        clients::client_go_election(&server.kubeconfig());
    }
}

#[test]
fn old_client_go_election() {
    if clients::peer(Peer::OldElector) {
        let server = Embedded::start().unwrap();
        clients::old_client_go_election(&server.kubeconfig());
    }
}

#[test]
fn informer() {
    if clients::peer(Peer::Informer) {
        let server = Embedded::start().unwrap();
        clients::informer(&server.kubeconfig());
    }
}

#[test]
fn applier() {
    if clients::peer(Peer::Applier) {
        let server = Embedded::start().unwrap();
        clients::applier(&server.kubeconfig());
    }
}

#[test]
fn kubectl() {
    if clients::peer(Peer::Kubectl) {
        let server = Embedded::start().unwrap();
        let program = build(Peer::Kubectl).unwrap();
        clients::kubectl(&program, &server.kubeconfig(), "kubectl");
    }
}

#[test]
fn kubectl_of_the_distribution() {
    if let Some(program) = Skip::unless(tools::distribution_kubectl()) {
        let server = Embedded::start().unwrap();
        clients::kubectl(&program, &server.kubeconfig(), "kubectl");
    }
}

#[test]
fn kubectl_applies_and_defines() {
    if clients::peer(Peer::Kubectl) {
        let server = Embedded::start().unwrap();
        let program = build(Peer::Kubectl).unwrap();
        clients::kubectl_applies_and_defines(&program, &server.kubeconfig(), "apply");
    }
}

#[test]
fn python() {
    if Skip::unless(tools::python()).is_some() {
        let server = Embedded::start().unwrap();
        clients::python(&server.kubeconfig());
    }
}

#[test]
fn node() {
    if Skip::unless(tools::node_client()).is_some() {
        let server = Embedded::start().unwrap();
        clients::node(&server.kubeconfig());
    }
}
