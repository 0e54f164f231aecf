//! Candidates of one kind, or of both, on one lock. Each has its own proxy and its own clocks.

use std::time::Duration;

use anyhow::Result;
use http::Method;
use serde_json::{Value, json};

use super::clock_shim::ClockShim;
use super::proxy::Proxy;
use super::store::FencedStore;
use crate::candidate::Election;
use crate::clock::{self, Nanos};
use crate::event::Kind;
use crate::overlap::History;
use crate::process::Process;
use crate::wire::{Wire, lease_path};

/// Beginning of the library's last message when work outlives its guard.
const ABORTED: &str = "did not end in time; aborting";

/// Kind of a candidate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Make {
    /// The tenure library.
    Tenure,
    /// client-go in its usual configuration: ReleaseOnCancel, and no limit on one request except the renew deadline.
    ClientGo,
}

/// The candidates of one election.
#[derive(Debug)]
pub struct Squad {
    makes: Vec<Make>,
    election: Election,
    store: FencedStore,
    members: Vec<Member>,
    retired: Vec<(Make, Process)>,
    edits: Vec<Nanos>,
    aborts: usize,
    unexpected: Vec<String>,
}

#[derive(Debug)]
struct Member {
    make: Make,
    proxy: Proxy,
    clocks: Option<ClockShim>,
    process: Process,
    incarnation: u32,
}

impl Squad {
    /// Starts `size` candidates. Work is a step every `work`, which is also sent to the store.
    ///
    /// # Errors
    ///
    /// Fails if a candidate does not start.
    pub fn start(make: Make, election: Election, size: usize, store: &FencedStore) -> Result<Self> {
        Self::of(vec![make; size], election, store)
    }

    /// Starts one candidate of each of these kinds, all on the same lock.
    ///
    /// # Errors
    ///
    /// Fails if a candidate does not start.
    pub fn of(makes: Vec<Make>, election: Election, store: &FencedStore) -> Result<Self> {
        let mut squad = Self {
            makes: makes.clone(),
            election,
            store: store.clone(),
            members: Vec::new(),
            retired: Vec::new(),
            edits: Vec::new(),
            aborts: 0,
            unexpected: Vec::new(),
        };
        for (index, make) in makes.into_iter().enumerate() {
            let proxy = Proxy::start(&squad.election.kubeconfig)?;
            // Go reads the kernel's clocks directly and is linked statically, so nothing can be preloaded.
            let clocks = match make {
                Make::Tenure => ClockShim::new().ok(),
                Make::ClientGo => None,
            };
            let process = squad.launch((index, 0), make, &proxy, clocks.as_ref())?;
            squad.members.push(Member {
                make,
                proxy,
                clocks,
                process,
                incarnation: 0,
            });
        }
        Ok(squad)
    }

    /// Returns the kind of its candidates; for a mixed fleet, that of its first candidate.
    pub fn make(&self) -> Make {
        self.makes[0]
    }

    /// Returns whether it has candidates of both kinds.
    pub fn is_mixed(&self) -> bool {
        self.makes.iter().any(|make| *make != self.make())
    }

    /// Returns the election.
    pub fn election(&self) -> &Election {
        &self.election
    }

    /// Returns the number of candidates.
    pub fn size(&self) -> usize {
        self.members.len()
    }

    /// Returns the link of a candidate.
    pub fn proxy(&self, index: usize) -> &Proxy {
        &self.members[index].proxy
    }

    /// Returns the clocks of a candidate, if they can be moved.
    pub fn clocks(&self, index: usize) -> Option<&ClockShim> {
        self.members[index].clocks.as_ref()
    }

    /// Returns the process of a candidate.
    pub fn process(&mut self, index: usize) -> &mut Process {
        &mut self.members[index].process
    }

    /// Returns the leader, according to its own event lines.
    pub fn leader(&self) -> Option<usize> {
        (0..self.size()).find(|index| self.leads(*index))
    }

    /// Returns another candidate whose event lines say that it leads.
    pub fn leader_other_than(&self, index: usize) -> Option<usize> {
        (0..self.size()).find(|other| *other != index && self.leads(*other))
    }

    fn leads(&self, index: usize) -> bool {
        let edges = [Kind::Acquired, Kind::Lost, Kind::Released];
        let last = self.members[index].process.last_of(&edges);
        last.is_some_and(|event| event.event == Kind::Acquired)
    }

