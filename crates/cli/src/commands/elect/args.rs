//! The flags of `tenure elect`. Every flag has an environment variable `TENURE_<NAME>`.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};

use super::http::Address;
use super::outlets::hooks::ProcessSignal;
use super::outlets::{gate, label, webhook};
use crate::announce::Announce;
use crate::election::Election;
use crate::klog::Klog;
use crate::values::{duration, name};

/// Campaign in an election and publish the leader (sidecar)
///
/// Exit codes: 0 asked to end; 2 wrong command line; 3 invalid durations or names, or --mode=for-life without proof of
/// its own pod; 4 missing permissions with --preflight=fail; 5 cannot listen on an address; 6 no response of the API
/// server within --startup-timeout.
// `--election` has a placeholder as its default, which the argument ELECTION replaces.
// The old image passed `--id=$(hostname)` before the arguments of its users, so the last value counts.
#[derive(Args, Debug)]
#[command(
    args_override_self = true,
    mut_arg("election", |arg| arg.required(false).default_value("?").hide_default_value(true).required_unless_present("name"))
)]
pub(crate) struct Elect {
    /// Name of the election
    #[arg(value_name = "ELECTION", value_parser = name, overrides_with = "election")]
    name: Option<String>,
    #[command(flatten)]
    pub(super) election: Election,
    #[command(flatten)]
    pub(super) announce: Announce,
    /// Use the service account of the pod, even if there is a kubeconfig
    #[arg(long, value_name = "BOOL", env = "TENURE_USE_CLUSTER_CREDENTIALS", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub(super) use_cluster_credentials: Option<bool>,
    /// Behave like the old sidecar [default: if called like it]
    ///
    /// It is called like the old one if the program has the name `leader-elector`, or if the flags come first.
    /// Answers every path and method, uses the host name as identity, and accepts durations without a margin. `strict`
    /// also defaults to the namespace `default` and `--ttl=10s`.
    #[arg(long, value_enum, value_name = "WHAT", env = "TENURE_COMPAT", num_args = 0..=1, default_missing_value = "true")]
    pub(super) compat: Option<Compat>,
    /// Time for which a leader leads: its lease, or the life of its pod
    ///
    /// For life, the pod named by POD_NAME (by default the host name) in POD_NAMESPACE must have the uid POD_UID.
    #[arg(
        long,
        value_enum,
        value_name = "MODE",
        env = "TENURE_MODE",
        default_value_t
    )]
    pub(super) mode: Mode,
    /// Names in responses of `/`
    ///
    /// Short names omit the random part of an identity.
    #[arg(
        long,
        value_enum,
        value_name = "FORMAT",
        env = "TENURE_NAME_FORMAT",
        default_value_t
    )]
    pub(super) name_format: NameFormat,
    /// Release the lease when asked to end; never with --mode=for-life
    #[arg(long, value_name = "BOOL", env = "TENURE_RELEASE_ON_EXIT", num_args = 0..=1, default_value_t = true, default_missing_value = "true", action = clap::ArgAction::Set)]
    pub(super) release_on_exit: bool,
    /// Delay of the release, for other programs in the pod [default: 0s]
    ///
    /// It is at most the remaining lease.
    #[arg(long, value_name = "D", env = "TENURE_RELEASE_DELAY", value_parser = duration)]
    pub(super) release_delay: Option<Duration>,
    /// When asked to end, keep leading until this process has ended
    ///
    /// For other programs in the pod. A second signal exits immediately.
    #[arg(long, value_name = "PID", env = "TENURE_WAIT_PID")]
    pub(super) wait_pid: Option<i32>,
    /// Exit with code 6 if the lock was not read within this time [default: no limit]
    #[arg(long, value_name = "D", env = "TENURE_STARTUP_TIMEOUT", value_parser = duration)]
    pub(super) startup_timeout: Option<Duration>,
    /// Only observe: never campaign, write nothing
    #[arg(long, env = "TENURE_DRY_RUN")]
    pub(super) dry_run: bool,
    /// Check the permissions before campaigning
    #[arg(
        long,
        value_enum,
        value_name = "ACTION",
        default_value_t,
        env = "TENURE_PREFLIGHT"
    )]
    pub(super) preflight: Preflight,
    /// Print the Role that this command line needs, and exit
    #[arg(long)]
    pub(super) print_rbac: bool,
    /// Print one line per change on standard output
    #[arg(long, value_enum, value_name = "FORMAT", env = "TENURE_EVENTS")]
    pub(super) events: Option<EventFormat>,
    #[command(flatten)]
    pub(super) listen: Listen,
    #[command(flatten)]
    pub(super) tell: Tell,
    #[command(flatten)]
    pub(super) route: Route,
    #[command(flatten)]
    pub(super) health: Health,
    #[command(flatten)]
    pub(super) klog: Klog,
    /// glog's `-v=4`; here it is `-v`.
    #[arg(id = "klog_v", long = "v", hide = true, value_name = "LEVEL")]
    pub(super) glog_level: Option<String>,
    #[arg(long, hide = true)]
    pub(super) vmodule: Option<String>,
}

