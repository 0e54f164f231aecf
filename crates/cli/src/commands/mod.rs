//! The subcommands: one file or folder each. Modules that several subcommands use are one level up.

#[cfg(feature = "server")]
pub(crate) mod demo;
pub(crate) mod doctor;
pub(crate) mod elect;
pub(crate) mod history;
#[cfg(feature = "provision")]
pub(crate) mod provision;
pub(crate) mod run;
#[cfg(feature = "server")]
pub(crate) mod server;
pub(crate) mod shells;
pub(crate) mod status;
pub(crate) mod steer;
#[cfg(feature = "top")]
pub(crate) mod top;
pub(crate) mod ui;
