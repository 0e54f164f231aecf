//! Creates databases: of an empty store, from a backup, and from a database with other keys.
//!
//! Invariant: a new database has a temporary name until it is complete and durable. The file name of the store
//! therefore always refers to a complete database.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use super::OpenError;
use super::disk::{
    Config, DATABASE, Disk, check_present, connect, file_media, io_error, lock, sync_dir,
    used_up_to,
};
use super::format::{self, Records, State, Summary};
use super::journal::{self, LOG_BYTES, Row};
use super::trouble::{Trouble, Work, guarded};
use crate::store::batch::Entry;
use crate::store::encryption::{Encryption, Rotation};
use crate::store::mvcc::Mvcc;

/// Name of the database file until it is complete.
const UNFINISHED: &str = "store.redb.part";
/// Approximate size of one transaction.
const CHUNK: usize = 4 << 20;

/// The content of a store.
#[derive(Debug)]
pub(in crate::store) struct Image {
    pub(in crate::store) revision: u64,
    pub(in crate::store) entries: Vec<Entry>,
}

/// An incomplete database in a locked directory.
pub(super) struct Filling<'a> {
    dir: &'a Path,
    part: PathBuf,
    encryption: Encryption,
    disk: Disk,
    mvcc: Mvcc,
    state: State,
    rows: Vec<Row>,
    bytes: usize,
}

impl<'a> Filling<'a> {
    /// Creates a database without objects at a revision. The directory must be locked.
    pub(super) fn begin(
        dir: &'a Path,
        revision: u64,
        encryption: Encryption,
    ) -> Result<Self, OpenError> {
        let part = dir.join(UNFINISHED);
        match fs::remove_file(&part) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(io_error(&part)(error));
            }
            _ => {}
        }
        let media = file_media(part.clone(), true);
        let config = Config {
            encryption: encryption.clone(),
            ..Config::default()
        };
        let (disk, mvcc) = Disk::with(part.clone(), media, None, config)?;
        let state = State {
            revision,
            ceiling: revision,
            ..disk.state
        };
        Ok(Self {
            dir,
            part,
            encryption,
            disk,
            mvcc,
            state,
            rows: Vec::new(),
            bytes: 0,
        })
    }

    /// Adds an object.
    fn add(&mut self, entry: &Entry) -> Result<(), OpenError> {
        let key = format::encode_key(&entry.object.key);
        let record = format::encode_record(&key, entry, &self.encryption);
        let record = record.map_err(io_error(&self.part))?;
        self.add_row(entry, (key, record))
    }

    /// Adds an encoded object.
    fn add_row(&mut self, entry: &Entry, row: Row) -> Result<(), OpenError> {
        self.state.objects.add(&entry.object);
        self.bytes += row.0.len() + row.1.len();
        self.rows.push(row);
        if self.bytes < CHUNK {
            return Ok(());
        }
        self.write_rows()
    }

    fn write_rows(&mut self) -> Result<(), OpenError> {
        let (state, rows) = (self.state, std::mem::take(&mut self.rows));
        self.bytes = 0;
        let written = self.disk.attempt(state, &[], &self.mvcc, &rows).done();
        written.map_err(|error| io_error(&self.part)(io::Error::other(error)))
    }

    /// Completes the database and makes it durable.
    fn finish(&mut self) -> Result<(), OpenError> {
        self.write_rows()?;
        let closed = self.disk.close(&self.mvcc);
        closed.map_err(|error| io_error(&self.part)(io::Error::other(error)))?;
        let complete = File::open(&self.part).and_then(|file| file.sync_all());
        complete.map_err(io_error(&self.part))
    }

    /// Completes the database and gives it its final name, durably.
    pub(super) fn move_in(mut self) -> Result<(), OpenError> {
        self.finish()?;
        rename(self.dir, &self.part)
    }
}

fn rename(dir: &Path, part: &Path) -> Result<(), OpenError> {
    let path = dir.join(DATABASE);
    fs::rename(part, &path).map_err(io_error(&path))?;
    sync_dir(dir).map_err(io_error(dir))
}

