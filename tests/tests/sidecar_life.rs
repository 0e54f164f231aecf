//! `tenure elect --mode=for-life`: a leader leads as long as its pod exists. If it is unknown whether the leader still
//! runs, nobody else leads.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use http::Method;
use kube::config::Kubeconfig;
use serde_json::{Value, json};
use tenure_apiserver::server::Server;
use tenure_tests::clock::{Nanos, now, poll};
use tenure_tests::embedded::Embedded;
use tenure_tests::event::Kind;
use tenure_tests::home::{Home, write_secret};
use tenure_tests::process::Process;
use tenure_tests::wire::{Wire, lease_path};

const LIMIT: Duration = Duration::from_secs(120);

/// Long enough for a candidate to do something forbidden.
const WHILE: Duration = Duration::from_secs(3);

/// The label with which a leader records that it has read its own pod.
const MARK: &str = "tenure.dev/holder-pod-uid";

/// The text to add to the container of a pod.
const DOWNWARD_API: &str = "\
env:
- name: POD_NAME
  valueFrom:
    fieldRef:
      fieldPath: metadata.name
- name: POD_NAMESPACE
  valueFrom:
    fieldRef:
      fieldPath: metadata.namespace
- name: POD_UID
  valueFrom:
    fieldRef:
      fieldPath: metadata.uid";

/// Pods that are candidates for one lock.
pub(crate) struct Ward<'a> {
    pub(crate) home: &'a Home,
    pub(crate) admin: &'a Wire,
    pub(crate) namespace: &'a str,
    /// The kubeconfig, and thus the permissions, of the candidates.
    pub(crate) kubeconfig: &'a Path,
}

impl Ward<'_> {
    fn pod_path(&self, pod: &str) -> String {
        format!("/api/v1/namespaces/{}/pods/{pod}", self.namespace)
    }

    /// Creates a pod. Returns its uid.
    fn pod(&self, name: &str) -> String {
        let pod = json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": { "name": name },
            "spec": { "containers": [{ "name": "c", "image": "i" }] },
        });
        let path = self.pod_path("");
        let made = self
            .admin
            .send(&Method::POST, path.trim_end_matches('/'), Some(&pod));
        let made = made.unwrap();
        assert!(made.status.is_success(), "{}", made.body);
        made.body["metadata"]["uid"].as_str().unwrap().to_owned()
    }

    fn candidate(&self, pod: &str, uid: &str) -> Process {
        self.candidate_with(pod, uid, &["--mode=for-life"])
    }

    fn candidate_with(&self, pod: &str, uid: &str, flags: &[&str]) -> Process {
        let mut command = self.command(uid, flags);
        command.env("POD_NAME", pod);
        Process::spawn(pod, command).unwrap()
    }

    /// Returns the command of a candidate whose environment has no `POD_NAME`.
    fn command(&self, uid: &str, flags: &[&str]) -> Command {
        let mut command = self.home.command();
        command
            .env("KUBECONFIG", self.kubeconfig)
            .env("POD_NAMESPACE", self.namespace)
            .env("POD_UID", uid)
            .args(["elect", "--election=life"])
            .args(flags)
            .args(["--preflight=fail", "--events=json"]);
        command
    }

    /// Starts a candidate that must exit with code 3 and print the variables to set.
    fn is_refused(&self, case: &str, command: Command, why: &str) {
        let mut refused = Process::spawn(case, command).unwrap();
        let code = refused.wait(LIMIT).unwrap().code();
        let said = refused.transcript();
        assert_eq!(code, Some(3), "{case}: {said}");
        assert!(said.contains(why), "{case}: {said}");
        for line in DOWNWARD_API.lines() {
            assert!(said.contains(line), "{case}: {line:?} is not in {said}");
        }
        let lease = self.admin.get(&lease_path(self.namespace, "life"));
        assert_eq!(lease.unwrap().status, 404, "{case}: {said}");
    }

    /// Deletes an object immediately.
    fn delete(&self, path: &str) {
        let options = json!({ "gracePeriodSeconds": 0 });
        let deleted = self.admin.send(&Method::DELETE, path, Some(&options));
        let deleted = deleted.unwrap();
        assert!(deleted.status.is_success(), "{}", deleted.body);
    }

    fn lease(&self) -> Value {
        self.admin
            .get(&lease_path(self.namespace, "life"))
            .unwrap()
            .body
    }

    fn is_owned_by(&self, uid: &str) {
        let owned = poll(LIMIT, || {
            let owners = self.lease()["metadata"]["ownerReferences"].clone();
            let owners = owners.as_array().cloned().unwrap_or_default();
            (owners.len() == 1 && owners[0]["uid"] == uid && owners[0]["kind"] == "Pod")
                .then_some(())
        });
        assert!(owned.is_some(), "not owned by {uid}: {}", self.lease());
    }

    /// Ends of processes and of pods, and the resulting leaders.
    pub(crate) fn live_and_die(&self) {
        let (a_uid, b_uid) = (self.pod("a"), self.pod("b"));
        let mut a = self.candidate("a", &a_uid);
        leads(&a, Nanos(0));
        self.is_owned_by(&a_uid);
        let b = self.candidate("b", &b_uid);
        observed(&b, &format!("a_{a_uid}"));
        // The process is killed and its pod exists: no other candidate leads, and the process leads again after its
        // restart.
        a.kill();
        std::thread::sleep(WHILE);
        assert!(b.last_of(&[Kind::Acquired]).is_none(), "{}", b.transcript());
        let mut a = self.candidate("a", &a_uid);
        leads(&a, Nanos(0));
        // The same with a graceful end, which does not delete the pod.
        a.terminate();
        assert_eq!(a.wait(LIMIT).unwrap().code(), Some(0), "{}", a.transcript());
        std::thread::sleep(WHILE);
        assert_eq!(self.lease()["spec"]["holderIdentity"], format!("a_{a_uid}"));
        assert!(b.last_of(&[Kind::Acquired]).is_none(), "{}", b.transcript());
        // The pod is deleted and another one of the same name is created, which is not the leader.
        let gone = now();
        self.delete(&self.pod_path("a"));
        let again = self.pod("a");
        leads(&b, gone);
        self.is_owned_by(&b_uid);
        let a = self.candidate("a", &again);
        observed(&a, &format!("b_{b_uid}"));
        // A pod in a final phase counts as dead, like a deleted one.
        drop(b);
        let ended = now();
        let failed = json!({ "status": { "phase": "Failed", "reason": "Evicted" } });
        let path = format!("{}/status", self.pod_path("b"));
        let patched = self
            .admin
            .send(&Method::PATCH, &path, Some(&failed))
            .unwrap();
        assert!(patched.status.is_success(), "{}", patched.body);
        leads(&a, ended);
        self.is_owned_by(&again);
        let said = a.transcript();
        assert!(!said.contains("forbidden"), "{said}");
    }
}

