//! The task that keeps the member of this candidate.
//!
//! Each round writes the own member, reads all, and deletes those of dead candidates. The task sends one request at
//! a time. All writes and deletions name the version that they replace, so that no change by another process is lost.
//!
//! Writes and reads are retried separately, and less often after each failure. The write of an existing member is
//! retried at least as often as it is normally renewed. Otherwise, other candidates could delete the member after an
//! outage that this candidate survived.
//!
//! A candidate with the same identity uses the same object, because its name follows from the identity. Each of them
//! writes its own `acquireTime`, and deletes the object only if the object has it.

use std::sync::Arc;
use std::time::Duration;

use tenure_core::{Failback, LocalTime, Random, Version};
use tenure_lock::member::{Announcement, Member, MemberSnapshot, Members, member_name};
use tenure_lock::{Class, Error};
use tokio::sync::Semaphore;

use super::{Membership, RENEWALS, Ranking, duration_for};
use crate::clock::pause;
use crate::hub::Ask;
use crate::identity;
use crate::shared::Shared;
use crate::sync::lock;

/// Timeout of a request.
const REQUEST: Duration = Duration::from_secs(5);

/// Timeout of the deletion of the own member.
const REMOVE: Duration = Duration::from_secs(2);

/// Shortest time between two rounds, for a readiness that changes often.
const APART: Duration = Duration::from_secs(1);

/// Longest time between two retries. A member that exists is retried more often.
const LONGEST_RETRY: Duration = Duration::from_secs(60);

/// Reason why a candidate that stepped down is not ready.
const AFTER_TERM: &str = "it does not campaign for some time after its last term";

/// Limit of members that are deleted in one round.
const MOST_DELETIONS: usize = 10;

/// Limit of requests for members in flight in this process, so that thousands of elections do not send them at the same
/// time.
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
    writes: Pace,
    reads: Pace,
    /// The failures of reads, writes and deletions that were logged last.
    logged: [Option<String>; 3],
    twin: bool,
    ranking: Option<Ranking>,
    /// The better candidate that was logged last.
    better: Option<String>,
}

/// When a kind of request is sent next.
#[derive(Clone, Copy, Debug, Default)]
struct Pace {
    failures: u32,
    next: LocalTime,
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
            writes: Pace::default(),
            reads: Pace::default(),
            logged: [const { None }; 3],
            twin: false,
            ranking: None,
            better: None,
        }
    }

    /// Reports the candidates to the election after each read, with their ranks.
    pub(crate) fn ranked(mut self, ranking: Option<Ranking>) -> Self {
        self.ranking = ranking;
        self
    }

    /// Returns a future that keeps the member until the candidate leaves, and then deletes it. The last event of the
    /// candidate waits for the future, which may also panic or be dropped, even before it was polled.
    pub(crate) fn run(self) -> impl Future<Output = ()> + Send + 'static {
        let held = Held::new(self.shared.clone());
        async move {
            let _held = held;
            self.serve().await;
        }
    }

    async fn serve(mut self) {
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
        let mut sits_out_until = self.membership.inner.sits_out_until.subscribe();
        loop {
            let back = *sits_out_until.borrow_and_update();
            let sits_out = self.now() < back;
            let not_ready = readiness.borrow_and_update().clone();
            // A leader must not hand over to a candidate that would not acquire the lock.
            let not_ready = not_ready.or_else(|| sits_out.then(|| AFTER_TERM.to_owned()));
            let changed = not_ready.is_some() != self.member.not_ready.is_some();
            self.member.not_ready = not_ready;
            // Only a change of the readiness is urgent, because a reason may contain a time and change often. A failed
            // request is not retried sooner because of a change.
            if changed && self.writes.failures == 0 {
                self.writes.next = self.now();
            }
            self.round().await;
            pause(APART).await;
            let mut next = self.writes.next.min(self.reads.next);
            if sits_out {
                next = next.min(back);
            }
            let written = self.writes.failures == 0;
            tokio::select! {
                () = self.reach(next) => {}
                changed = readiness.changed(), if written => {
                    // This task owns the sender, so the channel is open as long as the task runs.
                    if changed.is_err() {
                        return;
                    }
                }
                changed = sits_out_until.changed(), if written => {
                    if changed.is_err() {
                        return;
                    }
                }
            }
        }
    }

    /// Sends the requests that are due before another round can start.
    async fn round(&mut self) {
        let due = self.now() + APART;
        if due >= self.writes.next {
            let written = self.write().await;
            self.writes = self.pace(self.writes, Kind::Write, written.is_ok());
            self.note(Kind::Write, written);
        }
        if due >= self.reads.next {
            let read = self.read().await;
            self.reads = self.pace(self.reads, Kind::Read, read.is_ok());
            self.note(Kind::Read, read);
        }
    }

    /// Reads the members, and deletes those of dead candidates.
    async fn read(&mut self) -> Result<(), String> {
        let list = self.request(self.members.list()).await?;
        lock(&self.membership.inner.roster).apply(list, self.now());
        self.report_ranks();
        // The own member must be renewed in time, however slow deletions are.
        let _ = tokio::time::timeout(REQUEST, self.delete_dead()).await;
        Ok(())
    }

    fn report_ranks(&mut self) {
        let Some(ranking) = &self.ranking else {
            return;
        };
        // A candidate that has crashed must not get a term.
        let standings = ranking.standings(lock(&self.membership.inner.roster).recent());
        if ranking.failback == Failback::Manual {
            let own = ranking.preference(&self.member.about).rank;
            let ready = standings.iter().filter(|candidate| candidate.ready);
            let better = ready.filter(|candidate| candidate.rank > own);
            let best = better.max_by(|a, b| a.rank.cmp(&b.rank).then(b.identity.cmp(&a.identity)));
            let leads = self.shared.status.leads();
            let best = best.filter(|_| leads).map(|best| best.identity.clone());
            if let Some(candidate) = best.as_deref().filter(|_| best != self.better) {
                tracing::info!(
                    election = %self.shared.name, candidate,
                    "a candidate of higher rank is ready; to hand over, run tenure step-down --to"
                );
            }
            self.better = best;
        }
        self.shared.ask(Ask::Candidates(standings));
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
                Ok(_) => self.note(Kind::Delete, Ok(())),
                Err(why) => return self.note(Kind::Delete, Err(why)),
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

    /// Returns when a kind of request is sent next, after one that succeeded or failed.
    fn pace(&mut self, before: Pace, kind: Kind, succeeded: bool) -> Pace {
        let failures = match succeeded {
            true => 0,
            false => before.failures.saturating_add(1),
        };
        let every = self.duration / RENEWALS;
        let longest = match (kind, &self.version) {
            (Kind::Write, Some(_)) => every,
            _ => LONGEST_RETRY.max(every),
        };
        let wait = match failures {
            0 => every,
            failures => (every / 4)
                .saturating_mul(1 << failures.min(16))
                .min(longest),
        };
        // Candidates that started together do not stay together.
        let next = self.now() + wait + self.random.below(wait / 8);
        Pace { failures, next }
    }

    async fn reach(&self, at: LocalTime) {
        while self.now() < at {
            self.shared.clock.sleep_until(at).await;
        }
    }

    fn now(&self) -> LocalTime {
        self.membership.now()
    }

    /// Logs a failure. A failure that repeats is logged once.
    fn note(&mut self, kind: Kind, done: Result<(), String>) {
        let logged = &mut self.logged[kind as usize];
        let Err(why) = done else {
            *logged = None;
            return;
        };
        let what = match kind {
            Kind::Read => "cannot read the other candidates; retrying",
            Kind::Write => "cannot announce this candidate; retrying",
            Kind::Delete => "cannot delete the member of a dead candidate; retrying",
        };
        if logged.as_ref() != Some(&why) {
            tracing::warn!(election = %self.shared.name, error = why, "{what}");
            *logged = Some(why);
        }
    }
}

