//! Leader election as a pure state machine.
//!
//! Place in the picture: everything stands on this crate and it stands on nothing. It must never
//! learn about I/O, async runtimes or clocks: time comes in as an argument, randomness as a seed,
//! trouble as an [`Input`], and everything the world has to do goes out as a [`Command`].
//!
//! ```text
//!            Input + Now                      Vec<Command>
//!  driver ───────────────▶ Election::step ───────────────▶ driver
//!  (reads, writes, timers, watch, work)      (read, write, lead, extend, stop, ...)
//! ```
//!
//! [`Election::step`] is the only place where an election decision is made. The driver in the
//! `tenure` crate, the simulator and the model checker all run this same code.
//!
//! What it promises (S1-S5, L1) is written down in `docs/safety.md`; the assertions in [`machine`]
//! name the rule they keep.
#![forbid(unsafe_code)]

pub mod command;
pub mod fence;
pub mod guard;
pub mod input;
pub mod machine;
pub mod mark;
#[cfg(feature = "mutants")]
#[doc(hidden)]
pub mod mutant;
#[cfg(not(feature = "mutants"))]
mod mutant;
pub mod pair;
pub mod random;
pub mod record;
pub mod shards;
pub mod slots;
pub mod time;
pub mod timing;
pub mod undertaker;

pub use command::{Command, StopReason, WriteKind};
pub use fence::{FencingToken, ResourceVersion};
pub use guard::Guard;
pub use input::{Input, Observation, Orders, Outcome, Source, StepDownOrder, Version};
pub use machine::{Config, Election, Phase};
pub use mark::Mark;
#[cfg(feature = "mutants")]
#[doc(hidden)]
pub use mutant::{LifeMutant, Mutant, PairMutant, ShardMutant, SlotMutant};
pub use random::Random;
pub use record::Record;
pub use time::{LocalTime, Now, WallTime};
pub use timing::{Timing, TimingBuilder, TimingError};
