//! What can be asked of a server, and how it comes up.

use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use http::Response;
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;

use super::backup::Saver;
use super::connection::{Limits, Serving};
use super::faults::Faults;
use super::handle::{Files, Handle};
use super::instance::{DataDir, DataDirError, Instance};
use super::listener::Listener;
use super::pipeline::{Pipeline, PublicRoute};
use crate::auth::{self, Auth, Mode, Recorder, TokenFile, TokenFileError, User, token};
use crate::http::{Access, Api, Body, Options};
use crate::kubeconfig::{Credentials, Kubeconfig};
use crate::pki::{Pki, PkiError};
use crate::store::backup::Source;
use crate::store::{MemoryStore, OpenError, RedbStore, Store, WriteError};
use crate::tls::{self, TlsError};

/// What keeps the data.
#[derive(Clone, Default)]
#[non_exhaustive]
pub enum Engine {
    /// Memory only: gone when the server ends.
    #[default]
    Memory,
    /// A file in the data directory: a write is answered after it is on disk.
    Redb,
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
    /// The store does not take the first writes.
    #[error("the store does not take the first writes: {0}")]
    Store(#[from] WriteError),
}

/// A server to be set up. Without further calls: memory engine, TLS on a random port of 127.0.0.1,
/// certificates that live as long as the process, RBAC on.
#[must_use = "nothing runs until `start`"]
pub struct Builder {
    engine: Engine,
    data_dir: Option<PathBuf>,
    listen: Option<SocketAddr>,
    insecure: Option<SocketAddr>,
    socket: Option<PathBuf>,
    names: Vec<String>,
    kubeconfig: Option<PathBuf>,
    token_file: Option<PathBuf>,
    tokens: TokenFile,
    mode: Mode,
    deny_anonymous: bool,
    record: Option<PathBuf>,
    faults: Arc<Faults>,
    public: Vec<(String, PublicRoute)>,
    max_connections: usize,
    body_patience: Duration,
    limits: Limits,
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
    /// the same for all. `prefix` begins with a slash and has none at its end.
    pub fn public_route(
        mut self,
        prefix: impl Into<String>,
        route: impl Fn(&http::request::Parts) -> Response<Body> + Send + Sync + 'static,
    ) -> Self {
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

    /// Starts the server; it answers when this returns.
    ///
    /// # Errors
    /// Says what stands in the way. Nothing is left running.
    pub async fn start(mut self) -> Result<Handle, StartError> {
        let data_dir = self.data_dir.as_deref().map(DataDir::lock).transpose()?;
        let folder = data_dir.as_ref().map(DataDir::path);
        let tokens = self.take_tokens()?;
        let Opened {
            store,
            engine,
            saver,
            close,
        } = self.open_engine(folder).await?;
        auth::bootstrap::run(&store).await?;

        let tls = self.bind_tls(folder).await?;
        let plain = self.bind_plain().await?;
        let socket = self.bind_socket()?;

        let recorder = self.record.as_ref().map(|_| Arc::new(Recorder::new()));
        let key = folder
            .map(|f| token::SigningKey::load_or_generate(&f.join("sa.key")))
            .transpose()?;
        // Without a certificate the administrator needs another proof.
        let admin_token = tls
            .is_none()
            .then(|| uuid::Uuid::new_v4().simple().to_string());
        let mut tokens = tokens;
        if let Some(token) = &admin_token {
            tokens.insert(token, User::admin());
        }
        let options = auth::Options {
            mode: self.mode,
            tokens,
            key,
            deny_anonymous: self.deny_anonymous,
            recorder: recorder.clone(),
        };
        let auth = Arc::new(Auth::new(Arc::clone(&store), options)?);
        let access = Arc::clone(&auth) as Arc<dyn Access>;
        let options = Options {
            access,
            ..Options::default()
        };
        let api = Api::open(Arc::clone(&store), options).await?;

        let addresses = Addresses {
            tls: tls.as_ref().map(|t| t.address),
            plain: plain.as_ref().and_then(|l| l.local_addr().ok()),
            socket: self.socket.clone(),
        };
        let url = addresses.url().ok_or(StartError::NoListener)?;
        let pki = tls.as_ref().map(|t| t.pki.clone());
        let config = Kubeconfig {
            server: &url,
            ca: pki.as_ref().map(|p| p.ca.as_str()),
            credentials: match (&pki, &admin_token) {
                (Some(pki), _) => Credentials::Certificate(&pki.admin),
                (None, Some(token)) => Credentials::Token(token),
                (None, None) => Credentials::None,
            },
        };
        let kubeconfig = config.to_yaml();
        let own = folder.map(|f| f.join("kubeconfig"));
        for path in self.kubeconfig.iter().chain(&own) {
            config
                .write(path)
                .map_err(|e| StartError::File(path.display().to_string(), e))?;
        }
        let kubeconfig_path = self.kubeconfig.clone().or(own);

        let (end, ending) = watch::channel(false);
        let pipeline = Arc::new(Pipeline {
            api: Arc::clone(&api),
            auth: Arc::clone(&auth),
            faults: Arc::clone(&self.faults),
            body_patience: self.body_patience,
            public: std::mem::take(&mut self.public),
            saver: saver.clone(),
            ending: ending.clone(),
        });
        let serving = Serving {
            pipeline,
            limits: self.limits,
            ending,
        };
        raise_file_limit(self.max_connections);
        let cap = Arc::new(Semaphore::new(self.max_connections));
        let mut listeners = JoinSet::new();
        let tls = tls.map(|t| Listener::Tls(t.listener, t.acceptor));
        let socket = socket.map(|(listener, path)| Listener::Socket(listener, path));
        for listener in tls
            .into_iter()
            .chain(plain.map(Listener::Plain))
            .chain(socket)
        {
            listeners.spawn(listener.run(serving.clone(), Arc::clone(&cap)));
        }
        if let Some(dir) = &data_dir {
            dir.publish(&addresses.instance(engine, url.clone(), kubeconfig_path.clone()))?;
        }
        let files = Files {
            close,
            record: self.record.take().zip(recorder),
            data_dir,
        };
        Ok(Handle::new(
            super::handle::Parts {
                url,
                insecure_url: addresses.plain.map(|a| format!("http://{a}")),
                socket: addresses.socket,
                kubeconfig,
                kubeconfig_path,
                admin_token,
                pki,
                store,
                saver,
                api,
                auth,
                faults: self.faults,
            },
            end,
            listeners,
            files,
        ))
    }

    fn take_tokens(&mut self) -> Result<TokenFile, StartError> {
        let mut tokens = match &self.token_file {
            None => TokenFile::default(),
            Some(path) => {
                let text = std::fs::read_to_string(path)
                    .map_err(|e| StartError::TokenFile(path.display().to_string(), e))?;
                TokenFile::parse(&text)?
            }
        };
        tokens.extend(std::mem::take(&mut self.tokens));
        Ok(tokens)
    }

    async fn open_engine(&self, folder: Option<&Path>) -> Result<Opened, StartError> {
        Ok(match &self.engine {
            Engine::Memory => Opened::new("memory", MemoryStore::new(), MemoryStore::close),
            Engine::Redb => {
                let folder = folder.ok_or(StartError::NoDataDir)?.to_owned();
                // Every record is read and checked, which may take a while.
                let opened = tokio::task::spawn_blocking(move || RedbStore::open(folder)).await;
                let store =
                    opened.unwrap_or_else(|panic| std::panic::resume_unwind(panic.into_panic()));
                Opened::new("redb", store?, RedbStore::close)
            }
            Engine::Custom(store) => Opened {
                store: Arc::clone(store),
                engine: "custom",
                saver: None,
                close: None,
            },
        })
    }

    async fn bind_tls(&self, folder: Option<&Path>) -> Result<Option<Tls>, StartError> {
        let Some(address) = self.listen else {
            return Ok(None);
        };
        let listener = bind(address).await?;
        let address = local(&listener, address)?;
        let mut names = self.names.clone();
        if !address.ip().is_unspecified() {
            names.push(address.ip().to_string());
        }
        let pki = match folder {
            Some(folder) => Pki::load_or_generate(&folder.join("pki"), &names)?,
            None => Pki::ephemeral(&names)?,
        };
        let acceptor = TlsAcceptor::from(Arc::new(tls::server_config(&pki)?));
        Ok(Some(Tls {
            listener,
            address,
            acceptor,
            pki,
        }))
    }

    async fn bind_plain(&self) -> Result<Option<TcpListener>, StartError> {
        match self.insecure {
            None => Ok(None),
            Some(address) if !address.ip().is_loopback() => Err(StartError::NotLoopback(address)),
            Some(address) => Ok(Some(bind(address).await?)),
        }
    }

    fn bind_socket(&self) -> Result<Option<(UnixListener, PathBuf)>, StartError> {
        let Some(path) = &self.socket else {
            return Ok(None);
        };
        let failed = |source| StartError::Listen {
            address: path.display().to_string(),
            source,
        };
        // A file left by a server that was killed; a live one still answers.
        match std::os::unix::net::UnixStream::connect(path) {
            Ok(_) => return Err(failed(std::io::ErrorKind::AddrInUse.into())),
            Err(e) if e.kind() == std::io::ErrorKind::ConnectionRefused => {
                let _ = std::fs::remove_file(path);
            }
            Err(_) => {}
        }
        let listener = UnixListener::bind(path).map_err(failed)?;
        let private = std::fs::Permissions::from_mode(0o600);
        std::fs::set_permissions(path, private).map_err(failed)?;
        Ok(Some((listener, path.clone())))
    }
}

/// An engine that is ready.
struct Opened {
    store: Arc<dyn Store>,
    engine: &'static str,
    saver: Option<Saver>,
    close: Option<Box<dyn FnOnce() + Send + Sync>>,
}

impl Opened {
    fn new<S: Store + Source>(engine: &'static str, store: S, close: fn(&S)) -> Self {
        let store = Arc::new(store);
        let closing = Arc::clone(&store);
        Self {
            saver: Some(Saver(Arc::clone(&store) as _)),
            close: Some(Box::new(move || close(&closing))),
            store,
            engine,
        }
    }
}

struct Tls {
    listener: TcpListener,
    address: SocketAddr,
    acceptor: TlsAcceptor,
    pki: Pki,
}

struct Addresses {
    tls: Option<SocketAddr>,
    plain: Option<SocketAddr>,
    socket: Option<PathBuf>,
}

impl Addresses {
    /// The address for clients on this machine.
    fn url(&self) -> Option<String> {
        let reachable = |address: SocketAddr| match address.ip() {
            ip if ip.is_unspecified() && ip.is_ipv4() => {
                SocketAddr::from(([127, 0, 0, 1], address.port()))
            }
            ip if ip.is_unspecified() => {
                SocketAddr::from((std::net::Ipv6Addr::LOCALHOST, address.port()))
            }
            _ => address,
        };
        let tls = self.tls.map(|a| format!("https://{}", reachable(a)));
        let plain = self.plain.map(|a| format!("http://{a}"));
        let socket = self
            .socket
            .as_ref()
            .map(|p| format!("unix://{}", p.display()));
        tls.or(plain).or(socket)
    }

