//! `tenure elect`: the sidecar. A drop-in replacement for `leader-elector:0.5`, without its bugs.

mod args;
pub(crate) mod elsewhere;
mod health;
mod http;
mod life;
mod needs;
mod outlets;
mod sidecar;
mod view;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use ::http::HeaderMap;
use anyhow::{Context, Result};
use kube::Client;
use prometheus_client::metrics::gauge::Gauge;
use tenure::metrics::Registry;
use tenure::{Elector, Metrics, Overrun};
use tenure_exposition::expose;
use tenure_host::seats::Seats;
use tenure_lock::duration::format as span;
use tokio::sync::watch;

use crate::announce::url_of;
use crate::api;
use crate::connect::Connect;
use crate::death::Work;
use crate::election::{self, Connected, pod_name, pod_namespace, variable};
use crate::events::EventLog;
use crate::observed_lock::Gate;
use crate::output;
use crate::page::{Door, Page};
use crate::rbac;
use crate::say::Voice;
use crate::signals::Signals;
use crate::waiting::Limit;
pub(crate) use args::Elect;
use args::{Compat, EventFormat, Mode, NameFormat, Preflight};
use health::{HealthGate, ReadyGate};
use http::{Address, Endpoints, Site};
use life::{Lease, OwnPod, Undertaker};
use outlets::Outlets;
use outlets::hooks::Hooks;
use sidecar::Sidecar;
use view::{Facts, Seen, View};

/// The `--ttl` of the old sidecar.
const OLD_TTL: Duration = Duration::from_secs(10);

/// Time limit of all preflight checks together.
const LONGEST_PREFLIGHT: Duration = Duration::from_secs(10);

const USAGE: u8 = 2;
const CONFIGURATION: u8 = 3;
const FORBIDDEN: u8 = 4;
const CANNOT_LISTEN: u8 = 5;
const UNREACHABLE: u8 = 6;

