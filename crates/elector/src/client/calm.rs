//! Connections that transfer thousands of small messages per second with few system calls.
//!
//! A busy connection is read every few milliseconds, and each read takes everything that has arrived. Reading more
//! often would cost a wake-up of this process, a system call, and a poll of every waiting request each time. Between
//! two reads the socket is not registered with the kernel, because each packet would wake this process only to leave
//! the data unread. A connection that is not busy is read immediately, so that nothing is delayed when there is little
//! traffic. Small messages that are written together are sent together.

use std::io::{self, IoSlice, Read as _, Write as _};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use http::Uri;
use hyper_util::client::legacy::connect::{Connected, Connection};
use hyper_util::rt::TokioIo;
use tenure_lock::BoxFuture;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::{Instant, Sleep, sleep_until};
use tower::{BoxError, Service};

use super::proxy::Dial;

/// Minimum time between two reads of responses on a busy connection.
pub(super) const ANSWERS: Duration = Duration::from_millis(10);

/// Minimum time between two reads of a busy watch. In a process that leads thousands of elections, most events are its
/// own renewals. Of such an event, only the version has to be read if the response to the renewal arrived first.
pub(super) const WATCH: Duration = Duration::from_millis(25);

/// Maximum read burst before a connection counts as busy, for example during a hand-over. The allowance grows by one
/// read per minimum time.
const AT_ONCE: u32 = 8;

/// Connects with streams that limit how often a busy connection is read.
#[derive(Clone)]
pub(super) struct Calmly {
    pub(super) tcp: Dial,
    pub(super) every: Duration,
}

impl Service<Uri> for Calmly {
    type Response = TokioIo<Calm>;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<Self::Response, Self::Error>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.tcp.poll_ready(cx)
    }

    fn call(&mut self, to: Uri) -> Self::Future {
        let (connecting, every) = (self.tcp.call(to), self.every);
        Box::pin(async move {
            let stream = connecting.await?.into_inner();
            Ok(TokioIo::new(Calm::new(stream, every)))
        })
    }
}

/// A stream that is not read more often than necessary.
pub(super) struct Calm {
    socket: Socket,
    every: Duration,
    /// Instant at which the read allowance is full again.
    full: Instant,
    /// End of the pause, if there is one.
    until: Option<Instant>,
    alarm: Pin<Box<Sleep>>,
    /// Whether data was read since the last pause.
    read: bool,
    /// Whether a write waits for buffer space.
    stuck: bool,
}

enum Socket {
    /// Registered: the kernel notifies the runtime when the socket becomes readable or writable.
    Awake(TcpStream),
    /// Not registered: there are no notifications.
    Asleep(std::net::TcpStream),
    /// Between the two states, or failed during the change.
    Gone,
}

impl Socket {
    fn fall_asleep(&mut self) -> io::Result<()> {
        *self = match std::mem::replace(self, Self::Gone) {
            Self::Awake(stream) => Self::Asleep(stream.into_std()?),
            asleep => asleep,
        };
        Ok(())
    }

    fn wake_up(&mut self) -> io::Result<&mut TcpStream> {
        *self = match std::mem::replace(self, Self::Gone) {
            Self::Asleep(stream) => Self::Awake(TcpStream::from_std(stream)?),
            awake => awake,
        };
        match self {
            Self::Awake(stream) => Ok(stream),
            _ => Err(io::ErrorKind::NotConnected.into()),
        }
    }

    /// Performs an operation on an unregistered socket if it is possible without waiting. The task is not woken when
    /// the operation becomes possible later.
    fn at_once<T>(
        &self,
        mut act: impl FnMut(&std::net::TcpStream) -> io::Result<T>,
    ) -> Poll<io::Result<T>> {
        let Self::Asleep(stream) = self else {
            return Poll::Pending;
        };
        loop {
            match act(stream) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Poll::Pending,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                done => return Poll::Ready(done),
            }
        }
    }
}

