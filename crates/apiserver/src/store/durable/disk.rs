//! The database: opens, checks and loads the file, commits batches, and classifies errors.
//!
//! Invariant: a commit that did not return [`Outcome::Done`] left the previous state in the file, or returned
//! [`Outcome::Broken`], after which the disk is not used again.

use std::fs::{self, File, TryLockError};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use redb::{Database, StorageBackend};
use tenure_host::files;

use super::OpenError;
use super::file::{ClaimedFile, Watched};
use super::filling::Filling;
use super::format::{self, State, Summary};
use super::journal::{self, Content, Journal, LOG_BYTES, Row};
use super::trouble::{Trouble, Work, guarded};
use crate::store::batch::Commit;
use crate::store::encryption::Encryption;
use crate::store::history::Retention;
use crate::store::mvcc::Mvcc;

/// Name of the database file, and of the file whose lock protects the data directory.
pub(super) const DATABASE: &str = "store.redb";
const LOCK_FILE: &str = "lock";

/// The revision of an empty store, as in the memory engine.
pub(super) const FIRST: u64 = 1;

/// Number of revisions that a commit reserves before their use. After a crash the next process starts after them, so
/// that no revision is used twice even if the disk lost the last commit.
pub(super) const RESERVE: u64 = 10_000;

/// Size of redb's cache. The cache only needs the end of the log and the upper levels of the object table, which the
/// next commits touch. Objects are served from the published state, and folding reads the log from the kernel's page
/// cache.
const CACHE_BYTES: usize = 4 << 20;

/// Configuration of a store.
#[derive(Clone, Debug)]
pub(in crate::store) struct Config {
    pub(in crate::store) retention: Retention,
    pub(in crate::store) log_bytes: usize,
    /// Limit of queued bytes; further writes are rejected.
    pub(in crate::store) queue_bytes: usize,
    pub(in crate::store) encryption: Encryption,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            retention: Retention::default(),
            log_bytes: LOG_BYTES,
            queue_bytes: super::committer::QUEUE_BYTES,
            encryption: Encryption::OFF,
        }
    }
}

/// Opens the medium; called again after a full disk.
pub(in crate::store) type Media = Box<dyn Fn() -> io::Result<Box<dyn StorageBackend>> + Send>;

/// Result of a commit.
#[derive(Debug)]
pub(super) enum Outcome {
    /// The commit is durable.
    Done,
    /// There was no space. Nothing changed, and a retry may succeed.
    Full(String),
    /// The state of the disk is unknown. No further commit is allowed.
    Broken(String),
}

impl Outcome {
    pub(super) fn done(self) -> Result<(), String> {
        match self {
            Self::Done => Ok(()),
            Self::Full(error) | Self::Broken(error) => Err(error),
        }
    }
}

/// The open database.
pub(super) struct Disk {
    path: PathBuf,
    media: Media,
    /// `None` after a full disk, until there is space.
    database: Option<Database>,
    journal: Journal,
    pub(super) state: State,
    encryption: Encryption,
    sync_failed: Arc<AtomicBool>,
    /// The reason why no further commit is allowed.
    broken: Option<String>,
    /// The current kind of work, which decides the meaning of a panic in redb.
    work: Work,
    /// The error of the last failed commit.
    trouble: Option<Trouble>,
    _lock: Option<Lock>,
}

impl Disk {
    /// Opens or creates the database of a data directory, and checks and reads all of it.
    pub(super) fn open(dir: &Path, config: Config) -> Result<(Self, Mvcc), OpenError> {
        let lock = lock(dir)?;
        let path = dir.join(DATABASE);
        if !path.exists() {
            Filling::begin(dir, FIRST, config.encryption.clone())?.move_in()?;
        }
        check_present(&path)?;
        Self::with(path.clone(), file_media(path, false), Some(lock), config)
    }

    /// Opens the given medium; only messages use `path`.
    pub(super) fn with(
        path: PathBuf,
        media: Media,
        lock: Option<Lock>,
        config: Config,
    ) -> Result<(Self, Mvcc), OpenError> {
        let sync_failed = Arc::new(AtomicBool::new(false));
        let database =
            connect(&path, &media, &sync_failed).map_err(|error| error.into_open(&path))?;
        let read = guarded(Work::Open, &path, || {
            let content = journal::load(&database, config.log_bytes, &config.encryption)?;
            Ok((database, content))
        });
        let (database, content) = read.map_err(|error| error.into_open(&path))?;
        let Content {
            journal,
            state,
            entries,
            outdated,
        } = content.unwrap_or_else(|| Content::new(config.log_bytes));
        if outdated > 0 {
            tracing::warn!(
                objects = outdated,
                "objects are not encrypted as configured; stop the server and run `tenure server rotate-keys`"
            );
        }
        let revision = state.next_start();
        let mvcc = Mvcc::new(config.retention, revision);
        mvcc.load(entries);
        let database = Some(database);
        let mut disk = Self {
            path,
            media,
            database,
            journal,
            state,
            encryption: config.encryption,
            sync_failed,
            broken: None,
            work: Work::Open,
            trouble: None,
            _lock: lock,
        };
        // This commit marks the file as in use and reserves revisions.
        match disk.commit(&[], revision, &mvcc) {
            // Without space nothing is written, so no revision is used; reads work.
            Outcome::Done | Outcome::Full(_) => {
                disk.work = Work::Change;
                Ok((disk, mvcc))
            }
            Outcome::Broken(error) => {
                let trouble = disk.trouble.take();
                let trouble = trouble.unwrap_or_else(|| Trouble::Io(io::Error::other(error)));
                Err(trouble.into_open(&disk.path))
            }
        }
    }

