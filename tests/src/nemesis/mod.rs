//! Faults on real processes: proxies that hold or reset connections, signals, restarts of servers, edits by
//! hand, clocks that jump and disks that are full.
//!
//! A [`campaign`] runs fleets of candidates through a schedule that one seed decides. All processes share one
//! host clock, so what it says about two leaders at once is computed and not estimated. client-go goes through
//! the same faults: if it comes out clean, the nemesis is too weak to say anything about tenure.

pub mod campaign;
pub mod clock_shim;
pub mod fault;
pub mod known;
pub mod proxy;
pub mod seed;
pub mod server;
pub mod squad;
pub mod store;
pub mod trees;
