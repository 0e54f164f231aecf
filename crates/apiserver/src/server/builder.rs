//! What can be asked of a server.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use http::Response;

use super::connection::Limits;
use super::faults::Faults;
use super::instance::DataDirError;
use super::pipeline::{PublicAnswer, PublicRoute};
use crate::auth::{Mode, TokenFile, TokenFileError, User, token};
use crate::http::Body;
use crate::pki::PkiError;
use crate::store::{OpenError, Store, WriteError};
use crate::tls::TlsError;

/// What keeps the data.
#[derive(Clone, Default)]
#[non_exhaustive]
pub enum Engine {
    /// Memory only: gone when the server ends.
    #[default]
    Memory,
    /// A file in the data directory: a write is answered after it is on disk.
    Redb,
    /// An etcd, which any number of servers share.
    #[cfg(feature = "etcd")]
    Etcd(crate::store::EtcdConfig),
    /// A store that the caller opened.
    Custom(Arc<dyn Store>),
}

/// Why a server does not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// The data directory is in use or unusable.
    #[error(transparent)]
    DataDir(#[from] DataDirError),
    /// An address cannot be listened on.
    #[error("cannot listen on {address}: {source}")]
    Listen {
        /// The address.
        address: String,
        /// Why not.
        source: std::io::Error,
    },
    /// Plain HTTP was asked for on an address that others can reach.
    #[error("plain HTTP is for loopback addresses only, not for {0}")]
    NotLoopback(SocketAddr),
    /// Nothing to listen on.
    #[error("the server has no address to listen on")]
    NoListener,
    /// Certificates cannot be had.
    #[error(transparent)]
    Pki(#[from] PkiError),
    /// TLS cannot be set up.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// The key of ServiceAccount tokens cannot be had.
    #[error(transparent)]
    Key(#[from] token::KeyError),
    /// The token file cannot be read.
    #[error("token file {0}: {1}")]
    TokenFile(String, #[source] std::io::Error),
    /// The token file does not make sense.
    #[error(transparent)]
    Tokens(#[from] TokenFileError),
    /// A file cannot be written.
    #[error("cannot write {0}: {1}")]
    File(String, #[source] std::io::Error),
    /// The engine needs a directory, and none was given.
    #[error("the redb engine needs a data directory")]
    NoDataDir,
    /// The store does not open.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The etcd cannot be used.
    #[cfg(feature = "etcd")]
    #[error(transparent)]
    Etcd(#[from] crate::store::EtcdError),
    /// The data directory belongs to another set of servers.
    #[error(
        "{0} has another certificate authority or signing key than the servers that share this etcd; \
         give another --data-dir, or remove its pki folder and sa.key to take over theirs"
    )]
    OtherKeys(String),
    /// The store does not take the first writes.
    #[error("the store does not take the first writes: {0}")]
    Store(#[from] WriteError),
}

/// A server to be set up. Without further calls: memory engine, TLS on a random port of 127.0.0.1,
/// certificates that live as long as the process, RBAC on.
#[must_use = "nothing runs until `start`"]
pub struct Builder {
    pub(super) engine: Engine,
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
    pub(super) purges_namespaces: bool,
    pub(super) record: Option<PathBuf>,
    pub(super) faults: Arc<Faults>,
    pub(super) public: Vec<(String, PublicRoute)>,
    pub(super) max_connections: usize,
    pub(super) body_patience: Duration,
    pub(super) limits: Limits,
}

impl Default for Builder {
    fn default() -> Self {
        Self {
            engine: Engine::Memory,
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
            purges_namespaces: true,
            record: None,
            faults: Arc::default(),
            public: Vec::new(),
            max_connections: 12_000,
            body_patience: Duration::from_secs(30),
            limits: Limits {
                handshake: Duration::from_secs(10),
                head: Duration::from_secs(60),
                write: Duration::from_secs(60),
                idle: Duration::from_secs(300),
                linger: Duration::from_secs(5),
                streams: 1000,
            },
        }
    }
}

impl Builder {
    /// What keeps the data.
    pub fn engine(mut self, engine: Engine) -> Self {
        self.engine = engine;
        self
    }

    /// Where certificates, keys, the kubeconfig and the state are kept. One server at a time.
    pub fn data_dir(mut self, path: impl Into<PathBuf>) -> Self {
        self.data_dir = Some(path.into());
        self
    }

    /// Where to listen for TLS; port 0 takes a free one.
    pub fn listen(mut self, address: SocketAddr) -> Self {
        self.listen = Some(address);
        self
    }

    /// No TLS listener, and so no certificates: starts faster.
    pub fn no_tls(mut self) -> Self {
        self.listen = None;
        self
    }

    /// Where to listen for plain HTTP; loopback only.
    pub fn insecure_listen(mut self, address: SocketAddr) -> Self {
        self.insecure = Some(address);
        self
    }

    /// Listens on a socket file too, mode 0600. Who can open it and shows no token is the
    /// administrator.
    pub fn unix_socket(mut self, path: impl Into<PathBuf>) -> Self {
        self.socket = Some(path.into());
        self
    }

    /// Further DNS names and addresses of the serving certificate.
    pub fn server_names(mut self, names: impl IntoIterator<Item = impl Into<String>>) -> Self {
        self.names.extend(names.into_iter().map(Into::into));
        self
    }

    /// Writes the administrator's kubeconfig here too.
    pub fn write_kubeconfig(mut self, path: impl Into<PathBuf>) -> Self {
        self.kubeconfig = Some(path.into());
        self
    }

    /// Static tokens, in kube-apiserver's CSV format.
    pub fn token_file(mut self, path: impl Into<PathBuf>) -> Self {
        self.token_file = Some(path.into());
        self
    }

    /// One more static token.
    pub fn token(mut self, token: impl Into<String>, user: User) -> Self {
        self.tokens.insert(token, user);
        self
    }

    /// Who decides what callers may do.
    pub fn authorization(mut self, mode: Mode) -> Self {
        self.mode = mode;
        self
    }

    /// Whether callers without credentials are `system:anonymous`; else they get 401.
    pub fn anonymous(mut self, allowed: bool) -> Self {
        self.deny_anonymous = !allowed;
        self
    }

    /// Whether the server empties namespaces that are being deleted; else they stay `Terminating` until a
    /// controller has done it, as with the namespace controller of kube-controller-manager.
    pub fn purge_namespaces(mut self, purge: bool) -> Self {
        self.purges_namespaces = purge;
        self
    }

    /// Writes the least roles that the observed traffic of each user needs into this file, while
    /// the server runs and when it ends.
    pub fn record_rbac(mut self, path: impl Into<PathBuf>) -> Self {
        self.record = Some(path.into());
        self
    }

    /// Faults on purpose; keep a clone to program them.
    pub fn faults(mut self, faults: Arc<Faults>) -> Self {
        self.faults = faults;
        self
    }

    /// Serves a path, and all below it, to everybody without asking who they are: for pages that are
    /// the same for all, or that ask for credentials themselves. `prefix` begins with a slash and has
    /// none at its end.
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

    /// How many connections at once; beyond that the oldest idle one is closed.
    pub fn max_connections(mut self, count: usize) -> Self {
        self.max_connections = count.max(1);
        self
    }

    /// How long a client may take for the head of a request, and between requests on HTTP/1.
    pub fn header_timeout(mut self, time: Duration) -> Self {
        self.limits.head = time;
        self
    }

    /// How long a client may pause within the body of a request.
    pub fn body_timeout(mut self, time: Duration) -> Self {
        self.body_patience = time;
        self
    }

    /// How long a client may leave unread what was sent to it.
    pub fn write_timeout(mut self, time: Duration) -> Self {
        self.limits.write = time;
        self
    }

    /// How long a connection may do nothing.
    pub fn idle_timeout(mut self, time: Duration) -> Self {
        self.limits.idle = time;
        self
    }

    /// How long requests under way may take to finish when the server ends.
    pub fn drain_timeout(mut self, time: Duration) -> Self {
        self.limits.linger = time;
        self
    }
}
