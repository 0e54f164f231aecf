//! What every engine promises, and what each promises alone.

mod fence;
mod watch;
