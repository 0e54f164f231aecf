//! Flags of the API server about credentials and the record of their use.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::Args;
use tenure_apiserver::audit;
use tenure_apiserver::server::Builder;

#[derive(Args, Clone, Debug)]
pub(super) struct Security {
    /// Treat requests without credentials as user system:anonymous
    ///
    /// `--anonymous-auth=false` answers them with 401, health endpoints included.
    #[arg(
        long,
        value_name = "BOOL",
        default_value_t = true,
        default_missing_value = "true",
        num_args = 0..=1,
        require_equals = true,
        action = clap::ArgAction::Set
    )]
    anonymous_auth: bool,
    /// Limit the life of issued ServiceAccount tokens; 0s sets no limit
    #[arg(long, value_name = "TIME", default_value = "8760h", value_parser = token_life)]
    service_account_max_token_expiration: Duration,
    /// Also accept ServiceAccount tokens signed by these keys; can be repeated
    #[arg(long, value_name = "FILE")]
    service_account_key_file: Vec<PathBuf>,
    /// Record requests in this file; `-` is standard output
    ///
    /// The lines are audit.k8s.io/v1 Events.
    #[arg(long, value_name = "FILE", alias = "audit-log-path")]
    audit_log: Option<PathBuf>,
    /// Choose the recorded requests with this audit.k8s.io/v1 Policy
    ///
    /// By default, the metadata of all requests are recorded except for health probes.
    #[arg(
        long,
        value_name = "FILE",
        alias = "audit-policy-file",
        requires = "audit_log"
    )]
    audit_policy: Option<PathBuf>,
    /// Rotate the audit log at this size in MiB; 0 disables rotation
    #[arg(long, value_name = "MIB", default_value_t = 100)]
    audit_log_maxsize: u64,
    /// Keep this number of rotated audit logs; 0 keeps all
    #[arg(long, value_name = "COUNT", default_value_t = 10)]
    audit_log_maxbackup: usize,
}

impl Security {
    /// Configures the server. Reads the policy, so that an invalid one is reported before anything starts.
    pub(super) fn apply(self, mut server: Builder) -> Result<Builder> {
        let life = self.service_account_max_token_expiration;
        server = server
            .anonymous(self.anonymous_auth)
            .max_token_life(Some(life).filter(|life| !life.is_zero()));
        for file in self.service_account_key_file {
            server = server.service_account_keys(file);
        }
        if let Some(path) = self.audit_log {
            let mut options = audit::Options::new(path);
            options.max_bytes = self.audit_log_maxsize.saturating_mul(1 << 20);
            options.max_backups = self.audit_log_maxbackup;
            if let Some(file) = self.audit_policy {
                options.policy = policy(&file)?;
            }
            server = server.audit(options);
        }
        Ok(server)
    }
}

/// Parses a limit of the life of tokens. The minimum is that of kube-apiserver.
fn token_life(text: &str) -> Result<Duration, String> {
    let life = crate::values::duration(text)?;
    if life.is_zero() || life >= Duration::from_secs(3_600) {
        return Ok(life);
    }
    Err("it must be 0s or at least 1h".to_owned())
}

fn policy(file: &std::path::Path) -> Result<audit::Policy> {
    let text = std::fs::read_to_string(file)
        .with_context(|| format!("cannot read the audit policy {}", file.display()))?;
    audit::Policy::parse(&text).with_context(|| format!("cannot use {}", file.display()))
}
