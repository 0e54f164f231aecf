//! `tenure provision`, also when called as `csi-provisioner`: accepts the flags of the CSI external-provisioner.

mod flags;
mod old;
mod options;

use std::ffi::OsString;

use anyhow::{Context, Result};
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;

use crate::connect::Connect;
use crate::klog;
use crate::signals::Signals;
use crate::values;
pub(crate) use flags::Provision;

/// Converts the command line of csi-provisioner to ours.
pub(crate) fn with_command(mut args: Vec<OsString>) -> Vec<OsString> {
    args.insert(args.len().min(1), "provision".into());
    args
}

/// Converts `-v=5`, `-v5` and `-v 5` to `--v=5`, as in every program of Kubernetes; in other commands `-v` is a switch.
/// Flags of klog may have one dash.
pub(crate) fn spell(args: Vec<OsString>) -> Vec<OsString> {
    if args.get(1).is_none_or(|command| command != "provision") {
        return args;
    }
    let spelled = args.into_iter().map(|arg| match arg.to_str() {
        Some("-v") => "--v".into(),
        Some(text) if klog::is_flag(text) => format!("-{text}").into(),
        Some(text) if text.starts_with("-v") => {
            let level = text[2..].trim_start_matches('=');
            format!("--v={level}").into()
        }
        _ => arg,
    });
    spelled.collect()
}

impl Provision {
    /// Starts logging to stderr as the flags say; `TENURE_LOG` overrides them with a finer filter.
    pub(crate) fn log(&self) {
        let level = match self.verbosity {
            ..=3 => "info,kube_client=off,kube_runtime=off",
            4 => "debug,hyper=info,hyper_util=info,h2=info,tower=info,kube_client=info",
            _ => "debug,tenure_csi=trace,hyper=info,hyper_util=info,h2=info,tower=info",
        };
        let filter = crate::log::filter_or(level);
        let log = tracing_subscriber::fmt()
            .with_max_level(LevelFilter::TRACE)
            .with_writer(std::io::stderr);
        if self.logging_format == "json" {
            log.json().finish().with(filter).init();
        } else {
            let log = log.with_ansi(false).with_target(false);
            log.finish().with(filter).init();
        }
    }

    pub(crate) async fn run(self, connect: &Connect) -> Result<u8> {
        let options = self.options()?;
        let master = self.master.as_deref().filter(|master| !master.is_empty());
        let config = connect.config_from_flags(master).await?;
        let mut signals = Signals::listen().context("signals")?;
        let shutdown = async move {
            let signal = signals.end().await;
            tracing::info!(
                signal = values::signal_name(signal),
                "received a signal; stopping"
            );
        };
        tenure_provisioner::run(options, config, shutdown).await?;
        Ok(0)
    }
}
