//! Backups: one file that is saved from a running server and restored into a new store.
//!
//! A backup is the state at one published revision. Writes continue while it is saved.
//!
//! A restored store never continues the old numbering. Between the backup and the loss of the old store, revisions
//! were issued that the backup does not contain. Clients still hold them as resource versions and fencing tokens. A
//! restored store therefore starts at the number of microseconds since 1970:
//! - no store reaches that number with less than a million writes a second;
//! - two restores never share a microsecond, even of the same file into two directories;
//! - the number stays below 2^53, JavaScript's largest exact integer, for the next two centuries.
//!
//! A clock is unusable if it shows a time before 2026, or less than the revision of the backup or of the replaced
//! store. The restore then adds 2^40 and a random number to the highest of those revisions. At ten thousand writes a
//! second, a store needs more than three years for 2^40 revisions.
//!
//! All older revisions are expired, so watches start again. No lease has a valid token until its next term, because
//! the backup cannot contain later winners.

use std::fs::File;
use std::io::{self, BufReader, BufWriter, Read, Write};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use tenure_host::files;

use super::batch::Entry;
use super::durable::format::{Records, Summary, Unreadable, encode_key, encode_record};
use super::durable::{self, Image, OpenError};
use super::encryption::Encryption;
use super::engine::Engine as _;
use super::mvcc::Mvcc;
use super::{MemoryStore, RedbStore};

/// Smallest step of a restore without a usable clock; see the module documentation.
const JUMP: u64 = 1 << 40;

/// 2026-01-01 in microseconds. A clock that shows less was never set.
const PLAUSIBLE: u64 = 1_767_225_600_000_000;

const MAGIC: &[u8; 8] = b"TENUREBK";
/// The newest version. Records may be encrypted.
const VERSION: u32 = 2;
/// The version of backups without keys, which earlier versions can read.
const PLAIN_VERSION: u32 = 1;
/// Limit of key and record lengths, above any object that the server accepts. A damaged length therefore cannot cause
/// a huge allocation.
const MAX_PART: u32 = 64 << 20;

/// Result of a backup or restore.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Report {
    /// The revision of the backup, or the first revision of the restored store.
    pub revision: u64,
    /// Number of objects.
    pub objects: usize,
}

/// Error of a backup or restore.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BackupError {
    /// The file system returned an error.
    #[error("{}: {source}", path.display())]
    Io {
        /// The backup file.
        path: PathBuf,
        /// The error.
        source: io::Error,
    },
    /// The file is not a backup, or is damaged.
    #[error("{} is not a usable backup: {what}", path.display())]
    Damaged {
        /// The backup file.
        path: PathBuf,
        /// The damage, with the object if it is known.
        what: String,
    },
    /// An object is encrypted with a key that is missing.
    #[error("{}: {what}", path.display())]
    Locked {
        /// The backup file.
        path: PathBuf,
        /// The object, the id of the key, and the remedy.
        what: String,
    },
    /// The new store could not be created.
    #[error(transparent)]
    Store(#[from] OpenError),
}

/// A store that can be backed up.
pub trait Source {
    /// The state to save.
    #[doc(hidden)]
    fn snapshot(&self) -> Snapshot;
}

/// A consistent view of a store.
#[derive(Debug)]
pub struct Snapshot {
    revision: u64,
    entries: Vec<Entry>,
    /// Encrypts the records of the backup.
    encryption: Encryption,
}

impl Source for MemoryStore {
    fn snapshot(&self) -> Snapshot {
        Snapshot::of(self.mvcc(), self.encryption())
    }
}

impl Source for RedbStore {
    fn snapshot(&self) -> Snapshot {
        Snapshot::of(self.mvcc(), self.encryption())
    }
}

impl Snapshot {
    fn of(mvcc: &Mvcc, encryption: &Encryption) -> Self {
        let state = mvcc.read();
        Self {
            revision: state.revision,
            entries: state.entries().cloned().collect(),
            encryption: encryption.clone(),
        }
    }
}

/// Saves the current state to a file, which appears only after it is complete and durable. Blocks on the disk; the
/// store continues to work.
///
/// # Errors
///
/// Returns the file and the error of the file system. An existing file is then unchanged.
pub fn save(store: &impl Source, path: impl AsRef<Path>) -> Result<Report, BackupError> {
    let path = path.as_ref();
    let snapshot = store.snapshot();
    // Only the owner may read the file, because it contains secrets.
    let written = files::Replacement::create(path, 0o600).and_then(|mut part| {
        write(&snapshot, part.file())?;
        part.place()?;
        let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty());
        durable::sync_dir(dir.unwrap_or(Path::new(".")))
    });
    if let Err(source) = written {
        return Err(BackupError::Io {
            path: path.to_owned(),
            source,
        });
    }
    Ok(Report {
        revision: snapshot.revision,
        objects: snapshot.entries.len(),
    })
}

/// Creates a store in `dir` from a backup. The module documentation explains its first revision.
///
/// # Errors
///
/// Rejects a damaged backup, a backup whose key is missing, and a directory that has a store or is in use. Both stay
/// unchanged.
pub fn restore(
    path: impl AsRef<Path>,
    dir: impl AsRef<Path>,
    encryption: &Encryption,
) -> Result<Report, BackupError> {
    let path = path.as_ref();
    let snapshot = read(path, encryption)?;
    let image = snapshot.into_image(None);
    let report = image.report();
    durable::create(dir.as_ref(), image, encryption)?;
    Ok(report)
}

