//! Bodies of tests that run against more than one API server. The files of `tests/` start the server and call them.
#![allow(clippy::unwrap_used, reason = "what goes wrong here fails the test")]

pub mod clients;
pub mod interop;
pub mod mixed;
pub mod nemesis;
