//! `--confirm-death`: the sources of evidence that the leader has ended.

use std::sync::Arc;

use anyhow::{Context, Result};
use clap::ValueEnum;
use tenure::{Builder, DeathProof as _, HostProof};
use tenure_core::Place;

/// A source of evidence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum DeathSource {
    /// The kernel of this machine
    Host,
}

/// The processes whose end is the end of the work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Work {
    /// The work ends with this process.
    OfThisProcess,
    /// The work is a tree of processes, which can outlive this process.
    OfTree,
}

/// The sources of one candidate, ready to be used.
#[derive(Debug, Default)]
pub(crate) struct Proofs {
    host: Option<HostProof>,
}

impl Proofs {
    /// Opens the sources that the user has named.
    pub(crate) fn open(sources: &[DeathSource], work: Work) -> Result<Self> {
        let mut proofs = Self::default();
        for source in sources {
            match source {
                DeathSource::Host => {
                    let host = match work {
                        Work::OfThisProcess => HostProof::of_process(),
                        Work::OfTree => HostProof::of_pid_namespace(),
                    };
                    proofs.host = Some(host.context("--confirm-death=host")?);
                }
            }
        }
        Ok(proofs)
    }

    /// Returns the place of this process, with which its writes describe the holder.
    pub(crate) fn place(&self) -> Option<Arc<Place>> {
        let mut place = Place::default();
        if let Some(host) = &self.host {
            host.describe(&mut place);
        }
        (place != Place::default()).then(|| Arc::new(place))
    }

    /// Makes a candidate use the sources.
    pub(crate) fn confirm(self, builder: Builder) -> Builder {
        match self.host {
            Some(host) => builder.confirm_death(host),
            None => builder,
        }
    }
}
