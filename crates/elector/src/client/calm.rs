//! Connections that carry thousands of small messages a second in few system calls.
//!
//! A busy connection is read every few milliseconds, and whatever has come by then is taken at once: each
//! look costs a wake-up of this process, a system call and a round of everybody who waits for answers. Between
//! two looks the kernel is not asked to tell of it, since each packet would wake this process only to be left
//! lying. A connection that is not busy is read on the spot, so that nothing waits where little happens. Small
//! messages that are written together leave together.

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

/// The least time between two looks for answers at a busy connection.
pub(super) const ANSWERS: Duration = Duration::from_millis(10);

/// The same for a busy watch. Most of what it shows to thousands of leaders are their own renewals, of which
/// nothing but the version has to be read if the answer came first.
pub(super) const WATCH: Duration = Duration::from_millis(25);

/// That many looks may follow each other on the spot, as in a hand-over, until a connection counts as
/// busy; the account fills up again by one look in each such time.
const AT_ONCE: u32 = 8;

/// Connects with streams of which a busy one is read this often.
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

/// A stream that is not read more often than needed.
pub(super) struct Calm {
    socket: Socket,
    every: Duration,
    /// When the account of looks is full again.
    full: Instant,
    /// The pause, if there is one.
    until: Option<Instant>,
    alarm: Pin<Box<Sleep>>,
    /// Something was read since the last pause.
    read: bool,
    /// A write waits for room.
    stuck: bool,
}

enum Socket {
    /// The kernel tells the runtime when there is something to read, or room to write.
    Awake(TcpStream),
    /// Nobody tells anything.
    Asleep(std::net::TcpStream),
    /// Between the two, or lost on the way.
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

    /// Does something with a sleeping socket, if that is possible now; nobody is woken when it is.
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

    /// Everything that had come was read. Sets the pause before the next look, if there were many.
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

    /// Writes at once what a sleeping socket takes; for more than that it has to be awake.
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
                // Who waits for room to write is told of it by the kernel.
                (Some(_), _) if this.stuck => {}
                (Some(_), _) => this.socket.fall_asleep()?,
                (None, Socket::Awake(_)) => return Poll::Pending,
                // Not busy any more.
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

    /// Nothing is kept back.
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

/// Connects like another connector, with streams that take one piece at a time.
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

/// To a stream that takes several pieces at once, each body of a request is handed by itself, as one TLS
/// record and one packet. To this one they are copied together first.
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

    /// Sends a byte every millisecond, and counts in how many pieces they are read: two for a look during
    /// which another one came.
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
    async fn many_are_read_together() {
        let pieces = pieces(200).await;
        assert!((20..=60).contains(&pieces), "{pieces} pieces");
    }

    /// Makes a connection busy, so that its socket is asleep.
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
    async fn a_connection_that_was_busy_is_read_on_the_spot_again() {
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
    async fn a_sleeping_connection_is_written_to_and_its_end_is_seen() {
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
    async fn more_than_a_sleeping_connection_takes_is_written_when_there_is_room() {
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
