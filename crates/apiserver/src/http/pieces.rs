//! The bytes of a response in pieces, so that large stored objects are sent without a copy.
//!
//! All responses and watches that contain one version of an object share the bytes of the store. A version is in memory
//! once, regardless of the number of clients that do not read their responses.

use std::collections::VecDeque;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::{Response, StatusCode};
use http_body_util::BodyExt as _;
use hyper::body::{Body as HttpBody, Frame, SizeHint};

use crate::respond::{self, Body};

/// Objects of at least this many bytes are shared. Copying a smaller one is cheaper than handling another piece.
const SHARED: usize = 8 * 1024;

/// Bytes in pieces, some of which belong to stored objects.
#[derive(Debug, Default)]
pub(super) struct Pieces {
    complete: VecDeque<Bytes>,
    /// Copied bytes after the complete pieces.
    last: Vec<u8>,
    len: usize,
}

impl Pieces {
    /// Creates pieces with space for this many copied bytes.
    pub(super) fn with_capacity(bytes: usize) -> Self {
        Self {
            last: Vec::with_capacity(bytes),
            ..Self::default()
        }
    }

    /// Appends a copy.
    pub(super) fn copy(&mut self, bytes: &[u8]) {
        self.last.extend_from_slice(bytes);
        self.len += bytes.len();
    }

    /// Appends bytes. Does not copy them if there are at least [`SHARED`].
    pub(super) fn share(&mut self, bytes: Bytes) {
        if bytes.len() < SHARED {
            return self.copy(&bytes);
        }
        self.len += bytes.len();
        self.complete_last();
        self.complete.push_back(bytes);
    }

    /// Returns a JSON response with these bytes.
    pub(super) fn into_response(self, code: StatusCode) -> Response<Body> {
        let mut response = respond::json(code, Bytes::new());
        *response.body_mut() = self.boxed_unsync();
        response
    }

    /// Returns the number of bytes.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the pieces in their order. None of them is empty.
    pub(super) fn into_queue(mut self) -> VecDeque<Bytes> {
        self.complete_last();
        self.complete
    }

    /// Returns all bytes as one piece.
    pub(super) fn into_bytes(self) -> Bytes {
        let mut queue = self.into_queue();
        match queue.len() {
            0 | 1 => queue.pop_front().unwrap_or_default(),
            _ => queue.iter().flatten().copied().collect(),
        }
    }

    fn complete_last(&mut self) {
        if !self.last.is_empty() {
            let last = std::mem::take(&mut self.last);
            self.complete.push_back(Bytes::from(last));
        }
    }
}

impl From<Vec<u8>> for Pieces {
    fn from(bytes: Vec<u8>) -> Self {
        Self {
            len: bytes.len(),
            last: bytes,
            complete: VecDeque::new(),
        }
    }
}

/// A body of known length.
impl HttpBody for Pieces {
    type Data = Bytes;
    type Error = std::io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        if self.complete.is_empty() {
            self.complete_last();
        }
        let piece = self.complete.pop_front();
        self.len -= piece.as_ref().map_or(0, Bytes::len);
        Poll::Ready(piece.map(|piece| Ok(Frame::data(piece))))
    }

    fn is_end_stream(&self) -> bool {
        self.is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.len as u64)
    }
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt as _;

    use super::*;

    #[tokio::test]
    async fn large_bytes_are_shared_and_small_ones_are_copied() {
        let (small, large) = (Bytes::from(vec![b's'; 10]), Bytes::from(vec![b'l'; SHARED]));
        let fill = || {
            let mut pieces = Pieces::default();
            pieces.copy(b"{");
            pieces.share(small.clone());
            pieces.share(large.clone());
            pieces.copy(b"}");
            pieces
        };
        assert_eq!(fill().len(), SHARED + 12);
        let queue = fill().into_queue();
        let lengths: Vec<usize> = queue.iter().map(Bytes::len).collect();
        assert_eq!(lengths, [11, SHARED, 1]);
        assert_eq!(queue[1].as_ptr(), large.as_ptr(), "not copied");
        assert_eq!(fill().size_hint().exact(), Some(SHARED as u64 + 12));
        let sent = fill().collect().await.unwrap().to_bytes();
        assert_eq!(sent, fill().into_bytes());
        assert_eq!(&sent[..3], b"{ss");
        assert!(Pieces::default().into_bytes().is_empty());
    }
}
