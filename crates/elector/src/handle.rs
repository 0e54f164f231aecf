//! User-facing handles of a running election.
//!
//! [`Candidate`] owns an election and receives its events, [`Term`] owns a term, and [`Handle`] only queries and sends
//! requests. Dropping a `Term` ends its term, and dropping a `Candidate` ends the election. In both cases the driver
//! steps down, waits for the last [`Tenure`] of the work, and releases the lock, in that order.

use std::collections::VecDeque;
use std::fmt;
use std::ops::Deref;
use std::sync::{Arc, Mutex, OnceLock};
use std::task::{Poll, Waker};
use std::time::Duration;

use tenure_core::{LocalTime, Now, StopReason};
use tokio::sync::{mpsc, watch};

use crate::clock::Clock;
use crate::deadline::Watchdog;
use crate::guard::Tenure;
use crate::health::{Health, Vitals};
use crate::hub::{Ask, Message};
use crate::status::{Board, Status};
use crate::sync::lock;

/// An event for a [`Candidate`], in the order in which it happened.
#[derive(Debug)]
#[non_exhaustive]
pub enum Event {
    /// A term has begun. Run the work, and drop the [`Term`] and every [`Tenure`] of it when the work has ended.
    Lead(Term),
    /// The term has ended. The work was cancelled through its [`Tenure`] and must end.
    Stop(StopReason),
    /// Another holder was observed. The holder is empty if the lock was released and has no new holder yet.
    NewLeader(String),
    /// The lock was released: other candidates may lead from now on.
    Released,
    /// The last event.
    Finished,
}

/// A running candidacy. Dropping it ends the election for this candidate: the term is stopped, its work joined, and the
/// lock released.
#[derive(Debug)]
#[must_use = "dropping it ends the candidacy"]
pub struct Candidate {
    shared: Arc<Shared>,
    link: Link,
}

impl Candidate {
    pub(crate) fn new(shared: Arc<Shared>, link: Link) -> Self {
        Self { shared, link }
    }

    /// Waits for the next event; `None` after the last one.
    ///
    /// # Cancel safety
    ///
    /// No event is lost when the future is dropped.
    pub async fn next(&mut self) -> Option<Event> {
        std::future::poll_fn(|context| self.shared.poll_mail(context.waker())).await
    }

    /// Ends the candidacy: stops the term if there is one, waits for its work, releases the lock. The
    /// last event is [`Event::Finished`].
    pub fn shutdown(&self) {
        self.link.send(Ask::Shutdown);
    }

    /// Returns a handle to query the election and to ask it to step down. It can be passed to other parts of the
    /// program.
    pub fn handle(&self) -> Handle {
        Handle {
            shared: self.shared.clone(),
        }
    }
}

impl Drop for Candidate {
    fn drop(&mut self) {
        self.shutdown();
        // No more events are received. A term that waits in the queue ends here.
        self.shared.close_mail();
    }
}

/// Ownership of one term, with the obligation to run its work. Dropping it ends the term. The lock is released when
/// every clone of its [`Tenure`] has been dropped as well, because parts of the work may run until then.
#[derive(Debug)]
#[must_use = "dropping it ends the term"]
pub struct Term {
    tenure: Tenure,
    dog: Arc<Watchdog>,
}

impl Term {
    pub(crate) fn new(dog: Arc<Watchdog>, link: Link) -> Self {
        dog.report_to(link);
        let tenure = Tenure::first(dog.clone());
        Self { tenure, dog }
    }

    /// Returns the handle for the work. Its clones are counted: the lock is not released while one exists.
    pub fn tenure(&self) -> &Tenure {
        &self.tenure
    }

    /// Returns the instant by which the work must have ended, as known now. It moves later with each renewal, and is
    /// fixed when the term is stopped.
    pub fn deadline(&self) -> LocalTime {
        self.dog.deadline()
    }

    /// Completes when the term has ended and unfinished work must be dropped, a little before the
    /// [`deadline`](Self::deadline).
    ///
    /// # Cancel safety
    ///
    /// Nothing is lost when the future is dropped.
    pub async fn drop_due(&self) {
        self.dog.drop_due().await;
    }

