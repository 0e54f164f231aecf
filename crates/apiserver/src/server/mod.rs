//! The server: listeners, request pipeline, and the API on a store.
//!
//! ```no_run
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! use tenure_apiserver::server::{Engine, Server};
//!
//! let server = Server::builder()
//!     .data_dir("/var/lib/tenure")
//!     .engine(Engine::Memory)
//!     .listen("127.0.0.1:6443".parse()?)
//!     .start()
//!     .await?;
//! println!("export KUBECONFIG={}", server.kubeconfig_path().unwrap().display());
//! server.run_until_signal().await?;
//! # Ok(())
//! # }
//! ```
//!
//! | file | content |
//! |---|---|
//! | `builder` | configuration |
//! | `start`, `bind` | start-up |
//! | `handle` | a running server and its shutdown |
//! | `instance` | the data directory, and discovery of running servers |
//! | `reload` | files that are read again when they change |
//! | `faults` | fault injection |
//! | `backup` | backup of a running server |
//! | `listener`, `connection`, `body`, `stall` | transport, with bounds for slow clients |
//! | `connections` | limits of the connections of each address |
//! | `pipeline` | the steps of a request |

mod backup;
mod bind;
mod body;
mod builder;
mod connection;
mod connections;
mod faults;
mod handle;
mod indent;
mod instance;
#[cfg(feature = "etcd")]
mod keys;
mod listener;
mod pipeline;
mod progress;
mod reload;
mod stall;
mod start;
#[cfg(test)]
pub(crate) mod tests;
mod watch_access;

pub use builder::{Builder, Engine, StartError};
pub use faults::{Action, Added, Fault, Faults, Requests};
pub use handle::Handle;
pub use instance::{DataDirError, Instance, Stopped, default_data_dir};
pub use pipeline::{PublicAnswer, PublicRoute};

/// Entry point: [`Server::builder`].
#[derive(Clone, Copy, Debug)]
pub struct Server;

impl Server {
    /// Creates a builder.
    pub fn builder() -> Builder {
        Builder::default()
    }
}
