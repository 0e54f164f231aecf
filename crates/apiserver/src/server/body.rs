//! Response bodies: streams that can be ended, and pieces whose progress is tracked.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Context, Poll};

use bytes::Bytes;
use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use http_body_util::{BodyExt as _, BodyStream, StreamBody};
use hyper::body::{Body as HttpBody, Frame, SizeHint};
use tokio::sync::Notify;

use super::progress::Progress;
use crate::fairness::Charge;
use crate::respond::Body;

/// Ends a body cleanly when `end` resolves. A body of known length is not changed, because the client expects that
/// length.
pub(super) fn until(body: Body, end: impl Future<Output = ()> + Send + 'static) -> Body {
    if body.size_hint().exact().is_some() {
        return body;
    }
    // `FuturesUnordered` polls `end` only when it is woken, and not with every piece of the body.
    let ends = FuturesUnordered::new();
    ends.push(end);
    let frames = BodyStream::new(body).take_until(ends.into_future());
    StreamBody::new(frames).boxed_unsync()
}

/// Counts the active requests of a connection, from the request to the end of its response.
#[derive(Clone, Debug, Default)]
pub(super) struct Busy(Arc<Counts>);

#[derive(Debug, Default)]
struct Counts {
    now: AtomicUsize,
    /// Set by every request and cleared by every idle check.
    seen: AtomicBool,
    /// Notified when the last active request ends.
    idle: Notify,
}

impl Busy {
    pub(super) fn begin(&self) -> BusyGuard {
        self.0.now.fetch_add(1, Ordering::AcqRel);
        self.0.seen.store(true, Ordering::Release);
        BusyGuard(self.clone())
    }

    pub(super) fn is_idle(&self) -> bool {
        self.0.now.load(Ordering::Acquire) == 0
    }

    /// Resolves when no request is active.
    pub(super) async fn until_idle(&self) {
        while !self.is_idle() {
            self.0.idle.notified().await;
        }
    }

    pub(super) fn seen_since_last_check(&self) -> bool {
        self.0.seen.swap(false, Ordering::AcqRel) || !self.is_idle()
    }
}

/// Marks one request as active until dropped.
pub(super) struct BusyGuard(Busy);

impl Drop for BusyGuard {
    fn drop(&mut self) {
        if self.0.0.now.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.0.0.idle.notify_one();
        }
    }
}

/// Maximum size of a piece that is passed to the transport.
const PIECE: usize = 64 * 1024;

/// A response body that keeps its connection active until it is sent, in pieces whose progress is tracked.
pub(super) struct Guarded {
    inner: Body,
    rest: Bytes,
    progress: Arc<Progress>,
    /// Charges the body to the share of its user until it is sent.
    _charge: Option<Arc<Charge>>,
    _guard: BusyGuard,
}

impl Guarded {
    pub(super) fn new(
        inner: Body,
        guard: BusyGuard,
        progress: Arc<Progress>,
        charge: Option<Arc<Charge>>,
    ) -> Self {
        Self {
            inner,
            rest: Bytes::new(),
            progress,
            _charge: charge,
            _guard: guard,
        }
    }

    fn piece(&mut self) -> Frame<Bytes> {
        let piece = self.rest.split_to(self.rest.len().min(PIECE));
        Frame::data(self.progress.count(piece))
    }
}

impl HttpBody for Guarded {
    type Data = Bytes;
    type Error = std::io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        if self.rest.is_empty() {
            let frame = match std::task::ready!(Pin::new(&mut self.inner).poll_frame(cx)) {
                Some(Ok(frame)) => frame,
                other => return Poll::Ready(other),
            };
            match frame.into_data() {
                Ok(data) => self.rest = data,
                Err(other) => return Poll::Ready(Some(Ok(other))),
            }
        }
        Poll::Ready(Some(Ok(self.piece())))
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty() && self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let rest = self.rest.len() as u64;
        let inner = self.inner.size_hint();
        let mut hint = SizeHint::new();
        hint.set_lower(inner.lower() + rest);
        if let Some(upper) = inner.upper() {
            hint.set_upper(upper + rest);
        }
        hint
    }
}
