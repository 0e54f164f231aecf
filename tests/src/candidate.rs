//! Candidates of one election, whatever they are made of.

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

/// What all candidates of an election agree on.
#[derive(Clone, Debug)]
pub struct Election {
    /// Where the lock is.
    pub kubeconfig: PathBuf,
    /// The lock's namespace.
    pub namespace: String,
    /// The lock's name.
    pub name: String,
    /// The lock kind, as client-go spells it.
    pub lock: &'static str,
    /// How long others wait after a renewal.
    pub lease_duration: Duration,
    /// How long a leader tries to renew.
    pub renew_deadline: Duration,
    /// The pause between attempts.
    pub retry_period: Duration,
    /// What is added to the environment of its candidates.
    pub environment: Vec<(&'static str, PathBuf)>,
}

/// Why a candidate did not start.
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
        /// What went wrong.
        source: io::Error,
    },
}

impl Election {
    /// An election on a Lease in `default` with client-go's usual timing: 15, 10 and 2 seconds.
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

    /// The same with 5, 3 and 0.5 seconds, for tests that wait for leases to run out.
    #[must_use]
    pub fn quick(self) -> Self {
        Self {
            lease_duration: Duration::from_secs(5),
            renew_deadline: Duration::from_secs(3),
            retry_period: Duration::from_millis(500),
            ..self
        }
    }

    /// Starts a candidate on client-go; on the old release for the lock kinds that today's no longer has.
    ///
    /// # Errors
    /// The program cannot be built or started.
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

    /// Starts a candidate on tenure.
    ///
    /// # Errors
    /// The program is not built or cannot be started.
    pub fn tenure(&self, id: &str, extra: &[&str]) -> Result<Process, Error> {
        self.elect(tools::tenure()?, id, extra)
    }

    /// Starts a candidate on tenure as the sidecar image has it.
    ///
    /// # Errors
    /// The program is not built or cannot be started.
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

    /// Starts a candidate on the library alone: it takes the flags of the client-go elector.
    ///
    /// # Errors
    /// The program is not built or cannot be started.
    pub fn library(&self, id: &str, extra: &[&str]) -> Result<Process, Error> {
        self.contend(tools::candidate()?, id, extra)
    }

    /// The same in the profile of what is shipped.
    ///
    /// # Errors
    /// The program is not built or cannot be started.
    pub fn shipped_library(&self, id: &str, extra: &[&str]) -> Result<Process, Error> {
        self.contend(tools::shipped_candidate()?, id, extra)
    }

    fn contend(&self, program: PathBuf, id: &str, extra: &[&str]) -> Result<Process, Error> {
        let mut command = Command::new(program);
        command.args(["--namespace", &self.namespace, "--name", &self.name]);
        self.spawn(command, id, extra)
    }

    /// Starts a candidate that is like `leader-elector:0.5`; its ttl is the lease duration, and its lock is
    /// Endpoints.
    ///
    /// # Errors
    /// The program is not built or cannot be started.
    pub fn old_sidecar(&self, id: &str, extra: &[&str]) -> Result<Process, Error> {
        let mut command = Command::new(tools::old_sidecar()?);
        command.args(["--namespace", &self.namespace, "--name", &self.name]);
        self.spawn(command, id, extra)
    }

    /// Starts a candidate on the crate kube-lease-manager, which has no renew deadline and no retry period:
    /// it renews as long before the end of the lease as the renew deadline is.
    ///
    /// # Errors
    /// The program cannot be built or started.
    pub fn kube_lease_manager(&self, id: &str, extra: &[&str]) -> Result<Process, Error> {
        let mut command = Command::new(build_rust_peer("rust-kube-lease-manager")?);
        command.args(["--namespace", &self.namespace, "--name", &self.name]);
        self.spawn(command, id, extra)
    }

    /// Starts a candidate on the crate k8s-controller.
    ///
    /// # Errors
    /// The program cannot be built or started.
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

/// The candidates of one election, dead ones included, because what they said still counts.
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

    /// A member by the name it was started with.
    ///
    /// # Panics
    /// There is none of that name.
    pub fn member(&mut self, name: &str) -> &mut Process {
        let found = self.members.iter_mut().find(|member| member.name() == name);
        found.unwrap_or_else(|| panic!("no candidate is called {name}"))
    }

    /// Frees a name: what its bearer said still counts, but it is no member any more. Returns how many
    /// bore it.
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

    /// Waits until a candidate other than `not` acquires at or after `since`; gives its name and when.
    ///
    /// # Errors
    /// Nobody did; what the first member said instead.
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

    /// Everything that everybody said so far.
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
