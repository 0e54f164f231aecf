//! Our own API server inside the test process, accessed by clients over loopback: TLS, RBAC, an empty store.

use std::io;
use std::path::PathBuf;
use std::sync::mpsc;
use std::thread::JoinHandle;

use tenure_apiserver::server::{Builder, Server};
use tokio::sync::oneshot;

/// A running embedded server. Dropping it ends it.
#[derive(Debug)]
pub struct Embedded {
    folder: tempfile::TempDir,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Embedded {
    /// Starts a server on a free port, with everything in memory.
    ///
    /// # Errors
    ///
    /// Fails if it does not start.
    pub fn start() -> io::Result<Self> {
        Self::start_with(Server::builder())
    }

    /// Starts a server with another configuration. The harness decides where its kubeconfig is written.
    ///
    /// # Errors
    ///
    /// Fails if it does not start.
    pub fn start_with(server: Builder) -> io::Result<Self> {
        let folder = tempfile::Builder::new()
            .prefix("tenure-embedded-")
            .tempdir()?;
        let server = server.write_kubeconfig(folder.path().join("kubeconfig"));
        let (stop, stopped) = oneshot::channel();
        let (ready, started) = mpsc::channel();
        let run = move || {
            let runtime = tokio::runtime::Builder::new_multi_thread()
                .enable_all()
                .build();
            match runtime {
                Ok(runtime) => runtime.block_on(serve(server, &ready, stopped)),
                Err(error) => _ = ready.send(Err(error)),
            }
        };
        let thread = std::thread::Builder::new()
            .name("embedded".to_owned())
            .spawn(run)?;
        started.recv().map_err(io::Error::other)??;
        Ok(Self {
            folder,
            stop: Some(stop),
            thread: Some(thread),
        })
    }

    /// Returns the kubeconfig of the administrator.
    pub fn kubeconfig(&self) -> PathBuf {
        self.folder.path().join("kubeconfig")
    }
}

impl Drop for Embedded {
    fn drop(&mut self) {
        self.stop.take();
        if let Some(thread) = self.thread.take() {
            _ = thread.join();
        }
    }
}

async fn serve(
    server: Builder,
    ready: &mpsc::Sender<io::Result<()>>,
    stopped: oneshot::Receiver<()>,
) {
    match server.start().await {
        Ok(server) => {
            _ = ready.send(Ok(()));
            // The sender sends nothing: dropping it is the signal.
            _ = stopped.await;
            server.shutdown().await;
        }
        Err(error) => _ = ready.send(Err(io::Error::other(error))),
    }
}
