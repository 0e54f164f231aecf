//! Reads a request body within time limits and the shares of its user.
//!
//! A body counts as one arriving body until it is complete. The bytes of a large body count until it is handled.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures_util::FutureExt as _;
use http_body_util::BodyExt as _;
use hyper::body::{Body as HttpBody, Frame, SizeHint};
use tokio::time::{Instant, timeout_at};

use super::gate::{Charge, Gate, Tenant};
use super::limit::Resource;
use crate::limits::MAX_BODY;
use crate::status::Failure;

/// Bodies up to this size are not counted in bytes.
const SMALL: usize = 32 * 1024;

/// Time limits of a body.
pub(super) struct Limits {
    pause: Duration,
    deadline: Duration,
    /// Whether the client announced the length.
    declared: bool,
}

impl Limits {
    pub(super) fn of(limits: &super::Limits, declared: bool) -> Self {
        Self {
            pause: limits.body_pause,
            deadline: limits.body_deadline,
            declared,
        }
    }
}

/// A request body has more bytes than the server accepts.
#[derive(Debug, thiserror::Error)]
#[error("the request body is too large")]
pub(crate) struct TooLarge;

type Error = Box<dyn std::error::Error + Send + Sync>;

/// The part of a body that was read, with its charges.
pub(super) struct Intake {
    body: ReadBody,
    charge: Option<Charge>,
}

impl Intake {
    pub(super) fn into_parts(self) -> (ReadBody, Option<Charge>) {
        (self.body, self.charge)
    }
}

/// A body that was read before its request is handled. An error of reading is reported to the handler, which may reject
/// the request for another reason first.
#[derive(Default)]
pub(super) struct ReadBody {
    bytes: Bytes,
    error: Option<Error>,
}

impl ReadBody {
    pub(super) fn len(&self) -> usize {
        self.bytes.len()
    }
}

impl HttpBody for ReadBody {
    type Data = Bytes;
    type Error = Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Error>>> {
        if let Some(error) = self.error.take() {
            return Poll::Ready(Some(Err(error)));
        }
        let bytes = std::mem::take(&mut self.bytes);
        Poll::Ready((!bytes.is_empty()).then(|| Ok(Frame::data(bytes))))
    }

    fn is_end_stream(&self) -> bool {
        self.error.is_none() && self.bytes.is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        match self.error {
            None => SizeHint::with_exact(self.bytes.len() as u64),
            Some(_) => SizeHint::default(),
        }
    }
}

/// Reads a whole body.
///
/// # Errors
/// 429 if the user has more arriving or large bodies than its share.
pub(super) async fn read<B>(
    mut body: B,
    gate: &Arc<Gate>,
    user: &str,
    limits: &Limits,
) -> Result<Intake, Failure>
where
    B: HttpBody<Data = Bytes> + Unpin,
    B::Error: std::error::Error + Send + Sync + 'static,
{
    // The handler rejects a declared length above the limit by itself.
    let oversized = limits.declared && body.size_hint().lower() > MAX_BODY as u64;
    let mut parts = BodyPieces::default();
    if body.is_end_stream() || oversized {
        return Ok(parts.finish(None));
    }
    let start = Instant::now();
    let end = start + limits.deadline;
    let (mut arriving, mut last) = (None, start);
    loop {
        let limit = end.min(last + limits.pause);
        let frame = match body.frame().now_or_never() {
            Some(frame) => Ok(frame),
            None => {
                if arriving.is_none() {
                    arriving = Some(gate.tenant(user).take(Resource::ArrivingBodies, 1)?);
                }
                timeout_at(limit, body.frame()).await
            }
        };
        match frame {
            Ok(None) => return Ok(parts.finish(None)),
            Ok(Some(Err(error))) => return Ok(parts.finish(Some(error.into()))),
            Ok(Some(Ok(frame))) => {
                last = Instant::now();
                let Ok(data) = frame.into_data() else {
                    continue;
                };
                if parts.len() + data.len() > MAX_BODY {
                    return Ok(parts.finish(Some(TooLarge.into())));
                }
                parts.push(data, gate, user)?;
                if body.is_end_stream() {
                    return Ok(parts.finish(None));
                }
            }
            Err(_) => {
                let why = "the request body did not arrive in time";
                return Ok(parts.finish(Some(why.into())));
            }
        }
    }
}

/// The part of a request body that has arrived.
#[derive(Default)]
struct BodyPieces {
    /// The only piece so far.
    first: Bytes,
    /// All pieces, if there are several.
    all: BytesMut,
    charge: Option<Charge>,
}

impl BodyPieces {
    fn len(&self) -> usize {
        self.first.len() + self.all.len()
    }

