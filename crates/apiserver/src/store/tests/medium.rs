//! A disk in memory that records syncs and injects faults.

use std::io;
use std::sync::{Arc, Mutex, MutexGuard};

use redb::StorageBackend;

use super::super::Retention;
use super::super::durable::{Config, Media};

/// Returns a configuration with a log that is short enough to be folded in tests.
pub(super) fn small() -> Config {
    Config {
        retention: Retention::default(),
        log_bytes: 8 << 10,
        ..Config::default()
    }
}

/// Handle to the disk; clones share it.
#[derive(Clone, Debug, Default)]
pub(super) struct Medium(Arc<Mutex<Inner>>);

#[derive(Debug, Default)]
struct Inner {
    /// The content that readers see.
    bytes: Vec<u8>,
    /// The content at the last sync.
    synced: Vec<u8>,
    /// Operations since the last sync.
    pending: Vec<Op>,
    faults: Faults,
    /// Number of operations until a photo is taken.
    countdown: Option<usize>,
    photo: Option<Photo>,
}

/// The synced content at one moment, and the later operations, which may or may not have reached the disk.
pub(super) type Photo = (Vec<u8>, Vec<Op>);

#[derive(Clone, Debug)]
pub(super) enum Op {
    Write(usize, Vec<u8>),
    Len(usize),
}

/// Faults to inject.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Faults {
    /// Growing beyond this many bytes fails with a lack of space.
    pub(super) room: Option<usize>,
    /// After this many writes, every write fails with a lack of space.
    pub(super) writes: Option<usize>,
    /// Every sync fails.
    pub(super) sync: bool,
}

impl Medium {
    pub(super) fn of(bytes: Vec<u8>) -> Self {
        let inner = Inner {
            synced: bytes.clone(),
            bytes,
            ..Inner::default()
        };
        Self(Arc::new(Mutex::new(inner)))
    }

    pub(super) fn media(&self) -> Media {
        let medium = self.clone();
        Box::new(move || Ok(Box::new(medium.clone())))
    }

    pub(super) fn fault(&self, faults: Faults) {
        self.0.lock().unwrap().faults = faults;
    }

    /// Blocks every operation until the returned value is dropped.
    pub(super) fn hang(&self) -> Hang<'_> {
        Hang {
            _held: self.0.lock().unwrap(),
        }
    }

    pub(super) fn len(&self) -> usize {
        self.0.lock().unwrap().bytes.len()
    }

    /// Returns the content that readers see.
    pub(super) fn bytes(&self) -> Vec<u8> {
        self.0.lock().unwrap().bytes.clone()
    }

    /// Takes a photo after this many operations.
    pub(super) fn photo_after(&self, operations: usize) {
        let mut inner = self.0.lock().unwrap();
        (inner.countdown, inner.photo) = (Some(operations), None);
    }

    /// Returns the photo, or one of the current moment if none was taken.
    pub(super) fn photo(&self) -> Photo {
        let mut inner = self.0.lock().unwrap();
        inner.countdown = None;
        let photo = inner.photo.take();
        photo.unwrap_or_else(|| (inner.synced.clone(), inner.pending.clone()))
    }
}

/// Blocks the disk until dropped.
pub(super) struct Hang<'a> {
    _held: MutexGuard<'a, Inner>,
}

/// Applies one operation to an image.
pub(super) fn apply(bytes: &mut Vec<u8>, op: &Op) {
    match op {
        Op::Len(len) => bytes.resize(*len, 0),
        Op::Write(at, data) => {
            if bytes.len() < at + data.len() {
                bytes.resize(at + data.len(), 0);
            }
            bytes[*at..at + data.len()].copy_from_slice(data);
        }
    }
}

impl Inner {
    fn perform(&mut self, op: Op) {
        apply(&mut self.bytes, &op);
        self.pending.push(op);
        if let Some(left) = &mut self.countdown {
            *left = left.saturating_sub(1);
            if *left == 0 {
                self.countdown = None;
                self.photo = Some((self.synced.clone(), self.pending.clone()));
            }
        }
    }
}

fn at(offset: u64) -> usize {
    usize::try_from(offset).unwrap_or(usize::MAX)
}

impl StorageBackend for Medium {
    fn len(&self) -> io::Result<u64> {
        Ok(self.0.lock().unwrap().bytes.len() as u64)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let inner = self.0.lock().unwrap();
        let end = at(offset).checked_add(out.len());
        let found = end.and_then(|end| inner.bytes.get(at(offset)..end));
        out.copy_from_slice(found.ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        let mut inner = self.0.lock().unwrap();
        // A damaged header may request any length, and no test needs more than this.
        let room = inner.faults.room.unwrap_or(256 << 20);
        if at(len) > room && at(len) > inner.bytes.len() {
            return Err(io::ErrorKind::StorageFull.into());
        }
        inner.perform(Op::Len(at(len)));
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        let mut inner = self.0.lock().unwrap();
        if inner.faults.sync {
            return Err(io::Error::other("the sync failed"));
        }
        let pending = std::mem::take(&mut inner.pending);
        pending.iter().for_each(|op| apply(&mut inner.synced, op));
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let mut inner = self.0.lock().unwrap();
        match &mut inner.faults.writes {
            Some(0) => return Err(io::ErrorKind::StorageFull.into()),
            Some(left) => *left -= 1,
            None => {}
        }
        inner.perform(Op::Write(at(offset), data.to_vec()));
        Ok(())
    }
}
