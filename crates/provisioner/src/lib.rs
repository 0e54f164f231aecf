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
#![forbid(unsafe_code)]

mod capability;
mod decide;
mod names;
mod objects;
mod options;
mod parameters;
mod plan;
mod quantity;
mod secrets;
mod state;
mod template;
mod topology;
mod volume;

pub use options::{Election, Http, Options};
