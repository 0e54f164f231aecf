//! What goes wrong in or under redb, and what it means.

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
    /// The content is not what was written.
    #[error("{0}")]
    Damaged(String),
    /// A newer version wrote it.
    #[error("format {0}")]
    Format(u32),
    /// redb gave up.
    #[error("the database engine failed: {0}")]
    Panicked(String),
    /// The file system refused.
    #[error(transparent)]
    Io(io::Error),
    /// Anything else that redb says.
    #[error("{0}")]
    Engine(redb::Error),
}

impl Trouble {
    /// There may be room later.
    pub(super) fn is_no_space(&self) -> bool {
        let Self::Io(error) = self else {
            return false;
        };
        use ErrorKind::{FileTooLarge, QuotaExceeded, StorageFull};
        matches!(error.kind(), StorageFull | QuotaExceeded | FileTooLarge)
    }

    /// As the answer to an attempt to open the file.
    pub(super) fn into_open(self, path: &Path) -> OpenError {
        let path = path.to_owned();
        match self {
            Self::Damaged(what) => OpenError::Corrupt { path, what },
            Self::Format(found) => OpenError::Format {
                path,
                found,
                known: format::FORMAT,
            },
            // A read beyond the end means that the file lost its tail.
            Self::Io(error) if error.kind() == ErrorKind::UnexpectedEof => OpenError::Corrupt {
                path,
                what: "it ends too early".to_owned(),
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

/// What redb is at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Work {
    /// It reads a file that it has not seen before.
    Open,
    /// It changes or closes a file that it has read.
    Change,
}

thread_local! {
    /// What redb is at on this thread, and with which file.
    static AT_WORK: RefCell<Option<(Work, PathBuf)>> = const { RefCell::new(None) };
}

/// redb asserts what it believes about its file; on a damaged one an assertion is an answer.
///
/// A database that is not needed afterwards is dropped inside: closing it may fail as well.
pub(super) fn guarded<T>(
    work: Work,
    path: &Path,
    act: impl FnOnce() -> Result<T, Trouble>,
) -> Result<T, Trouble> {
    AT_WORK.set(Some((work, path.to_owned())));
    let done = catch_unwind(AssertUnwindSafe(act));
    AT_WORK.set(None);
    done.unwrap_or_else(|panic| Err(Trouble::Panicked(text(&*panic))))
}

/// What to tell of a panic that comes from the database engine, for the panic hook of a program that is built to end
/// at a panic: there the store does not come to return it as an error. `None` for any other panic.
pub fn last_words(panic: &PanicHookInfo<'_>) -> Option<String> {
    let (work, path) = AT_WORK.take()?;
    let trouble = Trouble::Panicked(text(panic.payload()));
    Some(match work {
        Work::Open => trouble.into_open(&path).to_string(),
        Work::Change => format!(
            "{}: {trouble}; start again, and if that ends like this, move the file away and restore a backup",
            path.display()
        ),
    })
}

fn text(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied())
        .unwrap_or("it gave no reason")
        .to_owned()
}
