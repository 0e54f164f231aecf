//! The queue of events, the thread that writes them, and the rotated files.

use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicI64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use jiff::Timestamp;

use super::event::Event;
use super::{AuditError, Counts, Options};

/// Maximum number of queued events.
const MOST_QUEUED: usize = 10_000;
/// Maximum size of queued events in bytes.
const MOST_QUEUED_BYTES: usize = 32 << 20;
/// Approximate size of one write in bytes.
const BATCH: usize = 256 << 10;
/// Minimum time between two log messages about lost events.
const REPORT_SECONDS: i64 = 10;
/// Growth of the file after which a failed rotation is retried.
const ROTATE_AGAIN: u64 = 1 << 20;
/// Maximum time that a shutdown waits for the writer.
const CLOSE_PATIENCE: Duration = Duration::from_secs(5);

enum Message {
    Event(Box<Event>),
    /// Write everything and end.
    Close,
}

/// The sending side, shared by all requests.
pub(super) struct Log {
    sender: SyncSender<Message>,
    /// Resolves when the writer has ended.
    ended: Mutex<Option<Receiver<()>>>,
    shared: Arc<Shared>,
}

/// State of both sides.
struct Shared {
    bytes: AtomicUsize,
    counts: Counts,
    lost: AtomicUsize,
    /// Wall time in seconds of the last log message about lost events.
    reported: AtomicI64,
}

impl Log {
    pub(super) fn open(options: &Options, counts: Counts) -> Result<Self, AuditError> {
        let output = Output::open(options)?;
        let (sender, receiver) = sync_channel(MOST_QUEUED);
        let (end, ended) = sync_channel(1);
        let shared = Arc::new(Shared {
            bytes: AtomicUsize::new(0),
            counts,
            lost: AtomicUsize::new(0),
            reported: AtomicI64::new(0),
        });
        let writer = Writer {
            receiver,
            output,
            shared: Arc::clone(&shared),
            batch: Vec::new(),
            events: 0,
        };
        std::thread::Builder::new()
            .name("audit-log".into())
            .spawn(move || {
                writer.run();
                drop(end);
            })
            .map_err(|error| AuditError::File(options.path.display().to_string(), error))?;
        Ok(Self {
            sender,
            ended: Mutex::new(Some(ended)),
            shared,
        })
    }

