//! API servers behind a proxy, and the local server, which is never accessed through one.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Duration;

use serde_json::json;
use tenure_csi::mock::MockConfig;
use tenure_tests::clock::poll;
use tenure_tests::embedded::Embedded;
use tenure_tests::forward::{ForwardProxy, NAME, under_name};
use tenure_tests::home::Home;
use tenure_tests::process::Process;
use tenure_tests::storage::{Rig, until};
use tenure_tests::tools;
use tenure_tests::wire::{Wire, lease_path};

const LIMIT: Duration = Duration::from_secs(120);

/// A server that only the proxy can reach.
struct Behind {
    server: Embedded,
    proxy: ForwardProxy,
    home: Home,
    kubeconfig: PathBuf,
}

impl Behind {
    fn new() -> Self {
        let (server, home) = (Embedded::start().unwrap(), Home::new());
        let file = home.path("behind");
        let kubeconfig = under_name(&server.kubeconfig(), NAME, &json!({}), &file).unwrap();
        Self {
            kubeconfig,
            proxy: ForwardProxy::start().unwrap(),
            server,
            home,
        }
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = self.home.command();
        command.args(args).env("HTTPS_PROXY", self.proxy.url());
        command.env("KUBECONFIG", &self.kubeconfig);
        command
    }

    /// Waits until this lease is held.
    fn is_held(&self, namespace: &str, name: &str, by: &Process) {
        let wire = Wire::connect(&self.server.kubeconfig()).unwrap();
        let held = poll(LIMIT, || {
            let lease = wire.get(&lease_path(namespace, name)).ok()?.body;
            let holder = lease["spec"]["holderIdentity"].as_str()?;
            (!holder.is_empty()).then_some(())
        });
        assert!(held.is_some(), "{}", by.transcript());
    }

    /// Asserts that the proxy was used, and only for this server.
    fn was_proxied(&self, by: &str) {
        let asked = self.proxy.asked();
        assert!(!asked.is_empty(), "{by} does not use the proxy");
        let name = format!("{NAME}:");
        let only = asked.iter().all(|server| server.starts_with(&name));
        assert!(only, "{by}: {asked:?}");
    }
}

fn succeeds(command: &mut Command) -> Output {
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{said}");
    output
}

#[test]
fn proxies_lead_run_status_elect_and_server_to_the_cluster() {
    let behind = Behind::new();
    succeeds(&mut behind.command(&["run", "--election=e", "--", "true"]));
    behind.was_proxied("run");
    let status = succeeds(&mut behind.command(&["status", "e"]));
    assert!(String::from_utf8_lossy(&status.stdout).contains('e'));
    behind.was_proxied("status");
    let elect = behind.command(&["elect", "--election=s", "--id=me"]);
    let elect = Process::spawn("elect", elect).unwrap();
    behind.is_held("default", "s", &elect);
    behind.was_proxied("elect");
    let kubeconfig = behind.kubeconfig.to_str().unwrap();
    let server = behind.command(&["server", "--kubeconfig", kubeconfig]);
    let server = Process::spawn("server", server).unwrap();
    behind.is_held("kube-system", "tenure-server", &server);
    behind.was_proxied("server");
}

