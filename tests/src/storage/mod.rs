//! Storage without kubelets: an API server, a scripted driver, our provisioner, and tests that play the
//! volume binder.

mod api;
mod provisioner;
mod recorded;

pub use api::Api;
pub use provisioner::{Provisioner, Rig};
pub use recorded::{Case, replay};
