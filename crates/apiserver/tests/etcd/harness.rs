//! A real etcd for a test, and a connection to it that can be interrupted.

use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use tenure_apiserver::store::{EtcdConfig, EtcdStore, Retention};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, copy};
use tokio::net::tcp::{ReadHalf, WriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

use crate::support;

/// Upper limit of all waits, for slow machines. No test needs it to pass.
pub(crate) const LIMIT: Duration = Duration::from_secs(120);

/// One etcd as the only member of its cluster. It is killed when dropped.
pub(crate) struct Etcd {
    child: Child,
    program: PathBuf,
    folder: tempfile::TempDir,
    ports: [u16; 2],
    extra: Vec<String>,
}

impl Etcd {
    /// Starts an etcd. Returns `None` and prints a message on stderr if the program is missing. With
    /// `TENURE_ETCD=require` a missing program is a failure.
    pub(crate) async fn start() -> Option<Self> {
        Self::start_with(|_| Vec::new()).await
    }

    pub(crate) async fn start_with(
        extra: impl FnOnce(&std::path::Path) -> Vec<String>,
    ) -> Option<Self> {
        let Some(program) = program() else {
            let required = std::env::var_os("TENURE_ETCD").is_some_and(|v| v == "require");
            assert!(!required, "etcd is required but was not found");
            eprintln!("skipped: no etcd; `cargo xtask real build` builds it");
            return None;
        };
        let folder = tempfile::Builder::new()
            .prefix("tenure-etcd-")
            .tempdir()
            .unwrap();
        let extra = extra(folder.path());
        let ports = free_ports().await;
        let child = spawn(&program, folder.path(), ports, &extra);
        let etcd = Self {
            child,
            program,
            folder,
            ports,
            extra,
        };
        let ready = async {
            while TcpStream::connect(("127.0.0.1", ports[0])).await.is_err() {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        tokio::time::timeout(LIMIT, ready).await.expect("etcd");
        Some(etcd)
    }

    pub(crate) fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.ports[0])
    }

    pub(crate) fn port(&self) -> u16 {
        self.ports[0]
    }

    pub(crate) fn config(&self) -> EtcdConfig {
        EtcdConfig {
            compaction: None,
            ..EtcdConfig::new([self.url()])
        }
    }

    /// Opens a store that connects only through this `Way`.
    pub(crate) async fn store_by(&self, way: &Way) -> Arc<EtcdStore> {
        let config = EtcdConfig {
            endpoints: vec![way.url.clone()],
            ..self.config()
        };
        Arc::new(EtcdStore::open(config).await.unwrap())
    }

    /// Opens the store of another server.
    pub(crate) async fn store(&self) -> Arc<EtcdStore> {
        Arc::new(EtcdStore::open(self.config()).await.unwrap())
    }

    /// Kills etcd with SIGKILL and starts it again with the same data.
    pub(crate) fn crash(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        let Self { program, ports, .. } = self;
        self.child = spawn(program, self.folder.path(), *ports, &self.extra);
    }

    pub(crate) fn signal(&self, signal: Signal) {
        let pid = i32::try_from(self.child.id()).unwrap();
        kill_process(Pid::from_raw(pid).unwrap(), signal).unwrap();
    }

    /// Calls etcd's own API in JSON, bypassing the store.
    pub(crate) async fn raw(&self, path: &str, body: &Value) -> Value {
        let address = ([127, 0, 0, 1], self.ports[0]).into();
        let headers = [("content-type", "application/json")];
        let body = body.to_string().into_bytes();
        let answer = support::request(address, "POST", path, &headers, body).await;
        let body = http_body_util::BodyExt::collect(answer.into_body())
            .await
            .unwrap()
            .to_bytes();
        serde_json::from_slice(&body).unwrap()
    }

    pub(crate) async fn raw_put(&self, key: &str, value: &str) -> u64 {
        let body = json!({"key": STANDARD.encode(key), "value": STANDARD.encode(value)});
        revision(&self.raw("/v3/kv/put", &body).await)
    }

    pub(crate) async fn raw_delete_all(&self, prefix: &str) -> u64 {
        let mut end = prefix.as_bytes().to_vec();
        *end.last_mut().unwrap() += 1;
        let body = json!({"key": STANDARD.encode(prefix), "range_end": STANDARD.encode(end)});
        revision(&self.raw("/v3/kv/deleterange", &body).await)
    }

    pub(crate) async fn compact(&self, at: u64) {
        let body = json!({"revision": at.to_string(), "physical": true});
        let answer = self.raw("/v3/kv/compaction", &body).await;
        assert!(answer.get("header").is_some(), "{answer}");
    }
}

fn revision(answer: &Value) -> u64 {
    let text = answer["header"]["revision"].as_str();
    text.unwrap_or_else(|| panic!("{answer}")).parse().unwrap()
}

impl Drop for Etcd {
    fn drop(&mut self) {
        // SIGKILL also ends a stopped process.
        _ = self.child.kill();
        _ = self.child.wait();
    }
}

/// A short history, so that watches expire.
pub(crate) fn retention(max_events: usize) -> Retention {
    Retention {
        min_events: 0,
        max_events,
        ..Retention::default()
    }
}

/// A connection to etcd that can be cut and mended, and on which responses can be delayed.
pub(crate) struct Way {
    pub(crate) url: String,
    open: watch::Sender<bool>,
    held: watch::Sender<bool>,
}

impl Way {
    pub(crate) async fn to(port: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let (open, state) = watch::channel(true);
        let (held, holding) = watch::channel(false);
        tokio::spawn(async move {
            while let Ok((mut here, _)) = listener.accept().await {
                let (mut state, holding) = (state.clone(), holding.clone());
                if !*state.borrow_and_update() {
                    continue;
                }
                tokio::spawn(async move {
                    let Ok(mut there) = TcpStream::connect(("127.0.0.1", port)).await else {
                        return;
                    };
                    let (mut asks, answers) = here.split();
                    let (news, mut calls) = there.split();
                    tokio::select! {
                        _ = copy(&mut asks, &mut calls) => {}
                        _ = deliver(news, answers, holding) => {}
                        _ = state.wait_for(|open| !open) => {}
                    }
                });
            }
        });
        Self { url, open, held }
    }

    /// Holds back everything that etcd sends until it is released.
    pub(crate) fn hold(&self) {
        self.held.send_replace(true);
    }

    pub(crate) fn let_go(&self) {
        self.held.send_replace(false);
    }

    pub(crate) fn cut(&self) {
        self.open.send_replace(false);
    }

    pub(crate) fn mend(&self) {
        self.open.send_replace(true);
    }
}

async fn deliver(
    mut news: ReadHalf<'_>,
    mut answers: WriteHalf<'_>,
    mut holding: watch::Receiver<bool>,
) -> std::io::Result<()> {
    let mut buffer = vec![0; 64 * 1024];
    loop {
        let read = news.read(&mut buffer).await?;
        if read == 0 || holding.wait_for(|held| !held).await.is_err() {
            return Ok(());
        }
        answers.write_all(&buffer[..read]).await?;
    }
}

/// Waits until a condition is true.
pub(crate) async fn until(what: &str, mut is: impl AsyncFnMut() -> bool) {
    let wait = async {
        while !is().await {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let waited = tokio::time::timeout(LIMIT, wait).await;
    assert!(waited.is_ok(), "timed out: {what}");
}

/// Returns the etcd built from `peers/`, or that of the distribution.
fn program() -> Option<PathBuf> {
    let target = std::env::current_exe().unwrap();
    let target = target.ancestors().nth(3).unwrap().to_owned();
    let peers = std::env::var_os("TENURE_PEERS").map_or(target.join("peers"), PathBuf::from);
    let built = std::fs::read_dir(peers)
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.path())
        .find(|path| {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            name.starts_with("etcd-v") && !name.ends_with(".sources") && !name.ends_with(".new")
        });
    let unpacked = target.join("tools/etcd-server/usr/bin/etcd");
    built
        .into_iter()
        .chain([unpacked, "/usr/bin/etcd".into()])
        .find(|path| path.is_file())
}

fn spawn(
    program: &std::path::Path,
    folder: &std::path::Path,
    ports: [u16; 2],
    extra: &[String],
) -> Child {
    let tls = extra.iter().any(|flag| flag.starts_with("--cert-file"));
    let scheme = if tls { "https" } else { "http" };
    let client = format!("{scheme}://127.0.0.1:{}", ports[0]);
    let peer = format!("http://127.0.0.1:{}", ports[1]);
    Command::new(program)
        .arg("--data-dir")
        .arg(folder.join("data"))
        .args(["--name", "one", "--log-level", "error"])
        .args(["--listen-client-urls", &client])
        .args(["--advertise-client-urls", &client])
        .args(["--listen-peer-urls", &peer])
        .args(["--initial-advertise-peer-urls", &peer])
        .arg(format!("--initial-cluster=one={peer}"))
        .args(extra)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap()
}

async fn free_ports() -> [u16; 2] {
    let one = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let two = TcpListener::bind("127.0.0.1:0").await.unwrap();
    [one, two].map(|listener| listener.local_addr().unwrap().port())
}
