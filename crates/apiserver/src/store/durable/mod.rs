//! The durable engine: redb stores the objects, and the in-memory state serves reads and watches.
//!
//! | module | content |
//! |---|---|
//! | `committer` | the thread that groups queued writes into one transaction and publishes them |
//! | `disk` | the open database: commits and the classification of failures |
//! | `journal` | the tables: a log of recent batches, and objects |
//! | `filling` | new databases: empty, from a backup, or with other keys |
//! | `file` | the file, which allocates its space in advance |
//! | `format` | byte formats of keys, records and batches |
//! | `trouble` | errors of redb and of the file system |
//!
//! `docs/book/reference/storage.md` describes the byte layout and crash behaviour.

mod committer;
mod disk;
mod file;
mod filling;
pub(super) mod format;
mod journal;
mod trouble;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use self::committer::Committer;
use self::disk::Disk;
#[cfg(test)]
pub(super) use self::disk::Media;
pub(super) use self::disk::{Config, sync_dir};
pub(super) use self::filling::{Image, create, replace};
pub use self::trouble::last_words;
use super::batch::Prepared;
use super::encryption::{Encryption, Rotation};
use super::engine::Engine;
use super::history::Retention;
use super::mvcc::Mvcc;
use super::{BoxFuture, Object, Write, WriteError};

/// Error of opening a store.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// Another process uses the directory.
    #[error("{} is in use by {by}; stop it first, or choose another data directory", path.display())]
    InUse {
        /// The data directory.
        path: PathBuf,
        /// The other process, if it is known.
        by: String,
    },
    /// The file is damaged. It stays unchanged.
    #[error("{} is damaged: {what}; move it away and restore a backup", path.display())]
    Corrupt {
        /// The database file.
        path: PathBuf,
        /// The damage, with the object if it is known.
        what: String,
    },
    /// An object is encrypted with a key that is missing. The file stays unchanged.
    #[error("{}: {what}", path.display())]
    Locked {
        /// The database file.
        path: PathBuf,
        /// The object, the id of the key, and the remedy.
        what: String,
    },
    /// The file was written by a newer version.
    #[error("{} has format {found}; this version supports formats up to {known}", path.display())]
    Format {
        /// The database file.
        path: PathBuf,
        /// Format of the file.
        found: u32,
        /// The newest known format.
        known: u32,
    },
    /// The directory of a restore already has a store.
    #[error("{} already exists; restore into an empty directory", path.display())]
    Exists {
        /// The database file.
        path: PathBuf,
    },
    /// The file system returned an error.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file or directory.
        path: PathBuf,
        /// The error.
        source: std::io::Error,
    },
}

/// A store in a directory. Writes are acknowledged after they are on disk.
#[derive(Debug)]
pub struct RedbStore {
    mvcc: Arc<Mvcc>,
    committer: Committer,
    encryption: Encryption,
}

impl RedbStore {
    /// Opens the store in a directory. Creates the directory if it does not exist.
    ///
    /// # Errors
    ///
    /// Returns an [`OpenError`] with the file and the reason. Every record is read and checked, so a store that opens
    /// is undamaged.
    pub fn open(dir: impl AsRef<Path>) -> Result<Self, OpenError> {
        Self::with(dir, Retention::default())
    }

    /// Like [`RedbStore::open`], with another retention.
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

    /// Like [`RedbStore::open`], with encryption.
    ///
    /// # Errors
    ///
    /// Like [`RedbStore::open`]; also if an object is encrypted with a key that is missing.
    pub fn encrypted(dir: impl AsRef<Path>, encryption: Encryption) -> Result<Self, OpenError> {
        Self::configured(
            dir,
            Config {
                encryption,
                ..Config::default()
            },
        )
    }

    /// Writes the data of a stopped server to a new file, encrypted as configured, and removes the old file. Reports
    /// its progress after every object. Blocks on the disk.
    ///
    /// # Errors
    ///
    /// Returns an error if the directory is in use, an object cannot be read, or there is no space for a second file.
    /// The data then stay unchanged.
    pub fn rotate_keys(
        dir: impl AsRef<Path>,
        encryption: &Encryption,
        progress: impl FnMut(Rotation),
    ) -> Result<Rotation, OpenError> {
        filling::rotate(dir.as_ref(), encryption, progress)
    }

    pub(super) fn configured(dir: impl AsRef<Path>, config: Config) -> Result<Self, OpenError> {
        let disk = Disk::open(dir.as_ref(), config.clone())?;
        Self::start(disk, config)
    }

    /// Opens a medium that is not a file.
    #[cfg(test)]
    pub(super) fn on(media: Media, config: Config) -> Result<Self, OpenError> {
        let disk = Disk::with(PathBuf::from("medium"), media, None, config.clone())?;
        Self::start(disk, config)
    }

    fn start((disk, mvcc): (Disk, Mvcc), config: Config) -> Result<Self, OpenError> {
        let mvcc = Arc::new(mvcc);
        let committer = Committer::start(disk, mvcc.clone(), config.queue_bytes)?;
        Ok(Self {
            mvcc,
            committer,
            encryption: config.encryption,
        })
    }

    pub(super) fn encryption(&self) -> &Encryption {
        &self.encryption
    }

    /// Finishes queued writes, marks the file as cleanly closed, and ends all watches. Later writes are rejected.
    /// Dropping the store does the same.
    pub fn close(&self) {
        self.committer.stop();
        self.mvcc.close();
    }
}

impl Engine for RedbStore {
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
