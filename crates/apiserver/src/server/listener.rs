//! Accepts connections up to the limit. At the limit, the oldest idle connection is closed.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;

use super::connection::{Link, Serving};
use super::pipeline::Peer;

/// Pause after a failed accept, for example when no file descriptors are left.
const BREATH: Duration = Duration::from_millis(50);

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
    pub(super) async fn run(self, serving: Serving, cap: Arc<Semaphore>) {
        let mut ending = serving.ending.clone();
        let mut tasks = JoinSet::new();
        // Ordered by a growing number, so the first idle one is the oldest.
        let mut links: BTreeMap<u64, Link> = BTreeMap::new();
        let mut number = 0;
        loop {
            while let Some(done) = tasks.try_join_next() {
                links.remove(&done.unwrap_or_default());
            }
            let accepted = tokio::select! {
                accepted = self.accept() => accepted,
                Some(done) = tasks.join_next() => {
                    links.remove(&done.unwrap_or_default());
                    continue;
                }
                _ = ending.wait_for(|ending| *ending) => break,
            };
            let stream = match accepted {
                Ok(stream) => stream,
                Err(error) => {
                    tracing::warn!(%error, "cannot accept a connection");
                    tokio::time::sleep(BREATH).await;
                    continue;
                }
            };
            let permit = tokio::select! {
                permit = room(&cap, &links) => permit,
                _ = ending.wait_for(|ending| *ending) => break,
            };
            number += 1;
            let link = Link::default();
            links.insert(number, link.clone());
            let serving = serving.clone();
            let acceptor = self.acceptor();
            let id = number;
            tasks.spawn(async move {
                match (stream, acceptor) {
                    (Stream::Tcp(stream, address), Some(tls)) => {
                        serving.tls(stream, Some(address), tls, link).await;
                    }
                    (Stream::Tcp(stream, address), None) => {
                        let peer = Peer::Network {
                            certificate: None,
                            address: Some(address),
                        };
                        serving.plain(stream, peer, link).await;
                    }
                    (Stream::Unix(stream), _) => serving.plain(stream, Peer::Socket, link).await,
                }
                drop(permit);
                id
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
                let (stream, address) = listener.accept().await?;
                // Disables Nagle's algorithm, because watch events are small. An error means that the connection
                // is closed, which the next read reports.
                let _ = stream.set_nodelay(true);
                Ok(Stream::Tcp(stream, address.ip()))
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

/// Waits for a free slot below the limit, and closes idle connections while there is none.
async fn room(
    cap: &Arc<Semaphore>,
    links: &BTreeMap<u64, Link>,
) -> Option<tokio::sync::OwnedSemaphorePermit> {
    loop {
        if let Ok(permit) = Arc::clone(cap).try_acquire_owned() {
            return Some(permit);
        }
        if let Some(idle) = links.values().find(|link| link.busy.is_idle()) {
            idle.close.notify_one();
        }
        if let Ok(permit) = tokio::time::timeout(BREATH, Arc::clone(cap).acquire_owned()).await {
            return permit.ok();
        }
    }
}
