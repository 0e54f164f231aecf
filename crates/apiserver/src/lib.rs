//! The embedded API server: Kubernetes semantics over one small store.
//!
//! Place in the picture: this crate depends on no other crate of the project, and they meet it only
//! over HTTP. It must never learn about elections: a Lease is one more kind in its table.
//!
//! | module | is about |
//! |---|---|
//! | [`store`] | revisions, compare-and-set, history, durability |
//! | [`schema`] | the one table of field names, numbers, merge keys behind codec, patch and validation |
//! | [`protobuf`] | Kubernetes protobuf bodies to JSON |
//! | [`canonical`], [`strict`] | the stored form of a body; unknown and duplicate fields |
//! | [`limits`] | how large a decoded body may become |
//! | [`quantity`], [`timestamp`] | leaf types with a text of their own |
//! | [`patch`] | merge, JSON and strategic merge patches |
//! | `crd` | kinds that clients define |
//! | `apply` | server-side apply, and who owns which field |
//! | [`selector`], [`names`] | label and field selectors; which names and keys are well formed |
//! | [`auth`] | who is asking, and may they |
//! | [`audit`] | the record of requests, users and outcomes |
//! | [`pki`], [`tls`], [`kubeconfig`] | certificates made on first start, and how clients get them |
//! | [`http`] | requests to calls, results to answers |
//! | `registry` | the table of kinds, and what the verbs do to them |
//! | [`status`] | error bodies |
//! | [`server`] | listeners, limits, the way of a request, the data directory |
//! | [`test_server`] | a server for tests, with faults on demand |
#![allow(
    clippy::disallowed_methods,
    reason = "wall time stamps objects and monotonic time bounds requests; no election is decided here"
)]

mod apply;
pub mod audit;
pub mod auth;
pub mod canonical;
mod crd;
#[doc(hidden)]
pub mod fuzzing;
pub mod http;
pub mod kubeconfig;
pub mod limits;
pub mod names;
pub mod patch;
pub mod pki;
pub mod protobuf;
pub mod quantity;
mod registry;
pub mod schema;
pub mod selector;
pub mod server;
pub mod status;
pub mod store;
pub mod strict;
pub mod test_server;
pub mod timestamp;
pub mod tls;

pub use test_server::TestServer;
