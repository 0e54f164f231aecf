//! Every command on the real kube-apiserver with RBAC. Each runs as a service account with exactly the permissions that
//! `--print-rbac` prints or the documentation names.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Duration;

use http::Method;
use kube::config::Kubeconfig;
use serde_json::{Value, json};
use tenure_tests::Skip;
use tenure_tests::clock::{Nanos, poll};
use tenure_tests::event::Kind;
use tenure_tests::home::Home;
use tenure_tests::process::Process;
use tenure_tests::real::{Cluster, Peer, available, build, shared};
use tenure_tests::tools;
use tenure_tests::wire::{Wire, lease_path};

use crate::sidecar_access::{CASES, is_routed};
use crate::sidecar_life::Ward;

const LIMIT: Duration = Duration::from_secs(120);

const GROUP: &str = "rbac.authorization.k8s.io";

/// A namespace of the real cluster, and accounts in it.
struct Place {
    home: Home,
    cluster: &'static Cluster,
    admin: Wire,
    namespace: &'static str,
}

impl Place {
    /// Returns `None` without a cluster.
    fn new(namespace: &'static str) -> Option<Self> {
        let cluster = Skip::unless(shared())?;
        let place = Self {
            home: Home::new(),
            cluster,
            admin: cluster.wire().unwrap(),
            namespace,
        };
        if namespace != "default" {
            let made = json!({ "metadata": { "name": namespace } });
            place.create("/api/v1/namespaces", &made);
        }
        Some(place)
    }

    fn create(&self, path: &str, object: &Value) {
        let made = self.admin.send(&Method::POST, path, Some(object)).unwrap();
        assert!(made.status.is_success(), "{path}: {}", made.body);
    }

    fn core(&self, resource: &str) -> String {
        format!("/api/v1/namespaces/{}/{resource}", self.namespace)
    }

    fn rbac(&self, resource: &str) -> String {
        format!("/apis/{GROUP}/v1/namespaces/{}/{resource}", self.namespace)
    }

    /// Creates a service account with exactly these roles. Returns its kubeconfig once the server knows the roles.
    fn account(&self, name: &str, roles: &[Value]) -> PathBuf {
        let made = json!({ "metadata": { "name": name } });
        self.create(&self.core("serviceaccounts"), &made);
        for (at, role) in roles.iter().enumerate() {
            let bound = format!("{name}-{at}");
            let role = json!({ "metadata": { "name": bound }, "rules": role["rules"] });
            self.create(&self.rbac("roles"), &role);
            let binding = json!({
                "metadata": { "name": bound },
                "roleRef": { "apiGroup": GROUP, "kind": "Role", "name": bound },
                "subjects": [
                    { "kind": "ServiceAccount", "name": name, "namespace": self.namespace },
                ],
            });
            self.create(&self.rbac("rolebindings"), &binding);
        }
        let kubeconfig = self.kubeconfig_of(name);
        let own = Wire::connect(&kubeconfig).unwrap();
        for role in roles {
            self.knows(&own, role);
        }
        kubeconfig
    }

    /// Returns the kubeconfig of a service account, with a token like that of a pod.
    fn kubeconfig_of(&self, account: &str) -> PathBuf {
        let request = json!({
            "apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest",
            "spec": { "expirationSeconds": 3600 },
        });
        let path = self.core(&format!("serviceaccounts/{account}/token"));
        let answer = self.admin.send(&Method::POST, &path, Some(&request));
        let answer = answer.unwrap().body;
        let token = answer["status"]["token"].as_str();
        let token = token.unwrap_or_else(|| panic!("{answer}"));
        let file = Kubeconfig::read_from(self.cluster.kubeconfig()).unwrap();
        let mut config = serde_json::to_value(file).unwrap();
        config["users"][0]["user"] = json!({ "token": token });
        config["contexts"][0]["context"]["namespace"] = self.namespace.into();
        let path = self.home.path(account);
        std::fs::write(&path, config.to_string()).unwrap();
        path
    }

