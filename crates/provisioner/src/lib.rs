//! The CSI external-provisioner, leader-elected.
//!
//! The crate builds on the elector, the work queue and the CSI client. It turns claims into requests to the driver,
//! turns responses into volumes, and deletes released volumes.
//!
//! | what | where |
//! |---|---|
//! | decisions: which claims and volumes belong to the driver, and what is due | `decide` |
//! | the request: capabilities, parameters, secrets, topology | `plan`, `capability`, `parameters`, `secrets`, `topology` |
//! | the volume object | `volume` |
//! | classes and volumes of in-tree plugins | [`migration`], `migrated` |
//! | the result of an attempt | `state` |
//! | `--enable-capacity`, `--node-deployment` | `capacity`, `local` |
//! | start, election, shutdown | [`run()`] |
//! | the workers | `claims`, `provision`, `source`, `volumes`, `clone` |
//! | shared state: caches, queues, API client, Events | `controller`, `informers`, `cluster`, `events` |
//!
//! Invariants:
//!
//! - The guard is checked immediately before every call that creates or deletes storage.
//! - Creation and deletion of the same volume never run concurrently.
//! - Created storage gets a volume object or is deleted. The provisioner retries until one of the two has succeeded.
#![forbid(unsafe_code)]

mod cache;
mod capability;
mod capacity;
mod claims;
mod clone;
mod cluster;
mod controller;
mod decide;
mod events;
mod informers;
mod journal;
mod ledger;
mod local;
mod metrics;
mod migrated;
pub mod migration;
mod names;
mod objects;
mod options;
mod parameters;
mod plan;
mod provision;
mod run;
mod secrets;
mod serve;
mod source;
mod state;
mod template;
mod term;
mod topology;
mod volume;
mod volumes;

pub use options::{AtStart, Capacity, Election, Http, NodeDeployment, Options};
pub use run::{RunError, run};
