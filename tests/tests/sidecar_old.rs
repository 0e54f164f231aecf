//! The sidecar in deployments of `leader-elector:0.5`: its output, and the flags of that release.

use std::process::Command;
use std::time::Duration;

use http::Method;
use kube::config::Kubeconfig;
use serde_json::json;
use tenure_apiserver::server::Server;
use tenure_tests::clock::poll;
use tenure_tests::embedded::Embedded;
use tenure_tests::home::write_secret;
use tenure_tests::process::Process;
use tenure_tests::tools;
use tenure_tests::wire::Wire;

use crate::manager_process::says;

const LIMIT: Duration = Duration::from_secs(90);

const QUICK: [&str; 4] = [
    "--election=e",
    "--lease-duration=4s",
    "--renew-deadline=2s",
    "--retry-period=300ms",
];

fn candidate(kubeconfig: &std::path::Path, id: &str, flags: &[&str]) -> Process {
    let mut command = Command::new(tools::tenure().unwrap());
    command
        .args(QUICK)
        .args(["--compat", "--id", id])
        .args(flags);
    command
        .arg("--kubeconfig")
        .arg(kubeconfig)
        .env_remove("KUBECONFIG");
    Process::spawn(id, command).unwrap()
}

#[test]
fn sidecar_prints_leaders_and_nothing_after_a_release() {
    let server = Embedded::start().unwrap();
    let kubeconfig = server.kubeconfig();
    let mut first = candidate(&kubeconfig, "a", &[]);
    says(&first, "a is the leader");
    let second = candidate(&kubeconfig, "b", &["-v"]);
    says(&second, "a is the leader");
    says(&second, "lock is held by a and has not yet expired");
    first.terminate();
    assert_eq!(first.wait(LIMIT).unwrap().code(), Some(0));
    says(&second, "b is the leader");
    let printed = second.text();
    let leaders: Vec<_> = printed
        .iter()
        .filter(|line| line.ends_with(" is the leader"))
        .collect();
    assert_eq!(leaders, ["a is the leader", "b is the leader"]);
}

#[test]
fn sidecar_accepts_glog_flags_with_a_warning() {
    let server = Embedded::start().unwrap();
    let flags = [
        "-logtostderr=true",
        "-stderrthreshold=INFO",
        "-v=4",
        "-vmodule=a=2",
    ];
    let one = candidate(&server.kubeconfig(), "a", &flags);
    says(&one, "a is the leader");
    says(&one, "--stderrthreshold has no effect");
    says(&one, "--v and --vmodule have no effect");
    let said = one.transcript();
    assert!(!said.contains("--logtostderr"), "{said}");
}

/// Starts a server. Returns the kubeconfig of a user with these verbs on leases.
fn limited(verbs: &[&str]) -> (Embedded, tempfile::TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let tokens = folder.path().join("tokens");
    write_secret(&tokens, "token-x,x,x\n");
    let server = Embedded::start_with(Server::builder().token_file(&tokens)).unwrap();
    let admin = Wire::connect(&server.kubeconfig()).unwrap();
    let rbac = "/apis/rbac.authorization.k8s.io/v1/namespaces/default";
    let (version, metadata) = ("rbac.authorization.k8s.io/v1", json!({ "name": "x" }));
    let group = "rbac.authorization.k8s.io";
    for (path, object) in [
        (
            "roles",
            json!({
                "apiVersion": version, "kind": "Role", "metadata": metadata,
                "rules": [{
                    "apiGroups": ["coordination.k8s.io"], "resources": ["leases"],
                    "verbs": verbs,
                }],
            }),
        ),
        (
            "rolebindings",
            json!({
                "apiVersion": version, "kind": "RoleBinding", "metadata": metadata,
                "roleRef": { "apiGroup": group, "kind": "Role", "name": "x" },
                "subjects": [{ "apiGroup": group, "kind": "User", "name": "x" }],
            }),
        ),
    ] {
        let made = admin.send(&Method::POST, &format!("{rbac}/{path}"), Some(&object));
        assert!(made.unwrap().status.is_success());
    }
    let config = Kubeconfig::read_from(server.kubeconfig()).unwrap();
    let mut config = serde_json::to_value(config).unwrap();
    config["users"][0]["user"] = json!({ "token": "token-x" });
    let kubeconfig = folder.path().join("kubeconfig");
    std::fs::write(&kubeconfig, config.to_string()).unwrap();
    (server, folder)
}

#[test]
fn sidecar_names_a_missing_permission_once() {
    let (_server, folder) = limited(&["get", "list", "watch"]);
    let kubeconfig = folder.path().join("kubeconfig");
    let one = candidate(&kubeconfig, "a", &["-v", "--preflight=off"]);
    let tried = poll(LIMIT, || {
        let said = one.transcript();
        (said
            .matches("the same request failed again; retrying")
            .count()
            > 2)
        .then_some(said)
    });
    let said = tried.unwrap_or_else(|| panic!("{}", one.transcript()));
    assert_eq!(
        said.matches("a request for the lock failed; retrying")
            .count(),
        1,
        "{said}"
    );
    assert_eq!(said.matches("answers again").count(), 0, "{said}");
    assert!(said.contains("cannot create"), "{said}");
    assert!(!said.contains("Status {"), "{said}");
}

/// Roles of that release allow neither list nor watch.
#[test]
fn sidecar_without_list_and_watch_polls_and_logs_it_once() {
    let (_server, folder) = limited(&["get", "create", "update"]);
    let kubeconfig = folder.path().join("kubeconfig");
    let flags = ["-v", "--preflight=off"];
    let first = candidate(&kubeconfig, "a", &flags);
    says(&first, "a is the leader");
    let second = candidate(&kubeconfig, "b", &flags);
    says(&second, "a is the leader");
    let tried = poll(LIMIT, || {
        let said = second.transcript();
        (said.matches("still polling").count() > 1).then_some(said)
    });
    let said = tried.unwrap_or_else(|| panic!("{}", second.transcript()));
    assert_eq!(said.matches("polling instead").count(), 1, "{said}");
    assert_eq!(said.matches("cannot post Events").count(), 0, "{said}");
    assert!(!said.contains("Status {"), "{said}");
    assert!(
        !said.contains("a request for the lock failed; retrying"),
        "{said}"
    );
    // The leader may not create Events, which is also reported only once.
    let said = first.transcript();
    assert_eq!(said.matches("cannot post Events").count(), 1, "{said}");
    assert!(!said.contains("Status {"), "{said}");
    drop(first);
    says(&second, "b is the leader");
}
