//! The in-memory engine, for tests and for servers whose data may be lost with the process.

use std::sync::Arc;

use super::batch::{Batch, Prepared};
use super::encryption::Encryption;
use super::engine::Engine;
use super::history::Retention;
use super::mvcc::Mvcc;
use super::{BoxFuture, Object, Write, WriteError};

/// A store in memory only. A write is durable when it is in the map.
#[derive(Debug)]
pub struct MemoryStore {
    mvcc: Arc<Mvcc>,
    encryption: Encryption,
}

impl Default for MemoryStore {
    fn default() -> Self {
        Self::new()
    }
}

impl MemoryStore {
    /// Creates an empty store at revision 1, because resource version "0" means any version.
    pub fn new() -> Self {
        Self::with(Retention::default())
    }

    /// Creates an empty store with another retention.
    pub fn with(retention: Retention) -> Self {
        Self {
            mvcc: Arc::new(Mvcc::new(retention, 1)),
            encryption: Encryption::OFF,
        }
    }

    /// Encrypts the backups of this store.
    #[must_use]
    pub fn encrypted(mut self, encryption: Encryption) -> Self {
        self.encryption = encryption;
        self
    }

    pub(super) fn encryption(&self) -> &Encryption {
        &self.encryption
    }

    /// Ends all watches with [`super::WatchEnd::Closed`].
    pub fn close(&self) {
        self.mvcc.close();
    }

    fn write_now(&self, write: Write) -> Result<Arc<Object>, WriteError> {
        let present = self.mvcc.get(&write.key);
        let write = Prepared::new(write, present)?;
        self.mvcc.publish_with(|state| {
            let mut batch = Batch::new(state, state.revision);
            let object = batch.add(write).map_err(|refusal| refusal.error)?;
            let commit = batch
                .into_commits()
                .pop()
                .expect("an accepted write is in its batch");
            Ok((commit, object))
        })
    }
}

impl Engine for MemoryStore {
    fn mvcc(&self) -> &Arc<Mvcc> {
        &self.mvcc
    }

    fn put(&self, write: Write) -> BoxFuture<'_, Result<Arc<Object>, WriteError>> {
        Box::pin(async move { self.write_now(write) })
    }

    fn raise(&self, by: u64) -> BoxFuture<'_, Result<u64, WriteError>> {
        Box::pin(async move {
            self.mvcc.jump(self.mvcc.revision().saturating_add(by));
            Ok(self.mvcc.revision())
        })
    }

    fn trouble(&self) -> Option<String> {
        None
    }
}

impl Drop for MemoryStore {
    fn drop(&mut self) {
        self.mvcc.close();
    }
}
