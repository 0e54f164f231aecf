//! The task that keeps the member of this candidate.
//!
//! Each round writes the own member, reads all, and deletes those of dead candidates. The task sends one request at
//! a time. All writes and deletions name the version that they replace, so that no change by another process is lost.
//!
//! A candidate with the same identity uses the same object, because its name follows from the identity. Each of them
//! writes its own `acquireTime`, and deletes the object only if the object has it.

use std::sync::Arc;
use std::time::Duration;

use tenure_core::{LocalTime, Random, Version};
use tenure_lock::member::{Announcement, Member, MemberSnapshot, Members, member_name};
use tenure_lock::{Class, Error};
use tokio::sync::Semaphore;

use super::{Membership, RENEWALS, duration_for};
use crate::clock::pause;
use crate::identity;
use crate::shared::Shared;
use crate::sync::lock;

/// Timeout of a request.
const REQUEST: Duration = Duration::from_secs(5);

/// Timeout of the deletion of the own member.
const REMOVE: Duration = Duration::from_secs(2);

/// Shortest time between two rounds, for a readiness that changes often.
const APART: Duration = Duration::from_secs(1);

/// Longest time between two rounds while writes fail.
const LONGEST_RETRY: Duration = Duration::from_secs(60);

/// Limit of members that are deleted in one round.
const MOST_DELETIONS: usize = 10;

/// Limit of requests for members in flight in this process, so that thousands of elections do not send them at once.
static SEATS: Semaphore = Semaphore::const_new(4);

/// Keeps the member of one candidate.
#[derive(Debug)]
pub(crate) struct Keeper {
    members: Members,
    membership: Membership,
    shared: Arc<Shared>,
    /// This candidate, without its readiness.
    member: Member,
    name: String,
    duration: Duration,
    /// The version written last.
    version: Option<Version>,
    random: Random,
    failures: u32,
    /// The failures of reads, writes and deletions that were logged last.
    logged: [Option<String>; 3],
    twin: bool,
}

/// Kind of a request: its index in [`Keeper::logged`].
#[derive(Clone, Copy)]
enum Kind {
    Read,
    Write,
    Delete,
}

impl Keeper {
    pub(crate) fn new(
        members: Members,
        membership: Membership,
        shared: Arc<Shared>,
        election: &str,
        about: Announcement,
    ) -> Self {
        let identity = shared.identity.to_string();
        Self {
            members,
            membership,
            name: member_name(election, &identity),
            duration: duration_for(shared.lease),
            member: Member {
                identity,
                since: Some(shared.clock.now().wall),
                not_ready: None,
                about,
            },
            shared,
            version: None,
            random: Random::new(identity::seed()),
            failures: 0,
            logged: [const { None }; 3],
            twin: false,
        }
    }

    /// Keeps the member until the candidate leaves, and then deletes it.
    pub(crate) async fn run(mut self) {
        // The last event of the candidate waits for the deletion, also if this task panics or is dropped.
        let _held = Held(self.shared.clone());
        let mut leaving = self.membership.inner.leaving.subscribe();
        tokio::select! {
            biased;
            _ = leaving.wait_for(|leaving| *leaving) => {}
            () = self.keep() => {}
        }
        if tokio::time::timeout(REMOVE, self.remove()).await.is_err() {
            let name = self.name.as_str();
            tracing::debug!(name, "cannot delete the member of this candidate in time");
        }
    }

    /// Renews periodically, and soon after a change of the readiness. Cancel safe, because a write that was cancelled
    /// only causes the next one to be rejected.
    async fn keep(&mut self) {
        let mut readiness = self.membership.inner.not_ready.subscribe();
        loop {
            self.member
                .not_ready
                .clone_from(&readiness.borrow_and_update());
            self.round().await;
            let next = self.now() + self.wait();
            pause(APART).await;
            tokio::select! {
                () = self.reach(next) => {}
                changed = readiness.changed() => {
                    // The sender is part of this task.
                    if changed.is_err() {
                        return;
                    }
                }
            }
        }
    }

    async fn round(&mut self) {
        match self.write().await {
            Ok(()) => {
                self.failures = 0;
                self.works(Kind::Write);
            }
            Err(why) => {
                self.failures = self.failures.saturating_add(1);
                self.fails(Kind::Write, why);
            }
        }
        match self.request(self.members.list()).await {
            Ok(list) => {
                self.works(Kind::Read);
                lock(&self.membership.inner.roster).apply(list, self.now());
            }
            Err(why) => self.fails(Kind::Read, why),
        }
        self.delete_dead().await;
    }

