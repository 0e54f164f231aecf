//! Connections that carry thousands of small messages a second in few system calls.
//!
//! A busy connection is read every few milliseconds, and whatever has come by then is taken at once: each
//! look costs a wake-up of this process, a system call and a round of everybody who waits for answers. A
//! connection that is not busy is read on the spot, so that nothing waits where little happens. Small
//! messages that are written together leave together.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use http::Uri;
use hyper_util::client::legacy::connect::{Connected, Connection};
use hyper_util::rt::TokioIo;
use tenure_lock::BoxFuture;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep, sleep_until};
use tower::Service;

/// The least time between two looks at a busy connection.
const EVERY: Duration = Duration::from_millis(10);

/// That many looks may follow each other on the spot, as in a hand-over, until a connection counts as
/// busy; the account fills up again by one look in each [`EVERY`].
const AT_ONCE: u32 = 8;

/// Connects like another connector, with calm streams.
#[derive(Clone)]
pub(super) struct Calmly<C>(pub(super) C);

impl<C> Service<Uri> for Calmly<C>
where
    C: Service<Uri>,
    C::Future: Send + 'static,
{
    type Response = TokioIo<Calm<TokioIo<C::Response>>>;
    type Error = C::Error;
    type Future = BoxFuture<'static, Result<Self::Response, Self::Error>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.0.poll_ready(cx)
    }

    fn call(&mut self, to: Uri) -> Self::Future {
        let connecting = self.0.call(to);
        Box::pin(async move { Ok(TokioIo::new(Calm::new(TokioIo::new(connecting.await?)))) })
    }
}

/// A stream that is not read more often than needed.
pub(super) struct Calm<S> {
    stream: S,
    /// When the account of looks is full again.
    full: Instant,
    /// The pause, if there is one.
    until: Option<Instant>,
    alarm: Pin<Box<Sleep>>,
    /// Something was read since the last pause.
    read: bool,
}

impl<S> Calm<S> {
    fn new(stream: S) -> Self {
        let now = Instant::now();
        Self {
            stream,
            full: now,
            until: None,
            alarm: Box::pin(sleep_until(now)),
            read: false,
        }
    }

    /// Everything that had come was read. Sets the pause before the next look, if there were many.
    fn looked(&mut self) {
        let now = Instant::now();
        self.full = self.full.max(now) + EVERY;
        let next = self.full - EVERY * AT_ONCE;
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
}

impl<S: AsyncRead + Unpin> AsyncRead for Calm<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        ready!(self.pause(cx));
        match Pin::new(&mut self.stream).poll_read(cx, buf) {
            Poll::Ready(read) => {
                self.read = true;
                Poll::Ready(read)
            }
            Poll::Pending => {
                if std::mem::take(&mut self.read) {
                    self.looked();
                    // Whatever comes wakes the reader once, who finds the pause and waits for its end.
                    let _ = self.pause(cx);
                }
                Poll::Pending
            }
        }
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Calm<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }

    /// To a stream that takes several pieces at once, each body of a request is handed by itself, as one
    /// TLS record and one packet. To others they are copied together first.
    fn is_write_vectored(&self) -> bool {
        false
    }
}

impl<S: Connection> Connection for Calm<S> {
    fn connected(&self) -> Connected {
        self.stream.connected()
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, duplex};

    use super::*;

    /// Sends a byte every millisecond, and counts in how many looks they are read.
    async fn looks(bytes: u8) -> u32 {
        let (mut far, near) = duplex(1024);
        let sender = tokio::spawn(async move {
            for byte in 0..bytes {
                far.write_all(&[byte]).await.unwrap();
                crate::clock::pause(Duration::from_millis(1)).await;
            }
        });
        let mut near = Calm::new(near);
        let (mut looks, mut all) = (0, Vec::new());
        while near.read_buf(&mut all).await.unwrap() > 0 {
            looks += 1;
        }
        sender.await.unwrap();
        assert_eq!(all, (0..bytes).collect::<Vec<_>>(), "nothing is lost");
        looks
    }

    #[tokio::test(start_paused = true)]
    async fn a_few_messages_are_read_one_by_one() {
        assert_eq!(looks(8).await, 8);
    }

    #[tokio::test(start_paused = true)]
    async fn many_are_read_together() {
        let looks = looks(200).await;
        assert!((20..=35).contains(&looks), "{looks} looks");
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_that_was_busy_is_read_on_the_spot_again() {
        let (mut far, near) = duplex(1024);
        let mut near = Calm::new(near);
        for _ in 0..50 {
            far.write_all(b"x").await.unwrap();
            near.read_u8().await.unwrap();
        }
        crate::clock::pause(Duration::from_secs(1)).await;
        far.write_all(b"x").await.unwrap();
        let before = Instant::now();
        near.read_u8().await.unwrap();
        assert_eq!(before.elapsed(), Duration::ZERO);
    }
}
