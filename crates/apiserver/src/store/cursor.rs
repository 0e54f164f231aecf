//! A watch: a position in the history of one range.

use std::sync::Arc;

use tokio::sync::Notify;

use super::mvcc::Mvcc;
use super::{BoxFuture, Event, Range, Watch, WatchEnd};

/// Pulls events from the shared history; holds only its position.
#[derive(Debug)]
pub(super) struct Cursor {
    mvcc: Arc<Mvcc>,
    range: Range,
    after: u64,
    cuts: u64,
    notify: Arc<Notify>,
}

impl Cursor {
    pub(super) fn new(
        mvcc: Arc<Mvcc>,
        range: Range,
        after: u64,
        cuts: u64,
        notify: Arc<Notify>,
    ) -> Self {
        Self {
            mvcc,
            range,
            after,
            cuts,
            notify,
        }
    }

    fn pull(&mut self) -> Result<Option<Arc<Event>>, WatchEnd> {
        let event = self.mvcc.read().next(&self.range, self.after, self.cuts)?;
        if let Some(event) = &event {
            self.after = event.revision;
        }
        Ok(event)
    }
}

impl Watch for Cursor {
    fn next(&mut self) -> BoxFuture<'_, Result<Arc<Event>, WatchEnd>> {
        Box::pin(async move {
            let notify = self.notify.clone();
            loop {
                // Registers the waiter before reading, so that an event in between is not missed.
                let mut published = std::pin::pin!(notify.notified());
                published.as_mut().enable();
                if let Some(event) = self.pull()? {
                    return Ok(event);
                }
                published.await;
            }
        })
    }

    fn revision(&self) -> u64 {
        let state = self.mvcc.read();
        match state.next(&self.range, self.after, self.cuts) {
            Ok(None) => self.after.max(state.revision),
            _ => self.after,
        }
    }
}

impl Drop for Cursor {
    fn drop(&mut self) {
        self.mvcc.leave(&self.range);
    }
}
