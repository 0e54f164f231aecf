//! A control plane with one instance of each: etcd and kube-apiserver on loopback, with RBAC.

use std::fs::{self, File};
use std::io;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use serde_json::json;

use super::build::{BuildError, Peer, build};
use crate::wire::Wire;
use crate::{Skip, clock};

const ADMIN_TOKEN: &str = "admintoken";
const USER_TOKEN: &str = "usertoken";
const START_LIMIT: Duration = Duration::from_secs(120);

/// A running control plane. Dropping it ends it and removes its files.
#[derive(Debug)]
pub struct Cluster {
    parts: Vec<Part>,
    dir: PathBuf,
    /// Additional flags of kube-apiserver.
    flags: Vec<String>,
    ports: Ports,
    // Removed after the processes that write into it have ended.
    _temporary: Option<tempfile::TempDir>,
}

#[derive(Debug)]
struct Part(Child);

/// A process of a cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Program {
    /// The store.
    Etcd,
    /// The API server.
    KubeApiserver,
}

#[derive(Clone, Copy, Debug)]
struct Ports {
    etcd: u16,
    etcd_peers: u16,
    secure: u16,
}

/// Reason why there is no cluster.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// A program is missing and could not be built.
    #[error(transparent)]
    Build(#[from] BuildError),
    /// Files or processes could not be created.
    #[error("cannot start the cluster in {dir}: {source}")]
    Io {
        /// Folder of its files.
        dir: PathBuf,
        /// The reason.
        source: io::Error,
    },
    /// The existing cluster cannot be accessed with its kubeconfig.
    #[error("cannot use the cluster of {file}: {source}")]
    Existing {
        /// Its kubeconfig.
        file: PathBuf,
        /// The reason.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The keys could not be created.
    #[error("cannot make certificates: {0}")]
    Certificates(#[from] rcgen::Error),
    /// It started but never became ready.
    #[error("{what}; the end of its log:\n{log}")]
    NotReady {
        /// The condition that was not reached.
        what: String,
        /// The end of the log of the failed program.
        log: String,
    },
}

/// How the processes of a cluster are tied to this one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Tie {
    /// They end with this process.
    Bound,
    /// They continue until `real down`.
    Detached,
}

impl Cluster {
    /// Builds missing programs, starts a new cluster in a temporary folder and waits until it is ready.
    ///
    /// # Errors
    ///
    /// Names the missing program, or contains the log of the part that did not start.
    pub fn start() -> Result<Self, StartError> {
        Self::start_with(&[])
    }

    /// Same as [`start`](Self::start), with additional flags for kube-apiserver.
    ///
    /// # Errors
    ///
    /// Names the missing program, or contains the log of the part that did not start.
    pub fn start_with(flags: &[&str]) -> Result<Self, StartError> {
        let temporary = tempfile::Builder::new()
            .prefix("tenure-real-")
            .tempdir()
            .map_err(|source| StartError::Io {
                dir: std::env::temp_dir(),
                source,
            })?;
        let mut cluster = Self::start_flagged(temporary.path(), Tie::Bound, flags)?;
        cluster._temporary = Some(temporary);
        Ok(cluster)
    }

    /// Starts in a permanent folder, with the data of an earlier cluster there.
    pub(super) fn start_in(dir: &Path, tie: Tie) -> Result<Self, StartError> {
        Self::start_flagged(dir, tie, &[])
    }

    fn start_flagged(dir: &Path, tie: Tie, flags: &[&str]) -> Result<Self, StartError> {
        let failed = |source| StartError::Io {
            dir: dir.to_owned(),
            source,
        };
        for peer in [Peer::Etcd, Peer::KubeApiserver] {
            build(peer)?;
        }
        fs::create_dir_all(dir).map_err(failed)?;
        write_keys(dir)?;
        let [etcd, etcd_peers, secure] = free_ports().map_err(failed)?;
        let mut cluster = Self {
            parts: Vec::new(),
            dir: dir.to_owned(),
            flags: flags.iter().map(ToString::to_string).collect(),
            ports: Ports {
                etcd,
                etcd_peers,
                secure,
            },
            _temporary: None,
        };
        for program in [Program::Etcd, Program::KubeApiserver] {
            let child = cluster.spawn(program, tie)?;
            cluster.parts.push(Part(child));
        }
        for (user, token) in [("admin", ADMIN_TOKEN), ("user", USER_TOKEN)] {
            let text = kubeconfig(dir, secure, user, token).to_string();
            fs::write(dir.join(format!("{user}.kubeconfig")), text).map_err(failed)?;
        }
        cluster.wait_until_ready()?;
        Ok(cluster)
    }

    /// Returns an existing cluster, accessed with this kubeconfig, of which a copy is stored in the folder. None of its
    /// processes is started or ended.
    pub(super) fn existing(dir: &Path, file: &Path) -> Result<Self, StartError> {
        let failed = |source| StartError::Existing {
            file: file.to_owned(),
            source,
        };
        // Its paths are relative to it. Reading it makes them absolute.
        let text = kube::config::Kubeconfig::read_from(file)
            .map_err(|error| failed(error.into()))
            .and_then(|read| serde_json::to_string(&read).map_err(|error| failed(error.into())))?;
        let cluster = Self {
            parts: Vec::new(),
            dir: dir.to_owned(),
            flags: Vec::new(),
            ports: Ports {
                etcd: 0,
                etcd_peers: 0,
                secure: 0,
            },
            _temporary: None,
        };
        fs::create_dir_all(dir)
            .and_then(|()| fs::write(cluster.kubeconfig(), text))
            .map_err(|error| failed(error.into()))?;
        let ready = cluster.wire().and_then(|wire| wire.get("/readyz"));
        let ready = ready.map_err(|error| failed(error.into()))?;
        if !ready.status.is_success() {
            return Err(failed(format!("/readyz says {}", ready.body).into()));
        }
        Ok(cluster)
    }

    /// Returns whether this is an existing cluster that the harness did not start.
    pub fn is_existing(&self) -> bool {
        self.parts.is_empty()
    }

    /// Returns the kubeconfig of a member of `system:masters`.
    pub fn kubeconfig(&self) -> PathBuf {
        self.dir.join("admin.kubeconfig")
    }

    /// Returns the kubeconfig of the user `user`, who has no permissions until a role grants some.
    ///
    /// # Errors
    ///
    /// Fails for an existing cluster, which has no such user.
    pub fn user_kubeconfig(&self) -> Result<PathBuf, Skip> {
        if self.is_existing() {
            let missing = "an existing cluster has no user without permissions";
            return Err(Skip(missing.to_owned()));
        }
        Ok(self.dir.join("user.kubeconfig"))
    }

    /// Returns a plain client with all permissions.
    ///
    /// # Errors
    ///
    /// Fails if the kubeconfig is unusable.
    pub fn wire(&self) -> Result<Wire, crate::wire::Error> {
        Wire::connect(&self.kubeconfig())
    }

    /// Returns the process ids: etcd, kube-apiserver.
    pub fn pids(&self) -> Vec<u32> {
        self.parts.iter().map(|part| part.0.id()).collect()
    }

    /// Leaves the processes running and drops the handle.
    pub(super) fn forget(mut self) {
        for part in self.parts.drain(..) {
            std::mem::forget(part);
        }
    }

    /// Sends SIGKILL to one of the processes.
    pub fn kill(&mut self, program: Program) {
        let part = &mut self.parts[program as usize];
        _ = part.0.kill();
        _ = part.0.wait();
    }

    /// Starts a killed process again, with its old ports and files. Does not wait until it is ready.
    ///
    /// # Errors
    ///
    /// Fails if it cannot be started.
    pub fn start_again(&mut self, program: Program) -> Result<(), StartError> {
        let child = self.spawn(program, Tie::Bound)?;
        self.parts[program as usize] = Part(child);
        Ok(())
    }

    fn spawn(&self, program: Program, tie: Tie) -> Result<Child, StartError> {
        let failed = |source| StartError::Io {
            dir: self.dir.clone(),
            source,
        };
        let mut command = match program {
            Program::Etcd => {
                let Ports {
                    etcd, etcd_peers, ..
                } = self.ports;
                etcd_command(&build(Peer::Etcd)?, &self.dir, etcd, etcd_peers)
            }
            Program::KubeApiserver => {
                let program = build(Peer::KubeApiserver)?;
                let mut command = apiserver_command(&program, &self.dir, self.ports);
                command.args(&self.flags);
                command
            }
        };
        let log = File::options()
            .create(true)
            .append(true)
            .open(self.log(program))
            .map_err(failed)?;
        command
            .stdin(Stdio::null())
            .stdout(log.try_clone().map_err(failed)?)
            .stderr(log);
        match tie {
            Tie::Bound => crate::spawn::spawn_bound(command),
            Tie::Detached => {
                // Its own group, so that ^C in the terminal does not reach it.
                std::os::unix::process::CommandExt::process_group(&mut command, 0);
                command.spawn()
            }
        }
        .map_err(failed)
    }

    fn log(&self, program: Program) -> PathBuf {
        self.dir.join(match program {
            Program::Etcd => "etcd.log",
            Program::KubeApiserver => "kube-apiserver.log",
        })
    }

    /// Waits until it is ready. That is more than `/readyz`, because some default objects are created a moment later.
    fn wait_until_ready(&mut self) -> Result<(), StartError> {
        let not_ready = |what: String, log: &Path| StartError::NotReady {
            what,
            log: tail(log),
        };
        let log = self.log(Program::KubeApiserver);
        let wire = self
            .wire()
            .map_err(|error| not_ready(error.to_string(), &log))?;
        let found = |path: &str| {
            wire.get(path)
                .is_ok_and(|answer| answer.status.is_success())
        };
        let ready = clock::poll(START_LIMIT, || {
            if let Some(dead) = self.dead() {
                return Some(Err(dead));
            }
            let all = [
                "/readyz",
                "/api/v1/namespaces/default",
                "/api/v1/namespaces/kube-system",
            ];
            all.iter().all(|path| found(path)).then_some(Ok(()))
        });
        match ready {
            Some(Ok(())) => Ok(()),
            Some(Err(program)) => Err(not_ready(format!("{program:?} ended"), &self.log(program))),
            None => Err(not_ready(
                format!("kube-apiserver not ready in {START_LIMIT:?}"),
                &log,
            )),
        }
    }

    /// Returns a process that has ended.
    pub(crate) fn dead(&mut self) -> Option<Program> {
        let ended = |part: &mut Part| !matches!(part.0.try_wait(), Ok(None));
        let index = self.parts.iter_mut().position(ended)?;
        [Program::Etcd, Program::KubeApiserver].get(index).copied()
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        _ = self.0.kill();
        _ = self.0.wait();
    }
}

pub(super) fn etcd_command(program: &Path, dir: &Path, client: u16, peer: u16) -> Command {
    let url = |port: u16| format!("http://127.0.0.1:{port}");
    let mut command = Command::new(program);
    command.arg("--data-dir").arg(dir.join("etcd"));
    command.args(["--name", "real", "--log-level", "warn"]);
    command.args([
        "--listen-client-urls",
        &url(client),
        "--advertise-client-urls",
        &url(client),
    ]);
    command.args([
        "--listen-peer-urls",
        &url(peer),
        "--initial-advertise-peer-urls",
        &url(peer),
    ]);
    command.arg(format!("--initial-cluster=real={}", url(peer)));
    command
}

fn apiserver_command(program: &Path, dir: &Path, ports: Ports) -> Command {
    let Ports { etcd, secure, .. } = ports;
    let mut command = Command::new(program);
    let mut file = |flag: &str, name: &str| {
        command.arg(format!("--{flag}={}", dir.join(name).display()));
    };
    file("cert-dir", "certs");
    file("tls-cert-file", "server.crt");
    file("tls-private-key-file", "server.key");
    file("service-account-key-file", "service-accounts.pub");
    file("service-account-signing-key-file", "service-accounts.key");
    file("token-auth-file", "tokens.csv");
    command.args([
        &format!("--etcd-servers=http://127.0.0.1:{etcd}"),
        &format!("--secure-port={secure}"),
        "--bind-address=127.0.0.1",
        "--advertise-address=127.0.0.1",
        "--authorization-mode=RBAC",
        "--service-account-issuer=https://kubernetes.default.svc",
        "--service-cluster-ip-range=10.0.0.0/24",
        // Without a controller manager no namespace gets the service account that pods would need.
        "--disable-admission-plugins=ServiceAccount",
    ]);
    command
}

fn write_keys(dir: &Path) -> Result<(), StartError> {
    let failed = |source| StartError::Io {
        dir: dir.to_owned(),
        source,
    };
    if dir.join("tokens.csv").exists() {
        return Ok(());
    }
    let authority_key = KeyPair::generate()?;
    let mut authority = CertificateParams::new(Vec::<String>::new())?;
    authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    authority
        .distinguished_name
        .push(rcgen::DnType::CommonName, "tenure real cluster");
    let authority_cert = authority.self_signed(&authority_key)?;
    let issuer = Issuer::new(authority, authority_key);
    let server_key = KeyPair::generate()?;
    let server = CertificateParams::new(["127.0.0.1".to_owned(), "localhost".to_owned()])?
        .signed_by(&server_key, &issuer)?;
    let accounts_key = KeyPair::generate()?;
    let tokens = format!("{ADMIN_TOKEN},admin,admin,\"system:masters\"\n{USER_TOKEN},user,user\n");
    for (name, text) in [
        ("ca.crt", authority_cert.pem()),
        ("server.crt", server.pem()),
        ("server.key", server_key.serialize_pem()),
        ("service-accounts.key", accounts_key.serialize_pem()),
        ("service-accounts.pub", accounts_key.public_key_pem()),
        ("tokens.csv", tokens),
    ] {
        fs::write(dir.join(name), text).map_err(failed)?;
    }
    Ok(())
}

/// Returns the kubeconfig as JSON. JSON is valid YAML, so no YAML writer is needed.
fn kubeconfig(dir: &Path, port: u16, user: &str, token: &str) -> serde_json::Value {
    json!({
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "real",
        "contexts": [{"name": "real", "context": {"cluster": "real", "user": user}}],
        "clusters": [{"name": "real", "cluster": {
            "server": format!("https://127.0.0.1:{port}"),
            "certificate-authority": dir.join("ca.crt"),
        }}],
        "users": [{"name": user, "user": {"token": token}}],
    })
}

/// Returns ports that were free a moment ago. All are held until all are chosen, so they differ.
pub(super) fn free_ports<const N: usize>() -> io::Result<[u16; N]> {
    let mut ports = [0; N];
    let mut held = Vec::new();
    for port in &mut ports {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        *port = listener.local_addr()?.port();
        held.push(listener);
    }
    Ok(ports)
}

fn tail(log: &Path) -> String {
    let text = fs::read_to_string(log).unwrap_or_default();
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(20)..].join("\n")
}