    /// Waits until a candidate leads and has led for `age`.
    pub fn settled(&self, age: Duration, limit: Duration) -> Option<usize> {
        clock::poll(limit, || {
            let leader = self.leader()?;
            let process = &self.members[leader].process;
            let since = process.last_of(&[Kind::Acquired])?.t;
            (clock::now().since(since) >= age).then_some(leader)
        })
    }

    /// Replaces an ended process by a new one.
    ///
    /// # Errors
    ///
    /// Fails if it does not start.
    pub fn restart(&mut self, index: usize) -> Result<()> {
        let incarnation = self.members[index].incarnation + 1;
        let member = &self.members[index];
        let clocks = member.clocks.as_ref();
        let fresh = self.launch((index, incarnation), member.make, &member.proxy, clocks)?;
        let member = &mut self.members[index];
        member.incarnation = incarnation;
        let old = std::mem::replace(&mut member.process, fresh);
        self.retired.push((member.make, old));
        Ok(())
    }

    /// Restarts candidates that ended unexpectedly, and keeps their output.
    ///
    /// # Errors
    ///
    /// Fails if one does not start again.
    pub fn revive(&mut self) -> Result<()> {
        for index in 0..self.size() {
            let process = &mut self.members[index].process;
            if process.has_ended() && process.killed_at().is_none() {
                let said = process.transcript();
                let name = process.name().to_owned();
                process.kill();
                // A process that was stopped or starved beyond its deadline ends itself before it can work again.
                if said.contains(ABORTED) {
                    self.aborts += 1;
                } else {
                    self.unexpected
                        .push(format!("{name} ended by itself:\n{said}"));
                }
                self.restart(index)?;
            }
        }
        Ok(())
    }

    /// Deletes the lock object as a person would. Returns whether it is deleted.
    pub fn delete_lock(&mut self, wire: &Wire) -> bool {
        self.by_hand(wire, &Method::DELETE, None)
    }

    /// Changes the record as a person would. Returns whether it is changed.
    pub fn edit_lock(&mut self, wire: &Wire, spec: &Value) -> bool {
        self.by_hand(wire, &Method::PATCH, Some(&json!({"spec": spec})))
    }

    fn by_hand(&mut self, wire: &Wire, method: &Method, body: Option<&Value>) -> bool {
        self.edits.push(clock::now());
        let answer = wire.send(method, &self.lock_path(), body);
        answer.is_ok_and(|answer| answer.status.is_success())
    }

    /// Returns the times of manual edits of the lock. After each, the invariants do not hold for a moment.
    pub fn edits(&self) -> &[Nanos] {
        &self.edits
    }

    /// Returns how many processes ended themselves because their work exceeded its deadline.
    pub fn aborts(&self) -> usize {
        self.aborts
    }

    /// Returns the output of candidates that ended by themselves for any other reason.
    pub fn unexpected(&self) -> &[String] {
        &self.unexpected
    }

    /// Returns the history of the candidates of its kind so far. A mixed fleet excludes the other kind, because
    /// client-go's own gaps are known.
    pub fn history(&self) -> History {
        let mut history = History::default();
        let members = self.members.iter();
        let members = members.map(|member| (member.make, &member.process));
        let retired = self.retired.iter().map(|(make, process)| (*make, process));
        let all = members.chain(retired);
        for (_, process) in all.filter(|(make, _)| *make == self.make()) {
            history.add(&process.events(), process.killed_at());
        }
        history
    }

    fn lock_path(&self) -> String {
        lease_path(&self.election.namespace, &self.election.name)
    }

    fn launch(
        &self,
        (index, incarnation): (usize, u32),
        make: Make,
        proxy: &Proxy,
        clocks: Option<&ClockShim>,
    ) -> Result<Process> {
        let mut election = self.election.clone();
        election.kubeconfig = proxy.kubeconfig();
        election.environment = clocks.map(ClockShim::environment).unwrap_or_default();
        let store = self.store.address();
        let mut extra = vec!["--work", "20ms", "--store", &store];
        let id = format!("{make:?}-{index}-{incarnation}").to_lowercase();
        Ok(match make {
            Make::Tenure => {
                // The work of every second candidate is a thread that outlives its term.
                extra.extend((index % 2 == 1).then_some("--blocking"));
                election.library(&id, &extra)?
            }
            Make::ClientGo => {
                extra.extend(["--request-timeout", "1h"]);
                election.client_go(&id, &extra)?
            }
        })
    }
}
