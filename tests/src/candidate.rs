//! Candidates of one election, of any kind.

use std::io;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use crate::clock::{self, Nanos};
use crate::event::Kind;
use crate::overlap::History;
use crate::process::{Process, Silence};
use crate::real::{BuildError, Peer, build, build_rust_peer};
use crate::{Skip, tools};

/// Settings that all candidates of an election share.
#[derive(Clone, Debug)]
pub struct Election {
    /// Kubeconfig of the lock's API server.
    pub kubeconfig: PathBuf,
    /// The lock's namespace.
    pub namespace: String,
    /// The lock's name.
    pub name: String,
    /// The lock kind, with client-go's name.
    pub lock: &'static str,
    /// Time that other candidates wait after a renewal.
    pub lease_duration: Duration,
    /// Time for which a leader tries to renew.
    pub renew_deadline: Duration,
    /// Interval between attempts.
    pub retry_period: Duration,
    /// Additional environment variables of its candidates.
    pub environment: Vec<(&'static str, PathBuf)>,
}

/// Reason why a candidate did not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Its program is missing.
    #[error(transparent)]
    Build(#[from] BuildError),
    /// Its program is not built.
    #[error(transparent)]
    Missing(#[from] Skip),
    /// Its program could not be started.
    #[error("cannot start {name}: {source}")]
    Spawn {
        /// The candidate's identity.
        name: String,
        /// The reason.
        source: io::Error,
    },
}

impl Election {
    /// Creates an election on a Lease in `default` with client-go's usual timing: 15, 10 and 2 seconds.
    pub fn new(kubeconfig: PathBuf, name: impl Into<String>) -> Self {
        Self {
            kubeconfig,
            namespace: "default".to_owned(),
            name: name.into(),
            lock: "leases",
            lease_duration: Duration::from_secs(15),
            renew_deadline: Duration::from_secs(10),
            retry_period: Duration::from_secs(2),
            environment: Vec::new(),
        }
    }

    /// Sets 5, 3 and 0.5 seconds, for tests that wait for leases to expire.
    #[must_use]
    pub fn quick(self) -> Self {
        Self {
            lease_duration: Duration::from_secs(5),
            renew_deadline: Duration::from_secs(3),
            retry_period: Duration::from_millis(500),
            ..self
        }
    }

    /// Starts a candidate based on client-go. Uses the old release for lock kinds that the current one no longer has.
    ///
    /// # Errors
    ///
    /// Fails if the program cannot be built or started.
    pub fn client_go(&self, id: &str, extra: &[&str]) -> Result<Process, Error> {
        let peer = if self.lock == "leases" {
            Peer::Elector
        } else {
            Peer::OldElector
        };
        let mut command = Command::new(build(peer)?);
        command.args(["--namespace", &self.namespace, "--name", &self.name]);
        self.spawn(command, id, extra)
    }

    /// Starts a candidate based on tenure.
    ///
    /// # Errors
    ///
    /// Fails if the program is not built or cannot be started.
    pub fn tenure(&self, id: &str, extra: &[&str]) -> Result<Process, Error> {
        self.elect(tools::tenure()?, id, extra)
    }

    /// Starts a candidate based on tenure, in the build of the sidecar image.
    ///
    /// # Errors
    ///
    /// Fails if the program is not built or cannot be started.
    pub fn sidecar(&self, id: &str, extra: &[&str]) -> Result<Process, Error> {
        self.elect(tools::sidecar()?, id, extra)
    }

    fn elect(&self, program: PathBuf, id: &str, extra: &[&str]) -> Result<Process, Error> {
        let mut command = Command::new(program);
        command.args(["elect", "--events", "json", "--require-cluster"]);
        command.args([
            "--election-namespace",
            &self.namespace,
            "--election",
            &self.name,
        ]);
        self.spawn(command, id, extra)
    }

    /// Starts a candidate based on the library alone. It accepts the flags of the client-go elector.
    ///
    /// # Errors
    ///
    /// Fails if the program is not built or cannot be started.
    pub fn library(&self, id: &str, extra: &[&str]) -> Result<Process, Error> {
        self.contend(tools::candidate()?, id, extra)
    }

    /// Starts the same in the shipped profile.
    ///
    /// # Errors
    ///
    /// Fails if the program is not built or cannot be started.
    pub fn shipped_library(&self, id: &str, extra: &[&str]) -> Result<Process, Error> {
        self.contend(tools::shipped_candidate()?, id, extra)
    }

    fn contend(&self, program: PathBuf, id: &str, extra: &[&str]) -> Result<Process, Error> {
        let mut command = Command::new(program);
        command.args(["--namespace", &self.namespace, "--name", &self.name]);
        self.spawn(command, id, extra)
    }

    /// Starts a candidate that behaves like `leader-elector:0.5`. Its ttl is the lease duration, and its lock is
    /// Endpoints.
    ///
    /// # Errors
    ///
    /// Fails if the program is not built or cannot be started.
    pub fn old_sidecar(&self, id: &str, extra: &[&str]) -> Result<Process, Error> {
        let mut command = Command::new(tools::old_sidecar()?);
        command.args(["--namespace", &self.namespace, "--name", &self.name]);
        self.spawn(command, id, extra)
    }

    /// Starts a candidate based on the crate kube-lease-manager, which has no renew deadline and no retry period. The
    /// time from its renewal to the end of the lease is set to the renew deadline.
    ///
    /// # Errors
    ///
    /// Fails if the program cannot be built or started.
    pub fn kube_lease_manager(&self, id: &str, extra: &[&str]) -> Result<Process, Error> {
        let mut command = Command::new(build_rust_peer("rust-kube-lease-manager")?);
        command.args(["--namespace", &self.namespace, "--name", &self.name]);
        self.spawn(command, id, extra)
    }

    /// Starts a candidate based on the crate k8s-controller.
    ///
    /// # Errors
    ///
    /// Fails if the program cannot be built or started.
    pub fn k8s_controller(&self, id: &str, extra: &[&str]) -> Result<Process, Error> {
        let mut command = Command::new(build_rust_peer("rust-k8s-controller")?);
        command.args(["--namespace", &self.namespace, "--name", &self.name]);
        self.spawn(command, id, extra)
    }

    fn spawn(&self, mut command: Command, id: &str, extra: &[&str]) -> Result<Process, Error> {
        let millis = |time: Duration| format!("{}ms", time.as_millis());
        command.arg("--kubeconfig").arg(&self.kubeconfig);
        command.args(["--id", id, "--lock", self.lock]);
        command.args(["--lease-duration", &millis(self.lease_duration)]);
        command.args(["--renew-deadline", &millis(self.renew_deadline)]);
        command.args(["--retry-period", &millis(self.retry_period)]);
        command.args(extra);
        command.envs(self.environment.iter().map(|(name, value)| (name, value)));
        Process::spawn(id, command).map_err(|source| Error::Spawn {
            name: id.to_owned(),
            source,
        })
    }
}

/// The candidates of one election, including dead ones, because their event lines still count.
#[derive(Debug, Default)]
pub struct Fleet {
    members: Vec<Process>,
    retired: Vec<Process>,
}

impl Fleet {
    /// Adds a candidate.
    pub fn add(&mut self, member: Process) {
        self.members.push(member);
    }

    /// Returns a member by the name with which it was started.
    ///
    /// # Panics
    ///
    /// Panics if there is none of that name.
    pub fn member(&mut self, name: &str) -> &mut Process {
        let found = self.members.iter_mut().find(|member| member.name() == name);
        found.unwrap_or_else(|| panic!("no candidate is called {name}"))
    }

    /// Frees a name: the event lines of its process still count, but it is no longer a member. Returns how many
    /// processes had the name.
    pub fn retire(&mut self, name: &str) -> usize {
        let (gone, stay) = self
            .members
            .drain(..)
            .partition(|member| member.name() == name);
        self.members = stay;
        let gone: Vec<Process> = gone;
        let count = gone.len();
        self.retired.extend(gone);
        count
    }

    /// Waits until a candidate other than `not` acquires at or after `since`. Returns its name and the time.
    ///
    /// # Errors
    ///
    /// Fails if there was none. The error contains the output of the first member.
    pub fn next_leader(
        &self,
        since: Nanos,
        not: Option<&str>,
        limit: Duration,
    ) -> Result<(String, Nanos), Silence> {
        let found = clock::poll(limit, || {
            let others = self
                .members
                .iter()
                .filter(|member| Some(member.name()) != not);
            others
                .flat_map(|member| {
                    let won = |event: &crate::event::Event| {
                        event.event == Kind::Acquired && event.t >= since
                    };
                    let events = member.events().into_iter().filter(won);
                    events
                        .map(|event| (event.t, member.name().to_owned()))
                        .collect::<Vec<_>>()
                })
                .min()
        });
        match found {
            Some((at, name)) => Ok((name, at)),
            None => Err(Silence::new(
                "every candidate",
                "Acquired",
                limit,
                self.transcript(),
            )),
        }
    }

    /// Returns the history of all event lines so far.
    pub fn history(&self) -> History {
        let mut history = History::default();
        for member in self.members.iter().chain(&self.retired) {
            history.add(&member.events(), member.killed_at());
        }
        history
    }

    fn transcript(&self) -> String {
        let said = self
            .members
            .iter()
            .map(|member| format!("--- {}\n{}", member.name(), member.transcript()));
        said.collect::<Vec<_>>().join("\n")
    }
}