    /// Queues an event, or drops it if the queue is full.
    pub(super) fn send(&self, event: Event) {
        self.shared.counts.events.inc();
        let size = event.size();
        let queued = self.shared.bytes.fetch_add(size, Ordering::AcqRel);
        if queued.saturating_add(size) <= MOST_QUEUED_BYTES {
            let message = Message::Event(Box::new(event));
            match self.sender.try_send(message) {
                Ok(()) => return,
                Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) => {}
            }
        }
        self.shared.bytes.fetch_sub(size, Ordering::AcqRel);
        self.shared
            .count_lost(1, "the queue of the audit log is full");
    }

    /// Ends the writer after it has written the queue, in bounded time.
    pub(super) fn close(&self) {
        let ended = self
            .ended
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        let Some(ended) = ended else { return };
        let mut tries = 50;
        // The queue becomes free quickly unless the disk hangs.
        while let Err(TrySendError::Full(_)) = self.sender.try_send(Message::Close) {
            tries -= 1;
            if tries == 0 {
                return;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        if let Err(RecvTimeoutError::Timeout) = ended.recv_timeout(CLOSE_PATIENCE) {
            tracing::error!(
                "the audit log is not written completely, because its disk does not answer"
            );
        }
    }
}

impl Shared {
    /// Counts lost events, and logs them at a limited rate.
    fn count_lost(&self, count: usize, why: &str) {
        self.counts.errors.inc_by(count as u64);
        self.lost.fetch_add(count, Ordering::AcqRel);
        let now = Timestamp::now().as_second();
        let last = self.reported.load(Ordering::Acquire);
        let due = now.abs_diff(last) >= REPORT_SECONDS.unsigned_abs();
        let mine = due
            && (self.reported)
                .compare_exchange(last, now, Ordering::AcqRel, Ordering::Acquire)
                .is_ok();
        if mine {
            let events = self.lost.swap(0, Ordering::AcqRel);
            tracing::error!(events, why, "audit events are lost");
        }
    }
}

/// The writing side.
struct Writer {
    receiver: Receiver<Message>,
    output: Output,
    shared: Arc<Shared>,
    batch: Vec<u8>,
    /// Number of events in the batch.
    events: usize,
}

impl Writer {
    fn run(mut self) {
        // The loop also ends when the server is dropped.
        while let Ok(message) = self.receiver.recv() {
            let mut next = Some(message);
            while let Some(message) = next {
                match message {
                    Message::Close => return self.flush(),
                    Message::Event(event) => self.add(&event),
                }
                if self.batch.len() >= BATCH {
                    self.flush();
                }
                next = self.receiver.try_recv().ok();
            }
            self.flush();
        }
    }

    fn add(&mut self, event: &Event) {
        event.write(&mut self.batch);
        self.batch.push(b'\n');
        self.events += 1;
        self.shared.bytes.fetch_sub(event.size(), Ordering::AcqRel);
    }

    fn flush(&mut self) {
        if self.events == 0 {
            return;
        }
        if let Err(error) = self.output.write(&self.batch) {
            self.shared.count_lost(self.events, &error.to_string());
        }
        self.batch.clear();
        self.batch.shrink_to(2 * BATCH);
        self.events = 0;
    }
}

enum Output {
    Stdout,
    File(RotatedFile),
}

impl Output {
    fn open(options: &Options) -> Result<Self, AuditError> {
        if options.path == Path::new("-") {
            return Ok(Self::Stdout);
        }
        RotatedFile::open(options).map(Self::File)
    }

    fn write(&mut self, lines: &[u8]) -> io::Result<()> {
        match self {
            Self::Stdout => {
                let mut out = io::stdout().lock();
                out.write_all(lines)?;
                out.flush()
            }
            Self::File(file) => file.write(lines),
        }
    }
}

/// A file that is renamed when it is full, like those of kube-apiserver: `audit.log` becomes
/// `audit-2026-01-31T12-30-00.000.log`.
struct RotatedFile {
    path: PathBuf,
    file: File,
    size: u64,
    rotate_at: u64,
    max_bytes: u64,
    max_backups: usize,
    /// Timestamp of the newest backup.
    newest: Timestamp,
}

impl RotatedFile {
    fn open(options: &Options) -> Result<Self, AuditError> {
        let name = || options.path.display().to_string();
        let failed = |error| AuditError::File(name(), error);
        let file = open_private(&options.path).map_err(failed)?;
        let found = file.metadata().map_err(failed)?;
        if !found.is_file() {
            return Err(AuditError::NotAFile(name()));
        }
        if found.uid() != rustix::process::geteuid().as_raw() {
            return Err(AuditError::OtherOwner(name(), found.uid()));
        }
        let max_bytes = match options.max_bytes {
            0 => u64::MAX,
            bytes => bytes,
        };
        Ok(Self {
            path: options.path.clone(),
            file,
            size: found.len(),
            rotate_at: max_bytes,
            max_bytes,
            max_backups: options.max_backups,
            newest: Timestamp::UNIX_EPOCH,
        })
    }

    fn write(&mut self, lines: &[u8]) -> io::Result<()> {
        let mut rest = lines;
        while !rest.is_empty() {
            // Writes whole lines up to the limit, but at least one, because an empty file would be rotated again.
            let room = self.rotate_at.saturating_sub(self.size);
            let end = whole_lines(rest, usize::try_from(room).unwrap_or(usize::MAX));
            if end == 0 && self.size > 0 && self.rotate() {
                continue;
            }
            let end = if end == 0 { first_line(rest) } else { end };
            let (now, later) = rest.split_at(end);
            self.append(now)?;
            rest = later;
        }
        Ok(())
    }

    /// Appends lines. Truncates the partial line of a failed write.
    fn append(&mut self, lines: &[u8]) -> io::Result<()> {
        match self.file.write_all(lines) {
            Ok(()) => {
                self.size += lines.len() as u64;
                Ok(())
            }
            Err(error) => {
                let _ = self.file.set_len(self.size);
                Err(error)
            }
        }
    }

    /// Starts a new file. Returns false if that failed; the full file then stays in use.
    fn rotate(&mut self) -> bool {
        match self.try_rotate() {
            Ok(()) => {
                self.rotate_at = self.max_bytes;
                true
            }
            Err(error) => {
                self.rotate_at = self.size + ROTATE_AGAIN;
                let path = self.path.display();
                tracing::error!(%path, %error, "cannot rotate the audit log");
                false
            }
        }
    }

    fn try_rotate(&mut self) -> io::Result<()> {
        let backup = self.free_backup_name()?;
        match std::fs::rename(&self.path, backup) {
            Ok(()) => {}
            // Another process moved the file, or an earlier rotation could not create the new one.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
        // If another process has created the file in the meantime, the next attempt renames it.
        self.file = private().create_new(true).open(&self.path)?;
        self.size = 0;
        if self.max_backups > 0
            && let Err(error) = self.remove_old_backups()
        {
            let path = self.path.display();
            tracing::warn!(%path, %error, "cannot look for old backups of the audit log");
        }
        Ok(())
    }

    /// Returns the name of the next backup. Timestamps of backups always increase, even if several files are rotated
    /// within a millisecond or the clock is set back.
    fn free_backup_name(&mut self) -> io::Result<PathBuf> {
        let millisecond = jiff::SignedDuration::from_millis(1);
        let mut time = Timestamp::now().max(self.newest + millisecond);
        for _ in 0..1_000 {
            let (stem, extension) = name_parts(&self.path);
            let stamp = time.strftime("%Y-%m-%dT%H-%M-%S%.3f");
            let path = self
                .path
                .with_file_name(format!("{stem}-{stamp}{extension}"));
            if path.symlink_metadata().is_err() {
                self.newest = time;
                return Ok(path);
            }
            time += millisecond;
        }
        Err(io::ErrorKind::AlreadyExists.into())
    }

    fn remove_old_backups(&self) -> io::Result<()> {
        let folder = match self.path.parent() {
            Some(folder) if !folder.as_os_str().is_empty() => folder,
            _ => Path::new("."),
        };
        let (stem, extension) = name_parts(&self.path);
        let mut backups = Vec::new();
        for entry in std::fs::read_dir(folder)? {
            let name = entry?.file_name();
            let Some(name) = name.to_str() else { continue };
            let stamp = name
                .strip_prefix(&format!("{stem}-"))
                .and_then(|rest| rest.strip_suffix(&extension));
            if stamp.is_some_and(is_stamp) {
                backups.push(name.to_owned());
            }
        }
        // The alphabetical order of timestamps is their order in time.
        backups.sort_unstable();
        let surplus = backups.len().saturating_sub(self.max_backups);
        for name in &backups[..surplus] {
            let path = folder.join(name);
            if let Err(error) = std::fs::remove_file(&path) {
                let path = path.display();
                tracing::warn!(%path, %error, "cannot remove an old backup of the audit log");
            }
        }
        Ok(())
    }
}

fn open_private(path: &Path) -> io::Result<File> {
    private().create(true).open(path)
}

/// Returns options that create a file which only its owner can read.
fn private() -> OpenOptions {
    use rustix::fs::OFlags;
    // With `NONBLOCK`, opening a pipe does not wait for its reader.
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let mut options = OpenOptions::new();
    options
        .append(true)
        .mode(0o600)
        .custom_flags(flags.bits().cast_signed());
    options
}

/// Splits `audit.log` into `audit` and `.log`.
fn name_parts(path: &Path) -> (String, String) {
    let text =
        |part: Option<&std::ffi::OsStr>| part.unwrap_or_default().to_string_lossy().into_owned();
    let extension = match path.extension() {
        Some(extension) => format!(".{}", text(Some(extension))),
        None => String::new(),
    };
    (text(path.file_stem()), extension)
}

/// Returns whether a text has the form `2026-01-31T12-30-00.000`.
fn is_stamp(text: &str) -> bool {
    const SHAPE: &[u8] = b"0000-00-00T00-00-00.000";
    text.len() == SHAPE.len()
        && text.bytes().zip(SHAPE).all(|(byte, shape)| match shape {
            b'0' => byte.is_ascii_digit(),
            other => byte == *other,
        })
}

/// Returns the length of the whole lines within the first `room` bytes.
fn whole_lines(lines: &[u8], room: usize) -> usize {
    let within = &lines[..lines.len().min(room)];
    let end = within.iter().rposition(|byte| *byte == b'\n');
    end.map_or(0, |end| end + 1)
}

fn first_line(lines: &[u8]) -> usize {
    let end = lines.iter().position(|byte| *byte == b'\n');
    end.map_or(lines.len(), |end| end + 1)
}

#[cfg(test)]
#[path = "log_tests.rs"]
mod tests;
