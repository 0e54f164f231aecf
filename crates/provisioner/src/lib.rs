//! The CSI external-provisioner, leader-elected.
//!
//! Place in the picture: above the elector, the work queue and the CSI client. Claims become requests
//! to the driver, its answers become volumes, released volumes are deleted.
//!
//! | what | where |
//! |---|---|
//! | which claims and volumes are ours, what is due | `decide` |
//! | the request: capabilities, parameters, secrets, topology | `plan`, `capability`, `parameters`, `secrets`, `topology` |
//! | the volume object | `volume` |
//! | how an attempt ended | `state` |
//! | `--enable-capacity`, `--node-deployment` | `capacity`, `local` |
//! | start, election, end | [`run()`] |
//! | the workers | `claims`, `provision`, `source`, `volumes`, `clone` |
//! | what they share: caches, queues, the API server, events | `controller`, `informers`, `cluster`, `events` |
//!
//! The invariants: no call that makes or deletes storage leaves without the guard having been asked
//! right before; nothing makes and deletes the same volume at a time; storage that was made is either
//! behind a volume object, or deleted, or pursued.
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
mod local;
mod metrics;
mod names;
mod objects;
mod options;
mod parameters;
mod plan;
mod provision;
mod quantity;
mod run;
mod secrets;
mod serve;
mod source;
mod state;
mod template;
mod topology;
mod volume;
mod volumes;

pub use options::{Capacity, Election, Http, NodeDeployment, Options};
pub use run::{RunError, run};
