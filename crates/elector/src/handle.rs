//! The ends of an election that users hold.
//!
//! [`Candidate`] keeps an election going and hears of it, [`Term`] keeps a term going, [`Handle`]
//! only looks and asks. Dropping a `Term` ends its term; dropping a `Candidate` ends the election. Both
//! make the driver step down, wait for the last [`Tenure`] of the work, and release, in that order.

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

/// What a [`Candidate`] hears, in the order in which it happened.
#[derive(Debug)]
#[non_exhaustive]
pub enum Event {
    /// A term has begun: do the work, and drop the [`Term`] and every [`Tenure`] of it when it has ended.
    Lead(Term),
    /// The term has ended; the work was cancelled through its [`Tenure`] and has to end.
    Stop(StopReason),
    /// Another holder was seen: empty after a release that nobody has followed yet.
    NewLeader(String),
    /// The lock was given back: others may lead as of now.
    Released,
    /// Nothing more will happen.
    Finished,
}

/// A running candidacy. Dropping it ends the election for this candidate: a term is stopped, its
/// work joined, and the lock released.
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
    /// No event is lost when the future is dropped.
    pub async fn next(&mut self) -> Option<Event> {
        std::future::poll_fn(|context| self.shared.poll_mail(context.waker())).await
    }

    /// Ends the candidacy: stops the term if there is one, waits for its work, releases the lock. The
    /// last event is [`Event::Finished`].
    pub fn shutdown(&self) {
        self.link.send(Ask::Shutdown);
    }

    /// What can be given away: looks, and asks to step down.
    pub fn handle(&self) -> Handle {
        Handle {
            shared: self.shared.clone(),
        }
    }
}

impl Drop for Candidate {
    fn drop(&mut self) {
        self.shutdown();
        // Nobody will hear of terms any more; one that waits in the queue ends here.
        self.shared.close_mail();
    }
}

/// The right, and the duty, to do the work of one term. Dropping it ends the term. The lock is released
/// when, besides, every clone of its [`Tenure`] has been dropped: until then parts of the work may run.
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

    /// What the work gets. Its clones are counted: the lock is not released while one lives.
    pub fn tenure(&self) -> &Tenure {
        &self.tenure
    }

    /// By when the work must have ended, as far as is known now. It moves: later with each renewal,
    /// and to its place when the term is stopped.
    pub fn deadline(&self) -> LocalTime {
        self.dog.deadline()
    }

    /// Completes when the term has ended and work that has not must be dropped: a little before the
    /// [`deadline`](Self::deadline).
    ///
    /// # Cancel safety
    /// Nothing is lost when the future is dropped.
    pub async fn drop_due(&self) {
        self.dog.drop_due().await;
    }

    /// Completes when no other handle of this term is left, so that dropping the `Term` releases the lock.
    ///
    /// # Cancel safety
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

/// Looks at an election and asks it to step down. Cheap to clone; keeps nothing alive.
#[derive(Clone, Debug)]
pub struct Handle {
    shared: Arc<Shared>,
}

impl Handle {
    pub(crate) fn new(shared: Arc<Shared>) -> Self {
        Self { shared }
    }

    /// Gives up the term, if there is one: its work is cancelled and joined, then the lock is
    /// released. This candidate does not campaign for `sit_out`.
    pub fn step_down(&self, sit_out: Duration) {
        self.shared.ask(Ask::StepDown(sit_out));
    }

    /// Who leads, as far as this candidate knows.
    pub fn status(&self) -> Status {
        self.shared.status.get()
    }

    /// A channel of who leads. It wakes on changes, not on renewals.
    pub fn watch(&self) -> watch::Receiver<Status> {
        self.shared.status.subscribe()
    }

    /// Whether this candidate leads at this instant, by the clock.
    pub fn is_leading(&self) -> bool {
        let term = lock(&self.shared.term).clone();
        term.is_some_and(|tenure| tenure.is_leading())
    }

    /// The present term, until its work has ended. The handle is an [observer](Tenure::observer): it does
    /// not keep the term.
    pub fn tenure(&self) -> Option<Tenure> {
        lock(&self.shared.term).clone()
    }

    /// How the election is doing.
    pub fn health(&self) -> Health {
        Health::new(self.shared.clone())
    }

    /// The identity of this candidate.
    pub fn identity(&self) -> &str {
        &self.shared.identity
    }

    /// The lock, `lease kube-system/x`.
    pub fn lock(&self) -> &str {
        &self.shared.lock
    }
}

/// The way from a handle to its election in the hub.
#[derive(Clone)]
pub(crate) struct Link {
    pub(crate) inbox: mpsc::UnboundedSender<Message>,
    pub(crate) id: u64,
}

impl Link {
    pub(crate) fn send(&self, ask: Ask) {
        // A hub that is gone has ended every term when it went.
        let _ = self.inbox.send(Message::Ask(self.id, ask));
    }
}

impl fmt::Debug for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Link({})", self.id)
    }
}

/// What the driver and the handles of one election share.
#[derive(Debug)]
pub(crate) struct Shared {
    /// For metrics and health, as client-go's `Name`.
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

/// A queue without a buffer of its own: thousands of idle elections should cost little.
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

    /// Asks something of the driver, if it still runs.
    pub(crate) fn ask(&self, ask: Ask) {
        if let Some((inbox, id)) = self.link.get()
            && let Some(inbox) = inbox.upgrade()
        {
            Link { inbox, id: *id }.send(ask);
        }
    }

    /// Queues an event; if nobody listens any more it is dropped, and with it its term.
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

    /// The last event has been delivered, or nobody listens.
    pub(crate) fn close_mail(&self) {
        let mut mail = lock(&self.mail);
        mail.closed = true;
        let waker = mail.waker.take();
        // Dropped without the lock, because a term that ends calls others.
        let unheard = std::mem::take(&mut mail.queue);
        drop(mail);
        drop(unheard);
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// The driver is gone: what was delivered can still be heard.
    pub(crate) fn no_more_mail(&self) {
        let mut mail = lock(&self.mail);
        mail.closed = true;
        if let Some(waker) = mail.waker.take() {
            waker.wake();
        }
    }

    /// A request was answered, or the watch works again.
    pub(crate) fn works(&self) {
        let mut vitals = lock(&self.vitals);
        let failed = vitals.failing.take();
        // With some permissions and without others, requests succeed and fail in turn.
        let news = failed.is_some_and(|(_, error)| vitals.obstacle.as_ref() != Some(&error));
        drop(vitals);
        if news {
            tracing::info!(lock = %self.lock, "the API server answers again");
        }
    }

    /// A request was not answered, or not allowed. Only the first of a row is worth a warning.
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

    /// A write succeeded, so a later refusal is a new cause.
    pub(crate) fn has_all_permissions(&self) {
        lock(&self.vitals).obstacle = None;
    }

    /// The same for a failure that lasts until somebody changes something: each cause is logged once.
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
