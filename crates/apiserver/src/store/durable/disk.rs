//! The database: opening, checking, loading, committing, and what its errors mean.
//!
//! Invariant: a commit that did not return [`Outcome::Done`] left the file at the state before it,
//! or the disk says [`Outcome::Broken`] and is not used again.

use std::any::Any;
use std::fs::{self, File, TryLockError};
use std::io::{self, Read as _, Write as _};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use redb::{
    Database, ReadableDatabase, ReadableTable, StorageBackend, TableDefinition, TableError,
};

use super::OpenError;
use super::file::{ClaimedFile, Watched};
use super::format::{self, State, Summary};
use crate::store::batch::{Commit, Entry};

const OBJECTS: TableDefinition<'_, &[u8], &[u8]> = TableDefinition::new("objects");
const STATE: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("state");

/// The database file in the data directory, and the file whose lock says who has it.
const DATABASE: &str = "store.redb";
const LOCK: &str = "lock";

/// Revisions that a commit reserves ahead of their use. After a crash the next process starts beyond
/// them: should the disk have lost the very last commit, its revisions are still not used again.
pub(super) const RESERVE: u64 = 10_000;

/// Pages that redb keeps in memory. Objects are served from their own copies, so this holds only
/// what the next commits touch.
const CACHE_BYTES: usize = 16 << 20;

/// Opens the medium, again after a full disk.
pub(in crate::store) type Media = Box<dyn Fn() -> io::Result<Box<dyn StorageBackend>> + Send>;

/// The content of a store.
#[derive(Debug)]
pub(in crate::store) struct Image {
    pub(in crate::store) revision: u64,
    pub(in crate::store) entries: Vec<Entry>,
}

/// How a commit went.
#[derive(Debug)]
pub(super) enum Outcome {
    /// It is durable.
    Done,
    /// There was no room; nothing changed, and it may work again later.
    Full(String),
    /// It is not known what is on disk; there must be no more commits.
    Broken(String),
}

/// The open database.
pub(super) struct Disk {
    path: PathBuf,
    media: Media,
    /// None after a full disk, until there is room.
    database: Option<Database>,
    state: State,
    sync_failed: Arc<AtomicBool>,
    _lock: Option<File>,
}

impl Disk {
    /// Opens or makes the database of a data directory, checks and reads all of it.
    pub(super) fn open(dir: &Path) -> Result<(Self, Image), OpenError> {
        let io = |path: &Path| {
            let path = path.to_owned();
            move |source| OpenError::Io { path, source }
        };
        fs::create_dir_all(dir).map_err(io(dir))?;
        let lock = lock(dir)?;
        let path = dir.join(DATABASE);
        let fresh = !path.exists();
        let media = file_media(path.clone());
        let opened = Self::with(path, media, Some(lock))?;
        if fresh {
            sync_dir(dir).map_err(io(dir))?;
        }
        Ok(opened)
    }

    /// Opens whatever `media` gives; `path` is for messages.
    pub(super) fn with(
        path: PathBuf,
        media: Media,
        lock: Option<File>,
    ) -> Result<(Self, Image), OpenError> {
        let sync_failed = Arc::new(AtomicBool::new(false));
        let database = connect(&media, &sync_failed).map_err(|error| error.into_open(&path))?;
        let loaded = guarded(|| load(&database)).map_err(|error| error.into_open(&path))?;
        let (mut state, entries) = loaded.unwrap_or_else(|| (State::new(), Vec::new()));
        if !state.closed {
            state.revision = state.ceiling;
        }
        let image = Image {
            revision: state.revision,
            entries,
        };
        let database = Some(database);
        let mut disk = Self {
            path,
            media,
            database,
            state,
            sync_failed,
            _lock: lock,
        };
        // From here on the file says that it is in use, and revisions beyond the present are taken.
        match disk.commit(&[], state.revision) {
            Outcome::Done => Ok((disk, image)),
            Outcome::Full(error) | Outcome::Broken(error) => Err(OpenError::Io {
                path: disk.path.clone(),
                source: io::Error::other(error),
            }),
        }
    }

