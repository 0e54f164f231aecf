//! Logging to standard error or a file, in addition to messages for the user.

use std::fs::File;
use std::io::{IsTerminal, stderr};
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context, Result};
use clap::{ArgAction, Args, ValueEnum};
use serde::{Deserialize, Serialize};
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::fmt::writer::BoxMakeWriter;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;

use crate::say::Sentences;

/// Flags for logging.
#[derive(Args, Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Log {
    /// Log more; -vv logs everything
    ///
    /// The variable `TENURE_LOG` sets a finer filter in the syntax of `RUST_LOG`.
    #[arg(short, long, action = ArgAction::Count, global = true)]
    verbose: u8,
    /// Do not print the state of the election; warnings and errors are still printed
    #[arg(
        short,
        long,
        env = "TENURE_QUIET",
        global = true,
        conflicts_with = "verbose"
    )]
    quiet: bool,
    /// Format of log lines
    #[arg(
        long,
        value_enum,
        value_name = "FORMAT",
        env = "TENURE_LOG_FORMAT",
        default_value_t,
        global = true
    )]
    log_format: Format,
    /// Append log lines to this file [default: standard error]
    #[arg(long, value_name = "FILE", env = "TENURE_LOG_FILE", global = true)]
    log_file: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
enum Format {
    /// Readable text
    #[default]
    Text,
    /// One JSON object per line
    Json,
}

impl Log {
    /// Starts logging: warnings, and the changes of the election (`say.rs`). The client's own lines are suppressed,
    /// because the caller reports each error once.
    pub(crate) fn start(&self) -> Result<()> {
        let filter = match self.verbose {
            0 if self.quiet => "warn,kube_client=off",
            0 => {
                "warn,tenure::say=info,tenure::commands::elect=info,tenure::handle=info,kube_client=off"
            }
            1 => "info,tenure=debug,tenure_lock=debug,kube_client=off",
            _ => "debug,tenure=trace,tenure_lock=trace",
        };
        let filter = filter_or(filter);
        let sentences = self.log_file.is_none();
        let (writer, colours) = match &self.log_file {
            Some(path) => {
                let file = File::options().create(true).append(true).open(path);
                let file = file.with_context(|| format!("cannot write {}", path.display()))?;
                (BoxMakeWriter::new(Arc::new(file)), false)
            }
            None => {
                let colours = stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none();
                (BoxMakeWriter::new(stderr), colours)
            }
        };
        let log = tracing_subscriber::fmt()
            .with_max_level(LevelFilter::TRACE)
            .with_writer(writer)
            .with_ansi(colours)
            .with_target(false);
        match self.log_format {
            // Lines in a file start with the time. Lines on standard error are sentences.
            Format::Text if sentences => {
                let log = log.event_format(Sentences::new());
                log.finish().with(filter).init();
            }
            Format::Text => log.finish().with(filter).init(),
            Format::Json => {
                let log = log.json().flatten_event(true).with_ansi(false);
                log.finish().with(filter).init();
            }
        }
        Ok(())
    }
}

/// Returns the filter of `TENURE_LOG`, or this default.
pub(crate) fn filter_or(ours: &str) -> Targets {
    let chosen = std::env::var("TENURE_LOG").ok();
    let chosen = chosen.and_then(|text| text.parse().ok());
    chosen.unwrap_or_else(|| ours.parse().expect("a filter of ours"))
}
