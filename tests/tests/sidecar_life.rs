//! `tenure elect --mode=for-life`: whoever leads does so as long as its pod lives; no leader rather than two.

use std::path::Path;
use std::time::Duration;

use http::Method;
use serde_json::{Value, json};
use tenure_tests::clock::{Nanos, now, poll};
use tenure_tests::embedded::Embedded;
use tenure_tests::event::Kind;
use tenure_tests::home::Home;
use tenure_tests::process::Process;
use tenure_tests::wire::{Wire, lease_path};

const LIMIT: Duration = Duration::from_secs(120);

/// Long enough for a candidate to do what it must not.
const WHILE: Duration = Duration::from_secs(3);

/// Pods that are candidates for one lock.
pub(crate) struct Ward<'a> {
    pub(crate) home: &'a Home,
    pub(crate) admin: &'a Wire,
    pub(crate) namespace: &'a str,
    /// Whose rights the candidates have.
    pub(crate) kubeconfig: &'a Path,
}

impl Ward<'_> {
    fn pod_path(&self, pod: &str) -> String {
        format!("/api/v1/namespaces/{}/pods/{pod}", self.namespace)
    }

    /// Makes a pod; returns its uid.
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
        let mut command = self.home.command();
        command
            .env("KUBECONFIG", self.kubeconfig)
            .env("POD_NAME", pod)
            .env("POD_NAMESPACE", self.namespace)
            .env("POD_UID", uid)
            .args(["elect", "--election=life"])
            .args(flags)
            .args(["--preflight=fail", "--events=json"]);
        Process::spawn(pod, command).unwrap()
    }

    /// Deletes at once.
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

    /// Deaths of processes and of pods, and who leads then.
    pub(crate) fn live_and_die(&self) {
        let (a_uid, b_uid) = (self.pod("a"), self.pod("b"));
        let mut a = self.candidate("a", &a_uid);
        leads(&a, Nanos(0));
        self.is_owned_by(&a_uid);
        let b = self.candidate("b", &b_uid);
        observed(&b, &format!("a_{a_uid}"));
        // The process dies and its pod lives: nobody else leads, and it comes back as what it was.
        a.kill();
        std::thread::sleep(WHILE);
        assert!(b.last_of(&[Kind::Acquired]).is_none(), "{}", b.transcript());
        let mut a = self.candidate("a", &a_uid);
        leads(&a, Nanos(0));
        // The same in good order: the pod has not gone by that.
        a.terminate();
        assert_eq!(a.wait(LIMIT).unwrap().code(), Some(0), "{}", a.transcript());
        std::thread::sleep(WHILE);
        assert_eq!(self.lease()["spec"]["holderIdentity"], format!("a_{a_uid}"));
        assert!(b.last_of(&[Kind::Acquired]).is_none(), "{}", b.transcript());
        // The pod goes, and another of the same name comes: that is not the leader.
        let gone = now();
        self.delete(&self.pod_path("a"));
        let again = self.pod("a");
        leads(&b, gone);
        self.is_owned_by(&b_uid);
        let a = self.candidate("a", &again);
        observed(&a, &format!("b_{b_uid}"));
        // A pod that has ended for good is as dead as one that has gone.
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

/// On a server of its own.
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
fn sidecar_life_ends_with_the_pod_even_if_the_lease_went_first() {
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
        // As the garbage collector does, and with nothing to be seen in between.
        let gone = now();
        ward.delete(&ward.pod_path("a"));
        leads(&b, gone);
        ward.is_owned_by(&b_uid);
        // The other way round.
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
        // Its identity is the pod's name and a random part, which is no uid of any pod.
        let mut a = ward.candidate_with("a", &a_uid, &["--ttl=5s"]);
        leads(&a, Nanos(0));
        let holder = ward.lease()["spec"]["holderIdentity"].clone();
        let b = ward.candidate("b", &b_uid);
        observed(&b, holder.as_str().unwrap());
        let said = poll(LIMIT, || {
            b.transcript().contains("no pod of this mode").then_some(())
        });
        assert!(said.is_some(), "{}", b.transcript());
        std::thread::sleep(WHILE);
        assert_eq!(ward.lease()["spec"]["holderIdentity"], holder);
        assert!(a.last_of(&[Kind::Lost]).is_none(), "{}", a.transcript());
        // Its lease runs out as any does.
        let killed = a.kill();
        leads(&b, killed);
    });
}

#[test]
fn sidecar_life_goes_on_after_an_edit() {
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
fn sidecar_life_is_given_back_by_order() {
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

#[test]
fn sidecar_life_says_what_it_needs() {
    let home = Home::new();
    for (flags, uid, why) in [
        (&["--election=e"][..], "", "set POD_UID from metadata.uid"),
        (&["--election=e", "--id=x"], "u", "leave --id out"),
        (&["--election=e", "--ttl=9s"], "u", "has no durations"),
        (
            &["--election=e", "--lock=configmaps"],
            "u",
            "leave --lock out",
        ),
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
