//! `tenure server` as a process, with users that have tokens.

use std::fs;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::{Value, json};

use super::client::Client;
use super::{MAPS, RBAC};
use crate::clock::poll;
use crate::home::{Home, write_secret};
use crate::process::Process;

const LIMIT: Duration = Duration::from_secs(180);

/// A running `tenure server run` with its own home directory.
#[derive(Debug)]
pub struct AttackedServer {
    process: Process,
    home: Home,
    instance: Value,
}

impl AttackedServer {
    /// Starts a server with a durable store, TLS and plain HTTP on loopback. The token of a user is its name and `-token`.
    ///
    /// # Panics
    ///
    /// Panics if the server does not start.
    pub fn start(users: &[String], options: &[&str]) -> Self {
        let home = Home::new();
        let tokens = users
            .iter()
            .map(|user| format!("{user}-token,{user},{user}\n"));
        write_secret(home.path("tokens"), tokens.collect::<String>());
        Self::start_in(home, options)
    }

    /// Starts a server in a home that contains the file `tokens`.
    ///
    /// # Panics
    ///
    /// Panics if the server does not start.
    pub fn start_in(home: Home, options: &[&str]) -> Self {
        let mut command = home.command();
        command.args(["server", "run", "--listen=127.0.0.1:0"]);
        command.args(["--insecure-listen=127.0.0.1:0", "--token-auth-file=tokens"]);
        command.args(options);
        let process = Process::spawn("server", command).expect("the command is built");
        let running = || {
            let status = home.tenure(&["server", "status"]);
            serde_json::from_slice(&status.stdout).ok()
        };
        let instance = poll(LIMIT, running);
        let instance = instance.unwrap_or_else(|| panic!("no start: {}", process.transcript()));
        Self {
            process,
            home,
            instance,
        }
    }

    /// Returns the address without TLS.
    ///
    /// # Panics
    ///
    /// Panics if the server does not report one.
    pub fn plain(&self) -> SocketAddr {
        self.address("insecureUrl")
    }

    /// Returns the address with TLS.
    ///
    /// # Panics
    ///
    /// Panics if the server does not report one.
    pub fn tls(&self) -> SocketAddr {
        self.address("url")
    }

    fn address(&self, member: &str) -> SocketAddr {
        let url = self.instance[member].as_str().expect("a URL");
        let (_, address) = url.split_once("://").expect("a scheme");
        address.parse().expect("an address")
    }

    fn kubeconfig(&self) -> &Path {
        Path::new(self.instance["kubeconfig"].as_str().expect("a path"))
    }

    /// Returns a client of a user.
    pub fn client(&self, user: &str) -> Client {
        Client {
            address: self.plain(),
            token: format!("{user}-token"),
        }
    }

    /// Returns a client with another token.
    pub fn client_with(&self, token: &str) -> Client {
        Client {
            address: self.plain(),
            token: token.to_owned(),
        }
    }

    /// Returns the client of the administrator.
    ///
    /// # Panics
    ///
    /// Panics if the server has not written its token.
    pub fn admin(&self) -> Client {
        let token = fs::read_to_string(self.kubeconfig().with_file_name("token"));
        Client {
            address: self.plain(),
            token: token
                .expect("the server has written its token")
                .trim()
                .to_owned(),
        }
    }

    /// Writes a kubeconfig of a user, which uses TLS.
    ///
    /// # Panics
    ///
    /// Panics if the kubeconfig of the administrator cannot be read.
    pub fn kubeconfig_of(&self, user: &str) -> PathBuf {
        let admin = kube::config::Kubeconfig::read_from(self.kubeconfig()).expect("a kubeconfig");
        let mut config = serde_json::to_value(admin).expect("it is serializable");
        config["users"][0]["user"] = json!({ "token": format!("{user}-token") });
        let path = self.home.path(format!("{user}.kubeconfig"));
        fs::write(&path, config.to_string()).expect("a writable home");
        path
    }

    /// Returns the path of a file in the home of the server.
    pub fn path(&self, name: &str) -> PathBuf {
        self.home.path(name)
    }

    /// Returns the server process.
    pub fn process(&self) -> &Process {
        &self.process
    }

    /// Creates an object as the administrator.
    ///
    /// # Panics
    ///
    /// Panics if it is not created.
    pub async fn create(&self, path: &str, object: &Value) -> Value {
        let made = self.admin().send("POST", path, object).await;
        let made = made.expect("an answer");
        assert_eq!(made.status, 201, "{path}: {}", made.json());
        made.json()
    }

    /// Gives a user these rules in all namespaces.
    ///
    /// # Panics
    ///
    /// Panics if the role cannot be created.
    pub async fn allow(&self, user: &str, name: &str, rules: &Value) {
        let role = json!({ "metadata": { "name": name }, "rules": rules });
        self.create(&format!("{RBAC}/clusterroles"), &role).await;
        self.bind(user, name).await;
    }

    /// Gives a user a ClusterRole in all namespaces.
    ///
    /// # Panics
    ///
    /// Panics if the binding cannot be created.
    pub async fn bind(&self, user: &str, role: &str) {
        let group = "rbac.authorization.k8s.io";
        let binding = json!({ "metadata": { "name": format!("{user}-{role}") },
            "roleRef": { "apiGroup": group, "kind": "ClusterRole", "name": role },
            "subjects": [{ "apiGroup": group, "kind": "User", "name": user }] });
        let path = format!("{RBAC}/clusterrolebindings");
        self.create(&path, &binding).await;
    }

    /// Creates ConfigMaps `m-0`, `m-1` and so on, of this many bytes each.
    ///
    /// # Panics
    ///
    /// Panics if one cannot be created.
    pub async fn fill(&self, count: usize, bytes: usize) {
        let value = "x".repeat(bytes);
        for number in 0..count {
            let name = format!("m-{number}");
            let map = json!({ "metadata": { "name": name }, "data": { "k": value } });
            self.create(MAPS, &map).await;
        }
    }

    /// Returns the peak of the resident memory in bytes since the start or the last reset.
    pub fn peak_bytes(&self) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.process.pid()));
        let status = status.unwrap_or_default();
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
        let kilobytes = line.and_then(|line| line.trim().strip_suffix("kB")?.trim().parse().ok());
        kilobytes.unwrap_or(0_u64) * 1_024
    }

    /// Resets the peak of the resident memory.
    ///
    /// # Errors
    ///
    /// Fails if the kernel does not allow it.
    pub fn reset_peak(&self) -> io::Result<()> {
        fs::write(format!("/proc/{}/clear_refs", self.process.pid()), "5")
    }
}

/// Returns a rule of a role.
pub fn rule(group: &str, resource: &str, verbs: &[&str]) -> Value {
    json!({ "apiGroups": [group], "resources": [resource], "verbs": verbs })
}

/// Raises the limit of open files as far as the system allows.
pub fn raise_file_limit() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: limit.maximum,
        maximum: limit.maximum,
    };
    // If this fails, attacks use fewer connections.
    _ = setrlimit(Resource::Nofile, raised);
}
