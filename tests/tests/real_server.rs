//! `tenure server --kubeconfig` on the real kube-apiserver: the controllers of kube-controller-manager that it
//! replaces. The test has its own cluster, because these controllers act on all of it.

use std::process::Command;
use std::time::Duration;

use http::{Method, StatusCode};
use serde_json::{Value, json};
use tenure_tests::clock::poll;
use tenure_tests::process::Process;
use tenure_tests::real::{Cluster, own_cluster};
use tenure_tests::wire::{Wire, lease_path};
use tenure_tests::{Skip, tools};

const LIMIT: Duration = Duration::from_secs(120);

struct Place {
    admin: Wire,
    cluster: Cluster,
}

impl Place {
    fn replica(&self, name: &str) -> Process {
        let mut command = Command::new(tools::tenure().unwrap());
        command.args(["server", "--kubeconfig"]);
        command.arg(self.cluster.kubeconfig());
        Process::spawn(name, command).unwrap()
    }

    fn post(&self, path: &str, object: &Value) -> Value {
        let made = self.admin.send(&Method::POST, path, Some(object)).unwrap();
        assert!(made.status.is_success(), "{path}: {}", made.body);
        made.body
    }

    fn is_there(&self, path: &str) -> bool {
        self.admin.get(path).unwrap().status.is_success()
    }

    fn until(&self, what: &str, replicas: &[&Process], so: impl Fn() -> bool) {
        let waited = poll(LIMIT, || so().then_some(()));
        let said = || replicas.iter().map(|replica| replica.transcript());
        assert!(
            waited.is_some(),
            "{what}: {}",
            said().collect::<Vec<_>>().join("\n")
        );
    }

    fn spec(&self) -> Value {
        let lease = self.admin.get(&lease_path("kube-system", "tenure-server"));
        lease.unwrap().body["spec"].clone()
    }

    /// A namespace gets its standard contents, is filled, and is deleted with all contents.
    fn comes_and_goes(&self, name: &str, replicas: &[&Process]) {
        let namespace = json!({ "metadata": { "name": name } });
        self.post("/api/v1/namespaces", &namespace);
        let core = format!("/api/v1/namespaces/{name}");
        for made in ["serviceaccounts/default", "configmaps/kube-root-ca.crt"] {
            let path = format!("{core}/{made}");
            self.until(&path, replicas, || self.is_there(&path));
        }
        let held = json!({ "metadata": { "name": "held", "finalizers": ["tenure.dev/test"] } });
        self.post(&format!("{core}/configmaps"), &held);
        let secret = json!({ "metadata": { "name": "s" }, "stringData": { "k": "v" } });
        self.post(&format!("{core}/secrets"), &secret);
        self.post(
            &lease_path(name, ""),
            &json!({ "metadata": { "name": "l" }, "spec": {} }),
        );
        let deleted = self.admin.send(&Method::DELETE, &core, None).unwrap();
        assert!(deleted.status.is_success(), "{}", deleted.body);
        // Everything is deleted except an object with a finalizer, so the namespace remains.
        let secret = format!("{core}/secrets/s");
        self.until(&secret, replicas, || !self.is_there(&secret));
        let phase = self.admin.get(&core).unwrap().body["status"]["phase"].clone();
        assert_eq!(phase, "Terminating");
        let free = json!({ "metadata": { "finalizers": null } });
        let path = format!("{core}/configmaps/held");
        let freed = self.admin.send(&Method::PATCH, &path, Some(&free)).unwrap();
        assert!(freed.status.is_success(), "{}", freed.body);
        self.until(&core, replicas, || {
            self.admin.get(&core).unwrap().status == StatusCode::NOT_FOUND
        });
    }

    /// Objects without an owner are deleted, and orphaned objects are kept.
    fn collects(&self, replicas: &[&Process]) {
        let maps = "/api/v1/namespaces/default/configmaps";
        for (policy, stays) in [("Background", false), ("Orphan", true)] {
            let owner = self.post(maps, &json!({ "metadata": { "name": "owner" } }));
            let owned = json!({ "metadata": { "name": "owned", "ownerReferences": [{
                "apiVersion": "v1", "kind": "ConfigMap", "name": "owner",
                "uid": owner["metadata"]["uid"] }] } });
            self.post(maps, &owned);
            let path = format!("{maps}/owner?propagationPolicy={policy}");
            let deleted = self.admin.send(&Method::DELETE, &path, None).unwrap();
            assert!(deleted.status.is_success(), "{}", deleted.body);
            let (owner, owned) = (format!("{maps}/owner"), format!("{maps}/owned"));
            self.until(policy, replicas, || !self.is_there(&owner));
            if stays {
                let owned = self.admin.get(&owned).unwrap().body;
                assert!(owned["metadata"]["ownerReferences"].is_null(), "{owned}");
            } else {
                self.until(policy, replicas, || !self.is_there(&owned));
            }
        }
    }
}

#[test]
fn real_server_replicas_elect_one_leader_for_namespaces_and_garbage_collection() {
    let programs = own_cluster().and(tools::tenure());
    if Skip::unless(programs).is_none() {
        return;
    }
    let cluster = Cluster::start().unwrap();
    let place = Place {
        admin: cluster.wire().unwrap(),
        cluster,
    };
    let mut a = place.replica("a");
    let mut b = place.replica("b");
    place.comes_and_goes("first", &[&a, &b]);
    place.collects(&[&a, &b]);
    let before = place.spec();
    assert_ne!(before["holderIdentity"], "", "{before}");
    // One replica is killed. The other one leads in the end, whichever it was.
    a.kill();
    place.comes_and_goes("second", &[&b]);
    let c = place.replica("c");
    // The other one ends gracefully.
    let led = place.spec();
    b.terminate();
    assert_eq!(b.wait(LIMIT).unwrap().code(), Some(0));
    place.comes_and_goes("third", &[&c]);
    let after = place.spec();
    assert_ne!(after["holderIdentity"], led["holderIdentity"], "{after}");
    let transitions = |spec: &Value| spec["leaseTransitions"].as_i64().unwrap_or_default();
    assert_eq!(transitions(&after), transitions(&led) + 1, "{led} {after}");
}