    /// Waits until an account has a role, because the server's caches receive roles with a delay.
    fn knows(&self, own: &Wire, role: &Value) {
        let rule = &role["rules"][0];
        let review = json!({
            "apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview",
            "spec": { "resourceAttributes": {
                "namespace": self.namespace, "group": rule["apiGroups"][0],
                "resource": rule["resources"][0], "verb": rule["verbs"][0],
                "name": rule["resourceNames"][0],
            } },
        });
        let path = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews";
        let known = poll(LIMIT, || {
            let answer = own.send(&Method::POST, path, Some(&review)).unwrap().body;
            (answer["status"]["allowed"] == true).then_some(())
        });
        assert!(known.is_some(), "never granted: {rule}");
    }

    fn command(&self, kubeconfig: &Path, args: &[&str]) -> Command {
        let mut command = self.home.command();
        command.env("KUBECONFIG", kubeconfig).args(args);
        command
    }

    fn run(&self, kubeconfig: &Path, args: &[&str]) -> Output {
        self.command(kubeconfig, args).output().unwrap()
    }

    /// Runs a command, asserts success and returns its output.
    fn stdout(&self, kubeconfig: &Path, args: &[&str]) -> String {
        let output = self.run(kubeconfig, args);
        assert!(output.status.success(), "{args:?}: {}", text(&output));
        String::from_utf8(output.stdout).unwrap()
    }

    /// Returns the Roles that a command line prints.
    fn printed(&self, args: &[&str]) -> Vec<Value> {
        let output = self
            .home
            .command()
            .env("POD_NAMESPACE", self.namespace)
            .args(args)
            .arg("--print-rbac")
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", text(&output));
        let roles = String::from_utf8(output.stdout).unwrap();
        let roles = roles.split("---\n");
        let roles = roles.map(|role| serde_saphyr::from_str(role).unwrap());
        roles.collect()
    }

    /// Starts a candidate and waits until it leads.
    fn leader(&self, kubeconfig: &Path, election: &str, id: &str) -> Process {
        let (election, id) = (format!("--election={election}"), format!("--id={id}"));
        let command = self.command(kubeconfig, &["elect", "--events=json", &election, &id]);
        let leader = Process::spawn(&id, command).unwrap();
        leads(&leader);
        leader
    }
}

fn text(output: &Output) -> String {
    let (out, err) = (&output.stdout, &output.stderr);
    String::from_utf8_lossy(out).into_owned() + &String::from_utf8_lossy(err)
}

fn leads(process: &Process) {
    let led = process.wait_for(Kind::Acquired, Nanos(0), LIMIT);
    led.unwrap_or_else(|silence| panic!("{silence}"));
}

fn role(rules: &[(&str, &str, &[&str])]) -> Value {
    let rule = |(group, resource, verbs): &(&str, &str, &[&str])| json!({ "apiGroups": [group], "resources": [resource], "verbs": verbs });
    json!({ "rules": rules.iter().map(rule).collect::<Vec<_>>() })
}

/// Every lock kind and every way of routing, from the first write to the release.
#[test]
fn real_commands_elect_needs_exactly_its_printed_role() {
    let Some(place) = Place::new("commands-elect") else {
        return;
    };
    for name in ["web", "shop"] {
        let service = json!({
            "metadata": { "name": name },
            "spec": { "ports": [{ "port": 80, "targetPort": 8080 }] },
        });
        place.create(&place.core("services"), &service);
    }
    let pod = json!({
        "metadata": { "name": "web-0" },
        "spec": { "containers": [{ "name": "c", "image": "i" }] },
    });
    place.create(&place.core("pods"), &pod);
    let ready = json!({ "status": { "conditions": [
        { "type": "Ready", "status": "True" }, { "type": "ContainersReady", "status": "True" },
    ] } });
    let path = place.core("pods/web-0/status");
    let patched = place.admin.send(&Method::PATCH, &path, Some(&ready));
    assert!(patched.unwrap().status.is_success());
    for case in &CASES {
        let election = format!("--election={}", case.user);
        let flags = [&["elect", &election, "--id=me"], case.flags].concat();
        let kubeconfig = place.account(case.user, &place.printed(&flags));
        let mut command = place.command(&kubeconfig, &flags);
        command
            .args(["--preflight=fail", "--events=json"])
            .env("POD_NAME", "web-0")
            .env("POD_NAMESPACE", place.namespace)
            .env("POD_IP", "10.0.0.7");
        let mut process = Process::spawn(case.user, command).unwrap();
        leads(&process);
        let routed = poll(LIMIT, || {
            is_routed(&place.admin, place.namespace, case).then_some(())
        });
        assert!(routed.is_some(), "{}", process.transcript());
        process.terminate();
        let code = process.wait(LIMIT).unwrap().code();
        let said = process.transcript();
        assert_eq!(code, Some(0), "{}: {said}", case.user);
        assert!(process.last_of(&[Kind::Released]).is_some(), "{said}");
        assert!(!said.contains("forbidden"), "{}: {said}", case.user);
    }
    // Without any role, all missing permissions are reported.
    let nothing = place.account("nothing", &[]);
    let refused = place.run(&nothing, &["elect", "--election=e", "--preflight=fail"]);
    assert_eq!(refused.status.code(), Some(4), "{}", text(&refused));
    for verb in ["get", "list", "update", "watch", "create"] {
        assert!(text(&refused).contains(&format!("{verb} leases")), "{verb}");
    }
}