/// Addresses to listen on.
#[derive(Args, Debug)]
pub(super) struct Listen {
    /// Serve HTTP: host:port, :port or unix:/path [default: off]
    #[arg(long, value_name = "ADDR", env = "TENURE_HTTP")]
    pub(super) http: Option<Address>,
    /// Permissions of unix sockets, in octal
    #[arg(long, value_name = "MODE", env = "TENURE_HTTP_SOCKET_MODE", default_value = "600", value_parser = crate::values::mode)]
    pub(super) http_socket_mode: u32,
    /// Serve /livez, /readyz and /healthz here [default: on --http]
    #[arg(long, value_name = "ADDR", env = "TENURE_PROBE_ADDRESS")]
    pub(super) probe_address: Option<Address>,
    /// Serve /metrics here [default: on --http]
    #[arg(long, value_name = "ADDR", env = "TENURE_METRICS_ADDRESS")]
    pub(super) metrics_address: Option<Address>,
    /// Accept this name in the Host header; can be repeated
    ///
    /// It applies to requests to a loopback address. IP addresses and localhost are always accepted.
    #[arg(
        long,
        value_name = "NAME",
        env = "TENURE_ALLOWED_HOST",
        value_delimiter = ','
    )]
    pub(super) allowed_host: Vec<String>,
    /// File with the bearer token for `POST /v1/step-down`
    ///
    /// Requests over a unix socket need no token.
    #[arg(long, value_name = "FILE", env = "TENURE_STEP_DOWN_TOKEN_FILE")]
    pub(super) step_down_token_file: Option<PathBuf>,
}

/// Receivers of changes.
#[derive(Args, Debug)]
pub(super) struct Tell {
    /// Command to run when elected, at most 10s
    ///
    /// It gets the variables of `tenure run`.
    #[arg(long, value_name = "CMD", env = "TENURE_ON_ELECTED")]
    pub(super) on_elected: Option<String>,
    /// Command to run when no longer leading, at most 10s
    ///
    /// It runs before the lease is released.
    #[arg(long, value_name = "CMD", env = "TENURE_ON_LOST")]
    pub(super) on_lost: Option<String>,
    /// Command to run at every change of leader
    #[arg(long, value_name = "CMD", env = "TENURE_ON_CHANGE")]
    pub(super) on_change: Option<String>,
    /// URL to post every change to
    #[arg(long, value_name = "URL", env = "TENURE_WEBHOOK")]
    pub(super) webhook: Option<webhook::Target>,
    /// Signal processes of this name when elected and when leadership is lost
    #[arg(long, value_name = "NAME:SIGNAL", env = "TENURE_SIGNAL_PROCESS")]
    pub(super) signal_process: Option<ProcessSignal>,
    /// Keep the current state in this file
    #[arg(long, value_name = "FILE", env = "TENURE_STATE_FILE")]
    pub(super) state_file: Option<PathBuf>,
}

