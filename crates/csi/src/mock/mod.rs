//! A scripted CSI driver for tests. It keeps its volumes in memory and records every call, so that a test can check
//! the calls and the remaining volumes.
//!
//! A [`Script`] sets the responses: a list per method ([`MockDriver::script`]), or the class parameter `script` as
//! JSON, so that each class can behave differently.

mod journal;
mod node;
mod script;
mod serve;
mod service;

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::watch;

pub use journal::{Call, create_request, delete_request};
pub use script::{Method, Script};

use crate::facts::{ControllerCapability, PluginCapability};

/// Name and capabilities of a scripted driver.
#[derive(Clone, Debug)]
pub struct MockConfig {
    /// Name of the driver.
    pub name: String,
    /// Plugin capabilities.
    pub plugin: Vec<PluginCapability>,
    /// Controller capabilities.
    pub controller: Vec<ControllerCapability>,
    /// Node id and topology for `NodeGetInfo`.
    pub node: (String, BTreeMap<String, String>),
    /// Free capacity in bytes; unlimited by default.
    pub capacity: i64,
    /// File to which every call is appended as a line of JSON.
    pub journal: Option<PathBuf>,
}

impl Default for MockConfig {
    fn default() -> Self {
        Self {
            name: "mock.csi.example".to_owned(),
            plugin: vec![PluginCapability::ControllerService],
            controller: vec![ControllerCapability::CreateDeleteVolume],
            node: ("node-1".to_owned(), BTreeMap::new()),
            capacity: i64::MAX,
            journal: None,
        }
    }
}

/// An existing volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LiveVolume {
    /// The name in the CreateVolume request.
    pub name: String,
    /// Size in bytes.
    pub capacity: i64,
}

/// A running driver. Dropping it closes its connections. Its volumes survive in [`Volumes`].
#[derive(Debug)]
pub struct MockDriver {
    state: Arc<State>,
    socket: PathBuf,
    stop: watch::Sender<bool>,
}

/// The volumes of a driver, which survive its restart.
#[derive(Clone, Debug, Default)]
pub struct Volumes(Arc<Mutex<BTreeMap<String, LiveVolume>>>);

impl Volumes {
    pub(crate) fn lock(&self) -> MutexGuard<'_, BTreeMap<String, LiveVolume>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// State that the services share.
#[derive(Debug)]
pub(crate) struct State {
    pub(crate) config: MockConfig,
    pub(crate) volumes: Volumes,
    pub(crate) scripts: Mutex<HashMap<Method, VecDeque<Script>>>,
    /// Number of used steps of a class script, by volume name.
    pub(crate) used: Mutex<HashMap<String, u32>>,
    pub(crate) journal: journal::Journal,
    pub(crate) ready: watch::Sender<bool>,
}

impl MockDriver {
    /// Starts a driver without volumes on a socket. Replaces an existing socket file.
    ///
    /// # Errors
    /// Returns an error if the socket cannot be created.
    pub fn start(config: MockConfig, socket: impl AsRef<Path>) -> io::Result<Self> {
        Self::restart(config, socket, Volumes::default())
    }

    /// Starts a driver with existing volumes.
    ///
    /// # Errors
    /// Returns an error if the socket or the journal cannot be created.
    pub fn restart(
        config: MockConfig,
        socket: impl AsRef<Path>,
        volumes: Volumes,
    ) -> io::Result<Self> {
        let socket = socket.as_ref().to_owned();
        let journal = journal::Journal::open(config.journal.as_deref())?;
        let state = Arc::new(State {
            config,
            volumes,
            scripts: Mutex::default(),
            used: Mutex::default(),
            journal,
            ready: watch::Sender::new(true),
        });
        let (stop, stopped) = watch::channel(false);
        serve::listen(&socket, state.clone(), stopped)?;
        Ok(Self {
            state,
            socket,
            stop,
        })
    }

    /// Returns the path of the socket.
    #[must_use]
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// Appends a step to the script of a method.
    pub fn script(&self, method: Method, script: Script) {
        let mut scripts = self.state.scripts();
        scripts.entry(method).or_default().push_back(script);
    }

    /// Removes all pending steps of a method.
    pub fn clear_script(&self, method: Method) {
        self.state.scripts().remove(&method);
    }

    /// Sets the response of `Probe`.
    pub fn set_ready(&self, ready: bool) {
        self.state.ready.send_replace(ready);
    }

    /// Returns all calls so far.
    #[must_use]
    pub fn calls(&self) -> Vec<Call> {
        self.state.journal.calls()
    }

    /// Returns all calls of one method so far.
    #[must_use]
    pub fn calls_of(&self, method: Method) -> Vec<Call> {
        let mut calls = self.calls();
        calls.retain(|call| call.method == method);
        calls
    }

    /// Returns the existing volumes, by id.
    #[must_use]
    pub fn volumes(&self) -> BTreeMap<String, LiveVolume> {
        self.state.volumes.lock().clone()
    }

    /// Returns the shared volumes, for a restart.
    #[must_use]
    pub fn keep_volumes(&self) -> Volumes {
        self.state.volumes.clone()
    }
}

impl Drop for MockDriver {
    fn drop(&mut self) {
        self.stop.send_replace(true);
        _ = std::fs::remove_file(&self.socket);
    }
}

impl State {
    pub(crate) fn scripts(&self) -> MutexGuard<'_, HashMap<Method, VecDeque<Script>>> {
        self.scripts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the next step of a method's script.
    pub(crate) fn next_step(&self, method: Method) -> Script {
        let mut scripts = self.scripts();
        let Some(queue) = scripts.get_mut(&method) else {
            return Script::default();
        };
        let Some(step) = queue.front_mut() else {
            return Script::default();
        };
        let now = step.clone();
        match &mut step.times {
            Some(times) if *times > 1 => *times -= 1,
            Some(_) => drop(queue.pop_front()),
            None => {}
        }
        now
    }
}
