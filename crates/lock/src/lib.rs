//! Locks: storage of the record of an election.
//!
//! This crate is the layer between the pure state machine and the API server. It defines the wire format (paths,
//! formats, responses) and must never depend on time: it reads no clock, never sleeps and never repeats a request.
//! `tenure-core` decides what to write and when. The caller decides how long a request may take.
//!
//! ```text
//!  core ── WriteKind, Record ──▶ driver ──▶ Lock::write ──▶ API server
//!  core ◀── Observation, Outcome ── driver ◀── Snapshot, Error ◀──┘
//! ```
//!
//! [`member`] has the objects by which candidates announce themselves. They are not part of any lock.
//!
//! The [`Lock`] trait has three kinds of implementations, selected at run time by [`LockKind`]: [`ObjectLock`] stores
//! the record in one object (a Lease, or an annotation of a ConfigMap or of Endpoints), [`MultiLock`] in two objects
//! for migrations, and [`MemoryLock`] in this process.
//!
//! # The client
//!
//! A lock sends exactly the requests that are documented for it, each once. User agent, timeouts, credentials and
//! connections belong to the [`kube::Client`] that it is given. That client must not retry requests: a renewal that is
//! repeated below this interface could outlive its term.
//!
//! # The token
//!
//! The fencing token of a term is the `revision` in the version of the write that won it. All kinds take it from
//! `metadata.resourceVersion`. The multi locks take the greater one of their two objects, which is that of the Lease.
#![forbid(unsafe_code)]

mod annotation;
pub mod candidate;
pub mod duration;
mod error;
mod fields;
mod holder;
mod kind;
mod lean;
mod lease;
mod lock;
pub mod member;
mod memory;
mod multi;
mod object;
mod object_lock;
pub mod orders;
mod plain;
mod request;
mod snapshot;
mod term;
#[cfg(test)]
mod testing;
mod time;
mod words;

pub use annotation::LEADER_ANNOTATION;
pub use error::{Attempt, Class, Doubt, Error, NO_CONNECTION, Obstacle, Permission, Refusal, Verb};
pub use holder::HOLDER_ANNOTATION;
pub use kind::{LockKind, NotALockKind};
pub use lean::Lean;
pub use lock::{BoxFuture, Lock, Precision, Watch, WatchOutcome, WatchTarget};
pub use memory::MemoryLock;
pub use multi::{MultiLock, UNKNOWN_HOLDER};
pub use object::{ObjectName, ObjectRef, Resource, label_problem};
pub use object_lock::ObjectLock;
pub use snapshot::Snapshot;
pub use term::TERM_ANNOTATION;
pub use words::{in_words, panic_text};
