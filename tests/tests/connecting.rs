//! The API server that the command connects to. A flag takes precedence over a variable, a variable over the cluster of
//! the pod, and that over the file in the home directory. Each has its own server, and the expected one has the lease.

use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Output};

use http::Method;
use serde_json::{Value, json};
use tenure_tests::Skip;
use tenure_tests::embedded::Embedded;
use tenure_tests::home::Home;
use tenure_tests::wire::{Wire, lease_path};

/// A server, and whether a lease was requested since the last check.
struct Place {
    server: Embedded,
    wire: Wire,
}

impl Place {
    fn new() -> Self {
        let server = Embedded::start().unwrap();
        let wire = Wire::connect(&server.kubeconfig()).unwrap();
        Self { server, wire }
    }

    fn has_it(&self) -> bool {
        let path = lease_path("default", "e");
        self.wire.send(&Method::DELETE, &path, None).unwrap().status == 200
    }
}

/// Runs the command and returns which server has the lease afterwards.
fn which(places: &[(&str, &Place)], command: &mut Command) -> String {
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{said}");
    let had: Vec<&str> = places
        .iter()
        .filter(|(_, place)| place.has_it())
        .map(|(name, _)| *name)
        .collect();
    assert!(!said.contains("local server"), "{said}");
    had.join(" and ")
}

const RUN: [&str; 4] = ["run", "--election=e", "--", "true"];

#[test]
fn connecting_prefers_flag_over_variable_over_home() {
    let home = Home::new();
    let [flag, variable, file] = [Place::new(), Place::new(), Place::new()];
    let places = [("flag", &flag), ("variable", &variable), ("home", &file)];
    fs::create_dir(home.path(".kube")).unwrap();
    fs::copy(file.server.kubeconfig(), home.path(".kube/config")).unwrap();
    let with_variable = || {
        let mut command = home.command();
        command.env("KUBECONFIG", variable.server.kubeconfig());
        command
    };
    let given = flag.server.kubeconfig();
    let mut command = with_variable();
    command.arg("--kubeconfig").arg(&given).args(RUN);
    assert_eq!(which(&places, &mut command), "flag");
    let mut command = with_variable();
    command.env("TENURE_KUBECONFIG", &given).args(RUN);
    assert_eq!(which(&places, &mut command), "flag");
    assert_eq!(which(&places, with_variable().args(RUN)), "variable");
    assert_eq!(which(&places, home.command().args(RUN)), "home");
    // A file with two contexts, of which the second one is selected.
    let read = |place: &Place| -> Value {
        let text = fs::read_to_string(place.server.kubeconfig()).unwrap();
        serde_saphyr::from_str(&text).unwrap()
    };
    let (one, two) = (read(&flag), read(&variable));
    let entry = |config: &Value, list: &str, key: &str, name: &str| json!({ "name": name, key: config[list][0][key] });
    let context =
        |name: &str| json!({ "name": name, "context": { "cluster": name, "user": name } });
    let both = json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "one",
        "clusters": [entry(&one, "clusters", "cluster", "one"), entry(&two, "clusters", "cluster", "two")],
        "users": [entry(&one, "users", "user", "one"), entry(&two, "users", "user", "two")],
        "contexts": [context("one"), context("two")],
    });
    fs::write(home.path("both"), both.to_string()).unwrap();
    for (context, place) in [(None, "flag"), (Some("two"), "variable")] {
        let mut command = home.command();
        command.arg("--kubeconfig=both").args(RUN);
        command.envs(context.map(|name| ("TENURE_CONTEXT", name)));
        assert_eq!(which(&places, &mut command), place);
    }
    let output: Output = home
        .command()
        .args(["--kubeconfig=both", "--context=three"])
        .args(RUN)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(125), "{said}");
    assert!(said.contains("three"), "{said}");
}

/// Returns the command with the folder mounted where pods have their service account.
fn in_pod(command: &Command, account: &Path) -> Command {
    let script = "mount -t tmpfs none /run && mkdir -p /run/secrets/kubernetes.io && \
        cp -r \"$0\" /run/secrets/kubernetes.io/serviceaccount && exec \"$@\"";
    let mut inside = Command::new("unshare");
    inside.args(["--mount", "sh", "-c", script]).arg(account);
    inside.arg(command.get_program()).args(command.get_args());
    inside.env_clear();
    for (name, value) in command.get_envs() {
        inside.envs(value.map(|value| (name, value)));
    }
    inside
}

