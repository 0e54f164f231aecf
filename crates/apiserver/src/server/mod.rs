//! A running server: listeners in front, the API over a store behind.
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
//! | file | is about |
//! |---|---|
//! | `builder` | what can be asked for |
//! | `start`, `bind` | how a server comes up |
//! | `handle` | a running server, and its end |
//! | `instance` | the data directory, and servers as others see them |
//! | `faults` | faults on purpose |
//! | `backup` | the state of a running server as a file |
//! | `listener`, `connection`, `body`, `stall` | transport, with bounds on what slow clients cost |
//! | `pipeline` | the way of a request |

mod backup;
mod bind;
mod body;
mod builder;
mod connection;
mod faults;
mod handle;
mod instance;
#[cfg(feature = "etcd")]
mod keys;
mod listener;
mod pipeline;
mod progress;
mod stall;
mod start;
#[cfg(test)]
pub(crate) mod tests;

pub use builder::{Builder, Engine, StartError};
pub use faults::{Action, Added, Fault, Faults, Requests};
pub use handle::Handle;
pub use instance::{DataDirError, Instance, Stopped, default_data_dir};
pub use pipeline::{PublicAnswer, PublicRoute};

/// The entry: [`Server::builder`].
#[derive(Clone, Copy, Debug)]
pub struct Server;

impl Server {
    /// A server to be set up.
    pub fn builder() -> Builder {
        Builder::default()
    }
}
