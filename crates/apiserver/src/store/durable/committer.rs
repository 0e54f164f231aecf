//! The one thread that orders writes, makes them durable in groups, and publishes them.
//!
//! While one group is being written to disk, the next one queues up. The disk limits the number of syncs per second,
//! and the number of writes grows with the number of writers.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use tokio::sync::oneshot;

use super::OpenError;
use super::disk::{Disk, Outcome};
use crate::store::batch::{Batch, Prepared};
use crate::store::mvcc::Mvcc;
use crate::store::{BoxFuture, Object, WriteError};

/// Maximum number of writes in one transaction. Larger transactions are not faster.
const MAX_BATCH: usize = 1024;

/// Approximate maximum size of one transaction.
const MAX_BYTES: usize = 4 << 20;

/// Maximum size of queued writes, so that a slow disk does not exhaust the memory.
pub(super) const QUEUE_BYTES: usize = 64 << 20;

/// Overhead of a queued write in bytes.
const OVERHEAD: usize = 1 << 10;

/// Interval of retries on a full disk while no write is queued.
const RETRY: Duration = Duration::from_secs(1);

const CLOSED: &str = "the store is closed";

type Answer = oneshot::Sender<Result<Arc<Object>, WriteError>>;

/// A queued write and its share of the queue limit.
struct Queued {
    write: Box<Prepared>,
    answer: Answer,
    _place: Place,
}

enum Job {
    Write(Queued),
    Jump(u64, oneshot::Sender<Result<u64, WriteError>>),
    Stop,
}

/// Handle of the thread: the queue and the status.
#[derive(Debug)]
pub(super) struct Committer {
    queue: mpsc::Sender<Job>,
    status: Arc<Status>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

#[derive(Debug, Default)]
struct Status {
    trouble: Mutex<Option<String>>,
    /// Whether the failure is permanent.
    broken: AtomicBool,
    /// Number of queued bytes.
    queued: AtomicUsize,
    limit: usize,
}

/// A reserved share of the queue, released on drop.
struct Place {
    status: Arc<Status>,
    bytes: usize,
}

impl Place {
    fn take(status: &Arc<Status>, bytes: usize) -> Result<Self, WriteError> {
        let place = Self {
            status: status.clone(),
            bytes,
        };
        let before = status.queued.fetch_add(bytes, Ordering::AcqRel);
        // An empty queue accepts a write of any size.
        if before > 0 && before + bytes > status.limit {
            return Err(WriteError::Busy);
        }
        Ok(place)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.status.queued.fetch_sub(self.bytes, Ordering::AcqRel);
    }
}

impl Committer {
    /// Starts the thread on a disk whose content is already published.
    pub(super) fn start(disk: Disk, mvcc: Arc<Mvcc>, limit: usize) -> Result<Self, OpenError> {
        let (queue, jobs) = mpsc::channel();
        let status = Arc::new(Status {
            limit,
            ..Status::default()
        });
        let path = disk.path().to_owned();
        let worker = Worker {
            disk,
            mvcc,
            status: status.clone(),
            jobs,
        };
        let thread = thread::Builder::new()
            .name("store-commit".to_owned())
            .spawn(move || worker.run())
            .map_err(|source| OpenError::Io { path, source })?;
        Ok(Self {
            queue,
            status,
            thread: Mutex::new(Some(thread)),
        })
    }

    /// Queues a write and waits for its result.
    pub(super) async fn write(&self, write: Prepared) -> Result<Arc<Object>, WriteError> {
        self.status.check()?;
        let place = Place::take(&self.status, OVERHEAD + write.size())?;
        let (answer, answered) = oneshot::channel();
        let queued = Queued {
            write: Box::new(write),
            answer,
            _place: place,
        };
        self.ask(Job::Write(queued), answered).await
    }

    /// Queues a jump of the revision.
    pub(super) fn jump(&self, by: u64) -> BoxFuture<'_, Result<u64, WriteError>> {
        Box::pin(async move {
            self.status.check()?;
            let (answer, answered) = oneshot::channel();
            self.ask(Job::Jump(by, answer), answered).await
        })
    }

    /// Returns the reason if writes are rejected.
    pub(super) fn failure(&self) -> Option<String> {
        self.status
            .trouble
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// Finishes queued writes and ends the thread.
    pub(super) fn stop(&self) {
        let thread = self
            .thread
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        if let Some(thread) = thread {
            // A send error means that the thread has already ended.
            let _ = self.queue.send(Job::Stop);
            let _ = thread.join();
            self.status.fail(CLOSED.to_owned());
        }
    }

    async fn ask<T>(
        &self,
        job: Job,
        answered: oneshot::Receiver<Result<T, WriteError>>,
    ) -> Result<T, WriteError> {
        let gone = || WriteError::Failed(self.failure().unwrap_or_else(|| CLOSED.to_owned()));
        self.queue.send(job).map_err(|_| gone())?;
        answered.await.unwrap_or_else(|_| Err(gone()))
    }
}

impl Status {
    /// Rejects writes immediately after a permanent failure.
    fn check(&self) -> Result<(), WriteError> {
        if self.broken.load(Ordering::Acquire) {
            let trouble = self
                .trouble
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .clone();
            return Err(WriteError::Failed(
                trouble.unwrap_or_else(|| CLOSED.to_owned()),
            ));
        }
        Ok(())
    }

    fn set(&self, trouble: Option<String>) {
        *self.trouble.lock().unwrap_or_else(PoisonError::into_inner) = trouble;
    }

