//! The Role that `tenure run --print-rbac` prints, with the embedded server and RBAC.

use std::path::PathBuf;
use std::process::Output;

use http::Method;
use kube::config::Kubeconfig;
use serde_json::{Value, json};
use tenure_apiserver::auth::User;
use tenure_apiserver::server::Server;
use tenure_tests::embedded::Embedded;
use tenure_tests::home::Home;
use tenure_tests::wire::Wire;

const RBAC: &str = "/apis/rbac.authorization.k8s.io/v1/namespaces/default";
const LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces/default/leases";

/// A server, and a user that has only the permissions of the Role that was applied.
struct Place {
    home: Home,
    kubeconfig: PathBuf,
    admin: Wire,
    _server: Embedded,
}

impl Place {
    fn new() -> Self {
        let user = User {
            name: "candidate".into(),
            groups: vec!["system:authenticated".into()],
            ..User::admin()
        };
        let server = Embedded::start_with(Server::builder().token("t0ken", user)).unwrap();
        let mut config =
            serde_json::to_value(Kubeconfig::read_from(server.kubeconfig()).unwrap()).unwrap();
        config["users"][0]["user"] = json!({ "token": "t0ken" });
        let home = Home::new();
        let kubeconfig = home.path("candidate");
        std::fs::write(&kubeconfig, config.to_string()).unwrap();
        let admin = Wire::connect(&server.kubeconfig()).unwrap();
        Self {
            home,
            kubeconfig,
            admin,
            _server: server,
        }
    }

    fn create(&self, path: &str, object: &Value) {
        let made = self.admin.send(&Method::POST, path, Some(object)).unwrap();
        assert!(made.status.is_success(), "{path}: {}", made.body);
    }

    /// Returns the Role that these flags print.
    fn printed(&self, flags: &[&str]) -> Value {
        let line = [&["run", "--election=e", "--print-rbac"], flags].concat();
        let printed = self.home.tenure(&line);
        serde_saphyr::from_str(&String::from_utf8_lossy(&printed.stdout)).unwrap()
    }

    fn grant(&self, role: &Value) {
        self.create(&format!("{RBAC}/roles"), role);
        let binding = json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding",
            "metadata": { "name": "candidate" },
            "roleRef": {
                "apiGroup": "rbac.authorization.k8s.io", "kind": "Role",
                "name": role["metadata"]["name"],
            },
            "subjects": [{ "apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "candidate" }],
        });
        self.create(&format!("{RBAC}/rolebindings"), &binding);
    }

    fn create_lease(&self, name: &str, metadata: &Value, spec: &Value) {
        let mut metadata = metadata.clone();
        metadata["name"] = name.into();
        let lease = json!({
            "apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": metadata, "spec": spec,
        });
        self.create(LEASES, &lease);
    }

    /// Writes what the other kind of candidate writes: the number of slots, or a lease that was just renewed.
    #[allow(
        clippy::disallowed_methods,
        reason = "another process compares the time with its clock"
    )]
    fn use_otherwise(&self, has_slots: bool) {
        if has_slots {
            let now = format!("{:.6}", k8s_openapi::jiff::Timestamp::now());
            let spec = json!({
                "holderIdentity": "u", "leaseDurationSeconds": 600, "acquireTime": now, "renewTime": now,
            });
            self.create_lease("e", &json!({}), &spec);
        } else {
            let metadata = json!({
                "labels": { "tenure.dev/semaphore": "e" }, "annotations": { "tenure.dev/slots": "2" },
            });
            self.create_lease("e-0", &metadata, &json!({}));
        }
    }

    fn run(&self, flags: &[&str]) -> (Option<i32>, String) {
        let mut command = self.home.command();
        let line = [
            "run",
            "--election=e",
            "--election-namespace=default",
            "--wait=60s",
        ];
        command.env("KUBECONFIG", &self.kubeconfig).args(line);
        let Output { status, stderr, .. } =
            command.args(flags).args(["--", "true"]).output().unwrap();
        (status.code(), String::from_utf8_lossy(&stderr).into_owned())
    }
}

const KINDS: [(&[&str], bool, &str, &str); 2] = [
    (&[], false, "e-0", "election default/e has 2 slots"),
    (
        &["--slots=2"],
        true,
        "e",
        "u leads the election default/e without slots",
    ),
];

/// Returns whether a rule allows nothing but to get this lease.
fn only_gets(rule: &Value, lease: &str) -> bool {
    rule["verbs"] == json!(["get"]) && rule["resourceNames"] == json!([lease])
}

#[test]
fn run_access_printed_role_is_enough_to_refuse_the_other_kind_of_candidate() {
    for (flags, has_slots, lease, why) in KINDS {
        let place = Place::new();
        let role = place.printed(flags);
        let rules = role["rules"].as_array().unwrap();
        let found = rules.iter().filter(|rule| only_gets(rule, lease)).count();
        assert_eq!(found, 1, "{role:#}");
        place.grant(&role);
        let (code, said) = place.run(flags);
        assert_eq!(code, Some(0), "{said}");
        assert!(!said.contains("permission"), "{said}");

        let place = Place::new();
        place.grant(&role);
        place.use_otherwise(has_slots);
        let (code, said) = place.run(flags);
        assert_eq!(code, Some(64), "{said}");
        assert!(said.contains(why), "{said}");
    }
}

#[test]
fn run_access_missing_permission_to_see_slots_is_reported_once() {
    for (flags, has_slots, lease, _) in KINDS {
        let place = Place::new();
        let mut role = place.printed(flags);
        let rules = role["rules"].as_array_mut().unwrap();
        rules.retain(|rule| !only_gets(rule, lease));
        place.grant(&role);
        place.use_otherwise(has_slots);
        let (code, said) = place.run(flags);
        assert_eq!(code, Some(0), "{said}");
        let missing = format!(
            "missing permission: get leases.coordination.k8s.io \"{lease}\" in namespace \"default\""
        );
        assert_eq!(said.matches(&missing).count(), 1, "{said}");
    }
}
