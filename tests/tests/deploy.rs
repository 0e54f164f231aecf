//! The files in `deploy/`: roles as printed, and everything taken by an API server.

use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use tenure_tests::embedded::Embedded;
use tenure_tests::home::Home;
use tenure_tests::real::{Peer, build};
use tenure_tests::tools;
use tenure_tests::wire::Wire;

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy")
}

fn text(output: &Output) -> String {
    let (out, err) = (&output.stdout, &output.stderr);
    String::from_utf8_lossy(out).into_owned() + &String::from_utf8_lossy(err)
}

#[test]
fn deploy_has_the_least_role_per_kind_of_lock() {
    let home = Home::new();
    for kind in [
        "leases",
        "configmaps",
        "endpoints",
        "configmapsleases",
        "endpointsleases",
    ] {
        let printed = home.tenure(&[
            "elect",
            "--election=example",
            "--election-namespace=default",
            &format!("--lock={kind}"),
            "--print-rbac",
        ]);
        let printed = String::from_utf8_lossy(&printed.stdout).into_owned();
        let file = folder().join(format!("rbac/role-{kind}.yaml"));
        assert_eq!(std::fs::read_to_string(file).unwrap(), printed, "{kind}");
        assert!(!printed.contains('*') && !printed.contains("ClusterRole"));
    }
}

#[test]
fn deploy_is_taken_by_an_api_server_and_the_plugin_is_found_by_kubectl() {
    if !crate::clients::peer(Peer::Kubectl) {
        return;
    }
    let kubectl = build(Peer::Kubectl).unwrap();
    let home = Home::new();
    let server = Embedded::start().unwrap();
    let run = |args: &[&str], path: &str| {
        let output = Command::new(&kubectl)
            .env_clear()
            .env("HOME", home.path(""))
            .env("PATH", path)
            .env("KUBECONFIG", server.kubeconfig())
            .args(args)
            .output()
            .unwrap();
        assert!(output.status.success(), "{args:?}: {}", text(&output));
        text(&output)
    };
    for file in [
        "rbac/account.yaml",
        "rbac/role-leases.yaml",
        "sidecar.yaml",
        "native-sidecar.yaml",
    ] {
        let path = folder().join(file);
        let said = run(&["apply", "-f", path.to_str().unwrap()], "");
        assert!(said.contains("created"), "{file}: {said}");
        // Nothing is lost or filled in that a second apply would change.
        let said = run(&["apply", "-f", path.to_str().unwrap()], "");
        assert!(
            said.contains("unchanged") && !said.contains("configured"),
            "{file}: {said}"
        );
    }
    let wire = Wire::connect(&server.kubeconfig()).unwrap();
    let sidecar = wire
        .get("/apis/apps/v1/namespaces/default/deployments/example")
        .unwrap();
    let containers = &sidecar.body["spec"]["template"]["spec"]["containers"];
    assert_eq!(containers[0]["args"][1], "--http=0.0.0.0:4444");
    // As kubectl's plugin, by its name on the PATH.
    let plugins = home.path("plugins");
    std::fs::create_dir(&plugins).unwrap();
    symlink(tools::tenure().unwrap(), plugins.join("kubectl-tenure")).unwrap();
    let path = plugins.to_str().unwrap();
    assert!(run(&["tenure", "status"], path).contains("no elections"));
    assert!(run(&["tenure", "status", "--help"], path).contains("kubectl tenure status"));
}