    /// Records the first failure. Later ones are consequences of it.
    fn fail(&self, trouble: String) {
        if !self.broken.swap(true, Ordering::AcqRel) {
            self.set(Some(trouble));
        }
    }
}

struct Worker {
    disk: Disk,
    mvcc: Arc<Mvcc>,
    status: Arc<Status>,
    jobs: mpsc::Receiver<Job>,
}

impl Drop for Worker {
    fn drop(&mut self) {
        if thread::panicking() {
            self.status
                .fail("the committer failed; the log has the reason".to_owned());
        }
    }
}

impl Worker {
    fn run(mut self) {
        let mut full = false;
        loop {
            let job = if full {
                self.jobs.recv_timeout(RETRY)
            } else {
                self.jobs.recv().map_err(RecvTimeoutError::from)
            };
            match job {
                Ok(Job::Stop) | Err(RecvTimeoutError::Disconnected) => break,
                Ok(Job::Write(first)) => {
                    let (writes, then) = self.gather(first);
                    full = self.commit(writes, full);
                    match then {
                        Some(Job::Stop) => break,
                        Some(Job::Jump(by, answer)) => full = self.jump(by, answer, full),
                        Some(Job::Write(..)) | None => {}
                    }
                }
                Ok(Job::Jump(by, answer)) => full = self.jump(by, answer, full),
                Err(RecvTimeoutError::Timeout) => {
                    let outcome = self.disk.commit(&[], self.mvcc.revision(), &self.mvcc);
                    full = self
                        .record_outcome(outcome, full)
                        .is_err_and(|e| matches!(e, WriteError::Full(_)));
                }
            }
        }
        // A broken disk rejects this; the next start then recovers as after a crash.
        let _ = self.disk.close(&self.mvcc);
        self.status.fail(CLOSED.to_owned());
    }

    /// Takes all queued writes up to the next job of another kind, and returns that job too.
    fn gather(&self, first: Queued) -> (Vec<Queued>, Option<Job>) {
        let mut bytes = first.write.size();
        let mut writes = vec![first];
        while writes.len() < MAX_BATCH && bytes < MAX_BYTES {
            match self.jobs.try_recv() {
                Ok(Job::Write(next)) => {
                    bytes += next.write.size();
                    writes.push(next);
                }
                Ok(other) => return (writes, Some(other)),
                Err(_) => break,
            }
        }
        (writes, None)
    }

    /// Orders, commits, publishes and answers a group. Returns whether the disk is full.
    fn commit(&mut self, writes: Vec<Queued>, full: bool) -> bool {
        let mut accepted = Vec::with_capacity(writes.len());
        let mut refused = Vec::new();
        let mvcc = self.mvcc.clone();
        let state = mvcc.read();
        let mut batch = Batch::new(&state, state.revision);
        let mut places = Vec::with_capacity(writes.len());
        for queued in writes {
            let Queued {
                write,
                answer,
                _place: place,
            } = queued;
            places.push(place);
            match batch.add(*write) {
                Ok(object) => accepted.push((answer, object)),
                Err(refusal) if refusal.unpublished => refused.push((answer, refusal.error)),
                Err(refusal) => reply(answer, Err(refusal.error)),
            }
        }
        let commits = batch.into_commits();
        drop(state);
        let Some(last) = commits.last() else {
            return full;
        };
        let revision = last.event.revision;
        let outcome = self.disk.commit(&commits, revision, &self.mvcc);
        match self.record_outcome(outcome, full) {
            Ok(()) => {
                self.mvcc.publish(commits);
                accepted
                    .into_iter()
                    .for_each(|(answer, object)| reply(answer, Ok(object)));
                refused
                    .into_iter()
                    .for_each(|(answer, error)| reply(answer, Err(error)));
                false
            }
            Err(error) => {
                let waiting = accepted.into_iter().map(|(answer, _)| answer);
                for answer in waiting.chain(refused.into_iter().map(|(answer, _)| answer)) {
                    reply(answer, Err(again(&error)));
                }
                matches!(error, WriteError::Full(_))
            }
        }
    }

    fn jump(
        &mut self,
        by: u64,
        answer: oneshot::Sender<Result<u64, WriteError>>,
        full: bool,
    ) -> bool {
        let revision = self.mvcc.revision().saturating_add(by);
        let outcome = self.disk.commit(&[], revision, &self.mvcc);
        let result = self.record_outcome(outcome, full).map(|()| {
            self.mvcc.jump(revision);
            revision
        });
        let full = matches!(result, Err(WriteError::Full(_)));
        // The caller may be gone; the jump is done anyway.
        let _ = answer.send(result);
        full
    }

    /// Records the state of the disk for `failure`.
    fn record_outcome(&self, outcome: Outcome, full: bool) -> Result<(), WriteError> {
        match outcome {
            Outcome::Done => {
                if full {
                    self.status.set(None);
                }
                Ok(())
            }
            Outcome::Full(error) => {
                self.status
                    .set(Some(format!("no space left for writes: {error}")));
                Err(WriteError::Full(error))
            }
            Outcome::Broken(error) => {
                tracing::error!(error, "the store rejects all further writes");
                self.status.fail(error.clone());
                Err(WriteError::Failed(error))
            }
        }
    }
}

/// Sends the result. The caller may be gone; the write is done anyway.
fn reply(answer: Answer, result: Result<Arc<Object>, WriteError>) {
    let _ = answer.send(result);
}

/// Copies a rejection for the next write of a group.
fn again(error: &WriteError) -> WriteError {
    match error {
        WriteError::Full(reason) => WriteError::Full(reason.clone()),
        WriteError::Failed(reason) => WriteError::Failed(reason.clone()),
        other => WriteError::Failed(other.to_string()),
    }
}
