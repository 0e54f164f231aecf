//! Requests of a hub: those in flight, and those in the queue.
//!
//! Thousands of elections share a few connections. A queued request needs only a few words of memory; only a sent
//! request becomes a future with its buffers. A queued request counts as sent, so waiting shortens guards and never
//! lengthens them.
//!
//! | file | content |
//! |---|---|
//! | `announce.rs` | the LeaseCandidate of a coordinated election |
//! | `post.rs` | Events about elections |

mod announce;
mod post;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{AbortHandle, Abortable};
use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt as _, StreamExt as _};
use tenure_core::death::Evidence;
use tenure_core::{LocalTime, Record, WriteKind};
use tenure_lock::candidate::CandidateSnapshot;
use tenure_lock::{BoxFuture, Class, Snapshot};
use tokio::sync::watch;
use tracing::Instrument as _;

pub(super) use self::announce::Announcer;
use super::entry::{Entry, World};
use crate::events::Note;

/// Limit of requests in flight while none waits, if each needs a connection.
const USUAL: usize = 16;

/// Upper limit of requests in flight, for a server with a high latency. It always applies if the requests share a
/// connection. Servers allow a hundred requests on one connection.
const MOST: usize = 64;

/// Unit of the time that the first queued request has waited. The limit grows by the square of the number of units: by
/// one after a quarter of a second, and by sixteen after a second.
const GROWTH: Duration = Duration::from_millis(250);

/// Limit of Events being posted, so that they do not delay elections.
const POSTS: usize = 2;

/// An Event that was not sent after this time is dropped.
const STALE: Duration = Duration::from_secs(5);

/// Result of a future of an election.
pub(super) enum Done {
    /// A read.
    Read(u64, Result<Option<Snapshot>, tenure_lock::Error>),
    /// A write.
    Written(u64, Result<Snapshot, tenure_lock::Error>),
    /// A change of a lock in this process.
    Changed(watch::Receiver<Option<Snapshot>>),
    /// An Event.
    Posted(Result<(), String>),
    /// The LeaseCandidate.
    Announced(Result<CandidateSnapshot, String>),
    /// Evidence about the end of the holder.
    Evidence(Vec<Evidence>),
}

/// The request that the state machine waits for.
pub(super) struct Request {
    pub(super) id: u64,
    pub(super) sent: LocalTime,
    pub(super) expires: LocalTime,
    pub(super) renewal: bool,
    pub(super) stage: Stage,
}

/// Stage of a request.
pub(super) enum Stage {
    /// In the queue of the hub.
    Queued(Job),
    /// Sent, and not answered yet.
    Sent(AbortHandle),
}

/// The operation of a request on the lock.
pub(super) enum Job {
    Read,
    Write(Box<(WriteKind, Record, Option<Snapshot>)>),
}

impl Request {
    /// Aborts the request and closes its connection. A queued request is skipped.
    pub(super) fn abort(&self) {
        if let Stage::Sent(abort) = &self.stage {
            abort.abort();
        }
    }
}

/// The next item to send.
pub(super) enum Turn {
    /// The lock request of this election.
    Request(u64),
    /// An Event about this election.
    Post(u64, Box<Note>),
    /// An Event about this election, which is too old to be sent.
    TooLate(u64),
}

/// All requests of a hub.
#[derive(Default)]
pub(super) struct Requests {
    running: FuturesUnordered<Abortable<BoxFuture<'static, (u64, Done)>>>,
    /// Elections, each at most once. If a queued request is given up and repeated, its election keeps its position.
    /// Otherwise no request would ever complete on a slow server.
    queue: VecDeque<(LocalTime, u64)>,
    posts: VecDeque<(LocalTime, u64, Box<Note>)>,
    /// Whether requests share a connection.
    shared: bool,
    /// The number of clones of this value is the number of requests in flight.
    busy: Arc<()>,
    posting: Arc<()>,
}

impl Requests {
    /// Queues an election that is not in the queue. At its turn it sends the request that it has then.
    pub(super) fn queue(&mut self, now: LocalTime, election: u64) {
        self.queue.push_back((now, election));
    }