impl Elect {
    pub(crate) async fn run(mut self, connect: &Connect, called_as_old: bool) -> Result<u8> {
        let compat = self
            .compat
            .map_or(called_as_old, |compat| compat != Compat::Off);
        let short_names = self.name_format == NameFormat::Short && self.election.id.is_none();
        let life = match self.mode {
            Mode::Lease => None,
            // The printed Role is for any pod.
            Mode::ForLife if self.print_rbac => None,
            Mode::ForLife => {
                let own = match OwnPod::from_environment() {
                    Ok(own) => own,
                    Err(why) => return refuse(CONFIGURATION, &why),
                };
                if let Err(why) = life::prepare(&mut self.election, &own) {
                    return refuse(USAGE, &why);
                }
                Some(own)
            }
        };
        self.klog.warn();
        if self.glog_level.is_some() || self.vmodule.is_some() {
            tracing::warn!("--v and --vmodule have no effect: use -v or TENURE_LOG");
        }
        if compat {
            // The old sidecar used its host name as identity, and programs compare that with their own.
            self.election.id.get_or_insert_with(pod_name);
        }
        if self.compat == Some(Compat::Strict) {
            let election = &mut self.election;
            let namespace = &mut election.election_namespace;
            namespace.get_or_insert_with(|| "default".to_owned());
            if !election.has_durations() {
                election.ttl = Some(OLD_TTL);
            }
        }
        // Durations that the old sidecar accepted are accepted with a warning. This does not make the guard longer.
        self.election.client_go_compat = compat;
        if self.print_rbac {
            print!("{}", self.roles("default"));
            return Ok(0);
        }
        if self.route.endpointslice.is_some() && variable("POD_IP").is_none() {
            let why = "--endpointslice needs the pod's address: set POD_IP from status.podIP";
            return refuse(USAGE, &why);
        }
        if let Err(error) = self.election.check() {
            return refuse(CONFIGURATION, &api::plain(&error));
        }
        let mut connect = connect.clone();
        connect.in_cluster |= self.use_cluster_credentials == Some(true);
        let mut signals = Signals::listen()?;
        let startup = Limit::begin(self.startup_timeout);
        let Some(connected) = startup.of(election::connect(&connect, &mut signals)).await else {
            let limit = span(self.startup_timeout.unwrap_or_default());
            let why =
                format!("cannot find an API server and get credentials for it within {limit}");
            return refuse(UNREACHABLE, &why);
        };
        let Ok(Connected {
            client, namespace, ..
        }) = connected?
        else {
            return Ok(0);
        };
        let namespace = self.election.namespace(&namespace);
        let gate = Gate::open();
        let metrics = Metrics::new();
        let labels = life.as_ref().map(OwnPod::labels).unwrap_or_default();
        let entered = self.elector(&client, &namespace, &labels, &gate, &metrics);
        let (elector, notes) = match entered {
            Ok(entered) => entered,
            Err(error) => return refuse(CONFIGURATION, &api::plain(&error)),
        };
        let view = View {
            facts: Arc::new(Facts {
                election: self.election.election.clone(),
                namespace: namespace.clone(),
                lock: self.election.lock.as_str(),
                lease_duration_seconds: elector.timing().lease_seconds(),
                short_names,
            }),
            handle: elector.handle(),
            notes,
            seen: watch::Sender::new(Seen::default()),
        };
        let mut registry = Registry::default();
        metrics.register(&mut registry);
        let lease = Lease {
            client: client.clone(),
            namespace: namespace.clone(),
            name: self.election.election.clone(),
        };
        let undertaker = life.as_ref().map(|_| {
            let undertaker = Undertaker {
                client: client.clone(),
                view: view.clone(),
                lease: lease.clone(),
                overdue: Gauge::default(),
            };
            registry.register(
                "tenure_leader_pod_overdue",
                "1 if the pod of the leader for life still exists after its time to terminate, or was never seen; 0 otherwise",
                undertaker.overdue.clone(),
            );
            undertaker
        });
        if let Err(error) = self.serve(&client, &view, registry, compat).await {
            return refuse(CANNOT_LISTEN, &api::plain(&error));
        }
        // From here on requests are answered, even while the API server does not respond.
        let checked = tokio::select! {
            checked = self.check_access(&client, &namespace, startup) => checked,
            _ = signals.end() => return Ok(0),
        };
        if let Some(code) = checked {
            return Ok(code);
        }
        if let Some(own) = life.as_ref().filter(|_| !self.dry_run) {
            let proven = tokio::select! {
                proven = startup.of(own.prove(&client)) => proven,
                _ = signals.end() => return Ok(0),
            };
            match proven {
                Some(Ok(())) => {}
                Some(Err(why)) => return refuse(CONFIGURATION, &why),
                None => {
                    let limit = span(self.startup_timeout.unwrap_or_default());
                    let why = format!("cannot read this pod within {limit}");
                    return refuse(UNREACHABLE, &why);
                }
            }
        }
        let voice = Voice::new(&namespace, &self.election.election);
        self.say_start(&elector, &voice);
        let log = match self.events {
            Some(EventFormat::Json) => EventLog::stdout(&self.election.election),
            None => EventLog::open(None, &self.election.election)?,
        };
        let mut outlets = self.outlets(&client, &namespace, &view);
        if let (Some(own), Some(undertaker), false) = (life, undertaker, self.dry_run) {
            let handle = view.handle.clone();
            outlets.add(|queue| lease.keep_owned(own, handle, queue));
            tokio::spawn(undertaker.serve());
        }
        if self.preflight != Preflight::Off {
            let (kind, name) = (self.election.lock, self.election.election.clone());
            let place = namespace.clone();
            let program = &elsewhere::SIDECAR;
            tokio::spawn(elsewhere::warn(client.clone(), program, kind, place, name));
        }
        if self.dry_run {
            gate.close(Some("this is a dry run".to_owned()));
        } else if self.health.any() {
            let gate = ReadyGate::new(gate, view.handle.clone());
            gate.close(Some("the first health check has not finished".to_owned()));
            let gate = HealthGate {
                checks: self.health.clone(),
                client,
                pod: format!(
                    "/api/v1/namespaces/{}/pods/{}",
                    self.pod_namespace(&namespace),
                    pod_name()
                ),
                // The candidate's own readiness gate cannot be the condition that it waits for.
                ready: match self.route.readiness_gate {
                    Some(_) => "ContainersReady",
                    None => "Ready",
                },
                handle: view.handle.clone(),
                notes: view.notes.clone(),
                gate,
                voice: voice.clone(),
            };
            tokio::spawn(gate.serve());
        }
        Sidecar {
            voice,
            lease: elector.timing().lease(),
            candidate: elector.start(),
            signals,
            view,
            log,
            outlets,
            print: compat && self.events.is_none(),
            dry_run: self.dry_run,
            startup,
            linger: sidecar::Linger {
                delay: self.release_delay,
                pid: self.wait_pid,
            },
            ended: None,
        }
        .attend()
        .await
    }