    /// Makes a database with the given content.
    pub(super) fn create(dir: &Path, image: Image) -> Result<(), OpenError> {
        let path = dir.join(DATABASE);
        let io = |source| OpenError::Io {
            path: path.clone(),
            source,
        };
        fs::create_dir_all(dir).map_err(io)?;
        let lock = lock(dir)?;
        if path.exists() {
            return Err(OpenError::Exists { path });
        }
        // Under another name until it is complete, so that half a restore is not taken for a store.
        let part = dir.join("store.redb.part");
        match fs::remove_file(&part) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(io(error)),
            _ => {}
        }
        let (mut disk, _) = Self::with(part.clone(), file_media(part.clone()), Some(lock))?;
        match disk.fill(image).and_then(|()| disk.close()) {
            Ok(()) => {}
            Err(error) => return Err(io(io::Error::other(error))),
        }
        fs::rename(&part, &path).map_err(io)?;
        sync_dir(dir).map_err(io)
    }

    /// Makes a batch durable; `revision` is the last of it.
    pub(super) fn commit(&mut self, commits: &[Commit], revision: u64) -> Outcome {
        let mut state = State {
            revision,
            closed: false,
            ..self.state
        };
        if revision + RESERVE / 2 > state.ceiling {
            state.ceiling = revision + RESERVE;
        }
        for commit in commits {
            if let Some(previous) = &commit.event.previous {
                state.objects.remove(previous);
            }
            if let Some(entry) = &commit.entry {
                state.objects.add(&entry.object);
            }
        }
        self.attempt(state, |objects| {
            for commit in commits {
                let key = format::encode_key(&commit.event.object.key);
                match &commit.entry {
                    Some(entry) => {
                        let record = format::encode_record(&key, entry);
                        objects.insert(key.as_slice(), record.as_slice())?;
                    }
                    None => {
                        objects.remove(key.as_slice())?;
                    }
                }
            }
            Ok(())
        })
    }

    /// Marks the file as closed in order. The disk takes no commits afterwards.
    pub(super) fn close(&mut self) -> Result<(), String> {
        let outcome = self.attempt(
            State {
                closed: true,
                ..self.state
            },
            |_| Ok(()),
        );
        drop(self.database.take());
        match outcome {
            Outcome::Done => Ok(()),
            Outcome::Full(error) | Outcome::Broken(error) => Err(error),
        }
    }

    fn fill(&mut self, image: Image) -> Result<(), String> {
        let Image { revision, entries } = image;
        let mut state = State {
            revision,
            ceiling: revision,
            ..self.state
        };
        entries
            .iter()
            .for_each(|entry| state.objects.add(&entry.object));
        let outcome = self.attempt(state, |objects| {
            for entry in &entries {
                let key = format::encode_key(&entry.object.key);
                objects.insert(
                    key.as_slice(),
                    format::encode_record(&key, entry).as_slice(),
                )?;
            }
            Ok(())
        });
        match outcome {
            Outcome::Done => Ok(()),
            Outcome::Full(error) | Outcome::Broken(error) => Err(error),
        }
    }

    /// One transaction that ends with the given state row.
    fn attempt(
        &mut self,
        state: State,
        change: impl FnOnce(&mut redb::Table<'_, &'static [u8], &'static [u8]>) -> Result<(), Trouble>,
    ) -> Outcome {
        if self.database.is_none()
            && let Err(outcome) = self.reopen()
        {
            return outcome;
        }
        let Some(database) = &self.database else {
            return Outcome::Broken("the database is closed".to_owned());
        };
        let result = guarded(|| {
            let transaction = database.begin_write()?;
            change(&mut transaction.open_table(OBJECTS)?)?;
            transaction
                .open_table(STATE)?
                .insert("state", state.encode().as_slice())?;
            transaction.commit()?;
            Ok(())
        });
        match result {
            Ok(()) => {
                self.state = state;
                Outcome::Done
            }
            Err(trouble) if trouble.is_no_space() && !self.sync_failed() => {
                // redb takes no more commits after an error. The file has the state before, or, if
                // only something after the last byte of the commit failed, the state after it.
                self.disconnect();
                match self.reopen() {
                    Ok(()) | Err(Outcome::Full(_)) => Outcome::Full(trouble.to_string()),
                    Err(outcome) => outcome,
                }
            }
            Err(trouble) => {
                self.disconnect();
                Outcome::Broken(format!("{}: {trouble}", self.path.display()))
            }
        }
    }

    /// Connects again after a full disk, and makes sure that the file is where it was.
    fn reopen(&mut self) -> Result<(), Outcome> {
        let path = self.path.display();
        let broken = |error: &dyn std::fmt::Display| Outcome::Broken(format!("{path}: {error}"));
        let database = match connect(&self.media, &self.sync_failed) {
            Ok(database) => database,
            Err(trouble) if trouble.is_no_space() && !self.sync_failed() => {
                return Err(Outcome::Full(trouble.to_string()));
            }
            Err(trouble) => return Err(broken(&trouble)),
        };
        match guarded(|| read_state(&database)) {
            Ok(Some(found)) if found == self.state => {
                self.database = Some(database);
                Ok(())
            }
            Ok(_) => Err(broken(
                &"a refused commit is in the file; restart to read it again",
            )),
            Err(trouble) => Err(broken(&trouble)),
        }
    }

    /// The database file.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    fn disconnect(&mut self) {
        let database = self.database.take();
        // What redb does on closing may fail as the commit did; the file is read anew either way.
        let _ = catch_unwind(AssertUnwindSafe(move || drop(database)));
    }

    fn sync_failed(&self) -> bool {
        self.sync_failed.load(Ordering::Acquire)
    }
}

impl State {
    /// A new store; its first write gets revision 2, as in the memory engine.
    fn new() -> Self {
        Self {
            revision: 1,
            ceiling: 1,
            objects: Summary::default(),
            closed: true,
        }
    }
}

