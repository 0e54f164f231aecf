//! A disk in memory: it remembers what was synced, and fails when told to.

use std::io;
use std::sync::{Arc, Mutex, MutexGuard};

use redb::StorageBackend;

use super::super::Retention;
use super::super::durable::{Config, Media};

/// A store whose log is so short that tests see it folded.
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
    /// What a reader sees.
    bytes: Vec<u8>,
    /// What is safe.
    synced: Vec<u8>,
    /// What was done since the last sync.
    pending: Vec<Op>,
    faults: Faults,
    /// After so many more operations, a photo is taken.
    countdown: Option<usize>,
    photo: Option<Photo>,
}

/// What is safe at a moment, and what may or may not have reached the disk on top of it.
pub(super) type Photo = (Vec<u8>, Vec<Op>);

#[derive(Clone, Debug)]
pub(super) enum Op {
    Write(usize, Vec<u8>),
    Len(usize),
}

/// What the disk does wrong.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Faults {
    /// Growing beyond this many bytes fails for want of space.
    pub(super) room: Option<usize>,
    /// After so many more writes, each fails for want of space.
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

    /// Every operation waits until this is dropped.
    pub(super) fn hang(&self) -> Hang<'_> {
        Hang {
            _held: self.0.lock().unwrap(),
        }
    }

    pub(super) fn len(&self) -> usize {
        self.0.lock().unwrap().bytes.len()
    }

    /// The bytes as a process sees them.
    pub(super) fn bytes(&self) -> Vec<u8> {
        self.0.lock().unwrap().bytes.clone()
    }

    /// Takes a photo after so many operations.
    pub(super) fn photo_after(&self, operations: usize) {
        let mut inner = self.0.lock().unwrap();
        (inner.countdown, inner.photo) = (Some(operations), None);
    }

    /// The photo, or the present moment if it was not reached.
    pub(super) fn photo(&self) -> Photo {
        let mut inner = self.0.lock().unwrap();
        inner.countdown = None;
        let photo = inner.photo.take();
        photo.unwrap_or_else(|| (inner.synced.clone(), inner.pending.clone()))
    }
}

/// A disk that does not answer.
pub(super) struct Hang<'a> {
    _held: MutexGuard<'a, Inner>,
}

/// Repeats one operation on an image.
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
        // A damaged header may ask for anything; no test needs more than this.
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