    /// Makes a batch durable. `revision` is its last revision, and `mvcc` is the published state.
    pub(super) fn commit(&mut self, commits: &[Commit], revision: u64, mvcc: &Mvcc) -> Outcome {
        let mut state = State {
            revision,
            closed: false,
            ..self.state
        };
        if revision.saturating_add(RESERVE / 2) > state.ceiling {
            state.ceiling = revision.saturating_add(RESERVE);
        }
        for commit in commits {
            if let Some(previous) = &commit.event.previous {
                state.objects.remove(previous);
            }
            if let Some(entry) = &commit.entry {
                state.objects.add(&entry.object);
            }
        }
        self.attempt(state, commits, mvcc, &[])
    }

    /// Marks the file as cleanly closed. No commit is possible afterwards.
    pub(super) fn close(&mut self, mvcc: &Mvcc) -> Result<(), String> {
        // If the disk was full at open, the published revision is not in any commit.
        let state = State {
            revision: self.state.revision.max(mvcc.revision()),
            closed: true,
            ..self.state
        };
        let outcome = self.attempt(state, &[], mvcc, &[]);
        self.close_database();
        self.broken
            .get_or_insert_with(|| "the database is closed".to_owned());
        outcome.done()
    }

    /// Closes the database. A failure does not affect earlier commits.
    fn close_database(&mut self) {
        let database = self.database.take();
        let _ = guarded(self.work, &self.path, || {
            drop(database);
            Ok(())
        });
    }

    /// Runs one transaction, unless an earlier failure was permanent.
    pub(super) fn attempt(
        &mut self,
        state: State,
        commits: &[Commit],
        mvcc: &Mvcc,
        fill: &[Row],
    ) -> Outcome {
        if let Some(reason) = &self.broken {
            return Outcome::Broken(reason.clone());
        }
        let outcome = match self.transact(state, commits, mvcc, fill) {
            Ok(()) => Outcome::Done,
            Err(trouble) => {
                // redb accepts no commits after an error.
                self.close_database();
                let outcome = self.classify(&trouble);
                self.trouble = Some(trouble);
                outcome
            }
        };
        if let Outcome::Broken(reason) = &outcome {
            self.broken = Some(reason.clone());
        }
        outcome
    }

    fn transact(
        &mut self,
        state: State,
        commits: &[Commit],
        mvcc: &Mvcc,
        fill: &[Row],
    ) -> Result<(), Trouble> {
        let database = match &self.database {
            Some(database) => database,
            None => self.database.insert(self.reopen()?),
        };
        let number = self.journal.next();
        let batch = format::encode_batch(number, &state, commits, &self.encryption)?;
        let appended = guarded(self.work, &self.path, || {
            let transaction = database.begin_write()?;
            if !fill.is_empty() {
                journal::fill(&transaction, fill)?;
            }
            let latest = |key: &[u8]| latest(mvcc, key);
            let appended = self.journal.append(&transaction, &batch, latest)?;
            transaction.commit()?;
            Ok(appended)
        })?;
        self.journal.committed(appended);
        self.state = state;
        Ok(())
    }

    /// Decides whether the file still has the state before the failed commit, so that another commit is allowed.
    fn classify(&mut self, trouble: &Trouble) -> Outcome {
        let broken =
            |trouble: &Trouble| Outcome::Broken(format!("{}: {trouble}", self.path.display()));
        if !self.is_no_space(trouble) {
            return broken(trouble);
        }
        // The commit is incomplete, so the file must have the previous state. `reopen` checks that.
        match self.reopen() {
            Ok(database) => self.database = Some(database),
            Err(again) if self.is_no_space(&again) => {}
            Err(again) => return broken(&again),
        }
        Outcome::Full(trouble.to_string())
    }

