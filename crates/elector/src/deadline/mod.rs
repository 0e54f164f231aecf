//! The deadline thread: ends terms even if the async runtime is stuck.
//!
//! There is one thread per process. It starts with the first term, and sleeps while there is no term. It checks the
//! clocks at each deadline, and at least four times a second while this process leads. It therefore notices a resumed
//! machine or a wall clock that jumped forward. Timers notice neither. Entries that cannot be due yet are skipped.

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