    /// Completes when no other handle of this term is left, so that dropping the `Term` releases the lock.
    ///
    /// # Cancel safety
    ///
    /// Nothing is lost when the future is dropped.
    pub async fn handles_gone(&self) {
        self.dog.one_handle_left().await;
    }
}

impl Deref for Term {
    type Target = Tenure;

    fn deref(&self) -> &Tenure {
        &self.tenure
    }
}

impl Drop for Term {
    fn drop(&mut self) {
        self.dog.cell.end(StopReason::WorkEnded);
        self.tenure.uncount();
        let handles = self.dog.drop_term();
        if handles > 0 {
            let lock = self.tenure.lock();
            tracing::info!(
                lock,
                handles,
                "parts of the work go on; the lock is kept until they end"
            );
        }
    }
}

/// A handle to query an election and to ask it to step down. Cheap to clone. It does not keep the election running.
#[derive(Clone, Debug)]
pub struct Handle {
    shared: Arc<Shared>,
}

impl Handle {
    pub(crate) fn new(shared: Arc<Shared>) -> Self {
        Self { shared }
    }

    /// Ends the current term, if there is one: its work is cancelled and joined, then the lock is released. This
    /// candidate does not campaign for `sit_out`.
    pub fn step_down(&self, sit_out: Duration) {
        self.shared.ask(Ask::StepDown(sit_out));
    }

    /// Returns the leader as known by this candidate.
    pub fn status(&self) -> Status {
        self.shared.status.get()
    }

    /// Returns a channel with the status. It notifies on changes, not on renewals.
    pub fn watch(&self) -> watch::Receiver<Status> {
        self.shared.status.subscribe()
    }

    /// Returns whether this candidate leads at this instant, according to the clock.
    pub fn is_leading(&self) -> bool {
        let term = lock(&self.shared.term).clone();
        term.is_some_and(|tenure| tenure.is_leading())
    }

    /// Returns the current term, until its work has ended. The handle is an [observer](Tenure::observer): it does not
    /// prolong the term.
    pub fn tenure(&self) -> Option<Tenure> {
        lock(&self.shared.term).clone()
    }

    /// Returns the health of the election.
    pub fn health(&self) -> Health {
        Health::new(self.shared.clone())
    }

    /// Returns the identity of this candidate.
    pub fn identity(&self) -> &str {
        &self.shared.identity
    }

    /// Returns the lock, for example `lease kube-system/x`.
    pub fn lock(&self) -> &str {
        &self.shared.lock
    }
}

/// Connection from a handle to its election in the hub.
#[derive(Clone)]
pub(crate) struct Link {
    pub(crate) inbox: mpsc::UnboundedSender<Message>,
    pub(crate) id: u64,
}

impl Link {
    pub(crate) fn send(&self, ask: Ask) {
        // A hub that has ended has already ended every term.
        let _ = self.inbox.send(Message::Ask(self.id, ask));
    }
}

impl fmt::Debug for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Link({})", self.id)
    }
}

/// State shared by the driver and the handles of one election.
#[derive(Debug)]
pub(crate) struct Shared {
    /// Name for metrics and health, like client-go's `Name`.
    pub(crate) name: Arc<str>,
    pub(crate) lock: Arc<str>,
    pub(crate) identity: Arc<str>,
    pub(crate) lease: Duration,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) status: Board,
    pub(crate) vitals: Mutex<Vitals>,
    pub(crate) term: Mutex<Option<Tenure>>,
    pub(crate) link: OnceLock<(mpsc::WeakUnboundedSender<Message>, u64)>,
    mail: Mutex<Mail>,
}

/// A queue without a preallocated buffer, because thousands of idle elections should cost little.
#[derive(Debug, Default)]
struct Mail {
    queue: VecDeque<Event>,
    waker: Option<Waker>,
    closed: bool,
}