fn can_enter() -> Result<(), Skip> {
    let mut command = Command::new("sh");
    command.args(["-c", "test -d /run/secrets/kubernetes.io/serviceaccount"]);
    let empty = tempfile::tempdir().unwrap();
    command.env("PATH", std::env::var_os("PATH").unwrap_or_default());
    let done = in_pod(&command, empty.path()).output();
    let is_run = fs::canonicalize("/var/run").is_ok_and(|path| path == Path::new("/run"));
    if is_run && done.is_ok_and(|output| output.status.success()) {
        Ok(())
    } else {
        Err(Skip("only root can mount files for one process".to_owned()))
    }
}

#[test]
fn connecting_from_a_pod() {
    if let Err(reason) = can_enter() {
        _ = writeln!(std::io::stderr(), "skipped: {reason}");
        return;
    }
    let home = Home::new();
    let [cluster, variable, file] = [Place::new(), Place::new(), Place::new()];
    let places = [
        ("cluster", &cluster),
        ("variable", &variable),
        ("home", &file),
    ];
    fs::create_dir(home.path(".kube")).unwrap();
    fs::copy(file.server.kubeconfig(), home.path(".kube/config")).unwrap();
    // The files that the kubelet would write.
    let post = |path: &str, body: Value| {
        let answer = cluster.wire.send(&Method::POST, path, Some(&body)).unwrap();
        assert!(answer.status.is_success(), "{}", answer.body);
        answer.body
    };
    let accounts = "/api/v1/namespaces/default/serviceaccounts";
    post(
        accounts,
        json!({
            "apiVersion": "v1", "kind": "ServiceAccount", "metadata": { "name": "runner" },
        }),
    );
    post(
        "/apis/rbac.authorization.k8s.io/v1/namespaces/default/rolebindings",
        json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding",
            "metadata": { "name": "runner" },
            "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin" },
            "subjects": [{ "kind": "ServiceAccount", "name": "runner", "namespace": "default" }],
        }),
    );
    let token = post(
        &format!("{accounts}/runner/token"),
        json!({
            "apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {},
        }),
    );
    let text = fs::read_to_string(cluster.server.kubeconfig()).unwrap();
    let config: Value = serde_saphyr::from_str(&text).unwrap();
    let about = &config["clusters"][0]["cluster"];
    fs::create_dir(home.path("account")).unwrap();
    let decode = Command::new("sh")
        .args(["-c", "printf %s \"$1\" | base64 -d > account/ca.crt", "sh"])
        .arg(about["certificate-authority-data"].as_str().unwrap())
        .current_dir(home.path(""))
        .status();
    assert!(decode.unwrap().success());
    let token = token["status"]["token"].as_str().unwrap();
    fs::write(home.path("account/token"), token).unwrap();
    fs::write(home.path("account/namespace"), "default").unwrap();
    let address = about["server"]
        .as_str()
        .unwrap()
        .trim_start_matches("https://");
    let (host, port) = address.rsplit_once(':').unwrap();
    let account = home.path("account");
    let pod = |line: &[&str], more: Option<&Place>| {
        let mut command = home.command();
        command.args(line);
        command.env("KUBERNETES_SERVICE_HOST", host);
        command.env("KUBERNETES_SERVICE_PORT", port);
        command.envs(more.map(|place| ("KUBECONFIG", place.server.kubeconfig())));
        in_pod(&command, &account)
    };
    assert_eq!(which(&places, &mut pod(&RUN, None)), "cluster");
    assert_eq!(which(&places, &mut pod(&RUN, Some(&variable))), "variable");
    // The old sidecar's flag: the service account takes precedence over everything else.
    let line = [
        "elect",
        "--election=e",
        "--use-cluster-credentials",
        "--on-elected=kill $PPID",
    ];
    assert_eq!(which(&places, &mut pod(&line, Some(&variable))), "cluster");
}