#[test]
fn real_commands_leaders_for_life_need_exactly_the_printed_role() {
    let Some(place) = Place::new("commands-life") else {
        return;
    };
    let printed = place.printed(&["elect", "--election=life", "--mode=for-life"]);
    let kubeconfig = place.account("life", &printed);
    let ward = Ward {
        home: &place.home,
        admin: &place.admin,
        namespace: place.namespace,
        kubeconfig: &kubeconfig,
    };
    ward.live_and_die();
}

#[test]
fn real_commands_run_needs_exactly_its_printed_role() {
    let Some(place) = Place::new("commands-run") else {
        return;
    };
    let says = ["--", "sh", "-c", "echo $TENURE_LOCK_HELD $TENURE_TERM"];
    for (user, flags) in [
        ("plain", &[][..]),
        ("maps", &["--lock=configmaps"]),
        ("once", &["--once"]),
        ("slots", &["--slots=2"]),
        ("deletes", &["--delete-on-exit"]),
        ("both", &["--lock=endpointsleases", "--delete-on-exit"]),
    ] {
        let election = format!("--election={user}");
        let line = [&["run", &election], flags].concat();
        let kubeconfig = place.account(user, &place.printed(&line));
        let ran = place.run(&kubeconfig, &[&line, &says[..]].concat());
        assert_eq!(ran.status.code(), Some(0), "{user}: {}", text(&ran));
        let (out, err) = (&ran.stdout, String::from_utf8_lossy(&ran.stderr));
        assert!(out.starts_with(b"true "), "{user}: {}", text(&ran));
        assert!(!err.contains("forbidden"), "{user}: {err}");
        let lease = place.admin.get(&lease_path(place.namespace, user));
        let lease = lease.unwrap();
        match user {
            "plain" => assert_eq!(lease.body["spec"]["holderIdentity"], ""),
            "deletes" | "both" => assert_eq!(lease.status, 404, "{user}"),
            "once" => {
                let again = place.run(&kubeconfig, &[&line, &says[..]].concat());
                assert_eq!(again.status.code(), Some(0), "{}", text(&again));
                assert_eq!(again.stdout, b"", "the work was already done");
            }
            _ => {}
        }
    }
    // Another candidate leads.
    let other = place.kubeconfig_of("plain");
    let _leader = place.leader(&other, "plain", "other");
    let line = ["run", "--election=plain", "--nonblock", "--", "true"];
    let refused = place.run(&other, &line);
    assert_eq!(refused.status.code(), Some(75), "{}", text(&refused));
    // Without the role, the command is not run.
    let nothing = place.account("nothing", &[]);
    let line = ["run", "--election=plain", "--wait=2s", "--", "true"];
    let refused = place.run(&nothing, &line);
    assert_ne!(refused.status.code(), Some(0));
}