    fn elector(
        &self,
        client: &Client,
        namespace: &str,
        labels: &BTreeMap<String, String>,
        gate: &Gate,
        metrics: &Metrics,
    ) -> Result<(Elector, crate::observed_lock::Notes)> {
        let place = (namespace, self.election.election.as_str());
        let entry = self
            .election
            .enter(client, place, labels, gate, Work::OfThisProcess)?;
        let for_life = self.mode == Mode::ForLife;
        let builder = match self.dry_run {
            true => entry.builder,
            false => self.announce.apply(entry.builder, self.address()),
        };
        let elector = builder
            .for_life(for_life)
            .release_on_cancel(self.release_on_exit || for_life)
            // The guarded work runs in other processes, so a slow hook is not a reason to end this process.
            .on_overrun(Overrun::Log)
            .metrics(metrics)
            .events(!self.dry_run)
            .build()?;
        Ok((elector, entry.notes))
    }

    /// Returns the address at which others reach the HTTP endpoints, if it is known.
    fn address(&self) -> Option<String> {
        match &self.listen.http {
            Some(Address::Tcp(address)) => url_of(address),
            Some(Address::Unix(_)) | None => None,
        }
    }

    /// Prints that this candidate campaigns, or observes only.
    fn say_start(&self, elector: &Elector, voice: &Voice) {
        let timing = elector.timing();
        if self.dry_run {
            voice.observing();
        } else {
            voice.campaigning(elector.handle().identity(), timing, None);
        }
        tracing::debug!(
            lock = self.election.lock.as_str(),
            acts_without_renewal = %span(timing.guard()),
            time_to_stop = %span(timing.grace()),
            tolerated_rate_error = format!("{:.1} %", timing.tolerated_rate_error() * 100.0),
            dry_run = self.dry_run,
            "derived durations"
        );
    }

    fn pod_namespace(&self, lock: &str) -> String {
        pod_namespace().unwrap_or_else(|| lock.to_owned())
    }

    fn roles(&self, context: &str) -> String {
        let namespace = self.election.namespace(context);
        let needs = self.needs(&namespace, &self.pod_namespace(&namespace));
        rbac::roles(&self.election.election, &needs)
    }

    /// Checks every required permission. Returns an exit code if one is missing and `--preflight=fail` is set.
    async fn check_access(&self, client: &Client, namespace: &str, startup: Limit) -> Option<u8> {
        let fail = match self.preflight {
            Preflight::Off => return None,
            Preflight::Warn => false,
            Preflight::Fail => true,
        };
        // A preflight that only warns must leave time for the election itself.
        let left = startup
            .left()
            .map(|left| if fail { left } else { left / 2 });
        let limit = left.map_or(LONGEST_PREFLIGHT, |left| left.min(LONGEST_PREFLIGHT));
        let shown = output::span(limit.as_secs_f64());
        let needs = self.needs(namespace, &self.pod_namespace(namespace));
        // A server without a response differs from one that rejects. The election keeps retrying, and so does a
        // preflight that must not fail.
        match tokio::time::timeout(limit, rbac::missing(client, &needs)).await {
            Ok(Ok(missing)) if missing.is_empty() => None,
            Ok(Ok(missing)) => {
                rbac::explain(client, &self.election.election, &missing, &needs).await;
                fail.then_some(FORBIDDEN)
            }
            Ok(Err(error)) => {
                let why = api::plain(&error);
                eprintln!("tenure: cannot check permissions: {why}");
                fail.then_some(UNREACHABLE)
            }
            Err(_) => {
                eprintln!("tenure: cannot check permissions: no answer within {shown}");
                fail.then_some(UNREACHABLE)
            }
        }
    }