    fn push(&mut self, data: Bytes, gate: &Arc<Gate>, user: &str) -> Result<(), Failure> {
        let length = self.len() + data.len();
        match &mut self.charge {
            Some(charge) => charge.grow(data.len() as u64)?,
            None if length > SMALL => {
                let tenant: Tenant = gate.tenant(user);
                self.charge = Some(tenant.take(Resource::Bodies, length as u64)?);
            }
            None => {}
        }
        if self.len() == 0 {
            self.first = data;
            return Ok(());
        }
        if !self.first.is_empty() {
            let first = std::mem::take(&mut self.first);
            self.all.extend_from_slice(&first);
        }
        self.all.extend_from_slice(&data);
        Ok(())
    }

    fn finish(&mut self, error: Option<Error>) -> Intake {
        let bytes = if self.all.is_empty() {
            std::mem::take(&mut self.first)
        } else {
            std::mem::take(&mut self.all).freeze()
        };
        Intake {
            body: ReadBody { bytes, error },
            charge: self.charge.take(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use futures_util::stream;
    use http_body_util::StreamBody;

    use super::*;

    fn gate(arriving: u64, bytes: u64) -> Arc<Gate> {
        Arc::new(Gate::new(&super::super::Limits {
            arriving_bodies: arriving,
            body_bytes: bytes,
            ..Default::default()
        }))
    }

    const LIMITS: Limits = Limits {
        pause: Duration::from_secs(30),
        deadline: Duration::from_secs(60),
        declared: false,
    };

    /// A body of equal pieces, with a pause before each.
    fn pieces(
        count: usize,
        size: usize,
        pause: Duration,
    ) -> impl HttpBody<Data = Bytes, Error = Infallible> + Unpin {
        let pieces = stream::unfold(0, move |index| async move {
            if index == count {
                return None;
            }
            tokio::time::sleep(pause).await;
            Some((Ok(Frame::data(Bytes::from(vec![b'x'; size]))), index + 1))
        });
        StreamBody::new(Box::pin(pieces))
    }

    async fn outcome(read: Result<Intake, Failure>) -> Result<usize, String> {
        let (body, _) = read.map_err(|failure| failure.message)?.into_parts();
        let all = body.collect().await.map_err(|error| error.to_string())?;
        Ok(all.to_bytes().len())
    }

    #[tokio::test(start_paused = true)]
    async fn body_that_arrives_byte_by_byte_ends_at_the_deadline() {
        let gate = gate(10, 1 << 20);
        let began = Instant::now();
        let body = pieces(1_000, 1, Duration::from_secs(1));
        let error = outcome(read(body, &gate, "mallory", &LIMITS).await).await;
        let error = error.unwrap_err();
        assert!(error.contains("did not arrive in time"), "{error}");
        assert_eq!(began.elapsed(), Duration::from_secs(60));
        let body = pieces(1, 1, Duration::from_secs(31));
        let error = outcome(read(body, &gate, "mallory", &LIMITS).await).await;
        assert!(error.is_err(), "a pause is too long");
        let body = pieces(2, 20_000, Duration::from_secs(20));
        let read = outcome(read(body, &gate, "mallory", &LIMITS).await).await;
        assert_eq!(read, Ok(40_000));
    }

    #[tokio::test(start_paused = true)]
    async fn body_that_is_arriving_counts_against_the_share_of_its_user() {
        let gate = gate(4, 1 << 20);
        let slow = |user: &'static str| {
            let gate = Arc::clone(&gate);
            tokio::spawn(async move {
                let body = pieces(5, 1, Duration::from_secs(1));
                outcome(read(body, &gate, user, &LIMITS).await).await
            })
        };
        let mallory: Vec<_> = (0..6).map(|_| slow("mallory")).collect();
        let mut rejected = 0;
        for task in mallory {
            match task.await.unwrap() {
                Ok(length) => assert_eq!(length, 5),
                Err(message) => {
                    assert!(message.contains("bodies are still arriving"), "{message}");
                    rejected += 1;
                }
            }
        }
        assert_eq!(rejected, 4, "two of four are the share of one user");
        // A body that has arrived does not count.
        let held: Vec<_> = (0..2).map(|_| slow("mallory")).collect();
        tokio::time::sleep(Duration::from_millis(700)).await;
        let body = http_body_util::Full::new(Bytes::from_static(b"{}"));
        let complete = outcome(read(body, &gate, "mallory", &LIMITS).await).await;
        assert_eq!(complete, Ok(2));
        for task in held {
            assert_eq!(task.await.unwrap(), Ok(5));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn body_that_is_large_counts_with_its_bytes() {
        let gate = gate(4, 400_000);
        let large = async |pieces_of: usize| {
            let body = pieces(pieces_of, 50_000, Duration::from_millis(1));
            read(body, &gate, "mallory", &LIMITS).await
        };
        let first = large(3).await.unwrap();
        let error = large(3).await.map(|_| ()).unwrap_err();
        assert_eq!(error.code, 429);
        assert!(error.message.contains("bytes of request bodies"));
        drop(first);
        assert_eq!(outcome(large(3).await).await, Ok(150_000));
        let body = pieces(64, 50_000, Duration::from_millis(1));
        let read = read(body, &gate, "mallory", &LIMITS).await;
        assert_eq!(read.map(|_| ()).unwrap_err().code, 429);
    }
}