/// kube itself reads the configuration, as for any program with the manager.
#[test]
fn proxies_lead_the_manager_to_the_cluster() {
    let behind = Behind::new();
    let mut command = Command::new(tools::managed().unwrap());
    command.arg(&behind.kubeconfig).arg("work");
    command.env("HTTPS_PROXY", behind.proxy.url());
    let managed = Process::spawn("managed", command).unwrap();
    behind.is_held("default", "g", &managed);
    behind.was_proxied("the manager");
    drop(managed);
    // kube would send requests to loopback addresses through the proxy.
    let mut command = Command::new(tools::managed().unwrap());
    command.arg(behind.server.kubeconfig()).arg("work");
    command.env("HTTPS_PROXY", behind.proxy.url());
    let managed = Process::spawn("managed", command).unwrap();
    let starts = poll(LIMIT, || {
        managed.transcript().contains("work starts").then_some(())
    });
    assert!(starts.is_some(), "{}", managed.transcript());
    assert_eq!(behind.proxy.asked(), [""; 0]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn proxies_lead_the_provisioner_to_the_cluster() {
    let rig = Rig::start().await.unwrap();
    let _driver = rig.driver("s", MockConfig::default()).unwrap();
    let proxy = ForwardProxy::start().unwrap();
    let to = rig.socket("kubeconfig");
    let file = under_name(&rig.server.kubeconfig(), NAME, &json!({}), &to).unwrap();
    let flags = ["--leader-election", "--leader-election-namespace=default"];
    let mut command = rig.command_as(&file, "s", &flags).unwrap();
    command.env("https_proxy", proxy.url());
    let provisioner = Rig::spawn("s", command).unwrap();
    until("provisioning", async || {
        let said = provisioner.process.transcript();
        said.contains("provisioning").then_some(())
    })
    .await;
    let asked = proxy.asked();
    assert!(asked.len() > 1, "lock and work: {asked:?}");
    assert!(
        asked.iter().all(|server| server.starts_with(NAME)),
        "{asked:?}"
    );
    assert_eq!(provisioner.stop().unwrap(), Some(0));
}

/// 0.0.0.0 reaches loopback but is not a loopback address.
#[test]
fn proxies_are_not_used_for_servers_in_no_proxy() {
    let (server, home) = (Embedded::start().unwrap(), Home::new());
    let proxy = ForwardProxy::start().unwrap();
    let copy = |name: &str, more| {
        under_name(&server.kubeconfig(), "0.0.0.0", &more, &home.path(name)).unwrap()
    };
    let plain = copy("plain", json!({}));
    let run = |kubeconfig: &Path, exceptions: &str, through: &str| {
        let mut command = home.command();
        command
            .env("HTTPS_PROXY", through)
            .env("NO_PROXY", exceptions);
        command.env("KUBECONFIG", kubeconfig);
        succeeds(command.args(["run", "--election=e", "--", "true"]));
        !proxy.asked().is_empty()
    };
    for (exceptions, proxied) in [
        ("", true),
        ("*", false),
        ("example.com,0.0.0.0,", false),
        ("0.0.0.0/8", false),
        ("10.0.0.0/8, .example.com", true),
        ("0.0.0.0:1", true),
        // kube compares the address of the proxy.
        ("127.0.0.1", true),
    ] {
        assert_eq!(
            run(&plain, exceptions, &proxy.url()),
            proxied,
            "{exceptions:?}"
        );
    }
    // The kubeconfig takes precedence over the environment.
    let own = copy("own", json!({ "proxy-url": proxy.url() }));
    assert!(run(&own, "*", "http://127.0.0.1:9"));
}

#[test]
fn proxies_that_do_not_respond_are_named() {
    let behind = Behind::new();
    let mut command = behind.command(&["status"]);
    command.env("HTTPS_PROXY", "http://user:secret@127.0.0.1:9");
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success());
    assert!(said.contains("proxy http://127.0.0.1:9"), "{said}");
    assert!(!said.contains("secret"), "{said}");
    command.env("HTTPS_PROXY", "https://127.0.0.1:9");
    let said = command.output().unwrap().stderr;
    let said = String::from_utf8_lossy(&said).into_owned();
    assert!(
        said.contains("only http:// and socks5:// proxies"),
        "{said}"
    );
}

/// The first command of the README, with proxy settings for all other servers.
#[test]
fn proxies_are_never_used_for_the_local_server() {
    for (name, value) in [
        ("HTTPS_PROXY", "http://127.0.0.1:9"),
        ("https_proxy", "http://127.0.0.1:9"),
        ("HTTPS_PROXY", "not a proxy"),
        ("ALL_PROXY", "socks5://127.0.0.1:9"),
    ] {
        let home = Home::new();
        let mut command = home.command();
        command.env(name, value).env("NO_PROXY", "example.com,");
        let script = "echo \"leading with token $TENURE_FENCING_TOKEN\"";
        command.args(["run", "--election", "hello", "--", "sh", "-c", script]);
        let output = succeeds(&mut command);
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(said.starts_with("leading with token "), "{said}");
    }
}
