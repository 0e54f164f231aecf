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

thread_local! {
    /// The file that redb is at work on.
    static AT_WORK: RefCell<Option<PathBuf>> = const { RefCell::new(None) };
}

/// redb asserts what it believes about its file; on a damaged one an assertion is an answer.
pub(super) fn guarded<T>(
    path: &Path,
    work: impl FnOnce() -> Result<T, Trouble>,
) -> Result<T, Trouble> {
    AT_WORK.set(Some(path.to_owned()));
    let done = catch_unwind(AssertUnwindSafe(work));
    AT_WORK.set(None);
    done.unwrap_or_else(|panic| Err(Trouble::Panicked(text(&*panic))))
}

/// What a panic means that comes from the database engine: its file is damaged. For the panic hook of a program
/// that is built to end at a panic, where nobody comes to return this as an error. `None` for any other panic.
pub fn damage(panic: &PanicHookInfo<'_>) -> Option<OpenError> {
    let path = AT_WORK.take()?;
    Some(Trouble::Panicked(text(panic.payload())).into_open(&path))
}

fn text(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied())
        .unwrap_or("it gave no reason")
        .to_owned()
}
