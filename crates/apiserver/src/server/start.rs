//! Starts a server: directory, engine, sockets, security, API, and then connections.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use tenure_host::browser::Hosts;
use tenure_host::files;
use tokio::sync::watch;
use tokio::task::JoinSet;

use super::backup::Saver;
use super::bind::Bound;
use super::builder::{Builder, Engine, StartError};
use super::connection::Serving;
use super::connections::Connections;
use super::handle::{Files, Handle, HandleParts};
use super::instance::{DataDir, Instance};
#[cfg(feature = "etcd")]
use super::keys::Keys;
use super::pipeline::Pipeline;
use super::reload::{Reload, Tokens};
use crate::audit::{self, Audit};
use crate::auth::{self, Access, Auth, Recorder, TokenFile, token};
use crate::fairness::Fairness;
use crate::http::{Api, Options};
use crate::kubeconfig::{Credentials, Kubeconfig};
use crate::pki::{Identity, all_names, write_private_durably};
#[cfg(feature = "etcd")]
use crate::store::EtcdStore;
use crate::store::backup::Source;
use crate::store::{MemoryStore, RedbStore, Store};

impl Builder {
    /// Starts the server. It accepts requests when this returns.
    ///
    /// # Errors
    /// Returns the reason if the server cannot start. Nothing is left running.
    pub async fn start(mut self) -> Result<Handle, StartError> {
        let data_dir = self.data_dir.as_deref().map(DataDir::lock).transpose()?;
        let folder = data_dir.as_ref().map(DataDir::path);
        let from_file = self.read_tokens()?;
        let keys = self.read_keys()?;
        let audit = self.open_audit()?;
        let opened = self.open_engine(folder).await?;
        auth::bootstrap::run(&opened.store).await?;
        let (authority, signing) = opened.keys;
        let bound = Bound::new(&self, folder, authority).await?;
        let url = bound.url().ok_or(StartError::NoListener)?;

        // The token is for programs that cannot use the administrator's certificate, and for servers without TLS.
        let admin_token = match folder {
            Some(folder) => Some(load_or_create_token(&folder.join("token"))?),
            None => bound.tls.is_none().then(random_token),
        };
        let tokens = Tokens {
            file: self.token_file.take(),
            from_file,
            admin: folder.map(|folder| folder.join("token")),
            admin_token: admin_token.clone(),
            fixed: std::mem::take(&mut self.tokens),
        };
        let recorder = self.record.as_ref().map(|_| Arc::new(Recorder::new()));
        let (audit, counts) = audit.unzip();
        let (auth, api) = self
            .open_api(
                (signing, keys),
                &opened.store,
                tokens.all(),
                &recorder,
                counts,
            )
            .await?;
        let config = Kubeconfig {
            server: &url,
            ca: bound.tls.as_ref().map(|t| t.pki.ca.as_str()),
            credentials: match (&bound.tls, &admin_token) {
                (Some(tls), _) => Credentials::Certificate(&tls.pki.admin),
                (None, Some(token)) => Credentials::Token(token),
                (None, None) => Credentials::None,
            },
        };
        let kubeconfig = config.to_yaml();
        let kubeconfig_path = self.write_kubeconfigs(folder, &config)?;

        let parts = HandleParts {
            insecure_url: bound.insecure_url(),
            socket: bound.socket_path(),
            pki: bound.tls.as_ref().map(|tls| tls.pki.clone()),
            url,
            kubeconfig,
            kubeconfig_path,
            admin_token,
            store: opened.store,
            saver: opened.saver,
            api,
            auth,
            faults: Arc::clone(&self.faults),
        };
        if let Some(dir) = &data_dir {
            dir.publish(&instance(&parts, opened.engine))?;
        }
        let files = Files {
            close: opened.close,
            record: self.record.take().zip(recorder),
            audit,
            data_dir,
        };
        let reload = Reload {
            auth: Arc::clone(&parts.auth),
            tokens,
            certificates: bound.certificates(),
        };
        let (end, ending) = watch::channel(false);
        let listeners = self.serve(bound, &parts, files.audit.clone(), ending);
        Ok(Handle::new(parts, end, listeners, files, reload))
    }

