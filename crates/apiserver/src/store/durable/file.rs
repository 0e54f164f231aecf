//! The file in which redb stores the database.
//!
//! Growing allocates the blocks immediately where possible, so that a commit rarely finds a full disk and a sync has
//! less metadata to write. A failed sync is recorded, because it is unknown which pages the kernel dropped.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use redb::StorageBackend;
use rustix::fs::FallocateFlags;

/// A file that allocates its space in advance.
#[derive(Debug)]
pub(super) struct ClaimedFile {
    pub(super) file: File,
    /// Whether the file is still incomplete. It is then synced only once, at the end.
    pub(super) unfinished: bool,
}

impl StorageBackend for ClaimedFile {
    fn len(&self) -> io::Result<u64> {
        Ok(self.file.metadata()?.len())
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.file.read_exact_at(out, offset)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        let present = self.len()?;
        if len > present {
            let more = len - present;
            if rustix::fs::fallocate(&self.file, FallocateFlags::empty(), present, more).is_err() {
                // redb doubles the size of the file but uses only a part of it. The remaining space may suffice. If it
                // does not, the write of a page fails.
                let _ = self.file.set_len(present);
            }
        }
        self.file.set_len(len)
    }

    fn sync_data(&self) -> io::Result<()> {
        if self.unfinished {
            return Ok(());
        }
        self.file.sync_data()
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.file.write_all_at(data, offset)
    }
}

/// Records that a sync failed; shared with the code that classifies errors.
#[derive(Debug)]
pub(super) struct Watched {
    medium: Box<dyn StorageBackend>,
    sync_failed: Arc<AtomicBool>,
}

impl Watched {
    pub(super) fn new(medium: Box<dyn StorageBackend>, sync_failed: Arc<AtomicBool>) -> Self {
        Self {
            medium,
            sync_failed,
        }
    }
}

impl StorageBackend for Watched {
    fn len(&self) -> io::Result<u64> {
        self.medium.len()
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.medium.read(offset, out)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.medium.set_len(len)
    }

    fn sync_data(&self) -> io::Result<()> {
        self.medium
            .sync_data()
            .inspect_err(|_| self.sync_failed.store(true, Ordering::Release))
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.medium.write(offset, data)
    }

    fn close(&self) -> io::Result<()> {
        self.medium.close()
    }
}
