//! The durable engine: redb for what must survive, the in-memory state for everything else.
//!
//! | part | is about |
//! |---|---|
//! | `committer` | the thread that groups queued writes into one transaction and publishes them |
//! | `disk` | the open database: one commit after the other, and what a failed one means |
//! | `journal` | the tables in it: a log of recent batches, and objects at rest |
//! | `file` | the file under it, which claims its space before it is used |
//! | `format` | bytes of keys, records and batches |
//! | `trouble` | errors of redb and of the file system |
//!
//! `docs/storage.md` has the byte layout and what happens at a crash.

mod committer;
mod disk;
mod file;
pub(super) mod format;
mod journal;
mod trouble;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use self::committer::Committer;
use self::disk::Disk;
#[cfg(test)]
pub(super) use self::disk::Media;
pub(super) use self::disk::{Config, Image, sync_dir};
use super::batch::Prepared;
use super::history::Retention;
use super::mvcc::Mvcc;
use super::{BoxFuture, Expired, Key, Listing, Object, Range, Store, Watch, Write, WriteError};

/// Why a store did not open.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// Another process has it.
    #[error("{} is in use by {by}; stop it first, or choose another data directory", path.display())]
    InUse {
        /// The data directory.
        path: PathBuf,
        /// Who has it, as far as is known.
        by: String,
    },
    /// The file is damaged. It is left as it is.
    #[error("{} is damaged: {what}; restore a backup into an empty directory", path.display())]
    Corrupt {
        /// The database file.
        path: PathBuf,
        /// What is wrong, and with which object.
        what: String,
    },
    /// The file was written by a newer version.
    #[error("{} has format {found}, and this version knows up to {known}", path.display())]
    Format {
        /// The database file.
        path: PathBuf,
        /// Its format.
        found: u32,
        /// The newest known format.
        known: u32,
    },
    /// There is a store where a new one should be made.
    #[error("{} is there already; a restore goes into an empty directory", path.display())]
    Exists {
        /// The database file.
        path: PathBuf,
    },
    /// The file system refused.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file or directory.
        path: PathBuf,
        /// What it said.
        source: std::io::Error,
    },
}

/// A store in a directory. Writes are acknowledged after they are on disk.
#[derive(Debug)]
pub struct RedbStore {
    mvcc: Arc<Mvcc>,
    committer: Committer,
}

impl RedbStore {
    /// Opens the store in a directory, which is made if it is not there.
    ///
    /// # Errors
    ///
    /// Says in [`OpenError`] what is wrong with which file. Every record is read and checked, so a
    /// store that opens serves only what was written.
    pub fn open(dir: impl AsRef<Path>) -> Result<Self, OpenError> {
        Self::with(dir, Retention::default())
    }

    /// Like [`RedbStore::open`], with another length of history.
    ///
    /// # Errors
    ///
    /// Like [`RedbStore::open`].
    pub fn with(dir: impl AsRef<Path>, retention: Retention) -> Result<Self, OpenError> {
        Self::configured(
            dir,
            Config {
                retention,
                ..Config::default()
            },
        )
    }

    pub(super) fn configured(dir: impl AsRef<Path>, config: Config) -> Result<Self, OpenError> {
        Self::start(Disk::open(dir.as_ref(), config)?)
    }

    /// Opens what is not a file.
    #[cfg(test)]
    pub(super) fn on(media: Media, config: Config) -> Result<Self, OpenError> {
        Self::start(Disk::with(PathBuf::from("medium"), media, None, config)?)
    }

    fn start((disk, mvcc): (Disk, Mvcc)) -> Result<Self, OpenError> {
        let mvcc = Arc::new(mvcc);
        let committer = Committer::start(disk, mvcc.clone())?;
        Ok(Self { mvcc, committer })
    }

    /// Finishes queued writes, marks the file as closed in order, and ends all watches. Later writes
    /// are refused. Dropping the store does the same.
    pub fn close(&self) {
        self.committer.stop();
        self.mvcc.close();
    }

    pub(super) fn mvcc(&self) -> &Arc<Mvcc> {
        &self.mvcc
    }
}

impl Store for RedbStore {
    fn revision(&self) -> u64 {
        self.mvcc.revision()
    }

    fn get(&self, key: &Key) -> Option<Arc<Object>> {
        self.mvcc.get(key)
    }

    fn list(&self, range: &Range, at: Option<u64>) -> Result<Listing, Expired> {
        self.mvcc.list(range, at)
    }

    fn reached(&self, revision: u64) -> BoxFuture<'_, ()> {
        self.mvcc.reached(revision)
    }

    fn write(&self, write: Write) -> BoxFuture<'_, Result<Arc<Object>, WriteError>> {
        Box::pin(async move {
            let present = self.mvcc.get(&write.key);
            self.committer.write(Prepared::new(write, present)?).await
        })
    }

    fn watch(&self, range: Range, after: u64) -> Result<Box<dyn Watch>, Expired> {
        Ok(Box::new(self.mvcc.watch(range, after)?))
    }

    fn jump(&self, by: u64) -> BoxFuture<'_, Result<u64, WriteError>> {
        Box::pin(self.committer.jump(by))
    }

    fn failure(&self) -> Option<String> {
        self.committer.failure()
    }
}

impl Drop for RedbStore {
    fn drop(&mut self) {
        self.close();
    }
}

/// Makes a new store in a directory from what a backup holds.
pub(super) fn create(dir: &Path, image: Image) -> Result<(), OpenError> {
    Disk::create(dir, image)
}