    async fn open_api(
        &self,
        (key, keys): (Option<token::SigningKey>, Vec<token::VerifyingKey>),
        store: &Arc<dyn Store>,
        tokens: TokenFile,
        recorder: &Option<Arc<Recorder>>,
        audit: Option<audit::Counts>,
    ) -> Result<(Arc<Auth>, Arc<Api>), StartError> {
        let options = auth::Options {
            mode: self.mode,
            tokens,
            key,
            keys,
            max_token_seconds: self
                .max_token_life
                .map(|life| life.as_secs().try_into().unwrap_or(i64::MAX)),
            deny_anonymous: self.deny_anonymous,
            recorder: recorder.clone(),
        };
        let auth = Arc::new(Auth::new(Arc::clone(store), options)?);
        let options = Options {
            access: Arc::clone(&auth) as Arc<dyn Access>,
            purges_namespaces: self.purges_namespaces,
            audit,
            ready_checks: self.ready_checks.clone(),
        };
        let api = Api::open(Arc::clone(store), options).await?;
        Ok((auth, api))
    }

    /// Writes the kubeconfig to the requested path and to the data directory. Returns the path to show to users.
    fn write_kubeconfigs(
        &self,
        folder: Option<&Path>,
        config: &Kubeconfig<'_>,
    ) -> Result<Option<PathBuf>, StartError> {
        let own = folder.map(|f| f.join("kubeconfig"));
        for path in self.kubeconfig.iter().chain(&own) {
            config
                .write(path)
                .map_err(|e| StartError::File(path.display().to_string(), e))?;
        }
        Ok(self.kubeconfig.clone().or(own))
    }

    fn open_audit(&mut self) -> Result<Option<(Arc<Audit>, audit::Counts)>, StartError> {
        let Some(options) = self.audit.take() else {
            return Ok(None);
        };
        let counts = audit::Counts::default();
        Ok(Some((Audit::open(options, counts.clone())?, counts)))
    }

    fn serve(
        &mut self,
        bound: Bound,
        parts: &HandleParts,
        audit: Option<Arc<Audit>>,
        ending: watch::Receiver<bool>,
    ) -> JoinSet<()> {
        let fairness = Fairness::new(self.fairness, !self.unlimited);
        parts.api.show_gate(Arc::clone(fairness.gate()));
        let gate = Arc::clone(fairness.gate());
        let pipeline = Arc::new(Pipeline {
            api: Arc::clone(&parts.api),
            auth: Arc::clone(&parts.auth),
            audit,
            faults: Arc::clone(&parts.faults),
            fairness,
            public: std::mem::take(&mut self.public),
            mode: self.mode,
            hosts: Hosts::new(all_names(&self.names), "--tls-san"),
            saver: parts.saver.clone(),
            ending: ending.clone(),
        });
        let serving = Serving {
            pipeline,
            limits: self.limits,
            ending,
        };
        let cap = file_limit(self.max_connections);
        let connections = Arc::new(Connections::new(cap, gate));
        let mut listeners = JoinSet::new();
        for listener in bound.into_listeners() {
            listeners.spawn(listener.run(serving.clone(), Arc::clone(&connections)));
        }
        listeners
    }

    fn read_keys(&self) -> Result<Vec<token::VerifyingKey>, StartError> {
        let mut keys = Vec::new();
        for path in &self.key_files {
            keys.extend(token::VerifyingKey::read_all(path)?);
        }
        Ok(keys)
    }

    fn read_tokens(&self) -> Result<TokenFile, StartError> {
        Ok(match &self.token_file {
            None => TokenFile::default(),
            Some(path) => {
                let text = files::read_secret(path)
                    .map_err(|e| StartError::TokenFile(path.display().to_string(), e))?;
                TokenFile::parse(&text)?
            }
        })
    }