/// What went wrong in or under redb.
#[derive(Debug, thiserror::Error)]
enum Trouble {
    #[error("{0}")]
    Damaged(String),
    #[error("format {0}")]
    Format(u32),
    #[error("the database engine failed: {0}")]
    Panicked(String),
    #[error(transparent)]
    Io(io::Error),
    #[error("{0}")]
    Engine(redb::Error),
}

impl Trouble {
    fn is_no_space(&self) -> bool {
        let Self::Io(error) = self else {
            return false;
        };
        use io::ErrorKind::{FileTooLarge, QuotaExceeded, StorageFull};
        matches!(error.kind(), StorageFull | QuotaExceeded | FileTooLarge)
    }

    fn into_open(self, path: &Path) -> OpenError {
        let path = path.to_owned();
        match self {
            Self::Damaged(what) => OpenError::Corrupt { path, what },
            Self::Format(found) => OpenError::Format {
                path,
                found,
                known: format::FORMAT,
            },
            // A read beyond the end means that the file lost its tail.
            Self::Io(error) if error.kind() == io::ErrorKind::UnexpectedEof => OpenError::Corrupt {
                path,
                what: "it ends too early".to_owned(),
            },
            Self::Io(error) if error.kind() == io::ErrorKind::InvalidData => OpenError::Corrupt {
                path,
                what: error.to_string(),
            },
            Self::Io(source) => OpenError::Io { path, source },
            other => OpenError::Corrupt {
                path,
                what: other.to_string(),
            },
        }
    }
}

impl<E: Into<redb::Error>> From<E> for Trouble {
    fn from(error: E) -> Self {
        match error.into() {
            redb::Error::Io(error) => Self::Io(error),
            redb::Error::Corrupted(what) => Self::Damaged(what),
            other => Self::Engine(other),
        }
    }
}

/// redb asserts what it believes about its file; on a damaged one an assertion is an answer.
fn guarded<T>(work: impl FnOnce() -> Result<T, Trouble>) -> Result<T, Trouble> {
    catch_unwind(AssertUnwindSafe(work))
        .unwrap_or_else(|panic| Err(Trouble::Panicked(text(&*panic))))
}

fn text(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied())
        .unwrap_or("it gave no reason")
        .to_owned()
}

fn connect(media: &Media, sync_failed: &Arc<AtomicBool>) -> Result<Database, Trouble> {
    let medium = media().map_err(Trouble::Io)?;
    let medium = Watched::new(medium, sync_failed.clone());
    guarded(|| {
        let mut builder = Database::builder();
        Ok(builder
            .set_cache_size(CACHE_BYTES)
            .create_with_backend(medium)?)
    })
}

fn read_state(database: &Database) -> Result<Option<State>, Trouble> {
    let table = match database.begin_read()?.open_table(STATE) {
        Err(TableError::TableDoesNotExist(_)) => return Ok(None),
        table => table?,
    };
    let Some(row) = table.get("state")? else {
        return Err(Trouble::Damaged("the state row is missing".to_owned()));
    };
    State::decode(row.value())
        .map_err(Trouble::Damaged)?
        .map(Some)
        .map_err(Trouble::Format)
}

/// Reads and checks everything; `None` if nothing was ever committed.
fn load(database: &Database) -> Result<Option<(State, Vec<Entry>)>, Trouble> {
    let state = read_state(database)?;
    let table = match database.begin_read()?.open_table(OBJECTS) {
        Err(TableError::TableDoesNotExist(_)) if state.is_none() => return Ok(None),
        table => table?,
    };
    let Some(state) = state else {
        return Err(Trouble::Damaged(
            "there are objects, and the state row is missing".to_owned(),
        ));
    };
    let mut found = Summary::default();
    let mut entries = Vec::new();
    let mut resources = Vec::new();
    for row in table.iter()? {
        let (key, record) = row?;
        let entry = format::decode_record(key.value(), record.value(), &mut resources)
            .map_err(Trouble::Damaged)?;
        found.add(&entry.object);
        entries.push(entry);
    }
    if found != state.objects {
        let (there, should) = (found.count, state.objects.count);
        return Err(Trouble::Damaged(format!(
            "{there} objects are there, and they are not the {should} that were committed"
        )));
    }
    Ok(Some((state, entries)))
}

fn file_media(path: PathBuf) -> Media {
    Box::new(move || {
        let mut options = File::options();
        let file = options
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(&path)?;
        Ok(Box::new(ClaimedFile(file)))
    })
}

/// Takes the directory for this process, or says who has it.
fn lock(dir: &Path) -> Result<File, OpenError> {
    let path = dir.join(LOCK);
    let io = |source| OpenError::Io {
        path: path.clone(),
        source,
    };
    let mut options = File::options();
    let mut file = options
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .open(&path)
        .map_err(io)?;
    match file.try_lock() {
        Ok(()) => {
            // Only for the message of the next who tries.
            let _ = file
                .set_len(0)
                .and_then(|()| write!(file, "{}", std::process::id()));
            Ok(file)
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
        Err(TryLockError::Error(source)) => Err(io(source)),
    }
}

/// Makes a new or renamed file's name durable.
pub(in crate::store) fn sync_dir(dir: &Path) -> io::Result<()> {
    File::open(dir)?.sync_all()
}