    fn instance(&self, engine: &str, url: String, kubeconfig: Option<PathBuf>) -> Instance {
        let (pid, start_ticks) = Instance::this_process();
        Instance {
            pid,
            start_ticks,
            started_at: jiff::Timestamp::now().to_string(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            engine: engine.to_owned(),
            url,
            insecure_url: self.plain.map(|a| format!("http://{a}")),
            socket: self.socket.clone(),
            kubeconfig: kubeconfig.unwrap_or_default(),
        }
    }
}

async fn bind(address: SocketAddr) -> Result<TcpListener, StartError> {
    TcpListener::bind(address)
        .await
        .map_err(|source| StartError::Listen {
            address: address.to_string(),
            source,
        })
}

fn local(listener: &TcpListener, asked: SocketAddr) -> Result<SocketAddr, StartError> {
    listener.local_addr().map_err(|source| StartError::Listen {
        address: asked.to_string(),
        source,
    })
}

/// Every connection takes a file descriptor; the usual limit of 1024 is far below the cap.
fn raise_file_limit(connections: usize) {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let wanted = connections as u64 + 256;
    let limit = getrlimit(Resource::Nofile);
    if let Some(current) = limit.current
        && current < wanted
    {
        let current = Some(limit.maximum.map_or(wanted, |most| most.min(wanted)));
        let _ = setrlimit(
            Resource::Nofile,
            Rlimit {
                current,
                maximum: limit.maximum,
            },
        );
    }
}
