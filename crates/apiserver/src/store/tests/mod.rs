//! Tests of the guarantees of all engines and of each engine.

mod backup;
mod bench;
mod crash;
mod damage;
mod durable;
mod encryption;
mod fence;
mod histories;
mod medium;
mod model;
mod power;
mod served;
mod watch;