    /// Writes the own member. If another writer changed it, reads it and writes once more.
    async fn write(&mut self) -> Result<(), String> {
        let written = self.request(self.write_at(self.version.as_ref())).await?;
        if written.is_some() {
            self.version = written;
            return Ok(());
        }
        let found = self
            .request(self.members.read(&self.member.identity))
            .await?;
        self.note_twin(found.as_ref());
        self.version = found.map(|found| found.version);
        let written = self.request(self.write_at(self.version.as_ref())).await?;
        if written.is_none() {
            let name = &self.name;
            return Err(format!(
                "another client keeps changing or creating lease {name}"
            ));
        }
        self.version = written;
        Ok(())
    }

    /// Logs once that another process writes the object that this one wrote before.
    fn note_twin(&mut self, found: Option<&MemberSnapshot>) {
        let changed = found.is_some_and(|found| found.member.since != self.member.since);
        if changed && self.version.is_some() && !std::mem::replace(&mut self.twin, true) {
            tracing::warn!(
                identity = %self.shared.identity, election = %self.shared.name,
                "another candidate of this election has the same identity; give each process its own"
            );
        }
    }

    /// Writes the member in place of this version. Returns nothing if the object has another version.
    async fn write_at(&self, version: Option<&Version>) -> Result<Option<Version>, Error> {
        let now = self.shared.clock.now().wall;
        let written = self
            .members
            .write(&self.member, self.duration, now, version);
        match written.await {
            Ok(written) => Ok(Some(written.version)),
            Err(error) if error.class() == Class::Refused => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Deletes members of dead candidates. Other candidates do the same, and the first deletion wins.
    async fn delete_dead(&mut self) {
        let dead: Vec<(String, Version)> = lock(&self.membership.inner.roster)
            .dead()
            .filter(|(name, _)| *name != self.name)
            .take(MOST_DELETIONS)
            .map(|(name, version)| (name.to_owned(), version.clone()))
            .collect();
        for (name, version) in dead {
            match self.request(self.members.delete(&name, &version)).await {
                Ok(_) => self.works(Kind::Delete),
                Err(why) => return self.fails(Kind::Delete, why),
            }
        }
    }

    /// Deletes the own member, unless another process with this identity keeps it.
    async fn remove(&mut self) {
        if let Some(version) = &self.version
            && let Ok(true) = self.members.delete(&self.name, version).await
        {
            return;
        }
        // A write may have been applied without a response.
        let found = self.members.read(&self.member.identity).await;
        if let Ok(Some(found)) = found
            && found.member.since == self.member.since
        {
            // If it fails, others delete the member after it expired.
            let _ = self.members.delete(&self.name, &found.version).await;
        }
    }

    /// Sends a request when few others are in flight.
    async fn request<T>(
        &self,
        request: impl Future<Output = Result<T, Error>>,
    ) -> Result<T, String> {
        let _seat = SEATS.acquire().await;
        match tokio::time::timeout(REQUEST, request).await {
            Ok(done) => done.map_err(|error| error.to_string()),
            Err(_) => Err(format!("no answer within {} s", REQUEST.as_secs())),
        }
    }

    /// Returns the time until the next round.
    fn wait(&mut self) -> Duration {
        let every = self.duration / RENEWALS;
        let wait = match self.failures {
            0 => every,
            failures => (every / 4)
                .saturating_mul(1 << failures.min(16))
                .min(LONGEST_RETRY.max(every)),
        };
        // Candidates that started together do not stay together.
        wait + self.random.below(wait / 8)
    }

    async fn reach(&self, at: LocalTime) {
        while self.now() < at {
            self.shared.clock.sleep_until(at).await;
        }
    }

    fn now(&self) -> LocalTime {
        self.membership.now()
    }

    fn works(&mut self, kind: Kind) {
        self.logged[kind as usize] = None;
    }

    /// Logs a failure. A failure that repeats is logged once.
    fn fails(&mut self, kind: Kind, why: String) {
        let what = match kind {
            Kind::Read => "cannot read the other candidates; retrying",
            Kind::Write => "cannot announce this candidate; retrying",
            Kind::Delete => "cannot delete the member of a dead candidate; retrying",
        };
        let logged = &mut self.logged[kind as usize];
        if logged.as_ref() != Some(&why) {
            tracing::warn!(election = %self.shared.name, error = why, "{what}");
            *logged = Some(why);
        }
    }
}

/// Holds back the last event of a candidate until it is dropped.
struct Held(Arc<Shared>);

impl Drop for Held {
    fn drop(&mut self) {
        self.0.mailbox.release();
    }
}
