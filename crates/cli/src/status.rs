//! `tenure status`: every election, who holds it, and for how long.

use std::time::Duration;

use anyhow::Result;
use clap::Args;
use kube::Client;
use tenure::lock::LockKind;

use crate::connect::Connect;
use crate::elections::{self, Seen};
use crate::output::{self, Format};

/// Show elections
#[derive(Args, Debug)]
pub(crate) struct Status {
    /// Only this election
    name: Option<String>,
    /// In this namespace; by default that of the kubeconfig's context
    #[arg(short, long, env = "TENURE_NAMESPACE")]
    namespace: Option<String>,
    /// In all namespaces
    #[arg(short = 'A', long)]
    all_namespaces: bool,
    /// Show again every second until interrupted
    #[arg(short, long)]
    watch: bool,
    /// How to print
    #[arg(short, long, value_enum, default_value_t)]
    output: Format,
}

impl Status {
    pub(crate) async fn run(self, connect: &Connect) -> Result<u8> {
        let config = connect.config().await?;
        let own = self
            .namespace
            .clone()
            .unwrap_or_else(|| config.default_namespace.clone());
        let namespace = (!self.all_namespaces).then_some(own);
        let client = Client::try_from(config)?;
        loop {
            let kinds = [LockKind::Leases, LockKind::ConfigMaps, LockKind::Endpoints];
            let mut rows = elections::list(&client, namespace.as_deref(), &kinds).await?;
            rows.retain(|row| self.name.as_ref().is_none_or(|name| row.name == *name));
            if self.watch && output::is_terminal() {
                print!("\x1b[H\x1b[2J");
            }
            self.print(&rows, namespace.is_none())?;
            if !self.watch {
                if rows.is_empty() && matches!(self.output, Format::Table | Format::Wide) {
                    let place =
                        namespace.map_or("any namespace".into(), |n| format!("namespace {n}"));
                    eprintln!("no elections in {place}");
                }
                return Ok(u8::from(rows.is_empty() && self.name.is_some()));
            }
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    }

    fn print(&self, rows: &[Seen], all: bool) -> Result<()> {
        let wide = self.output == Format::Wide;
        let mut header = vec!["NAME", "HOLDER", "STATE", "RENEWED", "LEFT", "TRANSITIONS"];
        if all {
            header.insert(0, "NAMESPACE");
        }
        if wide {
            header.extend(["LOCK", "LEASE", "ACQUIRED", "VERSION"]);
        }
        output::print(self.output, rows, &header, |row| {
            let dash = || "-".to_owned();
            let seconds =
                |value: Option<f64>| value.map_or_else(dash, |value| format!("{value:.1}s"));
            let renewed = if row.skewed {
                "in the future?".into()
            } else {
                row.renewed_ago_seconds
                    .map_or_else(dash, |ago| format!("{ago:.1}s ago"))
            };
            let mut cells = vec![
                row.name.clone(),
                if row.holder.is_empty() {
                    dash()
                } else {
                    row.holder.clone()
                },
                row.state.to_owned(),
                renewed,
                seconds(row.valid_for_seconds),
                row.transitions.to_string(),
            ];
            if all {
                cells.insert(0, row.namespace.clone());
            }
            if wide {
                cells.extend([
                    row.lock.to_owned(),
                    format!("{}s", row.lease_duration_seconds),
                    row.acquire_time.clone().unwrap_or_else(dash),
                    row.resource_version.clone(),
                ]);
            }
            cells
        })
    }
}
