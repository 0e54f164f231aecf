//! `tenure elect`: the sidecar. A drop-in for `leader-elector:0.5`, without its faults.

mod hooks;
mod http;
mod rbac;
mod view;

use std::io::Write;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result};
use clap::{Args, ValueEnum};
use jiff::Timestamp;
use kube::{Client, Config};
use tenure::metrics::Registry;
use tenure::{Candidate, Elector, Event, Metrics, Overrun, Term};
use tokio::sync::watch;

use crate::connect::Connect;
use crate::election::Election;
use crate::events::{Change, EventLog, What, guard_end};
use crate::signals::{Asked, Signals};
use hooks::{Hooks, Notice};
use http::{Address, Site};
use view::{Facts, Seen, View};

/// How long the release may take when asked to end.
const RELEASE: Duration = Duration::from_secs(5);

const CONFIGURATION: u8 = 3;
const FORBIDDEN: u8 = 4;
const CANNOT_LISTEN: u8 = 5;

/// Take part in an election and tell others who leads (sidecar)
#[derive(Args, Debug)]
pub(crate) struct Elect {
    #[command(flatten)]
    election: Election,
    /// Answer HTTP on this address: host:port, :port or unix:/path
    #[arg(long, value_name = "ADDR", env = "TENURE_HTTP")]
    http: Option<Address>,
    /// Accepted for old command lines; in a cluster its credentials are found anyway
    #[arg(long, hide = true, num_args = 0..=1, default_missing_value = "true")]
    use_cluster_credentials: Option<bool>,
    /// Answer every path and method like the old sidecar, and use the host name as identity
    #[arg(long, env = "TENURE_COMPAT", num_args = 0..=1, default_missing_value = "true")]
    compat: Option<bool>,
    /// Run this when elected, with the variables that `tenure run` gives
    #[arg(long, value_name = "CMD", env = "TENURE_ON_ELECTED")]
    on_elected: Option<String>,
    /// Run this when leadership is lost
    #[arg(long, value_name = "CMD", env = "TENURE_ON_LOST")]
    on_lost: Option<String>,
    /// Run this at every change of leader
    #[arg(long, value_name = "CMD", env = "TENURE_ON_CHANGE")]
    on_change: Option<String>,
    /// Keep the present state in this file
    #[arg(long, value_name = "FILE", env = "TENURE_STATE_FILE")]
    state_file: Option<PathBuf>,
    /// Print one line per change on standard output
    #[arg(long, value_enum, value_name = "FORMAT", env = "TENURE_EVENTS")]
    events: Option<EventFormat>,
    /// Give the lease back when asked to end
    #[arg(long, env = "TENURE_RELEASE_ON_EXIT", default_value_t = true, action = clap::ArgAction::Set)]
    release_on_exit: bool,
    /// The bearer token that `POST /v1/step-down` asks for, in a file
    #[arg(long, value_name = "FILE", env = "TENURE_STEP_DOWN_TOKEN_FILE")]
    step_down_token_file: Option<PathBuf>,
    /// Check the permissions before campaigning
    #[arg(long, value_enum, default_value_t, env = "TENURE_PREFLIGHT")]
    preflight: Preflight,
    /// Print the Role that this command line needs, and end
    #[arg(long)]
    print_rbac: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum EventFormat {
    Json,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
enum Preflight {
    /// Do not check
    Off,
    /// Say what is missing and go on
    #[default]
    Warn,
    /// End with exit code 4 if anything is missing
    Fail,
}

impl Elect {
    pub(crate) async fn run(self, connect: &Connect, called_as_old: bool) -> Result<u8> {
        let compat = self.compat.unwrap_or(called_as_old);
        if self.print_rbac {
            let namespace = self.election.namespace("default");
            print!("{}", rbac::role(&self.election, &namespace));
            return Ok(0);
        }
        let mut signals = Signals::listen()?;
        let config = tokio::select! {
            config = connect.config() => config?,
            _ = signals.end() => return Ok(0),
        };
        let namespace = self.election.namespace(&config.default_namespace);
        if let Some(code) = self.check_access(&config, &namespace).await? {
            return Ok(code);
        }
        let client = tenure::client(config)?;
        let builder = Elector::open(
            client,
            self.election.lock,
            &namespace,
            &self.election.election,
        );
        let metrics = Metrics::new();
        let mut registry = Registry::default();
        metrics.register(&mut registry);
        let mut builder = self
            .election
            .configure(builder)
            .release_on_cancel(self.release_on_exit)
            // What it guards runs elsewhere; a slow hook is no reason to end this process.
            .on_overrun(Overrun::Log)
            .metrics(&metrics)
            .events(true);
        if let Some(id) = self.identity(compat) {
            builder = builder.identity(id);
        }
        let elector = match builder.build() {
            Ok(elector) => elector,
            Err(error) => return refuse(CONFIGURATION, &error),
        };
        let lease_duration_seconds = elector.timing().lease_seconds();
        let candidate = elector.start();
        let view = View {
            facts: Arc::new(Facts {
                election: self.election.election.clone(),
                namespace: namespace.clone(),
                lock: self.election.lock.as_str(),
                lease_duration_seconds,
                short_names: self.election.id.is_none(),
            }),
            handle: candidate.handle(),
            seen: watch::Sender::new(Seen::default()),
        };
        if let Some(address) = &self.http {
            let site = self.site(view.clone(), registry, compat)?;
            match http::listen(address, site).await {
                Ok(server) => drop(tokio::spawn(server)),
                Err(error) => return refuse(CANNOT_LISTEN, &format!("{error:#}")),
            }
        }
        let log = match self.events {
            Some(EventFormat::Json) => EventLog::stdout(&self.election.election),
            None => EventLog::open(None, &self.election.election)?,
        };
        let print = compat && self.events.is_none();
        let hooks = Hooks::new(
            &self.on_elected,
            &self.on_lost,
            &self.on_change,
            &self.state_file,
        );
        Sidecar {
            candidate,
            signals,
            view,
            log,
            hooks,
            print,
        }
        .attend()
        .await
    }

    /// Asks for every permission that will be needed; an exit code if one is missing and must not be.
    async fn check_access(&self, config: &Config, namespace: &str) -> Result<Option<u8>> {
        if self.preflight == Preflight::Off {
            return Ok(None);
        }
        let client = Client::try_from(config.clone())?;
        match rbac::missing(&client, &self.election, namespace).await {
            Ok(missing) if missing.is_empty() => Ok(None),
            Ok(missing) => {
                let missing = missing.join(", ");
                eprintln!("tenure: missing permissions in namespace {namespace}: {missing}");
                eprint!("{}", rbac::role(&self.election, namespace));
                Ok((self.preflight == Preflight::Fail).then_some(FORBIDDEN))
            }
            Err(error) => {
                eprintln!("tenure: cannot check permissions: {error:#}");
                Ok(None)
            }
        }
    }

    /// The old sidecar was its host name; programs compare that with their own.
    fn identity(&self, compat: bool) -> Option<String> {
        let pod = || {
            std::env::var("POD_NAME")
                .ok()
                .filter(|name| !name.is_empty())
        };
        let host = || {
            rustix::system::uname()
                .nodename()
                .to_string_lossy()
                .into_owned()
        };
        self.election
            .id
            .clone()
            .or_else(|| compat.then(|| pod().unwrap_or_else(host)))
    }

    fn site(&self, view: View, registry: Registry, compat: bool) -> Result<Site> {
        let token = self.step_down_token_file.as_ref().map(|path| {
            let token = std::fs::read_to_string(path);
            token.with_context(|| format!("cannot read {}", path.display()))
        });
        let token = token.transpose()?.map(|token| token.trim().into());
        let registry = Mutex::new(registry);
        let metrics = Arc::new(move || {
            let registry = registry.lock().unwrap_or_else(PoisonError::into_inner);
            let mut text = String::new();
            match prometheus_client::encoding::text::encode(&mut text, &registry) {
                Ok(()) => text,
                Err(_) => String::new(),
            }
        });
        Ok(Site {
            view,
            metrics,
            compat,
            token,
        })
    }
}

/// The election loop.
struct Sidecar {
    candidate: Candidate,
    signals: Signals,
    view: View,
    log: EventLog,
    hooks: Hooks,
    /// Print `X is the leader` as the old sidecar did; scripts look for it.
    print: bool,
}

impl Sidecar {
    async fn attend(mut self) -> Result<u8> {
        let mut term: Option<Term> = None;
        loop {
            tokio::select! {
                event = self.candidate.next() => match event {
                    Some(event) => self.heard(event, &mut term).await,
                    None => return Ok(1),
                },
                asked = self.signals.next() => match asked {
                    Asked::End(_) => break,
                    Asked::Forward(_) | Asked::Child => {}
                },
            }
        }
        // This puts the guard out. Then the loss is told, and only then is the lease given back.
        self.candidate.shutdown();
        let finished = async {
            while let Some(event) = self.candidate.next().await {
                match event {
                    Event::Finished => break,
                    event => self.heard(event, &mut term).await,
                }
            }
        };
        tokio::select! {
            () = finished => {}
            () = tokio::time::sleep(RELEASE) => {}
        }
        Ok(0)
    }

    async fn heard(&mut self, event: Event, term: &mut Option<Term>) {
        match event {
            Event::Lead(won) => {
                let identity = self.view.handle.identity().to_owned();
                self.see(identity, Some(won.transitions()));
                self.log
                    .write(What::Acquired, &Change::of(&self.view.handle, Some(&won)));
                self.hooks.tell(Notice::Elected, &self.view).await;
                *term = Some(won);
            }
            Event::Stop(_) => {
                if let Some(term) = term.take() {
                    self.lost(term).await;
                }
            }
            Event::NewLeader(leader) => {
                if leader != self.view.handle.identity() {
                    self.see(leader, None);
                    self.log
                        .write(What::Observed, &Change::of(&self.view.handle, None));
                }
                self.hooks.tell(Notice::Changed, &self.view).await;
            }
            Event::Released => self
                .log
                .write(What::Released, &Change::of(&self.view.handle, None)),
            _ => {}
        }
    }

    /// The term is over: say so, run the hook, and only then let go of it.
    async fn lost(&mut self, term: Term) {
        let mut lost = Change::of(&self.view.handle, Some(&term));
        lost.until = Some(guard_end(&term));
        self.view.seen.send_modify(|seen| seen.leader.clear());
        self.log.write(What::Lost, &lost);
        self.hooks.tell(Notice::Lost, &self.view).await;
        drop(term);
    }

    fn see(&self, leader: String, term: Option<u32>) {
        if self.print {
            // A reader that has gone away does not end an election.
            let _ = writeln!(std::io::stdout(), "{leader} is the leader");
        }
        let observed_at = Some(Timestamp::now());
        self.view.seen.send_replace(Seen {
            leader,
            term,
            observed_at,
        });
    }
}

fn refuse(code: u8, why: &dyn std::fmt::Display) -> Result<u8> {
    eprintln!("tenure: {why}");
    Ok(code)
}
