//! Leader election as a pure state machine.
//!
//! All other crates build on this crate, and it depends on none of them. It must never contain I/O, async runtimes or
//! clocks. Time is an argument, randomness comes from a seed, failures are an [`Input`], and every action is returned
//! as a [`Command`].
//!
//! ```text
//!            Input + Now                      Vec<Command>
//!  driver ───────────────▶ Election::step ───────────────▶ driver
//!  (reads, writes, timers, watch, work)      (read, write, lead, extend, stop, ...)
//! ```
//!
//! Election decisions are made only in [`Election::step`]. The driver in the `tenure` crate, the simulator and the
//! model checker all run this code.
//!
//! The guarantees (S1-S5, L1) are listed in `docs/book/explanation/safety.md`. The assertions in [`machine`] name the
//! rule that they check.
#![forbid(unsafe_code)]

pub mod command;
pub mod crash;
pub mod death;
pub mod fence;
pub mod guard;
pub mod hash;
pub mod incarnation;
pub mod input;
pub mod machine;
pub mod mark;
#[cfg(feature = "_mutants")]
#[doc(hidden)]
pub mod mutant;
#[cfg(not(feature = "_mutants"))]
mod mutant;
pub mod pair;
pub mod preference;
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
pub use incarnation::{Container, Incarnation, Place, Process};
pub use input::{Input, Observation, Orders, Outcome, Source, StepDownOrder, Version};
pub use machine::{Config, Election, Phase};
pub use mark::Mark;
#[cfg(feature = "_mutants")]
#[doc(hidden)]
pub use mutant::{DeathMutant, LifeMutant, Mutant, PairMutant, ShardMutant, SlotMutant};
pub use preference::{Failback, Preference, Rank, Standing};
pub use random::Random;
pub use record::Record;
pub use time::{LocalTime, Now, WallTime};
pub use timing::{Timing, TimingBuilder, TimingError};
