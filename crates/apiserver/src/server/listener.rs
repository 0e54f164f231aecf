//! Accepts connections within the shares of their addresses.

use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;

use super::connection::{Link, Serving};
use super::connections::Connections;
use super::pipeline::Peer;

/// Pause after a failed accept, for example when no file descriptors are left.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// A source of connections.
pub(super) enum Listener {
    /// TLS over TCP.
    Tls(TcpListener, watch::Receiver<TlsAcceptor>),
    /// Plain HTTP over TCP.
    Plain(TcpListener),
    /// A socket file, which is removed at the end.
    Socket(UnixListener, PathBuf),
}

enum Stream {
    Tcp(TcpStream, IpAddr),
    Unix(UnixStream),
}

impl Listener {
    /// Accepts connections until the server ends, then waits a bounded time for them to end.
    pub(super) async fn run(self, serving: Serving, connections: Arc<Connections>) {
        let mut ending = serving.ending.clone();
        let mut tasks = JoinSet::new();
        loop {
            while tasks.try_join_next().is_some() {}
            let accepted = tokio::select! {
                accepted = self.accept() => accepted,
                Some(_) = tasks.join_next() => continue,
                _ = ending.wait_for(|ending| *ending) => break,
            };
            let stream = match accepted {
                Ok(stream) => stream,
                Err(error) => {
                    tracing::warn!(%error, "cannot accept a connection");
                    // The usual cause is a lack of file descriptors.
                    connections.close_idle();
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                    continue;
                }
            };
            let link = Link::default();
            let address = stream.address();
            // Dropping the stream closes the connection.
            let Some(permit) = connections.admit(address, &link) else {
                continue;
            };
            let serving = serving.clone();
            let acceptor = self.acceptor();
            tasks.spawn(async move {
                match (stream, acceptor) {
                    (Stream::Tcp(stream, _), Some(tls)) => {
                        serving.tls(stream, address, tls, link).await;
                    }
                    (Stream::Tcp(stream, _), None) => {
                        let peer = Peer::Network {
                            certificate: None,
                            address,
                            tls: false,
                        };
                        serving.plain(stream, peer, link).await;
                    }
                    (Stream::Unix(stream), _) => serving.plain(stream, Peer::Socket, link).await,
                }
                drop(permit);
            });
        }
        if let Self::Socket(_, path) = &self {
            let _ = std::fs::remove_file(path);
        }
        drop(self);
        while tasks.join_next().await.is_some() {}
    }

    async fn accept(&self) -> std::io::Result<Stream> {
        match self {
            Self::Tls(listener, _) | Self::Plain(listener) => {
                let (stream, peer) = listener.accept().await?;
                // Disables Nagle's algorithm, because watch events are small. An error means that the connection
                // is closed, which the next read reports.
                let _ = stream.set_nodelay(true);
                Ok(Stream::Tcp(stream, peer.ip()))
            }
            Self::Socket(listener, _) => Ok(Stream::Unix(listener.accept().await?.0)),
        }
    }

    fn acceptor(&self) -> Option<TlsAcceptor> {
        match self {
            Self::Tls(_, acceptor) => Some(acceptor.borrow().clone()),
            Self::Plain(_) | Self::Socket(..) => None,
        }
    }
}

impl Stream {
    fn address(&self) -> Option<IpAddr> {
        match self {
            Self::Tcp(_, address) => Some(*address),
            Self::Unix(_) => None,
        }
    }
}
