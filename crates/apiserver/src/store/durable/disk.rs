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
use super::format::{self, State, Summary};
use super::journal::{self, Content, Journal, LOG_BYTES};
use super::trouble::{Trouble, Work, guarded};
use crate::store::batch::{Commit, Entry};
use crate::store::history::Retention;
use crate::store::mvcc::Mvcc;

/// Name of the database file, and of the file whose lock protects the data directory.
const DATABASE: &str = "store.redb";
const LOCK_FILE: &str = "lock";
/// Name of the database file until it is complete.
const UNFINISHED: &str = "store.redb.part";

/// The revision of an empty store, as in the memory engine.
const FIRST: u64 = 1;

/// Number of revisions that a commit reserves before their use. After a crash the next process starts after them, so
/// that no revision is used twice even if the disk lost the last commit.
pub(super) const RESERVE: u64 = 10_000;

/// Cache of redb. It holds only the end of the log and the upper levels of the objects, which the next commits touch.
/// Objects are served from other memory, and folding reads the log from the kernel's page cache.
const CACHE_BYTES: usize = 4 << 20;

/// Configuration of a store.
#[derive(Clone, Copy, Debug)]
pub(in crate::store) struct Config {
    pub(in crate::store) retention: Retention,
    pub(in crate::store) log_bytes: usize,
    /// Limit of queued bytes; further writes are rejected.
    pub(in crate::store) queue_bytes: usize,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            retention: Retention::default(),
            log_bytes: LOG_BYTES,
            queue_bytes: super::committer::QUEUE_BYTES,
        }
    }
}

/// Opens the medium; called again after a full disk.
pub(in crate::store) type Media = Box<dyn Fn() -> io::Result<Box<dyn StorageBackend>> + Send>;

/// The content of a store.
#[derive(Debug)]
pub(in crate::store) struct Image {
    pub(in crate::store) revision: u64,
    pub(in crate::store) entries: Vec<Entry>,
}

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
    fn done(self) -> Result<(), String> {
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
    state: State,
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
            let empty = Image {
                revision: FIRST,
                entries: Vec::new(),
            };
            move_in(dir, &fill(dir, empty)?)?;
        }
        // A new store is created under another name, so an empty file is damaged. redb would take it for a new one.
        let found = fs::metadata(&path).map_err(io_error(&path))?;
        if found.len() == 0 {
            return Err(OpenError::Corrupt {
                path,
                what: "it is empty".to_owned(),
            });
        }
        Self::with(path.clone(), file_media(path, false), Some(lock), config)
    }

    /// Opens the given medium; `path` is for messages.
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
            let content = journal::load(&database, config.log_bytes)?;
            Ok((database, content))
        });
        let (database, content) = read.map_err(|error| error.into_open(&path))?;
        let Content {
            journal,
            state,
            entries,
        } = content.unwrap_or_else(|| Content::new(config.log_bytes));
        let revision = if state.closed {
            state.revision
        } else {
            state.ceiling
        };
        let mvcc = Mvcc::new(config.retention, revision);
        mvcc.load(entries);
        let database = Some(database);
        let mut disk = Self {
            path,
            media,
            database,
            journal,
            state,
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

    /// Creates a database with the given content.
    pub(super) fn create(dir: &Path, image: Image) -> Result<(), OpenError> {
        let _lock = lock(dir)?;
        let path = dir.join(DATABASE);
        if path.exists() {
            Err(OpenError::Exists { path })
        } else {
            move_in(dir, &fill(dir, image)?)
        }
    }

    /// Replaces a database with the given content. The old database gets another name. At every moment one of the two is
    /// complete and in place.
    pub(super) fn replace(
        dir: &Path,
        image: impl FnOnce(Option<u64>) -> Image,
    ) -> Result<Option<PathBuf>, OpenError> {
        let _lock = lock(dir)?;
        let path = dir.join(DATABASE);
        let present = path.exists().then(|| used_up_to(&path)).flatten();
        let image = image(present);
        let kept = dir.join(format!("{DATABASE}.before-{}", image.revision));
        let part = fill(dir, image)?;
        let kept = if path.exists() {
            fs::hard_link(&path, &kept).map_err(io_error(&kept))?;
            Some(kept)
        } else {
            None
        };
        move_in(dir, &part)?;
        Ok(kept)
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
    fn attempt(
        &mut self,
        state: State,
        commits: &[Commit],
        mvcc: &Mvcc,
        fill: &[Entry],
    ) -> Outcome {
        if let Some(reason) = &self.broken {
            return Outcome::Broken(reason.clone());
        }
        let outcome = match self.transact(state, commits, mvcc, fill) {
            Ok(()) => Outcome::Done,
            Err(trouble) => {
                // redb accepts no commits after an error.
                self.close_database();
                let outcome = self.judge(&trouble);
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
        fill: &[Entry],
    ) -> Result<(), Trouble> {
        let database = match &self.database {
            Some(database) => database,
            None => self.database.insert(self.reopen()?),
        };
        let batch = format::encode_batch(self.journal.next(), &state, commits);
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
    fn judge(&mut self, trouble: &Trouble) -> Outcome {
        let broken =
            |trouble: &Trouble| Outcome::Broken(format!("{}: {trouble}", self.path.display()));
        if !self.is_no_space(trouble) {
            return broken(trouble);
        }
        // A page of the commit is missing, so the file has the previous state; reading it confirms that.
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
                    "a refused commit is there; restart to read it".to_owned(),
                ))
            }
        })
    }

    /// Path of the database file.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Returns whether the error is a lack of space that may pass. After a failed sync the answer is always no.
    fn is_no_space(&self, trouble: &Trouble) -> bool {
        trouble.is_no_space() && !self.sync_failed.load(Ordering::Acquire)
    }
}