/// Replaces the store in `dir`, if there is one, with a backup. The old store is kept under the returned name. A crash
/// at any moment leaves one of the two as the store.
///
/// # Errors
///
/// Rejects a damaged backup, a backup whose key is missing, and a directory that is in use. Both stay unchanged.
pub fn replace(
    path: impl AsRef<Path>,
    dir: impl AsRef<Path>,
    encryption: &Encryption,
) -> Result<(Report, Option<PathBuf>), BackupError> {
    let snapshot = read(path.as_ref(), encryption)?;
    let mut report = None;
    let image = |present| {
        let image = snapshot.into_image(present);
        report = Some(image.report());
        image
    };
    let kept = durable::replace(dir.as_ref(), image, encryption)?;
    let report = report.expect("the replacement computes the content");
    Ok((report, kept))
}

impl Snapshot {
    /// Returns the content of the restored store, with a first revision above every revision that was ever used.
    fn into_image(mut self, present: Option<u64>) -> Image {
        self.entries.iter_mut().for_each(|entry| entry.term = 0);
        let now = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .map_or(0, |since| u64::try_from(since.as_micros()).unwrap_or(0));
        Image {
            revision: first_revision(self.revision.max(present.unwrap_or(0)), now),
            entries: self.entries,
        }
    }
}

fn first_revision(used: u64, now: u64) -> u64 {
    if now >= PLAUSIBLE && now > used {
        return now;
    }
    let random = uuid::Uuid::new_v4().as_u64_pair().1 % JUMP;
    used.saturating_add(JUMP + random)
}

impl Image {
    fn report(&self) -> Report {
        Report {
            revision: self.revision,
            objects: self.entries.len(),
        }
    }
}

/// `MAGIC, version, revision`, then per object `key length, record length, key, record`, and at the
/// end two zero lengths, the number of objects and the sum of their fingerprints.
fn write(snapshot: &Snapshot, file: &mut File) -> io::Result<()> {
    let mut file = BufWriter::new(file);
    file.write_all(MAGIC)?;
    let version = if snapshot.encryption.has_keys() {
        VERSION
    } else {
        PLAIN_VERSION
    };
    file.write_all(&version.to_le_bytes())?;
    file.write_all(&snapshot.revision.to_le_bytes())?;
    let mut summary = Summary::default();
    for entry in &snapshot.entries {
        let key = encode_key(&entry.object.key);
        let record = encode_record(&key, entry, &snapshot.encryption)?;
        file.write_all(&length(&key)?)?;
        file.write_all(&length(&record)?)?;
        file.write_all(&key)?;
        file.write_all(&record)?;
        summary.add(&entry.object);
    }
    file.write_all(&[0; 8])?;
    file.write_all(&summary.count.to_le_bytes())?;
    file.write_all(&(summary.sum ^ snapshot.revision).to_le_bytes())?;
    file.into_inner()
        .map_err(io::IntoInnerError::into_error)?
        .sync_all()
}

fn length(bytes: &[u8]) -> io::Result<[u8; 4]> {
    match u32::try_from(bytes.len()) {
        Ok(len) if len <= MAX_PART => Ok(len.to_le_bytes()),
        _ => Err(io::Error::other(
            "an object is larger than a backup can hold",
        )),
    }
}

fn read(path: &Path, encryption: &Encryption) -> Result<Snapshot, BackupError> {
    let io = |source: io::Error| BackupError::Io {
        path: path.to_owned(),
        source,
    };
    let damaged = |what: &str| BackupError::Damaged {
        path: path.to_owned(),
        what: what.to_owned(),
    };
    let short = |source: io::Error| match source.kind() {
        io::ErrorKind::UnexpectedEof => damaged("the file is truncated"),
        _ => io(source),
    };
    let mut file = BufReader::new(File::open(path).map_err(io)?);
    if take::<8>(&mut file).map_err(short)? != *MAGIC {
        return Err(damaged("it does not start with the signature of backups"));
    }
    let version = u32::from_le_bytes(take(&mut file).map_err(short)?);
    if !(PLAIN_VERSION..=VERSION).contains(&version) {
        return Err(damaged(&format!(
            "it has format {version}; this version supports formats up to {VERSION}"
        )));
    }
    let revision = u64::from_le_bytes(take(&mut file).map_err(short)?);
    let mut entries = Vec::new();
    let mut records = Records::new(encryption);
    let mut summary = Summary::default();
    loop {
        let key = u32::from_le_bytes(take(&mut file).map_err(short)?);
        let record = u32::from_le_bytes(take(&mut file).map_err(short)?);
        if (key, record) == (0, 0) {
            break;
        }
        if key > MAX_PART || record > MAX_PART {
            return Err(damaged("an object exceeds the size limit"));
        }
        let key = part(&mut file, key).map_err(short)?;
        let record = part(&mut file, record).map_err(short)?;
        let decoded = records.decode(&key, &record).map_err(|error| match error {
            Unreadable::Damaged(what) => damaged(&what),
            Unreadable::Locked(what) => BackupError::Locked {
                path: path.to_owned(),
                what,
            },
        });
        let (entry, _) = decoded?;
        summary.add(&entry.object);
        entries.push(entry);
    }
    let count = u64::from_le_bytes(take(&mut file).map_err(short)?);
    let sum = u64::from_le_bytes(take(&mut file).map_err(short)?) ^ revision;
    if (Summary { count, sum }) != summary {
        return Err(damaged("objects are missing or changed"));
    }
    Ok(Snapshot {
        revision,
        entries,
        encryption: encryption.clone(),
    })
}

fn take<const N: usize>(file: &mut impl Read) -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    file.read_exact(&mut bytes)?;
    Ok(bytes)
}

fn part(file: &mut impl Read, len: u32) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    // The buffer grows with the data that exists, so a damaged length does not cause a large allocation.
    file.by_ref().take(len.into()).read_to_end(&mut bytes)?;
    if bytes.len() as u64 == u64::from(len) {
        Ok(bytes)
    } else {
        Err(io::ErrorKind::UnexpectedEof.into())
    }
}
