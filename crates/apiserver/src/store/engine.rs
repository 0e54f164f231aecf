//! Shared part of all engines: reads and watches are served from the published state; only writes differ.

use std::sync::Arc;

use super::mvcc::Mvcc;
use super::{
    BoxFuture, Expired, Fence, Key, Listing, Object, Range, Store, Unavailable, Watch, Window,
    Write, WriteError,
};

/// An engine over a published state.
pub(super) trait Engine: Send + Sync + 'static {
    /// Returns the published state.
    fn mvcc(&self) -> &Arc<Mvcc>;
    /// See [`Store::write`].
    fn put(&self, write: Write) -> BoxFuture<'_, Result<Arc<Object>, WriteError>>;
    /// See [`Store::jump`].
    fn raise(&self, by: u64) -> BoxFuture<'_, Result<u64, WriteError>>;
    /// See [`Store::failure`].
    fn trouble(&self) -> Option<String>;
    /// See [`Store::shared`].
    fn has_other_writers(&self) -> bool {
        false
    }
    /// See [`Store::fresh`].
    fn catch_up(&self) -> BoxFuture<'_, Result<(), Unavailable>> {
        Box::pin(std::future::ready(Ok(())))
    }
}

impl<E: Engine> Store for E {
    fn revision(&self) -> u64 {
        self.mvcc().revision()
    }

    fn get(&self, key: &Key) -> Option<Arc<Object>> {
        self.mvcc().get(key)
    }

    fn page(
        &self,
        range: &Range,
        at: Option<u64>,
        window: &Window<'_>,
    ) -> Result<Listing, Expired> {
        self.mvcc().page(range, at, window)
    }

    fn check_fence(&self, fence: &Fence) -> Result<(), WriteError> {
        self.mvcc().check_fence(fence)
    }

    fn reached(&self, revision: u64) -> BoxFuture<'_, ()> {
        self.mvcc().reached(revision)
    }

    fn write(&self, write: Write) -> BoxFuture<'_, Result<Arc<Object>, WriteError>> {
        self.put(write)
    }

    fn watch(&self, range: Range, after: u64) -> Result<Box<dyn Watch>, Expired> {
        Ok(Box::new(self.mvcc().watch(range, after)?))
    }

    fn jump(&self, by: u64) -> BoxFuture<'_, Result<u64, WriteError>> {
        self.raise(by)
    }

    fn failure(&self) -> Option<String> {
        self.trouble()
    }

    fn shared(&self) -> bool {
        self.has_other_writers()
    }

    fn fresh(&self) -> BoxFuture<'_, Result<(), Unavailable>> {
        self.catch_up()
    }
}
