//! Storage without kubelets: an API server, a scripted driver, our provisioner, and tests that act as the volume
//! binder.

mod api;
mod claim;
mod provisioner;
mod recorded;
mod served;
pub mod table;

pub use api::Api;
pub use claim::{claim, handed_over};
pub use provisioner::{Provisioner, Rig, until};
pub use recorded::{Case, replay};
pub use served::{STORAGE_CONTROLLERS, Served};
