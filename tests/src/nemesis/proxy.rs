//! A TCP proxy between one candidate and its API server, with a gate for each direction.
//!
//! The proxied bytes are TLS, so the proxy drops nothing in the middle of a connection. Data that a closed gate holds
//! arrive when the gate opens, like packets that TCP retransmits after a partition has healed. This produces late
//! writes and late responses. A reset drops the connection with all held data.

use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{ReadHalf, WriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Runtime;
use tokio::sync::watch;

/// The treatment of data in one direction of a link.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Gate {
    /// Forwards them.
    #[default]
    Open,
    /// Holds them until the gate opens.
    Held,
    /// Forwards each piece after this time.
    Slow(Duration),
}

/// Both directions of a link, and the number of its resets.
#[derive(Clone, Copy, Debug, Default)]
struct Link {
    /// From the candidate to the server.
    requests: Gate,
    /// From the server to the candidate.
    answers: Gate,
    resets: u64,
}

/// A proxy with its own port. Dropping it resets its connections.
#[derive(Debug)]
pub struct Proxy {
    address: SocketAddr,
    link: watch::Sender<Link>,
    kubeconfig: tempfile::TempPath,
}

/// The runtime of all proxies, which must run while a test waits.
static RUNTIME: LazyLock<Runtime> = LazyLock::new(|| {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .thread_name("proxy")
        .enable_all()
        .build()
        .expect("a process may have two threads")
});

impl Proxy {
    /// Starts a proxy to the server of a kubeconfig, which must be on loopback.
    ///
    /// # Errors
    ///
    /// Fails if the kubeconfig names no such server, or if there is no free port.
    pub fn start(kubeconfig: &Path) -> io::Result<Self> {
        let text = std::fs::read_to_string(kubeconfig)?;
        let server = server_of(&text).ok_or_else(|| {
            io::Error::other(format!("{}: no server on loopback", kubeconfig.display()))
        })?;
        let listener = RUNTIME.block_on(TcpListener::bind("127.0.0.1:0"))?;
        let address = listener.local_addr()?;
        let file = tempfile::Builder::new()
            .prefix("tenure-proxied-")
            .tempfile()?
            .into_temp_path();
        let text = text.replace(&format!("https://{server}"), &format!("https://{address}"));
        std::fs::write(&file, text)?;
        let (link, orders) = watch::channel(Link::default());
        RUNTIME.spawn(accept(listener, server, orders));
        Ok(Self {
            address,
            link,
            kubeconfig: file,
        })
    }

    /// Returns the kubeconfig for access through the proxy.
    pub fn kubeconfig(&self) -> PathBuf {
        self.kubeconfig.to_path_buf()
    }

    /// Returns the address of the proxy.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Sets both gates.
    pub fn set(&self, requests: Gate, answers: Gate) {
        self.link.send_modify(|link| {
            link.requests = requests;
            link.answers = answers;
        });
    }

    /// Opens both gates: held data arrive late.
    pub fn heal(&self) {
        self.set(Gate::Open, Gate::Open);
    }

    /// Resets every connection with its held data. The gates do not change.
    pub fn reset(&self) {
        self.link.send_modify(|link| link.resets += 1);
    }
}

/// Returns `127.0.0.1:PORT` of the first server in a kubeconfig.
fn server_of(kubeconfig: &str) -> Option<SocketAddr> {
    let rest = kubeconfig.split_once("https://127.0.0.1:")?.1;
    let port: String = rest.chars().take_while(char::is_ascii_digit).collect();
    Some(([127, 0, 0, 1], port.parse().ok()?).into())
}

async fn accept(listener: TcpListener, server: SocketAddr, mut orders: watch::Receiver<Link>) {
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            // The proxy was dropped.
            gone = closed(&mut orders) => return gone,
        };
        if let Ok((client, _)) = accepted {
            tokio::spawn(relay(client, server, orders.clone()));
        }
    }
}

async fn closed(orders: &mut watch::Receiver<Link>) {
    while orders.changed().await.is_ok() {}
}