impl Calm {
    fn new(stream: TcpStream, every: Duration) -> Self {
        let now = Instant::now();
        Self {
            socket: Socket::Awake(stream),
            every,
            full: now,
            until: None,
            alarm: Box::pin(sleep_until(now)),
            read: false,
            stuck: false,
        }
    }

    /// Called after all available data was read. Sets the pause before the next read if there were many reads.
    fn looked(&mut self) {
        let now = Instant::now();
        self.full = self.full.max(now) + self.every;
        let next = self.full - self.every * AT_ONCE;
        if next > now {
            self.until = Some(next);
            self.alarm.as_mut().reset(next);
        }
    }

    fn pause(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if self.until.is_some() {
            ready!(self.alarm.as_mut().poll(cx));
            self.until = None;
        }
        Poll::Ready(())
    }

    fn look(&mut self, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if let Socket::Awake(stream) = &mut self.socket {
            return Pin::new(stream).poll_read(cx, buf);
        }
        let room = buf.initialize_unfilled();
        let read = ready!(self.socket.at_once(|mut stream| stream.read(room)))?;
        buf.advance(read);
        Poll::Ready(Ok(()))
    }

    /// Writes as much as an unregistered socket accepts immediately. The socket must be registered to write more.
    fn put(
        &mut self,
        cx: &mut Context<'_>,
        at_once: impl Fn(&std::net::TcpStream) -> io::Result<usize>,
        awake: impl FnOnce(Pin<&mut TcpStream>, &mut Context<'_>) -> Poll<io::Result<usize>>,
    ) -> Poll<io::Result<usize>> {
        if let Poll::Ready(written) = self.socket.at_once(at_once) {
            return Poll::Ready(written);
        }
        let written = awake(Pin::new(self.socket.wake_up()?), cx);
        self.stuck = written.is_pending();
        written
    }
}

impl AsyncRead for Calm {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        loop {
            ready!(this.pause(cx));
            if let Poll::Ready(read) = this.look(cx, buf) {
                this.read = true;
                return Poll::Ready(read);
            }
            if std::mem::take(&mut this.read) {
                this.looked();
            }
            match (this.until, &this.socket) {
                // The kernel reports free buffer space to a waiting writer.
                (Some(_), _) if this.stuck => {}
                (Some(_), _) => this.socket.fall_asleep()?,
                (None, Socket::Awake(_)) => return Poll::Pending,
                // The connection is no longer busy.
                (None, _) => drop(this.socket.wake_up()?),
            }
        }
    }
}

impl AsyncWrite for Calm {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        let at_once = |mut stream: &std::net::TcpStream| stream.write(buf);
        self.put(cx, at_once, |stream, cx| stream.poll_write(cx, buf))
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let at_once = |mut stream: &std::net::TcpStream| stream.write_vectored(bufs);
        self.put(cx, at_once, |stream, cx| {
            stream.poll_write_vectored(cx, bufs)
        })
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    /// Completes immediately, because nothing is buffered.
    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(self.socket.wake_up()?).poll_shutdown(cx)
    }
}

impl Connection for Calm {
    fn connected(&self) -> Connected {
        Connected::new()
    }
}

/// Wraps a connector so that its streams accept one buffer at a time.
#[derive(Clone)]
pub(super) struct Together<C>(pub(super) C);

impl<C> Service<Uri> for Together<C>
where
    C: Service<Uri>,
    C::Future: Send + 'static,
{
    type Response = TokioIo<OnePiece<TokioIo<C::Response>>>;
    type Error = C::Error;
    type Future = BoxFuture<'static, Result<Self::Response, Self::Error>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.0.poll_ready(cx)
    }

    fn call(&mut self, to: Uri) -> Self::Future {
        let connecting = self.0.call(to);
        Box::pin(async move { Ok(TokioIo::new(OnePiece(TokioIo::new(connecting.await?)))) })
    }
}

/// A stream without vectored writes. With vectored writes, each request body would be passed separately, as one TLS
/// record and one packet. Without them, the pieces are first copied together.
pub(super) struct OnePiece<S>(S);