/// The watchdog of a killed wrapper has the permissions of the wrapper.
#[test]
fn real_commands_killed_run_is_released_with_what_it_prints() {
    let Some(place) = Place::new("commands-crash") else {
        return;
    };
    let line = ["run", "--election=crash", "--lease-duration=10m"];
    let line = [&line[..], &["--renew-deadline=5m", "--id=first"]].concat();
    let kubeconfig = place.account("crash", &place.printed(&line));
    let command = ["--", "sh", "-c", "echo > started; exec sleep 1000"];
    let command = place.command(&kubeconfig, &[&line[..], &command].concat());
    let mut wrapper = Process::spawn("first", command).unwrap();
    let path = lease_path(place.namespace, "crash");
    let is_held_by = |wanted: &str| {
        let held = poll(LIMIT, || {
            let lease = place.admin.get(&path).unwrap().body;
            (lease["spec"]["holderIdentity"] == wanted).then_some(())
        });
        held.is_some()
    };
    assert!(is_held_by("first"), "{}", wrapper.transcript());
    let starts = place.home.path("started");
    assert!(poll(LIMIT, || starts.exists().then_some(())).is_some());
    wrapper.kill();
    assert!(is_held_by(""), "{}", wrapper.transcript());
}

/// The commands that display and control elections, with the permissions documented in docs/book/how-to/seeing.md.
#[test]
fn real_commands_status_and_orders_need_the_documented_permissions() {
    let Some(place) = Place::new("commands-seeing") else {
        return;
    };
    let leases = "coordination.k8s.io";
    let candidates = place.printed(&["elect", "--election=web"]);
    let candidate = place.account("candidate", &candidates);
    let viewer = role(&[
        (leases, "leases", &["get", "list", "watch"]),
        ("", "events", &["list"]),
    ]);
    let viewer = place.account("viewer", &[viewer]);
    let steers = role(&[(leases, "leases", &["get", "patch"])]);
    let steers = place.account("steers", &[steers]);
    let a = place.leader(&candidate, "web", "a");
    let status = |who: &Path| -> Value {
        serde_json::from_str(&place.stdout(who, &["status", "-o", "json"])).unwrap()
    };
    let row = status(&viewer)[0].clone();
    assert_eq!((&row["name"], &row["holder"]), (&"web".into(), &"a".into()));
    assert_eq!(row["namespace"], place.namespace);
    // The account may list only its own namespace.
    let all = place.run(&viewer, &["status", "-A"]);
    assert!(!all.status.success(), "{}", text(&all));
    let mut command = place.command(&viewer, &["status", "-w"]);
    command.env("TERM", "dumb");
    let watching = Process::spawn("status", command).unwrap();
    let line = ["elect", "--events=json", "--election=web", "--id=b"];
    let b = Process::spawn("b", place.command(&candidate, &line)).unwrap();
    b.wait_for(Kind::Observed, Nanos(0), LIMIT).unwrap();
    // An account that may only read cannot give orders.
    for order in ["step-down", "pause", "resume"] {
        let refused = place.run(&viewer, &[order, "web"]);
        assert!(!refused.status.success(), "{order}");
        assert!(text(&refused).contains("forbidden"), "{}", text(&refused));
    }
    let handed = place.stdout(&steers, &["step-down", "web"]);
    assert_eq!(handed.trim(), "a -> b");
    b.wait_for(Kind::Acquired, Nanos(0), LIMIT).unwrap();
    a.wait_for(Kind::Released, Nanos(0), LIMIT).unwrap();
    let shown = poll(LIMIT, || {
        let lines = watching.text();
        let b = |line: &String| line.contains("web") && line.contains(" b ");
        lines.iter().any(b).then_some(())
    });
    assert!(shown.is_some(), "{:?}", watching.text());
    // Events are written shortly afterwards.
    let history = poll(LIMIT, || {
        let history = place.stdout(&viewer, &["history", "web", "-o", "json"]);
        let history: Value = serde_json::from_str(&history).unwrap();
        let terms = history["terms"].as_array().cloned().unwrap_or_default();
        (terms.len() == 2).then_some(terms)
    });
    let history =
        history.unwrap_or_else(|| panic!("{}", place.stdout(&viewer, &["history", "web"])));
    assert_eq!(
        (&history[0]["holder"], &history[1]["holder"]),
        (&"a".into(), &"b".into())
    );
    place.stdout(&steers, &["pause", "web"]);
    assert_eq!(status(&viewer)[0]["paused"], true);
    place.stdout(&steers, &["resume", "web"]);
    assert_eq!(status(&viewer)[0]["paused"], false);
    // `doctor` reports whether an account may campaign.
    let doctor = place.run(&candidate, &["doctor", "web"]);
    assert!(doctor.status.success(), "{}", text(&doctor));
    let doctor = place.run(&viewer, &["doctor", "web"]);
    assert_eq!(doctor.status.code(), Some(1), "{}", text(&doctor));
    assert!(text(&doctor).contains("update"), "{}", text(&doctor));
}