/// Writes a database under a temporary name, so that an incomplete one is never used, and returns that name. The
/// directory must be locked.
fn fill(dir: &Path, image: Image) -> Result<PathBuf, OpenError> {
    let part = dir.join(UNFINISHED);
    match fs::remove_file(&part) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            return Err(io_error(&part)(error));
        }
        _ => {}
    }
    let media = file_media(part.clone(), true);
    let (mut disk, mvcc) = Disk::with(part.clone(), media, None, Config::default())?;
    let Image { revision, entries } = image;
    let mut state = State {
        revision,
        ceiling: revision,
        ..disk.state
    };
    entries
        .iter()
        .for_each(|entry| state.objects.add(&entry.object));
    let filled = disk.attempt(state, &[], &mvcc, &entries).done();
    let closed = filled.and_then(|()| disk.close(&mvcc));
    closed.map_err(|error| io_error(&part)(io::Error::other(error)))?;
    let complete = File::open(&part).and_then(|file| file.sync_all());
    complete.map_err(io_error(&part))?;
    Ok(part)
}

/// Renames a complete database to its final name, durably.
fn move_in(dir: &Path, part: &Path) -> Result<(), OpenError> {
    let path = dir.join(DATABASE);
    fs::rename(part, &path).map_err(io_error(&path))?;
    sync_dir(dir).map_err(io_error(dir))
}

/// Returns the last revision that the owner of a database may have used; `None` if the database is damaged.
fn used_up_to(path: &Path) -> Option<u64> {
    let sync_failed = Arc::new(AtomicBool::new(false));
    let media = file_media(path.to_owned(), false);
    let database = connect(path, &media, &sync_failed).ok()?;
    let last = guarded(Work::Open, path, || {
        let last = journal::last(&database)?;
        drop(database);
        Ok(last)
    });
    let (_, state) = last.ok()??;
    Some(if state.closed {
        state.revision
    } else {
        state.ceiling
    })
}

fn io_error(path: &Path) -> impl FnOnce(io::Error) -> OpenError {
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
        }
    }
}

fn connect(path: &Path, media: &Media, sync_failed: &Arc<AtomicBool>) -> Result<Database, Trouble> {
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
fn file_media(path: PathBuf, unfinished: bool) -> Media {
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

/// Locks the directory, or returns the process that has it.
fn lock(dir: &Path) -> Result<Lock, OpenError> {
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