impl Shared {
    pub(crate) fn new(
        name: Arc<str>,
        lock: Arc<str>,
        identity: Arc<str>,
        lease: Duration,
        clock: Arc<dyn Clock>,
    ) -> Self {
        Self {
            name,
            lock,
            identity,
            lease,
            clock,
            status: Board::default(),
            vitals: Mutex::default(),
            term: Mutex::default(),
            link: OnceLock::new(),
            mail: Mutex::default(),
        }
    }

    /// Sends a request to the driver, if it still runs.
    pub(crate) fn ask(&self, ask: Ask) {
        if let Some((inbox, id)) = self.link.get()
            && let Some(inbox) = inbox.upgrade()
        {
            Link { inbox, id: *id }.send(ask);
        }
    }

    /// Queues an event. If there is no receiver any more, the event is dropped together with its term.
    pub(crate) fn deliver(&self, event: Event) {
        let mut mail = lock(&self.mail);
        if mail.closed {
            drop(mail);
            drop(event);
            return;
        }
        mail.closed = matches!(event, Event::Finished);
        mail.queue.push_back(event);
        if let Some(waker) = mail.waker.take() {
            waker.wake();
        }
    }

    /// Closes the queue: the last event has been delivered, or there is no receiver.
    pub(crate) fn close_mail(&self) {
        let mut mail = lock(&self.mail);
        mail.closed = true;
        let waker = mail.waker.take();
        // Drop the events after unlocking, because a term that ends calls other code.
        let unheard = std::mem::take(&mut mail.queue);
        drop(mail);
        drop(unheard);
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Marks the driver as ended. Queued events can still be received.
    pub(crate) fn no_more_mail(&self) {
        let mut mail = lock(&self.mail);
        mail.closed = true;
        if let Some(waker) = mail.waker.take() {
            waker.wake();
        }
    }

    /// Records that a request was answered, or that the watch works again.
    pub(crate) fn works(&self) {
        let mut vitals = lock(&self.vitals);
        let failed = vitals.failing.take();
        // If only some permissions are missing, requests alternately succeed and fail.
        let news = failed.is_some_and(|(_, error)| vitals.obstacle.as_ref() != Some(&error));
        drop(vitals);
        if news {
            tracing::info!(lock = %self.lock, "the API server answers again");
        }
    }

    /// Records that a request was not answered or not permitted. Only the first failure in a row is logged as a
    /// warning.
    pub(crate) fn fails(&self, now: Now, error: &Arc<str>) {
        let mut vitals = lock(&self.vitals);
        let since = vitals.failing.as_ref().map(|(since, _)| *since);
        vitals.failing = Some((since.unwrap_or(now.local), error.clone()));
        drop(vitals);
        if since.is_none() {
            tracing::warn!(lock = %self.lock, %error, "trouble with the lock");
        } else {
            tracing::debug!(lock = %self.lock, %error, "trouble with the lock");
        }
    }

    /// Records that a write succeeded, so that a later rejection counts as a new cause.
    pub(crate) fn has_all_permissions(&self) {
        lock(&self.vitals).obstacle = None;
    }

    /// Records a failure that lasts until permissions or configuration change. Each cause is logged once.
    pub(crate) fn fails_until_changed(&self, now: Now, error: &Arc<str>) {
        let mut vitals = lock(&self.vitals);
        if vitals.obstacle.as_ref() != Some(error) {
            vitals.obstacle = Some(error.clone());
            drop(vitals);
            return self.fails(now, error);
        }
        let since = vitals.failing.as_ref().map(|(since, _)| *since);
        vitals.failing = Some((since.unwrap_or(now.local), error.clone()));
        drop(vitals);
        tracing::debug!(lock = %self.lock, %error, "the same trouble again");
    }

    fn poll_mail(&self, waker: &Waker) -> Poll<Option<Event>> {
        let mut mail = lock(&self.mail);
        match mail.queue.pop_front() {
            Some(event) => {
                if mail.queue.is_empty() {
                    mail.queue = VecDeque::new();
                }
                Poll::Ready(Some(event))
            }
            None if mail.closed => Poll::Ready(None),
            None => {
                mail.waker = Some(waker.clone());
                Poll::Pending
            }
        }
    }
}
