//! Release after a crash: the watchdog releases the lease of a wrapper that was killed.
//!
//! Invariant: [`CrashRelease::run`] is called only after the kernel has reported the end of the wrapper and of every
//! descendant of the command. `tenure_core::crash` decides whether the lock still shows the term of that wrapper.
//!
//! The watchdog gets flags and file names in the [fence file](super::fence_file), and reads credentials from where the
//! wrapper read them. They are therefore as new as possible, and never part of a command line.

use std::collections::BTreeMap;
use std::future::Future;
use std::time::Duration;

use anyhow::{Context, Result};
use rustix::process::Signal;
use serde::{Deserialize, Serialize};
use tenure::clock::{Clock, SystemClock};
use tenure_core::crash::{HeldTerm, Rules};
use tenure_core::{LocalTime, WallTime};
use tenure_lock::{Lock, LockKind};

use super::kin;
use crate::api;
use crate::connect::{self, Connect};
use crate::log::Log;
use crate::say::Voice;

/// Time limit of one attempt.
const ATTEMPT: Duration = Duration::from_secs(5);

/// Time between two attempts; it doubles up to the second value.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);

/// A term that the watchdog may release, and how to reach its API server.
#[derive(Serialize, Deserialize)]
pub(super) struct CrashRelease {
    /// Flags with which the wrapper's API server is found.
    pub(super) way: Connect,
    pub(super) log: Log,
    pub(super) namespace: String,
    pub(super) election: String,
    /// Name of the Lease.
    pub(super) lease: String,
    pub(super) lease_duration: Duration,
    pub(super) term: Term,
}

/// A [`HeldTerm`] as text.
#[derive(Serialize, Deserialize)]
pub(super) struct Term {
    uid: String,
    identity: String,
    acquired_micros: i64,
    transitions: u32,
}

impl From<HeldTerm> for Term {
    fn from(term: HeldTerm) -> Self {
        Self {
            uid: term.uid,
            identity: term.identity,
            acquired_micros: term.acquire_time.as_micros(),
            transitions: term.transitions,
        }
    }
}

impl From<Term> for HeldTerm {
    fn from(term: Term) -> Self {
        Self {
            uid: term.uid,
            identity: term.identity,
            acquire_time: WallTime::from_micros(term.acquired_micros),
            transitions: term.transitions,
        }
    }
}

impl CrashRelease {
    /// Returns the text for the fence file; nothing if a file name is not text.
    pub(super) fn encode(&self) -> Option<String> {
        serde_json::to_string(self).ok()
    }

    pub(super) fn decode(text: &str) -> Option<Self> {
        serde_json::from_str(text).ok()
    }

    /// Releases the term. Tries for one lease duration, because then the term has expired anyway.
    pub(super) fn run(self) {
        let _ = self.log.start();
        let voice = Voice::new(&self.namespace, &self.election);
        let lease_duration = self.lease_duration;
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build();
        let released = runtime.map_err(Into::into).and_then(|runtime| {
            let released = runtime.block_on(self.release());
            runtime.shutdown_background();
            released
        });
        match released {
            Ok(true) => voice.released_after_crash(),
            // Another write has ended the term, for example a step-down.
            Ok(false) => {}
            Err(error) => voice.not_released_after_crash(&api::plain(&error), lease_duration),
        }
        // A credential plugin may hang.
        let left = kin::own_descendants();
        left.iter().for_each(|process| process.signal(Signal::KILL));
    }

    /// Returns whether the term was released; false if the lock shows another one.
    async fn release(self) -> Result<bool> {
        let until = SystemClock.now().local + self.lease_duration;
        let connected = repeat(until, async || {
            // A second credential plugin is not started while the first one may still answer.
            let left = until.since(SystemClock.now().local);
            let client = async { connect::electing(self.way.config().await?).await };
            within(left, client).await
        });
        let client = connected.await?;
        let lock = LockKind::Leases.open(client, &self.namespace, &self.lease, &BTreeMap::new())?;
        let term = HeldTerm::from(self.term);
        repeat(until, async || {
            within(ATTEMPT, attempt(&*lock, &term)).await
        })
        .await
    }
}

/// Repeats an attempt until it succeeds, or until the time is over. Returns the last error.
async fn repeat<T>(until: LocalTime, attempt: impl AsyncFn() -> Result<T>) -> Result<T> {
    let mut pause = FIRST_PAUSE;
    loop {
        match attempt().await {
            Err(_) if SystemClock.now().local + pause < until => tokio::time::sleep(pause).await,
            result => return result,
        }
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

async fn within<T>(limit: Duration, work: impl Future<Output = Result<T>>) -> Result<T> {
    let result = tokio::time::timeout(limit, work).await;
    result.context("no response in time")?
}

/// Reads the lock and releases the term if the lock shows it.
async fn attempt(lock: &dyn Lock, term: &HeldTerm) -> Result<bool> {
    let Some(snapshot) = lock.read().await? else {
        return Ok(false);
    };
    let now = SystemClock.now().wall;
    let seen = snapshot.observation();
    let Some((kind, record)) = term.release(seen, now, Rules::default()) else {
        return Ok(false);
    };
    let written = lock.write(&kind, &record, Some(&snapshot)).await;
    written.context("cannot write the release").map(|_| true)
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Flags {
        #[command(flatten)]
        log: Log,
    }

    #[test]
    fn term_and_flags_survive_the_fence_file() {
        let term = HeldTerm {
            uid: "u".to_owned(),
            identity: "a\0b".to_owned(),
            acquire_time: WallTime::from_micros(-7),
            transitions: u32::MAX,
        };
        let release = CrashRelease {
            way: Connect {
                kubeconfig: Some("/a b/config".into()),
                context: Some("dev".to_owned()),
                ..Connect::default()
            },
            log: Flags::parse_from(["tenure"]).log,
            namespace: "shop".to_owned(),
            election: "web".to_owned(),
            lease: "web-0".to_owned(),
            lease_duration: Duration::from_secs(15),
            term: term.clone().into(),
        };
        let text = release.encode().unwrap();
        assert!(!text.contains('\0'));
        let decoded = CrashRelease::decode(&text).unwrap();
        assert_eq!(HeldTerm::from(decoded.term), term);
        assert_eq!(decoded.way.kubeconfig, release.way.kubeconfig);
        assert_eq!(decoded.lease, "web-0");
        assert!(CrashRelease::decode("").is_none());
    }
}
