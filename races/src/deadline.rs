//! The deadline thread, its timers and its watchdogs.

#[path = "../../crates/elector/src/deadline/board.rs"]
mod board;
#[path = "../../crates/elector/src/deadline/policy.rs"]
mod policy;
mod term;
mod thread;
#[path = "../../crates/elector/src/deadline/timer.rs"]
mod timer;
mod wake;
#[path = "../../crates/elector/src/deadline/watchdog.rs"]
mod watchdog;

pub(crate) use self::thread::{look_again, reset};