    /// Opens the database again after a full disk, and checks that its state is unchanged.
    fn reopen(&self) -> Result<Database, Trouble> {
        let database = connect(&self.path, &self.media, &self.sync_failed)?;
        let expected = self.journal.last().map(|number| (number, self.state));
        guarded(self.work, &self.path, || {
            if journal::last(&database)? == expected {
                Ok(database)
            } else {
                Err(Trouble::Damaged(
                    "the file contains a commit that was reported as failed; restart to read it"
                        .to_owned(),
                ))
            }
        })
    }

    /// Returns the path of the database file.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Returns whether the error is a lack of space that may pass. After a failed sync the answer is always no.
    fn is_no_space(&self, trouble: &Trouble) -> bool {
        trouble.is_no_space() && !self.sync_failed.load(Ordering::Acquire)
    }
}

/// Checks that a database exists. A new database is created under another name, so an empty file is a damaged one. redb
/// would initialise it as a new database.
pub(super) fn check_present(path: &Path) -> Result<(), OpenError> {
    let found = fs::metadata(path).map_err(io_error(path))?;
    if found.len() > 0 {
        return Ok(());
    }
    Err(OpenError::Corrupt {
        path: path.to_owned(),
        what: "it is empty".to_owned(),
    })
}

/// Returns the last revision that the owner of a database may have used; `None` if the database is damaged.
pub(super) fn used_up_to(path: &Path) -> Option<u64> {
    let sync_failed = Arc::new(AtomicBool::new(false));
    let media = file_media(path.to_owned(), false);
    let database = connect(path, &media, &sync_failed).ok()?;
    let last = guarded(Work::Open, path, || {
        let last = journal::last(&database)?;
        drop(database);
        Ok(last)
    });
    let (_, state) = last.ok()??;
    Some(state.next_start())
}

pub(super) fn io_error(path: &Path) -> impl FnOnce(io::Error) -> OpenError {
    let path = path.to_owned();
    move |source| OpenError::Io { path, source }
}

impl Content {
    /// Creates the state of a new store.
    fn new(log_bytes: usize) -> Self {
        let objects = Summary::default();
        let state = State {
            revision: FIRST,
            ceiling: FIRST,
            objects,
            closed: true,
        };
        Self {
            journal: Journal::new(log_bytes),
            state,
            entries: Vec::new(),
            outdated: 0,
        }
    }
}

pub(super) fn connect(
    path: &Path,
    media: &Media,
    sync_failed: &Arc<AtomicBool>,
) -> Result<Database, Trouble> {
    let medium = media().map_err(Trouble::Io)?;
    let medium = Watched::new(medium, sync_failed.clone());
    guarded(Work::Open, path, || {
        let mut builder = Database::builder();
        Ok(builder
            .set_cache_size(CACHE_BYTES)
            .create_with_backend(medium)?)
    })
}

/// Returns the published revision of an object; a batch with this revision is its latest.
fn latest(mvcc: &Mvcc, key: &[u8]) -> Option<u64> {
    let (resource, namespace, name) = format::split_key(key)?;
    Some(mvcc.read().find(resource, namespace, name)?.object.revision)
}

/// Opens a file with mode 0600, because it contains secrets.
pub(super) fn file_media(path: PathBuf, unfinished: bool) -> Media {
    Box::new(move || {
        let mut options = File::options();
        options
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600);
        let file = options.open(&path)?;
        Ok(Box::new(ClaimedFile { file, unfinished }))
    })
}

/// The lock on a data directory.
#[derive(Debug)]
pub(super) struct Lock(File);

impl Drop for Lock {
    fn drop(&mut self) {
        // Closing is not enough, because a child process may have inherited the descriptor.
        let _ = self.0.unlock();
    }
}

/// Locks the directory. The error names the process that holds the lock.
pub(super) fn lock(dir: &Path) -> Result<Lock, OpenError> {
    let claimed = files::create_folder(dir).and_then(|()| files::check_folder(dir));
    claimed.map_err(io_error(dir))?;
    let path = dir.join(LOCK_FILE);
    let mut options = File::options();
    let mut file = options
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .open(&path)
        .map_err(io_error(&path))?;
    match file.try_lock() {
        Ok(()) => {
            // The content is only for the error message of another process.
            let _ = file
                .set_len(0)
                .and_then(|()| write!(file, "{}", std::process::id()));
            Ok(Lock(file))
        }
        Err(TryLockError::WouldBlock) => {
            let mut pid = String::new();
            let _ = file.read_to_string(&mut pid);
            let known = pid
                .trim()
                .parse::<u32>()
                .map(|pid| format!("process {pid}"));
            let by = known.unwrap_or_else(|_| "another process".to_owned());
            Err(OpenError::InUse {
                path: dir.to_owned(),
                by,
            })
        }
        Err(TryLockError::Error(source)) => Err(io_error(&path)(source)),
    }
}

/// Makes the name of a new or renamed file durable.
pub(in crate::store) fn sync_dir(dir: &Path) -> io::Result<()> {
    File::open(dir)?.sync_all()
}