/// Holds back the last event of a candidate until it is dropped.
struct Held(Arc<Shared>);

impl Held {
    fn new(shared: Arc<Shared>) -> Self {
        shared.mailbox.hold();
        Self(shared)
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.0.mailbox.release();
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;
    use kube::Client;
    use kube::client::Body;
    use tenure_core::ResourceVersion;

    use super::*;
    use crate::candidate::Event;
    use crate::clock::SystemClock;

    fn keeper() -> Keeper {
        let service = tower::service_fn(|_: http::Request<Body>| async {
            Err::<http::Response<Body>, _>(std::io::Error::other("no server"))
        });
        let members = Members::open(Client::new(service, "shop"), "shop", "web").unwrap();
        let clock = Arc::new(SystemClock);
        let lease = Duration::from_secs(15);
        let text = |text: &str| Arc::from(text);
        let shared = Shared::new(
            text("web"),
            text("shop/web"),
            text("a"),
            lease,
            clock.clone(),
        );
        let membership = Membership::new(clock, lease);
        Keeper::new(
            members,
            membership,
            Arc::new(shared),
            "web",
            Announcement::default(),
        )
    }

    #[tokio::test]
    async fn last_event_waits_for_the_keeper_until_it_is_dropped() {
        let keeper = keeper();
        let shared = keeper.shared.clone();
        let next =
            || std::future::poll_fn(|context| shared.mailbox.poll(context.waker())).now_or_never();
        let never_polled = keeper.run();
        shared.mailbox.deliver(Event::Finished);
        assert!(next().is_none());
        drop(never_polled);
        assert!(matches!(next(), Some(Some(Event::Finished))));
    }

    /// Returns the seconds until each of some retries, without their random part.
    fn retries(keeper: &mut Keeper, kind: Kind) -> Vec<u64> {
        let mut pace = Pace::default();
        let mut waits = Vec::new();
        for _ in 0..6 {
            let now = keeper.now();
            pace = keeper.pace(pace, kind, false);
            let wait = pace.next.since(now).as_millis();
            // The random part is at most an eighth.
            let base = [5, 10, 20, 40, 60];
            let base = base
                .into_iter()
                .rev()
                .find(|base| u128::from(base * 1_000) <= wait);
            waits.push(base.unwrap_or_default());
        }
        waits
    }

    #[tokio::test]
    async fn failures_are_retried_less_and_less_often() {
        let mut keeper = keeper();
        let expected = [5, 10, 20, 40, 60, 60];
        assert_eq!(retries(&mut keeper, Kind::Write), expected);
        assert_eq!(retries(&mut keeper, Kind::Read), expected);
    }

    #[tokio::test]
    async fn member_that_exists_is_retried_before_others_count_it_as_dead() {
        let mut keeper = keeper();
        keeper.version = Some(Version {
            uid: "u".into(),
            revision: ResourceVersion::new("1"),
        });
        assert_eq!(retries(&mut keeper, Kind::Write), [5, 10, 10, 10, 10, 10]);
    }
}
