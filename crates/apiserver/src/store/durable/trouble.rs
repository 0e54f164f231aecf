//! Errors of redb and of the file system, and their classification.

use std::any::Any;
use std::cell::RefCell;
use std::io::{self, ErrorKind};
use std::panic::{AssertUnwindSafe, PanicHookInfo, catch_unwind};
use std::path::{Path, PathBuf};

use super::OpenError;
use super::format;

/// One error of the database.
#[derive(Debug, thiserror::Error)]
pub(super) enum Trouble {
    /// The content is damaged.
    #[error("{0}")]
    Damaged(String),
    /// The key of a record is missing.
    #[error("{0}")]
    Locked(String),
    /// A newer version wrote the file.
    #[error("format {0}")]
    Format(u32),
    /// redb panicked.
    #[error("the database engine failed: {0}")]
    Panicked(String),
    /// The file system returned an error.
    #[error(transparent)]
    Io(io::Error),
    /// Another error of redb.
    #[error("{0}")]
    Engine(redb::Error),
}

impl Trouble {
    /// Returns whether the error is a lack of space.
    pub(super) fn is_no_space(&self) -> bool {
        let Self::Io(error) = self else {
            return false;
        };
        use ErrorKind::{FileTooLarge, QuotaExceeded, StorageFull};
        matches!(error.kind(), StorageFull | QuotaExceeded | FileTooLarge)
    }

    /// Converts the error to that of opening the file.
    pub(super) fn into_open(self, path: &Path) -> OpenError {
        let path = path.to_owned();
        match self {
            Self::Damaged(what) => OpenError::Corrupt { path, what },
            Self::Locked(what) => OpenError::Locked { path, what },
            Self::Format(found) => OpenError::Format {
                path,
                found,
                known: format::FORMAT,
            },
            // A read beyond the end means that the file was truncated.
            Self::Io(error) if error.kind() == ErrorKind::UnexpectedEof => OpenError::Corrupt {
                path,
                what: "the file is truncated".to_owned(),
            },
            Self::Io(error) if error.kind() == ErrorKind::InvalidData => OpenError::Corrupt {
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

impl From<format::Unreadable> for Trouble {
    fn from(error: format::Unreadable) -> Self {
        match error {
            format::Unreadable::Damaged(what) => Self::Damaged(what),
            format::Unreadable::Locked(what) => Self::Locked(what),
        }
    }
}

/// The current operation of redb.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Work {
    /// Opening a file for the first time.
    Open,
    /// Changing or closing a file that was read before.
    Change,
}

thread_local! {
    /// The current operation of redb on this thread, and its file.
    static AT_WORK: RefCell<Option<(Work, PathBuf)>> = const { RefCell::new(None) };
}

/// Runs redb and converts its panics to errors, because redb panics on some damaged files.
///
/// Drop a database inside `work` if it is not needed afterwards, because closing it may panic too.
pub(super) fn guarded<T>(
    work: Work,
    path: &Path,
    act: impl FnOnce() -> Result<T, Trouble>,
) -> Result<T, Trouble> {
    // A new file is filled while the old one is read.
    let outer = AT_WORK.replace(Some((work, path.to_owned())));
    let done = catch_unwind(AssertUnwindSafe(act));
    AT_WORK.set(outer);
    done.unwrap_or_else(|panic| Err(Trouble::Panicked(text(&*panic))))
}

/// Returns the message for a panic of the database engine; `None` for any other panic. Panic hooks of programs with
/// `panic = "abort"` call it, because the store cannot return the panic as an error there.
pub fn last_words(panic: &PanicHookInfo<'_>) -> Option<String> {
    let (work, path) = AT_WORK.take()?;
    let trouble = Trouble::Panicked(text(panic.payload()));
    Some(match work {
        Work::Open => trouble.into_open(&path).to_string(),
        Work::Change => format!(
            "{}: {trouble}; restart; if the error repeats, move the file away and restore a backup",
            path.display()
        ),
    })
}

fn text(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied())
        .unwrap_or("no reason given")
        .to_owned()
}
