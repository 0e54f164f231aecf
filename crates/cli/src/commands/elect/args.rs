//! The flags of `tenure elect`. Every flag has an environment variable `TENURE_<NAME>`.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};

use super::http::Address;
use super::outlets::hooks::ProcessSignal;
use super::outlets::{gate, label, webhook};
use crate::election::Election;
use crate::klog::Klog;
use crate::values::{duration, name};

/// Campaign in an election and publish the leader (sidecar)
///
/// Exit codes: 0 asked to end; 2 wrong command line; 3 invalid durations or names, or --mode=for-life without proof of
/// its own pod; 4 missing permissions with --preflight=fail; 5 cannot listen on an address; 6 no response of the API
/// server within --startup-timeout.
// The old image passed `--id=$(hostname)` before the arguments of its users, so the last value counts.
#[derive(Args, Debug)]
#[command(args_override_self = true)]
pub(crate) struct Elect {
    #[command(flatten)]
    pub(super) election: Election,
    /// Use the service account of the pod, even if there is a kubeconfig
    #[arg(long, value_name = "BOOL", env = "TENURE_USE_CLUSTER_CREDENTIALS", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub(super) use_cluster_credentials: Option<bool>,
    /// Behave like the old sidecar: answer every path and method, use the host name as identity, accept durations
    /// without a margin; `strict` also defaults to the namespace `default` and `--ttl=10s`. Enabled when called as
    /// `leader-elector` or with flags first
    #[arg(long, value_enum, value_name = "WHAT", env = "TENURE_COMPAT", num_args = 0..=1, default_missing_value = "true")]
    pub(super) compat: Option<Compat>,
    /// How long a leader leads: until its lease expires, or as long as its pod exists. For life, the pod named by
    /// POD_NAME (by default the host name) in POD_NAMESPACE must have the uid POD_UID
    #[arg(long, value_enum, env = "TENURE_MODE", default_value_t)]
    pub(super) mode: Mode,
    /// Names in responses of `/`; short names omit the random part of an identity
    #[arg(long, value_enum, env = "TENURE_NAME_FORMAT", default_value_t)]
    pub(super) name_format: NameFormat,
    /// Release the lease when asked to end; never with --mode=for-life
    #[arg(long, value_name = "BOOL", env = "TENURE_RELEASE_ON_EXIT", num_args = 0..=1, default_value_t = true, default_missing_value = "true", action = clap::ArgAction::Set)]
    pub(super) release_on_exit: bool,
    /// Delay the release by D, at most the remaining lease, for other programs in the pod
    #[arg(long, value_name = "D", env = "TENURE_RELEASE_DELAY", value_parser = duration)]
    pub(super) release_delay: Option<Duration>,
    /// When asked to end, keep leading until this process has ended, for other programs in the pod; a second signal
    /// exits immediately
    #[arg(long, value_name = "PID", env = "TENURE_WAIT_PID")]
    pub(super) wait_pid: Option<i32>,
    /// Exit with code 6 if the lock was not read within this time [default: no limit]
    #[arg(long, value_name = "D", env = "TENURE_STARTUP_TIMEOUT", value_parser = duration)]
    pub(super) startup_timeout: Option<Duration>,
    /// Only observe: never campaign, write nothing
    #[arg(long, env = "TENURE_DRY_RUN")]
    pub(super) dry_run: bool,
    /// Check the permissions before campaigning
    #[arg(long, value_enum, default_value_t, env = "TENURE_PREFLIGHT")]
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
#[command(next_help_heading = "HTTP")]
pub(super) struct Listen {
    /// Serve HTTP on this address: host:port, :port or unix:/path
    #[arg(long, value_name = "ADDR", env = "TENURE_HTTP")]
    pub(super) http: Option<Address>,
    /// Permissions of unix sockets, in octal
    #[arg(long, value_name = "MODE", env = "TENURE_HTTP_SOCKET_MODE", default_value = "600", value_parser = crate::values::mode)]
    pub(super) http_socket_mode: u32,
    /// Answer /livez, /readyz and /healthz here and not on --http
    #[arg(long, value_name = "ADDR", env = "TENURE_PROBE_ADDRESS")]
    pub(super) probe_address: Option<Address>,
    /// Serve /metrics on this address instead of --http
    #[arg(long, value_name = "ADDR", env = "TENURE_METRICS_ADDRESS")]
    pub(super) metrics_address: Option<Address>,
    /// Accept this name in the Host header of requests to a loopback address; may be repeated. IP addresses and localhost are
    /// always accepted
    #[arg(
        long,
        value_name = "NAME",
        env = "TENURE_ALLOWED_HOST",
        value_delimiter = ','
    )]
    pub(super) allowed_host: Vec<String>,
    /// File with the bearer token for `POST /v1/step-down`; a unix socket needs none
    #[arg(long, value_name = "FILE", env = "TENURE_STEP_DOWN_TOKEN_FILE")]
    pub(super) step_down_token_file: Option<PathBuf>,
}