/// The real kubectl applies the files in `deploy/`, and candidates run as the account in them.
#[test]
fn real_commands_deploy_files_are_accepted_and_their_account_is_sufficient() {
    let Some(place) = Place::new("default") else {
        return;
    };
    if Skip::unless(available(&[Peer::Kubectl])).is_none() {
        return;
    }
    crate::deploy::applied(&place.cluster.kubeconfig(), &place.home);
    crate::helm::installed(&place.cluster.kubeconfig());
    let account = place.kubeconfig_of("example");
    let own = Wire::connect(&account).unwrap();
    let path = place.rbac("roles/tenure-example");
    place.knows(&own, &place.admin.get(&path).unwrap().body);
    // The command line of the Deployment, with a free port of this machine.
    let path = "/apis/apps/v1/namespaces/default/deployments/example";
    let deployment = place.admin.get(path).unwrap().body;
    let containers = &deployment["spec"]["template"]["spec"]["containers"];
    let args = containers[0]["args"].as_array().unwrap().iter();
    let args = args.map(|arg| arg.as_str().unwrap().replace("0.0.0.0:4444", "127.0.0.1:0"));
    let mut command = place.command(&account, &[]);
    command
        .env("POD_NAME", "example-0")
        .env("POD_NAMESPACE", "default")
        .args(args)
        .args(["--events=json", "--preflight=fail"]);
    let mut process = Process::spawn("example-0", command).unwrap();
    leads(&process);
    process.terminate();
    assert_eq!(process.wait(LIMIT).unwrap().code(), Some(0));
    // The kubectl plugin with the configuration of kubectl.
    let kubectl = build(Peer::Kubectl).unwrap();
    let plugins = place.home.path("real-plugins");
    std::fs::create_dir(&plugins).unwrap();
    let plugin = plugins.join("kubectl-tenure");
    std::os::unix::fs::symlink(tools::tenure().unwrap(), plugin).unwrap();
    let status = Command::new(kubectl)
        .env_clear()
        .env("HOME", place.home.path(""))
        .env("PATH", plugins)
        .env("KUBECONFIG", place.cluster.kubeconfig())
        .args(["tenure", "status", "example", "-o", "json"])
        .output()
        .unwrap();
    assert!(status.status.success(), "{}", text(&status));
    assert!(text(&status).contains("\"free\""), "{}", text(&status));
}

/// The operator of the examples: two replicas run as an account with the permissions for its two elections, its cache
/// and its gate.
#[test]
fn real_commands_operator_of_the_examples_hands_over() {
    let Some(operator) = Skip::unless(tools::example("operator")) else {
        return;
    };
    let Some(place) = Place::new("default") else {
        return;
    };
    let mut roles = Vec::new();
    for election in ["operator-example", "operator-example-audit"] {
        let election = format!("--election={election}");
        roles.extend(place.printed(&["elect", &election]));
    }
    roles.push(role(&[("", "configmaps", &["list", "watch"])]));
    let kubeconfig = place.account("operator", &roles);
    let start = |name: &str| {
        let mut command = Command::new(&operator);
        command
            .env("KUBECONFIG", &kubeconfig)
            .env("RUST_LOG", "warn");
        Process::spawn(name, command).unwrap()
    };
    let shows = |process: &Process, line: &str| {
        let said = || process.text().iter().any(|text| text.contains(line));
        let shown = poll(LIMIT, || said().then_some(()));
        assert!(shown.is_some(), "no {line:?}: {}", process.transcript());
    };
    let map = |name: &str| {
        let map = json!({ "metadata": { "name": name, "labels": { "example": "seen" } } });
        place.create(&place.core("configmaps"), &map);
    };
    let mut first = start("first");
    shows(&first, "auditing with token");
    map("operator-one");
    shows(&first, "operator-one is there");
    let second = start("second");
    shows(&second, "this replica runs");
    first.terminate();
    assert_eq!(first.wait(LIMIT).unwrap().code(), Some(0));
    shows(&first, "everything has stopped");
    shows(&second, "auditing with token");
    map("operator-two");
    shows(&second, "operator-two is there");
    let said = second.transcript();
    assert!(!said.contains("forbidden"), "{said}");
}