impl<S: AsyncRead + Unpin> AsyncRead for OnePiece<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(cx, buf)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for OnePiece<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }

    fn is_write_vectored(&self) -> bool {
        false
    }
}

impl<S: Connection> Connection for OnePiece<S> {
    fn connected(&self) -> Connected {
        self.0.connected()
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpListener;

    use super::*;

    async fn connection() -> (TcpStream, Calm) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let near = TcpStream::connect(listener.local_addr().unwrap());
        let (near, far) = tokio::join!(near, listener.accept());
        (far.unwrap().0, Calm::new(near.unwrap(), ANSWERS))
    }

    /// Sends a byte every millisecond, and counts the pieces in which they are read. A read during which another byte
    /// arrives counts as two.
    async fn pieces(bytes: u8) -> u32 {
        let (mut far, mut near) = connection().await;
        let sender = tokio::spawn(async move {
            for byte in 0..bytes {
                far.write_all(&[byte]).await.unwrap();
                crate::clock::pause(Duration::from_millis(1)).await;
            }
        });
        let (mut pieces, mut all) = (0, Vec::new());
        while near.read_buf(&mut all).await.unwrap() > 0 {
            pieces += 1;
        }
        sender.await.unwrap();
        assert_eq!(all, (0..bytes).collect::<Vec<_>>(), "nothing is lost");
        pieces
    }

    #[tokio::test(start_paused = true)]
    async fn a_few_messages_are_read_one_by_one() {
        assert_eq!(pieces(8).await, 8);
    }

    #[tokio::test(start_paused = true)]
    async fn many_messages_are_read_together() {
        let pieces = pieces(200).await;
        assert!((20..=60).contains(&pieces), "{pieces} pieces");
    }

    /// Makes a connection busy, so that its socket is unregistered.
    async fn keep_busy(far: &mut TcpStream, near: &mut Calm) {
        for _ in 0..500 {
            if matches!(near.socket, Socket::Asleep(_)) && near.until.is_some() {
                return;
            }
            far.write_all(b"x").await.unwrap();
            near.read_u8().await.unwrap();
            let nothing_more = std::future::poll_fn(|cx| {
                let mut room = [0];
                let mut room = ReadBuf::new(&mut room);
                Poll::Ready(Pin::new(&mut *near).poll_read(cx, &mut room).is_pending())
            });
            assert!(nothing_more.await);
        }
        panic!("it is never busy");
    }

    #[tokio::test(start_paused = true)]
    async fn connection_that_was_busy_is_read_immediately_again() {
        let (mut far, mut near) = connection().await;
        keep_busy(&mut far, &mut near).await;
        let quiet = tokio::time::timeout(Duration::from_secs(1), near.read_u8());
        assert!(quiet.await.is_err());
        assert!(matches!(near.socket, Socket::Awake(_)));
        far.write_all(b"x").await.unwrap();
        let before = Instant::now();
        near.read_u8().await.unwrap();
        assert_eq!(before.elapsed(), Duration::ZERO);
    }

    #[tokio::test(start_paused = true)]
    async fn unregistered_connection_is_written_and_its_end_is_detected() {
        let (mut far, mut near) = connection().await;
        keep_busy(&mut far, &mut near).await;
        near.write_all(b"y").await.unwrap();
        assert!(
            matches!(near.socket, Socket::Asleep(_)),
            "that wakes nobody"
        );
        assert_eq!(far.read_u8().await.unwrap(), b'y');
        drop(far);
        assert_eq!(near.read(&mut [0]).await.unwrap(), 0);
    }

    #[tokio::test]
    async fn large_write_on_an_unregistered_connection_waits_for_buffer_space() {
        let (mut far, mut near) = connection().await;
        keep_busy(&mut far, &mut near).await;
        let much = vec![7; 16 << 20];
        let length = much.len();
        let reader = tokio::spawn(async move {
            let mut all = Vec::new();
            far.read_to_end(&mut all).await.unwrap();
            all.len()
        });
        near.write_all(&much).await.unwrap();
        near.shutdown().await.unwrap();
        assert_eq!(reader.await.unwrap(), length);
    }
}
