//! Controllers on every replica, leader controllers on the elected one.
#![forbid(unsafe_code)]

pub mod queue;