/// How traffic is routed to the leader.
#[derive(Args, Debug)]
pub(super) struct Route {
    /// Label the leader's pod, for the selector of a Service
    ///
    /// POD_NAME and POD_NAMESPACE name the pod.
    #[arg(long, value_name = "KEY", env = "TENURE_LABEL", num_args = 0..=1, require_equals = true, default_missing_value = label::DEFAULT_KEY, value_parser = name)]
    pub(super) label: Option<String>,
    /// Label values for the leader and for the others
    #[arg(long, value_name = "YES/NO", env = "TENURE_LABEL_VALUES", default_value = "true/false", value_parser = pair)]
    pub(super) label_values: (String, String),
    /// Step down if the label cannot be set
    #[arg(long, env = "TENURE_LABEL_REQUIRED", requires = "label")]
    pub(super) label_required: bool,
    /// Set the selector of this Service to the leader's pod
    #[arg(long, value_name = "SERVICE", env = "TENURE_SERVICE", value_parser = name)]
    pub(super) service: Option<String>,
    /// Set the EndpointSlice of this Service to the leader's address (POD_IP)
    ///
    /// The Service has no selector.
    #[arg(long, value_name = "SERVICE", env = "TENURE_ENDPOINTSLICE", value_parser = name)]
    pub(super) endpointslice: Option<String>,
    /// Set this condition of the pod while it leads, for its readiness gates
    #[arg(long, value_name = "TYPE", env = "TENURE_READINESS_GATE", num_args = 0..=1, require_equals = true, default_missing_value = gate::DEFAULT_TYPE, value_parser = name)]
    pub(super) readiness_gate: Option<String>,
}

/// Health checks of this candidate.
#[derive(Args, Clone, Debug)]
pub(super) struct Health {
    /// Campaign only while this URL returns 2xx
    #[arg(long, value_name = "URL", env = "TENURE_HEALTH_URL")]
    pub(super) health_url: Option<webhook::Target>,
    /// Campaign only while this file exists
    #[arg(long, value_name = "FILE", env = "TENURE_HEALTH_FILE")]
    pub(super) health_file: Option<PathBuf>,
    /// Campaign only if that file was written within this time
    #[arg(long, value_name = "D", env = "TENURE_HEALTH_FILE_MAX_AGE", value_parser = duration, requires = "health_file")]
    pub(super) health_file_max_age: Option<Duration>,
    /// Campaign only while this command succeeds
    #[arg(long, value_name = "CMD", env = "TENURE_HEALTH_CMD")]
    pub(super) health_cmd: Option<String>,
    /// Do not campaign before this pod is Ready for the first time
    ///
    /// With --readiness-gate, the containers of the pod must be ready instead.
    #[arg(long, env = "TENURE_WAIT_READY")]
    pub(super) wait_ready: bool,
    /// Interval and timeout of checks
    #[arg(long, value_name = "D", env = "TENURE_HEALTH_INTERVAL", default_value = "5s", value_parser = duration)]
    pub(super) health_interval: Duration,
    /// Number of consecutive failures after which a leader steps down
    #[arg(long, value_name = "N", env = "TENURE_HEALTH_FAILURES", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    pub(super) health_failures: u32,
    /// Time without campaigning after that step-down
    #[arg(long, value_name = "D", env = "TENURE_HEALTH_BACKOFF", default_value = "30s", value_parser = duration)]
    pub(super) health_backoff: Duration,
    /// Campaign although unhealthy if nobody has led for this long
    #[arg(long, value_name = "D", env = "TENURE_DEADLOCK_GRACE", default_value = "5m", value_parser = duration)]
    pub(super) deadlock_grace: Duration,
}

impl Elect {
    /// Takes over the name of the election from the argument.
    pub(crate) fn apply_name(&mut self) {
        if let Some(name) = self.name.take() {
            self.election.election = name;
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum EventFormat {
    Json,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(super) enum Preflight {
    /// Do not check
    Off,
    /// Print missing permissions and continue
    #[default]
    Warn,
    /// Exit with code 4 if a permission is missing
    Fail,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Compat {
    /// Behave like the old sidecar
    #[value(name = "true")]
    On,
    /// Behave like the new sidecar
    #[value(name = "false")]
    Off,
    /// Behave like the old sidecar in every respect
    Strict,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(super) enum Mode {
    /// Lead as long as the lease is renewed
    #[default]
    Lease,
    /// Lead as long as the pod exists; in doubt, nobody leads
    ForLife,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(super) enum NameFormat {
    /// Print names without the random part
    #[default]
    Short,
    /// The whole identity
    Full,
}

fn pair(text: &str) -> Result<(String, String), String> {
    match text.split_once('/') {
        Some((yes, no)) if !yes.is_empty() && yes != no => Ok((yes.to_owned(), no.to_owned())),
        _ => Err("expected two different values: YES/NO, such as leader/standby".to_owned()),
    }
}
