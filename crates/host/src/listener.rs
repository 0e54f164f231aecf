//! Serves probes, metrics and pages over HTTP/1.1. Limits keep a client from exhausting the memory, the file
//! descriptors or the CPU time of the process.
//!
//! | limit | value |
//! |---|---|
//! | connections and streams | those of [`Seats`] |
//! | time to send the headers of a request | 10 seconds |
//! | time in which a client that gets a response must accept data | 30 seconds |
//!
//! The API server has a separate listener, because its limits also depend on the user and on the kind of request.

use std::convert::Infallible;
use std::error::Error;
use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use http::{Request, Response};
use hyper::body::{Body, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream, UnixListener};
use tokio::task::JoinSet;

use crate::prompt::Prompt;
use crate::seats::{Seat, Seats};

/// Time for a client to send the headers of its request.
const PATIENCE: Duration = Duration::from_secs(10);

/// A client that accepts no data for this long is disconnected, so that others can connect.
const SLOWEST: Duration = Duration::from_secs(30);

/// Pause after a failed accept. Usually no file descriptor is left until another connection ends.
const PAUSE: Duration = Duration::from_millis(50);

/// A source of connections.
#[derive(Debug)]
pub enum Listener {
    /// HTTP over TCP.
    Tcp(TcpListener),
    /// HTTP over a socket file.
    Unix(UnixListener),
}

trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin> Stream for S {}

impl Listener {
    /// Serves connections until dropped, and then closes them. Never returns.
    pub async fn serve<H, F, B>(self, seats: Arc<Seats>, handler: H)
    where
        H: Fn(Request<Incoming>, Arc<Seat>) -> F + Clone + Send + 'static,
        F: Future<Output = Response<B>> + Send + 'static,
        B: Body<Data: Send, Error: Into<Box<dyn Error + Send + Sync>>> + Send + 'static,
    {
        let mut connections = JoinSet::new();
        loop {
            let accepted = tokio::select! {
                accepted = self.accept() => accepted,
                Some(_) = connections.join_next() => continue,
            };
            match accepted {
                Ok((stream, address)) => {
                    let seat = seats.admit(address);
                    connections.spawn(serve_connection(stream, seat, handler.clone()));
                }
                Err(_) => tokio::time::sleep(PAUSE).await,
            }
        }
    }

    async fn accept(&self) -> io::Result<(Box<dyn Stream>, Option<IpAddr>)> {
        Ok(match self {
            Self::Tcp(listener) => {
                let (stream, peer) = listener.accept().await?;
                expect_acknowledgements(&stream);
                (Box::new(stream), Some(peer.ip()))
            }
            Self::Unix(listener) => (Box::new(listener.accept().await?.0), None),
        })
    }
}

async fn serve_connection<H, F, B>(stream: Box<dyn Stream>, seat: Arc<Seat>, handler: H)
where
    H: Fn(Request<Incoming>, Arc<Seat>) -> F,
    F: Future<Output = Response<B>>,
    B: Body<Error: Into<Box<dyn Error + Send + Sync>>> + 'static,
{
    let own = Arc::clone(&seat);
    let service = service_fn(move |request| {
        let answered = handler(request, Arc::clone(&own));
        async { Ok::<_, Infallible>(answered.await) }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(PATIENCE)
        .serve_connection(TokioIo::new(Prompt::new(stream, SLOWEST)), service);
    tokio::select! {
        // A client that disconnects, or never completes its request, does not affect the others.
        _ = connection => {}
        () = seat.replaced() => {}
    }
}

/// Limits the time without acknowledgements. Otherwise the kernel would retransmit to an unreachable machine for a
/// quarter of an hour.
fn expect_acknowledgements(stream: &TcpStream) {
    #[cfg(target_os = "linux")]
    {
        let limit = u32::try_from(SLOWEST.as_millis()).unwrap_or(u32::MAX);
        // An error is ignored, because without the option the connection only lasts longer.
        let _ = rustix::net::sockopt::set_tcp_user_timeout(stream, limit);
    }
    #[cfg(not(target_os = "linux"))]
    let _ = stream;
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::task::JoinHandle;

    use super::*;

    /// A number of connections above the limit of one address.
    const MANY: usize = 200;

    async fn start() -> (SocketAddr, JoinHandle<()>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let served = Listener::Tcp(listener).serve(Seats::new(), |request, seat| async move {
            let body = format!("{} {:?}", request.uri().path(), seat.address());
            Response::new(body)
        });
        (address, tokio::spawn(served))
    }

    async fn get(stream: &mut TcpStream) -> String {
        let request = b"GET /healthz HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n";
        stream.write_all(request).await.unwrap();
        let mut response = String::new();
        stream.read_to_string(&mut response).await.unwrap();
        response
    }

    async fn is_closed(stream: &mut TcpStream) -> bool {
        matches!(stream.read(&mut [0; 1]).await, Ok(0) | Err(_))
    }

    #[tokio::test]
    async fn idle_connections_do_not_block_a_probe() {
        let (address, serving) = start().await;
        let mut idle = Vec::new();
        for _ in 0..MANY {
            idle.push(TcpStream::connect(address).await.unwrap());
        }
        let mut probe = TcpStream::connect(address).await.unwrap();
        let answer = get(&mut probe).await;
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        assert!(answer.ends_with("/healthz Some(127.0.0.1)"), "{answer}");
        for stream in &mut idle[..100] {
            assert!(is_closed(stream).await, "the oldest are closed");
        }
        let open = idle.last_mut().unwrap();
        assert!(
            get(open).await.starts_with("HTTP/1.1 200"),
            "the newest stays"
        );
        serving.abort();
    }

    #[tokio::test(start_paused = true)]
    async fn client_that_sends_no_request_is_disconnected() {
        let (address, serving) = start().await;
        let mut silent = TcpStream::connect(address).await.unwrap();
        assert!(is_closed(&mut silent).await);
        serving.abort();
    }

    #[tokio::test]
    async fn dropping_the_listener_closes_its_connections() {
        let (address, serving) = start().await;
        let mut open = TcpStream::connect(address).await.unwrap();
        open.write_all(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
            .await
            .unwrap();
        assert!(open.read(&mut [0; 1]).await.unwrap() > 0, "it is served");
        serving.abort();
        let mut rest = Vec::new();
        assert!(open.read_to_end(&mut rest).await.is_ok());
        assert!(TcpStream::connect(address).await.is_err());
    }
}