    /// Records whether the last request shared its connection with others.
    pub(super) fn share(&mut self, shared: bool) {
        self.shared = shared;
    }

    /// Queues an Event.
    pub(super) fn queue_post(&mut self, now: LocalTime, election: u64, note: Note) {
        self.posts.push_back((now, election, Box::new(note)));
    }

    /// Returns the next item to send, if there is one and the limit of requests in flight allows it.
    pub(super) fn next_turn(&mut self, now: LocalTime) -> Option<Turn> {
        if let Some((since, election)) = self.queue.front().copied() {
            let most = match self.shared {
                true => MOST,
                false => allowed(now.since(since)),
            };
            if Arc::strong_count(&self.busy) > most {
                return None;
            }
            self.queue.pop_front();
            if self.queue.is_empty() {
                self.queue = VecDeque::new();
            }
            return Some(Turn::Request(election));
        }
        let (since, ..) = self.posts.front()?;
        let late = now.since(*since) > STALE;
        if !late && Arc::strong_count(&self.posting) > POSTS {
            return None;
        }
        let (_, election, note) = self.posts.pop_front()?;
        if self.posts.is_empty() {
            self.posts = VecDeque::new();
        }
        Some(if late {
            Turn::TooLate(election)
        } else {
            Turn::Post(election, note)
        })
    }

    /// Sends the next lock request.
    pub(super) fn send(
        &mut self,
        election: u64,
        request: impl Future<Output = Done> + Send + 'static,
    ) -> AbortHandle {
        let pass = self.busy.clone();
        self.poll(election, request.inspect(move |_| drop(pass)))
    }

    /// Posts the next Event.
    pub(super) fn post(
        &mut self,
        election: u64,
        post: impl Future<Output = Done> + Send + 'static,
    ) {
        let pass = self.posting.clone();
        self.poll(election, post.inspect(move |_| drop(pass)));
    }

    /// Polls a future in the hub's task until it completes or is aborted, without a limit.
    pub(super) fn poll(
        &mut self,
        election: u64,
        future: impl Future<Output = Done> + Send + 'static,
    ) -> AbortHandle {
        let (abort, registration) = AbortHandle::new_pair();
        // This is not an async block, because such a block reserves memory twice for the future that it awaits.
        let future: BoxFuture<'static, _> = Box::pin(future.map(move |done| (election, done)));
        self.running.push(Abortable::new(future, registration));
        abort
    }

    pub(super) fn is_idle(&self) -> bool {
        self.running.is_empty()
    }

    /// Same as [`next`](Self::next) without waiting; `None` if no future has completed.
    pub(super) fn next_now(&mut self) -> Option<Option<(u64, Done)>> {
        let done = self.running.next().now_or_never()??;
        Some(done.ok())
    }

    /// Returns the next completed future with its election. An aborted future returns nothing.
    pub(super) async fn next(&mut self) -> Option<(u64, Done)> {
        self.running.next().await?.ok()
    }
}

fn allowed(waited: Duration) -> usize {
    let units = usize::try_from(waited.as_millis() / GROWTH.as_millis()).unwrap_or(MOST);
    USUAL.saturating_add(units.saturating_mul(units)).min(MOST)
}

impl Entry {
    pub(super) fn queue(
        &mut self,
        world: &mut World,
        id: u64,
        timeout: Duration,
        renewal: bool,
        job: Job,
    ) {
        let sent = world.clock.now().local;
        if !std::mem::replace(&mut self.queued, true) {
            world.requests.queue(sent, self.id);
        }
        let request = Request {
            id,
            sent,
            expires: sent + timeout,
            renewal,
            stage: Stage::Queued(job),
        };
        // The state machine may have given up on the previous request.
        if let Some(late) = self.request.replace(request) {
            late.abort();
        }
    }

