//! Flags of old deployments of csi-provisioner: those that still work, those without effect here, and those that were
//! removed.

use anyhow::{Result, bail};
use clap::{ArgAction, Args};
use tenure::LockKind;

use crate::values::switch;

/// Flags of old deployments that still work, and flags without effect.
#[derive(Args, Clone, Debug)]
pub(super) struct Old {
    #[arg(long, hide = true, num_args = 0..=1, require_equals = true, default_value_t = false, default_missing_value = "true", action = ArgAction::Set, value_parser = switch)]
    pub(super) enable_leader_election: bool,
    #[arg(long, hide = true)]
    pub(super) leader_election_type: Option<String>,
    #[arg(long, hide = true, default_value = "")]
    pub(super) metrics_address: String,
    #[arg(long, hide = true)]
    pub(super) log_flush_frequency: Option<String>,
    #[arg(long, hide = true)]
    pub(super) vmodule: Option<String>,
    #[arg(long, hide = true, num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub(super) log_text_split_stream: Option<String>,
    #[arg(long, hide = true)]
    pub(super) log_text_info_buffer_size: Option<String>,
    #[arg(long, hide = true, num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub(super) log_json_split_stream: Option<String>,
    #[arg(long, hide = true)]
    pub(super) log_json_info_buffer_size: Option<String>,
    #[arg(long, hide = true, num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub(super) automaxprocs: Option<String>,
    #[arg(long, hide = true, num_args = 0..=1, require_equals = true, default_value_t = false, default_missing_value = "true", action = ArgAction::Set, value_parser = switch)]
    pub(super) enable_pprof: bool,
    #[arg(long, hide = true)]
    pub(super) provisioner: Option<String>,
    #[arg(long, hide = true)]
    pub(super) connection_timeout: Option<String>,
    #[arg(long, hide = true)]
    pub(super) provisioning_retry_count: Option<String>,
    #[arg(long, hide = true)]
    pub(super) deletion_retry_count: Option<String>,
}

impl Old {
    /// Fails for removed flags, and warns about the others.
    pub(super) fn check(&self) -> Result<()> {
        let gone = [
            (
                &self.provisioner,
                "--provisioner",
                "the name is read from the driver",
            ),
            (
                &self.connection_timeout,
                "--connection-timeout",
                "it is always 30 s; --timeout limits calls",
            ),
            (
                &self.provisioning_retry_count,
                "--provisioning-retry-count",
                "see --retry-interval-max",
            ),
            (
                &self.deletion_retry_count,
                "--deletion-retry-count",
                "see --retry-interval-max",
            ),
        ];
        for (given, flag, hint) in gone {
            if given.is_some() {
                bail!("{flag} was removed: {hint}");
            }
        }
        if self.enable_leader_election {
            tracing::warn!("--enable-leader-election is deprecated: use --leader-election");
        }
        if !self.metrics_address.is_empty() {
            tracing::warn!("--metrics-address is deprecated: use --http-endpoint");
        }
        let ours = [
            ("--log-flush-frequency", &self.log_flush_frequency),
            ("--log-text-split-stream", &self.log_text_split_stream),
            (
                "--log-text-info-buffer-size",
                &self.log_text_info_buffer_size,
            ),
            ("--log-json-split-stream", &self.log_json_split_stream),
            (
                "--log-json-info-buffer-size",
                &self.log_json_info_buffer_size,
            ),
            ("--vmodule", &self.vmodule),
            ("--automaxprocs", &self.automaxprocs),
        ];
        for (flag, _) in ours.into_iter().filter(|(_, given)| given.is_some()) {
            tracing::warn!("{flag} has no effect");
        }
        if self.enable_pprof {
            tracing::warn!(
                "--enable-pprof has no effect: this program has no Go profiles; GET /debug/pprof lists alternatives"
            );
        }
        let kind = self.lock_kind()?;
        match (&self.leader_election_type, kind) {
            (None, _) => {}
            (Some(_), LockKind::Leases) => {
                tracing::warn!("--leader-election-type is deprecated: leases are the default");
            }
            (Some(_), LockKind::EndpointsLeases) => tracing::info!(
                "--leader-election-type=endpointsleases: remove the flag when no replica uses endpoints"
            ),
            (Some(_), _) => tracing::warn!(
                "--leader-election-type=endpoints is deprecated: first change all replicas to endpointsleases, then remove the flag"
            ),
        }
        Ok(())
    }

    pub(super) fn lock_kind(&self) -> Result<LockKind> {
        match self.leader_election_type.as_deref() {
            None | Some("leases") => Ok(LockKind::Leases),
            Some("endpoints") => Ok(LockKind::Endpoints),
            Some("endpointsleases") => Ok(LockKind::EndpointsLeases),
            Some(other) => bail!(
                "--leader-election-type {other:?}: only leases, endpoints and endpointsleases are supported"
            ),
        }
    }
}
