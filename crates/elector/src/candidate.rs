//! A running candidacy and its events.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use futures_util::Stream;
use tenure_core::StopReason;

use crate::handle::Handle;
use crate::hub::Ask;
use crate::shared::{Link, Shared};
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
        Handle::new(self.shared.clone())
    }
}

/// The events of the candidacy. The stream ends after [`Event::Finished`].
impl Stream for Candidate {
    type Item = Event;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Event>> {
        self.shared.poll_mail(context.waker())
    }
}

impl Drop for Candidate {
    fn drop(&mut self) {
        self.shutdown();
        // No more events are received. A term that waits in the queue ends here.
        self.shared.close_mail();
    }
}