    /// Sends the request of this election, unless it was given up in the queue.
    pub(super) fn send(&mut self, world: &mut World) {
        self.queued = false;
        let Some(request) = &mut self.request else {
            return;
        };
        if request.expires <= world.clock.now().local {
            // The request was given up, or is about to be. A renewal without a waiting election would only delay the
            // next leader.
            return;
        }
        let id = request.id;
        let Stage::Queued(job) = &mut request.stage else {
            return;
        };
        let (job, lock) = (std::mem::replace(job, Job::Read), self.lock.clone());
        let send = async move {
            match job {
                Job::Read => Done::Read(id, lock.read().await),
                Job::Write(write) => {
                    let (kind, record, base) = *write;
                    Done::Written(id, lock.write(&kind, &record, base.as_ref()).await)
                }
            }
        };
        let send = send.instrument(self.span.clone());
        request.stage = Stage::Sent(world.requests.send(self.id, send));
    }

    /// Drops a request that timed out, and closes its connection. The state machine knows the timeout too, and treats
    /// the request as failed without an input.
    pub(super) fn drop_late_request(&mut self, world: &World) {
        let now = world.clock.now();
        if let Some(late) = self.request.take_if(|r| r.expires <= now.local) {
            late.abort();
            let error = format!("no response about {} in time", self.lock.describe());
            self.record(|metrics| metrics.failed(Class::Unknown, now.wall));
            self.shared.fails(now, &error.into());
        }
    }

    pub(super) fn answered(&mut self, world: &mut World, id: u64) {
        world.requests.share(self.lock.shares_connection());
        let request = self.request.take_if(|request| request.id == id);
        if let Some(renewal) = request.filter(|request| request.renewal) {
            let took = world.clock.now().local.since(renewal.sent);
            self.record(|metrics| metrics.renewed(took));
        }
    }

    pub(super) fn failed(&self, world: &World, error: &tenure_lock::Error) {
        let now = world.clock.now();
        self.record(|metrics| metrics.failed(error.class(), now.wall));
        if error.class() == Class::Refused {
            // Another candidate was faster. This is normal contention, and the server works.
            tracing::debug!(%error, "refused");
            self.shared.works();
        } else {
            let text = error.to_string().into();
            match error.class() {
                Class::Unusable => self.shared.fails_until_changed(now, &text),
                _ => self.shared.fails(now, &text),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> LocalTime {
        LocalTime::from_nanos(millis * 1_000_000)
    }

    fn drain(requests: &mut Requests, now: LocalTime) -> usize {
        let mut sent = 0;
        while let Some(Turn::Request(election)) = requests.next_turn(now) {
            requests.send(election, std::future::pending());
            sent += 1;
        }
        sent
    }

    #[tokio::test]
    async fn limit_of_requests_in_flight_grows_with_the_waiting_time() {
        let mut requests = Requests::default();
        for id in 0..1_000 {
            requests.queue(at(0), id);
        }
        assert_eq!(drain(&mut requests, at(0)), USUAL);
        assert_eq!(drain(&mut requests, at(249)), 0);
        assert_eq!(drain(&mut requests, at(250)), 1);
        assert_eq!(drain(&mut requests, at(1_000)), 15);
        assert_eq!(drain(&mut requests, at(60_000)), MOST - USUAL - 16);
    }

    #[tokio::test]
    async fn requests_on_a_shared_connection_use_the_upper_limit() {
        let mut requests = Requests::default();
        for id in 0..1_000 {
            requests.queue(at(0), id);
        }
        requests.share(true);
        assert_eq!(drain(&mut requests, at(0)), MOST);
        requests.share(false);
        assert_eq!(drain(&mut requests, at(0)), 0);
    }

    #[tokio::test]
    async fn aborted_request_frees_its_place() {
        let mut requests = Requests::default();
        let first = requests.send(1, std::future::pending());
        for id in 2..100 {
            requests.queue(at(0), id);
        }
        assert_eq!(drain(&mut requests, at(0)), USUAL - 1);
        first.abort();
        assert!(requests.next().await.is_none());
        assert_eq!(drain(&mut requests, at(0)), 1);
    }
}
