//! The deadline thread: ends terms even if the async runtime is stuck.
//!
//! One thread per process, started with the first term and asleep while there is none. It looks at
//! the clocks at each deadline, and at least four times a second while somebody leads, so that a
//! resumed machine or a wall clock that jumped forward is noticed although no timer counts that. What
//! cannot have run out by then is not looked at itself.

mod board;
mod policy;
#[cfg(test)]
mod tests;
mod thread;
mod timer;
mod watchdog;

pub use policy::{Overran, Overrun};
pub(crate) use thread::look_again;
pub use timer::Deadline;
pub(crate) use watchdog::Watchdog;