fn leads(process: &Process, since: Nanos) {
    let led = process.wait_for(Kind::Acquired, since, LIMIT);
    led.unwrap_or_else(|silence| panic!("{silence}"));
}

fn observed(process: &Process, leader: &str) {
    let seen = process.wait_until(leader, LIMIT, |event| event.leader == leader);
    seen.unwrap_or_else(|silence| panic!("{silence}"));
}

/// Runs the test with its own server.
fn on_a_ward(test: impl FnOnce(&Ward<'_>)) {
    let home = Home::new();
    let server = Embedded::start().unwrap();
    let admin = Wire::connect(&server.kubeconfig()).unwrap();
    test(&Ward {
        home: &home,
        admin: &admin,
        namespace: "default",
        kubeconfig: &server.kubeconfig(),
    });
}

#[test]
fn sidecar_life_ends_with_the_pod_and_not_before() {
    on_a_ward(|ward| ward.live_and_die());
}

#[test]
fn sidecar_life_ends_with_the_pod_even_if_the_lease_was_deleted_first() {
    on_a_ward(|ward| {
        let (a_uid, b_uid) = (ward.pod("a"), ward.pod("b"));
        let mut a = ward.candidate("a", &a_uid);
        leads(&a, Nanos(0));
        let b = ward.candidate("b", &b_uid);
        observed(&b, &format!("a_{a_uid}"));
        a.kill();
        ward.delete(&lease_path(ward.namespace, "life"));
        std::thread::sleep(WHILE);
        assert!(b.last_of(&[Kind::Acquired]).is_none(), "{}", b.transcript());
        // The garbage collector deletes the pod in the same way, without an observable intermediate state.
        let gone = now();
        ward.delete(&ward.pod_path("a"));
        leads(&b, gone);
        ward.is_owned_by(&b_uid);
        // The reverse order: the pod is deleted first.
        drop(b);
        let c_uid = ward.pod("c");
        let c = ward.candidate("c", &c_uid);
        observed(&c, &format!("b_{b_uid}"));
        let gone = now();
        ward.delete(&ward.pod_path("b"));
        ward.delete(&lease_path(ward.namespace, "life"));
        leads(&c, gone);
        ward.is_owned_by(&c_uid);
    });
}

#[test]
fn sidecar_life_waits_for_leaders_of_another_mode() {
    on_a_ward(|ward| {
        let (a_uid, b_uid) = (ward.pod("a"), ward.pod("b"));
        // The identity is the pod's name and a random part, which is not the uid of any pod.
        let mut a = ward.candidate_with("a", &a_uid, &["--ttl=5s"]);
        leads(&a, Nanos(0));
        let holder = ward.lease()["spec"]["holderIdentity"].clone();
        let b = ward.candidate("b", &b_uid);
        observed(&b, holder.as_str().unwrap());
        let said = poll(LIMIT, || {
            b.transcript()
                .contains("does not use --mode=for-life")
                .then_some(())
        });
        assert!(said.is_some(), "{}", b.transcript());
        std::thread::sleep(WHILE);
        assert_eq!(ward.lease()["spec"]["holderIdentity"], holder);
        assert!(a.last_of(&[Kind::Lost]).is_none(), "{}", a.transcript());
        // The lease expires like any other.
        let killed = a.kill();
        leads(&b, killed);
    });
}

#[test]
fn sidecar_life_continues_after_an_edit() {
    on_a_ward(|ward| {
        let (a_uid, b_uid) = (ward.pod("a"), ward.pod("b"));
        let a = ward.candidate("a", &a_uid);
        leads(&a, Nanos(0));
        let b = ward.candidate("b", &b_uid);
        observed(&b, &format!("a_{a_uid}"));
        let edited = now();
        let edit = json!({ "spec": { "leaseTransitions": 41 } });
        let path = lease_path(ward.namespace, "life");
        let patched = ward.admin.send(&Method::PATCH, &path, Some(&edit)).unwrap();
        assert!(patched.status.is_success(), "{}", patched.body);
        let lost = a.wait_for(Kind::Lost, edited, LIMIT);
        lost.unwrap_or_else(|silence| panic!("{silence}"));
        leads(&a, edited);
        assert!(b.last_of(&[Kind::Acquired]).is_none(), "{}", b.transcript());
    });
}

#[test]
fn sidecar_life_lease_is_released_by_order() {
    on_a_ward(|ward| {
        let (a_uid, b_uid) = (ward.pod("a"), ward.pod("b"));
        let a = ward.candidate("a", &a_uid);
        leads(&a, Nanos(0));
        let b = ward.candidate("b", &b_uid);
        observed(&b, &format!("a_{a_uid}"));
        let ordered = now();
        let mut order = ward.home.command();
        order
            .env("KUBECONFIG", ward.kubeconfig)
            .args(["step-down", "life", "--for=5m", "--no-wait"])
            .args(["--namespace", ward.namespace]);
        assert!(order.status().unwrap().success());
        leads(&b, ordered);
        ward.is_owned_by(&b_uid);
    });
}

/// With `hostNetwork` or `spec.hostname` the host name is not the name of a pod. Two such candidates used to conclude
/// that the other one's pod was gone, and emptied the Lease of a living leader.
#[test]
fn sidecar_life_without_proof_of_its_own_pod_refuses_to_start() {
    on_a_ward(|ward| {
        let (a_uid, b_uid) = (ward.pod("a"), ward.pod("b"));
        for uid in [&a_uid, &b_uid] {
            let command = ward.command(uid, &["--mode=for-life"]);
            ward.is_refused("host name", command, "POD_NAME is not set");
        }
        for (pod, uid) in [("a", &b_uid), ("no-such-pod", &a_uid)] {
            let mut command = ward.command(uid, &["--mode=for-life"]);
            command.env("POD_NAME", pod);
            ward.is_refused(pod, command, &format!("pod \"{pod}\""));
        }
        let mut command = ward.command("", &["--mode=for-life"]);
        command.env("POD_NAME", "a");
        ward.is_refused("no uid", command, "POD_UID is not set");
    });
}

#[test]
fn sidecar_life_that_may_not_read_its_pod_does_not_lead() {
    let home = Home::new();
    let tokens = home.path("tokens");
    write_secret(&tokens, "secret,life,life\n");
    let server = Embedded::start_with(Server::builder().token_file(tokens)).unwrap();
    let admin = Wire::connect(&server.kubeconfig()).unwrap();
    let group = "rbac.authorization.k8s.io";
    for (kind, object) in [
        (
            "roles",
            json!({ "kind": "Role", "rules": [{
                "apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": ["*"],
            }] }),
        ),
        (
            "rolebindings",
            json!({
                "kind": "RoleBinding",
                "roleRef": { "apiGroup": group, "kind": "Role", "name": "life" },
                "subjects": [{ "apiGroup": group, "kind": "User", "name": "life" }],
            }),
        ),
    ] {
        let mut object = object;
        object["apiVersion"] = format!("{group}/v1").into();
        object["metadata"] = json!({ "name": "life" });
        let path = format!("/apis/{group}/v1/namespaces/default/{kind}");
        let made = admin.send(&Method::POST, &path, Some(&object)).unwrap();
        assert!(made.status.is_success(), "{}", made.body);
    }
    let mut config =
        serde_json::to_value(Kubeconfig::read_from(server.kubeconfig()).unwrap()).unwrap();
    config["users"][0]["user"] = json!({ "token": "secret" });
    let kubeconfig = home.path("life");
    std::fs::write(&kubeconfig, config.to_string()).unwrap();
    let ward = Ward {
        home: &home,
        admin: &admin,
        namespace: "default",
        kubeconfig: &kubeconfig,
    };
    let uid = ward.pod("a");
    let mut command = ward.command(&uid, &["--mode=for-life", "--startup-timeout=5s"]);
    command.env("POD_NAME", "a").arg("--preflight=off");
    let mut process = Process::spawn("a", command).unwrap();
    let code = process.wait(LIMIT).unwrap().code();
    let said = process.transcript();
    assert_eq!(code, Some(6), "{said}");
    assert!(said.contains("cannot read this pod"), "{said}");
    let lease = admin.get(&lease_path("default", "life")).unwrap();
    assert_eq!(lease.status, 404, "{said}");
}

/// The record of a candidate that is older than the check at start: its process exists, under another name.
#[test]
fn sidecar_life_never_frees_the_lock_of_an_unknown_pod() {
    on_a_ward(|ward| {
        let (a_uid, b_uid) = (ward.pod("a"), ward.pod("b"));
        let holder = format!("node-1_{a_uid}");
        let lease = json!({
            "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
            "metadata": { "name": "life" },
            "spec": {
                "holderIdentity": holder,
                "leaseDurationSeconds": 172_800,
                "acquireTime": "2026-01-01T00:00:00.000000Z",
                "renewTime": "2026-01-01T00:00:00.000000Z",
                "leaseTransitions": 3,
            },
        });
        let path = lease_path(ward.namespace, "life");
        let (leases, _) = path.rsplit_once('/').unwrap();
        let made = ward.admin.send(&Method::POST, leases, Some(&lease));
        assert!(made.unwrap().status.is_success());
        let b = ward.candidate("b", &b_uid);
        observed(&b, &holder);
        let said = poll(LIMIT, || {
            b.transcript().contains("never seen").then_some(())
        });
        assert!(said.is_some(), "{}", b.transcript());
        std::thread::sleep(WHILE);
        assert_eq!(ward.lease()["spec"]["holderIdentity"], holder);
        assert!(b.last_of(&[Kind::Acquired]).is_none(), "{}", b.transcript());
        // An operator who knows that the holder has ended empties the Lease.
        let emptied = now();
        let empty = json!({ "spec": { "holderIdentity": "", "leaseDurationSeconds": 1 } });
        let patched = ward.admin.send(&Method::PATCH, &path, Some(&empty));
        assert!(patched.unwrap().status.is_success());
        leads(&b, emptied);
    });
}

/// The record itself shows that the pod existed, for candidates that start after its deletion.
#[test]
fn sidecar_life_ends_with_the_pod_for_candidates_that_never_saw_it() {
    on_a_ward(|ward| {
        let (a_uid, b_uid) = (ward.pod("a"), ward.pod("b"));
        let mut a = ward.candidate("a", &a_uid);
        leads(&a, Nanos(0));
        assert_eq!(ward.lease()["metadata"]["labels"][MARK], a_uid);
        a.kill();
        ward.delete(&ward.pod_path("a"));
        // A StatefulSet also creates a pod of the same name again.
        ward.pod("a");
        let b = ward.candidate("b", &b_uid);
        leads(&b, Nanos(0));
        ward.is_owned_by(&b_uid);
        assert_eq!(ward.lease()["metadata"]["labels"][MARK], b_uid);
    });
}

#[test]
fn sidecar_life_reports_missing_requirements() {
    let home = Home::new();
    for (flags, uid, why) in [
        (&["--election=e", "--id=x"][..], "u", "remove --id"),
        (&["--election=e", "--ttl=9s"], "u", "does not use durations"),
        (&["--election=e", "--lock=configmaps"], "u", "remove --lock"),
        (
            &["--election=e", "--election-namespace=other"],
            "u",
            "in the namespace of the pod",
        ),
    ] {
        let output = home
            .command()
            .env("POD_UID", uid)
            .env("POD_NAMESPACE", "default")
            .args(["elect", "--mode=for-life"])
            .args(flags)
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{flags:?}: {said}");
        assert!(said.contains(why) && said.lines().count() == 1, "{said}");
    }
}
