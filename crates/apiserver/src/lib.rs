//! The embedded API server: Kubernetes semantics on top of a small store.
//!
//! Of the crates of this project, it depends only on `tenure-exposition`, `tenure-host` and `tenure-quantity`. Clients
//! in other crates use it only over HTTP. It must not contain knowledge about elections: a Lease is one more kind in
//! its table.
//!
//! | module | contents |
//! |---|---|
//! | [`store`] | revisions, compare-and-set, history, durability |
//! | [`schema`] | the table of field names, numbers and merge keys for codec, patch and validation |
//! | [`protobuf`] | Kubernetes protobuf bodies to JSON |
//! | [`canonical`], [`strict`] | the stored form of a body; unknown and duplicate fields |
//! | [`limits`] | size limits of decoded bodies |
//! | `json` | lookup of members |
//! | [`quantity`], [`timestamp`] | leaf types with their own text format |
//! | [`patch`] | merge, JSON and strategic merge patches |
//! | `crd` | kinds that clients define |
//! | `apply` | server-side apply and field ownership |
//! | [`selector`], [`names`] | label and field selectors; syntax of names and keys |
//! | [`auth`] | authentication and authorization |
//! | [`audit`] | the record of requests, users and outcomes |
//! | [`pki`], [`tls`], [`kubeconfig`] | certificates of the first start; kubeconfig files for clients |
//! | `blocking` | work outside the worker threads of the runtime |
//! | `fairness` | shares of the server for each user |
//! | [`request`], [`respond`] | the parsed request line; responses as bytes |
//! | [`http`] | conversion between HTTP and calls of the registry |
//! | `registry` | the table of kinds, and the verbs on their objects |
//! | [`status`] | error bodies |
//! | [`server`] | listeners, limits, the request pipeline, the data directory |
//! | [`test_server`] | a server for tests, with fault injection |
#![allow(
    clippy::disallowed_methods,
    reason = "wall time stamps objects and monotonic time bounds requests; no election is decided here"
)]

mod apply;
pub mod audit;
pub mod auth;
mod blocking;
pub mod canonical;
mod crd;
mod fairness;
#[doc(hidden)]
pub mod fuzzing;
pub mod http;
mod json;
pub mod kubeconfig;
pub mod limits;
pub mod names;
pub mod patch;
pub mod pki;
pub mod protobuf;
mod registry;
pub mod request;
pub mod respond;
pub mod schema;
pub mod selector;
pub mod server;
pub mod status;
pub mod store;
pub mod strict;
pub mod test_server;
pub mod timestamp;
pub mod tls;

pub use tenure_quantity as quantity;
pub use test_server::TestServer;

/// Compiles and runs the example in the README.
#[cfg(all(doctest, feature = "client"))]
#[doc = include_str!("../README.md")]
struct Readme;
