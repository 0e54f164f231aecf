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

/// Take part in an election and tell others who leads (sidecar)
///
/// Exit codes: 0 asked to end; 2 wrong command line; 3 durations or names that cannot work, or
/// --mode=for-life without proof of the own pod; 4 missing
/// permissions with --preflight=fail; 5 an address that cannot be listened on; 6 the API server did
/// not answer within --startup-timeout.
// The old image passed `--id=$(hostname)` before the arguments of its users, so the last value counts.
#[derive(Args, Debug)]
#[command(args_override_self = true)]
pub(crate) struct Elect {
    #[command(flatten)]
    pub(super) election: Election,
    /// Use the service account of the pod, whatever kubeconfig there is
    #[arg(long, value_name = "BOOL", env = "TENURE_USE_CLUSTER_CREDENTIALS", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub(super) use_cluster_credentials: Option<bool>,
    /// Be the old sidecar: answer every path and method, use the host name as identity, take durations
    /// without a margin; `strict` also takes the namespace `default` and `--ttl=10s` where none is given.
    /// On when called as `leader-elector` or with flags first
    #[arg(long, value_enum, value_name = "WHAT", env = "TENURE_COMPAT", num_args = 0..=1, default_missing_value = "true")]
    pub(super) compat: Option<Compat>,
    /// How long a leader leads: until its lease runs out, or as long as its pod lives. For life, the pod
    /// named by POD_NAME (by default the host name) in POD_NAMESPACE must have the uid POD_UID
    #[arg(long, value_enum, env = "TENURE_MODE", default_value_t)]
    pub(super) mode: Mode,
    /// Names in answers of `/`: short without the random part of an identity
    #[arg(long, value_enum, env = "TENURE_NAME_FORMAT", default_value_t)]
    pub(super) name_format: NameFormat,
    /// Give the lease back when asked to end; never with --mode=for-life
    #[arg(long, value_name = "BOOL", env = "TENURE_RELEASE_ON_EXIT", num_args = 0..=1, default_value_t = true, default_missing_value = "true", action = clap::ArgAction::Set)]
    pub(super) release_on_exit: bool,
    /// Wait this long between the end of leadership and giving the lease back, but no longer than it lasts,
    /// for programs beside
    #[arg(long, value_name = "D", env = "TENURE_RELEASE_DELAY", value_parser = duration)]
    pub(super) release_delay: Option<Duration>,
    /// When asked to end, lead on until this process has ended, for programs beside; the second request is
    /// meant
    #[arg(long, value_name = "PID", env = "TENURE_WAIT_PID")]
    pub(super) wait_pid: Option<i32>,
    /// End with exit code 6 if the lock was not seen in this time; by default try for ever
    #[arg(long, value_name = "D", env = "TENURE_STARTUP_TIMEOUT", value_parser = duration)]
    pub(super) startup_timeout: Option<Duration>,
    /// Only look: campaign never, write nothing
    #[arg(long, env = "TENURE_DRY_RUN")]
    pub(super) dry_run: bool,
    /// Check the permissions before campaigning
    #[arg(long, value_enum, default_value_t, env = "TENURE_PREFLIGHT")]
    pub(super) preflight: Preflight,
    /// Print the Role that this command line needs, and end
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

/// Where to answer.
#[derive(Args, Debug)]
#[command(next_help_heading = "HTTP")]
pub(super) struct Listen {
    /// Answer on this address: host:port, :port or unix:/path
    #[arg(long, value_name = "ADDR", env = "TENURE_HTTP")]
    pub(super) http: Option<Address>,
    /// Permissions of unix sockets, in octal
    #[arg(long, value_name = "MODE", env = "TENURE_HTTP_SOCKET_MODE", default_value = "600", value_parser = crate::values::mode)]
    pub(super) http_socket_mode: u32,
    /// Answer /livez, /readyz and /healthz here and not on --http
    #[arg(long, value_name = "ADDR", env = "TENURE_PROBE_ADDRESS")]
    pub(super) probe_address: Option<Address>,
    /// Answer /metrics here and not on --http
    #[arg(long, value_name = "ADDR", env = "TENURE_METRICS_ADDRESS")]
    pub(super) metrics_address: Option<Address>,
    /// The bearer token that `POST /v1/step-down` asks for, in a file; a unix socket needs none
    #[arg(long, value_name = "FILE", env = "TENURE_STEP_DOWN_TOKEN_FILE")]
    pub(super) step_down_token_file: Option<PathBuf>,
}

/// Whom to tell.
#[derive(Args, Debug)]
#[command(next_help_heading = "Notifications")]
pub(super) struct Tell {
    /// Run this when elected, with the variables that `tenure run` gives; at most 10 s
    #[arg(long, value_name = "CMD", env = "TENURE_ON_ELECTED")]
    pub(super) on_elected: Option<String>,
    /// Run this when leadership is lost, before the lease is given back; at most 10 s
    #[arg(long, value_name = "CMD", env = "TENURE_ON_LOST")]
    pub(super) on_lost: Option<String>,
    /// Run this at every change of leader
    #[arg(long, value_name = "CMD", env = "TENURE_ON_CHANGE")]
    pub(super) on_change: Option<String>,
    /// Post every change to this URL
    #[arg(long, value_name = "URL", env = "TENURE_WEBHOOK")]
    pub(super) webhook: Option<webhook::Target>,
    /// Signal processes of this name when elected and when lost
    #[arg(long, value_name = "NAME:SIGNAL", env = "TENURE_SIGNAL_PROCESS")]
    pub(super) signal_process: Option<ProcessSignal>,
    /// Keep the present state in this file
    #[arg(long, value_name = "FILE", env = "TENURE_STATE_FILE")]
    pub(super) state_file: Option<PathBuf>,
}

/// How traffic gets to the leader.
#[derive(Args, Debug)]
#[command(next_help_heading = "Routing (POD_NAME and POD_NAMESPACE say which pod this is)")]
pub(super) struct Route {
    /// Keep this label on the leader's pod, for the selector of a Service
    #[arg(long, value_name = "KEY", env = "TENURE_LABEL", num_args = 0..=1, require_equals = true, default_missing_value = label::DEFAULT_KEY, value_parser = name)]
    pub(super) label: Option<String>,
    /// The values of the label for the leader and for the others
    #[arg(long, value_name = "YES/NO", env = "TENURE_LABEL_VALUES", default_value = "true/false", value_parser = pair)]
    pub(super) label_values: (String, String),
    /// Give leadership up if the label cannot be set
    #[arg(long, env = "TENURE_LABEL_REQUIRED", requires = "label")]
    pub(super) label_required: bool,
    /// Keep the selector of this Service on the leader's pod
    #[arg(long, value_name = "SERVICE", env = "TENURE_SERVICE", value_parser = name)]
    pub(super) service: Option<String>,
    /// Keep the EndpointSlice of this Service without selector on the leader's address (POD_IP)
    #[arg(long, value_name = "SERVICE", env = "TENURE_ENDPOINTSLICE", value_parser = name)]
    pub(super) endpointslice: Option<String>,
    /// Keep this condition of the pod true while it leads, for its readiness gates
    #[arg(long, value_name = "TYPE", env = "TENURE_READINESS_GATE", num_args = 0..=1, require_equals = true, default_missing_value = gate::DEFAULT_TYPE, value_parser = name)]
    pub(super) readiness_gate: Option<String>,
}

/// When this candidate is fit to lead.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Health (campaign only while all checks pass)")]
pub(super) struct Health {
    /// Healthy while this URL answers 2xx
    #[arg(long, value_name = "URL", env = "TENURE_HEALTH_URL")]
    pub(super) health_url: Option<webhook::Target>,
    /// Healthy while this file exists
    #[arg(long, value_name = "FILE", env = "TENURE_HEALTH_FILE")]
    pub(super) health_file: Option<PathBuf>,
    /// ... and was written within this time
    #[arg(long, value_name = "D", env = "TENURE_HEALTH_FILE_MAX_AGE", value_parser = duration, requires = "health_file")]
    pub(super) health_file_max_age: Option<Duration>,
    /// Healthy while this command succeeds
    #[arg(long, value_name = "CMD", env = "TENURE_HEALTH_CMD")]
    pub(super) health_cmd: Option<String>,
    /// Do not campaign before this pod is Ready for the first time; with --readiness-gate, before its
    /// containers are
    #[arg(long, env = "TENURE_WAIT_READY")]
    pub(super) wait_ready: bool,
    /// How often to check, and how long a check may take
    #[arg(long, value_name = "D", env = "TENURE_HEALTH_INTERVAL", default_value = "5s", value_parser = duration)]
    pub(super) health_interval: Duration,
    /// A leader steps down after this many failures in a row
    #[arg(long, value_name = "N", env = "TENURE_HEALTH_FAILURES", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    pub(super) health_failures: u32,
    /// ... and does not campaign for this long
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
    /// Say what is missing and go on
    #[default]
    Warn,
    /// End with exit code 4 if anything is missing
    Fail,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Compat {
    /// Be the old sidecar
    #[value(name = "true")]
    On,
    /// Be the new one
    #[value(name = "false")]
    Off,
    /// Be the old one in every respect
    Strict,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(super) enum Mode {
    /// As long as it renews its lease
    #[default]
    Lease,
    /// As long as its pod lives: no leader rather than two
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