/// Receivers of changes.
#[derive(Args, Debug)]
#[command(next_help_heading = "Notifications")]
pub(super) struct Tell {
    /// Command to run when elected, with the variables of `tenure run`; at most 10 s
    #[arg(long, value_name = "CMD", env = "TENURE_ON_ELECTED")]
    pub(super) on_elected: Option<String>,
    /// Command to run when leadership is lost, before the lease is released; at most 10 s
    #[arg(long, value_name = "CMD", env = "TENURE_ON_LOST")]
    pub(super) on_lost: Option<String>,
    /// Command to run at every change of leader
    #[arg(long, value_name = "CMD", env = "TENURE_ON_CHANGE")]
    pub(super) on_change: Option<String>,
    /// URL to post every change to
    #[arg(long, value_name = "URL", env = "TENURE_WEBHOOK")]
    pub(super) webhook: Option<webhook::Target>,
    /// Signal to send to processes of this name when elected and when leadership is lost
    #[arg(long, value_name = "NAME:SIGNAL", env = "TENURE_SIGNAL_PROCESS")]
    pub(super) signal_process: Option<ProcessSignal>,
    /// File with the current state, updated at every change
    #[arg(long, value_name = "FILE", env = "TENURE_STATE_FILE")]
    pub(super) state_file: Option<PathBuf>,
}

/// How traffic is routed to the leader.
#[derive(Args, Debug)]
#[command(next_help_heading = "Routing (POD_NAME and POD_NAMESPACE say which pod this is)")]
pub(super) struct Route {
    /// Set this label on the leader's pod, for the selector of a Service
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
    /// Set the EndpointSlice of this Service without selector to the leader's address (POD_IP)
    #[arg(long, value_name = "SERVICE", env = "TENURE_ENDPOINTSLICE", value_parser = name)]
    pub(super) endpointslice: Option<String>,
    /// Set this condition of the pod while it leads, for its readiness gates
    #[arg(long, value_name = "TYPE", env = "TENURE_READINESS_GATE", num_args = 0..=1, require_equals = true, default_missing_value = gate::DEFAULT_TYPE, value_parser = name)]
    pub(super) readiness_gate: Option<String>,
}

/// Health checks of this candidate.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Health (campaign only while all checks pass)")]
pub(super) struct Health {
    /// Healthy while this URL returns 2xx
    #[arg(long, value_name = "URL", env = "TENURE_HEALTH_URL")]
    pub(super) health_url: Option<webhook::Target>,
    /// Healthy while this file exists
    #[arg(long, value_name = "FILE", env = "TENURE_HEALTH_FILE")]
    pub(super) health_file: Option<PathBuf>,
    /// Healthy while that file was written within this time
    #[arg(long, value_name = "D", env = "TENURE_HEALTH_FILE_MAX_AGE", value_parser = duration, requires = "health_file")]
    pub(super) health_file_max_age: Option<Duration>,
    /// Healthy while this command succeeds
    #[arg(long, value_name = "CMD", env = "TENURE_HEALTH_CMD")]
    pub(super) health_cmd: Option<String>,
    /// Do not campaign before this pod is Ready for the first time; with --readiness-gate, before its
    /// containers are
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
    /// As long as it renews its lease
    #[default]
    Lease,
    /// As long as its pod exists; prefers no leader over two
    ForLife,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(super) enum NameFormat {
    /// Without the random part
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
