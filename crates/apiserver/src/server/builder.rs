//! Configuration of a server.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use http::Response;

use super::connection::Limits;
use super::faults::Faults;
use super::instance::DataDirError;
use super::pipeline::{PublicAnswer, PublicRoute};
use crate::audit;
use crate::auth::{Mode, TokenFile, TokenFileError, User, token};
use crate::fairness;
use crate::http::ReadyCheck;
use crate::pki::PkiError;
use crate::respond::Body;
use crate::store::{Encryption, OpenError, Store, WriteError};
use crate::tls::TlsError;

/// The storage engine.
#[derive(Clone, Default)]
#[non_exhaustive]
pub enum Engine {
    /// Memory only; the data is lost when the server ends.
    #[default]
    Memory,
    /// A file in the data directory. A write is acknowledged after it is on disk.
    Redb,
    /// An etcd, which several servers can share.
    #[cfg(feature = "etcd")]
    Etcd(crate::store::EtcdConfig),
    /// A store that the caller opened.
    Custom(Arc<dyn Store>),
}

/// Error of starting a server.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// The data directory is in use or unusable.
    #[error(transparent)]
    DataDir(#[from] DataDirError),
    /// An address cannot be bound.
    #[error("cannot listen on {address}: {source}")]
    Listen {
        /// The address.
        address: String,
        /// The cause.
        source: std::io::Error,
    },
    /// Plain HTTP was requested on an address that is not loopback.
    #[error("plain HTTP is for loopback addresses only, not for {0}")]
    NotLoopback(SocketAddr),
    /// No address was configured.
    #[error("the server has no address to listen on")]
    NoListener,
    /// Certificates cannot be read or created.
    #[error(transparent)]
    Pki(#[from] PkiError),
    /// TLS setup failed.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// The key of ServiceAccount tokens cannot be read or created.
    #[error(transparent)]
    Key(#[from] token::KeyError),
    /// The token file cannot be read.
    #[error("token file {0}: {1}")]
    TokenFile(String, #[source] std::io::Error),
    /// The token file is invalid.
    #[error(transparent)]
    Tokens(#[from] TokenFileError),
    /// The audit log cannot be opened.
    #[error(transparent)]
    Audit(#[from] audit::AuditError),
    /// A file cannot be written.
    #[error("cannot write {0}: {1}")]
    File(String, #[source] std::io::Error),
    /// The engine needs a data directory.
    #[error("the redb engine needs a data directory")]
    NoDataDir,
    /// The store cannot be opened.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// etcd cannot be used.
    #[cfg(feature = "etcd")]
    #[error(transparent)]
    Etcd(#[from] crate::store::EtcdError),
    /// The data directory belongs to another set of servers.
    #[error(
        "the certificate authority or signing key in {0} differs from that of the servers that share this etcd; \
         choose another --data-dir, or remove its pki folder and sa.key to use theirs"
    )]
    OtherKeys(String),
    /// The first writes to the store failed.
    #[error("cannot write the initial objects: {0}")]
    Store(#[from] WriteError),
}

/// Builder of a server. Defaults: memory engine, TLS on a random port of 127.0.0.1, certificates for this process only,
/// RBAC enabled.
#[must_use = "nothing runs until `start`"]
pub struct Builder {
    pub(super) engine: Engine,
    pub(super) encryption: Encryption,
    pub(super) data_dir: Option<PathBuf>,
    pub(super) listen: Option<SocketAddr>,
    pub(super) insecure: Option<SocketAddr>,
    pub(super) socket: Option<PathBuf>,
    pub(super) names: Vec<String>,
    pub(super) kubeconfig: Option<PathBuf>,
    pub(super) token_file: Option<PathBuf>,
    pub(super) tokens: TokenFile,
    pub(super) mode: Mode,
    pub(super) deny_anonymous: bool,
    pub(super) max_token_life: Option<Duration>,
    pub(super) key_files: Vec<PathBuf>,
    pub(super) purges_namespaces: bool,
    pub(super) ready_checks: Vec<(String, ReadyCheck)>,
    pub(super) record: Option<PathBuf>,
    pub(super) audit: Option<audit::Options>,
    pub(super) faults: Arc<Faults>,
    pub(super) public: Vec<(String, PublicRoute)>,
    pub(super) max_connections: usize,
    pub(super) fairness: fairness::Limits,
    pub(super) unlimited: bool,
    pub(super) limits: Limits,
}

impl Default for Builder {
    fn default() -> Self {
        Self {
            engine: Engine::Memory,
            encryption: Encryption::OFF,
            data_dir: None,
            listen: Some(SocketAddr::from(([127, 0, 0, 1], 0))),
            insecure: None,
            socket: None,
            names: Vec::new(),
            kubeconfig: None,
            token_file: None,
            tokens: TokenFile::default(),
            mode: Mode::Rbac,
            deny_anonymous: false,
            max_token_life: Some(Duration::from_secs(365 * 24 * 3600)),
            key_files: Vec::new(),
            purges_namespaces: true,
            ready_checks: Vec::new(),
            record: None,
            audit: None,
            faults: Arc::default(),
            public: Vec::new(),
            max_connections: 12_000,
            fairness: fairness::Limits::default(),
            unlimited: false,
            limits: Limits {
                handshake: Duration::from_secs(10),
                head: Duration::from_secs(60),
                write: Duration::from_secs(60),
                idle: Duration::from_secs(300),
                linger: Duration::from_secs(5),
                streams: 250,
            },
        }
    }
}

impl Builder {
    /// Sets the storage engine.
    pub fn engine(mut self, engine: Engine) -> Self {
        self.engine = engine;
        self
    }

    /// Encrypts stored objects and backups. Has no effect on [`Engine::Custom`].
    pub fn encryption(mut self, encryption: Encryption) -> Self {
        self.encryption = encryption;
        self
    }

    /// Sets the directory for certificates, keys, kubeconfig and data. One server can use it at a time.
    pub fn data_dir(mut self, path: impl Into<PathBuf>) -> Self {
        self.data_dir = Some(path.into());
        self
    }

    /// Returns the data directory that was set.
    pub fn data_directory(&self) -> Option<&Path> {
        self.data_dir.as_deref()
    }

    /// Sets the TLS address; port 0 selects a free port.
    pub fn listen(mut self, address: SocketAddr) -> Self {
        self.listen = Some(address);
        self
    }

    /// Disables the TLS listener. Starts faster, because no certificates are created.
    pub fn no_tls(mut self) -> Self {
        self.listen = None;
        self
    }

    /// Adds a plain HTTP listener; loopback only.
    pub fn insecure_listen(mut self, address: SocketAddr) -> Self {
        self.insecure = Some(address);
        self
    }

    /// Adds a socket file with mode 0600. A client without a token is the administrator there.
    pub fn unix_socket(mut self, path: impl Into<PathBuf>) -> Self {
        self.socket = Some(path.into());
        self
    }

    /// Adds DNS names and addresses to the serving certificate.
    pub fn server_names(mut self, names: impl IntoIterator<Item = impl Into<String>>) -> Self {
        self.names.extend(names.into_iter().map(Into::into));
        self
    }

    /// Also writes the administrator's kubeconfig to this path.
    pub fn write_kubeconfig(mut self, path: impl Into<PathBuf>) -> Self {
        self.kubeconfig = Some(path.into());
        self
    }

    /// Reads static tokens from a file in kube-apiserver's CSV format. The file is read again when it changes.
    pub fn token_file(mut self, path: impl Into<PathBuf>) -> Self {
        self.token_file = Some(path.into());
        self
    }

    /// Adds a static token.
    pub fn token(mut self, token: impl Into<String>, user: User) -> Self {
        self.tokens.insert(token, user);
        self
    }

    /// Sets the authorization mode.
    pub fn authorization(mut self, mode: Mode) -> Self {
        self.mode = mode;
        self
    }

    /// Sets whether clients without credentials are `system:anonymous`; otherwise they get 401.
    pub fn anonymous(mut self, allowed: bool) -> Self {
        self.deny_anonymous = !allowed;
        self
    }

    /// Sets the maximum lifetime of issued ServiceAccount tokens. A request for a longer lifetime gets a token with
    /// this lifetime. The default is one year; `None` sets no limit.
    pub fn max_token_life(mut self, life: Option<Duration>) -> Self {
        self.max_token_life = life;
        self
    }

    /// Also accepts ServiceAccount tokens that were signed with a key in this file, so that the signing key can be
    /// changed. The file contains public or private keys in PEM (ECDSA P-256).
    pub fn service_account_keys(mut self, path: impl Into<PathBuf>) -> Self {
        self.key_files.push(path.into());
        self
    }

    /// Sets whether the server deletes the content of terminating namespaces. Otherwise they stay `Terminating` until a
    /// controller does it, such as the namespace controller of kube-controller-manager.
    pub fn purge_namespaces(mut self, purge: bool) -> Self {
        self.purges_namespaces = purge;
        self
    }

    /// Adds a check to `/readyz`. It returns a reason while clients should wait. `?exclude=NAME` skips it.
    pub fn ready_check(
        mut self,
        name: &str,
        check: impl Fn() -> Result<(), String> + Send + Sync + 'static,
    ) -> Self {
        self.ready_checks.push((name.to_owned(), Arc::new(check)));
        self
    }

    /// Writes the minimal roles for the observed requests of each user to this file, while the server runs and when it
    /// ends.
    pub fn record_rbac(mut self, path: impl Into<PathBuf>) -> Self {
        self.record = Some(path.into());
        self
    }

    /// Records requests in an audit log.
    pub fn audit(mut self, options: audit::Options) -> Self {
        self.audit = Some(options);
        self
    }

    /// Injects faults; keep a clone to add them while the server runs.
    pub fn faults(mut self, faults: Arc<Faults>) -> Self {
        self.faults = faults;
        self
    }

    /// Serves a path and everything below it without authentication, for public pages and for pages that check
    /// credentials themselves. `prefix` begins with a slash and does not end with one. The extensions of the request
    /// contain the address of the client as `Option<IpAddr>`, which is `None` for the unix socket.
    pub fn public_route<F>(
        mut self,
        prefix: impl Into<String>,
        route: impl Fn(http::request::Parts) -> F + Send + Sync + 'static,
    ) -> Self
    where
        F: Future<Output = Response<Body>> + Send + 'static,
    {
        let route = move |parts| -> PublicAnswer { Box::pin(route(parts)) };
        self.public.push((prefix.into(), Arc::new(route)));
        self
    }

    /// Sets the maximum number of connections. A lower limit of file descriptors (`RLIMIT_NOFILE`) lowers it. One
    /// address gets at most seven eighths of them. If a limit is reached, an idle connection is closed; if there is
    /// none, the new connection is closed.
    pub fn max_connections(mut self, count: usize) -> Self {
        self.max_connections = count.max(1);
        self
    }

    /// Sets the timeout for a request head, and between requests on HTTP/1.
    pub fn header_timeout(mut self, time: Duration) -> Self {
        self.limits.head = time;
        self
    }

    /// Sets the maximum number of requests that execute at the same time, apart from watches. One user gets at most
    /// half of them. Requests for a single Lease have a separate limit, which is twice as high. Requests of
    /// administrators have a separate limit of the same value.
    pub fn max_requests_inflight(mut self, count: u32) -> Self {
        self.fairness.requests = count.clamp(2, 1 << 20);
        self
    }

    /// Sets the maximum number of watches of all users that are not administrators. One user gets at most half of them.
    pub fn max_watches(mut self, count: u64) -> Self {
        self.fairness.watches = count.max(2);
        self
    }

    /// Sets the maximum number of bytes of large responses that clients have not read. One user gets at most half of
    /// them.
    pub fn max_answer_bytes(mut self, bytes: u64) -> Self {
        self.fairness.answer_bytes = bytes;
        self
    }

    /// Sets the maximum number of bytes of large request bodies. One user gets at most half of them.
    pub fn max_body_bytes(mut self, bytes: u64) -> Self {
        self.fairness.body_bytes = bytes;
        self
    }

    /// Sets the maximum number of request bodies that the server waits for. One user gets at most half of them.
    pub fn max_arriving_bodies(mut self, count: u64) -> Self {
        self.fairness.arriving_bodies = count.max(2);
        self
    }

    /// Sets the time limit for a whole request body.
    pub fn body_deadline(mut self, time: Duration) -> Self {
        self.fairness.body_deadline = time;
        self
    }

    /// Sets the time limit for a request that is not a watch.
    pub fn request_timeout(mut self, time: Duration) -> Self {
        self.fairness.request_deadline = time;
        self
    }

    /// Handles every request immediately, regardless of its user. For measurements only.
    #[doc(hidden)]
    pub fn without_fairness(mut self) -> Self {
        self.unlimited = true;
        self
    }

    /// Sets the time limit for a pause within a request body.
    pub fn body_timeout(mut self, time: Duration) -> Self {
        self.fairness.body_pause = time;
        self
    }

    /// Sets the time after which a client that does not read a response is disconnected.
    pub fn write_timeout(mut self, time: Duration) -> Self {
        self.limits.write = time;
        self
    }

    /// Sets the time after which an idle connection is closed.
    pub fn idle_timeout(mut self, time: Duration) -> Self {
        self.limits.idle = time;
        self
    }

    /// Sets the time for active requests to finish at shutdown.
    pub fn drain_timeout(mut self, time: Duration) -> Self {
        self.limits.linger = time;
        self
    }
}
