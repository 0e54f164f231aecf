//! Attacks on `tenure server` as a separate process, over real sockets on loopback.
//!
//! | file | content |
//! |---|---|
//! | `server` | the server with its users, and its use of memory and processor |
//! | `client` | HTTP requests of one user, and sockets that misuse HTTP |
//! | `campaign` | the table of attacks, each bounded in time and in number of connections |
//! | `bombs` | requests that are small for the client and expensive for a careless server |
//! | `renewals` | latency of the renewals of elections, from the audit log |
#![allow(
    clippy::disallowed_methods,
    reason = "attacks are not elections and may sleep on any clock"
)]

pub mod bombs;
pub mod campaign;
pub mod client;
pub mod renewals;
pub mod server;

/// Path of the ConfigMaps that attacks read and write.
pub const MAPS: &str = "/api/v1/namespaces/default/configmaps";
/// Path of the Leases that attacks read and write.
pub const LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces/default/leases";
/// Path of the API of roles.
pub const RBAC: &str = "/apis/rbac.authorization.k8s.io/v1";
/// Path of definitions of custom kinds.
pub const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
