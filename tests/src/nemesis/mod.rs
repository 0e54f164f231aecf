//! Faults on real processes: proxies that hold or reset connections, signals, restarts of servers, manual edits, clocks
//! that jump and full disks.
//!
//! A [`campaign`] runs fleets of candidates under a schedule that one seed decides. All processes share one host clock,
//! so overlaps of two leaders are computed and not estimated. client-go runs under the same faults: if it shows no
//! overlap, the nemesis is too weak to prove anything about tenure.

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
