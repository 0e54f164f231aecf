//! What a hub sends: the requests under way, and those that wait for their turn.
//!
//! Thousands of elections share a handful of connections. What waits is a few words; only what is sent
//! becomes a future, with its buffers. A request that waits counts as sent all the same, so waiting
//! shortens guards and never lengthens them.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{AbortHandle, Abortable};
use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt as _, StreamExt as _};
use tenure_core::LocalTime;
use tenure_lock::BoxFuture;

use super::entry::Done;
use crate::events::Note;

/// Requests that are under way together, as long as none waits, if each takes a connection.
const USUAL: usize = 16;

/// The most, for a server that is far away; and always, if they share a connection. Servers allow a hundred
/// on one.
const MOST: usize = 64;

/// The number grows with the square of the time that the first in the queue has waited, in this unit:
/// one more after a quarter of a second, sixteen more after a second.
const GROWTH: Duration = Duration::from_millis(250);

/// Events under way together: they must not crowd out elections.
const POSTS: usize = 2;

/// An Event that was not sent by then is old news.
const STALE: Duration = Duration::from_secs(5);

/// Whose turn it is.
pub(super) enum Turn {
    /// The lock request of this election.
    Request(u64),
    /// An Event about this election.
    Post(u64, Box<Note>),
    /// An Event about this election that nobody needs any more.
    TooLate(u64),
}

/// All requests of a hub.
#[derive(Default)]
pub(super) struct Requests {
    running: FuturesUnordered<Abortable<BoxFuture<'static, (u64, Done)>>>,
    /// Elections, each once: one whose request is given up and repeated while it waits keeps its place,
    /// or a slow server would never get to anybody.
    queue: VecDeque<(LocalTime, u64)>,
    posts: VecDeque<(LocalTime, u64, Box<Note>)>,
    /// Requests share a connection.
    shared: bool,
    /// Counted by their clones.
    busy: Arc<()>,
    posting: Arc<()>,
}

impl Requests {
    /// Queues an election that is not in the queue; its turn is for the request that it has then.
    pub(super) fn queue(&mut self, now: LocalTime, election: u64) {
        self.queue.push_back((now, election));
    }

    /// Whether the last request shared its connection with others.
    pub(super) fn share(&mut self, shared: bool) {
        self.shared = shared;
    }

    /// Queues an Event.
    pub(super) fn queue_post(&mut self, now: LocalTime, election: u64, note: Note) {
        self.posts.push_back((now, election, Box::new(note)));
    }

    /// What to send now, if there is something and few enough are under way.
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

    /// Sends a lock request whose turn it is.
    pub(super) fn send(
        &mut self,
        election: u64,
        request: impl Future<Output = Done> + Send + 'static,
    ) -> AbortHandle {
        let pass = self.busy.clone();
        self.poll(election, request.inspect(move |_| drop(pass)))
    }

    /// Posts an Event whose turn it is.
    pub(super) fn post(
        &mut self,
        election: u64,
        post: impl Future<Output = Done> + Send + 'static,
    ) {
        let pass = self.posting.clone();
        self.poll(election, post.inspect(move |_| drop(pass)));
    }

    /// Polls a future in the hub's task until it is done or aborted, whatever else is under way.
    pub(super) fn poll(
        &mut self,
        election: u64,
        future: impl Future<Output = Done> + Send + 'static,
    ) -> AbortHandle {
        let (abort, registration) = AbortHandle::new_pair();
        // Not in an async block, which has room for what it awaits twice.
        let future: BoxFuture<'static, _> = Box::pin(future.map(move |done| (election, done)));
        self.running.push(Abortable::new(future, registration));
        abort
    }

    pub(super) fn is_idle(&self) -> bool {
        self.running.is_empty()
    }

    /// The same without waiting; `None` if none is done.
    pub(super) fn next_now(&mut self) -> Option<Option<(u64, Done)>> {
        let done = self.running.next().now_or_never()??;
        Some(done.ok())
    }

    /// The next future that is done, with its election; an aborted one has nothing to say.
    pub(super) async fn next(&mut self) -> Option<(u64, Done)> {
        self.running.next().await?.ok()
    }
}

fn allowed(waited: Duration) -> usize {
    let units = usize::try_from(waited.as_millis() / GROWTH.as_millis()).unwrap_or(MOST);
    USUAL.saturating_add(units.saturating_mul(units)).min(MOST)
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
    async fn a_few_are_sent_and_more_the_longer_others_wait() {
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
    async fn those_that_share_a_connection_do_not_wait_for_each_other() {
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
    async fn what_is_aborted_makes_room() {
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
