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
pub use self::trouble::last_words;
use super::batch::Prepared;
use super::history::Retention;
use super::mvcc::Mvcc;
use super::published::Published;
use super::{BoxFuture, Object, Write, WriteError};

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
    #[error("{} is damaged: {what}; move it away and restore a backup", path.display())]
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
        Self::start(Disk::open(dir.as_ref(), config)?, config.queue_bytes)
    }

    /// Opens what is not a file.
    #[cfg(test)]
    pub(super) fn on(media: Media, config: Config) -> Result<Self, OpenError> {
        let disk = Disk::with(PathBuf::from("medium"), media, None, config)?;
        Self::start(disk, config.queue_bytes)
    }

    fn start((disk, mvcc): (Disk, Mvcc), queue_bytes: usize) -> Result<Self, OpenError> {
        let mvcc = Arc::new(mvcc);
        let committer = Committer::start(disk, mvcc.clone(), queue_bytes)?;
        Ok(Self { mvcc, committer })
    }

    /// Finishes queued writes, marks the file as closed in order, and ends all watches. Later writes
    /// are refused. Dropping the store does the same.
    pub fn close(&self) {
        self.committer.stop();
        self.mvcc.close();
    }
}

impl Published for RedbStore {
    fn mvcc(&self) -> &Arc<Mvcc> {
        &self.mvcc
    }

    fn put(&self, write: Write) -> BoxFuture<'_, Result<Arc<Object>, WriteError>> {
        Box::pin(async move {
            let present = self.mvcc.get(&write.key);
            self.committer.write(Prepared::new(write, present)?).await
        })
    }

    fn raise(&self, by: u64) -> BoxFuture<'_, Result<u64, WriteError>> {
        self.committer.jump(by)
    }

    fn trouble(&self) -> Option<String> {
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

/// Puts what a backup holds in the place of the store in a directory, which is kept under the
/// returned name. The content is decided when the present store's last revision is known.
pub(super) fn replace(
    dir: &Path,
    image: impl FnOnce(Option<u64>) -> Image,
) -> Result<Option<PathBuf>, OpenError> {
    Disk::replace(dir, image)
}