fn filled(dir: &Path, image: Image, encryption: Encryption) -> Result<Filling<'_>, OpenError> {
    let mut filling = Filling::begin(dir, image.revision, encryption)?;
    for entry in image.entries {
        filling.add(&entry)?;
    }
    Ok(filling)
}

/// Creates a database with the given content in a directory without one.
pub(in crate::store) fn create(
    dir: &Path,
    image: Image,
    encryption: &Encryption,
) -> Result<(), OpenError> {
    let _lock = lock(dir)?;
    let path = dir.join(DATABASE);
    if path.exists() {
        return Err(OpenError::Exists { path });
    }
    filled(dir, image, encryption.clone())?.move_in()
}

/// Replaces a database with the given content. The old database is kept under the returned name. The content is
/// computed after the last revision of the old database is known.
pub(in crate::store) fn replace(
    dir: &Path,
    image: impl FnOnce(Option<u64>) -> Image,
    encryption: &Encryption,
) -> Result<Option<PathBuf>, OpenError> {
    let _lock = lock(dir)?;
    let path = dir.join(DATABASE);
    let present = path.exists().then(|| used_up_to(&path)).flatten();
    let image = image(present);
    let kept = dir.join(format!("{DATABASE}.before-{}", image.revision));
    let mut filling = filled(dir, image, encryption.clone())?;
    filling.finish()?;
    let kept = if path.exists() {
        fs::hard_link(&path, &kept).map_err(io_error(&kept))?;
        Some(kept)
    } else {
        None
    };
    rename(dir, &filling.part)?;
    Ok(kept)
}

/// Writes every object to a new database, encrypted as configured, and replaces the old database with it. The old file
/// is removed, because its free pages contain earlier values. Memory is bounded by the log and one transaction. After
/// an error or a crash, the old database is unchanged.
pub(super) fn rotate(
    dir: &Path,
    encryption: &Encryption,
    mut progress: impl FnMut(Rotation),
) -> Result<Rotation, OpenError> {
    let _lock = lock(dir)?;
    let path = dir.join(DATABASE);
    check_present(&path)?;
    let unusable = |error: Trouble| error.into_open(&path);
    let media = file_media(path.clone(), false);
    let database = connect(&path, &media, &Arc::new(AtomicBool::new(false))).map_err(unusable)?;
    let last = guarded(Work::Open, &path, || journal::last(&database)).map_err(unusable)?;
    let empty = || Trouble::Damaged("nothing was ever committed".to_owned());
    let (_, state) = last.ok_or_else(empty).map_err(unusable)?;
    let mut filling = Filling::begin(dir, state.next_start(), encryption.clone())?;
    let mut rotation = Rotation {
        total: Some(state.objects.count),
        ..Rotation::default()
    };
    let mut records = Records::new(encryption);
    let mut failed = None;
    let scanned = guarded(Work::Open, &path, || {
        journal::scan(&database, LOG_BYTES, |key, record| {
            let (entry, id) = records.decode(key, record)?;
            let wanted = encryption.key_for(&entry.object.key.resource);
            rotation.count(id, wanted);
            let added = if id == wanted {
                filling.add_row(&entry, (key.to_vec(), record.to_vec()))
            } else {
                filling.add(&entry)
            };
            // The error concerns the new file, so it must not be reported as damage of the old one.
            added.map_err(|error| {
                failed = Some(error);
                Trouble::Damaged(String::new())
            })?;
            progress(rotation);
            Ok(())
        })?;
        let found: Summary = filling.state.objects;
        journal::check_complete(found, &state)?;
        drop(database);
        Ok(())
    });
    let finished = match (failed, scanned) {
        (Some(error), _) => Err(error),
        (None, Err(error)) => Err(unusable(error)),
        (None, Ok(())) => filling.finish(),
    };
    if let Err(error) = finished {
        let _ = fs::remove_file(&filling.part);
        return Err(error);
    }
    rename(dir, &filling.part)?;
    Ok(rotation)
}
