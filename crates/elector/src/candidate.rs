//! A running candidacy, its events, and the work of its terms.

use std::collections::VecDeque;
use std::panic::AssertUnwindSafe;
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};

use futures_util::{FutureExt as _, Stream};
use tenure_core::StopReason;

use crate::elector::{Elector, Ended};
use crate::handle::Handle;
use crate::hub::Ask;
use crate::shared::{Link, Shared};
use crate::sync::lock;
use crate::term::Term;

/// An event for a [`Candidate`], in the order in which it happened.
#[derive(Debug)]
#[non_exhaustive]
pub enum Event {
    /// A term has begun. Run the work, and drop the [`Term`] and every [`Tenure`](crate::Tenure) of it when the work has
    /// ended.
    Lead(Term),
    /// The term has ended. The work was cancelled through its [`Tenure`](crate::Tenure) and must end.
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
        std::future::poll_fn(|context| self.shared.mailbox.poll(context.waker())).await
    }

    /// Ends the candidacy: stops the term if there is one, waits for its work, releases the lock. The
    /// last event is [`Event::Finished`].
    pub fn shutdown(&self) {
        self.shared.leave();
        self.link.send(Ask::Shutdown);
    }

    /// Returns a handle to query the election and to ask it to step down. It can be passed to other parts of the
    /// program.
    pub fn handle(&self) -> Handle {
        Handle::new(self.shared.clone())
    }
}

/// The events of the candidacy. The stream ends after [`Event::Finished`].
impl Stream for Candidate {
    type Item = Event;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Event>> {
        self.shared.mailbox.poll(context.waker())
    }
}

impl Drop for Candidate {
    fn drop(&mut self) {
        self.shutdown();
        // No more events are received. A term that waits in the queue ends here.
        self.shared.mailbox.close();
    }
}

/// The events that a candidate has not received yet.
#[derive(Debug, Default)]
pub(crate) struct Mailbox(Mutex<Mail>);

/// A queue without a preallocated buffer, because thousands of idle elections should cost little.
#[derive(Debug, Default)]
struct Mail {
    queue: VecDeque<Event>,
    waker: Option<Waker>,
    closed: bool,
    /// Whether the last event is held back until the rest of the candidacy has ended, such as its membership.
    held: bool,
}

impl Mailbox {
    /// Queues an event. If the receiver is gone, the event is dropped together with its term.
    pub(crate) fn deliver(&self, event: Event) {
        let mut mail = lock(&self.0);
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

    /// Closes the queue after the last event was delivered, or the receiver was dropped.
    fn close(&self) {
        let mut mail = lock(&self.0);
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
    pub(crate) fn end(&self) {
        let mut mail = lock(&self.0);
        mail.closed = true;
        if let Some(waker) = mail.waker.take() {
            waker.wake();
        }
    }

    /// Holds back the last event until [`release`](Self::release).
    pub(crate) fn hold(&self) {
        lock(&self.0).held = true;
    }

    /// Lets the last event pass.
    pub(crate) fn release(&self) {
        let mut mail = lock(&self.0);
        mail.held = false;
        if let Some(waker) = mail.waker.take() {
            waker.wake();
        }
    }

    /// Returns the next event, or `None` after the last one.
    pub(crate) fn poll(&self, waker: &Waker) -> Poll<Option<Event>> {
        let mut mail = lock(&self.0);
        if mail.held && matches!(mail.queue.front(), Some(Event::Finished)) {
            mail.waker = Some(waker.clone());
            return Poll::Pending;
        }
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

/// A candidacy together with its shutdown.
pub(crate) struct Race<'a, S> {
    candidate: Candidate,
    shutdown: Pin<&'a mut S>,
    asked: bool,
    over: bool,
}

impl<'a, S: Future> Race<'a, S> {
    pub(crate) fn new(elector: Elector, rejoin: bool, shutdown: Pin<&'a mut S>) -> Self {
        let candidate = if rejoin {
            elector.start()
        } else {
            elector.start_once()
        };
        Self {
            candidate,
            shutdown,
            asked: false,
            over: false,
        }
    }

    /// Returns the next event. Forwards a shutdown while it waits.
    async fn next(&mut self) -> Option<Event> {
        loop {
            tokio::select! {
                biased;
                event = self.candidate.next() => return event,
                _ = self.shutdown.as_mut(), if !self.asked => {
                    self.asked = true;
                    self.candidate.shutdown();
                }
            }
        }
    }

    /// Waits until this candidate leads. Returns `None` if the candidacy ends before that.
    pub(crate) async fn next_term(&mut self, new_leader: &mut impl FnMut(&str)) -> Option<Term> {
        while !self.over {
            match self.next().await {
                Some(Event::Lead(term)) => return Some(term),
                Some(Event::NewLeader(holder)) => new_leader(&holder),
                Some(Event::Finished) | None => self.over = true,
                Some(_) => {}
            }
        }
        None
    }

    /// Runs the work of a term.
    pub(crate) async fn during<W: Future>(
        &mut self,
        term: &Term,
        work: W,
        new_leader: &mut impl FnMut(&str),
    ) -> Ended<W::Output> {
        let mut work = pin!(AssertUnwindSafe(work).catch_unwind());
        let mut drop_due = pin!(term.drop_due());
        loop {
            tokio::select! {
                biased;
                event = self.next(), if !self.over => match event {
                    Some(Event::NewLeader(holder)) => new_leader(&holder),
                    Some(Event::Finished) | None => self.over = true,
                    Some(_) => {}
                },
                result = &mut work => {
                    return match (result, term.tenure().reason()) {
                        (Err(payload), _) => Ended::Panicked(payload),
                        (Ok(output), None) => Ended::Completed(output),
                        (Ok(output), Some(reason)) => Ended::Stopped {
                            reason,
                            output: Some(output),
                        },
                    };
                }
                () = &mut drop_due => {
                    tracing::warn!(lock = term.tenure().lock(), "work did not stop before its deadline; dropping it");
                    let reason = term.tenure().reason().unwrap_or(StopReason::GuardExpired);
                    return Ended::Stopped { reason, output: None };
                }
            }
        }
    }
}