    async fn open_engine(&self, folder: Option<&Path>) -> Result<Opened, StartError> {
        let encryption = self.encryption.clone();
        let mut opened = match &self.engine {
            Engine::Memory => {
                let store = MemoryStore::new().encrypted(encryption);
                Opened::saved("memory", store, MemoryStore::close)
            }
            Engine::Redb => {
                let folder = folder.ok_or(StartError::NoDataDir)?.to_owned();
                // Opening the store blocks, because every record is read and checked.
                let open = move || RedbStore::encrypted(folder, encryption);
                let opened = tokio::task::spawn_blocking(open).await;
                let store =
                    opened.unwrap_or_else(|panic| std::panic::resume_unwind(panic.into_panic()));
                Opened::saved("redb", store?, RedbStore::close)
            }
            Engine::Custom(store) => Opened {
                store: Arc::clone(store),
                engine: "custom",
                saver: None,
                close: None,
                keys: (None, None),
            },
            #[cfg(feature = "etcd")]
            Engine::Etcd(config) => {
                let mut config = config.clone();
                if encryption.has_keys() {
                    config.encryption = encryption;
                }
                let store = EtcdStore::open(config).await?;
                let keys = Keys::agree(&store, folder).await?;
                Opened {
                    keys: (Some(keys.authority), Some(keys.signing)),
                    ..Opened::new("etcd", &Arc::new(store), EtcdStore::close)
                }
            }
        };
        // A server without shared keys has its own.
        if let (None, Some(folder)) = (&opened.keys.1, folder) {
            let key = token::SigningKey::load_or_generate(&folder.join("sa.key"))?;
            opened.keys.1 = Some(key);
        }
        Ok(opened)
    }
}

/// An opened engine.
struct Opened {
    store: Arc<dyn Store>,
    engine: &'static str,
    saver: Option<Saver>,
    close: Option<Box<dyn FnOnce() + Send + Sync>>,
    /// The shared authority and signing key, if the engine has them.
    keys: (Option<Identity>, Option<token::SigningKey>),
}

impl Opened {
    fn new<S: Store>(engine: &'static str, store: &Arc<S>, close: fn(&S)) -> Self {
        let closing = Arc::clone(store);
        Self {
            store: Arc::clone(store) as _,
            engine,
            saver: None,
            close: Some(Box::new(move || close(&closing))),
            keys: (None, None),
        }
    }

    /// Creates an engine that supports backups.
    fn saved<S: Store + Source>(engine: &'static str, store: S, close: fn(&S)) -> Self {
        let store = Arc::new(store);
        Self {
            saver: Some(Saver(Arc::clone(&store) as _)),
            ..Self::new(engine, &store, close)
        }
    }
}

/// Reads the token file. Creates a token if the file is missing or empty.
fn load_or_create_token(path: &Path) -> Result<String, StartError> {
    let failed = |error| StartError::TokenFile(path.display().to_string(), error);
    match files::read_own(path) {
        Ok(text) if !text.trim().is_empty() => return Ok(text.trim().to_owned()),
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(failed(error)),
        _ => {}
    }
    let token = random_token() + &random_token();
    write_private_durably(path, format!("{token}\n").as_bytes()).map_err(failed)?;
    Ok(token)
}

fn random_token() -> String {
    uuid::Uuid::new_v4().simple().to_string()
}

fn instance(parts: &HandleParts, engine: &str) -> Instance {
    let (pid, start_ticks) = Instance::this_process();
    Instance {
        pid,
        start_ticks,
        started_at: jiff::Timestamp::now().to_string(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        engine: engine.to_owned(),
        url: parts.url.clone(),
        insecure_url: parts.insecure_url.clone(),
        socket: parts.socket.clone(),
        kubeconfig: parts.kubeconfig_path.clone().unwrap_or_default(),
    }
}

/// Descriptors for other purposes than connections: the store, listeners, etcd.
const OTHER_FILES: u64 = 256;

/// Raises the limit of file descriptors, because each connection takes one and the usual limit of 1024 is too low.
/// Returns the possible number of connections. A fifth of the descriptors is reserved for connections that are closing.
fn file_limit(connections: usize) -> usize {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let wanted = connections as u64 * 5 / 4 + OTHER_FILES;
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
    match getrlimit(Resource::Nofile).current {
        Some(files) => connections.min(connections_for(files)),
        None => connections,
    }
}

/// Returns the number of connections that these descriptors suffice for.
fn connections_for(files: u64) -> usize {
    let free = files.saturating_sub(OTHER_FILES).max(files / 2);
    usize::try_from(free * 4 / 5).unwrap_or(usize::MAX).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_follow_the_limit_of_descriptors() {
        assert_eq!(connections_for(12_000 * 5 / 4 + OTHER_FILES), 12_000);
        assert_eq!(connections_for(1_024), 614);
        assert_eq!(connections_for(64), 25);
        assert_eq!(connections_for(0), 1);
        assert!(file_limit(10) <= 10);
    }
}