    /// Listens on every given address.
    async fn serve(
        &self,
        client: &Client,
        view: &View,
        registry: Registry,
        compat: bool,
    ) -> Result<()> {
        let listen = &self.listen;
        let registry = Mutex::new(registry);
        let metrics = Arc::new(move |headers: &HeaderMap| {
            let registry = registry.lock().unwrap_or_else(PoisonError::into_inner);
            expose(&registry, headers)
        });
        let token = listen.step_down_token_file.as_ref().map(|path| {
            let token = tenure_host::files::read_secret(path);
            token.with_context(|| format!("cannot use {}", path.display()))
        });
        let token: Option<Arc<str>> = token.transpose()?.map(|token| token.trim().into());
        let page = Page::new(Door::Sidecar {
            client: client.clone(),
            namespace: view.facts.namespace.clone(),
            name: self.election.election.clone(),
            kind: self.election.lock,
            token: token.clone(),
            announced: view.handle.membership().is_some(),
        });
        let site = Site {
            view: view.clone(),
            metrics,
            endpoints: Endpoints {
                leader: true,
                probes: listen.probe_address.is_none(),
                metrics: listen.metrics_address.is_none(),
            },
            compat,
            page,
            token,
            names: listen.allowed_host.as_slice().into(),
            hosts: None,
            seats: Seats::new(),
        };
        let only = |probes, metrics| Endpoints {
            leader: false,
            probes,
            metrics,
        };
        let (probe, metrics) = (&listen.probe_address, &listen.metrics_address);
        let mut addresses: Vec<(&Address, Endpoints)> = Vec::new();
        addresses.extend(listen.http.iter().map(|address| (address, site.endpoints)));
        if probe == metrics {
            addresses.extend(probe.iter().map(|address| (address, only(true, true))));
        } else {
            addresses.extend(probe.iter().map(|address| (address, only(true, false))));
            addresses.extend(metrics.iter().map(|address| (address, only(false, true))));
        }
        for (address, endpoints) in addresses {
            let site = site.clone();
            let mode = listen.http_socket_mode;
            let server = http::listen(address, mode, Site { endpoints, ..site }).await?;
            tokio::spawn(server);
        }
        Ok(())
    }

    /// Returns the outlets for changes; none for a dry run.
    fn outlets(&self, client: &Client, namespace: &str, view: &View) -> Outlets {
        let mut outlets = Outlets::default();
        if self.dry_run {
            return outlets;
        }
        let (tell, route) = (&self.tell, &self.route);
        let hooks = Hooks {
            elected: tell.on_elected.clone(),
            lost: tell.on_lost.clone(),
            changed: tell.on_change.clone(),
            signal: tell.signal_process.clone(),
            env: self.places(),
        };
        let pod_namespace = self.pod_namespace(namespace);
        if let Some(key) = &route.label {
            let label = outlets::label::Label {
                client: client.clone(),
                handle: view.handle.clone(),
                namespace: pod_namespace.clone(),
                pod: pod_name(),
                key: key.clone(),
                values: route.label_values.clone(),
                required: route.label_required,
            };
            outlets.add(|queue| label.serve(queue));
        }
        if let Some(condition) = &route.readiness_gate {
            let gate = outlets::gate::Gate {
                client: client.clone(),
                handle: view.handle.clone(),
                namespace: pod_namespace.clone(),
                pod: pod_name(),
                condition: condition.clone(),
            };
            outlets.add(|queue| gate.serve(queue));
        }
        if let Some(name) = &route.service {
            let service = outlets::service::Service {
                client: client.clone(),
                handle: view.handle.clone(),
                namespace: pod_namespace.clone(),
                pod: pod_name(),
                name: name.clone(),
            };
            outlets.add(|queue| service.serve(queue));
        }
        if let (Some(service), Some(address)) = (&route.endpointslice, variable("POD_IP")) {
            let slice = outlets::slice::Slice {
                client: client.clone(),
                handle: view.handle.clone(),
                namespace: pod_namespace,
                service: service.clone(),
                pod: pod_name(),
                address,
                node: variable("NODE_NAME"),
            };
            outlets.add(|queue| slice.serve(queue));
        }
        if let Some(path) = tell.state_file.clone() {
            outlets.add(|queue| outlets::state_file::serve(path, queue));
        }
        if hooks.any() {
            outlets.add(|queue| hooks.serve(queue));
        }
        if let Some(target) = tell.webhook.clone() {
            outlets.add(|queue| target.serve(queue));
        }
        outlets
    }

    /// Returns the places of further information for hooks: the state file and the HTTP endpoints.
    fn places(&self) -> Vec<(String, String)> {
        let mut places = Vec::new();
        if let Some(path) = &self.tell.state_file {
            places.push(("TENURE_STATE_FILE".to_owned(), path.display().to_string()));
        }
        if let Some(address) = &self.listen.http {
            places.push(("TENURE_URL".to_owned(), address.url()));
        }
        places
    }
}

fn refuse(code: u8, why: &dyn std::fmt::Display) -> Result<u8> {
    eprintln!("tenure: {why}");
    Ok(code)
}
