//! Locks: where an election keeps its record.
//!
//! Place in the picture: between the pure state machine and the API server. This crate knows the
//! wire (paths, formats, answers) and must never learn about time: it reads no clock, sleeps nowhere
//! and repeats no request. What a write says and when it is sent is decided by `tenure-core`; how
//! long it may take is decided by whoever drives it.
//!
//! ```text
//!  core ── WriteKind, Record ──▶ driver ──▶ Lock::write ──▶ API server
//!  core ◀── Observation, Outcome ── driver ◀── Sighting, Error ◀──┘
//! ```
//!
//! The [`Lock`] trait has three families of implementations, chosen at run time by [`LockKind`]:
//! [`ObjectLock`] keeps the record in one object (a Lease, or an annotation of a ConfigMap or of
//! Endpoints), [`MultiLock`] in two for migrations, and [`MemoryLock`] in this process.
//!
//! # The client
//!
//! A lock sends exactly the requests that are documented for it, each once. User agent, timeouts,
//! credentials and connections belong to the [`kube::Client`] it is given. That client must not
//! repeat requests on its own: a renewal repeated below this interface outlives its term.
//!
//! # The token
//!
//! The fencing token of a term is the `revision` in the version of the write that won it. All kinds
//! take it from `metadata.resourceVersion`; the multi locks from the greater one of their two objects,
//! which is that of the Lease.
#![forbid(unsafe_code)]

mod annotation;
pub mod candidate;
pub mod duration;
mod error;
mod fields;
mod kind;
mod lean;
mod lease;
mod lock;
mod memory;
mod multi;
mod object;
mod object_lock;
pub mod orders;
mod plain;
mod request;
mod sighting;
mod term;
#[cfg(test)]
mod testing;
mod time;

pub use annotation::LEADER_ANNOTATION;
pub use error::{Attempt, Class, Doubt, Error, Obstacle, Permission, Refusal, Verb};
pub use kind::{LockKind, NotALockKind};
pub use lean::Lean;
pub use lock::{BoxFuture, Lock, Precision, Sight, Watch, WatchTarget};
pub use memory::MemoryLock;
pub use multi::{MultiLock, UNKNOWN_HOLDER};
pub use object::{ObjectName, ObjectRef, Resource, label_problem};
pub use object_lock::ObjectLock;
pub use sighting::Sighting;
pub use term::TERM_ANNOTATION;