/// Serves one connection until either side ends it or it is reset.
async fn relay(mut client: TcpStream, server: SocketAddr, mut orders: watch::Receiver<Link>) {
    let resets = orders.borrow_and_update().resets;
    // A stopped server refuses connections; the proxy does the same with a reset.
    let Ok(mut upstream) = TcpStream::connect(server).await else {
        _ = client.set_zero_linger();
        return;
    };
    for stream in [&client, &upstream] {
        _ = stream.set_nodelay(true);
    }
    let reset = {
        let mut orders = orders.clone();
        async move {
            orders
                .wait_for(|link| link.resets != resets)
                .await
                .map(|_| ())
        }
    };
    {
        let ((from_client, to_client), (from_server, to_server)) =
            (client.split(), upstream.split());
        let requests = pump(from_client, to_server, orders.clone(), |link| link.requests);
        let answers = pump(from_server, to_client, orders.clone(), |link| link.answers);
        tokio::select! {
            _ = async { tokio::join!(requests, answers) } => return,
            _ = reset => {}
        }
    }
    // With a zero linger time, dropping a connection resets it.
    for stream in [&client, &upstream] {
        _ = stream.set_zero_linger();
    }
}

async fn pump(
    mut from: ReadHalf<'_>,
    mut to: WriteHalf<'_>,
    mut orders: watch::Receiver<Link>,
    gate: fn(&Link) -> Gate,
) {
    let mut buffer = vec![0; 16 * 1024];
    loop {
        let length = from.read(&mut buffer).await.unwrap_or(0);
        let delay = match orders.wait_for(|link| gate(link) != Gate::Held).await {
            Ok(link) => match gate(&link) {
                Gate::Slow(delay) => delay,
                Gate::Open | Gate::Held => Duration::ZERO,
            },
            Err(_) => return,
        };
        if !delay.is_zero() {
            pause(delay).await;
        }
        // The end of a stream is held by the gate like any other data.
        if length == 0 {
            _ = to.shutdown().await;
            return;
        }
        if to.write_all(&buffer[..length]).await.is_err() {
            return;
        }
    }
}

#[expect(clippy::disallowed_methods, reason = "a slow network, not an election")]
async fn pause(time: Duration) {
    tokio::time::sleep(time).await;
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net;

    use super::*;

    /// Starts a server that echoes every byte, and connects to it through a proxy.
    fn echo() -> (Proxy, net::TcpStream) {
        let listener = net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                std::thread::spawn(move || {
                    let mut byte = [0];
                    while (&stream).read_exact(&mut byte).is_ok() {
                        _ = (&stream).write_all(&byte);
                    }
                });
            }
        });
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(&file, format!("server: https://{address}\n")).unwrap();
        let proxy = Proxy::start(file.path()).unwrap();
        let text = std::fs::read_to_string(proxy.kubeconfig()).unwrap();
        assert_eq!(text, format!("server: https://{}\n", proxy.address()));
        let client = net::TcpStream::connect(proxy.address()).unwrap();
        client
            .set_read_timeout(Some(Duration::from_secs(20)))
            .unwrap();
        (proxy, client)
    }

    fn answer(mut client: &net::TcpStream) -> io::Result<u8> {
        let mut byte = [0];
        client.read_exact(&mut byte).map(|()| byte[0])
    }

    #[test]
    fn data_held_by_a_closed_gate_arrive_late() {
        for (requests, answers) in [(Gate::Held, Gate::Open), (Gate::Open, Gate::Held)] {
            let (proxy, mut client) = echo();
            client.write_all(b"a").unwrap();
            assert_eq!(answer(&client).unwrap(), b'a');
            proxy.set(requests, answers);
            client.write_all(b"b").unwrap();
            client
                .set_read_timeout(Some(Duration::from_millis(200)))
                .unwrap();
            answer(&client).unwrap_err();
            client
                .set_read_timeout(Some(Duration::from_secs(20)))
                .unwrap();
            proxy.heal();
            assert_eq!(answer(&client).unwrap(), b'b');
        }
    }

    #[test]
    fn a_reset_ends_the_connection_and_the_next_one_works() {
        let (proxy, mut client) = echo();
        client.write_all(b"a").unwrap();
        assert_eq!(answer(&client).unwrap(), b'a');
        proxy.reset();
        answer(&client).unwrap_err();
        let mut next = net::TcpStream::connect(proxy.address()).unwrap();
        next.write_all(b"b").unwrap();
        assert_eq!(answer(&next).unwrap(), b'b');
    }
}
